/* Sharding a micro-step: where the logical step names a parameter, the section reads a gathered unit; where it makes a
 * gradient, the section writes into the unit's flat gradient, and reduces that when its last part is in.
 *
 * Reproducible sums are those of a balanced binary tree over the micro-steps of all ranks. The open branches of a rank
 * are a stack of flat gradients: micro-step m writes level popcount(m), and each trailing one of m completes a pair,
 * whose upper level is added to the lower one. Level 0 is what is reduced in the end; the tree continues over the
 * ranks. If all micro-steps are one list, they overlap, so each has a gradient of its own, until it is added to that of the
 * micro-step with which it forms a pair. If parts of the rows of a micro-step are leaves too, their gradients are kept apart up to its end, and it brings
 * the sum of their tree.
 *
 * Ranks that share matrices sum their parts of a gradient in each micro-step, before it meets those of others.
 *
 * A rank that computes experts for others makes a gradient for each rank from which their rows come: a leaf of its own in
 * the tree, whose micro-steps come before those of the next rank.
 *
 * An interval is a stretch of operations through which a unit stays gathered: consecutive uses with no other unit used
 * in between except one that lies beside it, or all uses of the micro-step if the strategy keeps what it gathered for
 * the backward. Two units stay although others are used in between, since their memory is needed at the loss anyway
 * (doc/decisions/0043-kept-through-the-loss.md): the last block from the forward to the backward, and tied embeddings
 * from the first operation to the loss. */
#include "src/base/mem.h"
#include "src/layout/layout.h"
#include "src/pass/shard/shard.h"

#include <stdlib.h>
#include <string.h>

struct interval {
    int unit, first, last; /* operations of the micro-step, inclusive */
    int run;               /* of its last use */
    bool again;            /* the unit was gathered before in this micro-step */
    bool more;             /* and will be gathered once more */
    sh_group group;        /* of the gather: shard, or inner from what the forward left behind */
};

struct shard {
    const struct sh_program *micro;
    const struct sh_pass_options *opt;
    struct sh_program *out;
    enum sh_section_kind kind;
    int micro_step;             /* of the training step, if its place in a tree matters; else 0 */
    int steps;                  /* in this section, if a tree joins their gradients; else 1 */
    bool trains;                /* has a backward */
    bool begins;                /* the first micro-step */
    bool first, last;           /* of the training step; `first` also if nothing is added to earlier micro-steps */
    struct interval *intervals; /* by their first operation */
    int n_intervals, cap_intervals;
    int place, run; /* of the newest use, and how many runs there have been */
    int *newest;    /* [units] the unit's newest interval, SH_NONE */
    int *map;       /* [micro tensors] to tensors of the section, SH_NONE */
    int *full;      /* [units] gathered now, SH_NONE */
    int *secondary; /* [units] what the backward gathers from (inner axis), SH_NONE */
    int *grad;      /* [steps][units] flat gradient of this section, SH_NONE */
    int *placed;    /* [micro operations] messages: their index in the section */
    int *last_grad; /* [steps][units] last operation that writes a gradient of the unit, SH_NONE */
    struct sh_shard_unpacked unpacked;
};

static int chunks(const struct shard *s, int unit)
{
    return sh_shard_chunks(s->opt, &s->out->units[unit]);
}

/* The ranks of the inner axis among those over which the unit is cut. */
static sh_group inner_of(const struct shard *s, int unit)
{
    return s->opt->mesh.inner & s->out->units[unit].shard;
}

static int inner_size(const struct shard *s, int unit)
{
    return sh_group_size(&s->opt->mesh, inner_of(s, unit));
}

static int inner_index(const struct shard *s, int unit)
{
    return sh_group_index(&s->opt->mesh, inner_of(s, unit));
}

static int replicas(const struct shard *s, int unit)
{
    return sh_shard_replicas(s->opt, &s->out->units[unit]);
}

/* Parameters are often read through views, so all queries go to the root. */
static int micro_root(const struct shard *s, int t)
{
    return sh_tensor_root(s->micro, t);
}

/* The unit of a parameter operand, SH_NONE for other operands. */
static int unit_of(const struct shard *s, int t)
{
    int param = t == SH_NONE ? SH_NONE : s->micro->tensors[micro_root(s, t)].param;

    return param == SH_NONE ? SH_NONE : s->micro->params[param].unit;
}

