#include "src/run/shards.h"

#include "src/base/mem.h"
#include "src/base/mixsum.h"
#include "src/run/run.h"
#include "src/run/visit.h"

#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of a unit that this replica of the shard writes. */
static struct sh_range written(const struct sh_run *r, const struct sh_unit *u)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;

    return sh_layout_split(sh_shards_owned(r, u), sh_group_size(m, u->replicate), sh_group_index(m, u->replicate));
}

/* n floats from `at` on, laid out as state k of a unit is. */
static struct sh_floats laid_out(const struct sh_run *r, const struct sh_unit *u, int k, void *at, int64_t n)
{
    struct sh_floats f = sh_floats_in(at, n, (k == SH_CKPT_MODEL ? r->p->act : r->p->state[k - 1].dtype) == SH_BF16);

    if (k == SH_CKPT_MODEL && u->packed)
        return (struct sh_floats){.packed = at};
    f.low = k == SH_CKPT_MODEL && u->trainable ? f.low : NULL;
    return f;
}

/* Whether a way is for the parameters of the unit. */
static bool takes(enum sh_shards_way way, const struct sh_unit *u)
{
    return u->trainable == (way != SH_SHARDS_BASE);
}

static int64_t owned_elems(const struct sh_run *r, const struct sh_unit *u)
{
    struct sh_range own = sh_shards_owned(r, u);

    return own.end - own.begin;
}

/* Floats that the host buffer of a load has for one state of a unit: packed blocks, four bits an element, are whole
 * floats too. */
static int64_t loaded_floats(const struct sh_run *r, const struct sh_unit *u)
{
    int64_t n = owned_elems(r, u);

    return u->packed ? sh_nf4_bytes(n) / (int64_t)sizeof(float) : n;
}

/* The same of all units before this one that a way takes. */
static int64_t floats_before(const struct sh_run *r, enum sh_shards_way way, const struct sh_unit *u)
{
    int64_t n = 0;

    for (const struct sh_unit *v = r->p->units; v < u; v++)
        n += takes(way, v) ? loaded_floats(r, v) : 0;
    return n;
}

static int states_of_way(const struct sh_run *r, enum sh_shards_way way)
{
    return way == SH_SHARDS_BASE ? 1 : sh_shards_states(r);
}

/* Place in the host buffer of a load. Units follow one another, and in a unit its states: with two units of 10 and 6
 * elements and 3 states, state 1 of unit 1 begins at 3 * 10 + 6. */
static struct sh_floats find_loaded(const struct sh_run *r, const struct sh_unit *u, int k, const struct sh_shards *p)
{
    int64_t n = owned_elems(r, u);

    return laid_out(r, u, k, p->loaded + states_of_way(r, p->way) * floats_before(r, p->way, u) + k * n, n);
}

/* Place in the snapshot. Each state has n elements, only the part that this replica writes. Before it lie the masters,
 * of four bytes, and states of one type. */
static struct sh_floats find_copy(const struct sh_run *r, const struct sh_unit *u, int k, int64_t n)
{
    int64_t before = k == SH_CKPT_MODEL ? 0 : 4 + (k - 1) * sh_dtype_bytes(r->p->state[k - 1].dtype);

    return laid_out(r, u, k, (char *)sh_exec_data(r->exec, u->snapshot) + before * n, n);
}

/* State k of a unit and where it begins: element `from` of the unit lies at the returned place. */
static struct sh_floats find_state(const struct sh_run *r, const struct sh_unit *u, enum sh_shards_way way, int k,
                                   const struct sh_shards *p, int64_t *from)
{
    struct sh_range part = written(r, u);

    *from = way == SH_SHARDS_SNAPSHOT ? part.begin : sh_shards_owned(r, u).begin;
    if (way == SH_SHARDS_SNAPSHOT)
        return find_copy(r, u, k, part.end - part.begin);
    return p && p->loaded ? find_loaded(r, u, k, p) : sh_shards_state(r, u, k);
}

static bool loads(enum sh_shards_way way)
{
    return way == SH_SHARDS_LOAD || way == SH_SHARDS_BASE;
}

/* Whether files are written from a GPU's state and read into it piece by piece, without a copy of all of it in
 * between. */
static bool all_far(const struct sh_run *r, enum sh_shards_way way)
{
    return r->device->gpu && (way == SH_SHARDS_SAVE || (way == SH_SHARDS_LOAD && r->p->n_slices));
}

