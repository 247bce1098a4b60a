/* Products: every engine against double on odd shapes, in all orders, with bias and addends; then the linear layers
 * against the reference. Bits must not depend on threads or addresses. */
#include "sherd_config.h"

#include "kernels/cpu/base/wide.h"
#include "kernels/cpu/gemm/gemm_engine.h"
#include "kernels/cpu/gemm/gemv.h"
#include "kernels/cpu/panel/panel.h"
#include "tests/op/agree.h"
#include "tests/op/calls.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAD = 3 }; /* rows are longer than they need to be */

/* Large enough to be written past the caches, which only x86's kernels do: Arm's are tried by an emulator. */
#ifdef __aarch64__
enum { LARGE_M = 70, LARGE_N = 64 - PAD, DEEP_M = LARGE_M, DEEP_N = LARGE_N };
#else
enum { LARGE_M = 1050, LARGE_N = 1024 - PAD, DEEP_M = 600, DEEP_N = 512 - PAD };
#endif

struct product {
    int64_t m, n, k;
    bool trans_a, trans_b;
    enum { PLAIN, ADD, BIAS, BIAS_AND_ADDEND } extra;
};

static struct sh_operand empty(enum sh_dtype dtype, int64_t rows, int64_t cols)
{
    struct sh_operand t = {.dtype = dtype, .ndim = 2, .dim = {rows, cols}};
    t.data = malloc((size_t)(rows * cols + 1) * 4);
    assert_non_null(t.data);
    return t;
}

static struct sh_operand tensor(enum sh_dtype dtype, int64_t rows, int64_t cols)
{
    struct sh_operand t = empty(dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        optest_set(&t, i, optest_normal());
    return t;
}

static double expected(const struct product *p, const struct sh_operand t[5], int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t l = 0; l < p->k; l++) {
        int64_t at_a = p->trans_a ? l * t[0].dim[1] + i : i * t[0].dim[1] + l;
        int64_t at_b = p->trans_b ? j * t[1].dim[1] + l : l * t[1].dim[1] + j;
        sum += optest_get(&t[0], at_a) * optest_get(&t[1], at_b);
    }
    if (p->extra == ADD)
        sum += optest_get(&t[2], i * t[2].dim[1] + j);
    if (p->extra == BIAS || p->extra == BIAS_AND_ADDEND)
        sum += optest_get(&t[3], j);
    if (p->extra == BIAS_AND_ADDEND)
        sum += optest_get(&t[4], i * t[4].dim[1] + j);
    return sum;
}

/* C of one run; free it with free(). The operands are `shift` elements off their usual places. */
static struct sh_operand run_on(const struct sh_gemm_engine *e, const struct product *p, const struct sh_operand t[5],
                                int threads, int shift)
{
    struct sh_operand moved[5];
    for (int i = 0; i < 5; i++) {
        size_t bytes = (size_t)(t[i].dim[0] * t[i].dim[1]) * (size_t)sh_dtype_bytes(t[i].dtype);
        size_t by = (size_t)shift * (size_t)sh_dtype_bytes(t[i].dtype);
        moved[i] = t[i];
        moved[i].data = (char *)aligned_alloc(64, (bytes + by + 63) / 64 * 64) + by;
        memcpy(moved[i].data, t[i].data, bytes);
    }
    void *addend = p->extra == ADD ? moved[2].data : p->extra == BIAS_AND_ADDEND ? moved[4].data : NULL;
    /* clang-format off */
    struct sh_matmul g = {
        .m = p->m, .n = p->n, .k = p->k, .in_dtype = t[0].dtype, .out_dtype = t[2].dtype,
        .a = moved[0].data, .lda = t[0].dim[1], .trans_a = p->trans_a,
        .b = moved[1].data, .ldb = t[1].dim[1], .trans_b = p->trans_b,
        .c = moved[2].data, .ldc = t[2].dim[1],
        .bias = p->extra >= BIAS ? moved[3].data : NULL, .addend = addend,
    };
    /* clang-format on */
    omp_set_num_threads(threads);
    int64_t work_bytes = sh_gemm_work_bytes_on(e, &g, threads);
    void *work = aligned_alloc(64, (size_t)work_bytes + 64);
    if (sh_gemm_run_on(e, &g, work, work_bytes) != SH_OK)
        fail_msg("%s: %s", e->name, sh_error_text());
    free(work);

    struct sh_operand c = empty(t[2].dtype, t[2].dim[0], t[2].dim[1]);
    memcpy(c.data, moved[2].data, (size_t)(c.dim[0] * c.dim[1]) * (size_t)sh_dtype_bytes(c.dtype));
    for (int i = 0; i < 5; i++)
        free((char *)moved[i].data - (size_t)shift * (size_t)sh_dtype_bytes(t[i].dtype));
    return c;
}

