/* Weights of units that are gathered in blocks: the section unpacks or decodes one right before each operation that reads
 * it, into memory that is free again after that operation. */
#include "src/pass/shard/shard.h"

#include <string.h>

/* Of experts, those that have rows: in a wave there may be none. */
static int unpack(const struct sh_shard_unpacked *u, const struct sh_op *next, int t, int full, int rows)
{
    const struct sh_tensor *m = &u->micro->tensors[t];
    const struct sh_param *param = &u->micro->params[u->micro->tensors[sh_tensor_root(u->micro, t)].param];
    struct sh_tensor weight = sh_tensor_make(SH_MEM_UNPACKED, u->out->act, m->ndim, m->dim, "%s", m->name);
    struct sh_op op = sh_program_op(SH_OP_UNPACK);

    op.in[0] = sh_shard_stretch(u->out, &u->out->units[param->unit], full, param->unit_elems, sh_tensor_elems(m));
    if (rows != SH_NONE) {
        op.in[1] = rows;
        op.attr.rows.expected = next->attr.rows.expected < 0 ? -1 : 0;
    }
    op.out[0] = sh_program_add_tensor(u->out, &weight);
    op.phase = next->phase;
    op.block = next->block;
    sh_program_append(u->out, op);
    return op.out[0];
}

/* Blocks are of the unit, so a weight may begin and end within one. */
static int decode(const struct sh_shard_unpacked *u, const struct sh_op *next, int t, int full)
{
    const struct sh_tensor *m = &u->micro->tensors[t];
    const struct sh_param *param = &u->micro->params[u->micro->tensors[sh_tensor_root(u->micro, t)].param];
    int64_t before = param->unit_elems % SH_CODE8_ELEMS, first = param->unit_elems - before;
    int64_t n = sh_layout_chunk(before + sh_tensor_elems(m), 1);
    struct sh_tensor blocks = sh_tensor_make(SH_MEM_UNPACKED, u->out->act, 1, &n, "%s", m->name);
    struct sh_op op = sh_program_op(SH_OP_DECODE);

    op.in[0] = sh_shard_stretch(u->out, &u->out->units[param->unit], full, first, n);
    op.out[0] = sh_program_add_tensor(u->out, &blocks);
    op.phase = next->phase;
    op.block = next->block;
    sh_program_append(u->out, op);
    return sh_shard_view(u->out, op.out[0], before, m->ndim, m->dim, m->name);
}

static int restore(const struct sh_shard_unpacked *u, const struct sh_op *next, int t, int full, int rows)
{
    int unit = u->micro->params[u->micro->tensors[sh_tensor_root(u->micro, t)].param].unit;

    return u->out->units[unit].coded ? decode(u, next, t, full) : unpack(u, next, t, full, rows);
}

/* Each tile reads all weights of the run, so they stay until its end. */
int sh_shard_unpacked(struct sh_shard_unpacked *u, const struct sh_op *next, int t, int full, int rows)
{
    if (!next->tiles)
        return restore(u, next, t, full, rows);
    for (int i = 0; i < u->micro->n_tensors && next->tiles != u->tiles; i++)
        u->weight[i] = SH_NONE;
    u->tiles = next->tiles;
    if (u->weight[t] == SH_NONE)
        u->weight[t] = restore(u, next, t, full, rows);
    return u->weight[t];
}
