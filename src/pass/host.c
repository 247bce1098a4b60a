/* Gradients and parameters that live in the host's memory next to a GPU's, or, on CPUs, gradients that live in a file.
 * They have copies on the device while a section uses them; this pass runs after schedule, and keeps the order of the
 * operations that were there.
 *
 * The shard of a unit's gradient has a copy from the first touch to the last: it is fetched if the section adds to it,
 * and evicted if the section changes it. The norm's squares are computed after the last micro-step, before its copy is
 * evicted, and an update fetches the stretch that it reads. A file returns only what was written as a whole,
 * in whole pages: there all updates of a unit share one copy of its shard, and homes and copies are padded to whole
 * pages, of which operations see the chunk.
 *
 * The copy lies in the same space as the shard did. In the segment of a node, where replicas sum it in place, it is at
 * the same place for all.
 *
 * The chunk of a unit's parameters has a copy from its first update to its last, fetched and evicted, and one for each
 * gather. Over one rank a gather is the fetch itself, at the place that schedule has given it (opt->fetched). If gathers are
 * in codes, these have a home too: they are made from the chunk's copy before it leaves, are evicted, and are what a gather
 * fetches.
 *
 * Fetch n + 1 of a chain (gradients, updated chunks, gathered chunks) starts at the first touch of copy n. Eviction n
 * is waited for where eviction n + 1 starts, or where its result is fetched. So one copy arrives and one leaves while
 * one is in use. F fetch, w its wait, E eviction, e its wait, A an addition to the shard, U an update, G a gather:
 *
 *   a later micro-step   F1 w F2 A1 E1  w F3 A2 e1 E2  w A3 e2 E3  e3
 *   the update           F1 w F2 U1  w F3 U2  w U3
 *   of parameters        F1 w F2 U1 E1  w F3 U2 e1 E2  w U3 e2 E3  e3
 *   gathers              F1 w F2 G1  w F3 G2  w G3 */
#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/pass/home.h"
#include "src/pass/shard/shard.h"

#include <stdlib.h>

enum chain { GRADIENTS, UPDATED, GATHERED, CHAINS };

/* What happens to a copy at an operation: its fetch starts, it is touched first, it is touched last. */
enum stop { FETCHED_AT, FIRST, LAST, STOPS };

/* A copy on the device: [begin, begin + n) of the chunk of a unit, from operation `first` to operation `last` of the
 * section. */
struct copy {
    enum chain chain;
    int unit, tensor, home;
    int64_t begin;
    int first, last;
    bool fetched, evicted;
    int fetch;       /* operation of the new section */
    int fetch_at;    /* operation of the old section before which the fetch starts */
    int next[STOPS]; /* the next copy in each list, SH_NONE */
};

struct host {
    const struct sh_build *b;
    struct sh_program *p;
    int tier, in, out;    /* rows of the tier and of the streams */
    bool file;            /* the tier is a file */
    int n_tensors;        /* of the old program */
    int *grad_of;         /* [n_tensors] the unit whose gradients at home the tensor is, or is a view of; SH_NONE */
    int *param_of;        /* [n_tensors] the same for parameters */
    struct sh_op *square; /* [units] the unit's squares, which were in the norm */
    int squares_in;       /* the section that makes them now */
    bool squared;         /* a unit's squares have started the sum */
    int section, waits;   /* the eviction that is not yet waited for, SH_NONE */
    struct copy *copies;
    int n_copies, cap_copies;
    int *of_grad, *of_param,
        *of_op;       /* [units], [units], [operations] rows of copies, SH_NONE: of a section's gradient, of an
                                        updated chunk, of what an update or a gather reads */
    int *of_codes;    /* [units] the copy into which the codes of a chunk are made, SH_NONE */
    int *of_update;   /* [units] the copy for all updates of a unit, from a file, SH_NONE */
    int *stop[STOPS]; /* [operations] the first of the copies that stop there, in their order; SH_NONE */
    int *moved;       /* [n_tensors] the same view of the section's copy, SH_NONE */
    struct sh_op *op; /* the new section */
    int n, cap;
};

