/* Floor: the bytes of w, once. Whether a processor reaches it depends on how many sums are in flight: a group of rows
 * of w is worked on at a time, so that no addition waits for the one before it. */
#include "kernels/cpu/gemm/gemv.h"

#include "kernels/cpu/base/block.h"
#include "src/base/clones.h"

#include <string.h>

/* MOST_ROWS: products with more rows go to the engines that work in tiles. GROUP rows of w by 4 rows of x are 16 sums
 * of one vector each, half of the registers of AVX-512. A thread takes CHUNK rows of w at a time, or COLUMNS columns
 * if w is [k,n]. */
enum { MOST_ROWS = 8, LANES = 16, GROUP = 4, CHUNK = 64, COLUMNS = 512 };

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t bits __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t halves __attribute__((vector_size(LANES * sizeof(uint16_t))));

/* 16-bit results of float32 operands are left to other engines. */
bool sh_gemv_takes(const struct sh_matmul *g)
{
    bool types = g->in_dtype != SH_F32 || g->out_dtype == SH_F32;

    return g->m <= MOST_ROWS && !g->trans_a && !g->addend && types;
}

/* 16 elements as f32. */
#define LOAD_F32(v, p) memcpy(&(v), (p), sizeof(vec))
#define LOAD_BF16(v, p)                                          \
    do {                                                         \
        halves half_;                                            \
        memcpy(&half_, (p), sizeof half_);                       \
        (v) = (vec)(__builtin_convertvector(half_, bits) << 16); \
    } while (0)

/* The same as sh_f16_to_f32() for numbers: a subnormal is read as a fraction added to 2^-14, minus 2^-14. No operand
 * is subnormal in f32, where processors are slow. */
static inline void widen_f16(vec *v, const sh_f16 *p)
{
    halves half;
    memcpy(&half, p, sizeof half);
    bits whole = __builtin_convertvector(half, bits), size = whole & 0x7fffu;
    bits small = (bits)(size < 0x400u), large = (bits)(size >= 0x7c00u);
    bits normal = (size << 13) + 0x38000000u + (large & 0x38000000u);
    vec subnormal = (vec)((size << 13) + 0x38800000u) - 0x1p-14f;
    *v = (vec)(((bits)subnormal & small) | (normal & ~small) | (whole & 0x8000u) << 16);
}

#define LOAD_F16(v, p) widen_f16(&(v), (p))

/* One element each, for the remainder after whole vectors. */
static inline float one_f32(const float *p)
{
    return *p;
}

static inline float one_bf16(const sh_bf16 *p)
{
    return sh_bf16_to_f32(*p);
}

static inline float one_f16(const sh_f16 *p)
{
    return sh_f16_to_f32(*p);
}

/* sums [R,M] = w [R,k] x [M,k]': whole vectors by lanes, which are added in order; then the remainder. The sizes are
 * constants, so that all sums stay in registers. */
#define DOTS(name, T, LOAD, ONE, M, R)                                                                   \
    SH_CLONES static void name(const T *w, int64_t ldw, const T *x, int64_t ldx, int64_t k, float *sums) \
    {                                                                                                    \
        vec part[R][M] = {{{0}}};                                                                        \
        int64_t whole = k / LANES * LANES;                                                               \
        for (int64_t i = 0; i < whole; i += LANES) {                                                     \
            vec xs[M];                                                                                   \
            for (int m = 0; m < M; m++)                                                                  \
                LOAD(xs[m], x + m * ldx + i);                                                            \
            for (int r = 0; r < R; r++) {                                                                \
                vec ws;                                                                                  \
                LOAD(ws, w + r * ldw + i);                                                               \
                for (int m = 0; m < M; m++)                                                              \
                    part[r][m] += ws * xs[m];                                                            \
            }                                                                                            \
        }                                                                                                \
        for (int r = 0; r < R; r++)                                                                      \
            for (int m = 0; m < M; m++) {                                                                \
                float sum = 0;                                                                           \
                for (int l = 0; l < LANES; l++)                                                          \
                    sum += part[r][m][l];                                                                \
                for (int64_t i = whole; i < k; i++)                                                      \
                    sum += ONE(w + r * ldw + i) * ONE(x + m * ldx + i);                                  \
                sums[r * M + m] = sum;                                                                   \
            }                                                                                            \
    }

DOTS(dots_f32_1, float, LOAD_F32, one_f32, 1, GROUP)
DOTS(dots_f32_2, float, LOAD_F32, one_f32, 2, GROUP)
DOTS(dots_f32_4, float, LOAD_F32, one_f32, 4, GROUP)
DOTS(dots_bf16_1, sh_bf16, LOAD_BF16, one_bf16, 1, GROUP)
DOTS(dots_bf16_2, sh_bf16, LOAD_BF16, one_bf16, 2, GROUP)
DOTS(dots_bf16_4, sh_bf16, LOAD_BF16, one_bf16, 4, GROUP)
DOTS(dots_f16_1, sh_f16, LOAD_F16, one_f16, 1, GROUP)
DOTS(dots_f16_2, sh_f16, LOAD_F16, one_f16, 2, GROUP)
DOTS(dots_f16_4, sh_f16, LOAD_F16, one_f16, 4, GROUP)
/* The rows that remain after whole groups, one by one. */
DOTS(dot_f32, float, LOAD_F32, one_f32, 1, 1)
DOTS(dot_bf16, sh_bf16, LOAD_BF16, one_bf16, 1, 1)
DOTS(dot_f16, sh_f16, LOAD_F16, one_f16, 1, 1)

