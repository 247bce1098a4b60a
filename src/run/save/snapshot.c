#include "src/run/save/snapshot.h"

#include "src/base/mem.h"
#include "src/base/number/mixsum.h"
#include "src/run/run.h"
#include "src/run/save/map.h"
#include "src/run/save/shards.h"

#include <omp.h>
#include <string.h>

static int64_t parts_of(int64_t elems)
{
    return (elems + SH_MIXSUM_PART - 1) / SH_MIXSUM_PART;
}

/* ---- on a CPU ---- */

/* Widen a range and copy it, piece by piece. */
static void copy_coded(const struct sh_shards *p, int piece, int k, const struct sh_map_stretch *s, struct sh_range of)
{
    int64_t first = sh_shards_range(p, piece, 0, 0).begin, next;
    float room[16 * SH_CODE8_ELEMS];

    for (int64_t at = of.begin; at < of.end; at = next) {
        next = at + 16 * SH_CODE8_ELEMS < of.end ? at + 16 * SH_CODE8_ELEMS : of.end;
        sh_map_widen(p->r, s, k, (struct sh_range){at, next}, room);
        sh_ckpt_piece_copy(&p->pieces[piece], sh_shards_name(p, piece), p->r->step, k, at - first, next - at,
                           (struct sh_floats){.whole = room - (at - first)});
    }
}

/* Copy what lies in slice t of n of what this rank writes, and in a stretch of the state. */
static void copy_slice(const struct sh_shards *p, int piece, int k, const struct sh_map_stretch *s, int t, int n)
{
    struct sh_range all = sh_shards_range(p, piece, 0, p->pieces[piece].elems);
    struct sh_range mine = sh_layout_split(p->r->map->unit[s->unit].written, n, t);
    int own = sh_map_state_at(p->r->p, s->unit, k);

    mine = sh_layout_intersect(sh_layout_intersect(mine, all), s->range);
    if (!sh_shards_has(p, piece, k))
        return;
    if (mine.begin < mine.end && s->state[own].coded)
        copy_coded(p, piece, k, s, mine);
    else if (mine.begin < mine.end)
        sh_ckpt_piece_copy(&p->pieces[piece], sh_shards_name(p, piece), p->r->step, k, mine.begin - all.begin,
                           mine.end - mine.begin, sh_floats_at(s->state[own], all.begin - s->range.begin));
}

/* Threads take the same slices of units as in sh_snapshot_touch(), so each finds its part of the copy near. */
static void copy_stretch(const struct sh_map_stretch *s, void *arg)
{
    const struct sh_shards *p = arg;

#pragma omp parallel
    for (int i = p->first_piece[s->unit]; i < p->first_piece[s->unit + 1]; i++)
        for (int k = 0; k < p->set.states.n; k++)
            copy_slice(p, i, k, s, omp_get_thread_num(), omp_get_num_threads());
}

static void touch_slice(const struct sh_map_unit *m, int k, int t, int n)
{
    struct sh_range copied = {m->written.begin, m->written.begin + m->copied[k]}, slice = sh_layout_split(copied, n, t);
    struct sh_floats copy = sh_floats_at(m->copy[k], slice.begin - m->written.begin);

    for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(copy, i); i++)
        memset(sh_floats_array(copy, i), 0, (size_t)sh_floats_bytes(copy, slice.end - slice.begin));
}

/* Each thread touches its slice of everything: memory then lies near the thread that touched it first. Without it the
 * first snapshot would pay for the page faults and place all pages by its own thread. */
void sh_snapshot_touch(const struct sh_run *r)
{
#pragma omp parallel
    for (int i = 0; i < r->p->n_units; i++)
        for (int k = 0; r->p->units[i].trainable && k < r->map->n_states; k++)
            touch_slice(&r->map->unit[i], k, omp_get_thread_num(), omp_get_num_threads());
}

/* ---- on a GPU ---- */

/* Its state is always in memory, so a failure ends the job. */
static void visit(const struct sh_run *r, int unit, struct sh_range range, sh_map_look *look, void *arg)
{
    sh_rc rc = sh_map_visit(r, unit, range, (1u << r->map->n_states) - 1, false, look, arg);

    if (rc != SH_OK)
        sh_stop(rc);
}