static const struct sh_op *op_at(const struct host *h, int i)
{
    return &h->p->ops[h->p->sections[h->section].first_op + i];
}

/* The operation that operation i is about: for a wait, the one that it waits for. */
static const struct sh_op *doing(const struct host *h, int i)
{
    return op_at(h, i)->kind == SH_OP_WAIT ? op_at(h, op_at(h, i)->attr.waits_for) : op_at(h, i);
}

static int unit_in(const int *of, int tensor)
{
    return tensor == SH_NONE ? SH_NONE : of[tensor];
}

static bool is_update(const struct sh_op *op)
{
    return sh_op_info(op->kind)->runs;
}

/* The codes of a chunk are made, which lives at home as they do. */
static bool is_coding(const struct host *h, const struct sh_op *op)
{
    return op->kind == SH_OP_ENCODE && unit_in(h->param_of, op->in[0]) != SH_NONE;
}

/* The gather of a chunk that lives at home. */
static bool is_gather(const struct host *h, const struct sh_op *op)
{
    return op->kind == SH_OP_ALL_GATHER && unit_in(h->param_of, op->in[0]) != SH_NONE;
}

/* Over one rank such a gather is the fetch. */
static bool is_fetch(const struct host *h, const struct sh_op *op)
{
    return is_gather(h, op) && sh_shard_chunks(&h->b->options, &h->p->units[op->unit]) == 1;
}

/* ---- which copies there are ---- */

static int add_copy(struct host *h, enum chain chain, int unit, int home, int64_t begin, int64_t n, int at)
{
    struct sh_program *p = h->p;
    struct sh_tensor t = p->tensors[home];
    struct copy c = {.chain = chain, .unit = unit, .begin = begin, .first = at, .last = at, .home = home};

    t.persistent = false;
    if (n < sh_tensor_elems(&t)) {
        c.home = sh_shard_view(p, home, begin, 1, &n, p->units[unit].name);
        p->tensors[c.home].tier = h->tier;
        t.dim[0] = n;
    }
    c.tensor = sh_program_add_tensor(p, &t);
    h->copies = sh_grow(h->copies, h->n_copies, &h->cap_copies, sizeof *h->copies);
    h->copies[h->n_copies] = c;
    return h->n_copies++;
}

/* A copy of the whole shard. */
static int add_shard(struct host *h, int unit, int i)
{
    int home = h->p->units[unit].grad_shard;

    return add_copy(h, GRADIENTS, unit, home, 0, sh_tensor_elems(&h->p->tensors[home]), i);
}

/* Each update has its own copy of the gradients that it reads; from a file all updates of a unit share one. */
static void touch_gradients(struct host *h, int i)
{
    const struct sh_op op = *op_at(h, i);
    const struct sh_tensor grad = h->p->tensors[op.in[0]];

    if (unit_in(h->grad_of, op.in[0]) == SH_NONE)
        return;
    if (!h->file)
        h->of_op[i] = add_copy(h, GRADIENTS, op.unit, h->p->units[op.unit].grad_shard,
                               grad.base == SH_NONE ? 0 : grad.base_elems, sh_tensor_elems(&grad), i);
    else if (h->of_update[op.unit] == SH_NONE)
        h->of_op[i] = h->of_update[op.unit] = add_shard(h, op.unit, i);
    else
        h->of_op[i] = h->of_update[op.unit];
    h->copies[h->of_op[i]].fetched = true;
    h->copies[h->of_op[i]].last = i;
}

static int add_chunk(struct host *h, enum chain chain, int unit, int i)
{
    const struct sh_unit *u = &h->p->units[unit];
    int home = chain == GATHERED ? sh_program_sent(u) : u->compute, c;

    c = add_copy(h, chain, unit, home, 0, sh_tensor_elems(&h->p->tensors[home]), i);
    h->copies[c].fetched = true;
    h->copies[c].evicted = chain == UPDATED;
    return c;
}

