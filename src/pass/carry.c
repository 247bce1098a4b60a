/* The update carried into the next step: ahead of each unit's first use, the first micro-step gets a copy of what
 * UPDATE does for that unit, so that the unit's slices travel alongside the forward of the units before it. The
 * gradients stay where they are until the backward, which comes later. This changes no bit: it is the same update of
 * the same numbers. UPDATE stays, for steps after which somebody looks at the state, but is no longer part of a
 * training step.
 *
 * A unit's update stands as many units ahead of its first use as gathers start ahead. If a copy that lives between
 * steps is gathered, the wait for that stands right before the use.
 *
 *   UPDATE            u1 u2 u3
 *   micro-step        G1 w F1 x  G2 w F2 x  G3 w F3 ...
 *   becomes           u1 u2 G1 w F1 x  u3 G2 w F2 x  G3 w F3 ...      (forward_prefetch 1)
 *
 * A wave of units whose matrices travel has three parts (src/optim/muon.c): they go out, are made, and come back unit by
 * unit. The first part of a wave stands right behind the second of the wave before, so the forward of that wave's units
 * runs alongside; and so does that of a unit alongside the way back of those behind it. If replicas exchange what they have
 * made, and that takes longer than the way out, a wave is made in the middle of the one before it, whose other half runs
 * alongside. The second is made while the first is exchanged, which has no forward before it. Two waves are in memory at
 * most.
 *
 * A run skips the operations of phase UPDATE if no update is pending. */
#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/pass/shard/shard.h"

#include <stdlib.h>

struct carry {
    const struct sh_build *b;
    struct sh_program *p;
    const struct sh_section *update, *first;
    int *use;   /* [units] operation of the micro-step that is the unit's first use; SH_NONE: it has no update */
    int *begin; /* [units] the operation before which its update stands, or the last part of it */
    int *order; /* [n_order] units that have an update, in the order of first use */
    int n_order;
    int *lead; /* [units] the unit that its wave begins with; SH_NONE: it has no wave */
    int *sent; /* [units] of such a first unit: the last operation of UPDATE that sends matrices out */
    int *made; /* [units] the one that gives them to replicas; SH_NONE: none does, or it takes no longer */
    int *back; /* [units] and the last that sends them back */
    int *wave; /* [n_waves] those first units, in the order of first use of any unit of the wave */
    int *out;  /* [n_waves] the operation before which matrices go out */
    int *make; /* [n_waves] before which they are made */
    int *send; /* [n_waves] and before which they go back, unless that is a part of their making */
    int n_waves;
    int *place; /* [operations of UPDATE] where the operation is in the micro-step now */
    int *copy;  /* [tensors of the old program] the tensor that replaces it here; SH_NONE: none yet */
    struct sh_op *op;
    int n, cap; /* the new micro-step */
};

enum part { GO_OUT, MAKE, SEND_BACK, COME_BACK };

static const struct sh_op *op_of(const struct carry *c, const struct sh_section *s, int i)
{
    return &c->p->ops[s->first_op + i];
}

/* A gather reads the chunk, a product the full copy. */
static bool reads(const struct carry *c, const struct sh_op *op, const struct sh_unit *u)
{
    for (int k = 0; k < SH_OP_MAX_IN; k++) {
        int root = op->in[k] == SH_NONE ? SH_NONE : sh_tensor_root(c->p, op->in[k]);

        if (root != SH_NONE && (root == sh_tensor_root(c->p, sh_program_sent(u)) || root == u->full))
            return true;
    }
    return false;
}

static int first_use(const struct carry *c, const struct sh_unit *u)
{
    int i = 0;

    while (i < c->first->n_ops && !reads(c, op_of(c, c->first, i), u))
        i++;
    return i;
}

/* Insert into the order of use, which is short and nearly sorted. */
static void put_in_order(struct carry *c, int unit)
{
    int at = c->n_order++;

    for (; at > 0 && c->use[c->order[at - 1]] > c->use[unit]; at--)
        c->order[at] = c->order[at - 1];
    c->order[at] = unit;
}

/* Units whose matrices travel at once. */
static void find_waves(struct carry *c)
{
    const struct sh_op *first = NULL;

    for (int i = 0; i < c->update->n_ops; i++) {
        const struct sh_op *op = op_of(c, c->update, i);
        bool same;

        if (!sh_program_cuts(c->p, op))
            continue;
        same = first && first->attr.exchange.wave == op->attr.exchange.wave;
        if (op->attr.exchange.sharers) {
            if (same && c->b->options.ortho.near)
                c->made[first->unit] = i;
            continue;
        }
        first = same ? first : op;
        c->lead[op->unit] = first->unit;
        *(op->attr.exchange.back ? &c->back[first->unit] : &c->sent[first->unit]) = i;
    }
}

