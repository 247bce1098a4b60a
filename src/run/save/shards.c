#include "src/run/save/shards.h"

#include "src/base/mem.h"
#include "src/optim/optim.h"
#include "src/optim/update.h"
#include "src/program/saved.h"
#include "src/run/run.h"
#include "src/run/save/map.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool loads(enum sh_shards_way way)
{
    return way == SH_SHARDS_LOAD || way == SH_SHARDS_BASE;
}

/* Whether a way is for what is trained, or for what is not. A matrix of labels that is trained beside adapters begins
 * with the base's. */
static bool takes(enum sh_shards_way way, const struct sh_saved *s)
{
    return s->trainable == (way != SH_SHARDS_BASE) || (way == SH_SHARDS_BASE && s->role == SH_PARAM_HEAD);
}

static bool takes_unit(const struct sh_shards *s, const struct sh_unit *u)
{
    const struct sh_program *p = s->r->p;

    return u->n_params ? takes(s->way, sh_saved_of(p, &p->params[u->first_param]))
                       : u->trainable == (s->way != SH_SHARDS_BASE);
}

static int states_of_way(const struct sh_run *r, enum sh_shards_way way)
{
    return way == SH_SHARDS_BASE ? 1 : r->map->n_states + (r->p->row_state[0] != 0);
}

/* Whether files are written from a GPU's state and read into it piece by piece, without a copy of all of it in
 * between. */
static bool all_far(const struct sh_run *r, enum sh_shards_way way)
{
    return r->device->gpu && (way == SH_SHARDS_SAVE || (way == SH_SHARDS_LOAD && r->p->n_slices));
}

const struct sh_param *sh_shards_param(const struct sh_shards *p, int piece)
{
    return &p->r->p->params[p->place[piece].param];
}

const char *sh_shards_name(const struct sh_shards *p, int piece)
{
    return p->tensors[p->pieces[piece].tensor].name;
}

bool sh_shards_has(const struct sh_shards *p, int piece, int k)
{
    unsigned states = p->tensors[p->pieces[piece].tensor].states;

    return sh_map_state_at(p->r->p, sh_shards_param(p, piece)->unit, k) != SH_NONE && (!states || states >> k & 1u);
}

struct sh_range sh_shards_range(const struct sh_shards *p, int piece, int64_t at, int64_t n)
{
    int64_t begin = sh_shards_param(p, piece)->unit_elems + p->place[piece].first + at;

    return (struct sh_range){begin, begin + n};
}

struct sh_range sh_shards_whole(const struct sh_shards *p, int piece, struct sh_range range)
{
    int64_t owned = p->r->map->unit[sh_shards_param(p, piece)->unit].owned.begin;

    return (struct sh_range){range.begin - (range.begin - owned) % SH_CODE8_ELEMS, range.end};
}

/* ---- states in the host's memory that do not lie there ---- */

/* Bytes that a unit has there. On a GPU, n_host states, of 4 bytes an element unless packed; on a CPU, where the file
 * is read in place, the lower halves that lie in a file. */
static int64_t host_bytes(const struct sh_shards *s, int unit)
{
    const struct sh_unit *u = &s->r->p->units[unit];
    const struct sh_map_unit *m = &s->r->map->unit[unit];
    int64_t n = m->owned.end - m->owned.begin;

    if (!takes_unit(s, u))
        return 0;
    if (s->r->device->gpu)
        return s->n_host * (u->packed ? sh_nf4_bytes(n) : 4 * n);
    return m->far >> SH_CKPT_MODEL & 1u ? 2 * n : 0;
}

/* State k of a unit there, from the owned element `first` on. Units follow one another, and in a unit its states. */
static struct sh_floats in_host(const struct sh_shards *s, int unit, int k, int64_t first)
{
    const struct sh_map_unit *m = &s->r->map->unit[unit];
    int64_t n = m->owned.end - m->owned.begin;
    struct sh_floats f;
    char *at = s->host;

    for (int i = 0; i < unit; i++)
        at += host_bytes(s, i);
    if (s->r->device->gpu)
        f = sh_map_laid_out(s->r->p, unit, k, at + k * 4 * n, n);
    else
        f = (struct sh_floats){.high = s->r->map->row[m->first_row].here.state[k].high, .low = (int16_t *)(void *)at};
    return sh_floats_at(f, first - m->owned.begin);
}

