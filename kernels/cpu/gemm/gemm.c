#include "kernels/cpu/gemm/gemm.h"

#include "kernels/cpu/base/block.h"
#include "kernels/cpu/gemm/gemm_engine.h"

#include <omp.h>
#include <stdio.h>

/* Tiles smaller than MIN_SIDE waste more time in packing than idle threads do. */
enum { MIN_SIDE = 128, GRAIN = 64 };
/* Per type: the most rows and columns of a tile, and how many tiles there should be for the threads: more, of
 * tile_flops (8 ms) each, if the product is large enough. A library packs both sides of each tile, so f32 gains from
 * larger tiles than 16-bit types, whose tile size bounds the scratch; one tile per thread would gain 15 %. */
static const struct cut {
    int64_t most_m, most_n, tiles, most_tiles;
    double tile_flops;
} cuts[SH_DTYPES] = {
    [SH_F32] = {.most_m = 2048, .most_n = 1536, .tiles = 16, .most_tiles = 128, .tile_flops = 1200e6},
    [SH_BF16] = {.most_m = SH_GEMM_TILE_M, .most_n = SH_GEMM_TILE_N, .tiles = 16, .most_tiles = 16, .tile_flops = 1},
    [SH_F16] = {.most_m = SH_GEMM_TILE_M, .most_n = SH_GEMM_TILE_N, .tiles = 16, .most_tiles = 16, .tile_flops = 1},
};
/* f32 sums of a tile that goes to a 16-bit C: the first part of a thread's scratch; the engine's follows. */
enum { SUMS_BYTES = SH_GEMM_TILE_M * SH_GEMM_TILE_N * (int)sizeof(float) };

