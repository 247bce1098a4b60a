/* LayerNorm: xhat = (x - mean) rstd, y = xhat w + b, rstd = 1 / sqrt(var + eps) with the biased variance. RMSNorm
 * (attr->norm.rms): the same with mean = 0, so that var is the mean square. Statistics are taken over C. With
 * attr->norm.plus_one, 1 + w takes the place of w. */
#include "kernels/ref/ref.h"

#include <math.h>

static double weight(const struct sh_op_call *call, const struct sh_operand *w, int64_t c)
{
    return sh_ref_get(w, c) + (call->attr->norm.plus_one ? 1 : 0);
}

sh_rc sh_ref_norm(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1], *b = &call->in[2];
    const struct sh_operand *y = &call->out[0], *rstd_out = &call->out[1], *mean_out = &call->out[2];
    int64_t C = sh_ref_elems(w), N = sh_ref_elems(x) / C;

    for (int64_t n = 0; n < N; n++) {
        double mean = 0, var = 0;
        for (int64_t c = 0; c < C && !call->attr->norm.rms; c++)
            mean += sh_ref_get(x, n * C + c) / (double)C;
        for (int64_t c = 0; c < C; c++)
            var += pow(sh_ref_get(x, n * C + c) - mean, 2) / (double)C;
        double rstd = 1 / sqrt(var + (double)call->attr->norm.eps);
        for (int64_t c = 0; c < C; c++)
            sh_ref_set(y, n * C + c,
                       (sh_ref_get(x, n * C + c) - mean) * rstd * weight(call, w, c) +
                           (b->data ? sh_ref_get(b, c) : 0));
        sh_ref_set(rstd_out, n, rstd);
        if (mean_out->data)
            sh_ref_set(mean_out, n, mean);
    }
    return SH_OK;
}

/* What the backward pass needs of one element. */
struct element {
    double xhat, g; /* g = dy w: the gradient of xhat */
};

/* Recomputed at each use: the reference keeps nothing. */
static struct element element_at(const struct sh_op_call *call, int64_t n, int64_t c, int64_t C)
{
    double mean = call->in[4].data ? sh_ref_get(&call->in[4], n) : 0;
    return (struct element){
        .xhat = (sh_ref_get(&call->in[1], n * C + c) - mean) * sh_ref_get(&call->in[3], n),
        .g = sh_ref_get(&call->in[0], n * C + c) * weight(call, &call->in[2], c),
    };
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)) + dres: the two means flow back through mean and rstd. RMSNorm has no
 * mean and so lacks the first of them. */
static void input_gradient(const struct sh_op_call *call, int64_t n, int64_t C)
{
    const struct sh_operand *dres = &call->in[5];
    double rstd = sh_ref_get(&call->in[3], n), g_mean = 0, gx_mean = 0;

    for (int64_t c = 0; c < C; c++) {
        struct element e = element_at(call, n, c, C);
        g_mean += call->attr->norm.rms ? 0 : e.g / (double)C;
        gx_mean += e.g * e.xhat / (double)C;
    }
    for (int64_t c = 0; c < C; c++) {
        struct element e = element_at(call, n, c, C);
        sh_ref_set(&call->out[0], n * C + c,
                   rstd * (e.g - g_mean - e.xhat * gx_mean) + (dres->data ? sh_ref_get(dres, n * C + c) : 0));
    }
}

/* dw = sum over rows of dy xhat, db = sum of dy. */
static void parameter_gradients(const struct sh_op_call *call, int64_t N, int64_t C)
{
    for (int64_t c = 0; c < C; c++) {
        double dw = 0, db = 0;
        for (int64_t n = 0; n < N; n++) {
            double dy = sh_ref_get(&call->in[0], n * C + c);
            dw += dy * element_at(call, n, c, C).xhat;
            db += dy;
        }
        if (call->out[1].data)
            sh_ref_sum(call, 1, c, dw);
        if (call->out[2].data)
            sh_ref_sum(call, 2, c, db);
    }
}

sh_rc sh_ref_norm_bwd(const struct sh_op_call *call)
{
    int64_t C = sh_ref_elems(&call->in[2]), N = sh_ref_elems(&call->in[1]) / C;

    parameter_gradients(call, N, C);
    for (int64_t n = 0; n < N; n++)
        input_gradient(call, n, C);
    return SH_OK;
}
