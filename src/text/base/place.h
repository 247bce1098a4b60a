/* Where ids come from: the bytes of a text, as it was given, for which each id stands. Kept beside the ids only if
 * somebody asks (sh_encode_places()): steps that change a text then say what they did to it, as edits. Local. */
#ifndef IO_TOKEN_PLACE_H
#define IO_TOKEN_PLACE_H

#include "src/base/mem.h"

#include <stddef.h>
#include <stdint.h>

struct sh_span {
    uint32_t begin, end; /* bytes [begin, end) */
};

struct sh_place {
    struct sh_span text; /* what the id stands for; white space that an added token takes is part of it */
    struct sh_span own;  /* for an added token, its own text without that white space; for others empty */
};

/* One place for each id. */
struct sh_places {
    struct sh_place *at;
    size_t n, room;
};

static inline void sh_places_put(struct sh_places *p, struct sh_place place)
{
    if (p->n == p->room) {
        p->room = 2 * p->room + 64;
        p->at = sh_realloc(p->at, p->room, sizeof *p->at);
    }
    p->at[p->n++] = place;
}

/* For each byte of a text that was made from another one, the bytes that it comes from. */
struct sh_spans {
    struct sh_span *at; /* [n] */
    size_t n, room;
};

/* Append the spans of `bytes` bytes that stand for themselves, the first of them at `begin`. */
void sh_spans_start(struct sh_spans *o, uint32_t begin, size_t bytes);

/* Append spans [n] unchanged. */
void sh_spans_keep(struct sh_spans *o, const struct sh_span *from, size_t n);

/* Append `made` bytes that came from all of the bytes with spans [n], n > 0. */
void sh_spans_make(struct sh_spans *o, const struct sh_span *from, size_t n, size_t made);

#endif
