/* Moves between the arena and the scratch file. Sections move slices at places that the program gives. Between
 * sections, saves and loads read the same slices through slots: the memory that only sections use is free then, and
 * serves as a cache. */
#include "src/exec/moves.h"

#include "src/base/mem.h"
#include "src/tier/tier.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(SH_FILE_PAGE % SH_TIER_ALIGN == 0, "places of the program are places of the file");

/* Room for one slice between sections. */
struct slot {
    char *at;
    int slice; /* that is there, or SH_NONE */
    bool changed;
    int64_t used; /* the turn in which it was lent last */
};

struct sh_moves {
    const struct sh_program *p;
    struct sh_tier_file *file;
    char *arena;
    int64_t in_bytes, out_bytes;
    struct slot *slots;
    int n_slots;
    int64_t turn;
    bool *written;        /* [slices] the file holds the slice's values; else they are zeros */
    pthread_mutex_t lent; /* held while a slice is */
};

/* Remainder and states of a slice are one extent. */
static int64_t bytes_of(const struct sh_moves *m, int slice)
{
    return sh_tensor_bytes(&m->p->tensors[m->p->slices[slice].home]);
}

/* Cut the memory that sections share into equal slots, each large enough for the largest slice. */
static void make_slots(struct sh_moves *m)
{
    int64_t first = sh_tier_align(m->p->persistent_bytes), most = 0;

    for (int i = 0; i < m->p->n_slices; i++)
        most = bytes_of(m, i) > most ? bytes_of(m, i) : most;
    m->n_slots = most ? (int)((m->p->own_bytes - first) / most) : 0;
    m->n_slots = m->n_slots < m->p->n_slices ? m->n_slots : m->p->n_slices;
    m->slots = sh_calloc((size_t)m->n_slots + 1, sizeof *m->slots);
    for (int i = 0; i < m->n_slots; i++)
        m->slots[i] = (struct slot){.at = m->arena + first + i * most, .slice = SH_NONE};
}

sh_rc sh_moves_open(const struct sh_program *p, char *arena, const char *folder, bool verify, struct sh_moves **out)
{
    const struct sh_tier_settings settings = {
        .folder = folder, .bytes = p->tiers[sh_program_file_tier(p)].bytes, .verify = verify};
    struct sh_moves *m = sh_calloc(1, sizeof *m);
    sh_rc rc;

    *m = (struct sh_moves){.p = p, .arena = arena};
    m->written = sh_calloc((size_t)p->n_slices + 1, sizeof *m->written);
    pthread_mutex_init(&m->lent, NULL);
    make_slots(m);
    rc = m->n_slots || !p->n_slices ? sh_tier_open(&settings, &m->file)
                                    : sh_fail(SH_E_BUG, "the arena has no room for a slice");
    if (rc == SH_OK)
        *out = m;
    else
        sh_moves_close(m);
    return rc;
}

void sh_moves_close(struct sh_moves *m)
{
    if (!m)
        return;
    sh_tier_close(m->file);
    pthread_mutex_destroy(&m->lent);
    free(m->slots);
    free(m->written);
    free(m);
}

/* Both sides have fixed places, so a move is one request of one length. */
sh_rc sh_moves_start(struct sh_moves *m, const struct sh_op *op, int64_t *ticket)
{
    const struct sh_tensor *from = &m->p->tensors[op->in[0]], *to = &m->p->tensors[op->out[0]];
    int64_t bytes = sh_tensor_bytes(from);

    if (op->kind == SH_OP_FETCH) {
        m->in_bytes += bytes;
        return sh_tier_start_read(m->file, from->offset_bytes, m->arena + to->offset_bytes, bytes, ticket);
    }
    m->out_bytes += bytes;
    return sh_tier_start_write(m->file, to->offset_bytes, m->arena + from->offset_bytes, bytes, ticket);
}

sh_rc sh_moves_wait(struct sh_moves *m, int64_t ticket)
{
    return sh_tier_wait(m->file, ticket);
}

void sh_moves_take(struct sh_moves *m, int64_t *in_bytes, int64_t *out_bytes)
{
    *in_bytes = m->in_bytes;
    *out_bytes = m->out_bytes;
    m->in_bytes = m->out_bytes = 0;
}

/* ---- between sections ---- */

/* Name the unit and its elements in the error, because a failing disk knows only offsets. */
static sh_rc named(const struct sh_moves *m, int slice, sh_rc rc)
{
    const struct sh_slice *s = &m->p->slices[slice];

    return rc == SH_OK
               ? rc
               : sh_fail_prefix(rc, "optimizer states of %s, elements %lld to %lld: ", m->p->units[s->unit].name,
                                (long long)s->first, (long long)(s->first + s->n - 1));
}

