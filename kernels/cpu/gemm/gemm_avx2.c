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

/* A panel of B, 16 KiB, stays in the L1 cache while it meets a block of A, 72 KiB, which stays in the L2 cache. AHEAD:
 * rows in memory between the one that is packed and the one that is fetched; LINE: numbers of a line of the cache. */
enum { ROWS = 6, COLS = 16, LANES = 8, DEPTH = 256, WIDTH = SH_GEMM_TILE_N, BLOCK = 12, AHEAD = 8, LINE = 16 };

/* What a thread packs, since f32 engines have no scratch: made by its first product, and kept. Not in the thread's own
 * storage, which would take it from the small stacks of threads that move files. */
struct packed {
    _Alignas(64) float panels[WIDTH * DEPTH];
    float block[BLOCK * ROWS * DEPTH + LANES];
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
    packed = aligned_alloc(_Alignof(struct packed), sizeof *packed);
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

/* The lines of C that a whole tile writes arrive while its sums are made. */
static inline void fetch(const float *c, int64_t ldc)
{
    for (int64_t i = 0; i < ROWS; i++) {
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + COLS - 1, 1);
    }
}

/* c [ROWS,COLS] = rows [depth,ROWS] times a panel [depth,COLS], or += when add */
SH_AVX2 static void multiply(const float *rows, const float *panel, int64_t depth, float *c, int64_t ldc, bool add)
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
    if (add)
        _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++)
        {
            lo[i] = _mm256_add_ps(_mm256_loadu_ps(c + i * ldc), lo[i]);
            hi[i] = _mm256_add_ps(_mm256_loadu_ps(c + i * ldc + LANES), hi[i]);
        }
    _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++)
    {
        _mm256_storeu_ps(c + i * ldc, lo[i]);
        _mm256_storeu_ps(c + i * ldc + LANES, hi[i]);
    }
}

/* The m rows and n columns of sums that there are go to C, or are added to it. */
static void put(const float *sums, int64_t m, int64_t n, float *c, int64_t ldc, bool add)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            c[i * ldc + j] = add ? c[i * ldc + j] + sums[i * COLS + j] : sums[i * COLS + j];
}

