/* Translates regular expressions of tokenizers (Oniguruma, Ruby syntax) for PCRE2, such that neither the version of
 * PCRE2 nor that of its Unicode tables matters: each character and class becomes a list of code points from our own
 * tables.
 * Local. */
#ifndef IO_TOKEN_PATTERN_H
#define IO_TOKEN_PATTERN_H

#include "src/base/err.h"

#include <stddef.h>

/* *out: an expression for PCRE2_UTF without PCRE2_UCP or PCRE2_CASELESS, freed with free().
 * Accepted: characters, escapes of punctuation, \r \n \t \f \v, \s \S \d \D, \p{X} \P{X} \p{^X} (general categories,
 * some scripts), classes without nesting, alternatives, groups ( ) (?: ) (?i: ) (?> ), lookahead and lookbehind,
 * the repetitions ? * + {n,m} followed by ? or +.
 * Errors: SH_E_DATA: anything else, by name and place. */
sh_rc sh_pattern_translate(const char *pattern, size_t bytes, char **out);

#endif
