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
 * A run skips the operations of phase UPDATE if no update is pending. */
#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/pass/shard/shard.h"

#include <stdlib.h>

struct carry {
    const struct sh_build *b;
    struct sh_program *p;
    const struct sh_section *update, *first;
    int *use;     /* [units] operation of the micro-step that is the unit's first use; SH_NONE: it has no update */
    int *begin;   /* [units] the operation before which its update stands */
    int *lead;    /* [units] the unit with which it is updated at once, the first of its wave; else itself */
    int *order;   /* [n_order] those units, if they have an update, in the order of first use */
    bool *listed; /* [units] it is among them */
    int n_order;
    int *place; /* [operations of UPDATE] where the operation is in the micro-step now */
    int *copy;  /* [tensors of the old program] the tensor that replaces it here; SH_NONE: none yet */
    struct sh_op *op;
    int n, cap; /* the new micro-step */
};

static int *filled(int n)
{
    int *a = sh_calloc((size_t)n + 1, sizeof *a);

    for (int i = 0; i < n; i++)
        a[i] = SH_NONE;
    return a;
}

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

/* Units that exchange matrices in one wave are updated together, ahead of the first use of any. */
static void find_waves(struct carry *c)
{
    const struct sh_op *first = NULL;

    for (int i = 0; i < c->p->n_units; i++)
        c->lead[i] = i;
    for (int i = 0; i < c->update->n_ops; i++) {
        const struct sh_op *op = op_of(c, c->update, i);

        if (!sh_program_cuts(c->p, op))
            continue;
        if (!first || first->attr.exchange.wave != op->attr.exchange.wave)
            first = op;
        c->lead[op->unit] = first->unit;
    }
}

static void find_places(struct carry *c)
{
    int ahead = c->b->options.forward_prefetch;

    find_waves(c);

    for (int i = 0; i < c->update->n_ops; i++) {
        const struct sh_op *op = op_of(c, c->update, i);

        if ((!sh_op_info(op->kind)->runs && op->kind != SH_OP_ROUTE_BIAS) || c->use[op->unit] != SH_NONE)
            continue;
        c->use[op->unit] = first_use(c, &c->p->units[op->unit]);
    }
    for (int i = 0; i < c->p->n_units; i++)
        if (c->use[i] != SH_NONE && c->use[i] < c->use[c->lead[i]])
            c->use[c->lead[i]] = c->use[i];
    for (int i = 0; i < c->update->n_ops; i++) {
        int unit = op_of(c, c->update, i)->unit;

        if (unit != SH_NONE && c->use[unit] != SH_NONE && c->lead[unit] == unit && !c->listed[unit]) {
            c->listed[unit] = true;
            put_in_order(c, unit);
        }
    }
    for (int k = 0; k < c->n_order; k++)
        c->begin[c->order[k]] = c->use[c->order[k > ahead ? k - ahead : 0]];
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

static bool is_part_of(const struct carry *c, int i, int unit)
{
    int of = op_of(c, c->update, i)->unit;

    return of != SH_NONE && c->lead[of] == unit;
}

/* Carry the waits for gathers of one unit's update, or of its wave's, or the rest of that update. */
static void carry_unit(struct carry *c, int unit, bool waits)
{
    for (int i = 0; i < c->update->n_ops; i++)
        if (is_part_of(c, i, unit) && waits_for_gather(c, i) == waits)
            carry_op(c, i);
}

/* Carry everything that stands before operation `at` of the micro-step. */
static void carry_to(struct carry *c, int at)
{
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
    int *place = filled(c->first->n_ops);

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
    c.use = filled(p->n_units);
    c.begin = filled(p->n_units);
    c.lead = filled(p->n_units);
    c.listed = sh_calloc((size_t)p->n_units + 1, sizeof *c.listed);
    c.order = filled(p->n_units);
    c.place = filled(c.update->n_ops);
    c.copy = filled(p->n_tensors);
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
    free(c.listed);
    free(c.place);
    free(c.copy);
    free(c.op);
    return rc;
}
