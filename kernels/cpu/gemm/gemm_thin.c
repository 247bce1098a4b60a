/* Products in bf16 with a side, or an inner dimension, of at most 64: adapters of low rank, routers. Such a product reads or
 * writes one tall matrix and little else, so what bounds it is how fast that passes through a core. What is thin is packed
 * once, by all threads; rows of the tall matrix that lie as the unit wants them are not packed, and it is added to by
 * squares that are still in the L1 cache.
 *
 *   down    C [m,thin] = A op(B)     sums over the tall A: rows of A are tiles as they are stored
 *   up      C [m,n] = A [m,thin] B   a thin inner dimension: C itself is tall
 *   outer   C [thin,n] = A' B        sums over the rows of the tall B, packed a block at a time; or C' [m,thin] of a tall A
 *
 * Bits are those of gemm_panels.c: a sum takes its inner elements in ascending order, a float C the sums of stretches of
 * them. Floor: the bytes of the tall matrix, 25 to 30 GB/s from the L3 cache; without AMX often the arithmetic. */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#ifdef SH_WIDE

#include "kernels/cpu/gemm/gemm_engine.h"

#include <omp.h>

enum { SIDE = SH_PANEL_SIDE, STEP = SH_PANEL_STEP };
enum { MOST = 64, THIN = MOST / SIDE };     /* elements, and panels, of what is thin */
enum { STRETCH = SH_PANEL_STRETCH / SIDE }; /* steps after which a float C takes the sums */
enum { EDGE = 16 };                         /* steps of rows that are packed, at a time */
enum { ACROSS = 8 };                        /* squares of C at a time */
/* Panels of the tall matrix of `outer` whose sums a thread keeps in its L2 cache, and steps of them that it packs at a
 * time. Panels are a line more than a power of two apart, so that they share the L1 cache. */
enum { WIDTH = 96, TALL = 2, APART = TALL * STEP + SIDE };

struct thin {
    const struct sh_matmul *g;
    sh_bf16 *small; /* packed, [panels][steps][STEP] */
    /* This thread's. */
    sh_bf16 *packed;
    float *sums;
};

enum form { NONE, DOWN, UP, OUTER, TURNED };

static enum form form_of(const struct sh_matmul *g)
{
    if (!g->trans_a)
        return g->k <= MOST ? UP : g->n <= MOST ? DOWN : NONE;
    if (g->trans_b || g->bias || g->out_dtype != SH_F32)
        return NONE;
    return g->m <= MOST ? OUTER : g->n <= MOST ? TURNED : NONE;
}

static bool usable(void)
{
    return sh_panel_unit() && sh_panel_unit()->multiply_stored;
}

static bool takes(const struct sh_matmul *g)
{
    return form_of(g) != NONE;
}

/* Bytes of a thread: what it packs of the tall matrix, and squares of sums. */
enum { PACKED_BYTES = WIDTH * APART * (int)sizeof(sh_bf16) };
_Static_assert(EDGE *STEP <= WIDTH * APART, "rows have room");

static int64_t own_bytes(const struct sh_matmul *g)
{
    int64_t tall = sh_panel_least(sh_panels(g->m > g->n ? g->m : g->n), WIDTH);
    int64_t squares = sh_panel_least(sh_panels(g->m < g->n ? g->m : g->n), THIN) * tall;

    return PACKED_BYTES + (squares < ACROSS ? ACROSS : squares) * STEP * (int64_t)sizeof(float);
}

static int64_t product_bytes(const struct sh_matmul *g, int threads)
{
    int64_t side = g->m > g->n ? g->m : g->n, longest = side > g->k ? side : g->k;

    return THIN * sh_panels(longest) * STEP * (int64_t)sizeof(sh_bf16) + threads * own_bytes(g);
}

