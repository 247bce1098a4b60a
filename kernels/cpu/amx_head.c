/* A chunk of rows of logits stays in scratch as squares of 32 rows x 32 words, which are sums of the tile unit: no
 * logit is moved between the products and the softmax. Of a slice of the vocabulary the thread that made it also
 * takes each row's maximum and sum of exponentials, while the squares are in its caches. When the sums of whole rows
 * are known, each square is read once more and becomes its gradients in bf16, in both orders that the next two
 * products need: one in half the room of the logits, for dx, the other in the caches of the thread, which makes the
 * slice's dw from it at once. So nothing of the size of the logits is ever packed.
 *
 * Floor: 2*N*C*V operations for the loss, 6*N*C*V with gradients; each chunk reads w twice, writes the logits and the
 * gradients once and reads each of them once, and writes or adds to dw. All sums are cut by shape alone. Measured:
 * doc/performance.md. */
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
enum { SLICE = DEPTH };               /* panels of the vocabulary that a thread takes at a time */
enum { DOWN = 16, ACROSS = 12 };      /* squares of dx that a thread sums at a time, at most */

/* Of a row over one slice: the largest logit, and the sum of exponentials relative to it. */
struct part {
    float max, sum;
};

/* One call, its scratch, and the rows [row, row + n) that are worked on. */
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
    float *squares;                      /* [slices][row_panels][SLICE][STEP] logits; then gradients: see gradients() */
    char *own;                           /* [threads][own_bytes]: panels in bf16, then sums in f32 */
    int64_t own_bytes;
};

static void *own_of(const struct head *h)
{
    return h->own + omp_get_thread_num() * h->own_bytes;
}

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

/* The most that a thread needs of its own: for a slice's logits, its part of dw, or a part of dx. */
static int64_t own_bytes(const struct head *h)
{
    int64_t panel = STEP * (int64_t)sizeof(sh_bf16), sums = STEP * (int64_t)sizeof(float);
    int64_t logits = SLICE * DEPTH * panel, dw = SLICE * h->row_panels * panel + SLICE * sums;
    int64_t dx = ACROSS * DEPTH * panel + DOWN * ACROSS * sums;

    return !h->gradient ? logits : dw > dx ? dw : dx;
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
    h->squares = take(scratch, &used, h->slices * h->row_panels * SLICE * STEP * (int64_t)sizeof(float));
    h->own_bytes = own_bytes(h);
    h->own = take(scratch, &used, threads * h->own_bytes);
    return used;
}

int64_t sh_amx_head_work_bytes(const struct sh_op_call *call, int threads)
{
    struct head h = head_of(call);

    return lay_out(&h, NULL, threads);
}

static float *squares(const struct head *h, int64_t slice, int64_t row_panel)
{
    return h->squares + (slice * h->row_panels + row_panel) * SLICE * STEP;
}

/* Gradients, which take the first half of the room of a slice: panels of rows, with the words of the slice as steps. */
static sh_bf16 *gradients(const struct head *h, int64_t slice, int64_t row_panel)
{
    return (sh_bf16 *)(void *)squares(h, slice, 0) + row_panel * SLICE * STEP;
}

/* Panels of a slice; words of those. */
static int64_t panels_of(const struct head *h, int64_t slice)
{
    return sh_amx_least(h->word_panels - slice * SLICE, SLICE);
}

