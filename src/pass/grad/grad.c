/* The backward: one rule for each kind of operation, applied from the last operation to the first.
 *
 * Frozen parameters have no gradient, nor does anything that depends on no trained parameter: the backward ends at the
 * first use of a trained one. */
#include "src/base/mem.h"
#include "src/pass/grad/grad.h"

#include <stdlib.h>

/* In the order of the forward: an output depends on whatever an input depends on, unless the
 * operation stops that. */
static void find_dependent(struct sh_grad *g, int n_forward, int n_tensors)
{
    for (int t = 0; t < n_tensors; t++)
        g->depends[t] = g->p->tensors[t].param != SH_NONE && g->p->params[g->p->tensors[t].param].trainable;
    for (int i = 0; i < n_forward; i++) {
        const struct sh_op *op = &g->p->ops[i];
        bool any = op->kind == SH_OP_RECEIVE; /* earlier stages train */

        for (int k = 0; k < SH_OP_MAX_IN && !sh_op_info(op->kind)->stops; k++)
            any = any || sh_grad_wanted(g, op->in[k]);
        for (int k = 0; k < SH_OP_MAX_OUT && any; k++)
            if (op->out[k] != SH_NONE)
                g->depends[sh_tensor_root(g->p, op->out[k])] = true;
    }
}

static sh_grad_rule *const rules[SH_OP_ROOM] = {
#define ROW(kind, name) [SH_OP_##kind] = sh_grad_rule_##name,
    SH_GRAD_RULES(ROW)
#undef ROW
};

static sh_grad_rule *rule_of(enum sh_op_kind kind)
{
    const struct sh_op_info *info = sh_op_info(kind);

    if (!info->backward)
        return rules[kind];
    return info->async ? sh_grad_rule_exchange : sh_grad_rule_pointwise;
}

/* For the test that every kind that a model emits has a rule. */
bool sh_pass_grad_knows(enum sh_op_kind kind)
{
    return rule_of(kind) != NULL;
}

/* Emit the backward of operation g->fwd: nothing if it depends on no trained parameter. */
static sh_rc run_rule(const struct sh_build *b, struct sh_grad *g)
{
    bool any = g->fwd.kind == SH_OP_SEND && sh_grad_wanted(g, g->fwd.in[0]);

    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        any = any || sh_grad_wanted(g, g->fwd.out[k]);
    if (g->fwd.kind == SH_OP_SEND && !any)
        return sh_fail(
            SH_E_USAGE,
            "parallelism.pipeline_parallel_degree=%d: no block before the first border between stages has an "
            "adapter, but each stage takes part in the backward; give lora.target_modules or target_parameters that "
            "these blocks have, another pipeline_parallel_schedule, or fewer stages",
            sh_group_size(&b->options.mesh, b->options.mesh.pipeline));
    if (!any)
        return SH_OK;
    if (g->fwd.kind == SH_OP_HEAD_LOSS && sh_grad_wanted(g, g->fwd.in[3]))
        return sh_fail(SH_E_BUG,
                       "operation %d (%s): no gradient passes to its weight, which depends on trained parameters",
                       g->fwd_index, sh_op_info(g->fwd.kind)->name);
    if (!rule_of(g->fwd.kind))
        return sh_fail(SH_E_BUG, "operation %d (%s) has no backward rule", g->fwd_index, sh_op_info(g->fwd.kind)->name);
    rule_of(g->fwd.kind)(g);
    return SH_OK;
}

/* Append the backward to the forward's operations. Rules add operations, so the walk uses the forward's original
 * length. */
sh_rc sh_pass_grad(const struct sh_build *b, struct sh_program *micro)
{
    struct sh_grad g = {.p = micro};
    int n_forward = micro->n_ops, n_of = micro->n_tensors;
    sh_rc rc = SH_OK;

    g.of = sh_calloc((size_t)n_of, sizeof *g.of);
    g.depends = sh_calloc((size_t)n_of, sizeof *g.depends);
    for (int i = 0; i < n_of; i++)
        g.of[i] = SH_NONE;
    find_dependent(&g, n_forward, n_of);
    for (int i = n_forward - 1; i >= 0 && rc == SH_OK; i--) {
        g.fwd = micro->ops[i];
        g.fwd_index = i;
        rc = run_rule(b, &g);
    }
    free(g.of);
    free(g.depends);
    return rc;
}