bool sh_shards_copied(const struct sh_run *r)
{
    for (int i = 0; i < r->p->n_units; i++)
        if (r->p->units[i].snapshot != SH_NONE)
            return r->device->gpu;
    return false;
}

/* Add what this rank reads or writes of one parameter, the set's newest tensor, as one piece; none if it owns no
 * element of it. A parameter's elements are contiguous in its unit, so one piece is always enough. */
static void add_piece(const struct sh_run *r, const struct sh_param *param, struct sh_shards *out)
{
    const struct sh_unit *u = &r->p->units[param->unit];
    struct sh_range part = loads(out->way) ? sh_shards_owned(r, u) : written(r, u);
    struct sh_range mine = sh_layout_intersect(part, sh_shards_range(param));
    struct sh_ckpt_piece *piece = &out->pieces[out->set.n_pieces];

    if (mine.begin == mine.end)
        return;
    *piece = (struct sh_ckpt_piece){
        .tensor = out->set.n_tensors - 1, .begin = mine.begin - param->unit_elems, .elems = mine.end - mine.begin};
    for (int k = 0; k < states_of_way(r, out->way); k++) {
        int64_t from;
        struct sh_floats state;

        piece->far[k] = out->way != SH_SHARDS_SNAPSHOT && (all_far(r, out->way) || sh_shards_far(r, u, k));
        if (piece->far[k])
            continue;
        state = find_state(r, u, out->way, k, out, &from);
        piece->data[k] = sh_floats_at(state, mine.begin - from);
    }
    out->set.n_pieces++;
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

_Static_assert(1 + SH_STATES_MAX <= SH_CKPT_STATES_MAX, "all states can be saved");

/* Names of the optimizer's states, in the order of the program; the file finds them by name. */
static struct sh_ckpt_states states_of(const struct sh_program *p)
{
    const char *name[SH_STATES_MAX];

    for (int i = 0; i < p->n_states; i++)
        name[i] = p->state[i].name;
    return sh_ckpt_states_of(name, p->n_states);
}

/* Elements [at, at + n) of a piece as a range of this rank's chunk of its unit. */
static struct sh_range chunk_range(const struct sh_shards *s, int piece, int64_t at, int64_t n,
                                   const struct sh_unit **u)
{
    const struct sh_ckpt_piece *p = &s->pieces[piece];
    const struct sh_param *param = &s->r->p->params[s->param[p->tensor]];
    int64_t begin;

    *u = &s->r->p->units[param->unit];
    begin = param->unit_elems + p->begin + at - sh_shards_owned(s->r, *u).begin;
    return (struct sh_range){begin, begin + n};
}

/* One side of a copy between a stretch and memory. */
struct far_copy {
    const struct sh_run *r;
    int k;
    int64_t begin; /* of the range of the chunk that `to` or `from` has */
    float *to;
    const float *from;
};

static void copy_far(const struct sh_stretch *s, void *arg)
{
    const struct far_copy *c = arg;
    int64_t at = s->first - c->begin;

    if (c->to && c->r->device->gpu)
        sh_exec_get_floats(c->r->exec, c->to + at, s->state[c->k], s->n);
    else if (c->to)
        sh_floats_get(s->state[c->k], s->n, c->to + at);
    else if (c->r->device->gpu)
        sh_exec_put_floats(c->r->exec, s->state[c->k], c->from + at, s->n);
    else
        sh_floats_put(s->state[c->k], s->n, c->from + at);
}

/* The threads that read and write files take turns at a GPU. */
static sh_rc visit_far(const struct sh_shards *s, const struct sh_unit *u, struct sh_range part, bool change,
                       struct far_copy *copy)
{
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    bool gpu = s->r->device->gpu;
    sh_rc rc;

    copy->r = s->r;
    copy->begin = part.begin;
    if (gpu) {
        pthread_mutex_lock(&turn);
        s->r->device->attach();
    }
    rc = sh_visit(s->r, u, part, 1u << copy->k, change, copy_far, copy);
    if (gpu)
        pthread_mutex_unlock(&turn);
    return rc;
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

static sh_rc get_far(void *arg, int piece, int k, int64_t at, int64_t n, float *to)
{
    struct sh_shards *s = arg;
    const struct sh_unit *u;
    struct sh_range part = chunk_range(s, piece, at, n, &u);
    struct far_copy copy = {.k = k, .to = to};

    return note_failure(s, visit_far(s, u, part, false, &copy));
}

static sh_rc put_far(void *arg, int piece, int k, int64_t at, int64_t n, const float *from)
{
    struct sh_shards *s = arg;
    const struct sh_unit *u;
    struct sh_range part = chunk_range(s, piece, at, n, &u);
    struct far_copy copy = {.k = k, .from = from};

    return note_failure(s, visit_far(s, u, part, true, &copy));
}

sh_rc sh_shards_failed(const struct sh_shards *p)
{
    return sh_agree(p->failed == SH_OK ? SH_OK : sh_fail(p->failed, "%s", p->failed_text));
}

static void add_tensor(const struct sh_run *r, int param_index, struct sh_shards *out)
{
    const struct sh_param *param = &r->p->params[param_index];
    int i = out->set.n_tensors++;

    out->param[i] = param_index;
    out->tensors[i] =
        (struct sh_ckpt_tensor){.name = param->name, .ndim = param->ndim, .elems = param->elems, .role = param->role};
    out->packed[i] = r->p->units[param->unit].packed;
    for (int k = 0; k < param->ndim; k++)
        out->tensors[i].dim[k] = param->dim[k];
    add_piece(r, param, out);
}

/* Describe the parameters, and what this rank holds of each, for one of four purposes. A load covers all that a rank
 * owns. A save covers its replica's part only, so that replicas share the work and write each element once. */
void sh_shards_make(const struct sh_run *r, enum sh_shards_way way, struct sh_shards *out)
{
    size_t n = (size_t)r->p->n_params;

    *out = (struct sh_shards){.way = way, .r = r};
    out->far = (struct sh_ckpt_far){.get = get_far, .put = put_far, .arg = out};
    /* The reader fills host memory. On a CPU that is the state itself; a GPU needs a buffer, copied by sh_shards_put(),
     * unless it is filled piece by piece. */
    if (loads(way) && r->device->gpu && !all_far(r, way))
        out->loaded =
            sh_calloc((size_t)(states_of_way(r, way) * floats_before(r, way, r->p->units + r->p->n_units)) + 1,
                      sizeof *out->loaded);
    out->param = sh_calloc(n, sizeof *out->param);
    out->packed = sh_calloc(n, sizeof *out->packed);
    out->tensors = sh_calloc(n, sizeof *out->tensors);
    out->pieces = sh_calloc(n, sizeof *out->pieces);
    out->set = (struct sh_ckpt_set){.states = states_of(r->p),
                                    .tensors = out->tensors,
                                    .packed = out->packed,
                                    .far = &out->far,
                                    .pieces = out->pieces};
    out->set.states.n = states_of_way(r, way);
    for (int i = 0; i < r->p->n_params; i++)
        if (takes(way, &r->p->units[r->p->params[i].unit]))
            add_tensor(r, i, out);
    if (way == SH_SHARDS_SNAPSHOT)
        add_sums(out);
}

void sh_shards_free(struct sh_shards *p)
{
    free(p->param);
    free(p->packed);
    free(p->tensors);
    free(p->pieces);
    free(p->loaded);
    free(p->lows);
    free(p->params);
    free(p->sums);
    free(p->part_of);
}

/* Count the low halves of masters that lie in a file, in the units before this one. */
static int64_t lows_before(const struct sh_run *r, const struct sh_unit *u)
{
    int64_t n = 0;

    for (const struct sh_unit *v = r->p->units; v < u; v++)
        n += sh_shards_far(r, v, SH_CKPT_MODEL) ? owned_elems(r, v) : 0;
    return n;
}

static void fill_lows(const struct sh_stretch *s, void *arg)
{
    memcpy((int16_t *)arg + s->first, s->state[SH_CKPT_MODEL].low, (size_t)s->n * sizeof(int16_t));
}

static void take_lows(const struct sh_stretch *s, void *arg)
{
    memcpy(s->state[SH_CKPT_MODEL].low, (const int16_t *)arg + s->first, (size_t)s->n * sizeof(int16_t));
}

static sh_rc visit_lows(const struct sh_run *r, const struct sh_shards *p, bool change, sh_visit_look *look)
{
    for (int i = 0; i < r->p->n_units; i++) {
        const struct sh_unit *u = &r->p->units[i];
        struct sh_range all = {0, owned_elems(r, u)};

        if (sh_shards_far(r, u, SH_CKPT_MODEL))
            SH_TRY(sh_visit(r, u, all, 1u << SH_CKPT_MODEL, change, look, p->lows + lows_before(r, u)));
    }
    return SH_OK;
}

/* Copy a GPU's parameters to floats in host memory, or back. */
static sh_rc visit_params(const struct sh_shards *p, bool change)
{
    const struct sh_run *r = p->r;

    for (int i = 0; i < r->p->n_units; i++) {
        const struct sh_unit *u = &r->p->units[i];
        float *params = p->params + floats_before(r, p->way, u);
        struct far_copy copy = {.k = SH_CKPT_MODEL, .to = change ? NULL : params, .from = params};

        if (u->trainable)
            SH_TRY(visit_far(p, u, (struct sh_range){0, owned_elems(r, u)}, change, &copy));
    }
    return SH_OK;
}

static sh_rc borrow_params(const struct sh_run *r, struct sh_shards *p)
{
    p->params = sh_calloc((size_t)floats_before(r, p->way, r->p->units + r->p->n_units) + 1, sizeof *p->params);
    for (int i = 0; i < p->set.n_pieces; i++) {
        struct sh_ckpt_piece *piece = &p->pieces[i];
        const struct sh_unit *u;
        int64_t at = chunk_range(p, i, 0, 0, &u).begin;

        piece->far[SH_CKPT_MODEL] = false;
        piece->data[SH_CKPT_MODEL] = (struct sh_floats){.whole = p->params + floats_before(r, p->way, u) + at};
    }
    return p->way == SH_SHARDS_SAVE ? visit_params(p, false) : SH_OK;
}

sh_rc sh_shards_borrow(const struct sh_run *r, struct sh_shards *p)
{
    int64_t n = lows_before(r, r->p->units + r->p->n_units);

    if (all_far(r, p->way))
        return borrow_params(r, p);
    if (!n || p->way == SH_SHARDS_SNAPSHOT)
        return SH_OK;
    p->lows = sh_calloc((size_t)n, sizeof *p->lows);
    for (int i = 0; i < p->set.n_pieces; i++) {
        struct sh_ckpt_piece *piece = &p->pieces[i];
        const struct sh_param *param = &r->p->params[p->param[piece->tensor]];
        const struct sh_unit *u = &r->p->units[param->unit];
        int64_t at = param->unit_elems + piece->begin - sh_shards_owned(r, u).begin;

        if (!piece->far[SH_CKPT_MODEL])
            continue;
        piece->far[SH_CKPT_MODEL] = false;
        piece->data[SH_CKPT_MODEL] = (struct sh_floats){.high = (sh_bf16 *)sh_exec_data(r->exec, u->compute) + at,
                                                        .low = p->lows + lows_before(r, u) + at};
    }
    return p->way == SH_SHARDS_SAVE ? visit_lows(r, p, false, fill_lows) : SH_OK;
}

/* Copy the arrays of n floats to others that are laid out alike. */
static void copy_floats(const struct sh_run *r, struct sh_floats to, struct sh_floats from, int64_t n,
                        void (*copy)(struct sh_exec *e, void *to, const void *from, int64_t bytes))
{
    for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(from, i); i++)
        copy(r->exec, sh_floats_array(to, i), sh_floats_array(from, i), sh_floats_bytes(from, n));
}

/* After a load: copy the buffer to the device. On a CPU, where the file was read in place, there is nothing to do
 * except for low halves that were borrowed. */
void sh_shards_put(const struct sh_run *r, const struct sh_shards *p)
{
    sh_rc rc = p->lows ? visit_lows(r, p, true, take_lows) : p->params ? visit_params(p, true) : SH_OK;

    if (rc != SH_OK)
        sh_stop(rc);
    for (int i = 0; p->loaded && i < r->p->n_units; i++)
        for (int k = 0; takes(p->way, &r->p->units[i]) && k < states_of_way(r, p->way); k++) {
            const struct sh_unit *u = &r->p->units[i];
            struct sh_floats state = sh_shards_state(r, u, k);

            copy_floats(r, state, find_loaded(r, u, k, p), owned_elems(r, u), sh_exec_put_at);
        }
}

static int64_t parts_of(int64_t elems)
{
    return (elems + SH_MIXSUM_PART - 1) / SH_MIXSUM_PART;
}

static const struct sh_param *param_of(const struct sh_run *r, const struct sh_shards *p,
                                       const struct sh_ckpt_piece *piece)
{
    return &r->p->params[p->param[piece->tensor]];
}

/* Where a piece of a parameter lies in its unit. */
static struct sh_range range_of(const struct sh_param *param, const struct sh_ckpt_piece *piece)
{
    int64_t begin = param->unit_elems + piece->begin;

    return (struct sh_range){begin, begin + piece->elems};
}

/* Copy what lies in slice t of n of the piece's unit, and in a stretch of the state. */
static void copy_slice(const struct sh_run *r, const struct sh_param *param, const struct sh_ckpt_piece *piece, int k,
                       const struct sh_stretch *s, int t, int n)
{
    const struct sh_unit *u = &r->p->units[param->unit];
    int64_t first = sh_shards_owned(r, u).begin + s->first;
    struct sh_range all = range_of(param, piece), mine = sh_layout_intersect(sh_layout_split(written(r, u), n, t), all);

    mine = sh_layout_intersect(mine, (struct sh_range){first, first + s->n});
    if (mine.begin < mine.end)
        sh_ckpt_piece_copy(piece, param->name, r->step, k, mine.begin - all.begin, mine.end - mine.begin,
                           sh_floats_at(s->state[k], all.begin - first));
}

/* The copy of one unit. */
struct unit_copy {
    const struct sh_run *r;
    const struct sh_shards *p;
    const struct sh_unit *u;
};

/* Threads take the same slices of units as in touch_by_all_threads(), so each finds its part of the copy near. */
static void copy_stretch(const struct sh_stretch *s, void *arg)
{
    const struct unit_copy *c = arg;
    const struct sh_shards *p = c->p;

#pragma omp parallel
    for (int i = 0; i < p->set.n_pieces; i++)
        for (int k = 0; &c->r->p->units[param_of(c->r, p, &p->pieces[i])->unit] == c->u && k < sh_shards_states(c->r);
             k++)
            copy_slice(c->r, param_of(c->r, p, &p->pieces[i]), &p->pieces[i], k, s, omp_get_thread_num(),
                       omp_get_num_threads());
}

static void copy_by_all_threads(const struct sh_run *r, const struct sh_shards *p)
{
    for (int i = 0; i < r->p->n_units; i++) {
        struct unit_copy copy = {.r = r, .p = p, .u = &r->p->units[i]};

        if (copy.u->trainable)
            sh_visit_all(r, copy.u, false, copy_stretch, &copy);
    }
}

static void touch_slice(const struct sh_run *r, const struct sh_unit *u, int k, int t, int n)
{
    struct sh_range slice = sh_layout_split(written(r, u), n, t);
    int64_t begin;
    struct sh_floats copy = find_state(r, u, SH_SHARDS_SNAPSHOT, k, NULL, &begin);

    copy = sh_floats_at(copy, slice.begin - begin);
    for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(copy, i); i++)
        memset(sh_floats_array(copy, i), 0, (size_t)sh_floats_bytes(copy, slice.end - slice.begin));
}

