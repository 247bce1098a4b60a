/* Optimizer states that live in a file, or in the host's memory next to a GPU's: the update of a unit becomes, slice by
 * slice, a fetch of the remainder and the states, the update on views of the fetched copy, and the move back. The
 * update is elementwise, so no cut changes a bit. Right after this pass each move is waited for on the spot; schedule
 * then makes the double buffer. What has matrices of Muon alone is moved in parts: the momentum, and later, for the step,
 * the remainder.
 *
 * The first units in forward order stay on the device: they are the first to be needed again. A unit in which the cut
 * falls is split there. */
#include "src/base/mem.h"
#include "src/optim/update.h"
#include "src/pass/build.h"
#include "src/pass/home.h"
#include "src/pass/shard/shard.h"

#include <stdlib.h>

enum { USUAL_ELEMS = 4 << 20, LEAST_SLICES = 16, MOST_SLICES = 16384 };

struct offload {
    const struct sh_build *b;
    struct sh_program *p;
    int home, in, out; /* rows of the tier and of the streams */
    struct list {
        struct sh_op *op;
        int n, cap;
    } update; /* the new section */
};

static int64_t whole_multiples(int64_t n)
{
    return (n + SH_SLICE_MULTIPLE - 1) / SH_SLICE_MULTIPLE * SH_SLICE_MULTIPLE;
}

static int64_t trained_elems(const struct sh_program *p)
{
    int64_t n = 0;

    for (int i = 0; i < p->n_units; i++)
        n += sh_program_descends(&p->units[i]) ? p->units[i].chunk : 0;
    return n;
}

/* Large enough for a disk, and small enough that the slices on the device are few bytes compared with the rest of a
 * small model. A rank with more elements than any machine holds is planned too, to be refused; its slices grow instead
 * of their number. */
static int64_t slice_elems(const struct sh_build *b, int64_t away)
{
    int64_t most = whole_multiples((away + LEAST_SLICES - 1) / LEAST_SLICES);
    int64_t least = whole_multiples((away + MOST_SLICES - 1) / MOST_SLICES);

    if (b->offload.slice_elems)
        return b->offload.slice_elems;
    return most < USUAL_ELEMS ? most : least > USUAL_ELEMS ? least : USUAL_ELEMS;
}

/* Masters of float32 and float16 are whole, and stay: they have no remainder that could go. */
static bool has_remainder(const struct sh_program *p)
{
    return p->act == SH_BF16;
}

/* Bytes of state k there: whole pages. */
static int64_t state_room(const struct sh_program *p, int k, int64_t room)
{
    return (sh_program_state_bytes(p, k, room) + SH_FILE_PAGE - 1) / SH_FILE_PAGE * SH_FILE_PAGE;
}

/* Bytes of the extent: the remainder and the states of `room` elements. */
static int64_t extent_bytes(const struct sh_program *p, int64_t room)
{
    int64_t bytes = has_remainder(p) ? room * sh_dtype_bytes(SH_I16) : 0;

    for (int k = 0; k < p->n_states; k++)
        bytes += state_room(p, k, room);
    return bytes;
}

static int add_extent(struct offload *o, const struct sh_unit *u, int64_t bytes, enum sh_mem mem, int tier)
{
    struct sh_tensor t = sh_tensor_make(mem, SH_U8, 1, &bytes, "%.40s.%s", u->name, tier ? "home" : "slice");

    t.tier = tier;
    t.persistent = tier != 0;
    return sh_program_add_tensor(o->p, &t);
}

/* A part of the copy, with its own type. */
static int view_part(struct sh_program *p, int copy, enum sh_dtype dtype, int64_t at_bytes, int64_t n, const char *what)
{
    struct sh_tensor v = sh_tensor_make(SH_MEM_FETCHED, dtype, 1, &n, "%.40s.%s", p->tensors[copy].name, what);

    v.base = copy;
    v.base_elems = at_bytes / sh_dtype_bytes(dtype);
    return sh_program_add_tensor(p, &v);
}

/* Let n elements be blocks of codes. */
static void view_blocks(struct sh_tensor *t, int64_t n)
{
    t->ndim = 2;
    t->dim[0] = n / SH_CODE8_ELEMS;
    t->dim[1] = SH_CODE8_BLOCK_BYTES;
}