static int64_t words_of(const struct head *h, int64_t slice)
{
    return sh_amx_least(h->vocab - slice * SLICE * SIDE, SLICE * SIDE);
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

/* Words that do not exist are impossible. */
static void close_vocabulary(const struct head *h, int64_t slice)
{
    for (int64_t i = 0; i < h->row_panels; i++)
        for (int64_t r = 0; r < SIDE; r++)
            for (int64_t c = words_of(h, slice); c < panels_of(h, slice) * SIDE; c++)
                squares(h, slice, i)[c / SIDE * STEP + r * SIDE + c % SIDE] = -INFINITY;
}

/* Logits of a slice. Room for each square is asked for while the one before is made. */
static void make_logits(const struct head *h, int64_t slice, sh_bf16 *panels)
{
    for (int64_t k = 0; k < h->dim_panels; k += DEPTH) {
        struct sh_amx_source w = {.data = h->w + slice * SLICE * SIDE * h->dim + k * SIDE, .step = h->dim,
                                  .sides = words_of(h, slice), .depth = sh_amx_least(h->dim - k * SIDE, DEPTH * SIDE)};
        sh_amx_pack_cols(&w, panels, CHUNK);
        for (int64_t i = 0; i < h->row_panels; i++) {
            for (int64_t q = 0; q < panels_of(h, slice); q++) {
                float *sums = squares(h, slice, i) + q * STEP;
                if (k == 0)
                    sh_amx_prefetch(sums + STEP, STEP * (int64_t)sizeof *sums);
                sh_amx_multiply(h->x_rows + (i * h->dim_panels + k) * STEP, panels + q * CHUNK, sums,
                                sh_amx_panels(w.depth), k > 0);
            }
        }
    }
    close_vocabulary(h, slice);
}

/* Of one row over the panels of a slice, STEP apart. Lanes by hand, as compilers will not reorder maxima. */
static SH_AMX struct part part_of(const float *x, int64_t panels)
{
    float max[SIDE], sum[SIDE];
    struct part p = {-INFINITY, 0};

    for (int c = 0; c < SIDE; c++)
        max[c] = x[c];
    for (int64_t q = 1; q < panels; q++)
        for (int c = 0; c < SIDE; c++)
            max[c] = x[q * STEP + c] > max[c] ? x[q * STEP + c] : max[c];
    for (int c = 0; c < SIDE; c++) {
        p.max = max[c] > p.max ? max[c] : p.max;
        sum[c] = 0;
    }
    for (int64_t q = 0; q < panels; q++)
        for (int c = 0; c < SIDE; c++)
            sum[c] += sh_expf(x[q * STEP + c] - p.max);
    for (int c = 0; c < SIDE; c++)
        p.sum += sum[c];
    return p;
}

static void take_parts(const struct head *h, int64_t slice)
{
    for (int64_t r = 0; r < h->n; r++)
        h->parts[slice * h->row_panels * SIDE + r] =
            part_of(squares(h, slice, r / SIDE) + r % SIDE * SIDE, panels_of(h, slice));
}

static float *logit_of(const struct head *h, int64_t r, int64_t word)
{
    return squares(h, word / (SLICE * SIDE), r / SIDE) + word / SIDE % SLICE * STEP + r % SIDE * SIDE + word % SIDE;
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
    h->loss[r] = target < 0 ? 0 : lse - (double)*logit_of(h, r, target);
}

static sh_bf16 target_gradient(float logit, float lse, float scale)
{
    return sh_f32_to_bf16((sh_expf(logit - lse) - 1) * scale);
}

/* out [SIDE] = softmax * scale, in bf16 */
static SH_AMX void row_gradient(const float *x, float lse, float scale, sh_bf16 *out)
{
    float g[SIDE] __attribute__((aligned(64)));

    for (int c = 0; c < SIDE; c++)
        g[c] = sh_expf(x[c] - lse) * scale;
    _mm512_store_si512(out, (__m512i)_mm512_cvtne2ps_pbh(_mm512_load_ps(g + SIDE / 2), _mm512_load_ps(g)));
}

/* (softmax - onehot) * scale of a panel of rows, square by square: as panels of rows in the place of the logits,
 * where they never reach a square that is still to be read; as panels of words for the thread itself, row_panels
 * steps deep. */
static void make_gradients(const struct head *h, int64_t slice, int64_t i, sh_bf16 *words)
{
    sh_bf16 rounded[STEP] __attribute__((aligned(64)));
    float scale = (float)h->call->scalars->loss_scale;

    for (int64_t q = 0; q < panels_of(h, slice); q++) {
        const float *x = squares(h, slice, i) + q * STEP;
        sh_amx_prefetch(x + STEP, STEP * (int64_t)sizeof *x);
        for (int64_t r = 0; r < SIDE; r++) {
            int64_t at = i * SIDE + r;
            int32_t target = at < h->n ? h->targets[h->row + at] : -1;
            row_gradient(x + r * SIDE, at < h->n ? h->lse[at] : 0, target < 0 ? 0 : scale, rounded + r * SIDE);
            if (target >= 0 && target / SIDE == slice * SLICE + q)
                rounded[r * SIDE + target % SIDE] = target_gradient(x[r * SIDE + target % SIDE], h->lse[at], scale);
        }
        memcpy(gradients(h, slice, i) + q * STEP, rounded, sizeof rounded);
        struct sh_amx_source s = {.data = rounded, .step = SIDE, .inner_rows = true, .sides = SIDE, .depth = SIDE};
        sh_amx_pack_rows(&s, words + (q * h->row_panels + i) * STEP, 0);
    }
}

/* dw [V,C] (+)= dlogits' x for the words of a slice; words [SLICE][row_panels][STEP] */
static void slice_dw(const struct head *h, const struct sh_gemm *dw, int64_t slice, const sh_bf16 *words, float *sums)
{
    int64_t panels = panels_of(h, slice);

    for (int64_t j = 0; j < h->dim_panels; j++) {
        for (int64_t k = 0; k < h->row_panels; k += DEPTH)
            for (int64_t q = 0; q < panels; q++)
                sh_amx_multiply(words + (q * h->row_panels + k) * STEP, h->x_cols + (j * h->row_panels + k) * STEP,
                                sums + q * STEP, sh_amx_least(h->row_panels - k, DEPTH), k > 0);
        for (int64_t q = 0; q < panels; q++) {
            sh_amx_prefetch_addend(dw, (slice * SLICE + q) * SIDE, (j + 1) * SIDE);
            sh_amx_emit(dw, sums + q * STEP, (slice * SLICE + q) * SIDE, j * SIDE);
        }
    }
}

/* A part of dx [n,C] = dlogits w: `down` x `across` squares from panels (i, j) on. */
static void part_dx(const struct head *h, const struct sh_gemm *dx, int64_t i, int64_t down, int64_t j, int64_t across,
                    sh_bf16 *panels)
{
    float *sums = (float *)(void *)(panels + ACROSS * CHUNK);

    for (int64_t s = 0; s < h->slices; s++) {
        struct sh_amx_source w = {.data = h->w + s * SLICE * SIDE * h->dim + j * SIDE, .step = h->dim,
                                  .inner_rows = true, .sides = sh_amx_least(h->dim - j * SIDE, across * SIDE),
                                  .depth = words_of(h, s)};
        sh_amx_pack_cols(&w, panels, CHUNK);
        for (int64_t q = 0; q < across; q++) {
            for (int64_t p = 0; p < down; p++) {
                const sh_bf16 *next = gradients(h, s + 1, i + p) + CHUNK * q / across;
                sh_amx_prefetch(next, CHUNK / across * (int64_t)sizeof *next);
                sh_amx_multiply(gradients(h, s, i + p), panels + q * CHUNK, sums + (q * DOWN + p) * STEP,
                                panels_of(h, s), s > 0);
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

    while (down > 4 && div_up(h->row_panels, down) * div_up(h->dim_panels, across) < omp_get_num_threads())
        *(down > across ? &down : &across) /= 2;
    int64_t parts = div_up(h->row_panels, down) * div_up(h->dim_panels, across);
#pragma omp for schedule(dynamic)
    for (int64_t p = 0; p < parts; p++) {
        int64_t i = p % div_up(h->row_panels, down) * down, j = p / div_up(h->row_panels, down) * across;
        part_dx(h, &dx, i, sh_amx_least(down, h->row_panels - i), j, sh_amx_least(across, h->dim_panels - j),
                own_of(h));
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
        sh_bf16 *words = own_of(h);
        for (int64_t i = 0; i < h->row_panels; i++)
            make_gradients(h, s, i, words);
        slice_dw(h, &dw, s, words, (float *)(void *)(words + SLICE * h->row_panels * STEP));
    }
}

/* Within a parallel region: its threads share the chunk of rows. */
static void run_chunk(const struct head *h)
{
    pack_x(h);
#pragma omp for schedule(dynamic)
    for (int64_t s = 0; s < h->slices; s++) {
        make_logits(h, s, own_of(h));
        take_parts(h, s);
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
