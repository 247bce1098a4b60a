/* The operations of experts, over the rows that have come in each wave. */
#include "src/pass/dispatch/dispatch.h"

#include <stdlib.h>

/* The gradient of a leaf, made when it is first needed. */
static int leaf_grad(struct sh_dispatch *d, int t, int leaf)
{
    struct sh_tensor grad = d->p->tensors[t];

    for (int i = 0; i < d->p->n_tensors && leaf; i++)
        if (d->p->tensors[i].grad_of == grad.grad_of && d->p->tensors[i].leaf == leaf)
            return i;
    grad.leaf = leaf;
    return leaf ? sh_program_add_tensor(d->p, &grad) : t;
}

/* One operation for all groups of rows, or one for the groups of each rank from which they come. */
static void add_weight_gradients(struct sh_dispatch *d, const struct sh_dispatch_route *r, struct sh_op op, int wave)
{
    int whole = op.out[0], leaves = d->p->units[d->p->params[d->p->tensors[whole].grad_of].unit].leaves;
    int64_t here = r->plan->attr.route.experts / d->ranks;

    op.attr.accumulate |= wave > 0;
    for (int leaf = 0; leaf < leaves; leaf++) {
        if (leaves > 1) {
            op.in[op.kind == SH_OP_EXPERT_BIAS_BWD ? 1 : 2] =
                sh_dispatch_slice(d, r->groups[wave], leaf * here, here + 1);
            op.out[0] = leaf_grad(d, whole, leaf);
        }
        sh_program_add_op(d->p, &op);
    }
}

static int need(struct sh_dispatch *d, const struct sh_dispatch_route *r, const struct sh_op *of, int t, int wave);

/* An operand where the experts are. */
static int operand(struct sh_dispatch *d, const struct sh_dispatch_route *r, const struct sh_op *of, int t, int wave)
{
    if (t == SH_NONE || t == r->plan->out[0]) /* rows that travel lie in the order of the plan */
        return SH_NONE;
    if (t == r->plan->out[2])
        return r->groups[wave];
    return d->p->tensors[sh_tensor_root(d->p, t)].param == SH_NONE ? need(d, r, of, t, wave) : t;
}

/* An operation over the rows that have come in a wave. */
static void compute(struct sh_dispatch *d, const struct sh_dispatch_route *r, const struct sh_op *old,
                    enum sh_phase phase, int wave)
{
    struct sh_op op = *old;

    op.phase = phase;
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        op.in[k] = operand(d, r, &op, old->in[k], wave);
    if (op.kind == SH_OP_ADD) {
        op.kind = SH_OP_ROW_ADD;
        op.in[2] = r->groups[wave];
    }
    if (sh_op_has_rows(op.kind))
        op.attr.rows.expected = wave ? -1 : r->rows;
    if (sh_dispatch_activates(op.kind))
        op.in[3] = r->groups[wave];
    if (sh_dispatch_activates_back(op.kind))
        op.in[4] = r->groups[wave];
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op.out[k] != SH_NONE && d->p->tensors[op.out[k]].grad_of == SH_NONE)
            d->away[wave][old->out[k]] = op.out[k] = sh_dispatch_add_like(d, old->out[k], r, r->room, "wave", wave);
    if (op.out[0] != SH_NONE && d->p->tensors[op.out[0]].grad_of != SH_NONE)
        add_weight_gradients(d, r, op, wave);
    else
        sh_program_add_op(d->p, &op);
}

/* What is sent of a tensor. The backward of later waves, which mostly have no rows, does not keep rows in order for that:
 * there are k times as many as tokens, and the first wave's are kept where they went. */
static int at_home(struct sh_dispatch *d, const struct sh_dispatch_route *r, const struct sh_op *of, int t, int wave)
{
    bool again = wave && of->phase != SH_PHASE_FORWARD && d->gather[t] != SH_NONE;
    struct sh_op op;

    if (!again && !d->by_token[t])
        return t;
    if (d->sorted[t] != SH_NONE)
        return d->sorted[t];
    d->sorted[t] = sh_dispatch_add_like(d, t, r, r->rows, "rows", wave);
    if (!again) {
        sh_dispatch_by_row(d, of, t, r->plan->out[0], d->sorted[t]);
        return d->sorted[t];
    }
    op = d->old[d->gather[t]];
    op.phase = SH_PHASE_RECOMPUTE;
    op.out[0] = d->sorted[t];
    sh_program_add_op(d->p, &op);
    return d->sorted[t];
}