/* A place on the device for a slice. One that is moved twice has two, and is not there in between. */
static void add_copy(struct offload *o, struct sh_slice *s)
{
    struct sh_program *p = o->p;
    int64_t at = 0;

    s->copy = add_extent(o, &p->units[s->unit], extent_bytes(p, s->room), SH_MEM_FETCHED, 0);
    s->remainder = SH_NONE;
    if (has_remainder(p)) {
        s->remainder = view_part(p, s->copy, SH_I16, at, s->n, "remainder");
        at += s->room * sh_dtype_bytes(SH_I16);
    }
    for (int k = 0; k < SH_KEPT_MAX; k++) {
        s->state[k] = SH_NONE;
        if (k >= p->n_states)
            continue;
        s->state[k] = view_part(p, s->copy, p->state[k].dtype, at, s->n, p->state[k].name);
        if (p->state[k].dtype == SH_U8)
            view_blocks(&p->tensors[s->state[k]], s->n);
        at += state_room(p, k, s->room);
    }
}

static void add_slice(struct offload *o, int unit, int64_t first, int64_t n)
{
    struct sh_slice s = {.unit = unit, .first = first, .n = n, .room = whole_multiples(n)};

    s.home = add_extent(o, &o->p->units[unit], extent_bytes(o->p, s.room), SH_MEM_OPTIM, o->home);
    add_copy(o, &s);
    sh_program_add_slice(o->p, &s);
}

/* The part of a chunk's tensor that stays; if nothing stays, there is no such tensor. */
static int shrink(struct sh_program *p, int t, int64_t held)
{
    if (t == SH_NONE)
        return t;
    p->tensors[t].dim[0] = p->tensors[t].dtype == SH_U8 ? held / SH_CODE8_ELEMS : held;
    p->tensors[t].persistent = held > 0;
    for (int i = 0; i < p->n_tensors; i++) /* views of its beginning, which no operation of slices reads */
        if (p->tensors[i].base == t && p->tensors[i].dim[0] > held) {
            p->tensors[i].dim[0] = held;
            p->tensors[i].persistent = held > 0;
        }
    return held ? t : SH_NONE;
}

/* Where the slices of a chunk begin that have only matrices of Muon, on any rank: these come last in a unit. An average of
 * parameters is moved with the remainder, and then no slices are such. */
static int64_t matrices_from(const struct offload *o, const struct sh_unit *u)
{
    int64_t end = 0;

    if (!o->b->options.optim->finish || o->p->n_states > o->p->n_optim_states)
        return u->chunk;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++)
        if (!sh_optim_has(o->p, SH_RUNS_MATRICES, &o->p->params[i]))
            end = o->p->params[i].unit_elems + o->p->params[i].elems;
    end = whole_multiples(end);
    return end < u->chunk ? end : u->chunk;
}

/* Elements of the slice that begins at `at`. None has both kinds. */
static int64_t length_of(const struct sh_unit *u, int64_t at, int64_t matrices, int64_t slice)
{
    int64_t left = (at < matrices ? matrices : u->chunk) - at;

    return left < slice ? left : slice;
}

static void cut_unit(struct offload *o, int unit, int64_t held, int64_t slice)
{
    struct sh_program *p = o->p;
    struct sh_unit *u = &p->units[unit];
    int64_t matrices = matrices_from(o, u);

    u->held = held;
    u->remainder = shrink(p, u->remainder, held);
    for (int k = 0; k < p->n_states; k++)
        u->state[k] = shrink(p, u->state[k], held);
    u->first_slice = p->n_slices;
    for (int64_t at = held, n; at < u->chunk; at += n) {
        n = length_of(&p->units[unit], at, matrices, slice);
        add_slice(o, unit, at, n);
    }
    u->n_slices = p->n_slices - u->first_slice;
}

/* Chunks are equal on all ranks, and so are the cuts. */
static void cut_units(struct offload *o)
{
    struct sh_program *p = o->p;
    int64_t all = trained_elems(p), away = all * o->b->offload.optimizer_16 / 16, stays = all - away;
    int64_t slice = slice_elems(o->b, away);

    for (int i = 0; i < p->n_units; i++) {
        const struct sh_unit *u = &p->units[i];
        int64_t held = stays < u->chunk ? stays / SH_SLICE_MULTIPLE * SH_SLICE_MULTIPLE : u->chunk;

        if (!sh_program_descends(u))
            continue;
        stays -= stays < u->chunk ? stays : u->chunk;
        if (held < u->chunk)
            cut_unit(o, i, held, slice);
    }
}

