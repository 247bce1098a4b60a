/* The head: logits, cross entropy and its gradients, a chunk of attr->head.chunk_rows rows at a time, so that [N,V]
 * never exists. head_panels.c does it if it can, otherwise the products of any engine. Rows are padded in scratch to
 * whole cache lines, since a vocabulary is seldom a multiple of anything. Floor: 2*N*C*V operations for the loss,
 * 6*N*C*V with gradients. Each chunk reads w once or twice and reads and writes dw once, so chunks of few rows are
 * bound by memory. The chunk's size changes only the order of dw's sums. Measured at GPT-2's size on two Zen 5 cores,
 * loss with gradients, GFLOP/s: 344 in f32 and 586 in bf16 with 80 rows, 421 and 735 with 256. */
#include "sherd_config.h"

#include "kernels/cpu/base/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/gemv.h"
#include "kernels/cpu/panel/head_panels.h"
#include "kernels/cpu/panel/panel.h"
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/teacher.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { PAD = 32 };

/* One call with its scratch. */
struct head {
    const struct sh_op_call *call;
    const void *x, *w;      /* [N,C], [V,C] of type dtype */
    const int32_t *targets; /* [N] */
    enum sh_dtype dtype;
    int64_t rows, dim, vocab, chunk, ld;
    double *loss, *squares;         /* [chunk]; squares: NULL: not wanted */
    struct sh_teacher_row *teacher; /* [chunk]; NULL: there is none */
    float *logits; /* [chunk,ld]; overwritten by their gradients, in 16 bits at the start of each row */
    float cap;     /* 0: none */
    float *slopes; /* [threads,ld] derivatives of capped logits, of one row; none without a cap */
    void *work;    /* for the products */
    int64_t work_bytes;
};

static int64_t rows_of(const struct sh_operand *x)
{
    int64_t rows = 1;
    for (int i = 0; i < x->ndim - 1; i++)
        rows *= x->dim[i];
    return rows;
}

/* Shapes, and the sizes of the pieces of scratch before the one for products. */
enum { PIECES = 4 };
static struct head head_of(const struct sh_op_call *call, int threads, int64_t piece[PIECES])
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1];
    struct head h = {.call = call,
                     .x = x->data,
                     .w = w->data,
                     .targets = call->in[2].data,
                     .dtype = x->dtype,
                     .rows = rows_of(x),
                     .dim = w->dim[1],
                     .vocab = w->dim[0],
                     .cap = call->attr->head.cap};
    h.chunk = call->attr->head.chunk_rows < h.rows ? call->attr->head.chunk_rows : h.rows;
    h.ld = (h.vocab + PAD - 1) / PAD * PAD;
    piece[0] = (call->attr->head.squares == 0 ? 1 : 2) * sh_cpu_round64(h.chunk * (int64_t)sizeof *h.loss);
    piece[3] = sh_cpu_has_teacher(call) ? sh_cpu_round64(h.chunk * (int64_t)sizeof *h.teacher) : 0;
    piece[1] = sh_cpu_round64(h.chunk * h.ld * (int64_t)sizeof *h.logits);
    piece[2] = h.cap == 0 ? 0 : sh_cpu_round64(threads * h.ld * (int64_t)sizeof *h.slopes);
    return h;
}

/* The largest of the products that the head runs: logits and dw in f32, dx in the compute type. */
static int64_t products_bytes(const struct head *h, int threads)
{
    struct sh_matmul logits = {.m = h->chunk, .n = h->vocab, .k = h->dim, .in_dtype = h->dtype, .out_dtype = SH_F32};
    struct sh_matmul dx = {.m = h->chunk, .n = h->dim, .k = h->vocab, .in_dtype = h->dtype, .out_dtype = h->dtype};
    struct sh_matmul dw = {.m = h->vocab, .n = h->dim, .k = h->chunk, .in_dtype = h->dtype, .out_dtype = SH_F32};
    const struct sh_matmul *all[] = {&logits, &dx, &dw};
    int64_t most = 0;

    for (int i = 0; i < 3; i++) {
        int64_t bytes = sh_gemm_work_bytes(all[i], threads);
        most = bytes > most ? bytes : most;
    }
    return most;
}

#ifdef SH_WIDE
static bool by_tiles(const struct sh_op_call *call)
{
    return call->kind != SH_OP_HEAD_SCORE && !sh_cpu_has_teacher(call) && !call->attr->head.raw &&
           call->attr->head.cap == 0 && call->in[0].dtype == SH_BF16 && sh_panel_unit();
}
#endif