/* All updates of a unit, of which there may be one for each slice, share one copy of its chunk. */
static void touch_parameters(struct host *h, int i)
{
    int unit = unit_in(h->param_of, op_at(h, i)->out[0]);

    if (unit == SH_NONE)
        return;
    if (h->of_param[unit] == SH_NONE)
        h->of_param[unit] = add_chunk(h, UPDATED, unit, i);
    h->copies[h->of_param[unit]].last = i;
}

/* From the copy that was updated; at the start none is. */
static void touch_codes(struct host *h, int i)
{
    int unit = h->param_of[op_at(h, i)->in[0]], codes = h->p->units[unit].codes;

    if (h->of_param[unit] == SH_NONE) {
        h->of_param[unit] = add_chunk(h, UPDATED, unit, i);
        h->copies[h->of_param[unit]].evicted = false;
    }
    h->copies[h->of_param[unit]].last = i;
    h->of_codes[unit] = add_copy(h, UPDATED, unit, codes, 0, sh_tensor_elems(&h->p->tensors[codes]), i);
    h->copies[h->of_codes[unit]].evicted = true;
}

/* The first touch shows whether the section adds to what is there. */
static void touch(struct host *h, int i, int tensor, bool reads, bool writes)
{
    int unit = unit_in(h->grad_of, tensor);
    struct copy *c;

    if (unit == SH_NONE)
        return;
    if (h->of_grad[unit] == SH_NONE) {
        h->of_grad[unit] = add_shard(h, unit, i);
        h->copies[h->of_grad[unit]].fetched = reads;
    }
    c = &h->copies[h->of_grad[unit]];
    c->last = i;
    c->evicted |= writes;
}

static void find_copies(struct host *h)
{
    for (int i = 0; i < h->p->sections[h->section].n_ops; i++) {
        const struct sh_op op = *doing(h, i);
        unsigned adds = op.attr.accumulate | sh_op_info(op.kind)->rw_out;

        if (is_update(&op)) {
            touch_gradients(h, i);
            touch_parameters(h, i);
            continue;
        }
        if (is_coding(h, &op))
            touch_codes(h, i);
        if (is_gather(h, op_at(h, i)) && !is_fetch(h, &op))
            h->of_op[i] = add_chunk(h, GATHERED, op.unit, i);
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            touch(h, i, op.in[k], true, false);
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            touch(h, i, op.out[k], adds >> k & 1u, true);
    }
}

/* Each fetch starts at the first touch of the copy before it in its chain, and after any update of its chunk in this
 * section. Copies are in the order of their first touch. */
static void find_starts(struct host *h)
{
    int before[CHAINS] = {SH_NONE, SH_NONE, SH_NONE};

    for (int i = 0; i < h->n_copies; i++) {
        struct copy *c = &h->copies[i];
        int updated = h->of_param[c->unit];

        if (!c->fetched)
            continue;
        c->fetch_at = before[c->chain] == SH_NONE ? c->first : h->copies[before[c->chain]].first;
        if (c->chain == GATHERED && updated != SH_NONE && h->copies[updated].last >= c->fetch_at)
            c->fetch_at = h->copies[updated].last + 1;
        before[c->chain] = i;
    }
}

/* Thousands of slices have as many copies, so lists let an operation find its own copies only. */
static void list_copies(struct host *h)
{
    for (int k = h->n_copies - 1; k >= 0; k--) {
        struct copy *c = &h->copies[k];
        const int at[STOPS] = {[FETCHED_AT] = c->fetched ? c->fetch_at : SH_NONE,
                               [FIRST] = c->fetched ? c->first : SH_NONE,
                               [LAST] = c->evicted ? c->last : SH_NONE};

        for (int stop = 0; stop < STOPS; stop++)
            if (at[stop] != SH_NONE) {
                c->next[stop] = h->stop[stop][at[stop]];
                h->stop[stop][at[stop]] = k;
            }
    }
}

/* ---- the new section ---- */