/* A tensor where the experts are: it is there; or it is computed again; or it is sent. */
static int need(struct sh_dispatch *d, const struct sh_dispatch_route *r, const struct sh_op *of, int t, int wave)
{
    int home;

    if (d->away[wave][t] != SH_NONE)
        return d->away[wave][t];
    if (d->producer[t] != SH_NONE) {
        compute(d, r, &d->old[d->producer[t]], SH_PHASE_RECOMPUTE, wave);
        return d->away[wave][t];
    }
    home = at_home(d, r, of, t, wave);
    d->away[wave][t] = wave || d->near[t] == SH_NONE ? sh_dispatch_add_like(d, t, r, r->room, "wave", wave)
                                                     : d->near[t];
    sh_dispatch_exchange(d, r, of, wave, home, d->away[wave][t], false);
    return d->away[wave][t];
}

/* Let the results of a wave that are wanted at home travel back.
 *   home  [n_tensors] where they arrive, SH_NONE: not known yet */
static void bring_home(struct sh_dispatch *d, const struct sh_dispatch_run *run, int i, int wave, int *home)
{
    const struct sh_op *op = &d->old[i];

    for (int k = 0; k < SH_OP_MAX_OUT; k++) {
        int t = op->out[k];

        if (t == SH_NONE || d->p->tensors[t].grad_of != SH_NONE || !d->wanted[t])
            continue;
        if (home[t] == SH_NONE)
            home[t] = d->by_token[t] ? sh_dispatch_add_like(d, t, run->route, run->route->rows, "rows", 0) : t;
        if (wave == 0 && home[t] == t && !d->whole[t])
            d->near[t] = d->away[0][t];
        sh_dispatch_exchange(d, run->route, op, wave, d->away[wave][t], home[t], true);
    }
}

/* Let what a run needs of other operations travel, if it is there: first what is needed first. */
void sh_dispatch_send_ahead(struct sh_dispatch *d, const struct sh_dispatch_run *run, int wave)
{
    for (int i = run->first; i <= run->last; i++)
        for (int k = 0; run->in[i - run->first] && k < SH_OP_MAX_IN; k++) {
            int t = d->old[i].in[k];

            if (t != SH_NONE && t != run->route->plan->out[0] && t != run->route->plan->out[2] && d->made[t])
                need(d, run->route, &d->old[i], t, wave);
        }
}

/* Only what the first wave has stays. */
static void forget(struct sh_dispatch *d)
{
    for (int w = 1; w < d->n_waves; w++)
        for (int t = 0; t < d->n_tensors; t++)
            d->away[w][t] = SH_NONE;
}

/* All waves of a run, one after the other. What comes back is complete after the last one. */
void sh_dispatch_emit_waves(struct sh_dispatch *d, const struct sh_dispatch_run *run)
{
    int *home = sh_program_nones(d->n_tensors), place = run->route->plan->out[1];

    for (int w = 0; w < run->route->waves; w++) {
        sh_dispatch_send_ahead(d, run, w);
        for (int i = run->first; i <= run->last; i++)
            if (run->in[i - run->first])
                compute(d, run->route, &d->old[i], d->old[i].phase, w);
        for (int i = run->first; i <= run->last; i++)
            if (run->in[i - run->first])
                bring_home(d, run, i, w, home);
    }
    for (int i = run->first; i <= run->last; i++)
        for (int k = 0; run->in[i - run->first] && k < SH_OP_MAX_OUT; k++) {
            int t = d->old[i].out[k];

            if (t != SH_NONE && home[t] != SH_NONE && home[t] != t)
                sh_dispatch_by_row(d, &d->old[i], home[t],
                                   sh_dispatch_slice(d, place, 0, sh_tensor_elems(&d->p->tensors[place])), t);
        }
    forget(d);
    free(home);
}