static void lend_host(struct sh_shards *s, int n_states)
{
    int64_t n = 0;

    s->n_host = n_states;
    for (int i = 0; i < s->r->p->n_units; i++)
        n += host_bytes(s, i);
    s->host = sh_calloc((size_t)n + 1, 1);
}

/* A copy of what the host has to the state, or back. */
struct host_copy {
    const struct sh_shards *s;
    bool put;
};

static void copy_host(const struct sh_map_stretch *t, void *arg)
{
    const struct host_copy *c = arg;
    struct sh_exec *exec = c->s->r->exec;

    for (int k = 0; k < c->s->n_host && k < c->s->r->map->unit[t->unit].n_states; k++)
        for (int i = 0; i < SH_FLOATS_ARRAYS && !sh_map_coded(c->s->r->p, k); i++) { /* these are staged */
            void *host = sh_floats_array(in_host(c->s, t->unit, k, t->range.begin), i);
            void *home = sh_floats_array(t->state[k], i);
            int64_t bytes = sh_floats_bytes(t->state[k], t->range.end - t->range.begin);

            if (home && host != home && c->put) /* not every unit has every state */
                sh_exec_put_at(exec, home, host, bytes);
            else if (home && host != home)
                sh_exec_get_at(exec, host, home, bytes);
        }
}

/* ---- states in codes, which a file fills in any order ---- */

static int64_t staged_elems(const struct sh_shards *s, int unit)
{
    const struct sh_map_unit *m = &s->r->map->unit[unit];

    return s->r->p->units[unit].trainable ? m->owned.end - m->owned.begin : 0;
}

/* Room for them in float32: unit after unit, and in a unit state after state. */
static float *staged(const struct sh_shards *s, int unit, int k, int64_t first)
{
    int64_t n = staged_elems(s, unit), at = (k - 1) * n + first - s->r->map->unit[unit].owned.begin;

    for (int i = 0; i < unit; i++)
        at += s->r->p->n_optim_states * staged_elems(s, i);
    return s->staged + at;
}

static void lend_staged(struct sh_shards *s)
{
    int64_t n = 0;

    for (int i = 0; i < s->r->p->n_units; i++)
        n += s->r->p->n_optim_states * staged_elems(s, i);
    s->staged = sh_calloc((size_t)n + 1, sizeof *s->staged);
}

static void put_staged(const struct sh_map_stretch *t, void *arg)
{
    const struct sh_shards *s = arg;

    for (int k = 1; k <= s->r->p->n_optim_states; k++)
        sh_exec_put_floats(s->r->exec, t->state[k], staged(s, t->unit, k, t->range.begin),
                           t->range.end - t->range.begin);
}

static sh_rc visit_staged(const struct sh_shards *s)
{
    unsigned states = (2u << s->r->p->n_optim_states) - 2; /* but the parameters and their mean */

    for (int i = 0; i < s->r->p->n_units; i++)
        if (s->r->p->units[i].trainable)
            SH_TRY(sh_map_visit(s->r, i, s->r->map->unit[i].owned, states, true, put_staged, (void *)s));
    return SH_OK;
}

static sh_rc visit_host(const struct sh_shards *s, bool put)
{
    struct host_copy c = {.s = s, .put = put};

    for (int i = 0; i < s->r->p->n_units; i++)
        if (host_bytes(s, i))
            SH_TRY(sh_map_visit(s->r, i, s->r->map->unit[i].owned, (1u << s->n_host) - 1, put, copy_host, &c));
    return SH_OK;
}

sh_rc sh_shards_borrow(struct sh_shards *s)
{
    if (s->host || s->way == SH_SHARDS_SNAPSHOT)
        return SH_OK;
    lend_host(s, 1);
    for (int i = 0; i < s->set.n_pieces; i++) {
        struct sh_ckpt_piece *piece = &s->pieces[i];

        if (!piece->far[SH_CKPT_MODEL])
            continue;
        piece->far[SH_CKPT_MODEL] = false;
        piece->data[SH_CKPT_MODEL] =
            in_host(s, sh_shards_param(s, i)->unit, SH_CKPT_MODEL, sh_shards_range(s, i, 0, 0).begin);
    }
    return loads(s->way) ? SH_OK : visit_host(s, false);
}