/* Each thread touches its slice of everything: memory then lies near the thread that touched it first. */
static void touch_by_all_threads(const struct sh_run *r)
{
#pragma omp parallel
    for (int i = 0; i < r->p->n_units; i++)
        for (int k = 0; r->p->units[i].trainable && k < sh_shards_states(r); k++)
            touch_slice(r, &r->p->units[i], k, omp_get_thread_num(), omp_get_num_threads());
}

/* The copy of what this replica writes of one state of a unit to its place in the snapshot. */
struct snapshot_copy {
    const struct sh_run *r;
    struct sh_floats to;
    int64_t begin; /* the element of the chunk that `to` begins with */
    int k;
};

static void copy_by_queue(const struct sh_stretch *s, void *arg)
{
    const struct snapshot_copy *c = arg;

    copy_floats(c->r, sh_floats_at(c->to, s->first - c->begin), s->state[c->k], s->n, sh_exec_copy);
}

/* A GPU's state is always in memory, so a failure ends the job. */
static void visit_memory(const struct sh_run *r, const struct sh_unit *u, struct sh_range part, int k,
                         sh_visit_look *look, void *arg)
{
    sh_rc rc = sh_visit(r, u, part, 1u << k, false, look, arg);

    if (rc != SH_OK)
        sh_stop(rc);
}

