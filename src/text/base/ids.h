/* Ids in a growing array. */
#ifndef IO_TOKEN_IDS_H
#define IO_TOKEN_IDS_H

#include "src/base/mem.h"

#include <stddef.h>
#include <stdint.h>

struct sh_ids {
    uint32_t *id;
    size_t n, room;
};

/* Make room for `more` ids after the existing ones; returns the address of the first. */
static inline uint32_t *sh_ids_room(struct sh_ids *ids, size_t more)
{
    if (ids->room - ids->n <= more) { /* also the first time, if `more` is 0 */
        ids->room = 2 * (ids->n + more) + 64;
        ids->id = sh_realloc(ids->id, ids->room, sizeof *ids->id);
    }
    return ids->id + ids->n;
}

static inline void sh_ids_put(struct sh_ids *ids, uint32_t id)
{
    *sh_ids_room(ids, 1) = id;
    ids->n++;
}

#endif
