/* A chunk of rows of logits never exists as a whole. Logits are computed as squares of 32 words x 32 rows, as sums of
 * packed panels. They stay in the caches of the thread that computed a slice of the vocabulary only until it has each
 * row's maximum over the slice and its exponentials relative to that. The exponentials are kept, in bf16. A row is a
 * lane of a vector, so no vector is ever reduced. Once the sums of whole rows are known, each square of exponentials
 * is scaled to gradients: the thread uses them directly for the slice's dw, and stores them transposed in their
 * place, for dx. So a gradient is rounded twice.
 *
 * Floor: 2*N*C*V operations for the loss, 6*N*C*V with gradients; each chunk reads w twice, writes and reads the
 * exponentials and then the gradients once, and writes or adds to dw. All sums are cut by shape alone. Measured:
 * doc/notebook/kernels.md. */
#include "sherd_config.h"

#include "kernels/cpu/panel/head_panels.h"

#include "kernels/cpu/panel/panel.h"

#ifdef SH_WIDE

#include "kernels/cpu/base/block.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/wide.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum { SIDE = SH_PANEL_SIDE, STEP = SH_PANEL_STEP, DEPTH = SH_PANEL_DEPTH, CHUNK = DEPTH * STEP };
enum { SLICE = DEPTH };          /* panels of the vocabulary that a thread takes at a time */
enum { DOWN = 16, ACROSS = 12 }; /* squares of dx that a thread sums at a time, at most */

/* One call, its scratch, and the rows [row, row + n) that are being worked on. */
struct head {
    const struct sh_op_call *call;
    const sh_bf16 *x, *w;   /* [N,C], [V,C] */
    const int32_t *targets; /* [N] */
    bool gradient;
    int64_t rows, dim, vocab, chunk, row, n;
    int64_t row_panels, word_panels, dim_panels, slices;
    float *max, *sum;       /* [slices][row_panels * SIDE], over a slice: maximum of the logits; sum of exponentials */
    double *loss, *squares; /* [row_panels * SIDE]; squares: NULL: not wanted */
    float *hit, *lse;       /* [row_panels * SIDE]: the target's logit; log of the sum of exponentials */
    sh_bf16 *x_turned;      /* [row_panels][dim_panels][STEP]: columns of x' */
    sh_bf16 *x_cols;        /* [dim_panels][row_panels][STEP]: columns of x */
    /* [slices][row_panels][SLICE][STEP] exponentials: words by rows, relative to max; then gradients: panels of rows,
     * with the slice's words as steps */
    sh_bf16 *kept;
    char *own; /* [threads][own_bytes]: panels in bf16, then sums in f32 */
    int64_t own_bytes;
};

/* This thread's memory for the packed panels that it works on. */
static void *own_of(const struct head *h)
{
    return h->own + omp_get_thread_num() * h->own_bytes;
}

static int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Shapes only; lay_out() adds the pointers. */
static struct head head_of(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1];
    struct head h = {.call = call,
                     .x = x->data,
                     .w = w->data,
                     .targets = call->in[2].data,
                     .rows = 1,
                     .gradient = call->kind == SH_OP_HEAD_LOSS_GRAD,
                     .dim = w->dim[1],
                     .vocab = w->dim[0]};

    for (int i = 0; i < x->ndim - 1; i++)
        h.rows *= x->dim[i];
    h.chunk = sh_panel_least(call->attr->head.chunk_rows, h.rows);
    h.row_panels = sh_panels(h.chunk);
    h.word_panels = sh_panels(h.vocab);
    h.dim_panels = sh_panels(h.dim);
    h.slices = div_up(h.word_panels, SLICE);
    return h;
}

/* The next `bytes` of the scratch; *used bytes of it are taken already. */
static void *take(char *scratch, int64_t *used, int64_t bytes)
{
    char *p = scratch ? scratch + *used : NULL;

    *used += sh_cpu_round64(bytes);
    return p;
}

/* The most private scratch that a thread needs: for a slice's logits, its part of dw, or a part of dx. */
static int64_t own_bytes(const struct head *h)
{
    int64_t panel = STEP * (int64_t)sizeof(sh_bf16), sums = STEP * (int64_t)sizeof(float);
    int64_t logits = SLICE * DEPTH * panel + SLICE * h->row_panels * sums;
    int64_t dw = SLICE * h->row_panels * panel + h->dim_panels * sums;
    int64_t dx = ACROSS * DEPTH * panel + DOWN * ACROSS * sums;
    int64_t backward = dw > dx ? dw : dx;

    return h->gradient && backward > logits ? backward : logits;
}