/* For a large product only every so many-th element is compared, an odd number: the comparison adds up what the
 * engines compute much faster. More with SHERD_LONG; fewer with SHERD_TEST_FEW, when a sanitizer watches the engines
 * and makes the comparison slow. */
static int64_t sampled(const struct product *p)
{
    int64_t whole = getenv("SHERD_LONG") ? 1 << 24 : getenv("SHERD_TEST_FEW") ? 1 << 18 : 1 << 21;
    return p->m * p->n * p->k / whole | 1;
}

static void check_element(const struct sh_gemm_engine *e, const struct product *p, const struct sh_operand t[5],
                          const struct sh_operand *c, int64_t at)
{
    struct sh_bound bound = sh_bound_sum(c->dtype, (double)p->k);
    int64_t i = at / c->dim[1], j = at % c->dim[1];
    bool inside = j < p->n;
    double want = inside ? expected(p, t, i, j) : optest_get(&t[2], at), got = optest_get(c, at);
    if (!(fabs(got - want) <= (inside ? bound.atol + bound.rtol * fabs(want) : 0)))
        fail_msg("%s %lldx%lldx%lld at %lld,%lld: %g instead of %g", e->name, (long long)p->m, (long long)p->n,
                 (long long)p->k, (long long)i, (long long)j, got, want);
}

static void check_product(const struct sh_gemm_engine *e, const struct product *p, enum sh_dtype out)
{
    struct sh_operand t[5] = {
        tensor(e->in_dtype, p->trans_a ? p->k : p->m, (p->trans_a ? p->m : p->k) + PAD),
        tensor(e->in_dtype, p->trans_b ? p->n : p->k, (p->trans_b ? p->k : p->n) + PAD),
        tensor(out, p->m, p->n + PAD),
        tensor(e->in_dtype, 1, p->n),
        tensor(out, p->m, p->n + PAD),
    };
    struct sh_operand c = run_on(e, p, t, 1, 0);
    for (int64_t at = 0; at < p->m * c.dim[1]; at += sampled(p))
        check_element(e, p, t, &c, at);
    for (int v = 1; v < 4; v++) {
        struct sh_operand other = run_on(e, p, t, v, v % 2 * (2 * v - 1)); /* two threads: at the usual places */
        assert_memory_equal(c.data, other.data, (size_t)(c.dim[0] * c.dim[1]) * (size_t)sh_dtype_bytes(out));
        free(other.data);
    }
    free(c.data);
    for (int i = 0; i < 5; i++)
        free(t[i].data);
}

static void check_engine(const struct sh_gemm_engine *e)
{
    static const int64_t sizes[][3] = {{1, 1, 1},      {1, 70, 3},
                                       {3, 2, 17},     {17, 33, 65},
                                       {64, 64, 64},   {100, 1, 40},
                                       {257, 385, 9},  {130, 500, 31},
                                       {300, 40, 600}, {2, 800, 130},
                                       {33, 7, 8201},  {LARGE_M, LARGE_N, 5}}; /* the last: whole lines, large */
    static const struct product deep = {DEEP_M, DEEP_N, 8201, .trans_a = true, .extra = BIAS}; /* and deep */
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int orders = 0; orders < 4; orders++) {
            struct product p = {.m = sizes[s][0],
                                .n = sizes[s][1],
                                .k = sizes[s][2],
                                .trans_a = orders & 1,
                                .trans_b = orders & 2,
                                .extra = (s + (size_t)orders) % 4};
            check_product(e, &p, SH_F32);
            if (e->in_dtype != SH_F32)
                check_product(e, &p, e->in_dtype);
        }
    }
    check_product(e, &deep, SH_F32);
}