/* The unit beside which it lies, or itself. */
static int place_of(const struct shard *s, int unit)
{
    int beside = s->out->units[unit].beside;

    return beside == SH_NONE ? unit : beside;
}

static bool is_forward(const struct shard *s, int op)
{
    return s->micro->ops[op].phase == SH_PHASE_FORWARD;
}

/* Whether units stay through the loss. A gather ahead of the backward would bring the last block back right there;
 * without such a gather, or with room for one unit only, keeping it would take additional room. */
static bool keeps_last(const struct shard *s)
{
    return s->trains && s->opt->backward_prefetch > 0 && s->opt->gathers_alive != 1;
}

/* Not if a base is frozen: the loss then has no gradient of it, and the units beside it are gathered ahead one by
 * one. */
static bool may_stay(const struct shard *s, int unit)
{
    return s->out->units[unit].trainable && s->out->units[unit].beside == SH_NONE;
}

/* Whether the unit stays from its newest interval to `op` although others are used in between: the last block, with the
 * unit of the loss between forward and backward; and the unit of the loss from the first operation on, since only tied
 * embeddings are used twice in a forward. While the blocks run that is one more unit, but no more than the loss takes,
 * where the unit is gathered anyway, together with its gradient and the activations of all blocks. */
static bool stays(const struct shard *s, const struct interval *open, int op)
{
    if (!keeps_last(s) || !may_stay(s, open->unit) || !is_forward(s, open->last))
        return false;
    return is_forward(s, op) ? !s->opt->gathers_alive : open->run == s->run - 2;
}

/* Consecutive uses of units at one place are a run. */
static void count_run(struct shard *s, int unit)
{
    if (place_of(s, unit) != s->place)
        s->run++;
    s->place = place_of(s, unit);
}

/* Extend the unit's newest interval, or start another one. It is extended if no other unit was used since, or for the
 * whole micro-step when units are kept. */
static void use(struct shard *s, int unit, int op)
{
    struct interval *open = s->newest[unit] == SH_NONE ? NULL : &s->intervals[s->newest[unit]];

    count_run(s, unit);
    if (open && (open->run == s->run || s->opt->strategy.keep_after_forward || stays(s, open, op))) {
        open->last = op;
        open->run = s->run;
        return;
    }
    if (open)
        open->more = true;
    s->intervals = sh_grow(s->intervals, s->n_intervals, &s->cap_intervals, sizeof *s->intervals);
    s->intervals[s->n_intervals] = (struct interval){
        .unit = unit,
        .first = op,
        .last = op,
        .run = s->run,
        .again = s->newest[unit] != SH_NONE,
        /* The first gather of a micro-step is over the shard axis. Later ones go over the inner axis, if there is one:
         * its ranks hold what the forward left. */
        .group = s->newest[unit] != SH_NONE && inner_size(s, unit) > 1 ? inner_of(s, unit) : s->out->units[unit].shard};
    s->newest[unit] = s->n_intervals++;
}

/* Units with a resident full copy have no intervals: nothing is gathered for them. */
static void find_intervals(struct shard *s)
{
    for (int i = 0; i < s->micro->n_ops; i++) {
        for (int k = 0; k < SH_OP_MAX_IN; k++) {
            int unit = unit_of(s, s->micro->ops[i].in[k]);

            if (unit != SH_NONE && s->out->units[unit].full == SH_NONE)
                use(s, unit, i);
        }
    }
}

/* The place of a unit in lists for the micro-step that is being emitted. */
static int now(const struct shard *s, int unit)
{
    return s->steps > 1 ? s->micro_step * s->micro->n_units + unit : unit;
}

static int *grad_of(const struct shard *s, int unit)
{
    return &s->grad[now(s, unit)];
}

static void begin_operation(struct shard *s, int op)
{
    if (s->steps > 1)
        s->micro_step = s->micro->ops[op].micro;
}

