/* What the kernels of Muon share: the coefficients, the sides of a matrix and its elements, the cost. Valid C and C++.
 *
 * simple: Keller Jordan, 2024. quintic: the five triples of Emerging-Optimizers. polar_express: Amsel et al.,
 * arXiv:2505.16932, whose first step expects a norm of at most 1 / 1.02. After the last triple it is used again. */
#ifndef SH_KERNELS_MUON_H
#define SH_KERNELS_MUON_H

#include "kernels/op.h"
#include "src/config/words.h"

#include <math.h>

#define SH_ORTHO_LEAST 1e-10    /* a mean of squares of a row, below which its rows do not grow further */
#define SH_ORTHO_ROWS_NORM 1e-8 /* a norm to divide by */

enum { SH_ORTHO_TRIPLES = 5 };
struct sh_ortho_row {
    int n;
    double room; /* the norm is divided by this too */
    double abc[SH_ORTHO_TRIPLES][3];
};

/* The coefficients of step `step`; the row of a kind. */
static inline const struct sh_ortho_row *sh_ortho_row_of(int kind)
{
    static const struct sh_ortho_row rows[SH_ORTHO_KINDS] = {
        /* SH_ORTHO_SIMPLE */ {1, 1, {{3.4445, -4.7750, 2.0315}}},
        /* SH_ORTHO_QUINTIC */
        {5,
         1,
         {{4.0848, -6.8946, 2.9270},
          {3.9505, -6.3029, 2.6377},
          {3.7418, -5.5913, 2.3037},
          {2.8769, -3.1427, 1.2046},
          {2.8366, -3.0525, 1.2012}}},
        /* SH_ORTHO_POLAR_EXPRESS */
        {5,
         1.02,
         {{8.1566, -22.4833, 15.8788},
          {4.0429, -2.8089, 0.5000},
          {3.8917, -2.7725, 0.5061},
          {3.2858, -2.3681, 0.4645},
          {2.3465, -1.7098, 0.4232}}},
    };

    return &rows[kind];
}

static inline const double *sh_ortho_step(int kind, int step)
{
    const struct sh_ortho_row *row = sh_ortho_row_of(kind);

    return row->abc[step < row->n ? step : row->n - 1];
}

/* The matrix is computed with as X [m,n], m <= n: turned, if it has more rows than columns. */
static inline int64_t sh_matrix_short(const struct sh_matrix *x)
{
    return x->out < x->in ? x->out : x->in;
}

static inline int64_t sh_matrix_long(const struct sh_matrix *x)
{
    return x->out < x->in ? x->in : x->out;
}

/* Element (i, j) of X, copy k, counted from the unit's first element. */
static inline int64_t sh_matrix_place(const struct sh_matrix *x, int64_t k, int64_t i, int64_t j)
{
    int64_t r = x->out <= x->in ? i : j, c = x->out <= x->in ? j : i;

    return x->at + k * x->stride + (r / x->block * x->block_stride + r % x->block) * x->row_step + c * x->col_step;
}

/* Element (r, c) of copy k, and the number of the row. */
static inline int64_t sh_matrix_element(const struct sh_matrix *x, int64_t k, int64_t r, int64_t c)
{
    return x->at + k * x->stride + (r / x->block * x->block_stride + r % x->block) * x->row_step + c * x->col_step;
}

static inline int64_t sh_matrix_row(const struct sh_matrix *x, int64_t k, int64_t r)
{
    return x->row + k * x->row_stride + r / x->block * x->block_stride + r % x->block;
}

/* The factor of all rows that gives a matrix its norm back, from the sums of squares before and after. */
SH_FLOATS double sh_ortho_rows_factor(double before, double after)
{
    double norm = sqrt(after);

    return sqrt(before) / (norm < SH_ORTHO_ROWS_NORM ? SH_ORTHO_ROWS_NORM : norm);
}

/* Additions and multiplications of ORTHO_ROWS: the squares, and the product with the factor. */
static inline double sh_matrix_row_flops(const struct sh_matrix *x)
{
    return 3 * (double)x->repeat * (double)x->out * (double)x->in;
}

/* Additions and multiplications: X X', its square, and the product with X, in each step. */
static inline double sh_matrix_flops(const struct sh_matrix *x, int steps)
{
    double m = (double)sh_matrix_short(x), n = (double)sh_matrix_long(x);

    return (double)x->repeat * steps * (4 * m * m * n + 2 * m * m * m);
}

/* How many of these CPUs leave out: X X' and its square are symmetric, and what lies above the tiles on the diagonal is
 * copied (sh_gemm_run_mirrored()). */
static inline double sh_matrix_copied(const struct sh_matrix *x, int steps)
{
    const double tile = 192;
    double m = (double)sh_matrix_short(x), n = (double)sh_matrix_long(x), tiles = fmax(1, m / tile);

    return (double)x->repeat * steps * (2 * m * m * n + 2 * m * m * m) * (1 - (tiles + 1) / (2 * tiles));
}

#endif
