/* An interval is a stretch of operations through which a unit stays gathered: consecutive uses with no other unit used
 * in between except one that lies beside it, or all uses of the micro-step if the strategy keeps what it gathered for
 * the backward. Two units stay although others are used in between, since their memory is needed at the loss anyway
 * (doc/decisions/0043-kept-through-the-loss.md): the last block from the forward to the backward, and tied embeddings
 * from the first operation to the loss. */
#include "src/pass/shard/sharding.h"

#include "src/base/mem.h"

/* The ranks of the inner axis among those over which the unit is cut. */
static sh_group inner_of(const struct sh_sharding *s, int unit)
{
    return s->opt->mesh.inner & s->out->units[unit].shard;
}

static int inner_size(const struct sh_sharding *s, int unit)
{
    return sh_group_size(&s->opt->mesh, inner_of(s, unit));
}

static int inner_index(const struct sh_sharding *s, int unit)
{
    return sh_group_index(&s->opt->mesh, inner_of(s, unit));
}

/* The unit beside which it lies, or itself. */
static int place_of(const struct sh_sharding *s, int unit)
{
    int beside = s->out->units[unit].beside;

    return beside == SH_NONE ? unit : beside;
}

static bool is_forward(const struct sh_sharding *s, int op)
{
    return s->micro->ops[op].phase == SH_PHASE_FORWARD;
}

/* Whether units stay through the loss. A gather ahead of the backward would bring the last block back right there;
 * without such a gather, or with room for one unit only, keeping it would take additional room. */
static bool keeps_last(const struct sh_sharding *s)
{
    return s->trains && s->opt->backward_prefetch > 0 && s->opt->gathers_alive != 1;
}

/* Not if a base is frozen: the loss then has no gradient of it, and the units beside it are gathered ahead one by
 * one. */
static bool may_stay(const struct sh_sharding *s, int unit)
{
    return s->out->units[unit].trainable && s->out->units[unit].beside == SH_NONE;
}

/* Whether the unit stays from its newest interval to `op` although others are used in between: the last block, with the
 * unit of the loss between forward and backward; and the unit of the loss from the first operation on, since only tied
 * embeddings are used twice in a forward. While the blocks run that is one more unit, but no more than the loss takes,
 * where the unit is gathered anyway, together with its gradient and the activations of all blocks. */
static bool stays(const struct sh_sharding *s, const struct sh_sharding_interval *open, int op)
{
    if (!keeps_last(s) || !may_stay(s, open->unit) || !is_forward(s, open->last))
        return false;
    return is_forward(s, op) ? !s->opt->gathers_alive : open->run == s->run - 2;
}

/* Consecutive uses of units at one place are a run. */
static void count_run(struct sh_sharding *s, int unit)
{
    if (place_of(s, unit) != s->place)
        s->run++;
    s->place = place_of(s, unit);
}

/* Extend the unit's newest interval, or start another one. It is extended if no other unit was used since, or for the
 * whole micro-step when units are kept. */
static void use(struct sh_sharding *s, int unit, int op)
{
    struct sh_sharding_interval *open = s->newest[unit] == SH_NONE ? NULL : &s->intervals[s->newest[unit]];

    count_run(s, unit);
    if (open && (open->run == s->run || s->opt->strategy.keep_after_forward || stays(s, open, op))) {
        open->last = op;
        open->run = s->run;
        return;
    }
    if (open)
        open->more = true;
    s->intervals = sh_grow(s->intervals, s->n_intervals, &s->cap_intervals, sizeof *s->intervals);
    s->intervals[s->n_intervals] = (struct sh_sharding_interval){
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
void sh_sharding_find_intervals(struct sh_sharding *s)
{
    for (int i = 0; i < s->micro->n_ops; i++) {
        for (int k = 0; k < SH_OP_MAX_IN; k++) {
            int unit = sh_sharding_unit_of(s, s->micro->ops[i].in[k]);

            if (unit != SH_NONE && s->out->units[unit].full == SH_NONE)
                use(s, unit, i);
        }
    }
}

/* The same for n elements of a unit's parameters. */
static int stored(struct sh_sharding *s, enum sh_mem mem, int64_t n, int unit, const char *what)
{
    struct sh_tensor t = sh_shard_stored(s->out, &s->out->units[unit], mem, n, what);

    return sh_program_add_tensor(s->out, &t);
}

/* Elements of a unit that each rank of the inner axis keeps. */
static int64_t inner_chunk(const struct sh_sharding *s, int unit)
{
    return sh_shard_cut(&s->out->units[unit], inner_size(s, unit));
}

/* There is room for both axes' chunks, since both may pad the end: 10 elements over 4 ranks are 4 chunks of 3 = 12. */
void sh_sharding_open_interval(struct sh_sharding *s, const struct sh_sharding_interval *v)
{
    const struct sh_unit *u = &s->out->units[v->unit];
    bool inner = v->group == inner_of(s, v->unit);
    int64_t elems = u->chunk * sh_sharding_chunks(s, v->unit),
            by_inner = inner_chunk(s, v->unit) * inner_size(s, v->unit);
    int from = inner ? s->secondary[v->unit] : sh_program_sent(u);

    elems = elems > by_inner ? elems : by_inner;
    s->full[v->unit] = stored(s, SH_MEM_GATHERED, elems, v->unit, "gathered");
    sh_program_append_collective(s->out, SH_OP_ALL_GATHER, SH_STREAM_GATHER, v->group, v->unit, from, s->full[v->unit],
                                 SH_NONE, s->micro->ops[v->first].phase);
}

/* reshard_after_forward: N: before the gathered unit goes, keep the part that this rank holds among its N
 * neighbours. */
static void keep_secondary(struct sh_sharding *s, const struct sh_sharding_interval *v)
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
void sh_sharding_close_interval(struct sh_sharding *s, const struct sh_sharding_interval *v)
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
