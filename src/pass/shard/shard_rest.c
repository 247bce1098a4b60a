/* The sections around the micro-steps: init, sums over the ranks, update. */
#include "src/base/number/rng.h"
#include "src/layout/layout.h"
#include "src/optim/update.h"
#include "src/pass/shard/shard.h"
#include "src/program/saved.h"

#include <math.h>

/* A full copy that lives between steps: its chunks come from all ranks. */
static void gather_resident(const struct sh_pass_options *opt, struct sh_program *p, int unit, enum sh_phase phase)
{
    const struct sh_unit *u = &p->units[unit];

    if (u->full != SH_NONE && sh_shard_chunks(opt, u) > 1)
        sh_program_append_collective(p, SH_OP_ALL_GATHER, SH_STREAM_GATHER, u->shard, unit, sh_program_sent(u), u->full,
                                     SH_NONE, phase);
}

/* Make a chunk of a unit from another one, in another form, if the unit has both. */
static void convert(struct sh_program *p, enum sh_op_kind kind, int unit, int from, int to, enum sh_phase phase)
{
    struct sh_op op = sh_program_op(kind);

    op.in[0] = from;
    op.out[0] = to;
    op.phase = phase;
    op.unit = unit;
    if (from != SH_NONE && to != SH_NONE)
        sh_program_append(p, op);
}

void sh_shard_refresh(const struct sh_pass_options *opt, struct sh_program *p, int unit, enum sh_phase phase)
{
    const struct sh_unit u = p->units[unit];

    convert(p, SH_OP_CAST, unit, u.master, u.compute, phase);
    convert(p, SH_OP_ENCODE, unit, u.compute, u.codes, phase);
    gather_resident(opt, p, unit, phase);
}

static void copy_divisors(const struct sh_program *micro, struct sh_program *p, struct sh_op *op)
{
    int from = op->attr.rope.first_divisor;

    op->attr.rope.first_divisor = p->n_divisors;
    for (int i = 0; i < op->attr.rope.divisors; i++)
        sh_program_add_divisor(p, micro->divisors[from + i]);
}

/* Tables that depend on nothing, such as those of rotary positions, are computed once. */
static void copy_constants(const struct sh_program *micro, struct sh_program *p)
{
    for (int i = 0; i < micro->n_ops; i++) {
        struct sh_op op = micro->ops[i];

        if (op.phase != SH_PHASE_INIT)
            continue;
        op.out[0] = sh_program_add_tensor(p, &micro->tensors[op.out[0]]);
        if (op.kind == SH_OP_ROPE_TABLE)
            copy_divisors(micro, p, &op);
        sh_program_append(p, op);
    }
}

/* Runs after parameters have their values, from random numbers or a file; makes what is derived from them. */
void sh_shard_init(const struct sh_program *micro, const struct sh_pass_options *opt, struct sh_program *out)
{
    sh_program_add_section(out, SH_SECTION_INIT, 0);
    copy_constants(micro, out);
    for (int i = 0; i < out->n_units; i++)
        if (!out->units[i].of_rows)
            sh_shard_refresh(opt, out, i, SH_PHASE_INIT);
}

/* Sum over a group; over one rank there is nothing to sum. */
static void sum_over(struct sh_program *p, int scalar, sh_group group, const struct sh_pass_options *opt)
{
    if (sh_group_size(&opt->mesh, group) > 1)
        sh_program_append_collective(p, SH_OP_ALL_REDUCE, SH_STREAM_REPLICATE, group, SH_NONE, SH_NONE, scalar, SH_NONE,
                                     SH_PHASE_UPDATE);
}

/* The ranks whose losses and loads add up: each has those of its own rows. */
static sh_group whose_rows(const struct sh_pass_options *opt)
{
    return sh_group_widened(&opt->mesh, opt->mesh.rows);
}

/* Stages have zero for what others compute; apart, so that the sum over rows is that of one stage. */
static void sum_rows_and_stages(const struct sh_pass_options *opt, struct sh_program *out, int sums)
{
    sum_over(out, sums, whose_rows(opt), opt);
    sum_over(out, sums, opt->mesh.pipeline, opt);
}