#ifdef SH_WIDE
/* Thin products have the bits that packed panels give them. */
static void check_thin(const struct product *p, enum sh_dtype out)
{
    /* clang-format off */
    struct sh_matmul g = {.m = p->m, .n = p->n, .k = p->k, .trans_a = p->trans_a, .trans_b = p->trans_b,
                        .in_dtype = SH_BF16, .out_dtype = out, .bias = p->extra >= BIAS ? p : NULL};
    /* clang-format on */
    if (!sh_gemm_engine_thin.takes(&g))
        return;
    struct sh_operand t[5] = {
        tensor(SH_BF16, p->trans_a ? p->k : p->m, (p->trans_a ? p->m : p->k) + PAD),
        tensor(SH_BF16, p->trans_b ? p->n : p->k, (p->trans_b ? p->k : p->n) + PAD),
        tensor(out, p->m, p->n + PAD),
        tensor(SH_BF16, 1, p->n),
        tensor(out, p->m, p->n + PAD),
    };
    struct sh_operand want = run_on(&sh_gemm_engine_panels, p, t, 1, 0);
    for (int threads = 1; threads < 4; threads++) {
        struct sh_operand got = run_on(&sh_gemm_engine_thin, p, t, threads, threads - 1);
        assert_memory_equal(want.data, got.data, (size_t)(p->m * (p->n + PAD)) * (size_t)sh_dtype_bytes(out));
        free(got.data);
    }
    free(want.data);
    for (int i = 0; i < 5; i++)
        free(t[i].data);
}

static void test_thin(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1},       {3, 2, 17},     {64, 64, 64},   {17, 300, 65}, {300, 40, 600},
                                       {129, 64, 8201}, {70, 520, 64},  {33, 1031, 5},  {64, 330, 70}, {16, 600, 8300},
                                       {600, 16, 8300}, {3300, 48, 40}, {48, 3300, 40}, {65, 65, 65},  {40, 330, 16}};
    (void)state;
    for (int64_t n = 64; n < 66; n++) {
        struct sh_matmul down = {.m = 99, .n = n, .k = 99, .trans_b = true}, up = {.m = 99, .n = 99, .k = n},
                         outer = {.m = n, .n = 99, .k = 99, .trans_a = true};
        assert_int_equal(sh_gemm_engine_thin.takes(&down), n == 64);
        assert_int_equal(sh_gemm_engine_thin.takes(&up), n == 64);
        assert_int_equal(sh_gemm_engine_thin.takes(&outer), n == 64);
    }
    if (!sh_gemm_engine_thin.usable()) {
        print_message("no AVX-512\n");
        skip();
    }
    optest_seed(8);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int v = 0; v < 16; v++) {
            struct product p = {.m = sizes[s][0],
                                .n = sizes[s][1],
                                .k = sizes[s][2],
                                .trans_a = v & 1,
                                .trans_b = v & 2,
                                .extra = v / 4};
            check_thin(&p, SH_F32);
            check_thin(&p, SH_BF16);
        }
}
#endif

#ifdef SH_QUADS
/* g.c [m,n] f32 of panels: rows from `first` on of a [.,k], times columns from there on of b [k,ld]. */
static void part_of_panels(const sh_bf16 *a, const sh_bf16 *b, int64_t ld, struct sh_matmul g, int64_t first)
{
    g.in_dtype = SH_BF16;
    g.lda = g.k;
    g.ldb = ld;
    g.a = a + first * g.k;
    g.b = b + first;
    int64_t bytes = sh_gemm_work_bytes_on(&sh_gemm_engine_panels, &g, 2);
    void *work = aligned_alloc(64, (size_t)bytes + 64);
    omp_set_num_threads(2);
    assert_int_equal(sh_gemm_run_on(&sh_gemm_engine_panels, &g, work, bytes), SH_OK);
    free(work);
}

/* A sum has the same bits wherever it lies in C, whichever side is kept: m and n are cut, never the inner dimension. */
static void test_place_in_panels(void **state)
{
    enum { M = 150, K = 300 };

    (void)state;
    if (!sh_gemm_engine_panels.usable()) {
        print_message("no AVX-512 with products of bfloat16\n");
        skip();
    }
    float *c = malloc(M * M * sizeof *c), *part = malloc(M * M * sizeof *part);
    optest_seed(9);
    struct sh_operand a = tensor(SH_BF16, M, K), b = tensor(SH_BF16, K, M);
    part_of_panels(a.data, b.data, M, (struct sh_matmul){.m = M, .n = M, .k = K, .c = c, .ldc = M}, 0);
    for (int64_t first = 1; first < M; first += 37)
        for (int64_t m = 1; first + m <= M; m += 23) {
            int64_t n = M - first;

            part_of_panels(a.data, b.data, M, (struct sh_matmul){.m = m, .n = n, .k = K, .c = part, .ldc = n}, first);
            for (int64_t i = 0; i < m; i++)
                assert_memory_equal(part + i * n, c + (first + i) * M + first, (size_t)n * sizeof *c);
        }
    free(a.data);
    free(b.data);
    free(c);
    free(part);
}