/* An element of any type, for biases only: the type is checked each time. */
static float one(enum sh_dtype dtype, const void *p)
{
    return dtype == SH_BF16 ? one_bf16(p) : dtype == SH_F16 ? one_f16(p) : one_f32(p);
}

/* y [r,c], rounded once. */
static void put(const struct sh_matmul *g, int64_t row, int64_t column, float sum)
{
    if (g->bias)
        sum += one(g->in_dtype, sh_cpu_at(g->bias, g->in_dtype, column));
    if (g->out_dtype == SH_BF16)
        ((sh_bf16 *)g->c)[row * g->ldc + column] = sh_f32_to_bf16(sum);
    else if (g->out_dtype == SH_F16)
        ((sh_f16 *)g->c)[row * g->ldc + column] = sh_f32_to_f16(sum);
    else
        ((float *)g->c)[row * g->ldc + column] = sum;
}

/* Rows [row, row + m) of x with a group of w's rows from `column` on; m is 1, 2 or 4. */
static void take_group(const struct sh_matmul *g, int64_t row, int m, int64_t column)
{
    const void *w = sh_cpu_at(g->b, g->in_dtype, column * g->ldb), *x = sh_cpu_at(g->a, g->in_dtype, row * g->lda);
    float sums[GROUP * 4];

    if (g->in_dtype == SH_BF16)
        (m == 4 ? dots_bf16_4 : m == 2 ? dots_bf16_2 : dots_bf16_1)(w, g->ldb, x, g->lda, g->k, sums);
    else if (g->in_dtype == SH_F16)
        (m == 4 ? dots_f16_4 : m == 2 ? dots_f16_2 : dots_f16_1)(w, g->ldb, x, g->lda, g->k, sums);
    else
        (m == 4 ? dots_f32_4 : m == 2 ? dots_f32_2 : dots_f32_1)(w, g->ldb, x, g->lda, g->k, sums);
    for (int r = 0; r < GROUP; r++)
        for (int i = 0; i < m; i++)
            put(g, row + i, column + r, sums[r * m + i]);
}

/* A group has GROUP rows; the last rows of a part may be fewer. */
static void take_one(const struct sh_matmul *g, int64_t row, int64_t column)
{
    const void *w = sh_cpu_at(g->b, g->in_dtype, column * g->ldb), *x = sh_cpu_at(g->a, g->in_dtype, row * g->lda);
    float sum;

    if (g->in_dtype == SH_BF16)
        dot_bf16(w, 0, x, 0, g->k, &sum);
    else if (g->in_dtype == SH_F16)
        dot_f16(w, 0, x, 0, g->k, &sum);
    else
        dot_f32(w, 0, x, 0, g->k, &sum);
    put(g, row, column, sum);
}

/* Columns [c, end) of y, which are rows of w; the second and third pass over a group find it in the cache. */
static void take_rows_of_w(const struct sh_matmul *g, int64_t c, int64_t end)
{
    for (; c + GROUP <= end; c += GROUP)
        for (int64_t row = 0, m; row < g->m; row += m) {
            m = g->m - row >= 4 ? 4 : g->m - row >= 2 ? 2 : 1;
            take_group(g, row, (int)m, c);
        }
    for (; c < end; c++)
        for (int64_t row = 0; row < g->m; row++)
            take_one(g, row, c);
}

/* sums [n] += x w [n] */
SH_CLONES static void add_f32(float *sums, float x, const float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sums[i] += x * w[i];
}

SH_CLONES static void add_bf16(float *sums, float x, const sh_bf16 *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sums[i] += x * sh_bf16_to_f32(w[i]);
}

SH_CLONES static void add_f16(float *sums, float x, const sh_f16 *w, int64_t n)
{
    int64_t i = 0;

    for (; n - i >= LANES; i += LANES) {
        vec ws, sum;
        LOAD_F16(ws, w + i);
        LOAD_F32(sum, sums + i);
        sum += x * ws;
        memcpy(sums + i, &sum, sizeof sum);
    }
    for (; i < n; i++)
        sums[i] += x * sh_f16_to_f32(w[i]);
}

/* Columns [c, c + n) of y if w is [k,n]: sums of multiples of its rows, in order. */
static void take_columns_of_w(const struct sh_matmul *g, int64_t c, int64_t n)
{
    float sums[MOST_ROWS][COLUMNS];

    memset(sums, 0, sizeof sums);
    for (int64_t i = 0; i < g->k; i++)
        for (int64_t row = 0; row < g->m; row++) {
            const void *w = sh_cpu_at(g->b, g->in_dtype, i * g->ldb + c),
                       *x = sh_cpu_at(g->a, g->in_dtype, row * g->lda + i);

            if (g->in_dtype == SH_BF16)
                add_bf16(sums[row], one_bf16(x), w, n);
            else if (g->in_dtype == SH_F16)
                add_f16(sums[row], one_f16(x), w, n);
            else
                add_f32(sums[row], one_f32(x), w, n);
        }
    for (int64_t row = 0; row < g->m; row++)
        for (int64_t i = 0; i < n; i++)
            put(g, row, c + i, sums[row][i]);
}

/* Threads take parts as they become free: a core that is slower or busy takes fewer. Each result is computed by one
 * thread, so its bits do not depend on which. */
void sh_gemv_run(const struct sh_matmul *g)
{
    int64_t part = g->trans_b ? CHUNK : COLUMNS, parts = (g->n + part - 1) / part;

#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < parts; i++) {
        int64_t c = i * part, n = g->n - c < part ? g->n - c : part;

        if (g->trans_b)
            take_rows_of_w(g, c, c + n);
        else
            take_columns_of_w(g, c, n);
    }
}