void sh_shard_loss(const struct sh_pass_options *opt, struct sh_program *out)
{
    int loss = out->port[SH_PORT_LOSS], leaves = opt->row_leaves / sh_group_size(&opt->mesh, opt->mesh.context);
    int64_t numbers = out->tensors[loss].dim[0] / (leaves > 1 ? leaves : 1);

    if (opt->row_leaves > 1) /* the host has added up the leaves in the first */
        loss = sh_shard_view(out, loss, 0, 1, &numbers, "loss");
    sh_program_add_section(out, SH_SECTION_LOSS, opt->training ? 1 : 0);
    sum_rows_and_stages(opt, out, loss);
}

/* Padding does not count. Returns the number of elements; *owned is the range in the unit. */
static int64_t owned_elems(const struct sh_pass_options *opt, const struct sh_unit *u, struct sh_range *owned)
{
    *owned = sh_layout_owned_chunk(u->elems, u->chunk, sh_shard_index(opt, u));
    return owned->end - owned->begin;
}

/* The elements that this rank squares: owned ones only, since padding does not count. Replicas own the same elements,
 * and share the work. */
static struct sh_range squared_part(const struct sh_pass_options *opt, const struct sh_unit *u)
{
    struct sh_range owned, part = {0, owned_elems(opt, u, &owned)};

    return sh_layout_split(part, sh_shard_replicas(opt, u), sh_group_index(&opt->mesh, u->replicate));
}

/* A rank may train nothing: the last stage has no adapters, say. It squares an empty tensor, so that its sum is 0 and not
 * that of the step before. */
static struct sh_op square_none(struct sh_program *out)
{
    struct sh_tensor none = sh_tensor_make(SH_MEM_GRAD, SH_F32, 1, (const int64_t[]){0}, "gradient.none");
    struct sh_op op = sh_program_op(SH_OP_SUMSQ);

    none.persistent = true;
    op.in[0] = sh_program_add_tensor(out, &none);
    op.out[0] = out->port[SH_PORT_SQUARES];
    op.phase = SH_PHASE_UPDATE;
    return op;
}

/* The first trained unit starts the sum. */
static void square_units(const struct sh_pass_options *opt, struct sh_program *out)
{
    bool add = false;

    for (int i = 0; i < out->n_units; i++) {
        const struct sh_unit *u = &out->units[i];
        struct sh_op op = sh_program_op(SH_OP_SUMSQ);
        struct sh_range part = squared_part(opt, u);
        int64_t n = part.end - part.begin;

        if (!sh_program_descends(u))
            continue;
        op.in[0] = sh_shard_view(out, out->units[i].grad_shard, part.begin, 1, &n, out->units[i].name);
        op.out[0] = out->port[SH_PORT_SQUARES];
        op.attr.accumulate = add;
        add = true;
        op.phase = SH_PHASE_UPDATE;
        op.unit = i;
        sh_program_append(out, op);
    }
    if (!add)
        sh_program_append(out, square_none(out));
}

/* The sum is exact, so it does not depend on where shards end or on which rank squared what. Chunks are whole
 * blocks. Each element that is trained has one rank of the world that squares it. */
void sh_shard_norm(const struct sh_pass_options *opt, struct sh_program *out)
{
    struct sh_op round = sh_program_op(SH_OP_EXACT_ROUND);

    sh_program_add_section(out, SH_SECTION_NORM, 1);
    square_units(opt, out);
    sum_over(out, out->port[SH_PORT_SQUARES], sh_group_world(&opt->mesh), opt);
    if (out->port[SH_PORT_ROUTERS] != SH_NONE)
        sum_rows_and_stages(opt, out, out->port[SH_PORT_ROUTERS]);
    round.in[0] = out->port[SH_PORT_SQUARES];
    round.out[0] = out->port[SH_PORT_SUMSQ];
    round.phase = SH_PHASE_UPDATE;
    sh_program_append(out, round);
}