/* Cut the scratch, or, with NULL, only count it. */
static int64_t lay_out(struct head *h, char *scratch, int threads)
{
    int64_t used = 0, rows = h->row_panels * SIDE, x_bytes = rows * h->dim_panels * SIDE * (int64_t)sizeof(sh_bf16);
    bool squares = h->call->attr->head.squares != 0;
    int64_t kept_bytes = h->slices * h->row_panels * SLICE * STEP * (int64_t)sizeof(sh_bf16);

    h->max = take(scratch, &used, h->slices * rows * (int64_t)sizeof *h->max);
    h->sum = take(scratch, &used, h->slices * rows * (int64_t)sizeof *h->sum);
    h->loss = take(scratch, &used, rows * (int64_t)sizeof *h->loss);
    h->squares = squares ? take(scratch, &used, rows * (int64_t)sizeof *h->squares) : NULL;
    h->hit = take(scratch, &used, rows * (int64_t)sizeof *h->hit);
    h->lse = take(scratch, &used, rows * (int64_t)sizeof *h->lse);
    h->x_turned = take(scratch, &used, x_bytes);
    h->x_cols = take(scratch, &used, h->gradient ? x_bytes : 0);
    h->kept = take(scratch, &used, h->gradient ? kept_bytes : 0);
    h->own_bytes = own_bytes(h);
    h->own = take(scratch, &used, threads * h->own_bytes);
    return used;
}

int64_t sh_panel_head_work_bytes(const struct sh_op_call *call, int threads)
{
    struct head h = head_of(call);

    return lay_out(&h, NULL, threads);
}

/* SLICE steps of one row panel: where its exponentials, and later its gradients, are kept. */
static sh_bf16 *kept(const struct head *h, int64_t slice, int64_t row_panel)
{
    return h->kept + (slice * h->row_panels + row_panel) * SLICE * STEP;
}

/* Panels of a slice; words in those panels. */
static int64_t panels_of(const struct head *h, int64_t slice)
{
    return sh_panel_least(h->word_panels - slice * SLICE, SLICE);
}

static int64_t words_of(const struct head *h, int64_t slice)
{
    return sh_panel_least(h->vocab - slice * SLICE * SIDE, SLICE * SIDE);
}

/* Pack x twice in one pass over the chunk: as columns for the logits, and transposed for dw. */
static void pack_x(const struct head *h)
{
    const sh_bf16 *x = h->x + h->row * h->dim;

/* No barrier: the second packing writes to other memory. */
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < h->row_panels; i++)
        sh_panel_pack_cols(&(struct sh_panel_source){.data = x + i * SIDE * h->dim,
                                                     .step = h->dim,
                                                     .sides = sh_panel_least(h->n - i * SIDE, SIDE),
                                                     .depth = h->dim},
                           h->x_turned + i * h->dim_panels * STEP, 0);
#pragma omp for schedule(static)
    for (int64_t j = 0; j < (h->gradient ? h->dim_panels : 0); j++)
        sh_panel_pack_cols(&(struct sh_panel_source){.data = x + j * SIDE,
                                                     .step = h->dim,
                                                     .inner_rows = true,
                                                     .sides = sh_panel_least(h->dim - j * SIDE, SIDE),
                                                     .depth = h->n},
                           h->x_cols + j * h->row_panels * STEP, 0);
}

/* max and sum [SIDE] of the rows of logits [words][SIDE], and their exponentials to `out`, unless it is NULL. */
static SH_WIDE void soften(const float *logits, int64_t words, float *max, float *sum, sh_bf16 *out)
{
    __m512 top[2] = {_mm512_set1_ps(-FLT_MAX), _mm512_set1_ps(-FLT_MAX)}, total[2] = {{0}, {0}}, e[2];

    for (int64_t i = 0; i < words; i++)
        for (int h = 0; h < 2; h++) /* ignores NaN, which shows in the exponentials */
            top[h] = _mm512_max_ps(_mm512_load_ps(logits + i * SIDE + h * SIDE / 2), top[h]);
    for (int64_t i = 0; i < words; i++) {
        for (int h = 0; h < 2; h++) {
            e[h] = sh_wide_exp(_mm512_sub_ps(_mm512_load_ps(logits + i * SIDE + h * SIDE / 2), top[h]));
            total[h] = _mm512_add_ps(total[h], e[h]);
        }
        if (out)
            _mm512_store_si512(out + i * SIDE, (__m512i)_mm512_cvtne2ps_pbh(e[1], e[0]));
    }
    for (int h = 0; h < 2; h++) {
        _mm512_store_ps(max + h * SIDE / 2, top[h]);
        _mm512_store_ps(sum + h * SIDE / 2, total[h]);
    }
}