void sh_shards_put(const struct sh_shards *s)
{
    sh_rc rc = s->host ? visit_host(s, true) : SH_OK;

    if (rc == SH_OK && s->staged)
        rc = visit_staged(s);
    if (rc != SH_OK)
        sh_stop(rc);
}

struct sh_ckpt_load_options sh_shards_options(const struct sh_run *r)
{
    return (struct sh_ckpt_load_options){.trust = r->cfg.checkpoint.trust,
                                         .timeout_seconds = r->cfg.checkpoint.timeout_seconds,
                                         .share = r->mesh->n_nodes > 1};
}

/* ---- states that are far ---- */

/* One side of a copy between a stretch and memory. */
struct far_copy {
    const struct sh_run *r;
    int k;
    int64_t begin, end; /* the range of the unit that `to` or `from` has */
    float *to;
    const float *from;
};

static void copy_far(const struct sh_map_stretch *t, void *arg)
{
    const struct far_copy *c = arg;
    int64_t at = t->range.begin - c->begin, n = t->range.end - t->range.begin;
    bool gpu = c->r->device->gpu; /* on a CPU directly, without the executor's buffer */

    if (sh_map_coded(c->r->p, c->k)) { /* the visit begins before what is wanted */
        struct sh_range of = sh_layout_intersect(t->range, (struct sh_range){c->begin, c->end});

        sh_map_widen(c->r, t, c->k, of, c->to + (of.begin - c->begin));
        return;
    }
    if (c->to && gpu)
        sh_exec_get_floats(c->r->exec, c->to + at, t->state[c->k], n);
    else if (c->to)
        sh_floats_get(t->state[c->k], n, c->to + at);
    else if (gpu)
        sh_exec_put_floats(c->r->exec, t->state[c->k], c->from + at, n);
    else
        sh_floats_put(t->state[c->k], n, c->from + at);
}

/* If several threads of a rank fail, the text of the first is kept. */
static sh_rc note_failure(struct sh_shards *s, sh_rc rc)
{
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

    if (rc == SH_OK)
        return rc;
    pthread_mutex_lock(&turn);
    if (s->failed == SH_OK) {
        s->failed = rc;
        snprintf(s->failed_text, sizeof s->failed_text, "%s", sh_error_text());
    }
    pthread_mutex_unlock(&turn);
    return rc;
}

/* The threads that read and write files take turns at a GPU. */
static sh_rc visit_far(struct sh_shards *s, int piece, int64_t at, int64_t n, struct far_copy c)
{
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    struct sh_range range = sh_shards_range(s, piece, at, n);
    bool gpu = s->r->device->gpu;
    sh_rc rc;

    c.r = s->r;
    c.begin = range.begin;
    c.end = range.end;
    c.k = sh_map_state_at(s->r->p, sh_shards_param(s, piece)->unit, c.k);
    SH_REQUIRE(c.k >= 0);
    if (sh_map_coded(s->r->p, c.k))
        range = sh_shards_whole(s, piece, range);
    if (gpu) {
        pthread_mutex_lock(&turn);
        s->r->device->attach();
    }
    rc = sh_map_visit(s->r, sh_shards_param(s, piece)->unit, range, 1u << c.k, !c.to, copy_far, &c);
    if (gpu)
        pthread_mutex_unlock(&turn);
    return note_failure(s, rc);
}

static sh_rc get_far(void *arg, int piece, int k, int64_t at, int64_t n, float *to)
{
    return visit_far(arg, piece, at, n, (struct far_copy){.k = k, .to = to});
}

static sh_rc put_far(void *arg, int piece, int k, int64_t at, int64_t n, const float *from)
{
    return visit_far(arg, piece, at, n, (struct far_copy){.k = k, .from = from});
}

sh_rc sh_shards_failed(const struct sh_shards *p, sh_rc rc, const char *where, bool *home)
{
    sh_rc failed = sh_agree(p->failed == SH_OK ? SH_OK : sh_fail(p->failed, "%s", p->failed_text));

    *home = failed != SH_OK;
    if (!*home)
        return rc;
    return sh_error_text()[0] ? sh_fail_prefix(failed, "%s: ", where) : failed;
}