static void copy_by_queue(const struct sh_map_stretch *s, void *arg)
{
    const struct sh_run *r = arg;
    const struct sh_map_unit *m = &r->map->unit[s->unit];

    for (int k = 0; k < r->map->n_states; k++) {
        struct sh_floats from = s->state[k], to = sh_floats_at(m->copy[k], s->range.begin - m->written.begin);

        if (from.coded)
            sh_exec_widen(r->exec, to.whole, from, s->range.end - s->range.begin);
        for (int i = 0; i < SH_FLOATS_ARRAYS && !from.coded && sh_floats_array(from, i); i++)
            sh_exec_copy(r->exec, sh_floats_array(to, i), sh_floats_array(from, i),
                         sh_floats_bytes(from, s->range.end - s->range.begin));
    }
}

/* The sums of a piece, part by part of its blocks. */
struct piece_sums {
    struct sh_shards *shards;
    int piece;
};

static void sum_state(const struct sh_map_stretch *s, int k, struct sh_shards *p, int piece)
{
    struct sh_range all = sh_shards_range(p, piece, 0, p->pieces[piece].elems), of = sh_layout_intersect(all, s->range);
    int own = sh_map_state_at(p->r->p, s->unit, k);
    int64_t block, n;
    uint64_t place;

    for (int64_t at = of.begin; sh_shards_has(p, piece, k) && at < of.end; at += n) {
        n = sh_ckpt_piece_cut(&p->pieces[piece], sh_shards_name(p, piece), p->r->step, k, at - all.begin, of.end - at,
                              &block, &place);
        sh_exec_mixsum(p->r->exec, s->state[own], at - s->range.begin, n, place, p->parts + p->n_parts);
        for (int64_t i = 0; i < parts_of(n); i++)
            p->part_of[p->n_parts++] = &p->pieces[piece].early[k][block];
    }
}

static void sum_stretch(const struct sh_map_stretch *s, void *arg)
{
    const struct piece_sums *c = arg;

    for (int k = 0; k < c->shards->set.states.n; k++)
        sum_state(s, k, c->shards, c->piece);
}

/* Upper bound of the number of parts: one more for each block that is cut, and for each row that is. */
static int64_t count_parts(const struct sh_shards *p)
{
    int64_t n = 0;

    for (int i = 0; i < p->set.n_pieces; i++)
        n += p->set.states.n * (parts_of(p->pieces[i].elems) + sh_ckpt_piece_blocks(&p->pieces[i]) +
                                p->r->map->unit[sh_shards_param(p, i)->unit].n_rows - 1);
    return n;
}

/* Queue sums and copies alongside the operations. The device sums parts; note which block each belongs to. */
static void queue_all(struct sh_shards *p)
{
    const struct sh_run *r = p->r;
    int64_t most = count_parts(p) + 1; /* a rank that writes nothing still asks for memory that exists */

    p->parts = sh_exec_host(r->exec, most * (int64_t)sizeof *p->parts);
    p->part_of = sh_calloc((size_t)most, sizeof *p->part_of);
    for (int i = 0; i < p->set.n_pieces; i++) {
        struct piece_sums c = {.shards = p, .piece = i};
        struct sh_range range = sh_shards_range(p, i, 0, p->pieces[i].elems);

        visit(r, sh_shards_param(p, i)->unit, sh_shards_whole(p, i, range), sum_stretch, &c);
    }
    for (int i = 0; i < r->p->n_units; i++)
        if (r->p->units[i].trainable)
            visit(r, i, r->map->unit[i].written, copy_by_queue, (void *)r);
}

/* Start a snapshot. On a CPU it is complete on return. */
void sh_snapshot_copy(struct sh_shards *p)
{
    sh_exec_copies_begin(p->r->exec);
    if (p->r->device->gpu)
        queue_all(p);
    else
        sh_map_visit_all(p->r, false, copy_stretch, p);
    sh_exec_copies_end(p->r->exec);
}

void sh_snapshot_wait(const struct sh_shards *p)
{
    sh_exec_copies_wait(p->r->exec);
    for (int64_t i = 0; i < p->n_parts; i++)
        *p->part_of[i] += p->parts[i];
}

static bool is_planned(const struct sh_run *r)
{
    for (int i = 0; i < r->p->n_units; i++)
        if (r->p->units[i].snapshot != SH_NONE)
            return true;
    return false;
}

void sh_snapshot_now(const struct sh_run *r, struct sh_shards *out)
{
    bool copied = r->device->gpu && is_planned(r);

    sh_shards_make(r, copied ? SH_SHARDS_SNAPSHOT : SH_SHARDS_SAVE, out);
    if (!copied)
        return;
    sh_snapshot_copy(out);
    sh_snapshot_wait(out);
}