/* logits [B,V] = x [B, position, C] w': rows T*C elements apart */
static struct sh_matmul logits_of_last(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1], *y = &call->out[0];
    int64_t seq = x->dim[1], dim = x->dim[2], position = call->scalars ? call->scalars->position : 0;

    /* clang-format off */
    return (struct sh_matmul){
        .m = x->dim[0], .n = w->dim[0], .k = dim,
        .in_dtype = x->dtype, .out_dtype = y->dtype,
        .a = sh_cpu_at(x->data, x->dtype, position * dim), .lda = seq * dim,
        .b = w->data, .ldb = dim, .trans_b = true,
        .c = (float *)y->data + call->attr->part.first, .ldc = y->dim[1],
    };
    /* clang-format on */
}

int64_t sh_cpu_head_work_bytes(const struct sh_op_call *call, int threads)
{
    if (call->kind == SH_OP_LOGITS) {
        struct sh_matmul g = logits_of_last(call);
        return sh_gemm_work_bytes(&g, threads);
    }
#ifdef SH_WIDE
    if (by_tiles(call))
        return sh_panel_head_work_bytes(call, threads);
#endif
    int64_t piece[PIECES];
    struct head h = head_of(call, threads, piece);
    return piece[0] + piece[1] + piece[2] + piece[3] + products_bytes(&h, threads);
}

/* Cut the scratch in the order in which it was counted. */
static sh_rc open_head(const struct sh_op_call *call, struct head *h)
{
    SH_REQUIRE(call->work_bytes >= sh_cpu_head_work_bytes(call, omp_get_max_threads()));
    int64_t piece[PIECES];
    *h = head_of(call, omp_get_max_threads(), piece);
    char *p = call->work;
    h->loss = (double *)(void *)p;
    h->squares = call->attr->head.squares == 0 ? NULL : (double *)(void *)(p + piece[0] / 2);
    h->logits = (float *)(void *)(p + piece[0]);
    h->slopes = (float *)(void *)(p + piece[0] + piece[1]);
    h->teacher = piece[3] ? (struct sh_teacher_row *)(void *)(p + piece[0] + piece[1] + piece[2]) : NULL;
    h->work = p + piece[0] + piece[1] + piece[2] + piece[3];
    h->work_bytes = call->work_bytes - ((char *)h->work - p);
    return SH_OK;
}

/* logits [n,V] = x [n,C] w' for rows [r, r+n) */
static sh_rc logits_of(const struct head *h, int64_t r, int64_t n)
{
    /* clang-format off */
    struct sh_matmul g = {
        .m = n, .n = h->vocab, .k = h->dim,
        .in_dtype = h->dtype, .out_dtype = SH_F32,
        .a = sh_cpu_at(h->x, h->dtype, r * h->dim), .lda = h->dim,
        .b = h->w, .ldb = h->dim, .trans_b = true,
        .c = h->logits, .ldc = h->ld,
    };
    /* clang-format on */
    return sh_gemm_run(&g, h->work, h->work_bytes);
}

/* Loss of one row of logits. Leaves their exponentials in x, the sum of those in *sum, and its log in *lse. */
static double row_loss(float *x, int64_t n, int32_t target, double *sum, double *lse)
{
    float max = sh_cpu_row_max(x, n);
    double at_target = x[target];
    *sum = sh_cpu_row_exp(x, n, 1.0f, max);
    *lse = log(*sum) + (double)max;
    return *lse - at_target;
}

/* The same without softmax: the loss is minus the target's logit, and the row becomes its gradient. */
static double raw_row(float *x, int64_t n, int32_t target, double scale)
{
    double loss = -(double)x[target];

    memset(x, 0, (size_t)n * sizeof *x);
    x[target] = -(float)scale;
    return loss;
}

/* Turn the row of exponentials into (by softmax - onehot) * scale. */
static void row_gradient(float *x, int64_t n, int32_t target, double sum, double by, double scale)
{
    sh_cpu_row_scale(x, n, (float)(by * scale / sum));
    x[target] -= (float)scale;
}

/* Round a row to 16 bits in place, piece by piece, from the start of its own memory: no element is overwritten before
 * it has been read. */
