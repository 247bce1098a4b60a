/* A unit whose gradient is made early but for some rows: the output matrix is done when the backward begins, and where it
 * is the embedding too, that adds to the rows of the micro-step's tokens when all the rest is over. In a segment such a
 * unit is reduced early, behind all of the backward, but for those rows and what the embedding makes besides, which
 * follow. Each element is summed once, from the same gradients, so the bits are the same. */
#include "src/base/exact.h"
#include "src/base/mem.h"
#include "src/pass/shard.h"

#include <stdlib.h>

/* The unit of the parameter whose gradient output k is; SH_NONE: it is none. */
static int unit_of_grad(const struct sh_program *micro, const struct sh_op *op, int k)
{
    int param = op->out[k] == SH_NONE ? SH_NONE : micro->tensors[op->out[k]].grad_of;

    return param == SH_NONE ? SH_NONE : micro->params[param].unit;
}

static bool writes_unit(const struct sh_program *micro, const struct sh_op *op, int unit)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (unit_of_grad(micro, op, k) == unit)
            return true;
    return false;
}

/* Branches of a tree over micro-steps are added to a gradient when it is whole. */
static bool possible(const struct sh_pass_options *opt)
{
    bool direct = opt->strategy.sync_last_only || opt->micro_steps == 1;

    return opt->segment_ranks && sh_group_size(&opt->mesh, opt->mesh.shard) > 1 && opt->reduce == SH_F32 &&
           direct && !(opt->reproducible && opt->micro_steps > 1);
}

void sh_shard_early(const struct sh_program *micro, const struct sh_pass_options *opt, int *early)
{
    bool *rows = sh_calloc((size_t)micro->n_units + 1, sizeof *rows); /* come after it */

    for (int unit = 0; unit < micro->n_units; unit++)
        early[unit] = SH_NONE;
    for (int i = 0; i < micro->n_ops && possible(opt); i++)
        for (int k = 0; k < SH_OP_MAX_OUT; k++) {
            int unit = unit_of_grad(micro, &micro->ops[i], k);

            if (unit == SH_NONE)
                continue;
            rows[unit] = micro->ops[i].kind == SH_OP_EMBED_BWD;
            early[unit] = rows[unit] ? early[unit] : i;
        }
    for (int unit = 0; unit < micro->n_units; unit++)
        early[unit] = rows[unit] ? early[unit] : SH_NONE;
    free(rows);
}

bool sh_shard_whole_blocks(const struct sh_op_rows *rows)
{
    return rows->first % SH_EXACT_BLOCK == 0 && rows->elems % SH_EXACT_BLOCK == 0 && rows->begin % SH_EXACT_BLOCK == 0 &&
           rows->end % SH_EXACT_BLOCK == 0;
}

struct sh_op_rows sh_shard_rows(const struct sh_program *micro, int unit)
{
    struct sh_op_rows rows = {0};

    for (int i = 0; i < micro->n_ops; i++) {
        const struct sh_op *op = &micro->ops[i];

        for (int k = 0; k < 2 && op->kind == SH_OP_EMBED_BWD && writes_unit(micro, op, unit); k++) {
            const struct sh_param *w =
                op->out[k] == SH_NONE ? NULL : &micro->params[micro->tensors[op->out[k]].grad_of];

            if (w && k == 0)
                rows.first = w->unit_elems, rows.count = w->dim[0], rows.elems = w->dim[1];
            else if (w)
                rows.begin = w->unit_elems, rows.end = w->unit_elems + w->elems;
        }
    }
    return rows;
}
