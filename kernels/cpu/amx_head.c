/* A chunk of rows of logits stays in scratch as squares of 32 rows x 32 words, which are sums of the tile unit: no logit is
 * moved between the products and the softmax. Of a slice of the vocabulary the thread that made it also takes each row's
 * maximum and sum of exponentials, while the squares are in its caches. When the sums of whole rows are known, each square is
 * read once more and becomes its gradients in bf16, which take half the room, in both orders that the next two products
 * need. So nothing of the size of the logits is ever packed.
 *
 * Floor: 2*N*C*V operations for the loss, 6*N*C*V with gradients; each chunk reads w twice, writes the logits and the
 * gradients once and reads each of them twice, and writes or adds to dw. All sums are cut by shape alone. */
#include "sherd_config.h"

#include "kernels/cpu/amx_head.h"

#include "kernels/cpu/amx.h"

#ifdef SH_AMX

#include "kernels/cpu/block.h"
#include "kernels/cpu/math.h"

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum { SIDE = SH_AMX_SIDE, STEP = SH_AMX_STEP, DEPTH = SH_AMX_DEPTH, CHUNK = DEPTH * STEP };
enum { SLICE = 4 };                   /* panels of the vocabulary that a thread takes at a time */
enum { DOWN = 16, ACROSS = 12 };      /* squares of dx that a thread sums at a time, at most */
enum { OWN_BYTES = ACROSS * CHUNK * (int)sizeof(sh_bf16) + DOWN * ACROSS * STEP * (int)sizeof(float) };

/* Of a row over one slice: the largest logit, and the sum of exponentials relative to it. */
struct part {
    float max, sum;
};

/* One call, its scratch, and the rows [row, row + n) that are worked on. Panels of rows and vocabulary, and steps of dim. */
struct head {
    const struct sh_op_call *call;
    const sh_bf16 *x, *w;                /* [N,C], [V,C] */
    const int32_t *targets;              /* [N] */
    bool gradient;
    int64_t rows, dim, vocab, chunk, row, n;
    int64_t row_panels, word_panels, dim_panels, slices;
    struct part *parts;                  /* [slices][row_panels * SIDE] */
    double *loss;                        /* [row_panels * SIDE] */
    float *lse;                          /* [row_panels * SIDE]: log of the sum of exponentials */
    sh_bf16 *x_rows;                     /* [row_panels][dim_panels][STEP]: rows of x */
    sh_bf16 *x_cols;                     /* [dim_panels][row_panels][STEP]: columns of x */
    float *squares;                      /* [word_panels][row_panels][STEP] logits; then gradients: see to_gradients() */
    char *own;                           /* [threads][OWN_BYTES] */
};

static int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static struct head head_of(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1];
    struct head h = {.call = call, .x = x->data, .w = w->data, .targets = call->in[2].data, .rows = 1,
                     .gradient = call->kind == SH_OP_HEAD_LOSS_GRAD, .dim = w->dim[1], .vocab = w->dim[0]};

    for (int i = 0; i < x->ndim - 1; i++)
        h.rows *= x->dim[i];
    h.chunk = sh_amx_least(call->attr->chunk_rows, h.rows);
    h.row_panels = sh_amx_panels(h.chunk);
    h.word_panels = sh_amx_panels(h.vocab);
    h.dim_panels = sh_amx_panels(h.dim);
    h.slices = div_up(h.word_panels, SLICE);
    return h;
}

/* The next `bytes` of the scratch, of which *used are taken. */
static void *take(char *scratch, int64_t *used, int64_t bytes)
{
    char *p = scratch ? scratch + *used : NULL;

    *used += sh_cpu_round64(bytes);
    return p;
}

/* Cut the scratch, or with NULL only count it. */
static int64_t lay_out(struct head *h, char *scratch, int threads)
{
    int64_t used = 0, rows = h->row_panels * SIDE, x_bytes = rows * h->dim_panels * SIDE * (int64_t)sizeof(sh_bf16);

    h->parts = take(scratch, &used, h->slices * rows * (int64_t)sizeof *h->parts);
    h->loss = take(scratch, &used, rows * (int64_t)sizeof *h->loss);
    h->lse = take(scratch, &used, rows * (int64_t)sizeof *h->lse);
    h->x_rows = take(scratch, &used, x_bytes);
    h->x_cols = take(scratch, &used, h->gradient ? x_bytes : 0);
    h->squares = take(scratch, &used, h->word_panels * h->row_panels * STEP * (int64_t)sizeof(float));
    h->own = take(scratch, &used, threads * (int64_t)OWN_BYTES);
    return used;
}

