/* f32 products for CPUs with AVX2 and without AVX-512. An element of C is a sum in one order, wherever it lies in a tile
 * and however many rows and columns there are: tiles of rows and ranks promise equal bits. OpenBLAS's kernels for these
 * CPUs, and oneDNN's, round an element by its place.
 *
 * Twelve registers hold 6 rows of 16 columns. Both operands are packed, so that rows that lie a power of two
 * apart do not share a set of the cache. Rows and columns that are missing are computed on what is there, or on zeros, and
 * not stored.
 * Floor: 2mnk operations at 32 a cycle. */
#include "kernels/cpu/gemm/gemm_engine.h"
#include "src/base/isa.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define SH_AVX2 __attribute__((target("avx2,fma")))

/* A panel of B, 16 KiB, stays in the L1 cache while it meets a block of A, 72 KiB, which stays in the L2 cache. */
enum { ROWS = 6, COLS = 16, LANES = 8, DEPTH = 256, WIDTH = SH_GEMM_TILE_N, BLOCK = 12 };

/* What a thread packs, since f32 engines have no scratch: made by its first product, and kept. Not in the thread's own
 * storage, which would take it from the small stacks of threads that move files. */
struct packed {
    float panels[WIDTH * DEPTH], block[BLOCK * ROWS * DEPTH];
};

static pthread_key_t key;

static void make_key(void)
{
    if (pthread_key_create(&key, free) != 0)
        abort(); /* a program has 1,024, and few are taken */
}

/* NULL: out of memory. */
static struct packed *packed_of_thread(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct packed *packed;

    pthread_once(&once, make_key);
    packed = pthread_getspecific(key);
    if (packed)
        return packed;
    packed = aligned_alloc(64, sizeof *packed);
    if (packed && pthread_setspecific(key, packed) != 0) {
        free(packed);
        return NULL;
    }
    return packed;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool avx2_works(void)
{
    return sh_isa_has(SH_ISA_AVX2) && __builtin_cpu_supports("fma");
}

static bool avx2_usable(void)
{
    return avx2_works() && !sh_isa_has(SH_ISA_AVX512);
}

/* sums [ROWS,COLS] = rows [depth,ROWS] times a panel [depth,COLS] */
SH_AVX2 static void multiply(const float *rows, const float *panel, int64_t depth, float *sums)
{
    __m256 lo[ROWS], hi[ROWS];

    _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++) lo[i] = hi[i] = _mm256_setzero_ps();
    for (int64_t k = 0; k < depth; k++) {
        __m256 left = _mm256_load_ps(panel + k * COLS), right = _mm256_load_ps(panel + k * COLS + LANES);

        _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++)
        {
            __m256 x = _mm256_broadcast_ss(rows + k * ROWS + i);

            lo[i] = _mm256_fmadd_ps(x, left, lo[i]);
            hi[i] = _mm256_fmadd_ps(x, right, hi[i]);
        }
    }
    _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++)
    {
        _mm256_store_ps(sums + i * COLS, lo[i]);
        _mm256_store_ps(sums + i * COLS + LANES, hi[i]);
    }
}

SH_AVX2 static inline void put_row(const float *sums, int64_t n, float *c, bool add)
{
    for (int64_t j = 0; j < n; j++)
        c[j] = add ? c[j] + sums[j] : sums[j];
}

/* The m rows and n columns of sums that there are go to C, or are added to it. */
SH_AVX2 static void put(const float *sums, int64_t m, int64_t n, float *c, int64_t ldc, bool add)
{
    for (int64_t i = 0; i < m; i++)
        if (n == COLS)
            put_row(sums + i * COLS, COLS, c + i * ldc, add);
        else
            put_row(sums + i * COLS, n, c + i * ldc, add);
}

