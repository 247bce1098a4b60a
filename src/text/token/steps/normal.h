/* The normalizer of a tokenizer.json as a list of steps. Any thread may read the steps. */
#ifndef IO_TOKEN_NORMAL_H
#define IO_TOKEN_NORMAL_H

#include "src/text/base/text.h"
#include "src/text/token/steps/nfc.h"

enum sh_normal_kind { SH_NORMAL_NFC, SH_NORMAL_PREPEND, SH_NORMAL_REPLACE };

struct sh_normal {
    enum sh_normal_kind kind;
    struct sh_nfc *nfc; /* NFC: owned */
    char *from, *to;    /* REPLACE: both; PREPEND: `to`; owned */
    size_t from_bytes, to_bytes;
};

void sh_normal_free(struct sh_normal *n);

/* Normalize *text [*bytes]. If anything changes, *text and *bytes become those of a scratch buffer; there are two,
 * which the steps use in turn.
 *   origin  inout  origin[0]: the origins of the text; origin[1]: scratch. NULL: not wanted */
void sh_normalize(const struct sh_normal *steps, int n, struct sh_text scratch[2], const unsigned char **text,
                  size_t *bytes, struct sh_spans origin[2]);

#endif