/* The part of its wave's update to which an operation belongs. What a unit without a wave does is the last of one. */
static enum part part_of(const struct carry *c, int i)
{
    const struct sh_op *op = op_of(c, c->update, i), *waited;
    int lead = c->lead[op->unit];

    if (lead == SH_NONE || i > c->back[lead])
        return COME_BACK;
    if (i <= c->sent[lead] && op->kind != SH_OP_WAIT)
        return GO_OUT;
    if (op->kind != SH_OP_WAIT)
        return c->made[lead] != SH_NONE && i > c->made[lead] ? SEND_BACK : MAKE;
    waited = op_of(c, c->update, op->attr.waits_for);
    if (!sh_program_cuts(c->p, waited))
        return part_of(c, op->attr.waits_for);
    if (waited->attr.exchange.sharers)
        return c->made[lead] == SH_NONE ? MAKE : SEND_BACK;
    return waited->attr.exchange.back ? COME_BACK : MAKE;
}

/* Add the wave of the unit at place k of the order of use; `before`: the same of the wave before. */
static void place_wave(struct carry *c, int k, int before)
{
    int n = c->n_waves++, lead = c->lead[c->order[k]];
    bool early = c->made[lead] != SH_NONE;
    int out = early && n > 1 && before + 1 < k ? before + 1 : before, half = n > 1 ? (before + k) / 2 : before;

    c->wave[n] = lead;
    c->out[n] = c->begin[c->order[out]];
    c->make[n] = c->begin[c->order[early ? half : k]];
    c->send[n] = c->begin[c->order[k]];
}

static void find_places(struct carry *c)
{
    int ahead = c->b->options.forward_prefetch, before = SH_NONE;
    bool *listed = sh_calloc((size_t)c->p->n_units + 1, sizeof *listed);

    find_waves(c);
    for (int i = 0; i < c->update->n_ops; i++) {
        const struct sh_op *op = op_of(c, c->update, i);

        if ((!sh_op_info(op->kind)->runs && op->kind != SH_OP_ROUTE_BIAS) || c->use[op->unit] != SH_NONE)
            continue;
        c->use[op->unit] = first_use(c, &c->p->units[op->unit]);
        put_in_order(c, op->unit);
    }
    for (int k = 0; k < c->n_order; k++) {
        int unit = c->order[k], lead = c->lead[unit];

        c->begin[unit] = c->use[c->order[k > ahead ? k - ahead : 0]];
        if (lead == SH_NONE || listed[lead])
            continue;
        listed[lead] = true;
        place_wave(c, k, before == SH_NONE ? k : before);
        before = k;
    }
    free(listed);
}

static int push(struct carry *c, struct sh_op op)
{
    c->op = sh_grow(c->op, c->n, &c->cap, sizeof *c->op);
    c->op[c->n] = op;
    return c->n++;
}

/* Tensors that live between sections are the same here; copies of slices are this section's own. */
static int translate(struct carry *c, int t)
{
    struct sh_tensor copy;

    if (t == SH_NONE || c->p->tensors[sh_tensor_root(c->p, t)].persistent)
        return t;
    if (c->copy[t] == SH_NONE) {
        copy = c->p->tensors[t];
        copy.base = translate(c, copy.base);
        c->copy[t] = sh_program_add_tensor(c->p, &copy);
    }
    return c->copy[t];
}

static void carry_op(struct carry *c, int i)
{
    struct sh_op op = *op_of(c, c->update, i);

    for (int k = 0; k < SH_OP_MAX_IN; k++)
        op.in[k] = translate(c, op.in[k]);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        op.out[k] = translate(c, op.out[k]);
    if (op.kind == SH_OP_WAIT)
        op.attr.waits_for = c->place[op.attr.waits_for];
    if (op.attr.after != SH_NONE)
        op.attr.after = c->place[op.attr.after];
    c->place[i] = push(c, op);
}

static bool waits_for_gather(const struct carry *c, int i)
{
    const struct sh_op *op = op_of(c, c->update, i);

    return op->kind == SH_OP_WAIT && op_of(c, c->update, op->attr.waits_for)->kind == SH_OP_ALL_GATHER;
}

