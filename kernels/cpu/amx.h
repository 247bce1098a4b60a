/* The tile unit of x86 processors (AMX): whether it may be used, the panels that its products read, and the products.
 *
 * A panel holds 32 rows of op(A), or 32 columns of op(B), over a stretch of the inner dimension, as the tiles that
 * tdpbf16ps multiplies: for each 32 of the inner dimension, a step, two tiles of 1 KiB. What lies outside of the matrix
 * is zero, so that products know no edges.
 *   rows:     tile h = rows 16h..16h+15, each of 32 inner elements
 *   columns:  tile h = columns 16h..16h+15, as 16 pairs of inner elements, each pair side by side in every column
 * Sums are squares of 32 x 32 f32, each in one piece of 4 KiB.
 *
 * All local, for one thread. Floor of packing: 2 bytes read and 2 written an element; measured on one core, from the L3
 * cache: 4-8 thousand million elements a second. */
#ifndef SH_KERNELS_CPU_AMX_H
#define SH_KERNELS_CPU_AMX_H

#include "kernels/cpu/gemm.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    SH_AMX_SIDE = 32,                        /* rows or columns of a panel, and its step of the inner dimension */
    SH_AMX_STEP = SH_AMX_SIDE * SH_AMX_SIDE, /* elements of a panel a step: two tiles; also of a square of sums */
    SH_AMX_DEPTH = 8,                        /* steps after which a panel (16 KiB) still is in the L1 cache */
};

/* Functions that use the unit; called only where sh_amx_usable() is true. */
#if defined(__x86_64__) && defined(HAVE_AMX)
#define SH_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))
#endif

/* Also asks the system's leave for this process. */
bool sh_amx_usable(void);

static inline int64_t sh_amx_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Panels, or steps, of n rows, columns or inner elements. */
static inline int64_t sh_amx_panels(int64_t n)
{
    return (n + SH_AMX_SIDE - 1) / SH_AMX_SIDE;
}

/* Rows or columns of a stored matrix: element (i, k) of them is data[i * step + k] or, when `inner_rows`,
 * data[k * step + i]. */
struct sh_amx_source {
    const sh_bf16 *data;
    int64_t step;    /* distance of stored rows */
    bool inner_rows; /* the inner dimension counts the stored rows */
    int64_t sides;   /* rows or columns; 32 of them, the last ones fewer, make a panel */
    int64_t depth;   /* of the inner dimension; a panel is rounded up to 32 */
};

/* panels [ceil(sides / 32)][ceil(depth / 32) * SH_AMX_STEP], `stride` elements apart, 64-byte aligned */
void sh_amx_pack_rows(const struct sh_amx_source *s, sh_bf16 *panels, int64_t stride);
void sh_amx_pack_cols(const struct sh_amx_source *s, sh_bf16 *panels, int64_t stride);

/* Of functions that only ask for memory: to GCC they are without effect, and it drops calls that it does not inline. */
#define SH_AMX_ASKS static inline __attribute__((always_inline))

/* Ask for memory that is used soon: into the L2 cache. */
SH_AMX_ASKS void sh_amx_prefetch(const void *p, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)p + i, 0, 2);
}

/* A thread sets its tiles up before its first product, and gives them back after the last one, with a fence. */
void sh_amx_begin(void);
void sh_amx_end(void);

/* What this thread has written past the caches is there for all who meet it after this, as at a barrier. */
void sh_amx_fence(void);

/* sums [32,32] = panel of rows x panel of columns, or += when add; `steps` steps deep, taken in ascending order. */
void sh_amx_multiply(const sh_bf16 *rows, const sh_bf16 *cols, float *sums, int64_t steps, bool add);

/* A square of sums, from (row, col) on, into C of g, with its bias and addend; what lies outside of C is left out. A
 * large C goes past the caches, unless it is added to: others see it after sh_amx_fence(). */
void sh_amx_emit(const struct sh_gemm *g, const float *sums, int64_t row, int64_t col);

/* Ask for what that will add to the sums. */
void sh_amx_prefetch_addend(const struct sh_gemm *g, int64_t row, int64_t col);

#endif
