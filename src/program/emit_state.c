/* Heads with a state in place of attention: short convolutions, the gated delta rule, scans, and their norms. */
#include "src/program/emit_op.h"

#include "kernels/scan.h"

/* The port that says what comes before a token: its position, or where its document begins. */
static int before(const struct sh_emit *e)
{
    return e->p->port[e->cache ? SH_PORT_AT : SH_PORT_DOCS];
}

int sh_emit_short_conv(struct sh_emit *e, int x, const struct sh_emit_delta *d)
{
    struct sh_op op = OP(e, e->cache ? SH_OP_SHORT_CONV_CACHE : SH_OP_SHORT_CONV, sh_emit_seq(e, x), d->conv, before(e),
                         d->conv_bias > 0 ? d->conv_bias : SH_NONE);
    int64_t tail = sh_emit_dims(e, d->conv)[2] - 1;

    if (e->cache)
        op.in[4] = e->p->port[SH_PORT_COUNT];
    if (e->cache && tail)
        op.out[1] = sh_emit_keep(e, e->p->act, 3, DIMS(e->batch, tail, sh_emit_dims(e, x)[1]), "tail");
    op.out[0] = sh_emit_act(e, 3, sh_emit_dims(e, op.in[0]), "conv");
    return sh_emit_flat(e, sh_emit_append(e, &op));
}

static void set_delta(struct sh_op *op, const struct sh_emit_delta *d)
{
    op->attr.delta.key_heads = d->key_heads;
    op->attr.delta.heads = d->heads;
    op->attr.delta.key_dim = d->key_dim;
    op->attr.delta.value_dim = d->value_dim;
    op->attr.delta.eps = d->eps;
}

/* Of `elems` numbers in f32: those with which chunks begin, since the backward makes the others again from them; with a cache
 * the last one. */
static int states_of(struct sh_emit *e, int64_t elems, int chunk)
{
    if (e->cache)
        return sh_emit_keep(e, SH_F32, 2, DIMS(e->batch, elems), "state");
    return sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 3, DIMS(e->batch, (e->seq + chunk - 1) / chunk, elems), "states");
}

int sh_emit_gated_delta(struct sh_emit *e, int x, int ba, const struct sh_emit_delta *d)
{
    int rows = sh_emit_seq(e, x), gates = sh_emit_seq(e, ba);
    struct sh_op op =
        OP(e, e->cache ? SH_OP_GATED_DELTA_CACHE : SH_OP_GATED_DELTA, rows, gates, d->a_log, d->dt, before(e));

    set_delta(&op, d);
    if (e->cache)
        op.in[5] = e->p->port[SH_PORT_COUNT];
    op.out[0] = sh_emit_act(e, 3, DIMS(e->batch, e->seq, (int64_t)d->heads * d->value_dim), "delta");
    op.out[1] = states_of(e, (int64_t)d->heads * d->key_dim * d->value_dim, SH_DELTA_CHUNK);
    return sh_emit_flat(e, sh_emit_append(e, &op));
}

int sh_emit_gated_norm(struct sh_emit *e, int x, int z, const struct sh_emit_delta *d)
{
    struct sh_op op = OP(e, SH_OP_GATED_NORM, x, z, d->norm);

    set_delta(&op, d);
    op.out[0] = sh_emit_act(e, 2, sh_emit_dims(e, x), "gated norm");
    op.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(sh_emit_dims(e, x)[0], d->heads), "rstd");
    return sh_emit_append(e, &op);
}

int sh_emit_scan(struct sh_emit *e, int x, int dt, const struct sh_emit_scan *s)
{
    int rows = sh_emit_seq(e, x), steps = sh_emit_seq(e, dt);
    struct sh_op op = OP(e, e->cache ? SH_OP_SCAN_CACHE : SH_OP_SCAN, rows, steps, s->per_head, before(e));
    int64_t width = (int64_t)s->heads * s->value_dim;

    op.attr.delta.key_heads = s->groups;
    op.attr.delta.heads = s->heads;
    op.attr.delta.key_dim = s->key_dim;
    op.attr.delta.value_dim = s->value_dim;
    op.attr.delta.least = s->least;
    if (e->cache)
        op.in[4] = e->p->port[SH_PORT_COUNT];
    op.out[0] = sh_emit_act(e, 3, DIMS(e->batch, e->seq, width), "scan");
    op.out[1] = states_of(e, width * s->key_dim, SH_SCAN_CHUNK);
    return sh_emit_flat(e, sh_emit_append(e, &op));
}

int sh_emit_gate_norm(struct sh_emit *e, int x, int z, const struct sh_emit_scan *s)
{
    struct sh_op op = OP(e, SH_OP_GATE_NORM, x, z, s->norm);

    op.attr.delta.heads = s->groups;
    op.attr.delta.value_dim = (int)(sh_emit_dims(e, x)[1] / s->groups);
    op.attr.delta.eps = s->eps;
    op.out[0] = sh_emit_act(e, 2, sh_emit_dims(e, x), "gated norm");
    op.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(sh_emit_dims(e, x)[0], s->groups), "rstd");
    return sh_emit_append(e, &op);
}