int64_t sh_amx_head_work_bytes(const struct sh_op_call *call, int threads)
{
    struct head h = head_of(call);

    return lay_out(&h, NULL, threads);
}

static float *square(const struct head *h, int64_t word_panel, int64_t row_panel)
{
    return h->squares + (word_panel * h->row_panels + row_panel) * STEP;
}

/* Gradients of a square as tiles of rows x words, and behind them as tiles of words x rows. */
static struct sh_amx_panel by_rows(const struct head *h, int64_t word_panel, int64_t row_panel)
{
    return (struct sh_amx_panel){(sh_bf16 *)(void *)square(h, word_panel, row_panel), 2 * h->row_panels * STEP};
}

static struct sh_amx_panel by_words(const struct head *h, int64_t word_panel, int64_t row_panel)
{
    return (struct sh_amx_panel){(sh_bf16 *)(void *)square(h, word_panel, row_panel) + STEP, 2 * STEP};
}

/* Words of a panel. */
static int64_t words_of(const struct head *h, int64_t word_panel)
{
    return sh_amx_least(h->vocab - word_panel * SIDE, SIDE);
}

static void pack_x(const struct head *h)
{
    const sh_bf16 *x = h->x + h->row * h->dim;

#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < h->row_panels; i++)
        sh_amx_pack_rows(&(struct sh_amx_source){.data = x + i * SIDE * h->dim, .step = h->dim,
                                                 .sides = sh_amx_least(h->n - i * SIDE, SIDE), .depth = h->dim},
                         h->x_rows + i * h->dim_panels * STEP, 0);
#pragma omp for schedule(static)
    for (int64_t j = 0; j < (h->gradient ? h->dim_panels : 0); j++)
        sh_amx_pack_cols(&(struct sh_amx_source){.data = x + j * SIDE, .step = h->dim, .inner_rows = true,
                                                 .sides = sh_amx_least(h->dim - j * SIDE, SIDE), .depth = h->n},
                         h->x_cols + j * h->row_panels * STEP, 0);
}

/* Logits of words [first, first + count) panels. Each square is asked for while the one before is made. */
static void multiply_slice(const struct head *h, int64_t first, int64_t count, sh_bf16 *panels)
{
    for (int64_t k = 0; k < h->dim_panels; k += DEPTH) {
        struct sh_amx_source w = {.data = h->w + first * SIDE * h->dim + k * SIDE, .step = h->dim,
                                  .sides = sh_amx_least(h->vocab - first * SIDE, count * SIDE),
                                  .depth = sh_amx_least(h->dim - k * SIDE, DEPTH * SIDE)};
        sh_amx_pack_cols(&w, panels, CHUNK);
        for (int64_t q = 0; q < count; q++) {
            for (int64_t i = 0; i < h->row_panels; i++) {
                if (k == 0)
                    sh_amx_prefetch(square(h, first + q, i + 1), STEP * (int64_t)sizeof(float));
                sh_amx_multiply((struct sh_amx_panel){h->x_rows + (i * h->dim_panels + k) * STEP, STEP},
                                (struct sh_amx_panel){panels + q * CHUNK, STEP}, square(h, first + q, i),
                                sh_amx_panels(w.depth), k > 0);
            }
        }
    }
}

static SH_AMX float largest(const float *x, int64_t n, float max)
{
    float lane[SIDE];

    for (int64_t c = 0; c < SIDE; c++)
        lane[c] = c < n ? x[c] : -INFINITY;
    for (int64_t half = SIDE / 2; half > 0; half /= 2)
        for (int64_t c = 0; c < half; c++)
            lane[c] = lane[c] > lane[c + half] ? lane[c] : lane[c + half];
    return lane[0] > max ? lane[0] : max;
}

static SH_AMX float sum_of_exp(const float *x, int64_t n, float shift)
{
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++)
        sum += sh_expf(x[c] - shift);
    return sum;
}

/* Maxima and sums of the rows of a slice. */
static void take_parts(const struct head *h, int64_t first, int64_t count)
{
    struct part *parts = h->parts + first / SLICE * h->row_panels * SIDE;

    for (int64_t r = 0; r < h->n; r++) {
        struct part p = {.max = -INFINITY};
        const float *row = square(h, first, r / SIDE) + r % SIDE * SIDE;
        for (int64_t q = 0; q < count; q++)
            p.max = largest(row + q * h->row_panels * STEP, words_of(h, first + q), p.max);
        for (int64_t q = 0; q < count; q++)
            p.sum += sum_of_exp(row + q * h->row_panels * STEP, words_of(h, first + q), p.max);
        parts[r] = p;
    }
}

