/* Origins of bytes, appended as a text is made from another one. */
#include "src/text/base/place.h"

#include <string.h>

static struct sh_span *room_for(struct sh_spans *o, size_t more)
{
    if (o->room - o->n < more) {
        o->room = 2 * (o->n + more) + 64;
        o->at = sh_realloc(o->at, o->room, sizeof *o->at);
    }
    o->n += more;
    return o->at + o->n - more;
}

void sh_spans_start(struct sh_spans *o, uint32_t begin, size_t bytes)
{
    struct sh_span *to = room_for(o, bytes);

    for (size_t i = 0; i < bytes; i++, begin++)
        to[i] = (struct sh_span){begin, begin + 1};
}

void sh_spans_keep(struct sh_spans *o, const struct sh_span *from, size_t n)
{
    struct sh_span *to = room_for(o, n);

    if (n)
        memcpy(to, from, n * sizeof *to);
}

void sh_spans_make(struct sh_spans *o, const struct sh_span *from, size_t n, size_t made)
{
    struct sh_span *to = room_for(o, made), all = from[0];

    for (size_t i = 1; i < n; i++) {
        all.begin = from[i].begin < all.begin ? from[i].begin : all.begin;
        all.end = from[i].end > all.end ? from[i].end : all.end;
    }
    for (size_t i = 0; i < made; i++)
        to[i] = all;
}
