/* A growing buffer of bytes. */
#ifndef IO_TOKEN_TEXT_H
#define IO_TOKEN_TEXT_H

#include "src/base/mem.h"

#include <stddef.h>
#include <string.h>

struct sh_text {
    unsigned char *at;
    size_t n, room;
};

static inline unsigned char *sh_text_room(struct sh_text *t, size_t more)
{
    if (t->room - t->n < more) {
        t->room = 2 * (t->n + more) + 64;
        t->at = sh_realloc(t->at, t->room, 1);
    }
    return t->at + t->n;
}

static inline void sh_text_put(struct sh_text *t, const void *from, size_t bytes)
{
    unsigned char *at = sh_text_room(t, bytes + 1);

    if (bytes)
        memcpy(at, from, bytes);
    t->n += bytes;
}

#endif
