/* Regular expressions of tokenizers (Oniguruma's, Ruby's words) for PCRE2, such that no version of PCRE2 or of its
 * Unicode matters: each character and class becomes a list of code points from our own tables. Local. */
#ifndef IO_TOKEN_PATTERN_H
#define IO_TOKEN_PATTERN_H

#include "src/base/err.h"

#include <stddef.h>

/* *out: an expression for PCRE2_UTF without PCRE2_UCP or PCRE2_CASELESS, freed with free().
 * Taken: characters, escapes of punctuation, \r \n \t \f \v, \s \S \d \D, \p{X} \P{X} \p{^X} (general categories,
 * some scripts), classes without nesting, alternatives, groups ( ) (?: ) (?i: ) (?> ), looking ahead and behind,
 * the repetitions ? * + {n,m} with ? or + behind.
 * Errors: SH_E_DATA: what else there is, by name and place. */
sh_rc sh_pattern_translate(const char *pattern, size_t bytes, char **out);

#endif