/* Products of one pair of elements, at each place of the quads: BFMMLA takes denormals for zero. */
static void test_denormals(void **state)
{
    static const struct {
        sh_bf16 a, b;
        float want;
    } rows[] = {
        {0x0040, 0x7200, 0},         /* 2^-127, a denormal, times 2^101 */
        {0x8001, 0x7200, 0},         /* the smallest, negative */
        {0x7200, 0x0040, 0},         /* on the other side */
        {0x0080, 0x3f80, 0x1p-126f}, /* the smallest normal times 1 */
        {0x0080, 0x3f00, 0},         /* times 1/2: a denormal product */
        {0x3f80, 0x4000, 2},         /* 1 times 2 */
    };
    enum { ROWS = sizeof rows / sizeof *rows, K = 4 * ROWS };

    (void)state;
    if (!sh_gemm_engine_panels.usable()) {
        print_message("no AVX-512 with products of bfloat16\n");
        skip();
    }
    for (int only = 0; only < K; only++) {
        sh_bf16 a[K] = {0}, b[K] = {0};
        float c = 1;

        a[only] = rows[only % ROWS].a;
        b[only] = rows[only % ROWS].b;
        part_of_panels(a, b, 1, (struct sh_matmul){.m = 1, .n = 1, .k = K, .c = &c, .ldc = 1}, 0);
        assert_true(c == rows[only % ROWS].want);
    }
}
#endif

/* SHERD_TEST_ENGINE: the name of the only one to try, where an emulator makes the others slow. */
static void test_engines(void **state)
{
    const char *only = getenv("SHERD_TEST_ENGINE");

    (void)state;
    optest_seed(1);
    for (int i = 0; sh_gemm_engine_at(i); i++) {
        const struct sh_gemm_engine *e = sh_gemm_engine_at(i);
#ifdef SH_WIDE
        if (e == &sh_gemm_engine_thin) /* in test_thin() */
            continue;
#endif
        if (only && strcmp(only, e->name) != 0)
            continue;
        if (e->works ? e->works() : e->usable())
            check_engine(e);
        else
            print_message("%s: does not work on this CPU, not tested\n", e->name);
    }
}

#ifdef __x86_64__
/* Rows [first,first+n) of a tile, alone. */
static struct sh_gemm_tile some_rows(const struct sh_gemm_tile *t, int64_t first, int64_t n, float *c)
{
    struct sh_gemm_tile part = *t;

    part.m = n;
    part.a = (const float *)t->a + first * (t->trans_a ? 1 : t->lda);
    part.c = c;
    return part;
}

/* An element has the same bits wherever its row lies in a tile, and with any number of other rows. */
static void test_place(void **state)
{
    enum { M = 87, N = 53, K = 700, LD = K };
    float *a = malloc(M * LD * sizeof *a), *b = malloc(N * LD * sizeof *b);
    float *c = malloc(M * N * sizeof *c), *alone = malloc(M * N * sizeof *c);

    (void)state;
    if (!sh_gemm_engine_avx2.works()) {
        print_message("no AVX2\n");
        skip();
    }
    for (int i = 0; i < M * LD; i++)
        a[i] = sinf((float)i);
    for (int i = 0; i < N * LD; i++)
        b[i] = cosf((float)i * 3);
    for (int order = 0; order < 4; order++) {
        struct sh_gemm_tile t = {.m = M,
                                 .n = N,
                                 .k = K,
                                 .a = a,
                                 .lda = order & 1 ? M : K,
                                 .trans_a = order & 1,
                                 .b = b,
                                 .ldb = order & 2 ? K : N,
                                 .trans_b = order & 2,
                                 .c = c,
                                 .ldc = N};

        assert_int_equal(sh_gemm_engine_avx2.tile(&t, NULL), SH_OK);
        for (int64_t first = 0; first < M; first += 5)
            for (int64_t n = 1; first + n <= M; n += 7) {
                struct sh_gemm_tile part = some_rows(&t, first, n, alone);

                assert_int_equal(sh_gemm_engine_avx2.tile(&part, NULL), SH_OK);
                assert_memory_equal(alone, c + first * N, (size_t)(n * N) * sizeof *c);
            }
    }
    free(a);
    free(b);
    free(c);
    free(alone);
}
#endif

/* Products of one kind: the last are so deep that they may have another engine than the first. */
static struct sh_matmul one_of(const void *from, int64_t i)
{
    static const int64_t sizes[][2] = {{40, 70}, {0, 300}, {33, 300}, {65, 1100}};
    const struct sh_operand *t = from;