/* ---- the description ---- */

/* State k of the elements of a unit from `first` on, where the file is read or written; none: it is far. */
static struct sh_floats find_state(const struct sh_shards *s, int unit, int k, int64_t first)
{
    const struct sh_map_unit *m = &s->r->map->unit[unit];

    if (s->way == SH_SHARDS_SNAPSHOT)
        return sh_floats_at(m->copy[k], first - m->written.begin);
    if (sh_map_coded(s->r->p, k))
        return (struct sh_floats){.whole = s->staged ? staged(s, unit, k, first) : NULL};
    if (s->host)
        return in_host(s, unit, k, first);
    if (all_far(s->r, s->way) || m->far >> k & 1u)
        return (struct sh_floats){0};
    return sh_map_state(s->r->map, unit, k, first);
}

/* Add `run` of the set's tensor as a piece. It begins with element `first` of those that the parameter holds. */
static void add_piece(struct sh_shards *out, int *cap, int tensor, struct sh_rng_runs run, struct sh_shards_place place)
{
    const struct sh_param *param = &out->r->p->params[place.param];
    int n = out->set.n_pieces++, cap_places = *cap;
    struct sh_ckpt_piece *piece;

    out->place = sh_grow(out->place, n, &cap_places, sizeof *out->place);
    out->pieces = sh_grow(out->pieces, n, cap, sizeof *out->pieces);
    out->place[n] = place;
    piece = &out->pieces[n];
    *piece = (struct sh_ckpt_piece){.tensor = tensor, .begin = run.first, .elems = run.n};
    for (int k = 0; k < out->set.states.n; k++) {
        int64_t first = param->unit_elems + place.first;
        int own = sh_map_state_at(out->r->p, param->unit, k);

        if (!sh_shards_has(out, n, k))
            continue;
        piece->data[k] = find_state(out, param->unit, own, first);
        piece->far[k] = sh_floats_none(piece->data[k]);
    }
}

/* Add what this rank reads or writes of one parameter: nothing, one piece, as its elements are contiguous in its unit,
 * or a piece for each run of its saved tensor. Columns of a matrix are a run for each row, and a file has an extent for
 * each run in any case (io/checkpoint/file/extents.c); the ranks of a node write short ones together
 * (io/move/writers.h). */
static void add_pieces(struct sh_shards *out, int *cap, int tensor, int param_index)
{
    const struct sh_param *param = &out->r->p->params[param_index];
    const struct sh_map_unit *m = &out->r->map->unit[param->unit];
    struct sh_range mine = sh_map_cut(loads(out->way) ? m->owned : m->written, param);
    struct sh_rng_runs run;

    out->packed[tensor] = out->r->p->units[param->unit].packed;
    for (int64_t at = mine.begin; at < mine.end; at += run.n) {
        int64_t first = at - param->unit_elems;

        run = sh_saved_run(out->r->p, param, first, mine.end - at);
        add_piece(out, cap, tensor, run, (struct sh_shards_place){param_index, first});
    }
}

/* The states of a set that a tensor has. Those of rows are tensors of their own, after all others. */
static unsigned states_of(const struct sh_shards *out, const struct sh_saved *s)
{
    const struct sh_program *p = out->r->p;
    unsigned states = s->role == SH_PARAM_MOMENT ? 1u << (out->set.states.n - 1) : 1u << SH_CKPT_MODEL;

    for (int k = 0; k < p->n_states; k++)
        if (sh_optim_keeps(p, sh_optim_of(out->r->cfg.optimizer.name), k, s))
            states |= 2u << k;
    return states;
}

static void add_tensor(struct sh_shards *out, const struct sh_saved *s)
{
    struct sh_ckpt_tensor *t = &out->tensors[out->set.n_tensors++];

    *t = (struct sh_ckpt_tensor){.name = s->name, .ndim = s->ndim, .elems = s->elems, .role = s->role};
    for (int k = 0; k < s->ndim; k++)
        t->dim[k] = s->dim[k];
    if (out->way != SH_SHARDS_BASE)
        t->states = states_of(out, s);
}