/* Whether a run must lie within one tensor: random bits are counted by the elements of a tensor. */
static bool rounds_stochastically(const struct sh_program *p)
{
    return p->n_states > 0 && p->state[0].dtype != SH_F32;
}

/* Range of the chunk: all of it, or the part whose masters are a view of it, or of a copy of it (src/pass/offload.c,
 * host.c). The gradient and the states may be copies of just that part. */
struct sh_range sh_shard_updated(const struct sh_program *p, const struct sh_op *op)
{
    const struct sh_unit *u = &p->units[op->unit];
    bool all = op->out[0] == u->compute || op->out[0] == u->master || p->tensors[op->out[0]].base == SH_NONE;
    int64_t begin = all ? 0 : p->tensors[op->out[0]].base_elems;

    return (struct sh_range){begin, begin + p->tensors[op->in[0] == SH_NONE ? op->out[0] : op->in[0]].dim[0]};
}

/* Add the run of a parameter, or, if it has random bits, one for each run of its saved tensor. */
static void add_runs(struct sh_program *p, const struct sh_param *param, struct sh_range part, struct sh_range mine,
                     struct sh_decay_run run)
{
    struct sh_rng_runs r;

    run.tensor = sh_rng_name(sh_saved_of(p, param)->name);
    for (int64_t at = mine.begin; at < mine.end; at += r.n) {
        r = sh_saved_run(p, param, at - param->unit_elems, mine.end - at);
        run.begin = at - part.begin;
        run.end = run.begin + r.n;
        run.origin = run.begin - r.first;
        sh_program_add_run(p, run);
    }
}

static bool continues(const struct sh_decay_run *last, const struct sh_decay_run *run)
{
    return last->decay == run->decay && last->group == run->group && last->end == run->begin;
}

/* Matrices and embeddings, unless the run or the parameter's group says otherwise. */
static bool decays(const struct sh_pass_options *opt, const struct sh_program *p, const struct sh_param *param)
{
    const struct sh_saved *s = sh_saved_of(p, param);
    bool own = s->group && !isnan(p->numbers[s->group - 1].weight_decay);

    return own || !sh_param_info(s->role)->vector || opt->decay_all;
}

/* Which elements of a unit an update may be of. */
static struct sh_range elems_of(const struct sh_unit *u, int of)
{
    return (struct sh_range){of == SH_RUNS_CODED ? u->wide : 0, of == SH_RUNS_WIDE ? u->wide : u->elems};
}

/* Runs of equal weight decay in the part of the rank's chunk that is updated, counted from the start of that part;
 * neighbours of one kind become one run. Parameters that the operation does not update are in none. */
static void set_runs(const struct sh_pass_options *opt, struct sh_program *p, int unit, struct sh_op *op)
{
    const struct sh_unit *u = &p->units[unit];
    struct sh_range owned, of, part = sh_shard_updated(p, op);

    owned_elems(opt, u, &owned);
    part = sh_layout_intersect(owned, (struct sh_range){owned.begin + part.begin, owned.begin + part.end});
    of = elems_of(u, op->attr.runs.of);
    op->attr.runs.first = p->n_runs;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct sh_param *param = &p->params[i];
        struct sh_range mine = sh_layout_intersect(
            sh_layout_intersect(part, of), (struct sh_range){param->unit_elems, param->unit_elems + param->elems});
        struct sh_decay_run run = {.begin = mine.begin - part.begin,
                                   .end = mine.end - part.begin,
                                   .decay = decays(opt, p, param),
                                   .group = sh_saved_of(p, param)->group};

        if (mine.begin == mine.end || !sh_optim_has(p, op->attr.runs.of, param))
            continue;
        if (rounds_stochastically(p))
            add_runs(p, param, part, mine, run);
        else if (p->n_runs > op->attr.runs.first && continues(&p->runs[p->n_runs - 1], &run))
            p->runs[p->n_runs - 1].end = run.end;
        else
            sh_program_add_run(p, run);
    }
    op->attr.runs.count = p->n_runs - op->attr.runs.first;
}