/* A unit is reduced after this operation, since its gradient is then complete. */
static void find_last_grads(struct shard *s)
{
    for (int i = 0; i < s->micro->n_ops; i++)
        for (int k = 0; k < SH_OP_MAX_OUT; k++) {
            int t = s->micro->ops[i].out[k], param = t == SH_NONE ? SH_NONE : s->micro->tensors[t].grad_of;

            if (param == SH_NONE)
                continue;
            begin_operation(s, i);
            s->last_grad[now(s, s->micro->params[param].unit)] = i;
        }
}

/* A flat tensor of this section, alive only in it. */
static int flat(struct shard *s, enum sh_mem mem, enum sh_dtype dtype, int64_t elems, int unit, const char *what)
{
    struct sh_tensor t = sh_tensor_make(mem, dtype, 1, &elems, "%.40s.%s", s->out->units[unit].name, what);

    return sh_program_add_tensor(s->out, &t);
}

/* The same for n elements of a unit's parameters. */
static int stored(struct shard *s, enum sh_mem mem, int64_t n, int unit, const char *what)
{
    struct sh_tensor t = sh_shard_stored(s->out, &s->out->units[unit], mem, n, what);

    return sh_program_add_tensor(s->out, &t);
}

/* Elements of a unit that each rank of the inner axis keeps. */
static int64_t inner_chunk(const struct shard *s, int unit)
{
    return sh_layout_chunk(s->out->units[unit].room, inner_size(s, unit));
}

/* There is room for both axes' chunks, since both may pad the end: 10 elements over 4 ranks are 4 chunks of 3 = 12. */
static void open_interval(struct shard *s, const struct interval *v)
{
    const struct sh_unit *u = &s->out->units[v->unit];
    bool inner = v->group == inner_of(s, v->unit);
    int64_t elems = u->chunk * chunks(s, v->unit), by_inner = inner_chunk(s, v->unit) * inner_size(s, v->unit);
    int from = inner ? s->secondary[v->unit] : sh_program_sent(u);

    elems = elems > by_inner ? elems : by_inner;
    s->full[v->unit] = stored(s, SH_MEM_GATHERED, elems, v->unit, "gathered");
    sh_program_append_collective(s->out, SH_OP_ALL_GATHER, SH_STREAM_GATHER, v->group, v->unit, from, s->full[v->unit],
                                 SH_NONE, s->micro->ops[v->first].phase);
}

/* reshard_after_forward: N: before the gathered unit goes, keep the part that this rank holds among its N
 * neighbours. */
static void keep_secondary(struct shard *s, const struct interval *v)
{
    int64_t chunk = inner_chunk(s, v->unit);
    struct sh_op copy = sh_program_op(SH_OP_COPY);

    s->secondary[v->unit] = stored(s, SH_MEM_PARAM, chunk, v->unit, "secondary");
    copy.in[0] =
        sh_shard_stretch(s->out, &s->out->units[v->unit], s->full[v->unit], chunk * inner_index(s, v->unit), chunk);
    copy.out[0] = s->secondary[v->unit];
    copy.phase = s->micro->ops[v->last].phase;
    copy.unit = v->unit;
    sh_program_append(s->out, copy);
}

/* The release ends the storage's life. A unit that will be gathered again over the inner axis first leaves its part
 * behind. */
static void close_interval(struct shard *s, const struct interval *v)
{
    struct sh_op release = sh_program_op(SH_OP_RELEASE);

    if (inner_size(s, v->unit) > 1 && v->more && !v->again)
        keep_secondary(s, v);
    release.in[0] = s->full[v->unit];
    release.unit = v->unit;
    release.phase = s->micro->ops[v->last].phase;
    sh_program_append(s->out, release);
    s->full[v->unit] = SH_NONE;
}

/* Elements of a unit with padding: of a gradient, those of one leaf. */
static int64_t padded(const struct shard *s, int unit)
{
    return s->out->units[unit].chunk * chunks(s, unit);
}

/* The part of a flat unit tensor that corresponds to the micro-step's tensor t (a parameter or its gradient). */
static int part(struct shard *s, int unit_tensor, int param, int t)
{
    const struct sh_tensor *m = &s->micro->tensors[t];
    const struct sh_param *of = &s->micro->params[param];

    return sh_shard_view(s->out, unit_tensor, of->unit_elems + m->leaf * padded(s, of->unit), m->ndim, m->dim, m->name);
}

