#include "src/comm/sum.h"

/* A block of sums stays in the first-level cache while the sources stream by, so that each element is read once and
 * written once: bytes moved = (n_src + 1) * elems * size. The inner trip count is a constant for the compiler's sake:
 * GCC at -O2 makes vector code of such loops only. The last block is shorter and takes the plain loop. */
enum { BLOCK = 256 };

#define DEFINE_SUM(name, type)                                                           \
    static void name##_block(type *restrict sum, const type *restrict src)               \
    {                                                                                    \
        for (int i = 0; i < BLOCK; i++)                                                  \
            sum[i] += src[i];                                                            \
    }                                                                                    \
    static void name(type *out, const void *const *src, int n_src, int64_t elems)        \
    {                                                                                    \
        type sum[BLOCK];                                                                 \
        for (int64_t at = 0; at < elems; at += BLOCK) {                                  \
            int n = elems - at < BLOCK ? (int)(elems - at) : BLOCK;                      \
            memcpy(sum, (const type *)src[0] + at, (size_t)n * sizeof(type));            \
            for (int s = 1; s < n_src; s++) {                                            \
                const type *more = (const type *)src[s] + at;                            \
                if (n == BLOCK)                                                          \
                    name##_block(sum, more);                                             \
                else                                                                     \
                    for (int i = 0; i < n; i++)                                          \
                        sum[i] += more[i];                                               \
            }                                                                            \
            memcpy(out + at, sum, (size_t)n * sizeof(type));                             \
        }                                                                                \
    }

DEFINE_SUM(sum_f32, float)
DEFINE_SUM(sum_f64, double)

void sh_comm_sum(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems)
{
    if (dtype == SH_F64)
        sum_f64(out, src, n_src, elems);
    else
        sum_f32(out, src, n_src, elems);
}