/* What the slices say of row r of the chunk; always in their order. */
static void close_row(const struct head *h, int64_t r)
{
    const struct part *p = h->parts + r;
    int64_t stride = h->row_panels * SIDE;
    int32_t target = h->targets[h->row + r];
    float max = -INFINITY;
    double sum = 0;

    for (int64_t s = 0; s < h->slices; s++)
        max = p[s * stride].max > max ? p[s * stride].max : max;
    for (int64_t s = 0; s < h->slices; s++)
        sum += p[s * stride].sum * exp((double)p[s * stride].max - (double)max);
    double lse = log(sum) + (double)max;
    h->lse[r] = (float)lse;
    h->loss[r] = target < 0 ? 0 : lse - (double)square(h, target / SIDE, r / SIDE)[r % SIDE * SIDE + target % SIDE];
}

/* out [SIDE] = (softmax - onehot) * scale of row r of the chunk, at the words of a panel. */
static SH_AMX void row_gradient(const struct head *h, const float *x, int64_t r, int64_t word_panel, float *out)
{
    int32_t target = r < h->n ? h->targets[h->row + r] : -1;
    float scale = (float)h->call->scalars->loss_scale, lse = h->lse[r];
    int64_t words = words_of(h, word_panel);

    if (target < 0) {
        memset(out, 0, SIDE * sizeof *out);
        return;
    }
#pragma omp simd
    for (int64_t c = 0; c < SIDE; c++)
        out[c] = sh_expf(x[c] - lse) * scale;
    for (int64_t c = words; c < SIDE; c++)
        out[c] = 0;
    if (target / SIDE == word_panel)
        out[target % SIDE] -= scale;
}

/* A square of logits becomes gradients in its own storage: tiles of rows x words, then tiles of words x rows. */
static SH_AMX void to_gradients(const struct head *h, int64_t word_panel, int64_t row_panel)
{
    sh_bf16 rounded[STEP] __attribute__((aligned(64)));
    const float *x = square(h, word_panel, row_panel);
    sh_bf16 *out = (sh_bf16 *)(void *)square(h, word_panel, row_panel);

    for (int64_t r = 0; r < SIDE; r++) {
        float g[SIDE] __attribute__((aligned(64)));
        row_gradient(h, x + r * SIDE, row_panel * SIDE + r, word_panel, g);
        _mm512_store_si512(rounded + r * SIDE,
                           (__m512i)_mm512_cvtne2ps_pbh(_mm512_load_ps(g + SIDE / 2), _mm512_load_ps(g)));
    }
    memcpy(out, rounded, sizeof rounded);
    sh_amx_pack_rows(&(struct sh_amx_source){.data = rounded, .step = SIDE, .inner_rows = true, .sides = SIDE, .depth = SIDE},
                     out + STEP, 0);
}

/* dw [V,C] (+)= dlogits' x for the words of a slice. */
static void slice_dw(const struct head *h, const struct sh_gemm *dw, int64_t first, int64_t count, float *sums)
{
    for (int64_t j = 0; j < h->dim_panels; j++) {
        for (int64_t k = 0; k < h->row_panels; k += DEPTH)
            for (int64_t q = 0; q < count; q++)
                sh_amx_multiply(by_words(h, first + q, k),
                                (struct sh_amx_panel){h->x_cols + (j * h->row_panels + k) * STEP, STEP}, sums + q * STEP,
                                sh_amx_least(h->row_panels - k, DEPTH), k > 0);
        for (int64_t q = 0; q < count; q++)
            sh_amx_emit(dw, sums + q * STEP, (first + q) * SIDE, j * SIDE);
    }
}