/* 8 rows of 8 numbers, ld apart, become 8 columns of rows that are COLS apart. */
SH_AVX2 static void turn(const float *from, int64_t ld, float *to)
{
    __m256 r[LANES], s[LANES];

    _Pragma("GCC unroll 8") for (int i = 0; i < LANES; i++) r[i] = _mm256_loadu_ps(from + i * ld);
    _Pragma("GCC unroll 4") for (int i = 0; i < LANES; i += 2)
    {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < LANES; i += 4)
    {
        r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < LANES / 2; i++)
    {
        _mm256_store_ps(to + i * COLS, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_store_ps(to + (i + 4) * COLS, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* Element by element, and zeros for the columns that there are not. */
static void pack_rest(const float *b, int64_t row, int64_t col, int64_t depth, int64_t n, float *to)
{
    for (int64_t k = 0; k < depth; k++)
        for (int64_t j = 0; j < COLS; j++)
            to[k * COLS + j] = j < n ? b[k * row + j * col] : 0;
}

/* Columns [j,j+n) of `depth` rows of op(B) from row k on become a panel. */
static void pack(const struct sh_gemm_tile *t, int64_t k, int64_t depth, int64_t j, int64_t n, float *to)
{
    const float *b = (const float *)t->b + (t->trans_b ? j * t->ldb + k : k * t->ldb + j);
    int64_t whole = n == COLS ? (t->trans_b ? depth / LANES * LANES : depth) : 0;

    for (int64_t i = 0; i < whole && !t->trans_b; i++)
        memcpy(to + i * COLS, b + i * t->ldb, COLS * sizeof *to);
    for (int64_t i = 0; i < whole && t->trans_b; i += LANES) {
        turn(b + i, t->ldb, to + i * COLS);
        turn(b + i + LANES * t->ldb, t->ldb, to + i * COLS + LANES);
    }
    if (t->trans_b)
        pack_rest(b + whole, 1, t->ldb, depth - whole, n, to + whole * COLS);
    else
        pack_rest(b + whole * t->ldb, t->ldb, 1, depth - whole, n, to + whole * COLS);
}

/* Rows [i,i+m) of `depth` columns of op(A) from column k on; a row that is missing is the first one again.
 *   to  [depth,ROWS] */
static void pack_rows(const struct sh_gemm_tile *t, int64_t i, int64_t m, int64_t k, int64_t depth, float *to)
{
    const float *a = (const float *)t->a + (t->trans_a ? k * t->lda + i : i * t->lda + k);

    if (t->trans_a && m == ROWS)
        for (int64_t d = 0; d < depth; d++)
            for (int64_t x = 0; x < ROWS; x++)
                to[d * ROWS + x] = a[d * t->lda + x];
    else
        for (int64_t x = 0; x < ROWS; x++)
            for (int64_t d = 0; d < depth; d++)
                to[d * ROWS + x] = t->trans_a ? a[d * t->lda + (x < m ? x : 0)] : a[(x < m ? x : 0) * t->lda + d];
}

/* A block of rows from row i on against a piece of B. */
static void multiply_block(const struct sh_gemm_tile *t, struct packed *p, int64_t i, int64_t k, int64_t depth,
                           int64_t j, int64_t width)
{
    _Alignas(32) float sums[ROWS * COLS];
    int64_t rows = least(BLOCK * ROWS, t->m - i);

    for (int64_t x = 0; x < rows; x += ROWS)
        pack_rows(t, i + x, least(ROWS, rows - x), k, depth, p->block + x * DEPTH);
    for (int64_t at = 0; at < width; at += COLS)
        for (int64_t x = 0; x < rows; x += ROWS) {
            multiply(p->block + x * DEPTH, p->panels + at * depth, depth, sums);
            put(sums, least(ROWS, rows - x), least(COLS, width - at), t->c + (i + x) * t->ldc + j + at, t->ldc,
                t->add || k > 0);
        }
}

static void multiply_piece(const struct sh_gemm_tile *t, struct packed *p, int64_t k, int64_t depth, int64_t j,
                           int64_t width)
{
    for (int64_t at = 0; at < width; at += COLS)
        pack(t, k, depth, j + at, least(COLS, width - at), p->panels + at * depth);
    for (int64_t i = 0; i < t->m; i += BLOCK * ROWS)
        multiply_block(t, p, i, k, depth, j, width);
}

static sh_rc avx2_tile(const struct sh_gemm_tile *t, void *work)
{
    struct packed *p = packed_of_thread();

    (void)work;
    if (!p)
        return sh_fail(SH_E_MEMORY, "out of memory: no room to pack a product");
    for (int64_t i = 0; i < t->m && t->k == 0 && !t->add; i++)
        memset(t->c + i * t->ldc, 0, (size_t)t->n * sizeof *t->c);
    for (int64_t k = 0; k < t->k; k += DEPTH)
        for (int64_t j = 0; j < t->n; j += WIDTH)
            multiply_piece(t, p, k, least(DEPTH, t->k - k), j, least(WIDTH, t->n - j));
    return SH_OK;
}

const struct sh_gemm_engine sh_gemm_engine_avx2 = {
    .name = "AVX2 f32, one order",
    .in_dtype = SH_F32,
    .usable = avx2_usable,
    .works = avx2_works,
    .tile = avx2_tile,
};

#endif
