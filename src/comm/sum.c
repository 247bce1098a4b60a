#include "src/comm/sum.h"

#include "src/base/mem.h"

/* Blocks of the tree's open branches stay in the first-level cache while the sources stream by, so that each element is
 * read once and written once: bytes moved = (n_src + 1) * elems * size. The inner trip count is a constant for the
 * compiler's sake: GCC at -O2 vectorizes only such loops. The last block is shorter and takes the plain loop.
 *
 * Open branches form a stack, like the bits of a binary counter: source s lies on level popcount(s), and each trailing
 * one of s is a pair that is complete. 21 levels are enough for 2^20 sources. */
enum { BLOCK = 256, LEVELS = 21 };

#define DEFINE_LOOP(name, to_type, from_type, statement)                          \
    static void name(to_type *restrict to, const from_type *restrict from, int n) \
    {                                                                             \
        if (n == BLOCK)                                                           \
            for (int i = 0; i < BLOCK; i++)                                       \
                statement;                                                        \
        else                                                                      \
            for (int i = 0; i < n; i++)                                           \
                statement;                                                        \
    }

#define DEFINE_COPY(name, type)                                           \
    static void name(type *restrict to, const type *restrict from, int n) \
    {                                                                     \
        memcpy(to, from, (size_t)n * sizeof(type));                       \
    }

/* The sum of elements [at, at + n) into open[0]. Sources have the type `stored`, open branches `type`: load converts a
 * source, add adds a source to an open branch, fold adds two open branches. */
#define DEFINE_TREE(name, type, stored, load, add, fold)                                                    \
    static inline void name(type open[LEVELS][BLOCK], const void *const *src, int n_src, int64_t at, int n) \
    {                                                                                                       \
        int top = 0;                                                                                        \
        for (int s = 0; s < n_src; s++) {                                                                   \
            const stored *more = (const stored *)src[s] + at;                                               \
            if (s & 1)                                                                                      \
                add(open[top - 1], more, n);                                                                \
            else                                                                                            \
                load(open[top++], more, n);                                                                 \
            for (int pairs = s >> 1; (s & 1) && (pairs & 1); pairs >>= 1, top--)                            \
                fold(open[top - 2], open[top - 1], n);                                                      \
        }                                                                                                   \
        for (; top > 1; top--)                                                                              \
            fold(open[top - 2], open[top - 1], n);                                                          \
    }

static int block_at(int64_t at, int64_t elems)
{
    return elems - at < BLOCK ? (int)(elems - at) : BLOCK;
}

#define DEFINE_SUM(name, type, stored, tree, store)                                 \
    static void name(stored *out, const void *const *src, int n_src, int64_t elems) \
    {                                                                               \
        type open[LEVELS][BLOCK];                                                   \
        for (int64_t at = 0; at < elems; at += BLOCK) {                             \
            tree(open, src, n_src, at, block_at(at, elems));                        \
            store(out + at, open[0], block_at(at, elems));                          \
        }                                                                           \
    }

/* Past the caches, for results that are not read soon. */
static void away_f32(float *to, const float *from, int n)
{
    sh_mem_stream(to, from, (size_t)n * sizeof *to);
}

DEFINE_COPY(copy_f32, float)
DEFINE_COPY(copy_f64, double)
DEFINE_LOOP(add_f32, float, float, to[i] += from[i])
DEFINE_LOOP(add_f64, double, double, to[i] += from[i])
DEFINE_LOOP(widen_bf16, float, sh_bf16, to[i] = sh_bf16_to_f32(from[i]))
DEFINE_LOOP(add_bf16, float, sh_bf16, to[i] += sh_bf16_to_f32(from[i]))
DEFINE_LOOP(round_bf16, sh_bf16, float, to[i] = sh_f32_to_bf16(from[i]))

DEFINE_TREE(tree_f32, float, float, copy_f32, add_f32, add_f32)
DEFINE_TREE(tree_f64, double, double, copy_f64, add_f64, add_f64)
DEFINE_TREE(tree_bf16, float, sh_bf16, widen_bf16, add_bf16, add_f32)

DEFINE_SUM(sum_f32, float, float, tree_f32, copy_f32)
DEFINE_SUM(sum_f32_away, float, float, tree_f32, away_f32)
DEFINE_SUM(sum_f64, double, double, tree_f64, copy_f64)
DEFINE_SUM(sum_bf16, float, sh_bf16, tree_bf16, round_bf16)
DEFINE_SUM(sum_bf16_open, float, float, tree_bf16, copy_f32)
DEFINE_SUM(sum_f32_rounded, float, sh_bf16, tree_f32, round_bf16)

void sh_comm_sum(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems)
{
    if (dtype == SH_F64)
        sum_f64(out, src, n_src, elems);
    else if (dtype == SH_BF16)
        sum_bf16(out, src, n_src, elems);
    else
        sum_f32(out, src, n_src, elems);
}

/* Only float32 has a loop that writes past the caches; sums of other types are small. */
void sh_comm_sum_away(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems)
{
    if (dtype == SH_F32) {
        sum_f32_away(out, src, n_src, elems);
        sh_mem_stream_end();
    } else {
        sh_comm_sum(dtype, out, src, n_src, elems);
    }
}

enum sh_dtype sh_comm_sum_type(enum sh_dtype dtype)
{
    return dtype == SH_BF16 ? SH_F32 : dtype;
}

void sh_comm_sum_open(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems)
{
    if (dtype == SH_BF16)
        sum_bf16_open(out, src, n_src, elems);
    else
        sh_comm_sum(dtype, out, src, n_src, elems);
}

void sh_comm_sum_close(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems)
{
    if (dtype == SH_BF16)
        sum_f32_rounded(out, src, n_src, elems);
    else
        sh_comm_sum(dtype, out, src, n_src, elems);
}