/* The flat gradient that is kept on a level of the stack, SH_NONE if none is. */
static int kept_grad(const struct shard *s, int unit, int level)
{
    const struct sh_unit *u = &s->out->units[unit];

    if (level)
        return level < SH_GRAD_LEVELS ? u->grad_level[level] : SH_NONE;
    return chunks(s, unit) * u->leaves == 1 ? u->grad_shard : u->grad_full;
}

/* A flat gradient of this section, of n leaves. */
static int own_grad(struct shard *s, int unit, int n)
{
    int grad = flat(s, SH_MEM_GRAD_FULL, SH_F32, n * padded(s, unit), unit, "unreduced");

    s->out->tensors[grad].space = sh_shard_unreduced_space(s->opt, &s->out->units[unit], SH_F32);
    return grad;
}

/* The flat gradient on a level of the stack. The topmost level of all is added to the one below as soon as it is made,
 * and need not be kept. */
static int level_grad(struct shard *s, int unit, int level)
{
    int kept = kept_grad(s, unit, level);

    return kept == SH_NONE ? own_grad(s, unit, s->out->units[unit].leaves) : kept;
}

/* In one list, that of the first micro-step is the only one that may be kept. */
static int level_of(const struct shard *s)
{
    return s->steps > 1 && s->micro_step ? SH_GRAD_LEVELS : __builtin_popcount((unsigned)s->micro_step);
}

/* The flat gradient is chosen when the first of the unit's gradients is made. */
static int unit_grad(struct shard *s, int unit)
{
    int parts = s->out->units[unit].row_leaves;

    if (*grad_of(s, unit) == SH_NONE)
        *grad_of(s, unit) = parts > 1 ? own_grad(s, unit, parts) : level_grad(s, unit, level_of(s));
    return *grad_of(s, unit);
}

/* The section's tensor for a tensor of the micro-step:
 *  parameter   a view of the gathered or resident unit, which changes with each interval
 *  gradient    a view of the unit's flat gradient
 *  others      a copy, made once */
static int translate(struct shard *s, int t)
{
    const struct sh_tensor *m;
    struct sh_tensor copy;
    int unit;

    if (t == SH_NONE)
        return SH_NONE;
    m = &s->micro->tensors[t];
    unit = unit_of(s, t);
    if (unit != SH_NONE)
        return part(s, s->full[unit] != SH_NONE ? s->full[unit] : s->out->units[unit].full, m->param, t);
    if (m->grad_of != SH_NONE)
        return part(s, unit_grad(s, s->micro->params[m->grad_of].unit), m->grad_of, t);
    if (s->map[t] == SH_NONE) {
        copy = *m;
        if (copy.base != SH_NONE)
            copy.base = translate(s, copy.base);
        s->map[t] = sh_program_add_tensor(s->out, &copy);
    }
    return s->map[t];
}

/* Later micro-steps add to what is kept: the loss, what routers report, and gradients that are not reduced in between.
 * Loads and rows are whole numbers, whose sum needs no tree. */
static void accumulate(const struct shard *s, const struct sh_op *micro_op, struct sh_op *op)
{
    bool counts = op->kind == SH_OP_ROUTE_LOAD || op->kind == SH_OP_ROUTE_WAVE, first = counts ? s->begins : s->first;

    for (int k = 0; k < SH_OP_MAX_OUT && !first; k++) {
        int t = micro_op->out[k];

        if (t == SH_NONE)
            continue;
        if (t == s->micro->port[SH_PORT_LOSS] || micro_root(s, t) == s->micro->port[SH_PORT_ROUTERS] ||
            (s->micro->tensors[t].grad_of != SH_NONE && s->out->tensors[op->out[k]].persistent))
            op->attr.accumulate |= 1u << k;
    }
}

/* One operation from one flat tensor to another. */
static void put_into(struct shard *s, enum sh_op_kind kind, int unit, int from, int to, enum sh_phase phase)
{
    struct sh_op op = sh_program_op(kind);

    op.in[0] = from;
    op.out[0] = to;
    op.phase = phase;
    op.unit = unit;
    sh_program_append(s->out, op);
}

static void add_into(struct shard *s, int unit, int from, int to, enum sh_phase phase)
{
    put_into(s, SH_OP_ACCUMULATE, unit, from, to, phase);
}