static int push(struct host *h, struct sh_op op)
{
    h->op = sh_grow(h->op, h->n, &h->cap, sizeof *h->op);
    h->op[h->n] = op;
    return h->n++;
}

static enum sh_phase phase_of(const struct host *h, const struct copy *c)
{
    return op_at(h, c->first)->phase;
}

static int push_move(struct host *h, const struct copy *c, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    op.in[0] = kind == SH_OP_FETCH ? c->home : c->tensor;
    op.out[0] = kind == SH_OP_FETCH ? c->tensor : c->home;
    op.stream = kind == SH_OP_FETCH ? h->in : h->out;
    op.unit = c->unit;
    op.phase = phase_of(h, c);
    return push(h, op);
}

static void push_wait(struct host *h, int move)
{
    struct sh_op wait = sh_program_op(SH_OP_WAIT);

    wait.attr.waits_for = move;
    wait.unit = h->op[move].unit;
    wait.phase = h->op[move].phase;
    push(h, wait);
}

/* Wait for the one eviction that is under way. */
static void settle(struct host *h)
{
    if (h->waits != SH_NONE)
        push_wait(h, h->waits);
    h->waits = SH_NONE;
}

/* An eviction is complete before its data is fetched. */
static void settle_home(struct host *h, int home)
{
    int root = sh_tensor_root(h->p, home);

    if (h->waits != SH_NONE && sh_tensor_root(h->p, h->op[h->waits].out[0]) == root)
        settle(h);
}

static void push_fetch(struct host *h, struct copy *c)
{
    settle_home(h, c->home);
    c->fetch = push_move(h, c, SH_OP_FETCH);
}

/* The same view of the copy; for a shard, without what fills its last page. */
static int moved(struct host *h, const struct copy *c, int tensor)
{
    struct sh_tensor view = h->p->tensors[tensor];
    int64_t at = 0;

    if (view.base == SH_NONE && c->chain == GRADIENTS)
        view.dim[0] = h->p->units[c->unit].chunk;
    if (view.base == SH_NONE && sh_tensor_elems(&view) == sh_tensor_elems(&h->p->tensors[c->tensor]))
        return c->tensor;
    for (int t = tensor; h->p->tensors[t].base != SH_NONE; t = h->p->tensors[t].base)
        at += h->p->tensors[t].base_elems;
    view.persistent = false;
    view.base = c->tensor;
    view.base_elems = at - c->begin;
    return sh_program_add_tensor(h->p, &view);
}

/* The squares of a complete gradient, before it leaves. The first ones start the sum. */
static void push_squares(struct host *h, const struct copy *c)
{
    struct sh_op op = h->square[c->unit];

    if (c->chain != GRADIENTS || h->section != h->squares_in || op.kind != SH_OP_SUMSQ)
        return;
    op.in[0] = moved(h, c, op.in[0]);
    op.attr.accumulate = h->squared;
    op.phase = phase_of(h, c);
    h->squared = true;
    push(h, op);
}

static void push_before(struct host *h, int i)
{
    struct copy *c = h->copies;

    for (int k = h->stop[FETCHED_AT][i]; k != SH_NONE; k = c[k].next[FETCHED_AT])
        if (c[k].first == i)
            push_fetch(h, &c[k]);
    for (int k = h->stop[FIRST][i]; k != SH_NONE; k = c[k].next[FIRST])
        push_wait(h, c[k].fetch);
    for (int k = h->stop[FETCHED_AT][i]; k != SH_NONE; k = c[k].next[FETCHED_AT])
        if (c[k].first != i)
            push_fetch(h, &c[k]);
}

static void push_behind(struct host *h, int i)
{
    for (int k = h->stop[LAST][i]; k != SH_NONE; k = h->copies[k].next[LAST]) {
        push_squares(h, &h->copies[k]);
        settle(h);
        h->waits = push_move(h, &h->copies[k], SH_OP_EVICT);
    }
}

