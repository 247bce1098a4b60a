#include "src/run/kept/parts.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/near/wire.h"
#include "src/run/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Takes over the descriptor: a mapping needs none. */
static sh_rc map(const struct sh_keep_part *part, void **memory)
{
    struct stat st;

    if (fstat(part->fd, &st) != 0 || st.st_size < part->bytes) {
        close(part->fd);
        return sh_fail(SH_E_COMM, "the keeper gave less memory than the %lld bytes that it names",
                       (long long)part->bytes);
    }
    *memory = mmap(NULL, (size_t)part->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, part->fd, 0);
    close(part->fd);
    if (*memory == MAP_FAILED)
        return sh_fail(SH_E_MEMORY, "map %lld bytes of a near checkpoint: %s", (long long)part->bytes, strerror(errno));
    return SH_OK;
}

static sh_rc add(struct sh_kept_parts *all, int *cap, const struct sh_keep_part *part)
{
    struct sh_near_slot slot;
    void *memory;

    SH_TRY(map(part, &memory));
    if (sh_near_empty_damaged(memory, part->bytes))
        sh_log_warn("a part of a near checkpoint on %s is left out: its head has changed", sh_wire_node());
    if (!sh_near_view(memory, part->bytes, &slot)) {
        munmap(memory, (size_t)part->bytes); /* never laid out */
        return SH_OK;
    }
    all->part = sh_grow(all->part, all->n, cap, sizeof *all->part);
    all->part[all->n++] = (struct sh_kept_part){slot, part->slot, part->bytes};
    return SH_OK;
}

sh_rc sh_kept_map(const struct sh_run *r, struct sh_kept_parts *out)
{
    const struct sh_mesh *mesh = r->mesh;
    struct sh_keep_part part;
    bool more = true;
    int cap = 0;

    *out = (struct sh_kept_parts){0};
    for (int i = mesh->node_rank; more; i += mesh->node_size) {
        SH_TRY(sh_keep_list(r->kept->socket, i, &part, &more));
        if (more)
            SH_TRY(add(out, &cap, &part));
    }
    return SH_OK;
}

void sh_kept_unmap(struct sh_kept_parts *p)
{
    for (int i = 0; i < p->n; i++)
        munmap(p->part[i].slot.head, (size_t)p->part[i].bytes);
    free(p->part);
    *p = (struct sh_kept_parts){0};
}

static sh_rc take(const struct sh_run *r, int rank, int slot, int64_t bytes, void **memory)
{
    const struct sh_kept *k = r->kept;
    struct sh_keep_part part = {
        .rank = rank, .world = r->mesh->world, .slot = slot, .layout = k->layout, .start = k->start, .bytes = bytes};

    SH_TRY(sh_keep_take(k->socket, k->patience, &part));
    return map(&part, memory);
}

/* What arrives lays it out. */
static sh_rc map_copy(struct sh_run *r, int slot)
{
    struct sh_kept *k = r->kept;
    void *memory;

    if (k->from == SH_NONE)
        return SH_OK;
    SH_TRY(take(r, k->from, slot, k->copy_bytes, &memory));
    k->copy[slot].head = memory;
    return SH_OK;
}

static sh_rc map_own(struct sh_run *r, int slot)
{
    struct sh_kept *k = r->kept;
    void *memory;

    SH_TRY(take(r, r->mesh->rank, slot, k->bytes, &memory));
    if (!sh_near_view(memory, k->bytes, &k->slot[slot]))
        sh_near_format(memory, r->p, &r->mesh->shape, k->layout, &k->slot[slot]);
    return SH_OK;
}

sh_rc sh_kept_take_slots(struct sh_run *r)
{
    for (int i = 0; i < SH_NEAR_SLOTS; i++) {
        SH_TRY(map_own(r, i));
        SH_TRY(map_copy(r, i));
    }
    return SH_OK;
}
