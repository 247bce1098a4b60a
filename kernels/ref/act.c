/* Activations. GELU in its tanh form: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks, Gimpel,
 * arXiv:1606.08415), and as defined there, by the normal distribution function. SwiGLU: h = silu(gate) up with
 * silu(g) = g / (1 + e^-g) (Shazeer, arXiv:2002.05202); GEGLU: with GELU instead of silu. */
#include "kernels/ref/ref.h"

#include <math.h>

static const double root_2_pi = 0.79788456080286535588; /* sqrt(2/pi) */
static const double cubic = 0.044715;
static const double root_half = 0.70710678118654752440; /* sqrt(1/2) */

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(root_2_pi * (x + cubic * x * x * x)));
}

/* The product rule: both factors of x/2 (1 + tanh) depend on x. */
static double gelu_slope(double x)
{
    double t = tanh(root_2_pi * (x + cubic * x * x * x));
    double dt = (1 - t * t) * root_2_pi * (1 + 3 * cubic * x * x);
    return 0.5 * (1 + t) + 0.5 * x * dt;
}

/* Each element is computed in double and rounded once: other kernels are compared with the reference, so it must be
 * clearly more exact than they are. */
sh_rc sh_ref_gelu(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[0]); i++) {
        double x = sh_ref_get(&call->in[0], i);
        sh_ref_set(&call->out[0], i, gelu(x));
    }
    return SH_OK;
}

sh_rc sh_ref_gelu_bwd(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[1]); i++) {
        double dy = sh_ref_get(&call->in[0], i), x = sh_ref_get(&call->in[1], i);
        sh_ref_set(&call->out[0], i, dy * gelu_slope(x));
    }
    return SH_OK;
}

/* x times the normal distribution function at x; the slope also contains the density. */
sh_rc sh_ref_gelu_erf(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[0]); i++) {
        double x = sh_ref_get(&call->in[0], i);
        sh_ref_set(&call->out[0], i, 0.5 * x * erfc(-x * root_half));
    }
    return SH_OK;
}

sh_rc sh_ref_gelu_erf_bwd(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[1]); i++) {
        double dy = sh_ref_get(&call->in[0], i), x = sh_ref_get(&call->in[1], i);
        double density = 0.5 * root_2_pi * exp(-0.5 * x * x);
        sh_ref_set(&call->out[0], i, dy * (0.5 * erfc(-x * root_half) + x * density));
    }
    return SH_OK;
}

/* A NaN stays one. */
static double above_zero(double x)
{
    return x < 0 ? 0 : x;
}

/* The square of what is above 0. */
sh_rc sh_ref_squared_relu(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[0]); i++) {
        double x = above_zero(sh_ref_get(&call->in[0], i));

        sh_ref_set(&call->out[0], i, x * x);
    }
    return SH_OK;
}

sh_rc sh_ref_squared_relu_bwd(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[1]); i++)
        sh_ref_set(&call->out[0], i, 2 * sh_ref_get(&call->in[0], i) * above_zero(sh_ref_get(&call->in[1], i)));
    return SH_OK;
}

/* In double, so large x needs no special care. */
static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* silu(g) = g s(g); its derivative is s (1 + g (1 - s)). */
static double silu(double g)
{
    return g * sigmoid(g);
}

static double silu_slope(double g)
{
    return sigmoid(g) * (1 + g * (1 - sigmoid(g)));
}

/* h = f(gate) up; a row is all gates, then all ups. */
static sh_rc gated(const struct sh_op_call *call, double (*f)(double))
{
    const struct sh_operand *gu = &call->in[0], *h = &call->out[0];
    int64_t F = h->dim[h->ndim - 1], N = sh_ref_elems(h) / F;

    for (int64_t i = 0; i < N * F; i++) {
        int64_t g = i + i / F * F, u = g + F;
        sh_ref_set(h, i, f(sh_ref_get(gu, g)) * sh_ref_get(gu, u));
    }
    return SH_OK;
}

/* dgate = dh up f'(gate), dup = dh f(gate). */
static sh_rc gated_bwd(const struct sh_op_call *call, double (*f)(double), double (*slope)(double))
{
    const struct sh_operand *dh = &call->in[0], *gu = &call->in[1], *dgu = &call->out[0];
    int64_t F = dh->dim[dh->ndim - 1], N = sh_ref_elems(dh) / F;

    for (int64_t i = 0; i < N * F; i++) {
        int64_t g = i + i / F * F, u = g + F;
        double gate = sh_ref_get(gu, g), up = sh_ref_get(gu, u), d = sh_ref_get(dh, i);
        sh_ref_set(dgu, g, d * up * slope(gate));
        sh_ref_set(dgu, u, d * f(gate));
    }
    return SH_OK;
}

sh_rc sh_ref_swiglu(const struct sh_op_call *call)
{
    return gated(call, silu);
}

sh_rc sh_ref_swiglu_bwd(const struct sh_op_call *call)
{
    return gated_bwd(call, silu, silu_slope);
}

sh_rc sh_ref_geglu(const struct sh_op_call *call)
{
    return gated(call, gelu);
}

sh_rc sh_ref_geglu_bwd(const struct sh_op_call *call)
{
    return gated_bwd(call, gelu, gelu_slope);
}
