/* The head: logits, cross entropy and its gradients, a chunk of attr->head.chunk_rows rows at a time, so that [N,V]
 * never exists. The logits are f32 even in bf16 runs: rounding them to bf16 would cost the loss its third digit.
 * Their gradients replace them in place, in the compute type. Rows are padded in scratch to 64 elements, since a
 * vocabulary is seldom a multiple of anything and products want aligned rows. Floor: 2*N*C*V operations for the loss,
 * 6*N*C*V with gradients. In addition every logit is written, read twice, and its gradient written and read twice: 18
 * bytes in bf16 against 6*C operations, a tenth of the time at C = 4096 on an H200. dw is read and written once per
 * chunk, so chunks should have a thousand rows or more. */
#include "kernels/cuda/gemm/head.h"

#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/operand.h"
#include "kernels/cuda/loss/forms.h"
#include "kernels/cuda/gemm/work_product.h"

#include <stddef.h>

/* The pieces of the call's scratch; see sh_cuda_head_work(). */
struct head {
    const struct sh_op_call *call;
    struct sh_cuda_head_work at;
    int64_t rows, dim, vocab;
    char *work;
};

/* Scratch starts at a multiple of 256, as cuBLASLt requires. */
static struct head head_of(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1];
    char *work = call->work;
    work += -(uintptr_t)work & 255;
    return (struct head){.call = call,
                         .at = sh_cuda_head_work(call),
                         .rows = sh_cuda_rows(x),
                         .dim = w->dim[1],
                         .vocab = w->dim[0],
                         .work = work};
}

/* Which dimension of a product is the vocabulary. */
enum side { ROWS, COLUMNS, TERMS };

static void *after(const void *p, int64_t elems, enum sh_dtype dtype)
{
    return (char *)(uintptr_t)p + elems * sh_dtype_bytes(dtype);
}

/* The product of words [from, from + n). */
static struct sh_matmul of_words(struct sh_matmul p, enum side side, int64_t from, int64_t n)
{
    int64_t a = side == COLUMNS ? 0 : from, b = side == ROWS ? 0 : from * p.ldb;
    int64_t c = side == ROWS ? from * p.ldc : side == COLUMNS ? from : 0;

    *(side == ROWS ? &p.m : side == COLUMNS ? &p.n : &p.k) = n;
    p.a = after(p.a, a, p.in_dtype);
    p.b = after(p.b, b, p.in_dtype);
    if (p.addend)
        p.addend = after(p.addend, c, p.out_dtype);
    p.c = after(p.c, c, p.out_dtype);
    if (side == TERMS && from > 0)
        p.addend = p.c;
    return p;
}

/* cuBLASLt's kernels for tensor cores want multiples of 8 in bf16: for 50,257 words its others took seven times as
 * long on an H100 as these do for 50,256. So the last few words are a product of their own. Its scratch follows the
 * head's own. */
static sh_rc run_product(const struct head *h, const struct sh_matmul *p, enum side side)
{
    enum { EVEN = 8 };
    int64_t even = p->in_dtype == SH_BF16 ? h->vocab / EVEN * EVEN : h->vocab;
    struct sh_matmul part;

    for (int64_t from = 0, n; from < h->vocab; from += n) {
        n = from < even ? even : h->vocab - from;
        part = of_words(*p, side, from, n);
        SH_TRY(sh_cublaslt_run(&part, h->work + h->at.product, SH_CUBLASLT_WORK_BYTES, h->call->queue));
    }
    return SH_OK;
}

/* logits [n,V] = x [n,C] w' for rows [r, r+n) */
static sh_rc chunk_logits(const struct head *h, int64_t r, int64_t n)
{
    const struct sh_operand *x = &h->call->in[0], *w = &h->call->in[1];
    /* clang-format off */
    struct sh_matmul p = {
        .m = n, .n = h->vocab, .k = h->dim,
        .in_dtype = x->dtype, .out_dtype = SH_F32,
        .a = sh_cuda_at(x, r * h->dim), .lda = h->dim,
        .b = w->data, .ldb = h->dim, .trans_b = true,
        .c = h->work + h->at.logits, .ldc = h->at.ld,
    };
    /* clang-format on */
    return run_product(h, &p, COLUMNS);
}