/* The copy that replaces a tensor at operation i; SH_NONE: the tensor itself is used. */
static int copy_for(const struct host *h, int i, int tensor)
{
    int grad = unit_in(h->grad_of, tensor), param = unit_in(h->param_of, tensor);
    bool averages = op_at(h, i)->kind == SH_OP_EMA;

    if (is_coding(h, op_at(h, i)))
        return tensor == op_at(h, i)->in[0] ? h->of_param[param] : h->of_codes[param];
    if (h->of_op[i] != SH_NONE && (grad != SH_NONE || h->copies[h->of_op[i]].chain == GATHERED))
        return grad != SH_NONE || param != SH_NONE ? h->of_op[i] : SH_NONE;
    if (grad != SH_NONE)
        return h->of_grad[grad];
    /* An average reads what has just been updated. It may come when the copy is already on its way back: gathers wait for
     * that, and not for averages. */
    return param != SH_NONE && (is_update(op_at(h, i)) || averages) ? h->of_param[param] : SH_NONE;
}

static int translate(struct host *h, int i, int tensor)
{
    int copy = tensor == SH_NONE ? SH_NONE : copy_for(h, i, tensor);

    if (copy == SH_NONE)
        return tensor;
    if (copy == h->of_op[i])
        return h->file ? moved(h, &h->copies[copy], tensor) : h->copies[copy].tensor;
    if (h->moved[tensor] == SH_NONE)
        h->moved[tensor] = moved(h, &h->copies[copy], tensor);
    return h->moved[tensor];
}

/* The gather of a unit over one rank, as a fetch. */
static struct sh_op as_fetch(struct host *h, const struct sh_op *gather)
{
    struct sh_op op = sh_program_op(SH_OP_FETCH);

    op.in[0] = gather->in[0];
    op.out[0] = gather->out[0];
    op.stream = h->in;
    op.unit = gather->unit;
    op.phase = gather->phase;
    return op;
}

static struct sh_op translated(struct host *h, int i, const int *place)
{
    struct sh_op op = *op_at(h, i);

    if (is_fetch(h, &op)) {
        settle_home(h, op.in[0]);
        return as_fetch(h, &op);
    }
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        op.in[k] = translate(h, i, op.in[k]);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        op.out[k] = translate(h, i, op.out[k]);
    if (op.kind == SH_OP_WAIT)
        op.attr.waits_for = place[op.attr.waits_for];
    if (op.attr.after != SH_NONE)
        op.attr.after = place[op.attr.after];
    return op;
}

/* Squares of units have moved out of the norm. */
static bool is_square(const struct host *h, const struct sh_op *op)
{
    return h->b->offload.gradients && op->kind == SH_OP_SUMSQ && op->unit != SH_NONE;
}

static void rebuild(struct host *h)
{
    int n = h->p->sections[h->section].n_ops, *place = sh_program_nones(n);

    for (int i = 0; i < n; i++) {
        push_before(h, i);
        if (!is_square(h, op_at(h, i))) {
            struct sh_op op = translated(h, i, place);

            place[i] = push(h, op);
        }
        push_behind(h, i);
    }
    settle(h);
    free(place);
}

static void do_section(struct host *h, int section)
{
    int n = h->p->sections[section].n_ops;

    h->section = section;
    h->n = h->n_copies = 0;
    h->waits = SH_NONE;
    h->of_grad = sh_program_nones(h->p->n_units);
    h->of_param = sh_program_nones(h->p->n_units);
    h->of_codes = sh_program_nones(h->p->n_units);
    h->of_update = sh_program_nones(h->p->n_units);
    h->of_op = sh_program_nones(n);
    for (int stop = 0; stop < STOPS; stop++)
        h->stop[stop] = sh_program_nones(n);
    h->moved = sh_program_nones(h->n_tensors);
    if (h->p->sections[section].kind != SH_SECTION_NORM)
        find_copies(h);
    find_starts(h);
    list_copies(h);
    rebuild(h);
    sh_program_set_ops(h->p, section, h->op, h->n);
    free(h->of_grad);
    free(h->of_param);
    free(h->of_codes);
    free(h->of_update);
    free(h->of_op);
    for (int stop = 0; stop < STOPS; stop++)
        free(h->stop[stop]);
    free(h->moved);
}

