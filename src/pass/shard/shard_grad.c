/* What becomes of a unit's gradient: where operations write it, its tree of sums, and its reduction.
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
 * the tree, whose micro-steps come before those of the next rank. */
#include "src/pass/shard/sharding.h"

static int replicas(const struct sh_sharding *s, int unit)
{
    return sh_shard_replicas(s->opt, &s->out->units[unit]);
}

/* The place of a unit in lists for the micro-step that is being emitted. */
static int now(const struct sh_sharding *s, int unit)
{
    return s->steps > 1 ? s->micro_step * s->micro->n_units + unit : unit;
}

static int *grad_of(const struct sh_sharding *s, int unit)
{
    return &s->grad[now(s, unit)];
}

/* A unit is reduced after this operation, since its gradient is then complete. */
void sh_sharding_find_last_grads(struct sh_sharding *s)
{
    for (int i = 0; i < s->micro->n_ops; i++)
        for (int k = 0; k < SH_OP_MAX_OUT; k++) {
            int t = s->micro->ops[i].out[k], param = t == SH_NONE ? SH_NONE : s->micro->tensors[t].grad_of;

            if (param == SH_NONE)
                continue;
            sh_sharding_begin_operation(s, i);
            s->last_grad[now(s, s->micro->params[param].unit)] = i;
        }
}

/* A flat tensor of this section, alive only in it. */
static int flat(struct sh_sharding *s, enum sh_mem mem, enum sh_dtype dtype, int64_t elems, int unit, const char *what)
{
    struct sh_tensor t = sh_tensor_make(mem, dtype, 1, &elems, "%.40s.%s", s->out->units[unit].name, what);

    return sh_program_add_tensor(s->out, &t);
}

/* The flat gradient that is kept on a level of the stack, SH_NONE if none is. */
static int kept_grad(const struct sh_sharding *s, int unit, int level)
{
    const struct sh_unit *u = &s->out->units[unit];

    if (level)
        return level < SH_GRAD_LEVELS ? u->grad_level[level] : SH_NONE;
    return sh_sharding_chunks(s, unit) * u->leaves == 1 ? u->grad_shard : u->grad_full;
}

/* A flat gradient of this section, of n leaves. */
static int own_grad(struct sh_sharding *s, int unit, int n)
{
    int grad = flat(s, SH_MEM_GRAD_FULL, SH_F32, n * sh_sharding_padded(s, unit), unit, "unreduced");

    s->out->tensors[grad].space = sh_shard_unreduced_space(s->opt, &s->out->units[unit], SH_F32);
    return grad;
}

/* The flat gradient on a level of the stack. The topmost level of all is added to the one below as soon as it is made,
 * and need not be kept. */
static int level_grad(struct sh_sharding *s, int unit, int level)
{
    int kept = kept_grad(s, unit, level);

    return kept == SH_NONE ? own_grad(s, unit, s->out->units[unit].leaves) : kept;
}

/* In one list, that of the first micro-step is the only one that may be kept. */
static int level_of(const struct sh_sharding *s)
{
    return s->steps > 1 && s->micro_step ? SH_GRAD_LEVELS : __builtin_popcount((unsigned)s->micro_step);
}

/* The flat gradient is chosen when the first of the unit's gradients is made. */
int sh_sharding_unit_grad(struct sh_sharding *s, int unit)
{
    int parts = s->out->units[unit].row_leaves;

    if (*grad_of(s, unit) == SH_NONE)
        *grad_of(s, unit) = parts > 1 ? own_grad(s, unit, parts) : level_grad(s, unit, level_of(s));
    return *grad_of(s, unit);
}

/* One operation from one flat tensor to another. */
static void put_into(struct sh_sharding *s, enum sh_op_kind kind, int unit, int from, int to, enum sh_phase phase)
{
    struct sh_op op = sh_program_op(kind);

    op.in[0] = from;
    op.out[0] = to;
    op.phase = phase;
    op.unit = unit;
    sh_program_append(s->out, op);
}

static void add_into(struct sh_sharding *s, int unit, int from, int to, enum sh_phase phase)
{
    put_into(s, SH_OP_ACCUMULATE, unit, from, to, phase);
}

/* Add the pairs of the tree that this micro-step completes. */
static void add_pairs(struct sh_sharding *s, int unit, enum sh_phase phase)
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

static int leaf_of(struct sh_sharding *s, int unit, int leaf)
{
    int64_t n = sh_sharding_padded(s, unit);

    return sh_shard_view(s->out, *grad_of(s, unit), leaf * n, 1, &n, s->out->units[unit].name);
}

/* The first leaf becomes the tree's sum over all of them. */
static void add_leaves(struct sh_sharding *s, int unit, int leaves, enum sh_phase phase)
{
    for (int step = 1; step < leaves; step *= 2)
        for (int i = 0; i < leaves; i += 2 * step)
            add_into(s, unit, leaf_of(s, unit, i + step), leaf_of(s, unit, i), phase);
    *grad_of(s, unit) = leaf_of(s, unit, 0);
}

/* The tree begins with the parts of a micro-step's rows. A sum that waits for another goes to where it is kept. */
static void fold_rows(struct sh_sharding *s, int unit, enum sh_phase phase)
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
static void fold_leaves(struct sh_sharding *s, int unit, enum sh_phase phase)
{
    const struct sh_unit *u = &s->out->units[unit];
    int leaves = u->leaves, shard = u->grad_shard;

    if (leaves == 1 || !s->last)
        return;
    add_leaves(s, unit, leaves, phase);
    if (sh_sharding_chunks(s, unit) == 1)
        put_into(s, SH_OP_COPY, unit, *grad_of(s, unit), shard, phase);
}

/* Ranks that share matrices have parts of the gradient of what each has whole. A micro-step is a leaf once these are
 * summed; then each rank takes an equal share of the sum, which scales by a power of two and changes no bit, so that the
 * reduction, which meets these ranks first, restores it. */
static void fold_parts(struct sh_sharding *s, int unit, enum sh_phase phase)
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

static void cast_into(struct sh_sharding *s, int unit, int from, int to, enum sh_phase phase)
{
    put_into(s, SH_OP_CAST, unit, from, to, phase);
}

/* A reduced chunk in the type of reductions, only in this section. */
static int reduced(struct sh_sharding *s, int unit)
{
    int chunk = flat(s, SH_MEM_GRAD, s->opt->reduce, s->out->units[unit].chunk, unit, "reduced");

    s->out->tensors[chunk].space = sh_shard_reduced_space(s->opt, &s->out->units[unit], s->opt->reduce);
    return chunk;
}

/* The unit's gradient as it is sent: as it is, or rounded to the type of reductions. */
static int sent(struct sh_sharding *s, int unit, enum sh_phase phase)
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
static void add_reduced(struct sh_sharding *s, int unit, int chunk, enum sh_phase phase)
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
static void sum_replicas(struct sh_sharding *s, int unit, int chunk, int after, enum sh_phase phase)
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
static bool reduces_now(const struct sh_sharding *s, int unit)
{
    return sh_sharding_chunks(s, unit) > 1 && (s->last || !s->opt->strategy.sync_last_only);
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
static void reduce(struct sh_sharding *s, int unit, enum sh_phase phase)
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

void sh_sharding_reduce(struct sh_sharding *s, int unit, enum sh_phase phase)
{
    fold_rows(s, unit, phase);
    fold_parts(s, unit, phase);
    add_pairs(s, unit, phase);
    if (s->steps > 1 && s->micro_step < s->steps - 1)
        return;
    fold_leaves(s, unit, phase);
    reduce(s, unit, phase);
}
