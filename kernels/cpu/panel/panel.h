/* Products in bf16 of panels that are packed first, in squares of 32 x 32 sums: the panels, the processor unit that
 * multiplies them, and where the sums go. For x86-64 with AMX, or with AVX-512's products of pairs (avx512_bf16); where
 * those are slow, products are of panels in f32. For AArch64 with BFMMLA, which multiplies quads.
 *
 * A panel holds 32 rows of op(A), or 32 columns of op(B), over a stretch of the inner dimension, as tiles. Each step
 * of 32 inner elements takes two tiles of 1 KiB. Elements outside the matrix are zero, so products need no edge
 * cases.
 *   rows:     tile h = rows 16h..16h+15, each of 32 inner elements
 *   columns:  tile h = columns 16h..16h+15, as 16 pairs of inner elements, each pair side by side in every column
 * tdpbf16ps multiplies two such tiles; vdpbf16ps one pair of a row, broadcast, with the pairs of 16 columns. BFMMLA
 * multiplies a quad of two rows with one of two columns, so for it a step of either is
 *   8 quads of inner elements, each side by side in all 32 rows or columns.
 * Sums are squares of 32 x 32 f32, each in one piece of 4 KiB, 64-byte aligned.
 *
 * All local, for one thread. Floor of packing: 2 bytes read and 2 written per element; measured on one core, from the
 * L3 cache: 4-8 billion elements per second. */
#ifndef SH_PANEL_PANEL_H
#define SH_PANEL_PANEL_H

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/base/wide.h"

#include <stdbool.h>
#include <stdint.h>

/* SH_PANELS: this program has panels of a kind; SH_QUADS: those of Arm. */
#if defined(__aarch64__) && defined(HAVE_BFMMLA)
#define SH_QUADS
#endif
#if defined(SH_WIDE) || defined(SH_QUADS)
#define SH_PANELS
#endif

enum {
    SH_PANEL_SIDE = 32,                            /* rows or columns of a panel; its step in the inner dimension */
    SH_PANEL_STEP = SH_PANEL_SIDE * SH_PANEL_SIDE, /* elements of a panel's step (two tiles) or a square of sums */
    SH_PANEL_DEPTH = 8,                            /* steps after which a panel (16 KiB) is still in the L1 cache */
    SH_PANEL_STRETCH = 8192,                       /* inner elements of a product whose sum a float C takes at a time */
};

/* A way to multiply panels: one row of the table in panel.c. */
struct sh_panel_unit {
    const char *name;
    bool (*usable)(void); /* available and fast; asked once. May request the system's permission for this process. */
    void (*begin)(void);  /* called by a thread before its first product and after its last one; NULL: nothing to do */
    void (*end)(void);
    /* sums [32,32] = panel of rows x panel of columns, or += if add; `steps` steps deep, in ascending order. Rows from
     * `live` on, at most 32, may be left out. */
    void (*multiply)(const void *rows, const void *cols, float *sums, int64_t steps, bool add, int64_t live);
    /* The same of 32 rows as they are stored, ld elements apart, and whole steps; NULL: it cannot. Columns from `live` on
     * may be left out. */
    void (*multiply_stored)(const sh_bf16 *rows, int64_t ld, const sh_bf16 *cols, float *sums, int64_t steps, bool add,
                            int64_t live);
    /* sums = one step, of whose inner elements the second half is zero; NULL: it gains nothing by that. */
    void (*multiply_half)(const sh_bf16 *rows, const sh_bf16 *cols, float *sums);
    bool asks;     /* it multiplies for so long that what thin products add to is asked for meanwhile */
    int64_t slice; /* panels whose sums, 32 squares each, a thread keeps in its L2 cache */
    bool wide;     /* panels are in f32, as sh_panel_pack_wide() or sh_panel_widen() make them */
};
extern const struct sh_panel_unit sh_panel_amx, sh_panel_avx512, sh_panel_wide; /* with SH_WIDE */
extern const struct sh_panel_unit sh_panel_bfmmla;                              /* with SH_QUADS */

/* The first unit of the table that this processor has; NULL: none. Always the same. The first call must be outside
 * parallel regions. */
const struct sh_panel_unit *sh_panel_unit(void);
/* The same for whole products, for which a unit that is wide may do where there is no other. */
const struct sh_panel_unit *sh_panel_product_unit(void);

static inline int64_t sh_panel_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Panels needed for n rows or columns, or steps for n inner elements. */
static inline int64_t sh_panels(int64_t n)
{
    return (n + SH_PANEL_SIDE - 1) / SH_PANEL_SIDE;
}

/* Rows or columns of a stored matrix: element (i, k) is data[i * step + k] or, if `inner_rows`, data[k * step + i]. */
struct sh_panel_source {
    const sh_bf16 *data;
    int64_t step;    /* distance between stored rows */
    bool inner_rows; /* the inner dimension counts the stored rows */
    int64_t sides;   /* rows or columns; each 32 of them make a panel, the last one fewer */
    int64_t depth;   /* inner elements; a panel is rounded up to 32 */
};

/* panels [ceil(sides / 32)][ceil(depth / 32) * SH_PANEL_STEP], `stride` elements apart, 64-byte aligned */
void sh_panel_pack_rows(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride);
void sh_panel_pack_cols(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride);
/* With SH_WIDE only: this, what follows of packing, and sh_panel_emit_band(). */
/* Columns whose inner dimension counts the stored rows, which are read in pairs over all panels: long rows are what
 * hardware foresees, and the next pair is asked for, also past the last one. */
void sh_panel_pack_pairs(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride);
/* Either, in f32: steps are [32 inner elements][32 sides]. */
void sh_panel_pack_wide(const struct sh_panel_source *s, float *panels, int64_t stride);
/* The same of a panel as sh_panel_pack_cols() makes it. */
void sh_panel_widen(const sh_bf16 *panel, float *wide, int64_t steps);

/* dst [16][16] = src, transposed; ld: distance between rows. */
void sh_panel_turn(const float *src, int64_t lds, float *dst, int64_t ldd);

/* For functions that only prefetch memory: GCC considers them free of effects and drops calls that it does not
 * inline. */
#define SH_PANEL_ASKS static inline __attribute__((always_inline))

/* Prefetch memory that is used soon into the L2 cache. */
SH_PANEL_ASKS void sh_panel_prefetch(const void *p, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)p + i, 0, 2);
}

/* Calls of the unit: a thread calls begin() before its first product and end() after its last. */
void sh_panel_begin(void);
void sh_panel_multiply(const sh_bf16 *rows, const sh_bf16 *cols, float *sums, int64_t steps, bool add);
void sh_panel_end(void);

/* Make what this thread has written past the caches visible to all that synchronise with it afterwards, e.g. at a
 * barrier. Only x86's kernels write so. */
#ifdef SH_WIDE
void sh_panel_fence(void);
#else
static inline void sh_panel_fence(void)
{
}
#endif

/* Write a square of sums, from (row, col) on, into C of g, with its bias and addend; elements outside C are left out.
 * A large C is written past the caches, unless it is added to: other threads see it after sh_panel_fence(). */
void sh_panel_emit(const struct sh_matmul *g, const float *sums, int64_t row, int64_t col);
/* The same of several squares, side by side in C. */
void sh_panel_emit_band(const struct sh_matmul *g, const float *sums, int64_t row, int64_t col, int64_t squares);

/* Prefetch what sh_panel_emit() will add to the sums. */
void sh_panel_prefetch_addend(const struct sh_matmul *g, int64_t row, int64_t col);

#endif