static void copy_unit(const struct sh_run *r, const struct sh_unit *u, int k)
{
    struct sh_range part = written(r, u), own = sh_shards_owned(r, u);
    struct snapshot_copy c = {.r = r, .k = k, .begin = part.begin - own.begin};
    int64_t begin;

    c.to = find_state(r, u, SH_SHARDS_SNAPSHOT, k, NULL, &begin);
    visit_memory(r, u, (struct sh_range){c.begin, part.end - own.begin}, k, copy_by_queue, &c);
}

/* Sums of state k of a piece, part by part of its blocks. */
struct piece_sums {
    struct sh_shards *shards;
    const struct sh_param *param;
    const struct sh_ckpt_piece *piece;
    int k;
    int64_t begin; /* the element of the chunk that the piece begins with */
};

static void sum_stretch(const struct sh_stretch *s, void *arg)
{
    const struct piece_sums *c = arg;
    struct sh_shards *p = c->shards;
    int64_t skip = s->first - c->begin, block, n;
    uint64_t place;

    for (int64_t at = 0; at < s->n; at += n) {
        n = sh_ckpt_piece_cut(c->piece, c->param->name, p->r->step, c->k, skip + at, s->n - at, &block, &place);
        sh_exec_mixsum(p->r->exec, sh_floats_at(s->state[c->k], at), n, place, p->parts + p->n_parts);
        for (int64_t i = 0; i < parts_of(n); i++)
            p->part_of[p->n_parts++] = &c->piece->early[c->k][block];
    }
}