    /* clang-format off */
    return (struct sh_matmul){
        .m = sizes[i][0], .n = 96, .k = sizes[i][1], .in_dtype = t[0].dtype, .out_dtype = SH_F32,
        .a = t[0].data, .lda = t[0].dim[1], .trans_a = t[0].dim[0] > t[0].dim[1],
        .b = t[1].data, .ldb = t[1].dim[1],
        .c = (float *)t[2].data + i * 96 * 96, .ldc = 96,
    };
    /* clang-format on */
}

/* Among others a product has the bits that it has alone, on any number of threads. With two threads the third of them is
 * small enough to be one's, with three the first. */
static void check_several(const struct sh_operand t[3], bool alone, int threads)
{
    struct sh_matmul largest = {.m = 96, .n = 96, .k = 1100, .in_dtype = t[0].dtype, .out_dtype = SH_F32};
    struct sh_matmul small = {.m = 40, .n = 96, .k = 300, .in_dtype = t[0].dtype, .out_dtype = SH_F32};

    omp_set_num_threads(threads);
    int64_t work_bytes = sh_gemm_work_bytes(&largest, threads), smalls = threads * sh_gemm_work_bytes(&small, 1);
    work_bytes = work_bytes > smalls ? work_bytes : smalls;
    void *work = aligned_alloc(64, (size_t)work_bytes + 64);
    struct sh_gemm_several all = {.n = 4, .at = one_of, .from = t};
    if (!alone)
        assert_int_equal(sh_gemm_run_several(&all, work, work_bytes), SH_OK);
    for (int64_t i = 0; alone && i < all.n; i++) {
        struct sh_matmul g = one_of(t, i);
        if (g.m)
            assert_int_equal(sh_gemm_run(&g, work, work_bytes), SH_OK);
    }
    free(work);
}

static void test_several(void **state)
{
    (void)state;
    optest_seed(7);
    for (int turned = 0; turned < 2; turned++) {
        struct sh_operand t[] = {turned ? tensor(SH_BF16, 1100, 96) : tensor(SH_BF16, 96, 1100),
                                 tensor(SH_BF16, 1100, 96), tensor(SH_F32, 4 * 96, 96)};
        size_t bytes = (size_t)(4 * 96 * 96) * sizeof(float);
        float *want = malloc(bytes);
        check_several(t, true, 1);
        memcpy(want, t[2].data, bytes);
        for (int threads = 1; threads < 4; threads++) {
            check_several(t, false, threads);
            assert_memory_equal(want, t[2].data, bytes);
        }
        free(want);
        for (int i = 0; i < 3; i++)
            free(t[i].data);
    }
}

/* A matrix by its own transpose: the product below the diagonal and its copy above, one tile and several. Elements behind
 * a row of the result stay. */
static void test_mirrored(void **state)
{
    static const int64_t sizes[][2] = {{1, 3}, {50, 17}, {300, 40}, {700, 9}};

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t m = sizes[s][0], k = sizes[s][1], stride = m + PAD;
        struct product p = {.m = m, .n = m, .k = k, .trans_b = true};
        struct sh_operand a = tensor(SH_F32, m, k), was = tensor(SH_F32, m, stride), t[5] = {a, a, was};
        size_t bytes = (size_t)(m * stride) * sizeof(float);
        struct sh_operand c[3];

        for (int threads = 1; threads < 4; threads++) {
            struct sh_matmul g = {.m = m,
                                  .n = m,
                                  .k = k,
                                  .in_dtype = SH_F32,
                                  .a = a.data,
                                  .lda = k,
                                  .b = a.data,
                                  .ldb = k,
                                  .trans_b = true,
                                  .out_dtype = SH_F32,
                                  .ldc = stride};

            c[threads - 1] = empty(SH_F32, m, stride);
            g.c = memcpy(c[threads - 1].data, was.data, bytes);
            omp_set_num_threads(threads);
            assert_int_equal(sh_gemm_run_mirrored(&g), SH_OK);
            assert_memory_equal(c[0].data, g.c, bytes);
        }
        for (int64_t at = 0; at < m * stride; at += 7)
            check_element(sh_gemm_engine_for(SH_F32), &p, t, &c[0], at);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < i; j++)
                assert_true(optest_get(&c[0], i * stride + j) == optest_get(&c[0], j * stride + i));
        for (int i = 0; i < 3; i++)
            free(c[i].data);
        free(a.data);
        free(was.data);
    }
}

/* Callers divide rows, and have the scratch of the largest part: smaller products of any engine must do with that. Both
 * sides of what the thin ones take. */