/* The words of rows from r on, if there is a teacher; or what their labels are to be. */
static void set_teacher(struct sh_cuda_softmax *s, const struct sh_op_call *call, int64_t r)
{
    const struct sh_operand *words = &call->in[4];

    s->multi_label = call->attr->head.multi_label;
    if (s->multi_label)
        s->teacher = (const float *)call->in[5].data + r * s->vocab;
    if (!words->data)
        return;
    s->words = (int)words->dim[words->ndim - 1];
    s->word = (const int32_t *)words->data + r * s->words;
    s->teacher = (const float *)call->in[5].data + r * s->words;
    s->temperature = call->attr->head.temperature;
    s->alpha = call->attr->head.alpha;
    s->form = call->attr->head.form;
}

/* rows [n,V]: compute the loss and, with `gradient`, replace the logits with their gradients. Nothing is launched
 * while products are being collected. */
static sh_rc chunk_loss(const struct head *h, int64_t r, int64_t n, bool gradient)
{
    const struct sh_op_call *call = h->call;
    struct sh_cuda_softmax s = {
        .rows = n,
        .vocab = h->vocab,
        .ld = h->at.ld,
        .logits = (float *)(void *)(h->work + h->at.logits),
        .targets = (const int32_t *)call->in[2].data + r,
        .weight = call->in[3].data ? (const float *)call->in[3].data + r : NULL,
        .row_loss = (double *)(void *)(h->work + h->at.row_loss),
        .numbers = sh_head_numbers(call->attr),
        .loss = call->out[0].data,
        .add_loss = r > 0 || sh_op_adds(call, 0),
        .gradient = gradient,
        .grad_dtype = call->in[0].dtype,
        .loss_scale = call->scalars->loss_scale,
        .raw = call->attr->head.raw,
        .squares = call->attr->head.squares,
        .cap = call->attr->head.cap,
    };
    set_teacher(&s, call, r);
    if (sh_cublaslt_is_asking())
        return SH_OK;
    SH_TRY(sh_cuda_cap_rows(s.logits, n, s.vocab, s.ld, s.cap, call->queue));
    return sh_cuda_softmax_loss(&s, call->queue);
}

/* dx [n,C] = dlogits w; dw [V,C] (+)= dlogits' x, if wanted */
static sh_rc chunk_gradients(const struct head *h, int64_t r, int64_t n)
{
    const struct sh_operand *x = &h->call->in[0], *w = &h->call->in[1], *dx = &h->call->out[1], *dw = &h->call->out[2];
    /* clang-format off */
    struct sh_matmul p = {
        .m = n, .n = h->dim, .k = h->vocab,
        .in_dtype = x->dtype, .out_dtype = dx->dtype,
        /* A row of f32 logits holds bf16 gradients at its start, so its leading dimension is twice as large. */
        .a = h->work + h->at.logits, .lda = x->dtype == SH_BF16 ? 2 * h->at.ld : h->at.ld,
        .b = w->data, .ldb = h->dim,
        .c = sh_cuda_at(dx, r * h->dim), .ldc = h->dim,
    };
    /* clang-format on */
    SH_TRY(run_product(h, &p, TERMS));
    if (!dw->data)
        return SH_OK;

    p.m = h->vocab;
    p.k = n;
    p.trans_a = true;
    p.b = sh_cuda_at(x, r * h->dim);
    p.out_dtype = dw->dtype;
    p.c = dw->data;
    p.addend = r > 0 || sh_op_adds(h->call, 2) ? dw->data : NULL;
    return run_product(h, &p, ROWS);
}

