/* Heads with a state in place of attention. */
#include "src/model/part.h"

bool sh_model_has_delta(const struct decoder *d)
{
    return sh_family_has_delta(d->m, d->e.block);
}

bool sh_model_has_scan(const struct decoder *d)
{
    return sh_model_has_delta(d) && d->f->scan;
}

/* The three numbers of each head lie end to end: SCAN reads them as one operand. */
static void declare_scan(struct decoder *d, struct branch *b)
{
    int64_t heads = d->m->linear_value_heads, columns = sh_family_delta_columns(d->m);
    int64_t made = heads * d->m->linear_value_dim;

    b->conv = sh_model_declare(d, SH_PARAM_CONV, d->f->delta_conv, 3, DIMS(columns, 1, d->m->linear_conv_size));
    b->conv_bias = sh_model_declare(d, SH_PARAM_BIAS, d->f->delta_conv, 1, &columns);
    b->per_head = sh_model_declare(d, SH_PARAM_DECAY, d->f->delta, 1, &heads);
    sh_model_declare(d, SH_PARAM_STEP, d->f->delta, 1, &heads);
    sh_model_declare(d, SH_PARAM_SKIP, d->f->delta, 1, &heads);
    b->per_head = sh_emit_stack(&d->e, b->per_head, 3);
    b->gated_norm = sh_model_declare(d, SH_PARAM_GATED_NORM, d->f->delta_norm, 1, &made);
}

void sh_model_delta_declare(struct decoder *d, struct branch *b)
{
    const struct sh_model *m = d->m;
    int64_t heads = m->linear_value_heads, width = m->linear_value_dim;

    if (sh_model_has_scan(d)) {
        declare_scan(d, b);
        return;
    }
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

/* One product makes gates [N,HV], what the convolution sees [N,HV+2KD], and steps [N,H]. */
int sh_model_scan(struct decoder *d, int x, const struct branch *b)
{
    int64_t columns = sh_family_delta_columns(d->m), made = (int64_t)d->scan.heads * d->scan.value_dim;
    struct sh_emit_delta conv = {.conv = b->conv, .conv_bias = b->conv_bias};
    struct sh_emit_scan how = d->scan;
    int gate[2], rest[2], y;

    how.per_head = b->per_head;
    how.norm = b->gated_norm;
    sh_emit_split(&d->e, sh_model_linear(d, x, b->stack[IN]), made, gate);
    sh_emit_split(&d->e, gate[1], columns, rest);
    y = sh_emit_scan(&d->e, sh_emit_short_conv(&d->e, rest[0], &conv), rest[1], &how);
    return sh_model_linear(d, sh_emit_gate_norm(&d->e, y, gate[0], &how), b->stack[OUT]);
}