/* Add the pairs of the tree that this micro-step completes. */
static void add_pairs(struct shard *s, int unit, enum sh_phase phase)
{
    int level = level_of(s), first = s->micro_step; /* of the branch */

    for (int size = 1; s->micro_step & size; size *= 2) {
        int lower;

        first -= size;
        lower = s->steps > 1 ? s->grad[first * s->micro->n_units + unit] : level_grad(s, unit, --level);
        add_into(s, unit, *grad_of(s, unit), lower, phase);
        *grad_of(s, unit) = lower;
    }
}

static int leaf_of(struct shard *s, int unit, int leaf)
{
    int64_t n = padded(s, unit);

    return sh_shard_view(s->out, *grad_of(s, unit), leaf * n, 1, &n, s->out->units[unit].name);
}

/* The first leaf becomes the tree's sum over all of them. */
static void add_leaves(struct shard *s, int unit, int leaves, enum sh_phase phase)
{
    for (int step = 1; step < leaves; step *= 2)
        for (int i = 0; i < leaves; i += 2 * step)
            add_into(s, unit, leaf_of(s, unit, i + step), leaf_of(s, unit, i), phase);
    *grad_of(s, unit) = leaf_of(s, unit, 0);
}

/* The tree begins with the parts of a micro-step's rows. A sum that waits for another goes to where it is kept. */
static void fold_rows(struct shard *s, int unit, enum sh_phase phase)
{
    int leaves = s->out->units[unit].row_leaves, kept = kept_grad(s, unit, level_of(s));

    if (leaves == 1)
        return;
    add_leaves(s, unit, leaves, phase);
    if (s->micro_step % 2 || kept == SH_NONE)
        return;
    put_into(s, SH_OP_COPY, unit, *grad_of(s, unit), kept, phase);
    *grad_of(s, unit) = kept;
}

/* The tree goes on over the ranks from which rows came, whose branches are leaves here, before it does over those that
 * the unit is cut over. A unit over one rank is not reduced, so its sum goes to where it is kept. */
static void fold_leaves(struct shard *s, int unit, enum sh_phase phase)
{
    const struct sh_unit *u = &s->out->units[unit];
    int leaves = u->leaves, shard = u->grad_shard;

    if (leaves == 1 || !s->last)
        return;
    add_leaves(s, unit, leaves, phase);
    if (chunks(s, unit) == 1)
        put_into(s, SH_OP_COPY, unit, *grad_of(s, unit), shard, phase);
}

/* Ranks that share matrices have parts of the gradient of what each has whole. A micro-step is a leaf once these are
 * summed; then each rank takes an equal share of the sum, which scales by a power of two and changes no bit, so that the
 * reduction, which meets these ranks first, restores it. */
static void fold_parts(struct shard *s, int unit, enum sh_phase phase)
{
    sh_group tensor = s->opt->mesh.tensor & s->out->units[unit].shard;
    int ranks = sh_group_size(&s->opt->mesh, tensor), grad = *grad_of(s, unit);
    struct sh_op share = sh_program_op(SH_OP_SCALE);

    if (ranks == 1 || !s->opt->reproducible)
        return;
    sh_program_append_collective(s->out, SH_OP_ALL_REDUCE, SH_STREAM_REDUCE, tensor, SH_NONE, SH_NONE, grad, SH_NONE,
                                 phase);
    share.in[0] = share.out[0] = grad;
    share.attr.scale.by = 1.0f / (float)ranks;
    share.phase = phase;
    share.unit = unit;
    sh_program_append(s->out, share);
}

static void cast_into(struct shard *s, int unit, int from, int to, enum sh_phase phase)
{
    put_into(s, SH_OP_CAST, unit, from, to, phase);
}

/* A reduced chunk in the type of reductions, only in this section. */
static int reduced(struct shard *s, int unit)
{
    int chunk = flat(s, SH_MEM_GRAD, s->opt->reduce, s->out->units[unit].chunk, unit, "reduced");

    s->out->tensors[chunk].space = sh_shard_reduced_space(s->opt, &s->out->units[unit], s->opt->reduce);
    return chunk;
}

