#include "src/near/slot.h"

#include "src/base/hash.h"
#include "src/base/number/mixsum.h"
#include "src/layout/layout.h"
#include "src/program/saved.h"

#include <stdatomic.h>
#include <string.h>

static const char magic[8] = "sh-near";
enum { VERSION = 4, ALIGN = 64 };

static int64_t aligned(int64_t bytes, int64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* ---- what a rank writes, in terms of saved tensors ---- */

/* As in the map of states (src/run/save/map.c): of the ranks that hold the same, each has a part. */
static struct sh_range written(const struct sh_program *p, const struct sh_unit *u, const struct sh_mesh_shape *shape)
{
    struct sh_range owned = sh_program_owned(p, u, shape);

    return sh_layout_split(owned, sh_group_size(shape, u->replicate), sh_group_index(shape, u->replicate));
}

/* A saved tensor's place among the trained ones. */
static int trained_place(const struct sh_program *p, int saved)
{
    int n = 0;

    for (int i = 0; i < saved; i++)
        n += p->saved[i].trainable;
    return n;
}

/* Write the rows of a parameter if `row` is not NULL; returns their number. */
static int rows_of_param(const struct sh_program *p, const struct sh_param *param, struct sh_range range, int unit,
                         struct sh_near_row *row)
{
    struct sh_range all = {param->unit_elems, param->unit_elems + param->elems};
    struct sh_range mine = sh_layout_intersect(range, all);
    struct sh_rng_runs run;
    int n = 0;

    for (int64_t at = mine.begin; at < mine.end; at += run.n * run.count, n++) {
        run = sh_saved_run(p, param, at - param->unit_elems, mine.end - at);
        if (row)
            row[n] = (struct sh_near_row){.tensor = trained_place(p, param->saved),
                                          .unit = unit,
                                          .at = at - range.begin,
                                          .first = run.first,
                                          .n = run.n,
                                          .stride = run.stride,
                                          .count = run.count};
    }
    return n;
}

static int rows_of_unit(const struct sh_program *p, const struct sh_unit *u, const struct sh_mesh_shape *shape,
                        int unit, struct sh_near_row *row)
{
    struct sh_range range = written(p, u, shape);
    int n = 0;

    for (int i = u->first_param; i < u->first_param + u->n_params; i++)
        n += rows_of_param(p, &p->params[i], range, unit, row ? row + n : NULL);
    return n;
}

/* Codes are widened, as for a file: a mesh that cuts their blocks can read them as well. */
static enum sh_dtype dtype_of(const struct sh_program *p, int k)
{
    return p->state[k].dtype == SH_U8 ? SH_F32 : p->state[k].dtype;
}

static int64_t bytes_of_unit(const struct sh_program *p, int64_t n)
{
    int64_t bytes = aligned(4 * n, ALIGN);

    for (int k = 0; k < p->n_states; k++)
        bytes += aligned(n * sh_dtype_bytes(dtype_of(p, k)), ALIGN);
    return bytes;
}

/* The head alone: numbers and places of what follows. */
static struct sh_near_head arrange(const struct sh_program *p, const struct sh_mesh_shape *shape)
{
    struct sh_near_head h = {.version = VERSION,
                             .rank = shape->rank,
                             .world = sh_mesh_ranks(shape),
                             .n_states = 1 + p->n_states,
                             .rows_at = aligned((int64_t)sizeof h, ALIGN)};
    int64_t data = 0;

    for (int i = 0; i < p->n_units; i++)
        if (p->units[i].trainable) {
            struct sh_range range = written(p, &p->units[i], shape);

            data += bytes_of_unit(p, range.end - range.begin);
            h.n_rows += rows_of_unit(p, &p->units[i], shape, h.n_units++, NULL);
        }
    h.units_at = h.rows_at + h.n_rows * (int64_t)sizeof(struct sh_near_row);
    h.sums_at = h.units_at + h.n_units * (int64_t)sizeof(struct sh_near_unit);
    h.text_at = h.sums_at + (int64_t)h.n_units * h.n_states * (int64_t)sizeof(uint64_t);
    h.bytes = aligned(h.text_at + SH_NEAR_TEXT + data, SH_NEAR_PAGE);
    return h;
}

int64_t sh_near_bytes(const struct sh_program *p, const struct sh_mesh_shape *shape)
{
    return arrange(p, shape).bytes;
}

uint64_t sh_near_model(const struct sh_program *p)
{
    uint64_t h = VERSION;

    for (int i = 0; i < p->n_saved; i++) {
        const struct sh_saved *s = &p->saved[i];

        if (!s->trainable)
            continue;
        h = sh_mix64(h ^ sh_hash64(s->name, strlen(s->name)));
        h = sh_mix64(h ^ sh_hash64(s->dim, (size_t)s->ndim * sizeof *s->dim));
    }
    for (int k = 0; k < p->n_states; k++)
        h = sh_mix64(h ^ sh_hash64(p->state[k].name, strlen(p->state[k].name)));
    return h;
}

static void find_parts(void *memory, struct sh_near_slot *out)
{
    struct sh_near_head *h = memory;
    char *at = memory;

    *out = (struct sh_near_slot){.head = h,
                                 .row = (void *)(at + h->rows_at),
                                 .unit = (void *)(at + h->units_at),
                                 .sum = (void *)(at + h->sums_at),
                                 .text = at + h->text_at};
}

void sh_near_format(void *memory, const struct sh_program *p, const struct sh_mesh_shape *shape, uint64_t layout,
                    struct sh_near_slot *out)
{
    struct sh_near_head *h = memory;
    struct sh_near_row *row;
    int64_t at;

    *h = arrange(p, shape);
    h->layout = layout;
    h->model = sh_near_model(p);
    for (int k = 0; k < p->n_states; k++)
        h->dtype[1 + k] = dtype_of(p, k);
    find_parts(memory, out);
    row = out->row;
    at = h->text_at + SH_NEAR_TEXT;
    for (int i = 0, n = 0; i < p->n_units; i++)
        if (p->units[i].trainable) {
            struct sh_range range = written(p, &p->units[i], shape);

            out->unit[n] = (struct sh_near_unit){.at = at,
                                                 .n = range.end - range.begin,
                                                 .unit = i,
                                                 .halves = p->tensors[p->units[i].compute].dtype == SH_BF16};
            row += rows_of_unit(p, &p->units[i], shape, n, row);
            at += bytes_of_unit(p, out->unit[n++].n);
        }
    atomic_thread_fence(memory_order_release); /* a rank may be killed before all is there */
    memcpy(h->magic, magic, sizeof magic);
}

/* ---- a slot that is there ---- */

/* A part of `n` times `size` bytes from `at` on, behind what ends at `after`. */
static bool fits(int64_t at, int64_t n, size_t size, int64_t after, int64_t bytes)
{
    return at >= after && n >= 0 && at <= bytes && n <= (bytes - at) / (int64_t)size;
}

/* The head may be anything that lies in shared memory: no part may leave it. */
bool sh_near_view(void *memory, int64_t bytes, struct sh_near_slot *out)
{
    struct sh_near_head *h = memory;

    if (bytes < (int64_t)sizeof *h || memcmp(h->magic, magic, sizeof magic) || h->version != VERSION ||
        h->bytes != bytes)
        return false;
    if (h->n_states < 1 || h->n_states > 1 + SH_KEPT_MAX ||
        !fits(h->rows_at, h->n_rows, sizeof *out->row, (int64_t)sizeof *h, bytes) ||
        !fits(h->units_at, h->n_units, sizeof *out->unit, h->rows_at, bytes) ||
        !fits(h->sums_at, (int64_t)h->n_units * h->n_states, sizeof *out->sum, h->units_at, bytes) ||
        !fits(h->text_at, SH_NEAR_TEXT, 1, h->sums_at, bytes) || h->text_bytes < 0 || h->text_bytes > SH_NEAR_TEXT)
        return false;
    find_parts(memory, out);
    return true;
}

struct sh_floats sh_near_array(const struct sh_near_slot *s, int unit, int k)
{
    const struct sh_near_unit *u = &s->unit[unit];
    char *at = (char *)s->head + u->at;

    if (k == 0)
        return sh_floats_in(at, u->n, u->halves);
    at += aligned(4 * u->n, ALIGN);
    for (int i = 1; i < k; i++)
        at += aligned(u->n * sh_dtype_bytes((enum sh_dtype)s->head->dtype[i]), ALIGN);
    if (s->head->dtype[k] == SH_BF16)
        return (struct sh_floats){.high = (void *)at};
    return (struct sh_floats){.whole = (void *)at};
}

uint64_t sh_near_place(int64_t step, int unit, int k, int64_t at)
{
    uint64_t place = sh_mix64((uint64_t)step ^ sh_mix64((uint64_t)unit * (1 + SH_KEPT_MAX) + (uint64_t)k + 1));

    return place + (uint64_t)at * SH_MIXSUM_STEP;
}

/* Of what lies before the arrays, but for the state word, which changes alone. */
static uint64_t sum_of_head(const struct sh_near_slot *s)
{
    struct sh_near_head h;
    uint64_t rest;

    memcpy(&h, s->head, sizeof h);
    atomic_init(&h.state, 0);
    h.self = 0;
    rest = sh_hash64(s->row, (size_t)(h.text_at - h.rows_at + h.text_bytes));
    return sh_mix64(sh_hash64(&h, sizeof h) ^ rest);
}

void sh_near_begin(const struct sh_near_slot *s)
{
    atomic_store(&s->head->state, SH_NEAR_FILLING);
    memset(s->sum, 0, (size_t)(s->head->n_units * s->head->n_states) * sizeof *s->sum);
}

/* The strings of `text`, in the order in which they lie. */
static int list_texts(const struct sh_near_text *text, const char *list[4])
{
    list[0] = text->config;
    list[1] = text->guard;
    list[2] = text->notes;
    list[3] = text->base;
    return 4;
}

sh_rc sh_near_end(const struct sh_near_slot *s, const struct sh_near_mark *mark, const struct sh_near_text *text)
{
    const char *list[4];
    int64_t at = 0;

    for (int i = 0; i < list_texts(text, list); i++) {
        int64_t bytes = (int64_t)strlen(list[i]) + 1;

        if (bytes > SH_NEAR_TEXT - at)
            return sh_fail(SH_E_DATA, "the configuration and notes of a near checkpoint exceed %d bytes", SH_NEAR_TEXT);
        memcpy(s->text + at, list[i], (size_t)bytes);
        at += bytes;
    }
    s->head->mark = *mark;
    s->head->text_bytes = at;
    s->head->self = sum_of_head(s);
    atomic_store(&s->head->state, SH_NEAR_DONE);
    return SH_OK;
}

void sh_near_empty(const struct sh_near_slot *s)
{
    atomic_store(&s->head->state, SH_NEAR_EMPTY);
}

enum sh_near_state sh_near_state(const struct sh_near_slot *s)
{
    return (enum sh_near_state)atomic_load(&s->head->state);
}

struct sh_near_text sh_near_texts(const struct sh_near_slot *s)
{
    const char *at[4];
    const char *next = s->text;

    for (int i = 0; i < 4; i++) {
        at[i] = next;
        next += strlen(next) + 1;
    }
    return (struct sh_near_text){.config = at[0], .guard = at[1], .notes = at[2], .base = at[3]};
}

static bool is_whole(const struct sh_near_slot *s)
{
    return s->head->self == sum_of_head(s);
}

bool sh_near_empty_damaged(void *memory, int64_t bytes)
{
    struct sh_near_head *h = memory;
    struct sh_near_slot s;
    uint32_t state;

    if (bytes < (int64_t)sizeof *h)
        return false;
    state = atomic_load(&h->state);
    if (state == SH_NEAR_EMPTY || state == SH_NEAR_FILLING)
        return false;
    if (state == SH_NEAR_DONE && sh_near_view(memory, bytes, &s) && is_whole(&s))
        return false;
    atomic_store(&h->state, SH_NEAR_EMPTY);
    return true;
}

/* In parts, which threads share. */
static uint64_t sum_array(const struct sh_near_slot *s, int unit, int k)
{
    struct sh_floats all = sh_near_array(s, unit, k);
    int64_t n = s->unit[unit].n;
    uint64_t sum = 0;

#pragma omp parallel for reduction(+ : sum)
    for (int64_t at = 0; at < n; at += SH_MIXSUM_PART)
        sum += sh_mixsum(sh_floats_at(all, at), n - at < SH_MIXSUM_PART ? n - at : SH_MIXSUM_PART,
                         sh_near_place(s->head->mark.step, unit, k, at));
    return sum;
}

sh_rc sh_near_check(const struct sh_near_slot *s)
{
    const struct sh_near_head *h = s->head;

    if (!is_whole(s))
        return sh_fail(SH_E_DATA, "the head of the part of rank %d has changed", h->rank);
    for (int i = 0; i < h->n_units; i++)
        for (int k = 0; k < h->n_states; k++)
            if (sum_array(s, i, k) != s->sum[i * h->n_states + k])
                return sh_fail(SH_E_DATA, "state %d of unit %d in the part of rank %d has changed", k, s->unit[i].unit,
                               h->rank);
    return SH_OK;
}

int sh_near_choose(const int64_t step[SH_NEAR_SLOTS], int64_t safe)
{
    return safe >= 0 && step[0] == safe ? 1 : 0;
}

int sh_near_distance(int wanted, int nodes)
{
    return wanted % nodes ? wanted % nodes : nodes / 2;
}
