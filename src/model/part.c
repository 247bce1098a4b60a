#include "src/model/part.h"

#include <math.h>

/* Norms start as the identity. Matrices that write into the residual stream start smaller by 1/sqrt(2 L), or 1/sqrt(L) with one branch a block, so that the
 * stream keeps its variance over depth (Radford et al. 2019, section 2.3).
 *   std  out  of normal values */
static enum sh_init init_of(const struct decoder *d, enum sh_param_role role, float *std)
{
    const struct sh_param_info *info = sh_param_info(role);

    /* Heads that forget soon and late (doc/decisions/0077, 0087). */
    *std = role == SH_PARAM_DECAY ? 1 : role == SH_PARAM_STEP && d->f->scan ? 2 : 0;
    if (*std > 0)
        return SH_INIT_NORMAL;
    if (role == SH_PARAM_STEP || role == SH_PARAM_SKIP || role == SH_PARAM_GATED_NORM || role == SH_PARAM_LAYER_SCALE)
        return SH_INIT_ONE;
    if (info->vector)
        return role == SH_PARAM_NORM && !d->f->norm_plus_one ? SH_INIT_ONE : SH_INIT_ZERO;
    *std = (float)d->m->init_std;
    if (info->residual)
        *std /= sqrtf((d->f->single ? 1.0f : 2.0f) * (float)d->m->n_layers);
    return SH_INIT_NORMAL;
}

int sh_model_declare(struct decoder *d, enum sh_param_role role, const char *module, int ndim, const int64_t *dim)
{
    char name[SH_NAME_MAX];
    float std;
    enum sh_init init = init_of(d, role, &std);

    sh_family_param_name(d->f, d->e.block, module, role, name, sizeof name);
    return sh_emit_param(&d->e, role, name, ndim, dim, init, std);
}

/* Without adapters sh_emit_lora() returns its input. */
int sh_model_linear(struct decoder *d, int x, struct weights l)
{
    return sh_emit_lora(&d->e, sh_emit_linear(&d->e, x, l.w, l.b, d->f->w_in_out), x, &l.lora);
}

struct weights sh_model_declare_norm(struct decoder *d, const char *module)
{
    int64_t dim = d->m->dim;
    struct weights n = {.w = SH_NONE, .b = SH_NONE};

    if (module)
        n.w = sh_model_declare(d, SH_PARAM_NORM, module, 1, &dim);
    if (module && d->f->layer_norm && !d->f->norm_no_bias)
        n.b = sh_model_declare(d, SH_PARAM_BIAS, module, 1, &dim);
    return n;
}

struct sh_emit_norm sh_model_norm_kind(const struct decoder *d)
{
    return (struct sh_emit_norm){
        .rms = !d->f->layer_norm, .plus_one = d->f->norm_plus_one, .eps = (float)d->m->norm_eps};
}

int sh_model_norm(struct decoder *d, int x, struct weights n)
{
    return sh_emit_norm(&d->e, x, n.w, n.b, sh_model_norm_kind(d));
}

int sh_model_scaled(struct decoder *d, int x, double by)
{
    return by == 0 || by == 1 ? x : sh_emit_scale(&d->e, x, (float)by);
}

enum sh_op_kind sh_model_activation(const struct decoder *d)
{
    return d->f->relu2      ? SH_OP_SQUARED_RELU
           : d->f->gelu_erf ? SH_OP_GELU_ERF
           : d->f->gelu     ? SH_OP_GELU
           : d->f->geglu    ? SH_OP_GEGLU
                            : SH_OP_SWIGLU;
}