/* Keep what is needed of the slice's logits of row panel i. Exponentials of words that do not exist are 0. */
static void take_logits(const struct head *h, int64_t slice, int64_t i, const float *logits)
{
    int64_t words = words_of(h, slice), begin = slice * SLICE * SIDE, at = i * SIDE;
    int64_t part = slice * h->row_panels * SIDE + at;
    sh_bf16 *out = h->gradient ? kept(h, slice, i) : NULL;

    for (int64_t r = at; r < sh_panel_least(h->n, at + SIDE); r++) {
        int64_t word = h->targets[h->row + r] - begin;
        if (word >= 0 && word < words)
            h->hit[r] = logits[word * SIDE + r - at];
    }
    soften(logits, words, h->max + part, h->sum + part, out);
    if (out)
        memset(out + words * SIDE, 0, (size_t)(panels_of(h, slice) * STEP - words * SIDE) * sizeof *out);
}

/* Logits of a slice, words by rows: panels [SLICE][CHUNK] of w, sums [row_panels][SLICE][STEP]. */
static void slice_logits(const struct head *h, int64_t slice, sh_bf16 *panels)
{
    float *sums = (float *)(void *)(panels + SLICE * CHUNK);

    for (int64_t k = 0; k < h->dim_panels; k += DEPTH) {
        struct sh_panel_source w = {.data = h->w + slice * SLICE * SIDE * h->dim + k * SIDE,
                                    .step = h->dim,
                                    .sides = words_of(h, slice),
                                    .depth = sh_panel_least(h->dim - k * SIDE, DEPTH * SIDE)};
        sh_panel_pack_rows(&w, panels, CHUNK);
        for (int64_t i = 0; i < h->row_panels; i++) {
            float *square = sums + i * SLICE * STEP;
            for (int64_t q = 0; q < panels_of(h, slice); q++)
                sh_panel_multiply(panels + q * CHUNK, h->x_turned + (i * h->dim_panels + k) * STEP, square + q * STEP,
                                  sh_panels(w.depth), k > 0);
            if (k + DEPTH >= h->dim_panels)
                take_logits(h, slice, i, square);
        }
    }
}

/* Combine the slices' results for row r of the chunk, always in the order of the slices. */
static void close_row(const struct head *h, int64_t r)
{
    int64_t stride = h->row_panels * SIDE;
    float max = -FLT_MAX;
    double sum = 0;

    for (int64_t s = 0; s < h->slices; s++)
        max = h->max[s * stride + r] > max ? h->max[s * stride + r] : max;
    for (int64_t s = 0; s < h->slices; s++)
        sum += h->sum[s * stride + r] * exp((double)h->max[s * stride + r] - (double)max);
    double lse = log(sum) + (double)max;
    h->lse[r] = (float)lse;
    double weight = (double)sh_panel_head_weight(h->call, h->row + r);
    h->loss[r] = weight == 0 ? 0 : weight * (lse - (double)h->hit[r]);
    if (h->squares)
        h->squares[r] = weight == 0 ? 0 : weight * h->call->attr->head.squares * lse * lse;
}

/* How often a row's softmax counts in its gradient. */
static float share_of(const struct head *h, int64_t r)
{
    return (float)(1 + 2 * h->call->attr->head.squares * (double)h->lse[r]);
}

/* By what a row's gradient is multiplied; 0: the row is skipped. */
static float scale_of(const struct head *h, int64_t r)
{
    return (float)((double)sh_panel_head_weight(h->call, h->row + r) * h->call->scalars->loss_scale);
}

/* by [SIDE]: the factors that turn the exponentials of a slice into gradients; 0 for rows that are skipped or do not
 * exist. */
static SH_WIDE void factors(const struct head *h, int64_t slice, int64_t i, float *by)
{
    const float *max = h->max + slice * h->row_panels * SIDE;

    for (int64_t r = i * SIDE; r < (i + 1) * SIDE; r++) {
        float scale = r < h->n ? scale_of(h, r) : 0;

        *by++ = scale != 0 ? sh_expf(max[r] - h->lse[r]) * (share_of(h, r) * scale) : 0;
    }
}

