/* Unicode's normal form C as the library `tokenizers` makes it: its tables are of an older Unicode than most
 * (unicode.h). Local; reading from any thread. Source: Unicode Standard Annex 15; Hangul: the Unicode Standard,
 * section 3.12. */
#ifndef IO_TOKEN_NFC_H
#define IO_TOKEN_NFC_H

#include "io/token/text.h"

#include <stdbool.h>

struct sh_nfc;

struct sh_nfc *sh_nfc_create(void);
void sh_nfc_destroy(struct sh_nfc *t); /* NULL is fine */

/* Append text [bytes], which is UTF-8, in normal form. False: it is in that form, and nothing was appended. */
bool sh_nfc_apply(const struct sh_nfc *t, const unsigned char *text, size_t bytes, struct sh_text *out);

#endif