/* Where the first part of a slice's extent after byte `from` begins, or where the extent ends. */
static int64_t next_part(const struct sh_moves *m, int slice, int64_t from)
{
    const struct sh_slice *s = &m->p->slices[slice];
    int64_t next = bytes_of(m, slice);

    for (int k = 0; k < m->p->n_states; k++) {
        const struct sh_tensor *t = &m->p->tensors[s->state[k]];
        int64_t begin = t->base_elems * sh_dtype_bytes(t->dtype);

        next = begin > from && begin < next ? begin : next;
    }
    return next;
}

/* Write a slice, each part by itself, since sections read some of them alone; from then on the file is what counts. */
static sh_rc write_slice(struct sh_moves *m, int slice, const char *from)
{
    int64_t at = m->p->tensors[m->p->slices[slice].home].offset_bytes;

    for (int64_t part = 0, next; part < bytes_of(m, slice); part = next) {
        next = next_part(m, slice, part);
        SH_TRY(named(m, slice, sh_tier_write(m->file, at + part, from + part, next - part)));
    }
    m->written[slice] = true;
    return SH_OK;
}

/* A slice that was never written is zeros, which are not read: the file is as long as the states, and mostly never
 * written. */
static sh_rc read_slice(struct sh_moves *m, int slice, char *to)
{
    int64_t at = m->p->tensors[m->p->slices[slice].home].offset_bytes;

    if (m->written[slice])
        return named(m, slice, sh_tier_read(m->file, at, to, bytes_of(m, slice)));
    memset(to, 0, (size_t)bytes_of(m, slice));
    return SH_OK;
}

/* Empty a slot: write its slice if it was changed. */
static sh_rc leave(struct sh_moves *m, struct slot *slot)
{
    if (slot->slice != SH_NONE && slot->changed)
        SH_TRY(write_slice(m, slot->slice, slot->at));
    slot->slice = SH_NONE;
    slot->changed = false;
    return SH_OK;
}

/* The slot that has the slice, or else the one that was lent longest ago. */
static struct slot *slot_for(struct sh_moves *m, int slice)
{
    struct slot *oldest = &m->slots[0];

    for (int i = 0; i < m->n_slots; i++) {
        if (m->slots[i].slice == slice)
            return &m->slots[i];
        if (m->slots[i].used < oldest->used)
            oldest = &m->slots[i];
    }
    return oldest;
}

/* Bring a slice into a slot. The slice that is there goes to its home first, if it was changed. */
static sh_rc bring(struct sh_moves *m, int slice, struct slot *slot)
{
    if (slot->slice == slice)
        return SH_OK;
    SH_TRY(leave(m, slot));
    SH_TRY(read_slice(m, slice, slot->at));
    slot->slice = slice;
    return SH_OK;
}

/* The lock is held until the slice is given back: another slice could push this one out of its slot. */
sh_rc sh_moves_lend(struct sh_moves *m, int slice, bool change, char **extent)
{
    struct slot *slot;
    sh_rc rc;

    pthread_mutex_lock(&m->lent);
    slot = slot_for(m, slice);
    rc = bring(m, slice, slot);
    if (rc != SH_OK) {
        pthread_mutex_unlock(&m->lent);
        return rc;
    }
    slot->changed |= change;
    slot->used = ++m->turn;
    *extent = slot->at;
    return SH_OK;
}

void sh_moves_give_back(struct sh_moves *m)
{
    pthread_mutex_unlock(&m->lent);
}

/* Write changed slots, because the next section overwrites them. */
sh_rc sh_moves_settle(struct sh_moves *m)
{
    for (int i = 0; i < m->n_slots; i++)
        SH_TRY(leave(m, &m->slots[i]));
    return SH_OK;
}

/* A run begins with states of zeros, but only slices that were written can be fetched. */
sh_rc sh_moves_fill(struct sh_moves *m)
{
    for (int i = 0; i < m->p->n_slices; i++)
        if (!m->written[i]) {
            memset(m->slots[0].at, 0, (size_t)bytes_of(m, i));
            SH_TRY(write_slice(m, i, m->slots[0].at));
        }
    return SH_OK;
}

/* After a rollback or a load all slices are zeros again until they are written. */
void sh_moves_forget(struct sh_moves *m)
{
    for (int i = 0; i < m->n_slots; i++)
        m->slots[i] = (struct slot){.at = m->slots[i].at, .slice = SH_NONE};
    memset(m->written, 0, (size_t)m->p->n_slices * sizeof *m->written);
}
