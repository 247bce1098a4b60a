/* The functions that softmax and products apply to a row of f32 that is in the L1 cache already: the maximum,
 * exponentials with their sum, a factor, a scalar product. */
#include "kernels/cpu/base/row.h"

#include "kernels/cpu/base/math.h"

enum { LANES = 16 };

/* Lanes are written by hand: because of NaNs a compiler may not reorder a running maximum, and Clang then does not
 * vectorise it. */
SH_CLONES float sh_cpu_row_max(const float *x, int64_t n)
{
    float lane[LANES];
    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    int64_t whole = n / LANES * LANES;
    for (int64_t j = 0; j < whole; j += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] = x[j + l] > lane[l] ? x[j + l] : lane[l];
    for (int64_t j = whole; j < n; j++)
        lane[0] = x[j] > lane[0] ? x[j] : lane[0];
    for (int l = 1; l < LANES; l++)
        lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
    return lane[0];
}

/* The sum is in f32: its terms are between 0 and 1, since shift is at least the largest. */
SH_CLONES float sh_cpu_row_exp(float *x, int64_t n, float scale, float shift)
{
    float sum = 0;
    for (int64_t j = 0; j < n; j++) {
        x[j] = sh_expf(x[j] * scale - shift);
        sum += x[j];
    }
    return sum;
}

SH_CLONES void sh_cpu_row_scale(float *x, int64_t n, float by)
{
    for (int64_t j = 0; j < n; j++)
        x[j] *= by;
}

SH_CLONES void sh_cpu_row_times(float *x, const float *y, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        x[j] *= y[j];
}

SH_CLONES static void cap(float *x, int64_t n, float by, float to)
{
    for (int64_t j = 0; j < n; j++)
        x[j] = to * sh_tanhf(by * x[j]);
}

SH_CLONES static void cap_with_slope(float *restrict x, float *restrict slope, int64_t n, float by, float to)
{
    for (int64_t j = 0; j < n; j++) {
        float t = sh_tanhf(by * x[j]);

        x[j] = to * t;
        slope[j] = 1.0f - t * t;
    }
}

void sh_cpu_row_cap(float *x, float *slope, int64_t n, float by, float to)
{
    if (slope)
        cap_with_slope(x, slope, n, by, to);
    else
        cap(x, n, by, to);
}

SH_CLONES float sh_cpu_row_dot(const float *x, const float *y, int64_t n)
{
    float sum = 0;
    for (int64_t j = 0; j < n; j++)
        sum += x[j] * y[j];
    return sum;
}
