#include "src/comm/sum.h"

/* Blocks of the tree's open branches stay in the first-level cache while the sources stream by, so that each element is
 * read once and written once: bytes moved = (n_src + 1) * elems * size. The inner trip count is a constant for the
 * compiler's sake: GCC at -O2 makes vector code of such loops only. The last block is shorter and takes the plain loop.
 *
 * Open branches are a stack, as the ones of a binary counter: source s lies on level popcount(s), and each trailing one
 * of s is a pair that is complete. 21 levels are enough for 2^20 sources. */
enum { BLOCK = 256, LEVELS = 21 };

#define DEFINE_SUM(name, type)                                                                      \
    static void name##_add(type *restrict sum, const type *restrict more, int n)                    \
    {                                                                                               \
        if (n == BLOCK)                                                                             \
            for (int i = 0; i < BLOCK; i++)                                                         \
                sum[i] += more[i];                                                                  \
        else                                                                                        \
            for (int i = 0; i < n; i++)                                                             \
                sum[i] += more[i];                                                                  \
    }                                                                                               \
    static void name(type *out, const void *const *src, int n_src, int64_t elems)                   \
    {                                                                                               \
        type open[LEVELS][BLOCK];                                                                   \
        for (int64_t at = 0; at < elems; at += BLOCK) {                                             \
            int n = elems - at < BLOCK ? (int)(elems - at) : BLOCK, top = 0;                        \
            for (int s = 0; s < n_src; s++) {                                                       \
                const type *more = (const type *)src[s] + at;                                       \
                if (s & 1)                                                                          \
                    name##_add(open[top - 1], more, n);                                             \
                else                                                                                \
                    memcpy(open[top++], more, (size_t)n * sizeof(type));                            \
                for (int pairs = s >> 1; (s & 1) && (pairs & 1); pairs >>= 1, top--)                \
                    name##_add(open[top - 2], open[top - 1], n);                                    \
            }                                                                                       \
            for (; top > 1; top--)                                                                  \
                name##_add(open[top - 2], open[top - 1], n);                                        \
            memcpy(out + at, open[0], (size_t)n * sizeof(type));                                    \
        }                                                                                           \
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
