/* Products of one input that are computed as one: their matrices, or the parts of these that this rank has. */
#include "src/model/part.h"

/* The stretches of a product's outputs that are cut one by one, since each is cut into heads, or into widths of the
 * feed-forward part: a matrix may hold queries, keys and values, or gate and up. Returns their number. */
static int stretches_of(const struct decoder *d, enum sh_param_role role, int64_t out, int64_t n[SH_BANDS_MAX])
{
    int64_t kv = (int64_t)d->m->n_kv_heads * d->m->head_dim, ffn = d->m->ffn_dim;

    if (role == SH_PARAM_Q && !d->f->k && !d->f->qkv_by_head) {
        n[0] = out - 2 * kv;
        n[1] = n[2] = kv;
        return 3;
    }
    if (role == SH_PARAM_UP && out == 2 * ffn) {
        n[0] = n[1] = ffn;
        return 2;
    }
    n[0] = out;
    return 1;
}

/* The parts of a product that this rank has: of its outputs, or of its inputs if it writes into the residual stream. */
static void cut(const struct decoder *d, struct sh_adapt *s, int i)
{
    int64_t n[SH_BANDS_MAX] = {s->in}, first = 0;

    s->by_inputs = sh_param_info(s->which[i])->residual;
    s->n_bands[i] = s->by_inputs ? 1 : stretches_of(d, s->which[i], s->out[i], n);
    for (int k = 0; k < s->n_bands[i]; first += n[k++])
        s->band[i][k] = (struct sh_band){first + n[k] / d->tensor.ranks * d->tensor.place, n[k] / d->tensor.ranks};
}

/* Those of a stack that the family has. */
struct sh_adapt sh_model_products(const struct decoder *d, struct stack stack)
{
    struct sh_adapt s = {.family = d->f};
    int here = d->m->n_experts / d->spread.ranks;

    for (int i = stack.first; i < (int)stack.first + stack.n; i++) {
        s.which[s.n] = i;
        s.module[s.n] = sh_family_linear_name(d->f, i);
        s.experts = sh_param_info(i)->experts ? d->m->n_experts : 0;
        if (s.experts && d->spread.ranks > 1)
            s.held = (struct sh_band){(int64_t)here * d->spread.place, here};
        if (!s.module[s.n] || (i == SH_PARAM_V && d->m->keys_as_values) ||
            ((i == SH_PARAM_K || i == SH_PARAM_V) && sh_family_shares_kv(d->whole, d->e.block)))
            continue;
        sh_family_linear_dims(d->m, i, &s.in, &s.out[s.n]);
        if (d->tensor.ranks > 1 && i < SH_PARAM_LINEARS)
            cut(d, &s, s.n);
        s.n++;
    }
    return s;
}

/* As many of them as this rank has. */
static int hold_experts(struct decoder *d, const struct sh_adapt *s, int t)
{
    if (s->held.n)
        sh_emit_hold(&d->e, t, 0, 1, &s->held);
    return t;
}

/* [E,O,I], or [E,I,O]. */
static int declare_experts(struct decoder *d, const struct sh_adapt *s, int i)
{
    const int64_t *dim = d->f->experts_in_out ? DIMS(s->experts, s->in, s->out[i]) : DIMS(s->experts, s->out[i], s->in);

    return hold_experts(d, s, sh_model_declare(d, s->which[i], s->module[i], 3, dim));
}

/* [O,I], or [I,O] as GPT-2 stores it, or [E,O,I]. */
static int declare_matrix(struct decoder *d, const struct sh_adapt *s, int i)
{
    const int64_t *dim = d->f->w_in_out ? DIMS(s->in, s->out[i]) : DIMS(s->out[i], s->in);

    int w;

    if (s->experts)
        return declare_experts(d, s, i);
    w = sh_model_declare(d, s->which[i], s->module[i], 2, dim);
    if (s->n_bands[i])
        sh_emit_hold(&d->e, w, d->f->w_in_out != s->by_inputs, s->n_bands[i], s->band[i]);
    return w;
}

/* [O], or [E,O]. What is added to a sum over ranks is whole on each of them. */
static int declare_bias(struct decoder *d, const struct sh_adapt *s, int i)
{
    int b;

    if (s->experts)
        return hold_experts(d, s,
                            sh_model_declare(d, SH_PARAM_EXPERT_BIAS, s->module[i], 2, DIMS(s->experts, s->out[i])));
    b = sh_model_declare(d, SH_PARAM_BIAS, s->module[i], 1, &s->out[i]);
    if (s->n_bands[i] && !s->by_inputs)
        sh_emit_hold(&d->e, b, 0, s->n_bands[i], s->band[i]);
    return b;
}

/* The matrices are neighbours, followed by their biases, also neighbours. w [sum of O,I] or [E,O,I], b [sum of O] or
 * SH_NONE. */
struct weights sh_model_declare_stack(struct decoder *d, struct stack stack)
{
    struct weights l = {.w = SH_NONE, .b = SH_NONE};
    struct sh_adapt s = sh_model_products(d, stack);

    for (int i = 0; i < s.n; i++) {
        int w = declare_matrix(d, &s, i);

        l.w = i ? l.w : w;
    }
    for (int i = 0; sh_family_linear_bias(d->m, stack.first) && i < s.n; i++) {
        int b = declare_bias(d, &s, i);

        l.b = i ? l.b : b;
    }
    if (s.n <= 1)
        return l;
    l.w = sh_emit_stack(&d->e, l.w, s.n);
    if (l.b != SH_NONE)
        l.b = sh_emit_stack(&d->e, l.b, s.n);
    return l;
}