/* Carry a part of a wave's update. */
static void carry_wave(struct carry *c, int lead, enum part part)
{
    for (int i = 0; i < c->update->n_ops; i++) {
        int unit = op_of(c, c->update, i)->unit;

        if (unit != SH_NONE && c->lead[unit] == lead && part_of(c, i) == part)
            carry_op(c, i);
    }
}

/* Carry the waits for gathers of one unit's update, or the rest of its last part. */
static void carry_unit(struct carry *c, int unit, bool waits)
{
    for (int i = 0; i < c->update->n_ops; i++)
        if (op_of(c, c->update, i)->unit == unit && part_of(c, i) == COME_BACK && waits_for_gather(c, i) == waits)
            carry_op(c, i);
}

/* Carry everything that stands before operation `at` of the micro-step. */
static void carry_to(struct carry *c, int at)
{
    for (int k = 0; k < c->n_waves; k++) {
        if (c->out[k] == at)
            carry_wave(c, c->wave[k], GO_OUT);
        if (c->make[k] == at)
            carry_wave(c, c->wave[k], MAKE);
    }
    for (int k = 0; k < c->n_waves; k++)
        if (c->send[k] == at)
            carry_wave(c, c->wave[k], SEND_BACK);
    for (int k = 0; k < c->n_order; k++)
        if (c->begin[c->order[k]] == at)
            carry_unit(c, c->order[k], false);
    for (int k = 0; k < c->n_order; k++)
        if (c->use[c->order[k]] == at)
            carry_unit(c, c->order[k], true);
}

/* References between operations are positions within the section, so they are renumbered. */
static void rebuild(struct carry *c)
{
    int *place = sh_program_nones(c->first->n_ops);

    for (int i = 0; i < c->first->n_ops; i++) {
        struct sh_op op;

        carry_to(c, i);
        op = *op_of(c, c->first, i);
        if (op.kind == SH_OP_WAIT)
            op.attr.waits_for = place[op.attr.waits_for];
        if (op.attr.after != SH_NONE)
            op.attr.after = place[op.attr.after];
        place[i] = push(c, op);
    }
    free(place);
}

/* Each update must have found its place: a unit that no forward reads would never be updated. */
static sh_rc is_whole(const struct carry *c)
{
    int last = c->n_order ? c->order[c->n_order - 1] : SH_NONE;

    return last == SH_NONE || c->use[last] < c->first->n_ops
               ? SH_OK
               : sh_fail(SH_E_BUG, "carry: no operation of the %s reads %s", sh_section_name(c->first->kind),
                         c->p->units[last].name);
}

/* Nothing changes unless it is asked for. */
sh_rc sh_pass_carry(const struct sh_build *b, struct sh_program *p)
{
    int update = sh_program_find_section(p, SH_SECTION_UPDATE), first = sh_program_micro_step(p, 0);
    struct carry c = {.b = b, .p = p};
    sh_rc rc = SH_OK;

    if (!b->offload.carry || update == SH_NONE || first == SH_NONE)
        return SH_OK;
    c.update = &p->sections[update];
    c.first = &p->sections[first];
    c.use = sh_program_nones(p->n_units);
    c.begin = sh_program_nones(p->n_units);
    c.order = sh_program_nones(p->n_units);
    c.lead = sh_program_nones(p->n_units);
    c.sent = sh_program_nones(p->n_units);
    c.back = sh_program_nones(p->n_units);
    c.wave = sh_program_nones(p->n_units);
    c.made = sh_program_nones(p->n_units);
    c.out = sh_program_nones(p->n_units);
    c.make = sh_program_nones(p->n_units);
    c.send = sh_program_nones(p->n_units);
    c.place = sh_program_nones(c.update->n_ops);
    c.copy = sh_program_nones(p->n_tensors);
    find_places(&c);
    SH_TRY_OUT(is_whole(&c));
    rebuild(&c);
    sh_program_set_ops(p, first, c.op, c.n);
    sh_shard_renew_runs(&b->options, p);
    p->sections[update].repeat = 0;
out:
    free(c.use);
    free(c.begin);
    free(c.order);
    free(c.lead);
    free(c.sent);
    free(c.back);
    free(c.wave);
    free(c.made);
    free(c.out);
    free(c.make);
    free(c.send);
    free(c.place);
    free(c.copy);
    free(c.op);
    return rc;
}
