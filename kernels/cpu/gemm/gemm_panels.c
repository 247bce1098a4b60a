/* Products in bf16 of packed panels (panel.h). With AMX the libraries leave a third to a half of the unit unused,
 * because they pack both sides again and again, or store each partial sum; with AVX-512 a tenth.
 *
 * The shorter side of C is kept: all threads pack its panels once, over the whole inner dimension. The other side is
 * cut into slices. A thread packs a slice for itself, SH_PANEL_DEPTH steps at a time, multiplies it with all kept
 * panels and keeps the sums in its L2 cache, from where they go to C when their last step is done. So what a thread
 * packs for itself never leaves its caches, and threads meet twice per product. A sum takes its inner elements in
 * ascending order whatever thread works on it, so the number of threads changes no bit. With a unit that multiplies in
 * f32, a thread widens what it packs for itself at once, and a kept panel when its turn comes: half as much is read from
 * the L3 cache. Floor: 2*m*n*k operations at the rate of the unit; the caches allow half of that with AMX, 92 % with
 * AVX-512, 80 to 88 % in f32 (doc/notebook/kernels.md). */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#ifdef SH_PANELS

#include "kernels/cpu/gemm/gemm_engine.h"

#include <omp.h>

enum { SIDE = SH_PANEL_SIDE, STEP = SH_PANEL_STEP, DEPTH = SH_PANEL_DEPTH, CHUNK = DEPTH * STEP };
enum { KEPT = 32, KEPT_ELEMS = 8 << 20 }; /* upper limits on kept panels and elements */
enum { DEEP = SH_PANEL_STRETCH };
_Static_assert(DEEP <= KEPT_ELEMS / (KEPT * SIDE), "a stretch is kept whole");

/* One product; [first, first + count) are the panels kept now. */
struct product {
    const struct sh_matmul *g;
    bool keeps_rows;
    int64_t first, count;
    sh_bf16 *kept; /* [chunks of the inner dimension][count][CHUNK] */
    char *panels;  /* this thread's: [panels of a slice][CHUNK] */
    float *wide;   /* this thread's: the kept panel that it works with, [CHUNK], if its unit is wide */
    float *sums;   /* this thread's: [kept panels][panels of the slice][STEP] */
    int64_t ahead; /* panels from a slice to the one that this thread probably gets next */
};

static const struct sh_panel_unit *unit(void)
{
    return sh_panel_product_unit();
}

/* Bytes of a packed panel of a slice. */
static int64_t chunk_bytes(void)
{
    return CHUNK * (unit()->wide ? (int64_t)sizeof(float) : (int64_t)sizeof(sh_bf16));
}

static int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The number of panels of the shorter side of C that are kept at a time, at most. */
static int64_t kept_panels(const struct sh_matmul *g)
{
    return sh_panel_least(sh_panels(sh_panel_least(g->m, g->n)), KEPT);
}

static int64_t kept_bytes(const struct sh_matmul *g)
{
    int64_t depth = g->out_dtype == SH_F32 ? sh_panel_least(g->k, DEEP) : g->k;
    int64_t elems = kept_panels(g) * div_up(depth, DEPTH * SIDE) * CHUNK;

    return sh_panel_least(elems, KEPT_ELEMS) * (int64_t)sizeof(sh_bf16);
}

/* The maximum number of panels in a slice of the longer side. */
static int64_t most_slice(const struct sh_matmul *g)
{
    return sh_panel_least(sh_panels(g->m > g->n ? g->m : g->n), unit()->slice);
}

/* Bytes per thread: the packed panels of a slice, one that is widened, and sums. */
static int64_t own_bytes(const struct sh_matmul *g)
{
    int64_t sums = kept_panels(g) * STEP * (int64_t)sizeof(float);

    return most_slice(g) * (chunk_bytes() + sums) + (unit()->wide ? chunk_bytes() : 0);
}

static int64_t product_bytes(const struct sh_matmul *g, int threads)
{
    return kept_bytes(g) + threads * own_bytes(g);
}

/* Whether the inner dimension counts the stored rows of A, or of B. */
static bool has_inner_rows(const struct sh_matmul *g, bool rows)
{
    return rows ? g->trans_a : !g->trans_b;
}

/* `count` panels of the rows or columns, from `first` on, over at most `steps` steps from inner element k on. */
static struct sh_panel_source source_of(const struct sh_matmul *g, bool rows, int64_t first, int64_t count, int64_t k,
                                        int64_t steps)
{
    int64_t side = first * SIDE, ld = rows ? g->lda : g->ldb;
    bool inner_rows = has_inner_rows(g, rows);

    return (struct sh_panel_source){.data = (const sh_bf16 *)(rows ? g->a : g->b) +
                                            (inner_rows ? k * ld + side : side * ld + k),
                                    .step = ld,
                                    .inner_rows = inner_rows,
                                    .sides = sh_panel_least((rows ? g->m : g->n) - side, count * SIDE),
                                    .depth = sh_panel_least(g->k - k, steps * SIDE)};
}