/* The unit's gradient as it is sent: as it is, or rounded to the type of reductions. */
static int sent(struct shard *s, int unit, enum sh_phase phase)
{
    int from = *grad_of(s, unit), to = from;

    if (s->opt->reduce != SH_F32) {
        to = flat(s, SH_MEM_GRAD_FULL, s->opt->reduce, sh_tensor_elems(&s->out->tensors[from]), unit, "sent");
        s->out->tensors[to].space = sh_shard_unreduced_space(s->opt, &s->out->units[unit], s->opt->reduce);
        cast_into(s, unit, from, to, phase);
    }
    return to;
}

/* Add a reduced chunk to the shard. */
static void add_reduced(struct shard *s, int unit, int chunk, enum sh_phase phase)
{
    const struct sh_unit *u = &s->out->units[unit];
    int from = chunk;

    if (s->opt->reduce != SH_F32) {
        from = flat(s, SH_MEM_GRAD, SH_F32, u->chunk, unit, "widened");
        cast_into(s, unit, chunk, from, phase);
    }
    add_into(s, unit, from, u->grad_shard, phase);
}

/* Sum the shard over the replicas. `after`: the reduction that makes `chunk`, which is then summed right away; SH_NONE:
 * the shard is there. */
static void sum_replicas(struct shard *s, int unit, int chunk, int after, enum sh_phase phase)
{
    int shard = s->out->units[unit].grad_shard;

    if (after == SH_NONE) {
        chunk = s->opt->reduce == SH_F32 ? shard : reduced(s, unit);
        if (chunk != shard)
            cast_into(s, unit, shard, chunk, phase);
    }
    sh_program_append_collective(s->out, SH_OP_ALL_REDUCE, SH_STREAM_REPLICATE, s->out->units[unit].replicate, unit,
                                 SH_NONE, chunk, after, phase);
    if (chunk != shard)
        cast_into(s, unit, chunk, shard, phase);
}

/* A unit over one rank has nothing to scatter. With sync_last_only only the last micro-step reduces. */
static bool reduces_now(const struct shard *s, int unit)
{
    return chunks(s, unit) > 1 && (s->last || !s->opt->strategy.sync_last_only);
}

/* Reduce over the shard axis into the shard, or into a chunk that is added to it; after the last micro-step over the
 * replicas too.
 *
 *   reduces  direct  sum   with float32 reductions            with bfloat16 (`sent` is cast before it goes)
 *   no       -       no    nothing                            nothing
 *   no       -       yes   sum the shard                      cast shard, sum, cast back
 *   yes      yes     no    scatter into the shard             scatter into a chunk, cast into the shard
 *   yes      yes     yes   scatter into the shard, sum it     scatter into a chunk, sum that, cast into the shard
 *   yes      no      no    scatter into a chunk, add it       scatter into a chunk, widen, add
 *   yes      no      yes   the same, then sum the shard       the same, then cast shard, sum, cast back
 *
 * "scatter" is the reduce_scatter over the shard axis, "sum" the all_reduce over the replicas. If both are direct, the
 * sum starts as soon as the scatter is complete (`after`), and no kernel runs in between. */
static void reduce(struct shard *s, int unit, enum sh_phase phase)
{
    bool direct = s->first || s->opt->strategy.sync_last_only;
    bool sum = s->last && replicas(s, unit) > 1;
    int shard = s->out->units[unit].grad_shard, chunk = shard, scattered = SH_NONE;

    if (reduces_now(s, unit)) {
        if (!direct || s->opt->reduce != SH_F32)
            chunk = reduced(s, unit);
        scattered = sh_program_append_collective(s->out, SH_OP_REDUCE_SCATTER, SH_STREAM_REDUCE,
                                                 s->out->units[unit].shard, unit, sent(s, unit, phase), chunk, SH_NONE,
                                                 phase);
        if (!direct)
            add_reduced(s, unit, chunk, phase);
        else if (chunk != shard && !sum)
            cast_into(s, unit, chunk, shard, phase);
    }
    if (sum)
        sum_replicas(s, unit, chunk, direct ? scattered : SH_NONE, phase);
}

