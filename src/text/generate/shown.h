/* The text of tokens as they come: whole characters only, up to a given text that ends it. Local. */
#ifndef SH_GENERATE_SHOWN_H
#define SH_GENERATE_SHOWN_H

#include "src/text/base/ids.h"
#include "src/text/token/token.h"

struct sh_shown {
    const struct sh_tokenizer *tok;
    const char *stop; /* (optional) the text ends before it */
    char *text;       /* of the tokens after the prompt so far, freed with free() */
    size_t bytes, room;
    bool stopped;        /* `stop` was found */
    size_t before, upto; /* ids whose text is known: a token's text may depend on those before it */
};

/* Begin after ids[0..prompt), at least one. */
void sh_shown_begin(struct sh_shown *s, const struct sh_tokenizer *tok, const char *stop, size_t prompt);

/* Add the text that ids [n] have gained since the last call. A character whose bytes are not complete waits, except
 * with `last`. Errors: those of sh_decode_ids(). */
sh_rc sh_shown_add(struct sh_shown *s, const uint32_t *ids, size_t n, bool last);

/* Bytes of the text that stay, whatever follows; the rest may be the beginning of `stop`. */
size_t sh_shown_settled(const struct sh_shown *s, bool last);

#endif