static int push(struct offload *o, struct sh_op op)
{
    o->update.op = sh_grow(o->update.op, o->update.n, &o->update.cap, sizeof *o->update.op);
    o->update.op[o->update.n] = op;
    return o->update.n++;
}

/* A move and the wait for it. */
static void move(struct offload *o, enum sh_op_kind kind, int unit, int from, int to)
{
    struct sh_op op = sh_program_op(kind), wait = sh_program_op(SH_OP_WAIT);

    op.in[0] = from;
    op.out[0] = to;
    op.stream = kind == SH_OP_FETCH ? o->in : o->out;
    op.unit = wait.unit = unit;
    op.phase = wait.phase = SH_PHASE_UPDATE;
    wait.attr.waits_for = push(o, op);
    push(o, wait);
}

/* The update of [first, first + n) of the chunk; the caller sets the states. */
static struct sh_op part_of(struct offload *o, const struct sh_op *all, int64_t first, int64_t n)
{
    struct sh_op op = *all;
    const char *name = o->p->units[all->unit].name;

    if (all->in[0] != SH_NONE)
        op.in[0] = sh_shard_view(o->p, all->in[0], first, 1, &n, name);
    if (all->kind != SH_OP_EMA) /* its result is a state */
        op.out[0] = sh_shard_view(o->p, all->out[0], first, 1, &n, name);
    return op;
}

/* Elements of a slice, or of what is held, that an operation updates: those with states in codes are all, and those with
 * wide states come first in the chunk. */
static int64_t elems_of(const struct offload *o, const struct sh_op *op, int64_t first, int64_t n)
{
    int64_t left;

    if (op->attr.runs.of != SH_RUNS_WIDE)
        return n;
    left = o->p->tensors[op->in[0]].dim[0] - first;
    return left < 0 ? 0 : left < n ? left : n;
}

/* Wide states stay on the device: let an operation work on n of them. */
static void take_wide(const struct offload *o, struct sh_op *op, int64_t first, int64_t n)
{
    for (int k = 0; k < o->p->n_optim_states; k++)
        op->out[1 + k] = sh_shard_view(o->p, o->p->units[op->unit].wide_state[k], first, 1, &n, o->p->state[k].name);
}

/* Let an operation work on what was fetched: the states and the remainder, or those of them that its kind has. */
static void take_slice(const struct offload *o, struct sh_op *op, const struct sh_slice *s)
{
    bool momentum = op->kind == SH_OP_MUON_MOMENTUM, apply = op->kind == SH_OP_MUON_APPLY;

    if (op->kind == SH_OP_EMA) {
        op->in[1] = s->remainder;
        op->out[0] = s->state[o->p->n_optim_states];
        return;
    }
    for (int k = 0; k < o->p->n_optim_states && !apply && !(momentum && k > 0); k++)
        op->out[1 + k] = s->state[k];
    if (!momentum)
        op->out[1 + (apply ? 0 : o->p->n_optim_states)] = s->remainder;
}

/* Such an operation needs one part of the extent: the momentum, or the remainder. */
static void update_part(struct offload *o, const struct sh_op *all, const struct sh_slice *s)
{
    struct sh_program *p = o->p;
    bool momentum = all->kind == SH_OP_MUON_MOMENTUM;
    const struct sh_tensor part = p->tensors[momentum ? s->state[0] : s->remainder];
    int64_t bytes = momentum ? state_room(p, 0, s->room) : s->room * sh_dtype_bytes(SH_I16);
    struct sh_tensor home = sh_tensor_make(SH_MEM_OPTIM, SH_U8, 1, &bytes, "%.60s", p->tensors[s->home].name);
    int at, copy;
    struct sh_op op;

    home.base = s->home;
    home.base_elems = part.base_elems * sh_dtype_bytes(part.dtype);
    home.tier = o->home;
    home.persistent = true;
    at = sh_program_add_tensor(p, &home);
    copy = add_extent(o, &p->units[s->unit], bytes, SH_MEM_FETCHED, 0);
    move(o, SH_OP_FETCH, s->unit, at, copy);
    op = part_of(o, all, s->first, s->n);
    op.out[1] = view_part(p, copy, part.dtype, 0, s->n, momentum ? p->state[0].name : "remainder");
    push(o, op);
    move(o, SH_OP_EVICT, s->unit, copy, at);
}