/* To be kept. Panels that are widened later are columns on either side. */
static void pack(const struct sh_panel_source *s, bool rows, sh_bf16 *panels)
{
    if (rows && !unit()->wide)
        sh_panel_pack_rows(s, panels, CHUNK);
    else
        sh_panel_pack_cols(s, panels, CHUNK);
}

/* To be multiplied with those that are kept. */
static void pack_own(const struct sh_panel_source *s, bool rows, char *panels)
{
#ifdef SH_WIDE
    if (unit()->wide) {
        sh_panel_pack_wide(s, (float *)(void *)panels, CHUNK);
        return;
    }
#endif
    pack(s, rows, (sh_bf16 *)(void *)panels);
}

/* Prefetch the n-th of `parts` parts of what is packed next. */
SH_PANEL_ASKS void prefetch_part(const struct sh_panel_source *s, int64_t n, int64_t parts)
{
    int64_t rows = s->inner_rows ? s->depth : s->sides, cols = s->inner_rows ? s->sides : s->depth;

    for (int64_t r = rows * n / parts; r < rows * (n + 1) / parts; r++)
        sh_panel_prefetch(s->data + r * s->step, cols * (int64_t)sizeof *s->data);
}

/* Chunk c of kept panel i. */
static sh_bf16 *kept_panel(const struct product *p, int64_t c, int64_t i)
{
    return p->kept + (c * p->count + i) * CHUNK;
}

/* A thread takes 32 stored rows at a time, and all that is kept of them: hardware prefetching follows contiguous
 * memory. */
static void pack_kept(const struct product *p)
{
    bool rows = p->keeps_rows;
    int64_t steps = sh_panels(p->g->k);

    if (has_inner_rows(p->g, rows)) {
#pragma omp for schedule(static)
        for (int64_t s = 0; s < steps; s++) {
            struct sh_panel_source from = source_of(p->g, rows, p->first, p->count, s * SIDE, 1);
            pack(&from, rows, kept_panel(p, s / DEPTH, 0) + s % DEPTH * STEP);
        }
        return;
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < p->count; i++) {
        for (int64_t s = 0; s < steps; s += DEPTH) {
            struct sh_panel_source from = source_of(p->g, rows, p->first + i, 1, s * SIDE, DEPTH);
            pack(&from, rows, kept_panel(p, s / DEPTH, i));
        }
    }
}

/* Where in C the n-th square of a slice goes: there are `count` panels of the slice for each kept one. */
struct place {
    int64_t row, col;
};

static struct place place_of(const struct product *p, int64_t first, int64_t count, int64_t n)
{
    int64_t kept = (p->first + n / count) * SIDE, own = (first + n % count) * SIDE;

    return p->keeps_rows ? (struct place){kept, own} : (struct place){own, kept};
}

/* The source of chunk c of the inner dimension of a slice; empty past the last one. */
static struct sh_panel_source chunk_of(const struct product *p, int64_t c, int64_t first, int64_t count)
{
    return source_of(p->g, !p->keeps_rows, first, count, c * DEPTH * SIDE, DEPTH);
}

/* Chunk c: `count` packed panels of a slice, from `first` on, times all kept ones. A square is written to C while the
 * next one is computed. */
static void multiply_chunk(const struct product *p, int64_t c, int64_t first, int64_t count)
{
    int64_t left = p->g->k - c * DEPTH * SIDE, steps = sh_panels(sh_panel_least(left, DEPTH * SIDE));
    bool last = left <= DEPTH * SIDE;
    struct sh_panel_source next = chunk_of(p, last ? 0 : c + 1, last ? first + p->ahead : first, count);
    struct place at = {0}, before = {0};

    for (int64_t n = 0; n < p->count * count; n++, before = at) {
        const sh_bf16 *kept = kept_panel(p, c, n / count);
        const void *own = p->panels + n % count * chunk_bytes(), *other = unit()->wide ? p->wide : (const void *)kept;
        at = place_of(p, first, count, n);
        /* The next kept panel has been evicted from the L2 cache since the last slice. */
        sh_panel_prefetch(kept + CHUNK + CHUNK * (n % count) / count, CHUNK / count * (int64_t)sizeof *kept);
        prefetch_part(&next, n, p->count * count);
        if (last)
            sh_panel_prefetch_addend(p->g, at.row, at.col);
#ifdef SH_WIDE
        if (unit()->wide && n % count == 0)
            sh_panel_widen(kept, p->wide, steps);
#endif
        unit()->multiply(p->keeps_rows ? other : own, p->keeps_rows ? own : other, p->sums + n * STEP, steps, c > 0,
                         sh_panel_least(p->g->m - at.row, SIDE));
        if (last && n > 0)
            sh_panel_emit(p->g, p->sums + (n - 1) * STEP, before.row, before.col);
    }
    if (last)
        sh_panel_emit(p->g, p->sums + (p->count * count - 1) * STEP, at.row, at.col);
}