static void round_row(float *x, int64_t n, enum sh_dtype to)
{
    uint16_t room[SH_CPU_PIECE];

    for (int64_t at = 0; at < n; at += SH_CPU_PIECE) {
        struct sh_cpu_block piece = {.rows = 1, .cols = n - at < SH_CPU_PIECE ? n - at : SH_CPU_PIECE};
        sh_cpu_block_store(piece, room, piece.cols, to, x + at, piece.cols);
        memcpy((char *)x + at * (int64_t)sizeof *room, room, (size_t)piece.cols * sizeof *room);
    }
}

/* Cap a row of logits; with gradient return their derivatives, NULL without a cap. */
static const float *cap_row(const struct head *h, float *x, bool gradient)
{
    float *slope = gradient ? h->slopes + omp_get_thread_num() * h->ld : NULL;

    if (h->cap == 0)
        return NULL;
    sh_cpu_row_cap(x, slope, h->vocab, 1 / h->cap, h->cap);
    return slope;
}

/* Row i of the chunk. A skipped row has no loss, and its gradient is 0, but it still takes part in the products. */
static void one_row(const struct head *h, int64_t r, int64_t i, bool gradient)
{
    float *x = h->logits + i * h->ld;
    int32_t target = h->targets[r + i];
    double sum = 0, lse = 0, weight = (double)sh_panel_head_weight(h->call, r + i), z = h->call->attr->head.squares;
    double scale = gradient ? weight * h->call->scalars->loss_scale : 0;
    bool teacher = weight != 0 && h->teacher, raw = weight != 0 && h->call->attr->head.raw;
    const float *slope = cap_row(h, x, gradient);
    if (teacher)
        h->loss[i] = weight * sh_cpu_teacher_row(h->call, r + i, x, h->vocab, gradient, scale, &lse, &h->teacher[i]);
    else if (raw)
        h->loss[i] = weight * raw_row(x, h->vocab, target, scale);
    else
        h->loss[i] = weight == 0 ? 0 : weight * row_loss(x, h->vocab, target, &sum, &lse);
    if (h->squares)
        h->squares[i] = weight * z * lse * lse;
    if (!gradient)
        return;
    if (weight == 0)
        memset(x, 0, (size_t)h->vocab * sizeof *x);
    else if (!teacher && !raw)
        row_gradient(x, h->vocab, target, sum, 1 + 2 * z * lse, scale);
    if (slope)
        sh_cpu_row_times(x, slope, h->vocab);
    if (h->dtype != SH_F32)
        round_row(x, h->vocab, h->dtype);
}

/* Compute the logits of rows [r, r+n), or their gradients in place if asked for; add their losses in row order. */
static sh_rc chunk_loss(const struct head *h, int64_t r, int64_t n, bool gradient, struct sh_panel_head_sums *sums)
{
    SH_TRY(logits_of(h, r, n));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        one_row(h, r, i, gradient);
    for (int64_t i = 0; i < n; i++) {
        double weight = (double)sh_panel_head_weight(h->call, r + i);

        sh_panel_head_add(sums, h->loss, h->squares, i);
        if (weight == 0 || !h->teacher)
            continue;
        sums->of[SH_HEAD_KL] += weight * h->teacher[i].kl;
        sums->of[SH_HEAD_MASS] += weight * h->teacher[i].mass;
        sums->of[SH_HEAD_RIGHT] += h->teacher[i].right ? weight : 0;
    }
    return SH_OK;
}

/* dx [n,C] = dlogits w; dw [V,C] (+)= dlogits' x, if wanted */
static sh_rc chunk_gradients(const struct head *h, int64_t r, int64_t n)
{
    const struct sh_operand *dx = &h->call->out[1], *dw = &h->call->out[2];
    /* clang-format off */
    struct sh_matmul g = {
        .m = n, .n = h->dim, .k = h->vocab,
        .in_dtype = h->dtype, .out_dtype = dx->dtype,
        .a = h->logits, .lda = h->ld * (int64_t)sizeof *h->logits / sh_dtype_bytes(h->dtype),
        .b = h->w, .ldb = h->dim,
        .c = sh_cpu_at(dx->data, dx->dtype, r * h->dim), .ldc = h->dim,
    };
    /* clang-format on */
    SH_TRY(sh_gemm_run(&g, h->work, h->work_bytes));
    if (!dw->data)
        return SH_OK;

    bool add = r > 0 || sh_op_adds(h->call, 2);
    g.m = h->vocab;
    g.k = n;
    g.trans_a = true;
    g.b = sh_cpu_at(h->x, h->dtype, r * h->dim);
    g.out_dtype = dw->dtype;
    g.c = dw->data;
    g.addend = add ? dw->data : NULL;
    return sh_gemm_run(&g, h->work, h->work_bytes);
}