/* Let the device sum parts, and note which block each belongs to. */
static void sum_states(const struct sh_run *r, struct sh_shards *p)
{
    for (int i = 0; i < p->set.n_pieces; i++)
        for (int k = 0; k < sh_shards_states(r); k++) {
            const struct sh_unit *u;
            struct sh_range part = chunk_range(p, i, 0, p->pieces[i].elems, &u);
            struct piece_sums c = {.shards = p,
                                   .param = param_of(r, p, &p->pieces[i]),
                                   .piece = &p->pieces[i],
                                   .k = k,
                                   .begin = part.begin};

            visit_memory(r, u, part, k, sum_stretch, &c);
        }
}

/* Upper bound of the number of parts: one more for each block that is cut, and for each slice of the unit. */
static int64_t count_parts(const struct sh_shards *p)
{
    int64_t n = 0;

    for (int i = 0; i < p->set.n_pieces; i++) {
        const struct sh_unit *u = &p->r->p->units[param_of(p->r, p, &p->pieces[i])->unit];

        n += p->set.states.n * (parts_of(p->pieces[i].elems) + sh_ckpt_piece_blocks(&p->pieces[i]) + u->n_slices);
    }
    return n;
}

static void copy_units(const struct sh_run *r)
{
    for (int i = 0; i < r->p->n_units; i++)
        for (int k = 0; r->p->units[i].trainable && k < sh_shards_states(r); k++)
            copy_unit(r, &r->p->units[i], k);
}

/* Start a snapshot. On a CPU it is complete on return. On a GPU sums and copies are queued alongside the operations,
 * and sh_shards_wait() completes them. */
void sh_shards_copy(const struct sh_run *r, struct sh_shards *p)
{
    sh_exec_copies_begin(r->exec);
    if (r->device->gpu) {
        int64_t most = count_parts(p) + 1; /* a rank that writes nothing still asks for memory that exists */

        p->parts = sh_exec_host(r->exec, most * (int64_t)sizeof *p->parts);
        p->part_of = sh_calloc((size_t)most, sizeof *p->part_of);
        sum_states(r, p);
        copy_units(r);
    } else {
        copy_by_all_threads(r, p);
    }
    sh_exec_copies_end(r->exec);
}

void sh_shards_wait(const struct sh_run *r, const struct sh_shards *p)
{
    sh_exec_copies_wait(r->exec);
    for (int64_t i = 0; i < p->n_parts; i++)
        *p->part_of[i] += p->parts[i];
}

/* Once, before the first save: without it the first snapshot would pay for the page faults and place all pages by its
 * own thread. */
void sh_shards_touch(const struct sh_run *r)
{
    touch_by_all_threads(r);
}