/* Run as many chunks as the rows need; there is scratch for one. */
static sh_rc run_chunks(const struct sh_op_call *call, bool gradient)
{
    SH_REQUIRE(call->work_bytes >= sh_cuda_head_work(call).bytes);
    struct head h = head_of(call);
    for (int64_t r = 0; r < h.rows; r += h.at.chunk) {
        int64_t n = h.rows - r < h.at.chunk ? h.rows - r : h.at.chunk;
        SH_TRY(chunk_logits(&h, r, n));
        SH_TRY(chunk_loss(&h, r, n, gradient));
        if (gradient)
            SH_TRY(chunk_gradients(&h, r, n));
    }
    return SH_OK;
}

sh_rc sh_cuda_head_loss(const struct sh_op_call *call)
{
    return run_chunks(call, false);
}

sh_rc sh_cuda_head_loss_grad(const struct sh_op_call *call)
{
    return run_chunks(call, true);
}

/* rows [n,V]. Nothing is launched while products are being collected. */
static sh_rc chunk_scores(const struct head *h, int64_t r, int64_t n)
{
    const struct sh_op_call *call = h->call;
    struct sh_cuda_scores s = {
        .rows = n,
        .vocab = h->vocab,
        .ld = h->at.ld,
        .logits = (float *)(void *)(h->work + h->at.logits),
        .targets = (const int32_t *)call->in[2].data + r,
        .logprob = (float *)call->out[0].data + r,
        .likeliest = (int32_t *)call->out[1].data + r,
        .raw = call->attr->head.raw,
    };
    if (call->out[2].data) {
        s.words = (int)call->out[2].dim[call->out[2].ndim - 1];
        s.best = (int32_t *)call->out[2].data + r * s.words;
        s.best_logprob = (float *)call->out[3].data + r * s.words;
    }
    if (sh_cublaslt_is_asking())
        return SH_OK;
    SH_TRY(sh_cuda_cap_rows((float *)(void *)(h->work + h->at.logits), n, s.vocab, s.ld, call->attr->head.cap,
                            call->queue));
    SH_TRY(sh_cuda_top_words(&s, call->queue));
    return sh_cuda_softmax_scores(&s, call->queue);
}

sh_rc sh_cuda_head_score(const struct sh_op_call *call)
{
    SH_REQUIRE(call->work_bytes >= sh_cuda_head_work(call).bytes);
    struct head h = head_of(call);
    for (int64_t r = 0; r < h.rows; r += h.at.chunk) {
        int64_t n = h.rows - r < h.at.chunk ? h.rows - r : h.at.chunk;
        SH_TRY(chunk_logits(&h, r, n));
        SH_TRY(chunk_scores(&h, r, n));
    }
    return SH_OK;
}

/* logits [B,V] = x [B, position, C] w': rows T*C elements apart. Of a part of the words, the others' columns are 0. */
sh_rc sh_cuda_logits(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1], *y = &call->out[0];
    int64_t seq = x->dim[1], dim = x->dim[2];
    /* clang-format off */
    struct sh_matmul p = {
        .m = x->dim[0], .n = w->dim[0], .k = dim,
        .in_dtype = x->dtype, .out_dtype = y->dtype,
        .a = sh_cuda_at(x, call->scalars->position * dim), .lda = seq * dim,
        .b = w->data, .ldb = dim, .trans_b = true,
        .c = (float *)y->data + call->attr->part.first, .ldc = y->dim[1],
    };
    /* clang-format on */
    SH_TRY(sh_cublaslt_run(&p, call->work, call->work_bytes, call->queue));
    if (sh_cublaslt_is_asking())
        return SH_OK;
    SH_TRY(sh_cuda_zero_others(y->data, p.m, call->attr->part.first, p.n, p.ldc, call->queue));
    return sh_cuda_cap_rows(p.c, p.m, p.n, p.ldc, call->attr->part.cap, call->queue);
}