void sh_shards_leave_states(struct sh_shards *p)
{
    p->set.states.n = 1;
    while (p->set.n_tensors && p->tensors[p->set.n_tensors - 1].role == SH_PARAM_MOMENT)
        p->set.n_tensors--;
    while (p->set.n_pieces && p->pieces[p->set.n_pieces - 1].tensor >= p->set.n_tensors)
        p->set.n_pieces--;
}

/* All saved tensors of the way, which are the same on all ranks, then what this rank has of each. */
static void describe(struct sh_shards *out)
{
    const struct sh_program *p = out->r->p;
    int *tensor = sh_calloc((size_t)p->n_saved + 1, sizeof *tensor), cap = 0;

    for (int i = 0; i < p->n_saved; i++) {
        tensor[i] = out->set.n_tensors;
        if (takes(out->way, &p->saved[i]))
            add_tensor(out, &p->saved[i]);
    }
    for (int u = 0; u < p->n_units; u++) {
        for (int i = p->units[u].first_param; i < p->units[u].first_param + p->units[u].n_params; i++)
            if (takes_unit(out, &p->units[u]))
                add_pieces(out, &cap, tensor[p->params[i].saved], i);
        out->first_piece[u + 1] = out->set.n_pieces;
    }
    out->set.pieces = out->pieces;
    free(tensor);
}

/* Room for the early sums of a copy. */
static void add_sums(struct sh_shards *p)
{
    int64_t n = 0;

    for (int i = 0; i < p->set.n_pieces; i++)
        n += p->set.states.n * sh_ckpt_piece_blocks(&p->pieces[i]);
    p->sums = sh_calloc((size_t)n + 1, sizeof *p->sums);
    n = 0;
    for (int i = 0; i < p->set.n_pieces; i++)
        for (int k = 0; k < p->set.states.n; k++) {
            p->pieces[i].early[k] = p->sums + n;
            n += sh_ckpt_piece_blocks(&p->pieces[i]);
        }
}

_Static_assert(1 + SH_KEPT_MAX + 1 <= SH_CKPT_STATES_MAX, "all states can be saved, one of rows too");

/* Describe the parameters, and what this rank holds of each, for one of four purposes. A load covers all that a rank
 * owns. A save covers its replica's part only, so that replicas share the work and write each element once. The file
 * finds the optimizer's states by their names. */
void sh_shards_make(const struct sh_run *r, enum sh_shards_way way, struct sh_shards *out)
{
    size_t n = (size_t)r->p->n_saved + 1;
    const char *names[SH_KEPT_MAX + 1]; /* and the state of rows */

    memcpy(names, r->map->name + 1, (size_t)r->p->n_states * sizeof *names);
    names[r->p->n_states] = r->p->row_state;

    *out = (struct sh_shards){.way = way, .r = r};
    out->far = (struct sh_ckpt_far){.get = get_far, .put = put_far, .arg = out};
    /* The reader fills host memory. On a CPU that is the state itself; a GPU needs a buffer, copied by sh_shards_put(),
     * unless it is filled piece by piece. */
    if (loads(way) && r->device->gpu && !all_far(r, way))
        lend_host(out, way == SH_SHARDS_BASE ? 1 : r->map->n_states); /* that of rows is its unit's only one */
    out->packed = sh_calloc(n, sizeof *out->packed);
    out->first_piece = sh_calloc((size_t)r->p->n_units + 1, sizeof *out->first_piece);
    out->tensors = sh_calloc(n, sizeof *out->tensors);
    out->set = (struct sh_ckpt_set){.states = sh_ckpt_states_of(names, r->p->n_states + (r->p->row_state[0] != 0)),
                                    .tensors = out->tensors,
                                    .packed = out->packed,
                                    .far = &out->far};
    out->set.states.n = states_of_way(r, way);
    if (way == SH_SHARDS_LOAD && sh_map_coded(r->p, 1))
        lend_staged(out);
    describe(out);
    if (way == SH_SHARDS_SNAPSHOT)
        add_sums(out);
}

void sh_shards_free(struct sh_shards *p)
{
    free(p->first_piece);
    free(p->place);
    free(p->packed);
    free(p->tensors);
    free(p->pieces);
    free(p->host);
    free(p->staged);
    free(p->sums);
    free(p->part_of);
}
