/* One row of f32 scores: the functions that softmax needs. The kernel flags (-fassociative-math) vectorise them; sums
 * are in the order of the vector's lanes, whatever the number of threads. All local, for one thread, no failure. */
#ifndef SH_KERNELS_CPU_ROW_H
#define SH_KERNELS_CPU_ROW_H

#include <stdint.h>

/* The largest of x [n]; -Inf if n is 0. NaNs are ignored here: they show in the exponentials. */
float sh_cpu_row_max(const float *x, int64_t n);

/* x[j] = exp(x[j] * scale - shift); returns their sum. */
float sh_cpu_row_exp(float *x, int64_t n, float scale, float shift);

/* x[j] *= by */
void sh_cpu_row_scale(float *x, int64_t n, float by);

/* x[j] *= y[j] */
void sh_cpu_row_times(float *x, const float *y, int64_t n);

/* x[j] = to tanh(by x[j]); slope[j] = 1 - that tanh squared, unless slope is NULL. */
void sh_cpu_row_cap(float *x, float *slope, int64_t n, float by, float to);

/* The sum of x[j] * y[j]. */
float sh_cpu_row_dot(const float *x, const float *y, int64_t n);

#endif