/* Operations on one slice: it is moved once. */
static void update_slice(struct offload *o, const struct sh_op *all, int n, int slice)
{
    struct sh_slice s = o->p->slices[slice];

    if (s.first >= matrices_from(o, &o->p->units[s.unit])) {
        for (int i = 0; i < n; i++)
            if (all[i].kind != SH_OP_ADAMW)
                update_part(o, &all[i], &s);
        return;
    }
    if (all->kind == SH_OP_MUON_APPLY)
        add_copy(o, &s);
    move(o, SH_OP_FETCH, s.unit, s.home, s.copy);
    for (int i = 0; i < n; i++) {
        int64_t elems = elems_of(o, &all[i], s.first, s.n);
        struct sh_op op = all[i];

        if (!elems)
            continue;
        op = part_of(o, &all[i], s.first, elems);
        take_slice(o, &op, &s);
        if (op.attr.runs.of == SH_RUNS_WIDE) {
            take_wide(o, &op, s.first, elems);
            if (s.remainder != SH_NONE)
                op.out[1 + o->p->n_optim_states] = sh_shard_view(o->p, s.remainder, 0, 1, &elems, "remainder");
        }
        push(o, op);
    }
    move(o, SH_OP_EVICT, s.unit, s.copy, s.home);
}

/* The update of what is held of a chunk. */
static struct sh_op held_part(struct offload *o, const struct sh_op *all, int64_t held)
{
    int64_t n = elems_of(o, all, 0, held);
    struct sh_op op = part_of(o, all, 0, n);

    if (all->attr.runs.of != SH_RUNS_WIDE)
        return op;
    take_wide(o, &op, 0, n);
    if (o->p->units[all->unit].remainder != SH_NONE)
        op.out[1 + o->p->n_optim_states] = sh_shard_view(o->p, o->p->units[all->unit].remainder, 0, 1, &n, "remainder");
    return op;
}

/* The part that the unit holds on the device comes first. */
static void update_unit(struct offload *o, const struct sh_op *all, int n)
{
    struct sh_unit u = o->p->units[all->unit];

    for (int i = 0; i < n && u.held; i++)
        push(o, u.held == u.chunk ? all[i] : held_part(o, &all[i], u.held));
    for (int i = u.first_slice; i < u.first_slice + u.n_slices; i++)
        update_slice(o, all, n, i);
}

/* Whether an operation reads or writes anything that is in slices. A step with whole masters does not. */
static bool needs_slices(const struct offload *o, const struct sh_op *op)
{
    return op->kind == SH_OP_EMA ||
           (sh_op_info(op->kind)->runs && (op->kind != SH_OP_MUON_APPLY || has_remainder(o->p)));
}

/* How many operations from this one on, one after the other, update the same unit in slices. */
static int together(const struct offload *o, const struct sh_op *op, int left)
{
    int n = 1;

    while (n < left && needs_slices(o, &op[n]) && op[n].unit == op->unit)
        n++;
    return n;
}

/* References between operations are positions within the section, so they are renumbered. */
static void rebuild_update(struct offload *o, const struct sh_section *s)
{
    int *place = sh_calloc((size_t)s->n_ops + 1, sizeof *place);

    for (int i = 0, n; i < s->n_ops; i += n) {
        struct sh_op op = o->p->ops[s->first_op + i];

        n = 1;
        place[i] = o->update.n;
        if (op.kind == SH_OP_WAIT)
            op.attr.waits_for = place[op.attr.waits_for];
        if (op.attr.after != SH_NONE)
            op.attr.after = place[op.attr.after];
        if (needs_slices(o, &op)) {
            n = together(o, &o->p->ops[s->first_op + i], s->n_ops - i);
            update_unit(o, &o->p->ops[s->first_op + i], n);
        } else {
            push(o, op);
        }
    }
    free(place);
}

/* Nothing changes unless it is asked for. */
sh_rc sh_pass_offload(const struct sh_build *b, struct sh_program *p)
{
    struct offload o = {.b = b, .p = p};
    const struct sh_section *update = sh_program_section(p, SH_SECTION_UPDATE);

    if (!b->offload.optimizer_16 || !update)
        return SH_OK;
    o.home = sh_pass_home_tier(b, p);
    o.in = sh_pass_moving_stream(p, "in");
    o.out = sh_pass_moving_stream(p, "out");
    cut_units(&o);
    rebuild_update(&o, update);
    sh_program_set_ops(p, (int)(update - p->sections), o.update.op, o.update.n);
    sh_shard_renew_runs(&b->options, p);
    free(o.update.op);
    return SH_OK;
}
