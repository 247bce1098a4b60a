/* Gradients whose home is the host's memory beside a GPU's. In each section that touches the shard of a unit a copy of it stands
 * on the device from the first touch to the last: it is fetched where the section adds to it, and evicted where it changes it.
 * The squares of the norm are made of the copy of the last micro-step, before that leaves, and an update fetches the stretch
 * that it reads. This comes behind schedule: the order of what was there stays.
 *
 * Fetch n + 1 starts where copy n is touched first, and eviction n is waited for where n + 1 begins, so that one arrives
 * and one leaves while one is in use. F fetch, w its wait, E eviction, e its wait, A what adds to the shard, U an update:
 *
 *   a later micro-step   F1 w F2 A1 E1  w F3 A2 e1 E2  w A3 e2 E3  e3
 *   the update           F1 w F2 U1  w F3 U2  w U3 */
#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/pass/shard.h"

#include <stdlib.h>
#include <string.h>

/* A copy on the device: [begin, begin + n) of the chunk of a unit, from operation `first` to operation `last` of the section. */
struct copy {
    int unit, tensor, home;
    int64_t begin;
    int first, last;
    bool fetched, evicted;
    int fetch;    /* operation of the section as it becomes */
    int fetch_at; /* operation of it as it was, before which the fetch starts */
};

struct gradients {
    const struct sh_build *b;
    struct sh_program *p;
    int tier, in, out;    /* rows of the tier and of the streams */
    int n_tensors;        /* of the program as it was */
    int *unit_of;         /* [n_tensors] the unit whose shard the tensor is, or a view of; SH_NONE */
    struct sh_op *square; /* [units] its squares, which were the norm's */
    int squares_in;       /* the section that makes them now */
    bool squared;         /* one of them has begun the sum */
    int section, waits;   /* the eviction that is not waited for, SH_NONE */
    struct copy *copies;
    int n_copies, cap_copies;
    int *of_unit, *of_op; /* [units], [operations] rows of copies, SH_NONE; of operations for updates */
    int *moved;           /* [n_tensors] the same view of the section's copy, SH_NONE */
    struct sh_op *op;     /* the section as it becomes */
    int n, cap;
};

static int *filled(int n)
{
    int *a = sh_calloc((size_t)n + 1, sizeof *a);

    for (int i = 0; i < n; i++)
        a[i] = SH_NONE;
    return a;
}

/* A row that another pass may have added already. */
static int moving_stream(struct sh_program *p, const char *name)
{
    for (int i = 0; i < p->n_streams; i++)
        if (p->streams[i].runs == SH_RUNS_MOVES && !strcmp(p->streams[i].name, name))
            return i;
    return sh_program_add_stream(p, name, SH_RUNS_MOVES);
}

static const struct sh_op *op_at(const struct gradients *g, int i)
{
    return &g->p->ops[g->p->sections[g->section].first_op + i];
}

/* What operation i works on: a wait on what it waits for. */
static const struct sh_op *doing(const struct gradients *g, int i)
{
    return op_at(g, i)->kind == SH_OP_WAIT ? op_at(g, op_at(g, i)->attr.waits_for) : op_at(g, i);
}

static int unit_of(const struct gradients *g, int tensor)
{
    return tensor == SH_NONE ? SH_NONE : g->unit_of[tensor];
}

/* ---- which copies there are ---- */

static int add_copy(struct gradients *g, int unit, int64_t begin, int64_t n, int at)
{
    struct sh_program *p = g->p;
    struct sh_tensor t = sh_tensor_make(SH_MEM_GRAD, SH_F32, 1, &n, "%.40s.grad", p->units[unit].name);
    struct copy c = {.unit = unit, .begin = begin, .first = at, .last = at, .home = p->units[unit].grad_shard};

    c.tensor = sh_program_add_tensor(p, &t);
    if (n < p->units[unit].chunk) {
        c.home = sh_shard_view(p, p->units[unit].grad_shard, begin, 1, &n, p->units[unit].name);
        p->tensors[c.home].tier = g->tier;
    }
    g->copies = sh_grow(g->copies, g->n_copies, &g->cap_copies, sizeof *g->copies);
    g->copies[g->n_copies] = c;
    return g->n_copies++;
}

/* An update has a copy of its own, of what it reads. */
static void touch_by_update(struct gradients *g, int i)
{
    const struct sh_op op = *op_at(g, i);
    const struct sh_tensor grad = g->p->tensors[op.in[0]];

    g->of_op[i] = add_copy(g, op.unit, grad.base == SH_NONE ? 0 : grad.base_elems, sh_tensor_elems(&grad), i);
    g->copies[g->of_op[i]].fetched = true;
}