/* One chunk after another; sums are in row order. */
static sh_rc run_chunks(const struct sh_op_call *call, bool gradient, struct sh_panel_head_sums *sums)
{
    struct head h;
    SH_TRY(open_head(call, &h));
    *sums = (struct sh_panel_head_sums){0};
    for (int64_t r = 0; r < h.rows; r += h.chunk) {
        int64_t n = h.rows - r < h.chunk ? h.rows - r : h.chunk;
        SH_TRY(chunk_loss(&h, r, n, gradient, sums));
        if (gradient)
            SH_TRY(chunk_gradients(&h, r, n));
    }
    return SH_OK;
}

/* For both kinds: the call's kind says whether gradients are computed. */
static sh_rc run_head(const struct sh_op_call *call)
{
    struct sh_panel_head_sums sums;
#ifdef SH_WIDE
    if (by_tiles(call))
        SH_TRY(sh_panel_head_run(call, &sums));
    else
#endif
        SH_TRY(run_chunks(call, call->kind == SH_OP_HEAD_LOSS_GRAD, &sums));
    sh_panel_head_store(call, sums);
    return SH_OK;
}

sh_rc sh_cpu_head_loss(const struct sh_op_call *call)
{
    return run_head(call);
}

sh_rc sh_cpu_head_loss_grad(const struct sh_op_call *call)
{
    return run_head(call);
}

/* The best words of a row of logits, if they are asked for; their logits are kept. */
static void best_row(const struct head *h, int64_t row, const float *x)
{
    const struct sh_operand *words = &h->call->out[2], *best = &h->call->out[3];
    int64_t k = words->data ? words->dim[words->ndim - 1] : 0;

    if (k)
        sh_cpu_best_words(x, h->vocab, k, (int32_t *)words->data + row * k, (float *)best->data + row * k);
}

static void score_row(const struct head *h, int64_t r, int64_t i)
{
    float *x = h->logits + i * h->ld, *best = h->call->out[3].data, max;
    int32_t target = h->targets[r + i];
    int64_t k = best ? h->call->out[3].dim[h->call->out[3].ndim - 1] : 0;
    (void)cap_row(h, x, false);
    max = sh_cpu_row_max(x, h->vocab);
    double at_target = target < 0 ? 0 : (double)x[target], lse = 0;

    ((int32_t *)h->call->out[1].data)[r + i] = sh_cpu_best_word(x, h->vocab, max);
    best_row(h, r + i, x);
    if ((target >= 0 || k) && !h->call->attr->head.raw)
        lse = log((double)sh_cpu_row_exp(x, h->vocab, 1.0f, max)) + (double)max;
    for (int64_t j = (r + i) * k; j < (r + i + 1) * k; j++)
        best[j] = (float)((double)best[j] - lse);
    ((float *)h->call->out[0].data)[r + i] = target < 0 ? 0 : (float)(at_target - lse);
}

sh_rc sh_cpu_head_score(const struct sh_op_call *call)
{
    struct head h;

    SH_TRY(open_head(call, &h));
    for (int64_t r = 0; r < h.rows; r += h.chunk) {
        int64_t n = h.rows - r < h.chunk ? h.rows - r : h.chunk;
        SH_TRY(logits_of(&h, r, n));
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++)
            score_row(&h, r, i);
    }
    return SH_OK;
}

sh_rc sh_cpu_logits(const struct sh_op_call *call)
{
    struct sh_matmul g = logits_of_last(call);
    float cap = call->attr->part.cap;

    if (g.n < g.ldc) /* other ranks have the other words */
        memset(call->out[0].data, 0, (size_t)(g.m * g.ldc) * sizeof(float));
    if (sh_gemv_takes(&g))
        sh_gemv_run(&g);
    else
        SH_TRY(sh_gemm_run(&g, call->work, call->work_bytes));
    for (int64_t b = 0; b < g.m && cap != 0; b++)
        sh_cpu_row_cap((float *)g.c + b * g.ldc, NULL, g.n, 1 / cap, cap);
    return SH_OK;
}
