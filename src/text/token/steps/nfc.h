/* Unicode's normalization form C as the library `tokenizers` computes it: its tables are from an older version of
 * Unicode than most (unicode.h). Local; any thread may read. Source: Unicode Standard Annex 15; Hangul: the Unicode
 * Standard, section 3.12. */
#ifndef IO_TOKEN_NFC_H
#define IO_TOKEN_NFC_H

#include "src/text/base/place.h"
#include "src/text/base/text.h"

#include <stdbool.h>

struct sh_nfc;

struct sh_nfc *sh_nfc_create(void);
void sh_nfc_destroy(struct sh_nfc *t); /* NULL is fine */

/* Append text [bytes], which is UTF-8, in normal form. Returns false if it is already in that form; then nothing is
 * appended.
 *   from  in   [bytes] origins of the text; NULL: not wanted
 *   to    out  appended: those of what is appended */
bool sh_nfc_apply(const struct sh_nfc *t, const unsigned char *text, size_t bytes, struct sh_text *out,
                  const struct sh_span *from, struct sh_spans *to);

#endif