/* In the order of the program, whatever has become of the operations since they were made. */
void sh_shard_renew_runs(const struct sh_pass_options *opt, struct sh_program *p)
{
    p->n_runs = 0;
    for (int i = 0; i < p->n_ops; i++)
        if (sh_op_info(p->ops[i].kind)->runs)
            set_runs(opt, p, p->ops[i].unit, &p->ops[i]);
}

/* A view of this rank's own elements starts elsewhere on another rank. */
static void move_views(const struct sh_pass_options *opt, struct sh_program *p)
{
    for (int i = 0; i < p->n_units; i++) {
        const struct sh_unit *u = &p->units[i];
        int64_t begin = u->chunk * sh_shard_index(opt, u);

        if (p->tensors[sh_program_sent(u)].base != SH_NONE)
            p->tensors[sh_program_sent(u)].base_elems = sh_shard_place(u, begin);
    }
}

/* Ranks with other experts hold bands of the same size, one rank after the other (src/model/stack.c). */
static void move_bands(const struct sh_pass_options *opt, struct sh_program *p)
{
    for (int i = 0; i < p->n_params; i++) {
        sh_group split = p->units[p->params[i].unit].split;

        for (int k = 0; split == opt->mesh.expert && k < p->params[i].n_bands; k++)
            p->params[i].band[k].first = p->params[i].band[k].n * sh_group_index(&opt->mesh, split);
    }
}

/* What says which rows are those for this rank's own experts (src/pass/dispatch/). */
static void move_near(const struct sh_pass_options *opt, struct sh_program *p, const struct sh_op *op)
{
    int at = op->kind == SH_OP_ROW_GATHER ? op->in[2] : op->kind == SH_OP_ROW_SUM ? op->in[4] : SH_NONE;
    int first = op->kind == SH_OP_ROW_GATHER ? op->in[3] : op->in[5];

    if (at == SH_NONE)
        return;
    p->tensors[at].base_elems = sh_group_index(&opt->mesh, opt->mesh.expert) * (p->tensors[first].dim[0] - 1);
    p->tensors[first].base_elems = p->tensors[at].base_elems;
}

/* Whether an update is from this rank's part of a whole unit (sh_optim_own). */
static bool reads_own_part(const struct sh_program *p, const struct sh_op *op)
{
    return sh_op_info(op->kind)->runs && op->attr.runs.of == SH_RUNS_MATRICES && op->in[0] != SH_NONE &&
           p->tensors[op->in[0]].base != SH_NONE && p->tensors[op->in[0]].mem != SH_MEM_GRAD;
}

/* The operations that read a rank's own elements have the same indices on all ranks. */
void sh_pass_rank(const struct sh_pass_options *opt, struct sh_program *p)
{
    move_views(opt, p);
    move_bands(opt, p);
    for (int i = 0; i < p->n_ops; i++) {
        struct sh_op *op = &p->ops[i];
        struct sh_tensor *t = op->kind == SH_OP_SUMSQ && op->unit != SH_NONE ? &p->tensors[op->in[0]] : NULL;

        if (t) {
            struct sh_range part = squared_part(opt, &p->units[op->unit]);

            t->base_elems = part.begin;
            t->dim[0] = part.end - part.begin;
        }
        if (op->kind == SH_OP_ATTENTION_ROWS || op->kind == SH_OP_ATTENTION_ROWS_BWD)
            sh_pass_place_runs(&opt->mesh, p->tensors[op->in[0]].dim[1], &op->attr);
        if (op->kind == SH_OP_ROUTE_WAVE)
            op->attr.wave.place = sh_group_index(&opt->mesh, opt->mesh.expert);
        move_near(opt, p, op);
        if (reads_own_part(p, op))
            p->tensors[op->in[0]].base_elems = p->units[op->unit].chunk * sh_shard_index(opt, &p->units[op->unit]);
    }
    sh_optim_place_owned(p, &opt->mesh);
    sh_shard_renew_runs(opt, p);
    if (p->segment.ranks)
        p->segment.rank = opt->segment_rank;
}
