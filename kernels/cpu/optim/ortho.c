/* Orthogonal factors of matrices. Nearly all of the time goes into three products a step: 4 m^2 n + 2 m^3 operations of a
 * matrix with sides m <= n. Two of them give symmetric matrices, of which two fifths are copied. A row of the matrix is
 * read and written by one thread, and products do not depend on threads (gemm.h), so neither do the bits. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/muon.h"

#include <math.h>

enum { ALIGN = 64 };

/* Where the operands lie in the scratch: x, next [m,n]; gram, square [m,m]; sums [m] f64. */
struct room {
    float *x, *next, *gram, *square;
    double *sums;
    void *work;
    int64_t work_bytes;
};

static int64_t bytes_of(int64_t elems, int64_t size)
{
    return (elems * size + ALIGN - 1) / ALIGN * ALIGN;
}

/* The one product that takes scratch. */
static int64_t product_bytes(int64_t m, int64_t n, int threads)
{
    const struct sh_matmul g = {
        .m = m, .n = n, .k = m, .in_dtype = SH_F32, .lda = m, .ldb = n, .out_dtype = SH_F32, .ldc = n};

    return sh_gemm_work_bytes(&g, threads);
}

static struct room rooms_in(char *at, int64_t m, int64_t n)
{
    int64_t wide = bytes_of(m * n, sizeof(float)), square = bytes_of(m * m, sizeof(float));
    struct room r;

    r.x = (float *)(void *)at;
    r.next = (float *)(void *)(at + wide);
    r.gram = (float *)(void *)(at + 2 * wide);
    r.square = (float *)(void *)(at + 2 * wide + square);
    r.sums = (double *)(void *)(at + 2 * wide + 2 * square);
    r.work = at + 2 * wide + 2 * square + bytes_of(m, sizeof(double));
    r.work_bytes = 0;
    return r;
}

int64_t sh_cpu_ortho_work_bytes(const struct sh_op_call *call, int threads)
{
    int64_t m = call->attr->ortho.most_short, n = call->attr->ortho.most_long;

    return 2 * bytes_of(m * n, sizeof(float)) + 2 * bytes_of(m * m, sizeof(float)) + bytes_of(m, sizeof(double)) +
           product_bytes(m, n, threads);
}

/* c = a b: a [m,m], c [m,n]. */
static sh_rc multiply(const struct room *r, const float *a, const float *b, int64_t m, int64_t n, float *c)
{
    const struct sh_matmul g = {.m = m,
                                .n = n,
                                .k = m,
                                .in_dtype = SH_F32,
                                .a = a,
                                .lda = m,
                                .b = b,
                                .ldb = n,
                                .out_dtype = SH_F32,
                                .c = c,
                                .ldc = n};

    return sh_gemm_run(&g, r->work, r->work_bytes);
}

/* c [m,m] = a a': a [m,k]. That of a symmetric a is its square. */
static sh_rc multiply_by_itself(const float *a, int64_t m, int64_t k, float *c)
{
    const struct sh_matmul g = {.m = m,
                                .n = m,
                                .k = k,
                                .in_dtype = SH_F32,
                                .a = a,
                                .lda = k,
                                .b = a,
                                .ldb = k,
                                .trans_b = true,
                                .out_dtype = SH_F32,
                                .c = c,
                                .ldc = m};

    return sh_gemm_run_mirrored(&g);
}

/* Copy row i of the matrix to the scratch, or back with a factor. Along a row either columns follow each other, or, if it is
 * turned, rows, which lie in blocks. */
static void copy_row(const struct sh_matrix *of, float *u, int64_t i, float *x, float factor, bool back)
{
    int64_t n = sh_matrix_long(of), run = of->out <= of->in ? n : of->block;
    int64_t by = of->out <= of->in ? of->col_step : of->row_step;

    for (int64_t begin = 0; begin < n; begin += run) {
        float *at = u + sh_matrix_place(of, 0, i, begin);
        int64_t end = begin + run < n ? begin + run : n;

        for (int64_t j = begin; j < end && back; j++)
            at[(j - begin) * by] = factor * x[j];
        for (int64_t j = begin; j < end && !back; j++)
            x[j] = at[(j - begin) * by];
    }
}

static double squares_of(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t j = 0; j < n; j++)
        sum += (double)x[j] * (double)x[j];
    return sum;
}

/* The matrix, divided by its norm. */
static void take(const struct sh_matrix *of, double room, float *u, const struct room *r)
{
    int64_t m = sh_matrix_short(of), n = sh_matrix_long(of);
    double squares = 0, factor;

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < m; i++) {
        copy_row(of, u, i, r->x + i * n, 1, false);
        r->sums[i] = squares_of(r->x + i * n, n);
    }
    for (int64_t i = 0; i < m; i++)
        squares += r->sums[i];
    factor = squares == 0 ? 0 : 1 / (sqrt(squares) * room);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < m * n; i++)
        r->x[i] = (float)((double)r->x[i] * factor);
}

/* gram = a I + b gram + c square, so that one product with x finishes the step. */
static void combine(const double abc[3], int64_t m, const struct room *r)
{
    const float a = (float)abc[0], b = (float)abc[1], c = (float)abc[2];

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < m; i++) {
        float *g = r->gram + i * m;
        const float *s = r->square + i * m;

        for (int64_t j = 0; j < m; j++)
            g[j] = b * g[j] + c * s[j];
        g[i] += a;
    }
}

static sh_rc make_orthogonal(const struct sh_op_call *call, const struct sh_matrix *of, float *u, struct room *r)
{
    int64_t m = sh_matrix_short(of), n = sh_matrix_long(of);
    int kind = call->attr->ortho.kind;

    take(of, sh_ortho_row_of(kind)->room, u, r);
    for (int i = 0; i < call->attr->ortho.steps; i++) {
        float *x = r->x;

        SH_TRY(multiply_by_itself(x, m, n, r->gram));
        SH_TRY(multiply_by_itself(r->gram, m, m, r->square));
        combine(sh_ortho_step(kind, i), m, r);
        SH_TRY(multiply(r, r->gram, x, m, n, r->next));
        r->x = r->next;
        r->next = x;
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < m; i++)
        copy_row(of, u, i, r->x + i * n, of->scale, true);
    return SH_OK;
}

sh_rc sh_cpu_ortho(const struct sh_op_call *call)
{
    float *u = (float *)call->out[0].data - call->attr->ortho.origin;
    char *end = (char *)call->work + call->work_bytes;

    for (int i = 0; i < call->attr->ortho.count; i++)
        for (int64_t k = 0; k < call->matrices[i].repeat; k++) {
            const struct sh_matrix *of = &call->matrices[i];
            struct room r = rooms_in(call->work, sh_matrix_short(of), sh_matrix_long(of));

            r.work_bytes = end - (char *)r.work;
            SH_TRY(make_orthogonal(call, of, u + k * of->stride, &r));
        }
    return SH_OK;
}