static int translate_input(struct shard *s, const struct sh_op *m, int t)
{
    int unit = unit_of(s, t), full, rows;

    if (unit == SH_NONE || !(s->out->units[unit].packed || s->out->units[unit].coded))
        return translate(s, t);
    full = s->full[unit] != SH_NONE ? s->full[unit] : s->out->units[unit].full;
    rows = sh_op_has_rows(m->kind) ? translate(s, m->in[1]) : SH_NONE;
    return sh_shard_unpacked(&s->unpacked, m, t, full, rows);
}

/* Whether an operand is a port that sections of this kind do not use: an evaluation counts no loads, and has no teacher. */
static bool is_for_others(const struct shard *s, int operand)
{
    int t = operand == SH_NONE ? SH_NONE : micro_root(s, operand);

    for (int port = 0; port < SH_PORTS && t != SH_NONE; port++)
        if (s->micro->port[port] == t)
            return !(sh_port_row(port)->sections >> s->kind & 1);
    return false;
}

/* The likeliest words are there for sections that have ports for them. */
static bool scores_for_others(const struct shard *s, const struct sh_op *m)
{
    return m->kind == SH_OP_HEAD_SCORE && is_for_others(s, m->out[2]);
}

/* The loss of weighed targets is there for its gradient, which an evaluation does not have: its number is made before. */
static bool weighs_for_nothing(const struct shard *s, const struct sh_op *m)
{
    return m->kind == SH_OP_HEAD_LOSS && m->in[3] != SH_NONE &&
           micro_root(s, m->out[0]) != s->micro->port[SH_PORT_LOSS];
}

static void emit(struct shard *s, int index)
{
    const struct sh_op *m = &s->micro->ops[index];
    struct sh_op op = *m;

    if (is_for_others(s, m->out[0]) || scores_for_others(s, m) || weighs_for_nothing(s, m))
        return;
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        op.in[k] = is_for_others(s, m->in[k]) ? SH_NONE : translate_input(s, m, m->in[k]);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        op.out[k] = is_for_others(s, m->out[k]) ? SH_NONE : translate(s, m->out[k]);
    accumulate(s, m, &op);
    /* The ranks of a node fetch their parts from there. */
    if (op.kind == SH_OP_ALL_TO_ALL && s->opt->segment_ranks)
        s->out->tensors[sh_tensor_root(s->out, op.in[0])].space = SH_SPACE_PEERS;
    if (op.kind == SH_OP_WAIT)
        op.attr.waits_for = s->placed[op.attr.waits_for];
    s->placed[index] = s->out->sections[s->out->n_sections - 1].n_ops;
    if (sh_op_info(op.kind)->async && !sh_program_is_message(&op)) /* those have waits where they can be met */
        sh_program_append_waited(s->out, op);
    else
        sh_program_append(s->out, op);
}

/* What has to be done after each operation of the micro-step. */
struct agenda {
    int *first; /* [operations] the first thing, SH_NONE */
    int *next;  /* [things] the one after it, SH_NONE */
};

static int *filled(int n)
{
    int *a = sh_calloc((size_t)n + 1, sizeof *a);

    for (int i = 0; i < n; i++)
        a[i] = SH_NONE;
    return a;
}

static struct agenda agenda_for(const struct shard *s, int things)
{
    return (struct agenda){.first = filled(s->micro->n_ops), .next = filled(things)};
}

static void free_agenda(struct agenda *a)
{
    free(a->first);
    free(a->next);
}

/* Insert in front: things are put in from the last to the first. */
static void put_in(struct agenda *a, int op, int thing)
{
    if (op == SH_NONE)
        return;
    a->next[thing] = a->first[op];
    a->first[op] = thing;
}

static void close_intervals(struct shard *s, const struct agenda *closing, int op)
{
    for (int v = closing->first[op]; v != SH_NONE; v = closing->next[v])
        close_interval(s, &s->intervals[v]);
}

static void reduce_units(struct shard *s, const struct agenda *reducing, int op)
{
    enum sh_phase phase = s->micro->ops[op].phase;

    for (int thing = reducing->first[op]; thing != SH_NONE; thing = reducing->next[thing]) {
        int unit = thing % s->micro->n_units;

        fold_rows(s, unit, phase);
        fold_parts(s, unit, phase);
        add_pairs(s, unit, phase);
        if (s->steps > 1 && s->micro_step < s->steps - 1)
            continue;
        fold_leaves(s, unit, phase);
        reduce(s, unit, phase);
    }
}

