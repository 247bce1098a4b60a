/* How far a kernel may be from the reference, which computes in float64 and rounds once: what rounding explains, and no
 * more. Tests of kernels and `sherd check --operations` judge by it. Local, no failure. */
#ifndef SH_KERNELS_BOUND_H
#define SH_KERNELS_BOUND_H

#include "kernels/op.h"

#include <math.h>
#include <stdbool.h>

struct sh_bound {
    double atol, rtol; /* |reference - result| <= atol + rtol |reference| */
};

/* The largest relative error of rounding to a type; for float32 and float64 twice that. */
static inline double sh_bound_eps(enum sh_dtype dtype)
{
    return dtype == SH_BF16 ? 0x1p-8 : dtype == SH_F16 ? 0x1p-11 : dtype == SH_F64 ? 0x1p-52 : 0x1p-23;
}

/* Sums of `terms` products of size 1 in f32, rounded twice to the output's type. */
static inline struct sh_bound sh_bound_sum(enum sh_dtype dtype, double terms)
{
    return (struct sh_bound){.atol = 0x1p-23 * (terms + 4), .rtol = 2 * sh_bound_eps(dtype) + 4 * 0x1p-23};
}

/* How often an operation rounds to the compute type inside, each time by up to half of sh_bound_eps() of what it adds up
 * then: weights and scores in attention, logits' gradients, what two products in a row hand on. Muon's polynomial amplifies
 * the roundings of its products. */
static inline double sh_bound_inside(enum sh_op_kind kind)
{
    switch ((int)kind) {
    case SH_OP_ATTENTION:
    case SH_OP_ATTENTION_ROWS:
    case SH_OP_HEAD_LOSS_GRAD:
    case SH_OP_LOSS_REST: return 2;
    case SH_OP_ATTENTION_BWD:
    case SH_OP_ATTENTION_ROWS_BWD:
    case SH_OP_LORA:
    case SH_OP_LORA_BWD: return 4;
    case SH_OP_ORTHO: return 2048;
    default: return 0;
    }
}

/* |reference - result| over the bound: it holds up to 1. NaN and Inf must agree in kind. */
static inline double sh_bound_share(struct sh_bound b, double reference, double result)
{
    double room = b.atol + b.rtol * fabs(reference);

    if ((isnan(reference) && isnan(result)) || reference == result)
        return 0;
    return isfinite(reference) && isfinite(result) && room > 0 ? fabs(reference - result) / room : INFINITY;
}

static inline bool sh_bound_holds(struct sh_bound b, double reference, double result)
{
    return sh_bound_share(b, reference, result) <= 1;
}

#endif
