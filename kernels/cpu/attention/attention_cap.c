/* The soft cap on scores (Gemma 2), as a pass over a tile between its product and its softmax: without a cap the other
 * loops are as they were. Bound by the tanh, about as much work as the exponential. */
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/base/row.h"
#include "src/base/clones.h"

void sh_attn_cap(const struct sh_attn *a, float *s, int64_t ld, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows && a->cap != 0; i++)
        sh_cpu_row_cap(s + i * ld, NULL, cols, a->scale / a->cap, a->cap / a->scale);
}

SH_CLONES static void slope_row(float *ds, const float *slope, int64_t n, float delta)
{
    for (int64_t j = 0; j < n; j++)
        ds[j] = (ds[j] - delta) * slope[j] + delta;
}

SH_CLONES static void slope_row_across(float *ds, const float *slope, int64_t n, const float *delta)
{
    for (int64_t j = 0; j < n; j++)
        ds[j] = (ds[j] - delta[j]) * slope[j] + delta[j];
}

void sh_attn_cap_bwd(const struct sh_attn *a, float *s, float *ds, int64_t ld, int64_t rows, int64_t cols,
                     const float *delta, bool across)
{
    float slope[SH_ATTN_K];

    for (int64_t i = 0; i < rows && a->cap != 0; i++) {
        sh_cpu_row_cap(s + i * ld, slope, cols, a->scale / a->cap, a->cap / a->scale);
        if (across)
            slope_row_across(ds + i * ld, slope, cols, delta);
        else
            slope_row(ds + i * ld, slope, cols, delta[i]);
    }
}