/* Steps [first, first + n) of the sides of A or B from `side` on, at most `sides` of them. */
static struct sh_panel_source source_of(const struct sh_matmul *g, bool rows, int64_t side, int64_t sides,
                                        int64_t first, int64_t n)
{
    int64_t ld = rows ? g->lda : g->ldb, all = rows ? g->m : g->n, k = first * SIDE;
    bool inner_rows = rows ? g->trans_a : !g->trans_b;
    const sh_bf16 *data = rows ? g->a : g->b;

    return (struct sh_panel_source){.data = data + (inner_rows ? k * ld + side : side * ld + k),
                                    .step = ld,
                                    .inner_rows = inner_rows,
                                    .sides = sh_panel_least(all - side, sides),
                                    .depth = sh_panel_least(g->k - k, n * SIDE)};
}

/* What is thin, by all threads: A for `outer`, otherwise B. */
static void pack_small(const struct thin *t, enum form form)
{
    bool rows = form == OUTER;
    int64_t panels = sh_panels(rows ? t->g->m : t->g->n), steps = sh_panels(t->g->k);

#pragma omp for schedule(static)
    for (int64_t i = 0; i < panels * steps; i++) {
        struct sh_panel_source from = source_of(t->g, rows, i / steps * SIDE, SIDE, i % steps, 1);
        if (rows || form == TURNED)
            sh_panel_pack_rows(&from, t->small + i * STEP, STEP);
        else
            sh_panel_pack_cols(&from, t->small + i * STEP, STEP);
    }
}

/* sums (+)= rows [row, row + 32) of A times panel `small` of B, steps [first, end). Rows that are whole are multiplied where
 * they are. */
static void multiply_rows(const struct thin *t, int64_t row, const sh_bf16 *small, int64_t first, int64_t end,
                          int64_t live)
{
    const struct sh_matmul *g = t->g;
    int64_t whole = row + SIDE <= g->m ? sh_panel_least(end, g->k / SIDE) : first;

    if (first < whole)
        sh_panel_unit()->multiply_stored((const sh_bf16 *)g->a + row * g->lda + first * SIDE, g->lda,
                                         small + first * STEP, t->sums, whole - first, false, live);
    for (int64_t s = whole; s < end; s += EDGE) {
        struct sh_panel_source from = source_of(g, true, row, SIDE, s, sh_panel_least(EDGE, end - s));
        sh_panel_pack_rows(&from, t->packed, EDGE * STEP);
        sh_panel_multiply(t->packed, small + s * STEP, t->sums, sh_panels(from.depth), s > first);
    }
}

static void run_down(const struct thin *t)
{
    const struct sh_matmul *g = t->g;
    int64_t steps = sh_panels(g->k), stretch = g->out_dtype == SH_F32 ? STRETCH : steps;

#pragma omp for schedule(static)
    for (int64_t row = 0; row < g->m; row += SIDE)
        for (int64_t col = 0; col < g->n; col += SIDE)
            for (int64_t s = 0; s < steps; s += stretch) {
                struct sh_matmul part = *g;
                part.bias = s ? NULL : g->bias;
                part.addend = s ? g->c : g->addend;
                multiply_rows(t, row, t->small + col / SIDE * steps * STEP, s, sh_panel_least(s + stretch, steps),
                              g->n - col);
                sh_panel_emit(&part, t->sums, row, col);
            }
}

static void run_up(const struct thin *t)
{
    const struct sh_matmul *g = t->g;
    int64_t steps = sh_panels(g->k), cols = sh_panels(g->n);
    void (*half)(const sh_bf16 *, const sh_bf16 *, float *) = g->k <= SIDE / 2 ? sh_panel_unit()->multiply_half : NULL;

#pragma omp for schedule(static)
    for (int64_t row = 0; row < g->m; row += SIDE) {
        struct sh_panel_source from = source_of(g, true, row, SIDE, 0, steps);
        sh_panel_pack_rows(&from, t->packed, steps * STEP);
        for (int64_t c = 0; c < cols; c += ACROSS) {
            int64_t n = sh_panel_least(ACROSS, cols - c);
            for (int64_t i = 0; i < n; i++) {
                const sh_bf16 *small = t->small + (c + i) * steps * STEP;
                if (sh_panel_unit()->asks)
                    sh_panel_prefetch_addend(g, row, (c + i + ACROSS) * SIDE);
                if (half)
                    half(t->packed, small, t->sums + i * STEP);
                else
                    sh_panel_multiply(t->packed, small, t->sums + i * STEP, steps, false);
            }
            sh_panel_emit_band(g, t->sums, row, c * SIDE, n);
        }
    }
}