static void test_work_of_larger(void **state)
{
    static const int64_t sizes[] = {1, 16, 63, 64, 65, 512, 8192};
    enum { N = sizeof sizes / sizeof *sizes };

    (void)state;
    for (int i = 0; i < N * N * N * 4; i++) {
        struct sh_matmul g = {.m = sizes[i % N],
                              .n = sizes[i / N % N],
                              .k = sizes[i / N / N % N],
                              .trans_a = i / N / N / N % 2,
                              .in_dtype = SH_BF16,
                              .out_dtype = i / N / N / N / 2 ? SH_F32 : SH_BF16};
        int64_t *const size[] = {&g.m, &g.n, &g.k}, bytes = sh_gemm_work_bytes(&g, 3);

        assert_true(sh_gemm_work_bytes_on(sh_gemm_engine_for(SH_BF16), &g, 3) <= bytes);
        for (int d = 0; d < 3; d++) {
            int64_t whole = *size[d];

            *size[d] = (whole + 1) / 2;
            assert_true(sh_gemm_work_bytes(&g, 3) <= bytes);
            *size[d] = whole;
        }
    }
}

static void test_work_too_small(void **state)
{
    (void)state;
    float a = 1, c = 0;
    struct sh_matmul g = {.m = 1,
                          .n = 1,
                          .k = 1,
                          .in_dtype = SH_BF16,
                          .out_dtype = SH_BF16,
                          .a = &a,
                          .lda = 1,
                          .b = &a,
                          .ldb = 1,
                          .c = &c,
                          .ldc = 1};
    assert_int_equal(sh_gemm_run(&g, NULL, 0), SH_E_BUG);
}

struct layer {
    int64_t rows, in, out;
};
static const struct layer layers[] = {{1, 1, 1},     {3, 17, 5},     {17, 64, 33},  {65, 130, 100},
                                      {300, 40, 70}, {260, 33, 400}, {1, 300, 513}, {96, 257, 384}};

static void check_linear(enum sh_dtype act, struct layer l, bool w_in_out, bool bias)
{
    struct optest t;
    optest_begin(&t, SH_OP_LINEAR);
    t.attr.linear.w_in_out = w_in_out;
    optest_in(&t, 0, act, DIMS(l.rows, 1, l.in));
    optest_in(&t, 1, act, DIMS(w_in_out ? l.in : l.out, w_in_out ? l.out : l.in));
    if (bias)
        optest_in(&t, 2, act, DIMS(l.out));
    optest_out(&t, 0, act, DIMS(l.rows, 1, l.out));
    struct sh_bound bound = sh_bound_sum(act, (double)l.in);
    agree(&t, 1, &bound, -1, -1);
    optest_end(&t);
}

static void check_linear_bwd_x(enum sh_dtype act, struct layer l, bool w_in_out, bool residual)
{
    struct optest t;
    optest_begin(&t, SH_OP_LINEAR_BWD_X);
    t.attr.linear.w_in_out = w_in_out;
    optest_in(&t, 0, act, DIMS(l.rows, l.out));
    optest_in(&t, 1, act, DIMS(w_in_out ? l.in : l.out, w_in_out ? l.out : l.in));
    if (residual)
        optest_in(&t, 2, act, DIMS(l.rows, l.in));
    optest_out(&t, 0, act, DIMS(l.rows, l.in));
    struct sh_bound bound = sh_bound_sum(act, (double)l.out);
    /* An aliased f32 sum starts with the residual instead of ending with it, so the same bits are not required. */
    agree(&t, 1, &bound, residual && act != SH_F32 ? 2 : -1, 0);
    optest_end(&t);
}

static void check_linear_bwd_w(enum sh_dtype act, struct layer l, bool w_in_out, bool add)
{
    struct optest t;
    optest_begin(&t, SH_OP_LINEAR_BWD_W);
    t.attr.linear.w_in_out = w_in_out;
    optest_in(&t, 0, act, DIMS(l.rows, l.out));
    optest_in(&t, 1, act, DIMS(l.rows, l.in));
    optest_out(&t, 0, SH_F32, DIMS(w_in_out ? l.in : l.out, w_in_out ? l.out : l.in));
    if (add)
        optest_add_to(&t, 0);
    struct sh_bound bound = sh_bound_sum(SH_F32, (double)l.rows);
    agree(&t, 1, &bound, -1, -1);
    optest_end(&t);
}

static void check_layers(enum sh_dtype act)
{
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        for (int v = 0; v < 4; v++) {
            check_linear(act, layers[i], v & 1, v & 2);
            check_linear_bwd_x(act, layers[i], v & 1, v & 2);
            check_linear_bwd_w(act, layers[i], v & 1, v & 2);
        }
    }
}

static void test_linear_f32(void **state)
{
    (void)state;
    optest_seed(2);
    check_layers(SH_F32);
}

