/* Regular expressions of tokenizers, matched by PCRE2. Any thread may read a compiled expression; each thread needs its
 * own scratch. */
#ifndef IO_TOKEN_EXPRESSION_H
#define IO_TOKEN_EXPRESSION_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* *code: freed with sh_expression_free(); *jit: whether it is machine code. Errors: as for sh_split_pattern(). */
sh_rc sh_expression_compile(const char *pattern, size_t bytes, void **code, bool *jit);
void sh_expression_free(void *code); /* NULL is fine */

struct sh_expression_scratch;

struct sh_expression_scratch *sh_expression_scratch_create(void);
void sh_expression_scratch_destroy(struct sh_expression_scratch *s); /* NULL is fine */

/* Find the first match in text [bytes], UTF-8, that begins at or after `from`; a match is never empty.
 * Errors: SH_E_DATA: PCRE2 gives up. */
sh_rc sh_expression_next(const void *code, bool jit, struct sh_expression_scratch *s, const unsigned char *text,
                         size_t bytes, size_t from, size_t *begin, size_t *end, bool *found);

#endif