/* Panels [first, first + n) of the tall matrix, over the stretch of steps [begin, end). */
static void sum_outer(const struct thin *t, bool rows, int64_t first, int64_t n, int64_t begin, int64_t end)
{
    int64_t live = rows ? t->g->n : t->g->m, small = sh_panels(live), steps = sh_panels(t->g->k);

    for (int64_t s = begin; s < end; s += TALL) {
        struct sh_panel_source from = source_of(t->g, rows, first * SIDE, n * SIDE, s, sh_panel_least(TALL, end - s));
        sh_panel_pack_pairs(&from, t->packed, APART);
        for (int64_t i = 0; i < small * n; i++)
            sh_panel_unit()->multiply(t->small + (i / n * steps + s) * STEP, t->packed + i % n * APART,
                                      t->sums + i * STEP, sh_panels(from.depth), s > begin,
                                      sh_panel_least(live - i / n * SIDE, SIDE));
    }
}

/* Store a square of sums transposed. */
static void emit_turned(const struct sh_matmul *g, const float *sums, int64_t row, int64_t col)
{
    enum { HALF = SIDE / 2 };
    _Alignas(64) float turned[STEP];

    for (int64_t i = 0; i < SIDE; i += HALF)
        for (int64_t j = 0; j < SIDE; j += HALF)
            sh_panel_turn(sums + i * SIDE + j, SIDE, turned + j * SIDE + i, SIDE);
    sh_panel_emit(g, turned, row, col);
}

/* As wide as there is room for, and some for each thread. */
static int64_t width_of(int64_t panels)
{
    int64_t pieces = (panels + WIDTH - 1) / WIDTH, threads = omp_get_num_threads();

    pieces = (pieces + threads - 1) / threads * threads;
    return (panels + pieces - 1) / pieces;
}

static void run_outer(const struct thin *t, bool turned)
{
    const struct sh_matmul *g = t->g;
    int64_t tall = sh_panels(turned ? g->m : g->n), small = sh_panels(turned ? g->n : g->m), steps = sh_panels(g->k);
    int64_t width = width_of(tall);

#pragma omp for schedule(static)
    for (int64_t p = 0; p < tall; p += width)
        for (int64_t s = 0; s < steps; s += STRETCH) {
            int64_t n = sh_panel_least(width, tall - p);
            struct sh_matmul part = *g;
            part.addend = s ? g->c : g->addend;
            sum_outer(t, turned, p, n, s, sh_panel_least(s + STRETCH, steps));
            for (int64_t i = 0; i < small * n; i++) {
                if (turned)
                    emit_turned(&part, t->sums + i * STEP, (p + i % n) * SIDE, i / n * SIDE);
                else
                    sh_panel_emit(&part, t->sums + i * STEP, i / n * SIDE, (p + i % n) * SIDE);
            }
        }
}

static sh_rc product(const struct sh_matmul *g, void *work)
{
    enum form form = form_of(g);

    SH_REQUIRE(form != NONE);
#pragma omp parallel
    {
        char *own = (char *)work + product_bytes(g, omp_get_thread_num());
        struct thin t = {.g = g, .small = work, .packed = (sh_bf16 *)(void *)own};

        t.sums = (float *)(void *)(own + PACKED_BYTES);
        pack_small(&t, form);
        sh_panel_begin();
        if (form == DOWN)
            run_down(&t);
        else if (form == UP)
            run_up(&t);
        else
            run_outer(&t, form == TURNED);
        sh_panel_end();
    }
    return SH_OK;
}

const struct sh_gemm_engine sh_gemm_engine_thin = {
    .name = "thin panels",
    .in_dtype = SH_BF16,
    .usable = usable,
    .takes = takes,
    .product_bytes = product_bytes,
    .product = product,
};

#endif