/* ---- */

/* Whether the unit's parameters live in the lower tier: not if a full copy of them lives from step to step. */
static bool parameters_go(const struct host *h, const struct sh_unit *u)
{
    return h->b->offload.parameters && u->full == SH_NONE;
}

static bool gradients_go(const struct host *h, const struct sh_unit *u)
{
    return h->b->offload.gradients && u->grad_shard != SH_NONE;
}

/* Find the units of tensors that live in the lower tier, or are views of one that does. */
static void look_at_tensors(struct host *h)
{
    const struct sh_program *p = h->p;

    h->n_tensors = p->n_tensors;
    h->grad_of = sh_program_nones(p->n_tensors);
    h->param_of = sh_program_nones(p->n_tensors);
    for (int i = 0; i < p->n_units; i++) {
        if (gradients_go(h, &p->units[i]))
            h->grad_of[p->units[i].grad_shard] = i;
        if (parameters_go(h, &p->units[i]))
            h->param_of[p->units[i].compute] = h->param_of[sh_program_sent(&p->units[i])] = i;
    }
    for (int t = 0; t < p->n_tensors; t++) {
        h->grad_of[t] = h->grad_of[sh_tensor_root(p, t)];
        h->param_of[t] = h->param_of[sh_tensor_root(p, t)];
    }
}

static void look_at_squares(struct host *h)
{
    const struct sh_program *p = h->p;

    h->square = sh_calloc((size_t)p->n_units + 1, sizeof *h->square);
    for (int i = 0; i < p->n_ops; i++)
        if (is_square(h, &p->ops[i]))
            h->square[p->ops[i].unit] = p->ops[i];
    for (int i = 0; i < p->n_sections; i++)
        if (p->sections[i].kind == SH_SECTION_LAST || p->sections[i].kind == SH_SECTION_ONLY)
            h->squares_in = i;
}

/* From now on a shard is as long as its copies. */
static void fill_pages(struct host *h)
{
    const int64_t page = SH_FILE_PAGE / sh_dtype_bytes(SH_F32);

    for (int i = 0; i < h->p->n_units; i++)
        if (gradients_go(h, &h->p->units[i]))
            h->p->tensors[h->p->units[i].grad_shard].dim[0] = (h->p->units[i].chunk + page - 1) / page * page;
}

/* No other rank sees a home, so homes are the rank's own. */
static void move_homes(struct host *h)
{
    for (int i = 0; i < h->p->n_units; i++) {
        if (gradients_go(h, &h->p->units[i])) {
            h->p->tensors[h->p->units[i].grad_shard].tier = h->tier;
            h->p->tensors[h->p->units[i].grad_shard].space = SH_SPACE_OWN;
        }
        if (parameters_go(h, &h->p->units[i])) {
            h->p->tensors[h->p->units[i].compute].tier = h->tier;
            h->p->tensors[sh_program_sent(&h->p->units[i])].tier = h->tier;
        }
    }
}

/* Nothing changes unless it is asked for. */
sh_rc sh_pass_host(const struct sh_build *b, struct sh_program *p)
{
    struct host h = {.b = b, .p = p, .file = !b->snapshot_on_host};

    if ((!b->offload.gradients && !b->offload.parameters) || !b->options.training)
        return SH_OK;
    h.tier = sh_pass_home_tier(b, p);
    SH_REQUIRE(!h.file || !b->offload.parameters);
    h.in = sh_pass_moving_stream(p, "in");
    h.out = sh_pass_moving_stream(p, "out");
    look_at_tensors(&h);
    look_at_squares(&h);
    if (h.file)
        fill_pages(&h);
    for (int i = 0; i < p->n_sections; i++)
        do_section(&h, i);
    move_homes(&h);
    free(h.grad_of);
    free(h.param_of);
    free(h.square);
    free(h.copies);
    free(h.op);
    return SH_OK;
}