/* to [SIDE][SIDE] = from, each column times its factor */
static SH_WIDE void scale_square(const sh_bf16 *from, const float *by, sh_bf16 *to)
{
    __m512 lo = _mm512_load_ps(by), hi = _mm512_load_ps(by + SIDE / 2);

    for (int64_t i = 0; i < STEP; i += SIDE) {
        __m512 a = _mm512_mul_ps(sh_wide_load(from + i, 0xffff), lo);
        __m512 b = _mm512_mul_ps(sh_wide_load(from + i + SIDE / 2, 0xffff), hi);
        _mm512_store_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
}

/* Set the targets of row panel i that are among the words of a slice: (softmax share - 1) * scale, from their own logits. */
static void put_targets(const struct head *h, int64_t slice, int64_t i, sh_bf16 *words)
{
    for (int64_t r = i * SIDE; r < sh_panel_least(h->n, (i + 1) * SIDE); r++) {
        int64_t word = h->targets[h->row + r] - slice * SLICE * SIDE;
        float scale = scale_of(h, r);
        if (scale != 0 && word >= 0 && word < words_of(h, slice))
            words[word / SIDE * h->row_panels * STEP + word % SIDE * SIDE + r % SIDE] =
                sh_f32_to_bf16((sh_expf(h->hit[r] - h->lse[r]) * share_of(h, r) - 1) * scale);
    }
}

/* (softmax share - onehot) * scale of row panel i, written twice: as step i of the panels of words, row_panels steps deep,
 * for this thread itself; and as a panel of rows in place of the exponentials. */
static void make_gradients(const struct head *h, int64_t slice, int64_t i, sh_bf16 *words)
{
    _Alignas(64) float by[SIDE];
    sh_bf16 *at = kept(h, slice, i);

    words += i * STEP;
    factors(h, slice, i, by);
    for (int64_t q = 0; q < panels_of(h, slice); q++) {
        sh_panel_prefetch(at + (q + 1) * STEP, STEP * (int64_t)sizeof *at);
        scale_square(at + q * STEP, by, words + q * h->row_panels * STEP);
    }
    put_targets(h, slice, i, words);
    for (int64_t q = 0; q < panels_of(h, slice); q++) {
        struct sh_panel_source s = {
            .data = words + q * h->row_panels * STEP, .step = SIDE, .inner_rows = true, .sides = SIDE, .depth = SIDE};
        sh_panel_pack_rows(&s, at + q * STEP, 0);
    }
}

/* dw [V,C] (+)= dlogits' x for the words of a slice, one panel of words at a time, so that whole rows of dw are
 * written; words [SLICE][row_panels][STEP], sums [dim_panels][STEP] */
static void slice_dw(const struct head *h, const struct sh_matmul *dw, int64_t slice, const sh_bf16 *words, float *sums)
{
    for (int64_t q = 0; q < panels_of(h, slice); q++, words += h->row_panels * STEP) {
        int64_t word = (slice * SLICE + q) * SIDE;
        for (int64_t k = 0; k < h->row_panels; k += DEPTH) {
            for (int64_t j = 0; j < h->dim_panels; j++) {
                if (k == 0)
                    sh_panel_prefetch_addend(dw, word, j * SIDE);
                sh_panel_multiply(words + k * STEP, h->x_cols + (j * h->row_panels + k) * STEP, sums + j * STEP,
                                  sh_panel_least(h->row_panels - k, DEPTH), k > 0);
            }
        }
        for (int64_t j = 0; j < h->dim_panels; j++)
            sh_panel_emit(dw, sums + j * STEP, word, j * SIDE);
    }
}

/* A part of dx [n,C] = dlogits w: `down` x `across` squares from panels (i, j) on. */
static void part_dx(const struct head *h, const struct sh_matmul *dx, int64_t i, int64_t down, int64_t j,
                    int64_t across, sh_bf16 *panels)
{
    float *sums = (float *)(void *)(panels + ACROSS * CHUNK);

    for (int64_t s = 0; s < h->slices; s++) {
        struct sh_panel_source w = {.data = h->w + s * SLICE * SIDE * h->dim + j * SIDE,
                                    .step = h->dim,
                                    .inner_rows = true,
                                    .sides = sh_panel_least(h->dim - j * SIDE, across * SIDE),
                                    .depth = words_of(h, s)};
        sh_panel_pack_cols(&w, panels, CHUNK);
        for (int64_t q = 0; q < across; q++) {
            for (int64_t p = 0; p < down; p++) {
                const sh_bf16 *next = kept(h, s + 1, i + p) + CHUNK * q / across;
                sh_panel_prefetch(next, CHUNK / across * (int64_t)sizeof *next);
                sh_panel_multiply(kept(h, s, i + p), panels + q * CHUNK, sums + (q * DOWN + p) * STEP, panels_of(h, s),
                                  s > 0);
            }
        }
    }
    for (int64_t p = 0; p < down; p++)
        for (int64_t q = 0; q < across; q++)
            sh_panel_emit(dx, sums + (q * DOWN + p) * STEP, (i + p) * SIDE, (j + q) * SIDE);
}

/* dx [n,C]: parts are halved until there is one for each thread, so that no thread waits for the last ones. */
static void all_dx(const struct head *h)
{
    const struct sh_operand *t = &h->call->out[1];
    struct sh_matmul dx = {.m = h->n,
                           .n = h->dim,
                           .out_dtype = t->dtype,
                           .ldc = h->dim,
                           .c = sh_cpu_at(t->data, t->dtype, h->row * h->dim)};
    int64_t down = DOWN, across = ACROSS;

    /* Halve the larger side until there are parts for all threads, but not below four panels. */
    while (down > 4 && div_up(h->row_panels, down) * div_up(h->dim_panels, across) < omp_get_num_threads())
        *(down > across ? &down : &across) /= 2;
    int64_t parts = div_up(h->row_panels, down) * div_up(h->dim_panels, across);
#pragma omp for schedule(dynamic)
    for (int64_t p = 0; p < parts; p++) {
        int64_t i = p % div_up(h->row_panels, down) * down, j = p / div_up(h->row_panels, down) * across;
        part_dx(h, &dx, i, sh_panel_least(down, h->row_panels - i), j, sh_panel_least(across, h->dim_panels - j),
                own_of(h));
    }
}

/* dw [V,C], if wanted: a thread takes a slice of words and computes their gradients itself; the same gradients are
 * kept for dx. */
static void all_dw(const struct head *h)
{
    const struct sh_operand *t = &h->call->out[2];
    bool add = h->row > 0 || sh_op_adds(h->call, 2);
    struct sh_matmul dw = {
        .m = h->vocab, .n = h->dim, .out_dtype = t->dtype, .c = t->data, .ldc = h->dim, .addend = add ? t->data : NULL};

#pragma omp for schedule(dynamic)
    for (int64_t s = 0; s < h->slices; s++) {
        sh_bf16 *words = own_of(h);
        for (int64_t i = 0; i < h->row_panels; i++)
            make_gradients(h, s, i, words);
        if (dw.c)
            slice_dw(h, &dw, s, words, (float *)(void *)(words + SLICE * h->row_panels * STEP));
    }
}

/* Within a parallel region: its threads share the chunk of rows. */
static void run_chunk(const struct head *h)
{
    pack_x(h);
#pragma omp for schedule(dynamic)
    for (int64_t s = 0; s < h->slices; s++)
        slice_logits(h, s, own_of(h));
#pragma omp for schedule(static)
    for (int64_t r = 0; r < h->n; r++)
        close_row(h, r);
    if (h->gradient) {
        all_dw(h);
        all_dx(h);
    }
}

/* One thread adds up the rows, in their order. */
sh_rc sh_panel_head_run(const struct sh_op_call *call, struct sh_panel_head_sums *sums)
{
    struct head h = head_of(call);
    int64_t chunk_panels = h.row_panels;

    SH_REQUIRE(call->work_bytes >= lay_out(&h, call->work, omp_get_max_threads()));
    *sums = (struct sh_panel_head_sums){0};
    for (h.row = 0; h.row < h.rows; h.row += h.n) {
        h.n = sh_panel_least(h.rows - h.row, h.chunk);
        /* The last chunk may have fewer rows. */
        h.row_panels = sh_panel_least(chunk_panels, sh_panels(h.n));
#pragma omp parallel
        {
            sh_panel_begin();
            run_chunk(&h);
            sh_panel_end();
        }
        for (int64_t r = 0; r < h.n; r++)
            sh_panel_head_add(sums, h.loss, h.squares, r);
    }
    return SH_OK;
}

#endif