/* 8 rows of 8 numbers become columns; r is used up. */
SH_AVX2 static inline void turn_square(__m256 *r, __m256 *to)
{
    __m256 s[LANES];

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
        to[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        to[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
}

/* 8 rows of 8 numbers, ld apart, become 8 columns of rows that are COLS apart. */
SH_AVX2 static void turn(const float *from, int64_t ld, float *to)
{
    __m256 r[LANES], s[LANES];

    _Pragma("GCC unroll 8") for (int i = 0; i < LANES; i++) r[i] = _mm256_loadu_ps(from + i * ld);
    turn_square(r, s);
    _Pragma("GCC unroll 8") for (int i = 0; i < LANES; i++) _mm256_store_ps(to + i * COLS, s[i]);
}

/* Element by element, and zeros for the columns that there are not. */
static void pack_rest(const float *b, int64_t row, int64_t col, int64_t depth, int64_t n, float *to)
{
    for (int64_t k = 0; k < depth; k++)
        for (int64_t j = 0; j < COLS; j++)
            to[k * COLS + j] = j < n ? b[k * row + j * col] : 0;
}

/* n columns of a B that is not transposed become whole panels: each of its rows is read once, from end to end. */
SH_AVX2 static void pack_wide(const float *b, int64_t ldb, int64_t depth, int64_t n, float *to)
{
    for (int64_t k = 0; k < depth; k++)
        for (int64_t at = 0; at < n; at += COLS) {
            __m256 left = _mm256_loadu_ps(b + k * ldb + at), right = _mm256_loadu_ps(b + k * ldb + at + LANES);

            _mm256_store_ps(to + at * depth + k * COLS, left);
            _mm256_store_ps(to + at * depth + k * COLS + LANES, right);
        }
}

/* Columns [j,j+n) of `depth` rows of op(B) from row k on become a panel. */
SH_AVX2 static void pack_panel(const struct sh_gemm_tile *t, int64_t k, int64_t depth, int64_t j, int64_t n, float *to)
{
    int64_t row = t->trans_b ? 1 : t->ldb, col = t->trans_b ? t->ldb : 1;
    int64_t whole = t->trans_b && n == COLS ? depth / LANES * LANES : 0;
    const float *b = (const float *)t->b + k * row + j * col;

    for (int64_t i = 0; i < whole; i += LANES) {
        turn(b + i, t->ldb, to + i * COLS);
        turn(b + i + LANES * t->ldb, t->ldb, to + i * COLS + LANES);
    }
    pack_rest(b + whole * row, row, col, depth - whole, n, to + whole * COLS);
}

/* Columns [j,j+width) become panels. */
static void pack_piece(const struct sh_gemm_tile *t, int64_t k, int64_t depth, int64_t j, int64_t width, float *to)
{
    int64_t at = t->trans_b ? 0 : width / COLS * COLS;

    pack_wide((const float *)t->b + k * t->ldb + j, t->ldb, depth, at, to);
    for (; at < width; at += COLS)
        pack_panel(t, k, depth, j + at, least(COLS, width - at), to + at * depth);
}

/* Numbers [d,d+LANES) of ROWS rows become LANES rows of ROWS. Each is stored with two more, over which the next one
 * goes. */
SH_AVX2 static void turn_rows(const float *const *from, int64_t d, float *to)
{
    __m256 r[LANES], s[LANES];

    _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++) r[i] = _mm256_loadu_ps(from[i] + d);
    r[6] = r[7] = _mm256_setzero_ps();
    turn_square(r, s);
    _Pragma("GCC unroll 8") for (int i = 0; i < LANES; i++) _mm256_storeu_ps(to + i * ROWS, s[i]);
}

/* m rows of op(A), a multiple of ROWS, that are columns in memory: each of its `depth` rows there is read once. */
SH_AVX2 static void pack_turned(const float *a, int64_t lda, int64_t depth, int64_t m, float *to)
{
    for (int64_t d = 0; d < depth; d++) {
        if (d + AHEAD < depth)
            for (int64_t x = 0; x < m; x += LINE)
                __builtin_prefetch(a + (d + AHEAD) * lda + x);
        for (int64_t x = 0; x < m; x += ROWS) {
            const float *from = a + d * lda + x;

            _mm_storeu_ps(to + x * DEPTH + d * ROWS, _mm_loadu_ps(from));
            memcpy(to + x * DEPTH + d * ROWS + 4, from + 4, 2 * sizeof *to);
        }
    }
}

/* Rows [i,i+m) of `depth` columns of op(A) from column k on; a row that is missing is the first one again.
 *   to  [depth,ROWS], and room for two more */
SH_AVX2 static void pack_rows(const struct sh_gemm_tile *t, int64_t i, int64_t m, int64_t k, int64_t depth, float *to)
{
    const float *a = (const float *)t->a + (t->trans_a ? k * t->lda + i : i * t->lda + k), *from[ROWS];
    int64_t d = 0;

    for (int64_t x = 0; x < ROWS; x++)
        from[x] = a + (x < m ? x : 0) * (t->trans_a ? 1 : t->lda);
    for (; !t->trans_a && d + LANES <= depth; d += LANES)
        turn_rows(from, d, to + d * ROWS);
    for (; d < depth; d++)
        for (int64_t x = 0; x < ROWS; x++)
            to[d * ROWS + x] = from[x][d * (t->trans_a ? t->lda : 1)];
}

/* Rows [i,i+m) become a block. */
static void pack_block(const struct sh_gemm_tile *t, int64_t i, int64_t m, int64_t k, int64_t depth, float *to)
{
    int64_t x = t->trans_a ? m / ROWS * ROWS : 0;

    pack_turned((const float *)t->a + k * t->lda + i, t->lda, depth, x, to);
    for (; x < m; x += ROWS)
        pack_rows(t, i + x, least(ROWS, m - x), k, depth, to + x * DEPTH);
}

/* The m rows and n columns of a tile that there are. */
static void multiply_tile(const float *rows, const float *panel, int64_t depth, int64_t m, int64_t n, float *c,
                          int64_t ldc, bool add)
{
    _Alignas(32) float sums[ROWS * COLS];

    if (m == ROWS && n == COLS) {
        fetch(c, ldc);
        multiply(rows, panel, depth, c, ldc, add);
        return;
    }
    multiply(rows, panel, depth, sums, COLS, false);
    put(sums, m, n, c, ldc, add);
}

/* A block of rows from row i on against a piece of B. */
static void multiply_block(const struct sh_gemm_tile *t, struct packed *p, int64_t i, int64_t k, int64_t depth,
                           int64_t j, int64_t width)
{
    int64_t rows = least(BLOCK * ROWS, t->m - i);

    pack_block(t, i, rows, k, depth, p->block);
    for (int64_t at = 0; at < width; at += COLS)
        for (int64_t x = 0; x < rows; x += ROWS)
            multiply_tile(p->block + x * DEPTH, p->panels + at * depth, depth, least(ROWS, rows - x),
                          least(COLS, width - at), t->c + (i + x) * t->ldc + j + at, t->ldc, t->add || k > 0);
}

static void multiply_piece(const struct sh_gemm_tile *t, struct packed *p, int64_t k, int64_t depth, int64_t j,
                           int64_t width)
{
    pack_piece(t, k, depth, j, width, p->panels);
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