static void test_linear_bf16(void **state)
{
    (void)state;
    optest_seed(3);
    check_layers(SH_BF16);
}

static void test_linear_f16(void **state)
{
    (void)state;
    optest_seed(6);
    check_layers(SH_F16);
}

static void check_lora(struct optest *t, int n, int alias_in)
{
    struct sh_bound bound[3];
    for (int o = 0; o < n; o++)
        bound[o] = (struct sh_bound){.atol = lora_bound(t, o), .rtol = lora_relative(t)};
    agree(t, n, bound, alias_in, 0);
    optest_end(t);
}

/* z in the storage of y has the same bits as elsewhere; dx in the storage of dres starts an f32 sum with it. */
static void check_loras(enum sh_dtype act, const struct lora_shape *s)
{
    struct optest t;
    lora_forward(&t, act, s);
    check_lora(&t, 2, 0);
    for (int v = 0; v < 4; v++) {
        bool dx = v != 3, dres = v & 1;
        lora_backward(&t, act, s, dx, dx && dres, v & 2);
        check_lora(&t, 3, dx && dres && act != SH_F32 ? 5 : -1);
    }
}

static void test_lora(void **state)
{
    (void)state;
    optest_seed(5);
    for (int i = 0; i < LORA_SHAPES; i++) {
        check_loras(SH_F32, &lora_shapes[i]);
        check_loras(SH_BF16, &lora_shapes[i]);
        check_loras(SH_F16, &lora_shapes[i]);
    }
}

/* A residual in the storage of its gradient, f32, against the reference. */
static void test_residual_in_place(void **state)
{
    (void)state;
    optest_seed(4);
    struct optest ref, cpu;
    optest_begin(&ref, SH_OP_LINEAR_BWD_X);
    optest_in(&ref, 0, SH_F32, DIMS(130, 70));
    optest_in(&ref, 1, SH_F32, DIMS(70, 200));
    optest_in(&ref, 2, SH_F32, DIMS(130, 200));
    optest_out(&ref, 0, SH_F32, DIMS(130, 200));
    optest_copy(&cpu, &ref);
    optest_alias(&cpu, 2, 0);
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_run(&cpu, &sh_kernels_cpu, 2);
    optest_close(&ref, &cpu, 0, 70);
    optest_end(&cpu);
    optest_end(&ref);
}

/* A product with few rows: y = x w, with w stored [n,k] if trans_b says so. */
static struct sh_matmul few_rows(const struct sh_operand *x, const struct sh_operand *w, bool trans_b,
                                 const struct sh_operand *y)
{
    return (struct sh_matmul){.m = x->dim[0],
                              .n = y->dim[1],
                              .k = x->dim[1],
                              .in_dtype = x->dtype,
                              .out_dtype = y->dtype,
                              .a = x->data,
                              .lda = x->dim[1],
                              .b = w->data,
                              .ldb = w->dim[1],
                              .trans_b = trans_b,
                              .c = y->data,
                              .ldc = y->dim[1]};
}

/* Stretches of the rows, starting at any row, by more threads than computed `all`. */
static void same_bits_in_any_company(struct sh_matmul g, const struct sh_operand *x, const struct sh_operand *all)
{
    struct sh_operand few = tensor(all->dtype, g.m, g.n);
    int64_t rows = g.m;

    omp_set_num_threads(2);
    g.c = few.data;
    for (g.m = 1; g.m <= rows; g.m++)
        for (int64_t row = 0; row + g.m <= rows; row += g.m) {
            size_t from = (size_t)(row * g.n * sh_dtype_bytes(all->dtype)),
                   bytes = (size_t)(g.m * g.n * sh_dtype_bytes(all->dtype));
            g.a = (char *)x->data + row * g.k * sh_dtype_bytes(x->dtype);
            sh_gemv_run(&g);
            if (memcmp(few.data, (char *)all->data + from, bytes) != 0)
                fail_msg("%s %lld x %lld%s: %lld rows from %lld on differ", sh_dtype_name(x->dtype), (long long)g.n,
                         (long long)g.k, g.trans_b ? "" : ", [k,n]", (long long)g.m, (long long)row);
        }
    free(few.data);
}

static void are_right(const struct sh_operand *x, const struct sh_operand *w, bool trans_b,
                      const struct sh_operand *bias, const struct sh_operand *y)
{
    int64_t n = y->dim[1], k = x->dim[1];

    for (int64_t at = 0; at < y->dim[0] * n; at++) {
        int64_t i = at / n, j = at % n;
        double sum = bias ? optest_get(bias, j) : 0, bound;

        for (int64_t l = 0; l < k; l++)
            sum += optest_get(x, i * k + l) * optest_get(w, trans_b ? j * k + l : l * n + j);
        bound = 0x1p-22 * (double)(k + 8) + (y->dtype == SH_F32 ? 0 : sh_bound_eps(y->dtype) * fabs(sum));
        assert_true(fabs(optest_get(y, at) - sum) <= bound);
    }
}

