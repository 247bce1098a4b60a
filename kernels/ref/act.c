/* Activations. GELU in its tanh form: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks, Gimpel,
 * arXiv:1606.08415). SwiGLU: h = silu(gate) up with silu(g) = g / (1 + e^-g) (Shazeer, arXiv:2002.05202). */
#include "kernels/ref/ref.h"

#include <math.h>

static const double root_2_pi = 0.79788456080286535588; /* sqrt(2/pi) */
static const double cubic = 0.044715;

/* Each element through double and rounded once: the reference is what other kernels are compared with, so it must be
 * clearly more exact. */
sh_rc sh_ref_gelu(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[0]); i++) {
        double x = sh_ref_get(&call->in[0], i);
        sh_ref_set(&call->out[0], i, 0.5 * x * (1 + tanh(root_2_pi * (x + cubic * x * x * x))));
    }
    return SH_OK;
}

sh_rc sh_ref_gelu_bwd(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[1]); i++) {
        double dy = sh_ref_get(&call->in[0], i), x = sh_ref_get(&call->in[1], i);
        double t = tanh(root_2_pi * (x + cubic * x * x * x));
        double dt = (1 - t * t) * root_2_pi * (1 + 3 * cubic * x * x);
        sh_ref_set(&call->out[0], i, dy * (0.5 * (1 + t) + 0.5 * x * dt));
    }
    return SH_OK;
}

/* In double, so no care for large
 * x
 *  is needed. */
static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* silu(g) = g s(g); its derivative is s (1 + g (1 - s)). */
sh_rc sh_ref_swiglu(const struct sh_op_call *call)
{
    const struct sh_operand *gu = &call->in[0], *h = &call->out[0];
    int64_t F = h->dim[h->ndim - 1], N = sh_ref_elems(h) / F;

    for (int64_t n = 0; n < N; n++) {
        for (int64_t f = 0; f < F; f++) {
            double gate = sh_ref_get(gu, n * 2 * F + f), up = sh_ref_get(gu, n * 2 * F + F + f);
            sh_ref_set(h, n * F + f, gate * sigmoid(gate) * up);
        }
    }
    return SH_OK;
}

sh_rc sh_ref_swiglu_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dh = &call->in[0], *gu = &call->in[1], *dgu = &call->out[0];
    int64_t F = dh->dim[dh->ndim - 1], N = sh_ref_elems(dh) / F;

    for (int64_t n = 0; n < N; n++) {
        for (int64_t f = 0; f < F; f++) {
            int64_t g = n * 2 * F + f, u = g + F;
            double gate = sh_ref_get(gu, g), up = sh_ref_get(gu, u), d = sh_ref_get(dh, n * F + f);
            double s = sigmoid(gate);
            sh_ref_set(dgu, g, d * up * s * (1 + gate * (1 - s)));
            sh_ref_set(dgu, u, d * gate * s);
        }
    }
    return SH_OK;
}