struct plan {
    int64_t tile_m, tile_n, down, across; /* tiles: down x across */
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The size that cuts n into equal parts of at most `most`, in multiples of the vector units' grain. */
static int64_t even_part(int64_t n, int64_t most)
{
    int64_t part = ceil_div(ceil_div(n, ceil_div(n, most)), GRAIN) * GRAIN;
    return part < n ? part : n;
}

/* Tiles of equal size, so that the last row of tiles is not a thin one. */
static struct plan plan_of(int64_t most_m, int64_t most_n, const struct sh_matmul *g)
{
    struct plan p = {.tile_m = even_part(g->m, most_m), .tile_n = even_part(g->n, most_n)};
    p.down = ceil_div(g->m, p.tile_m);
    p.across = ceil_div(g->n, p.tile_n);
    return p;
}

/* Fewer tiles leave threads idle. */
static int64_t enough_tiles(const struct sh_matmul *g, int64_t least)
{
    const struct cut *c = &cuts[g->in_dtype];
    double wanted = 2.0 * (double)g->m * (double)g->n * (double)g->k / c->tile_flops;
    int64_t most = least < c->tiles ? least * c->most_tiles / c->tiles : c->most_tiles;
    return wanted < (double)least ? least : wanted > (double)most ? most : (int64_t)wanted;
}

/* Halve the longer side of a tile until there are enough tiles, or they would be too small. */
static struct plan plan_tiles(const struct sh_matmul *g, int64_t least)
{
    int64_t most_m = cuts[g->in_dtype].most_m, most_n = cuts[g->in_dtype].most_n, enough = enough_tiles(g, least);
    struct plan p = plan_of(most_m, most_n, g);
    while (p.down * p.across < enough) {
        int64_t *larger = p.tile_n >= p.tile_m ? &most_n : &most_m;
        int64_t half = (p.tile_n >= p.tile_m ? p.tile_n : p.tile_m) / 2;
        if (half < MIN_SIDE)
            break;
        *larger = half;
        p = plan_of(most_m, most_n, g);
    }
    return p;
}

/* A tile's sums go straight to an f32 C; a 16-bit C gets them rounded once, after bias and addend. */
static sh_rc run_tile(const struct sh_gemm_engine *e, const struct sh_matmul *g, struct plan p, int64_t i, void *work)
{
    int64_t row = i % p.down * p.tile_m, col = i / p.down * p.tile_n;
    struct sh_cpu_block size = {.rows = g->m - row < p.tile_m ? g->m - row : p.tile_m,
                                .cols = g->n - col < p.tile_n ? g->n - col : p.tile_n};
    bool direct = g->out_dtype == SH_F32;
    void *c = sh_cpu_at(g->c, g->out_dtype, row * g->ldc + col);
    bool in_place = direct && g->addend == g->c;
    /* clang-format off */
    struct sh_gemm_tile t = {
        .m = size.rows, .n = size.cols, .k = g->k,
        .a = sh_cpu_at(g->a, g->in_dtype, g->trans_a ? row : row * g->lda), .lda = g->lda, .trans_a = g->trans_a,
        .b = sh_cpu_at(g->b, g->in_dtype, g->trans_b ? col * g->ldb : col), .ldb = g->ldb, .trans_b = g->trans_b,
        .c = direct ? c : work, .ldc = direct ? g->ldc : p.tile_n, .add = in_place,
    };
    /* clang-format on */
    /* In place: the product is added to C. */
    SH_TRY(e->tile(&t, direct ? work : (char *)work + SUMS_BYTES));
    if (g->bias)
        sh_cpu_block_add_row(size, t.c, t.ldc, sh_cpu_at(g->bias, g->in_dtype, col), g->in_dtype);
    if (g->addend && !in_place)
        sh_cpu_block_add(size, t.c, t.ldc, sh_cpu_at(g->addend, g->out_dtype, row * g->ldc + col), g->ldc,
                         g->out_dtype);
    if (!direct)
        sh_cpu_block_store(size, c, g->ldc, g->out_dtype, t.c, t.ldc);
    return SH_OK;
}

/* Either the engine takes whole products and has its own scratch, or the tiles are dealt out here. */
int64_t sh_gemm_work_bytes_on(const struct sh_gemm_engine *e, const struct sh_matmul *g, int threads)
{
    if (e->product)
        return e->product_bytes(g, threads);
    return threads * sh_cpu_round64((g->out_dtype == SH_F32 ? 0 : SUMS_BYTES) + e->work_bytes);
}

/* Within a parallel region: its threads share the tiles, and do not wait for one another. Dynamic, since tiles at the
 * edges are smaller and other processes may occupy a core. */
static void deal_tiles(const struct sh_gemm_engine *e, const struct sh_matmul *g, int64_t least, void *mine,
                       struct sh_gemm_failure *failure)
{
    struct plan p = plan_tiles(g, least);
#pragma omp for schedule(dynamic) nowait
    for (int64_t i = 0; i < p.down * p.across; i++)
        sh_gemm_note(failure, run_tile(e, g, p, i, mine));
}

/* Square tiles, of which those above the diagonal are copies. */
static struct plan plan_squares(const struct sh_matmul *g)
{
    const struct cut *c = &cuts[g->in_dtype];
    int64_t most = c->most_m < c->most_n ? c->most_m : c->most_n, enough = enough_tiles(g, c->tiles);
    struct plan p = plan_of(most, most, g);
    while (p.down * p.down < enough && p.tile_m / 2 >= MIN_SIDE)
        p = plan_of(p.tile_m / 2, p.tile_m / 2, g);
    return p;
}

/* Copy what a tile has below the diagonal to its place above, in blocks whose rows fill lines of the cache on both
 * sides. */
static void mirror_tile(const struct sh_matmul *g, struct plan p, int64_t i)
{
    enum { SIDE = 16 };
    int64_t row = i % p.down * p.tile_m, rows = g->m - row < p.tile_m ? g->m - row : p.tile_m;
    int64_t col = i / p.down * p.tile_n;
    float *c = g->c;
    for (int64_t r = row; r < row + rows; r += SIDE)
        for (int64_t k = col; k < col + p.tile_n && k < g->n; k++)
            for (int64_t j = r > k ? r : k + 1; j < r + SIDE && j < row + rows; j++)
                c[k * g->ldc + j] = c[j * g->ldc + k];
}

/* All engines of f32 have tiles, and take no scratch. */
sh_rc sh_gemm_run_mirrored(const struct sh_matmul *g)
{
    const struct sh_gemm_engine *e = sh_gemm_engine_for(SH_F32);
    struct sh_gemm_failure failure = {0};
    struct plan p;

    SH_REQUIRE(g->m == g->n && g->in_dtype == SH_F32 && g->out_dtype == SH_F32 && !g->bias && !g->addend);
    SH_REQUIRE(g->a == g->b && g->trans_b);
    p = plan_squares(g);
#pragma omp parallel
    {
        sh_gemm_serial();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < p.down * p.across; i++) {
            if (i % p.down < i / p.down)
                continue;
            sh_gemm_note(&failure, run_tile(e, g, p, i, NULL));
            mirror_tile(g, p, i);
        }
    }
    return sh_gemm_failed(&failure);
}

static struct sh_matmul only(const void *g, int64_t i)
{
    (void)i;
    return *(const struct sh_matmul *)g;
}

static sh_rc run_tiles(const struct sh_gemm_engine *e, const struct sh_gemm_several *s, int64_t least, void *work,
                       int64_t work_bytes)
{
    struct sh_matmul like = s->at(s->from, 0);
    int64_t one_thread = sh_gemm_work_bytes_on(e, &like, 1);
    struct sh_gemm_failure failure = {0};

    SH_REQUIRE(work_bytes >= one_thread * omp_get_max_threads());
#pragma omp parallel
    {
        sh_gemm_serial();
        char *mine = one_thread ? (char *)work + one_thread * omp_get_thread_num() : NULL;
        for (int64_t i = 0; i < s->n; i++) {
            struct sh_matmul g = s->at(s->from, i);
            if (g.m)
                deal_tiles(e, &g, least, mine, &failure);
        }
    }
    return sh_gemm_failed(&failure);
}