/* The first touch shows whether the section adds to what is there. */
static void touch(struct gradients *g, int i, int tensor, bool reads, bool writes)
{
    int unit = unit_of(g, tensor);
    struct copy *c;

    if (unit == SH_NONE)
        return;
    if (g->of_unit[unit] == SH_NONE) {
        g->of_unit[unit] = add_copy(g, unit, 0, g->p->units[unit].chunk, i);
        g->copies[g->of_unit[unit]].fetched = reads;
    }
    c = &g->copies[g->of_unit[unit]];
    c->last = i;
    c->evicted |= writes;
}

static void find_copies(struct gradients *g)
{
    for (int i = 0; i < g->p->sections[g->section].n_ops; i++) {
        const struct sh_op op = *doing(g, i);
        unsigned adds = op.attr.accumulate | sh_op_info(op.kind)->rw_out;

        if (sh_op_info(op.kind)->runs) {
            touch_by_update(g, i);
            continue;
        }
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            touch(g, i, op.in[k], true, false);
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            touch(g, i, op.out[k], adds >> k & 1u, true);
    }
}

/* Each fetch starts where the copy before it is touched first. Copies are in the order of their first touch. */
static void find_starts(struct gradients *g)
{
    int before = SH_NONE;

    for (int c = 0; c < g->n_copies; c++)
        if (g->copies[c].fetched) {
            g->copies[c].fetch_at = g->copies[before == SH_NONE ? c : before].first;
            before = c;
        }
}

/* ---- the section anew ---- */

static int push(struct gradients *g, struct sh_op op)
{
    g->op = sh_grow(g->op, g->n, &g->cap, sizeof *g->op);
    g->op[g->n] = op;
    return g->n++;
}

static enum sh_phase phase_of(const struct gradients *g, const struct copy *c)
{
    return op_at(g, c->first)->phase;
}

static int push_move(struct gradients *g, const struct copy *c, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    op.in[0] = kind == SH_OP_FETCH ? c->home : c->tensor;
    op.out[0] = kind == SH_OP_FETCH ? c->tensor : c->home;
    op.stream = kind == SH_OP_FETCH ? g->in : g->out;
    op.unit = c->unit;
    op.phase = phase_of(g, c);
    return push(g, op);
}

static void push_wait(struct gradients *g, int move)
{
    struct sh_op wait = sh_program_op(SH_OP_WAIT);

    wait.attr.waits_for = move;
    wait.unit = g->op[move].unit;
    wait.phase = g->op[move].phase;
    push(g, wait);
}

/* The one eviction that is under way. */
static void settle(struct gradients *g)
{
    if (g->waits != SH_NONE)
        push_wait(g, g->waits);
    g->waits = SH_NONE;
}

/* The same view of the copy. */
static int moved(struct gradients *g, const struct copy *c, int tensor)
{
    struct sh_tensor view = g->p->tensors[tensor];
    int64_t at = 0;

    if (view.base == SH_NONE)
        return c->tensor;
    for (int t = tensor; g->p->tensors[t].base != SH_NONE; t = g->p->tensors[t].base)
        at += g->p->tensors[t].base_elems;
    view.persistent = false;
    view.base = c->tensor;
    view.base_elems = at - c->begin;
    return sh_program_add_tensor(g->p, &view);
}

/* The squares of what is complete, before it leaves. The first begins the sum. */
static void push_squares(struct gradients *g, const struct copy *c)
{
    struct sh_op op = g->square[c->unit];

    if (g->section != g->squares_in || op.kind != SH_OP_SUMSQ)
        return;
    op.in[0] = moved(g, c, op.in[0]);
    op.attr.accumulate = g->squared;
    op.phase = phase_of(g, c);
    g->squared = true;
    push(g, op);
}

static void push_before(struct gradients *g, int i)
{
    for (int k = 0; k < g->n_copies; k++)
        if (g->copies[k].fetched && g->copies[k].first == i && g->copies[k].fetch_at == i)
            g->copies[k].fetch = push_move(g, &g->copies[k], SH_OP_FETCH);
    for (int k = 0; k < g->n_copies; k++)
        if (g->copies[k].fetched && g->copies[k].first == i)
            push_wait(g, g->copies[k].fetch);
    for (int k = 0; k < g->n_copies; k++)
        if (g->copies[k].fetched && g->copies[k].first != i && g->copies[k].fetch_at == i)
            g->copies[k].fetch = push_move(g, &g->copies[k], SH_OP_FETCH);
}

