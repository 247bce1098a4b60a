/* How far a kernel may be from the reference, which computes in float64 and rounds once: what rounding explains, and no
 * more. Tests of kernels and `sherd check --operations` judge by it. Local, no failure. */
#ifndef SH_KERNELS_BOUND_H
#define SH_KERNELS_BOUND_H

#include "src/base/number/dtype.h"

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