sh_rc sh_gemm_run_on(const struct sh_gemm_engine *e, const struct sh_matmul *g, void *work, int64_t work_bytes)
{
    struct sh_gemm_several one = {.n = 1, .at = only, .from = g};

    if (!e->product)
        return run_tiles(e, &one, cuts[g->in_dtype].tiles, work, work_bytes);
    SH_REQUIRE(work_bytes >= e->product_bytes(g, omp_get_max_threads()));
    return e->product(g, work);
}

static const struct sh_gemm_engine *engine_of(const struct sh_matmul *g)
{
    const struct sh_gemm_engine *e = sh_gemm_engine_for(g->in_dtype);

    return e->takes && !e->takes(g) ? sh_gemm_engine_beside(e) : e;
}

/* Those of several products that are dealt out as tiles. */
static struct sh_matmul in_tiles(const void *from, int64_t i)
{
    const struct sh_gemm_several *s = from;
    struct sh_matmul g = s->at(s->from, i);

    g.m = engine_of(&g)->product ? 0 : g.m;
    return g;
}

static double operations(const struct sh_matmul *g)
{
    return 2.0 * (double)g->m * (double)g->n * (double)g->k;
}

/* Those of several products, of `most` operations at most, that an engine computes whole: each is one thread's. */
struct alone {
    const struct sh_gemm_several *s;
    double most;
};

static bool is_alone(const struct alone *x, const struct sh_matmul *g)
{
    return g->m && engine_of(g)->product && operations(g) <= x->most;
}

/* A thread would pack for all, and wait for all twice in each product; here it waits once, at the end, when the others
 * have at most one of these small products left. */
static sh_rc run_alone(const struct alone *x, void *work, int64_t work_bytes)
{
    int64_t each = work_bytes / omp_get_max_threads() / 64 * 64;
    struct sh_gemm_failure failure = {0};

#pragma omp parallel
    {
        sh_gemm_serial();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < x->s->n; i++) {
            struct sh_matmul g = x->s->at(x->s->from, i);
            if (is_alone(x, &g))
                sh_gemm_note(&failure,
                             sh_gemm_run_on(engine_of(&g), &g, (char *)work + each * omp_get_thread_num(), each));
        }
    }
    return sh_gemm_failed(&failure);
}

sh_rc sh_gemm_run_several(const struct sh_gemm_several *s, void *work, int64_t work_bytes)
{
    struct sh_gemm_several others = {.n = s->n, .at = in_tiles, .from = s};
    const struct sh_gemm_engine *tiles = NULL;
    struct alone alone = {.s = s};
    int threads = omp_get_max_threads();
    bool any = false;

    for (int64_t i = 0; i < s->n && threads > 1; i++) {
        struct sh_matmul g = s->at(s->from, i);
        alone.most += operations(&g) / (SH_GEMM_OF_SEVERAL * threads);
    }
    for (int64_t i = 0; i < s->n; i++) {
        struct sh_matmul g = s->at(s->from, i);
        const struct sh_gemm_engine *e = engine_of(&g);
        if (is_alone(&alone, &g))
            any = true;
        else if (g.m && e->product)
            SH_TRY(sh_gemm_run_on(e, &g, work, work_bytes));
        else if (g.m)
            tiles = e;
    }
    if (any)
        SH_TRY(run_alone(&alone, work, work_bytes));
    return tiles ? run_tiles(tiles, &others, SH_GEMM_OF_SEVERAL, work, work_bytes) : SH_OK;
}

/* Larger products than g may have another engine. */
int64_t sh_gemm_work_bytes(const struct sh_matmul *g, int threads)
{
    const struct sh_gemm_engine *e = sh_gemm_engine_for(g->in_dtype);
    int64_t most = sh_gemm_work_bytes_on(e, g, threads);
    int64_t others = sh_gemm_work_bytes_on(sh_gemm_engine_beside(e), g, threads);

    return most > others ? most : others;
}

sh_rc sh_gemm_run(const struct sh_matmul *g, void *work, int64_t work_bytes)
{
    return sh_gemm_run_on(engine_of(g), g, work, work_bytes);
}

void sh_gemm_serial(void)
{
    /* Inside a parallel region this sets the number for regions that this thread would open, and affects no other
     * thread. */
    omp_set_num_threads(1);
}

/* The first failure counts. Errors are kept per thread, so its text is copied for the thread that will return it. */
void sh_gemm_note(struct sh_gemm_failure *f, sh_rc rc)
{
    if (rc == SH_OK)
        return;
#pragma omp critical(sh_gemm_failure)
    if (f->rc == SH_OK) {
        f->rc = rc;
        snprintf(f->text, sizeof f->text, "%s", sh_error_text());
    }
}

sh_rc sh_gemm_failed(const struct sh_gemm_failure *f)
{
    return f->rc == SH_OK ? SH_OK : sh_fail(f->rc, "%s", f->text);
}