static void walk(struct shard *s)
{
    int opened = 0, things = s->steps * s->micro->n_units;
    struct agenda closing = agenda_for(s, s->n_intervals), reducing = agenda_for(s, things);

    for (int v = s->n_intervals - 1; v >= 0; v--)
        put_in(&closing, s->intervals[v].last, v);
    for (int thing = things - 1; thing >= 0; thing--)
        put_in(&reducing, s->last_grad[thing], thing);
    for (int i = 0; i < s->micro->n_ops; i++) {
        if (s->micro->ops[i].phase == SH_PHASE_INIT)
            continue;
        begin_operation(s, i);
        for (; opened < s->n_intervals && s->intervals[opened].first == i; opened++)
            open_interval(s, &s->intervals[opened]);
        emit(s, i);
        close_intervals(s, &closing, i);
        reduce_units(s, &reducing, i);
    }
    free_agenda(&closing);
    free_agenda(&reducing);
}

/* Storage of these kinds of memory is identified by its name. */
static bool by_name(const struct sh_tensor *t)
{
    return t->base == SH_NONE && (t->mem == SH_MEM_CONST || t->mem == SH_MEM_KV);
}

/* Tensors that outlive the section are those of the program. */
static void bind(struct shard *s, enum sh_section_kind kind)
{
    for (int port = 0; port < SH_PORTS; port++) {
        enum sh_port next = kind == SH_SECTION_DECODE ? sh_port_row(port)->decode : 0;

        if (s->micro->port[port] != SH_NONE)
            s->map[s->micro->port[port]] = s->out->port[next ? next : (enum sh_port)port];
    }
    for (int t = 0; t < s->micro->n_tensors; t++)
        for (int o = 0; o < s->out->n_tensors && by_name(&s->micro->tensors[t]) && s->map[t] == SH_NONE; o++)
            if (s->out->tensors[o].persistent && s->out->tensors[o].mem == s->micro->tensors[t].mem &&
                !strcmp(s->out->tensors[o].name, s->micro->tensors[t].name))
                s->map[t] = o;
}

static bool is_micro_step(enum sh_section_kind kind)
{
    return kind == SH_SECTION_ONLY || kind == SH_SECTION_FIRST || kind == SH_SECTION_MIDDLE || kind == SH_SECTION_LAST;
}

void sh_shard_section(const struct sh_program *micro, const struct sh_pass_options *opt, enum sh_section_kind kind,
                      int micro_step, int repeat, struct sh_program *out)
{
    int steps = opt->reproducible && kind == SH_SECTION_ONLY ? micro->unrolled : 1;
    struct shard s = {.micro = micro,
                      .opt = opt,
                      .out = out,
                      .kind = kind,
                      .micro_step = opt->reproducible ? micro_step : 0,
                      .steps = steps,
                      .begins = kind == SH_SECTION_FIRST || kind == SH_SECTION_ONLY,
                      .first = opt->reproducible || (kind != SH_SECTION_MIDDLE && kind != SH_SECTION_LAST),
                      .last = kind == SH_SECTION_LAST || kind == SH_SECTION_ONLY,
                      .trains = is_micro_step(kind),
                      .place = SH_NONE,
                      .map = filled(micro->n_tensors),
                      .full = filled(micro->n_units),
                      .unpacked = {.micro = micro, .out = out, .weight = filled(micro->n_tensors)},
                      .secondary = filled(micro->n_units),
                      .grad = filled(steps * micro->n_units),
                      .placed = filled(micro->n_ops),
                      .last_grad = filled(steps * micro->n_units),
                      .newest = filled(micro->n_units)};

    sh_program_add_section(out, kind, repeat);
    out->sections[out->n_sections - 1].micro_step = micro_step;
    bind(&s, kind);
    find_intervals(&s);
    find_last_grads(&s);
    walk(&s);
    free(s.intervals);
    free(s.map);
    free(s.full);
    free(s.unpacked.weight);
    free(s.secondary);
    free(s.grad);
    free(s.placed);
    free(s.last_grad);
    free(s.newest);
}
