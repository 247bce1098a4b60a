/* Documents for people to read. Local. */
#ifndef SH_COMMAND_SHOW_H
#define SH_COMMAND_SHOW_H

#include "src/text/token/token.h"

#include <stdio.h>

/* Print a document on a line (or several): stretches that are trained on are in angle brackets (U+27E8, U+27E9).
 *   t     its tokenizer; NULL: ids
 *   mask  [n] 0 or 1; NULL: nothing is marked
 * Control characters are shown as \xNN. Errors: those of sh_decode_ids(). */
sh_rc sh_show_document(FILE *out, const struct sh_tokenizer *t, const uint32_t *ids, const unsigned char *mask,
                       size_t n);

#endif
