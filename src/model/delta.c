#include "src/model/delta.h"

#include "src/config/family.h"

bool sh_model_has_delta(const struct decoder *d)
{
    return sh_family_has_delta(d->m, d->e.block);
}

void sh_model_delta_declare(struct decoder *d, struct branch *b)
{
    const struct sh_model *m = d->m;
    int64_t heads = m->linear_value_heads, width = m->linear_value_dim;

    b->conv = sh_model_declare(d, SH_PARAM_CONV, d->f->delta_conv, 3,
                               DIMS(sh_family_delta_columns(m), 1, m->linear_conv_size));
    b->a_log = sh_model_declare(d, SH_PARAM_DECAY, d->f->delta, 1, &heads);
    b->dt = sh_model_declare(d, SH_PARAM_STEP, d->f->delta, 1, &heads);
    b->gated_norm = sh_model_declare(d, SH_PARAM_GATED_NORM, d->f->delta_norm, 1, &width);
}

/* Queries, keys and values [N,2KD+HV], gates [N,HV], and b and a of each head [N,2H]. */
int sh_model_delta(struct decoder *d, int x, const struct branch *b)
{
    struct sh_emit_delta how = d->delta;
    int qkv, gate, ba;

    how.conv = b->conv;
    how.a_log = b->a_log;
    how.dt = b->dt;
    how.norm = b->gated_norm;
    qkv = sh_emit_short_conv(&d->e, sh_model_linear(d, x, b->stack[DELTA_QKV]), &how);
    ba = sh_model_linear(d, x, b->stack[DELTA_BA]);
    qkv = sh_emit_gated_delta(&d->e, qkv, ba, &how);
    gate = sh_model_linear(d, x, b->stack[DELTA_Z]);
    return sh_model_linear(d, sh_emit_gated_norm(&d->e, qkv, gate, &how), b->stack[DELTA_OUT]);
}