/* way: bit 0 the inputs are 16 bits; 1 w is [n,k]; 2 there is a bias, and the output has the type of the inputs; 3
 * float16 */
static void check_few_rows(int64_t n, int64_t k, int way)
{
    enum { ROWS = 8 };
    enum sh_dtype half = way & 8 ? SH_F16 : SH_BF16, in = way & 1 ? half : SH_F32;
    bool trans_b = way & 2;
    struct sh_operand x = tensor(in, ROWS, k), w = trans_b ? tensor(in, n, k) : tensor(in, k, n), b = tensor(in, 1, n),
                      *bias = way & 4 ? &b : NULL, y = tensor(way & 4 ? in : SH_F32, ROWS, n);
    struct sh_matmul g = few_rows(&x, &w, trans_b, &y);

    g.bias = bias ? b.data : NULL;
    assert_true(sh_gemv_takes(&g));
    omp_set_num_threads(1);
    sh_gemv_run(&g);
    same_bits_in_any_company(g, &x, &y);
    are_right(&x, &w, trans_b, bias, &y);
    free(x.data);
    free(w.data);
    free(b.data);
    free(y.data);
}

/* Few rows: each of them has the same bits as it has alone, whatever its neighbours, and is correct. */
static void test_few_rows(void **state)
{
    static const int64_t sizes[][2] = {{1, 1}, {5, 3}, {64, 16}, {67, 100}, {130, 515}, {520, 40}}; /* n, k */
    (void)state;
    optest_seed(8);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int way = 0; way < 16; way++)
            check_few_rows(sizes[s][0], sizes[s][1], way);
}

/* Each pattern of float16 times 1, inside and outside of whole vectors, by rows and by columns of w. */
static void test_few_rows_of_f16(void **state)
{
    enum { N = 1 << 13, K = 65 };
    struct sh_operand x = tensor(SH_F16, 1, K), by_rows = tensor(SH_F16, N, K), by_columns = tensor(SH_F16, K, N),
                      y = tensor(SH_F16, 1, N);
    (void)state;
    for (int first = 0; first < 1 << 16; first += N)
        for (int way = 0; way < 3; way++) {
            const struct sh_operand *w = way < 2 ? &by_rows : &by_columns;
            struct sh_matmul g = few_rows(&x, w, way < 2, &y);
            int at = way == 1 ? K - 1 : 3; /* the last one is after the whole vectors */
            memset(x.data, 0, K * sizeof(sh_f16));
            memset(w->data, 0, N * K * sizeof(sh_f16));
            ((sh_f16 *)x.data)[at] = 0x3c00;
            for (int i = 0; i < N; i++)
                ((sh_f16 *)w->data)[way < 2 ? i * K + at : at * N + i] = (sh_f16)(first + i);
            sh_gemv_run(&g);
            for (int i = 0; i < N; i++) {
                float found = sh_f16_to_f32(((sh_f16 *)y.data)[i]), wanted = sh_f16_to_f32((sh_f16)(first + i));
                if (isnan(wanted) ? !isnan(found) : found != wanted)
                    fail_msg("%04x times 1 is %g, not %g", first + i, (double)found, (double)wanted);
            }
        }
    free(x.data);
    free(by_rows.data);
    free(by_columns.data);
    free(y.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_few_rows_of_f16),
        cmocka_unit_test(test_engines),
#ifdef __x86_64__
        cmocka_unit_test(test_place),
#endif
#ifdef SH_WIDE
        cmocka_unit_test(test_thin),
#endif
#ifdef SH_QUADS
        cmocka_unit_test(test_place_in_panels),
        cmocka_unit_test(test_denormals),
#endif
        cmocka_unit_test(test_several),
        cmocka_unit_test(test_work_too_small),
        cmocka_unit_test(test_work_of_larger),
        cmocka_unit_test(test_mirrored),
        cmocka_unit_test(test_linear_f32),
        cmocka_unit_test(test_linear_bf16),
        cmocka_unit_test(test_linear_f16),
        cmocka_unit_test(test_residual_in_place),
        cmocka_unit_test(test_lora),
    };
    return cmocka_run_group_tests_name("cpu_gemm", tests, NULL, NULL);
}