/* Panels [begin, end) of the side that is not kept. */
static void multiply_slice(const struct product *p, int64_t begin, int64_t end)
{
    for (int64_t c = 0; c * DEPTH * SIDE < p->g->k; c++) {
        struct sh_panel_source from = chunk_of(p, c, begin, end - begin);
        pack_own(&from, !p->keeps_rows, p->panels);
        multiply_chunk(p, c, begin, end - begin);
    }
}

/* Panels per slice: each thread should have at least two slices. */
static int64_t slice_of(int64_t panels)
{
    int64_t slice = unit()->slice;

    while (slice > 1 && div_up(panels, slice) < 2 * omp_get_num_threads())
        slice /= 2;
    return slice;
}

/* Within a parallel region: its threads share the work. */
static void multiply_all(struct product p)
{
    int64_t rows = sh_panels(p.g->m), cols = sh_panels(p.g->n), slice = slice_of(p.keeps_rows ? cols : rows);
    int64_t panels = p.keeps_rows ? rows : cols, others = p.keeps_rows ? cols : rows;
    /* As many panels as their shared memory has room for, at least one. */
    int64_t most = KEPT_ELEMS / (div_up(p.g->k, DEPTH * SIDE) * CHUNK);

    most = most < 1 ? 1 : sh_panel_least(most, KEPT);
    p.ahead = slice * omp_get_num_threads();
    for (p.first = 0; p.first < panels; p.first += most) {
        p.count = sh_panel_least(panels - p.first, most);
        pack_kept(&p);
#pragma omp for schedule(dynamic)
        for (int64_t q = 0; q < others; q += slice)
            multiply_slice(&p, q, sh_panel_least(q + slice, others));
    }
}

static bool usable(void)
{
    return sh_panel_unit();
}

/* A float C takes a deep product in parts; a bf16 C gets it whole, with fewer panels kept at a time. */
static sh_rc panels_product(const struct sh_matmul *g, void *work)
{
    SH_REQUIRE(g->out_dtype == SH_F32 || g->k <= KEPT_ELEMS / SIDE);
#pragma omp parallel
    {
        char *own = (char *)work + kept_bytes(g) + own_bytes(g) * omp_get_thread_num();
        struct sh_matmul part = *g;
        struct product p = {.g = &part,
                            .keeps_rows = g->m <= g->n,
                            .kept = work,
                            .panels = own,
                            .wide = (float *)(void *)(own + most_slice(g) * chunk_bytes())};

        p.sums = p.wide + (unit()->wide ? CHUNK : 0);
        sh_panel_begin();
        for (int64_t k = 0; k < g->k; k += part.k) {
            part.a = (const sh_bf16 *)g->a + (g->trans_a ? k * g->lda : k);
            part.b = (const sh_bf16 *)g->b + (g->trans_b ? k : k * g->ldb);
            part.k = g->out_dtype == SH_F32 ? sh_panel_least(g->k - k, DEEP) : g->k;
            part.bias = k ? NULL : g->bias;
            part.addend = k ? g->c : g->addend;
            multiply_all(p);
            sh_panel_fence(); /* the next part adds to C, maybe in another thread; all threads meet when packing */
        }
        sh_panel_end();
    }
    return SH_OK;
}

const struct sh_gemm_engine sh_gemm_engine_panels = {
    .name = "packed panels",
    .in_dtype = SH_BF16,
    .usable = usable,
    .product_bytes = product_bytes,
    .product = panels_product,
};

#ifdef SH_WIDE
static bool wide_usable(void)
{
    return unit() && unit()->wide;
}

/* Others pay for whole steps, and for sums that are stored twice: a gradient of few rows more than it gains. */
static bool is_deep(const struct sh_matmul *g)
{
    return g->k >= (g->trans_a ? 4 : 1) * DEPTH * SIDE;
}

const struct sh_gemm_engine sh_gemm_engine_panels_wide = {
    .name = "packed panels in f32",
    .in_dtype = SH_BF16,
    .usable = wide_usable,
    .takes = is_deep,
    .product_bytes = product_bytes,
    .product = panels_product,
};
#endif

#endif