static void push_behind(struct gradients *g, int i)
{
    for (int k = 0; k < g->n_copies; k++) {
        if (g->copies[k].last != i || !g->copies[k].evicted)
            continue;
        push_squares(g, &g->copies[k]);
        settle(g);
        g->waits = push_move(g, &g->copies[k], SH_OP_EVICT);
    }
}

static int translate(struct gradients *g, int i, int tensor)
{
    int unit = unit_of(g, tensor);

    if (unit == SH_NONE)
        return tensor;
    if (g->of_op[i] != SH_NONE)
        return g->copies[g->of_op[i]].tensor;
    if (g->moved[tensor] == SH_NONE)
        g->moved[tensor] = moved(g, &g->copies[g->of_unit[unit]], tensor);
    return g->moved[tensor];
}

static struct sh_op translated(struct gradients *g, int i, const int *place)
{
    struct sh_op op = *op_at(g, i);

    for (int k = 0; k < SH_OP_MAX_IN; k++)
        op.in[k] = translate(g, i, op.in[k]);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        op.out[k] = translate(g, i, op.out[k]);
    if (op.kind == SH_OP_WAIT)
        op.attr.waits_for = place[op.attr.waits_for];
    if (op.attr.after != SH_NONE)
        op.attr.after = place[op.attr.after];
    return op;
}

/* Squares of units have left the norm. */
static bool is_square(const struct sh_op *op)
{
    return op->kind == SH_OP_SUMSQ && op->unit != SH_NONE;
}

static void rebuild(struct gradients *g)
{
    int n = g->p->sections[g->section].n_ops, *place = filled(n);

    for (int i = 0; i < n; i++) {
        push_before(g, i);
        place[i] = g->n;
        if (!is_square(op_at(g, i)))
            push(g, translated(g, i, place));
        push_behind(g, i);
    }
    settle(g);
    free(place);
}

static void do_section(struct gradients *g, int section)
{
    int n = g->p->sections[section].n_ops;

    g->section = section;
    g->n = g->n_copies = 0;
    g->waits = SH_NONE;
    g->of_unit = filled(g->p->n_units);
    g->of_op = filled(n);
    g->moved = filled(g->n_tensors);
    if (g->p->sections[section].kind != SH_SECTION_NORM)
        find_copies(g);
    find_starts(g);
    rebuild(g);
    sh_program_set_ops(g->p, section, g->op, g->n);
    free(g->of_unit);
    free(g->of_op);
    free(g->moved);
}

/* ---- */

/* Shards and their views, of units that are trained; and where squares are. */
static void look_at_program(struct gradients *g)
{
    const struct sh_program *p = g->p;
    int *shard = filled(p->n_tensors);

    g->n_tensors = p->n_tensors;
    g->unit_of = filled(p->n_tensors);
    g->square = sh_calloc((size_t)p->n_units + 1, sizeof *g->square);
    for (int i = 0; i < p->n_units; i++)
        if (p->units[i].grad_shard != SH_NONE)
            shard[p->units[i].grad_shard] = i;
    for (int t = 0; t < p->n_tensors; t++)
        g->unit_of[t] = shard[sh_tensor_root(p, t)];
    for (int i = 0; i < p->n_ops; i++)
        if (is_square(&p->ops[i]))
            g->square[p->ops[i].unit] = p->ops[i];
    free(shard);
}

static void move_homes(struct gradients *g)
{
    for (int i = 0; i < g->p->n_units; i++)
        if (g->p->units[i].grad_shard != SH_NONE)
            g->p->tensors[g->p->units[i].grad_shard].tier = g->tier;
}

/* Nothing changes where nothing is asked for. */
sh_rc sh_pass_gradients(const struct sh_build *b, struct sh_program *p)
{
    struct gradients g = {.b = b, .p = p, .tier = sh_program_host_tier(p)};

    if (!b->offload.gradients || !b->options.training)
        return SH_OK;
    SH_REQUIRE(g.tier != SH_NONE);
    g.in = moving_stream(p, "in");
    g.out = moving_stream(p, "out");
    look_at_program(&g);
    for (int i = 0; i < p->n_sections; i++)
        if (p->sections[i].kind == SH_SECTION_LAST || p->sections[i].kind == SH_SECTION_ONLY)
            g.squares_in = i;
    for (int i = 0; i < p->n_sections; i++)
        do_section(&g, i);
    move_homes(&g);
    free(g.unit_of);
    free(g.square);
    free(g.copies);
    free(g.op);
    return SH_OK;
}