/* A part of dx [n,C] = dlogits w: `down` x `across` squares from panels (i, j) on. */
static void part_dx(const struct head *h, const struct sh_gemm *dx, int64_t i, int64_t down, int64_t j, int64_t across,
                    sh_bf16 *panels)
{
    float *sums = (float *)(void *)(panels + ACROSS * CHUNK);

    for (int64_t k = 0; k < h->word_panels; k += DEPTH) {
        struct sh_amx_source w = {.data = h->w + k * SIDE * h->dim + j * SIDE, .step = h->dim, .inner_rows = true,
                                  .sides = sh_amx_least(h->dim - j * SIDE, across * SIDE),
                                  .depth = sh_amx_least(h->vocab - k * SIDE, DEPTH * SIDE)};
        sh_amx_pack_cols(&w, panels, CHUNK);
        for (int64_t q = 0; q < across; q++) {
            for (int64_t p = 0; p < down; p++) {
                if (q < DEPTH)
                    sh_amx_prefetch(by_rows(h, k + DEPTH + q, i + p).data, STEP * (int64_t)sizeof(sh_bf16));
                sh_amx_multiply(by_rows(h, k, i + p), (struct sh_amx_panel){panels + q * CHUNK, STEP},
                                sums + (q * DOWN + p) * STEP, sh_amx_panels(w.depth), k > 0);
            }
        }
    }
    for (int64_t p = 0; p < down; p++)
        for (int64_t q = 0; q < across; q++)
            sh_amx_emit(dx, sums + (q * DOWN + p) * STEP, (i + p) * SIDE, (j + q) * SIDE);
}

static void all_dx(const struct head *h)
{
    const struct sh_operand *t = &h->call->out[1];
    struct sh_gemm dx = {.m = h->n, .n = h->dim, .out_dtype = t->dtype, .ldc = h->dim,
                         .c = sh_cpu_at(t->data, t->dtype, h->row * h->dim)};
    int64_t down = DOWN, across = ACROSS;

    while (down > 4 && div_up(h->row_panels, down) * div_up(h->dim_panels, across) < omp_get_num_threads()) {
        *(down > across ? &down : &across) /= 2;
    }
    int64_t parts = div_up(h->row_panels, down) * div_up(h->dim_panels, across);
#pragma omp for schedule(dynamic)
    for (int64_t p = 0; p < parts; p++) {
        int64_t i = p % div_up(h->row_panels, down) * down, j = p / div_up(h->row_panels, down) * across;
        part_dx(h, &dx, i, sh_amx_least(down, h->row_panels - i), j, sh_amx_least(across, h->dim_panels - j),
                (sh_bf16 *)(void *)(h->own + omp_get_thread_num() * (int64_t)OWN_BYTES));
    }
}

static void all_dw(const struct head *h)
{
    const struct sh_operand *t = &h->call->out[2];
    bool add = h->row > 0 || sh_op_adds(h->call, 2);
    struct sh_gemm dw = {.m = h->vocab, .n = h->dim, .out_dtype = t->dtype, .c = t->data, .ldc = h->dim,
                         .addend = add ? t->data : NULL};

#pragma omp for schedule(dynamic)
    for (int64_t s = 0; s < h->slices; s++) {
        int64_t first = s * SLICE, count = sh_amx_least(h->word_panels - first, SLICE);
        for (int64_t q = first; q < first + count; q++)
            for (int64_t i = 0; i < h->row_panels; i++) {
                sh_amx_prefetch(square(h, q, i + 1), STEP * (int64_t)sizeof(float));
                to_gradients(h, q, i);
            }
        slice_dw(h, &dw, first, count, (float *)(void *)(h->own + omp_get_thread_num() * (int64_t)OWN_BYTES));
    }
}

/* Within a parallel region: its threads share the chunk of rows. */
static void run_chunk(const struct head *h)
{
    pack_x(h);
#pragma omp for schedule(dynamic)
    for (int64_t s = 0; s < h->slices; s++) {
        int64_t first = s * SLICE, count = sh_amx_least(h->word_panels - first, SLICE);
        multiply_slice(h, first, count, (sh_bf16 *)(void *)(h->own + omp_get_thread_num() * (int64_t)OWN_BYTES));
        take_parts(h, first, count);
    }
#pragma omp for schedule(static)
    for (int64_t r = 0; r < h->n; r++)
        close_row(h, r);
    if (h->gradient) {
        all_dw(h);
        all_dx(h);
    }
}

sh_rc sh_amx_head_run(const struct sh_op_call *call, double *loss)
{
    struct head h = head_of(call);
    int64_t chunk_panels = h.row_panels;

    SH_REQUIRE(call->work_bytes >= lay_out(&h, call->work, omp_get_max_threads()));
    *loss = 0;
    for (h.row = 0; h.row < h.rows; h.row += h.n) {
        h.n = sh_amx_least(h.rows - h.row, h.chunk);
        h.row_panels = sh_amx_least(chunk_panels, sh_amx_panels(h.n));
#pragma omp parallel
        {
            sh_amx_begin();
            run_chunk(&h);
            sh_amx_end();
        }
        for (int64_t r = 0; r < h.n; r++)
            *loss += h.loss[r];
    }
    return SH_OK;
}

#endif
