/* Shared by the files that make a section of a micro-step. Inside the shard pass; local.
 *
 * shard_interval.c says through which operations units stay gathered, shard_grad.c what becomes of gradients, and
 * shard_section.c walks over the micro-step. */
#ifndef SH_PASS_SHARDING_H
#define SH_PASS_SHARDING_H

#include "src/pass/shard/shard.h"

struct sh_sharding_interval {
    int unit, first, last; /* operations of the micro-step, inclusive */
    int run;               /* of its last use */
    bool again;            /* the unit was gathered before in this micro-step */
    bool more;             /* and will be gathered once more */
    sh_group group;        /* of the gather: shard, or inner from what the forward left behind */
};

struct sh_sharding {
    const struct sh_program *micro;
    const struct sh_pass_options *opt;
    struct sh_program *out;
    enum sh_section_kind kind;
    int micro_step;   /* of the training step, if its place in a tree matters; else 0 */
    int steps;        /* in this section, if a tree joins their gradients; else 1 */
    bool trains;      /* has a backward */
    bool begins;      /* the first micro-step */
    bool first, last; /* of the training step; `first` also if nothing is added to earlier micro-steps */
    struct sh_sharding_interval *intervals; /* by their first operation */
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

/* Into how many chunks a unit is cut. */
static inline int sh_sharding_chunks(const struct sh_sharding *s, int unit)
{
    return sh_shard_chunks(s->opt, &s->out->units[unit]);
}

/* Parameters are often read through views, so all queries go to the root. */
static inline int sh_sharding_micro_root(const struct sh_sharding *s, int t)
{
    return sh_tensor_root(s->micro, t);
}

/* The unit of a parameter operand, SH_NONE for other operands. */
static inline int sh_sharding_unit_of(const struct sh_sharding *s, int t)
{
    int param = t == SH_NONE ? SH_NONE : s->micro->tensors[sh_sharding_micro_root(s, t)].param;

    return param == SH_NONE ? SH_NONE : s->micro->params[param].unit;
}

/* Elements of a unit with padding: of a gradient, those of one leaf. */
static inline int64_t sh_sharding_padded(const struct sh_sharding *s, int unit)
{
    return s->out->units[unit].chunk * sh_sharding_chunks(s, unit);
}

/* Operations of later micro-steps stand in the same list if a tree joins their gradients. */
static inline void sh_sharding_begin_operation(struct sh_sharding *s, int op)
{
    if (s->steps > 1)
        s->micro_step = s->micro->ops[op].micro;
}

/* Find the stretches of operations through which units stay gathered; and append what begins and ends one. */
void sh_sharding_find_intervals(struct sh_sharding *s);
void sh_sharding_open_interval(struct sh_sharding *s, const struct sh_sharding_interval *v);
void sh_sharding_close_interval(struct sh_sharding *s, const struct sh_sharding_interval *v);

/* Find the last operation that writes a gradient of each unit, after which it is complete. */
void sh_sharding_find_last_grads(struct sh_sharding *s);

/* The flat gradient into which operations of this micro-step write those of a unit; chosen when it is first asked for. */
int sh_sharding_unit_grad(struct sh_sharding *s, int unit);

/* Append what follows once a unit's gradient of a micro-step is complete: its part of the tree, and the reduction. */
void sh_sharding_reduce(struct sh_sharding *s, int unit, enum sh_phase phase);

#endif
