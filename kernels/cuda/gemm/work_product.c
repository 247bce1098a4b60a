#include "kernels/cuda/gemm/work_product.h"

#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/operand.h"

enum {
    LOGITS_PAD = 64,
    CUDNN_ROWS = 64,        /* cuDNN rounds the sides of a [T,T] up to this */
    CUDNN_SLACK = 1 << 20,  /* counters and the like */
    CUDNN_MOST = 640 << 20, /* holds the [T,T] of four heads at T = 8192, or of one at 16384 */
};
/* In any order, for a group of heads that share keys and values: T = 349,525 of four heads of 128. */
static const int64_t cudnn_most_of_group = INT64_C(2) << 30;

int64_t sh_cuda_linear_work_bytes(const struct sh_op_call *call)
{
    (void)call;
    return SH_CUBLASLT_WORK_BYTES;
}

/* Scratch of the head, in order: numbers of rows, logits [chunk,ld], then cuBLASLt's. Each is aligned to 256 bytes. */
struct sh_cuda_head_work sh_cuda_head_work(const struct sh_op_call *call)
{
    int64_t rows = sh_cuda_rows(&call->in[0]), vocab = call->in[1].dim[0], wanted = call->attr->head.chunk_rows;
    struct sh_cuda_head_work w = {.chunk = wanted < rows ? wanted : rows};
    w.ld = (vocab + LOGITS_PAD - 1) / LOGITS_PAD * LOGITS_PAD;
    w.logits = w.row_loss + sh_cuda_round256(sh_head_numbers(call->attr) * w.chunk * (int64_t)sizeof(double));
    w.product = w.logits + sh_cuda_round256(w.chunk * w.ld * (int64_t)sizeof(float));
    w.bytes = w.product + SH_CUBLASLT_WORK_BYTES + 256;
    return w;
}

int64_t sh_cuda_head_work_bytes(const struct sh_op_call *call)
{
    return call->kind == SH_OP_LOGITS ? SH_CUBLASLT_WORK_BYTES : sh_cuda_head_work(call).bytes;
}

struct sh_cuda_lora_work sh_cuda_lora_work(const struct sh_op_call *call)
{
    const struct sh_operand *u = call->kind == SH_OP_LORA ? &call->out[1] : &call->in[2];
    int64_t n = u->dim[0] * u->dim[1];
    struct sh_cuda_lora_work w = {.scaled = sh_cuda_round256(n * (int64_t)sizeof(float))};
    w.product = w.scaled + (call->kind == SH_OP_LORA ? 0 : sh_cuda_round256(n * sh_dtype_bytes(u->dtype)));
    w.bytes = w.product + SH_CUBLASLT_WORK_BYTES + 256;
    return w;
}

int64_t sh_cuda_lora_work_bytes(const struct sh_op_call *call)
{
    return sh_cuda_lora_work(call).bytes;
}

/* Three numbers of bf16 have the bits of one of f32; w is copied for them. */
struct sh_cuda_route_work sh_cuda_route_work(const struct sh_op_call *call)
{
    const struct sh_operand *w = &call->in[5];
    int64_t E = w->dim[0], C = w->dim[1], size = sh_dtype_bytes(w->dtype);
    struct sh_cuda_route_work r = {.parts = w->dtype == SH_F32 ? 1 : 3};

    r.count = sh_cuda_round256(sh_cuda_rows(&call->in[2]) * E * r.parts * size);
    r.w = r.count + sh_cuda_round256(E * (int64_t)sizeof(int32_t));
    r.product = r.w + (r.parts == 1 || !call->out[0].ndim ? 0 : sh_cuda_round256(r.parts * E * C * size));
    r.bytes = r.product + SH_CUBLASLT_WORK_BYTES + 256;
    return r;
}

int64_t sh_cuda_route_work_bytes(const struct sh_op_call *call)
{
    return call->kind == SH_OP_ROUTE ? SH_CUBLASLT_WORK_BYTES : sh_cuda_route_work(call).bytes;
}

struct sh_cuda_expert_work sh_cuda_expert_work(const struct sh_op_call *call)
{
    bool bwd_w = call->kind == SH_OP_EXPERT_LINEAR_BWD_W;
    const struct sh_operand *first = &call->in[bwd_w ? 2 : 1];
    int64_t groups = sh_cuda_rows(first) * sh_cuda_last_dim(first) - 1;
    struct sh_cuda_expert_work w = {.calls = bwd_w ? groups / call->out[0].dim[0] : 1};

    w.groups = groups / w.calls;
    w.pitch = (w.groups + 3) / 4 * 4;
    w.rows = 3 * w.calls * w.pitch * (int64_t)sizeof(void *);
    w.numbers = w.rows + 6 * w.calls * w.pitch * (int64_t)sizeof(int32_t);
    w.product = sh_cuda_round256(w.numbers + 2 * (int64_t)sizeof(float));
    w.bytes = w.product + SH_CUBLASLT_WORK_BYTES + 256;
    return w;
}

/* Of the largest sides of any rank's matrices. */
struct sh_cuda_ortho_work sh_cuda_ortho_work(const struct sh_op_call *call)
{
    int64_t m = sh_cuda_ortho_ld(call->attr->ortho.most_short), n = sh_cuda_ortho_ld(call->attr->ortho.most_long);
    struct sh_cuda_ortho_work w = {.type = call->attr->ortho.narrow ? SH_BF16 : SH_F32};
    int64_t size = sh_dtype_bytes(w.type);

    w.next = sh_cuda_round256(m * n * size);
    w.gram = 2 * w.next;
    w.square = w.gram + sh_cuda_round256(m * m * size);
    w.sums = w.square + sh_cuda_round256(m * m * (int64_t)sizeof(float));
    w.product = w.sums + sh_cuda_round256((n + 1) * (int64_t)sizeof(double));
    w.bytes = w.product + SH_CUBLASLT_WORK_BYTES + 256;
    return w;
}

int64_t sh_cuda_ortho_work_bytes(const struct sh_op_call *call)
{
    return sh_cuda_ortho_work(call).bytes;
}

int64_t sh_cuda_ortho_rows_work_bytes(const struct sh_op_call *call)
{
    return call->attr->ortho.most_long * (int64_t)sizeof(double);
}

/* Sherd's own kernel needs none. */
int64_t sh_cuda_expert_work_bytes(const struct sh_op_call *call)
{
    return call->attr->rows.choose ? sh_cuda_expert_work(call).bytes : 0;
}

/* [B,T,(H+2K)D] of either direction */
static const struct sh_operand *qkv_of(const struct sh_op_call *call)
{
    return &call->in[call->kind == SH_OP_ATTENTION ? 0 : 1];
}

/* Documents are the last input of either direction. */
static bool has_docs(const struct sh_op_call *call)
{
    return call->in[call->kind == SH_OP_ATTENTION ? 1 : 4].ndim > 0;
}

/* bf16, no document mask, no window and no soft cap: the graphs of cudnn_graph.c are written for this case. Whether the GPU and the
 * version of cuDNN at hand have a kernel shows when the plan is made. */
static bool cudnn_can(const struct sh_op_call *call)
{
    int dim = call->attr->attn.head_dim;
    return qkv_of(call)->dtype == SH_BF16 && dim % 8 == 0 && (dim <= 128 || dim == 256) && !has_docs(call) &&
           call->attr->attn.window == 0 && call->attr->attn.cap == 0;
}

/* Positions, with those that cuDNN adds. */
static int64_t rows_of(const struct sh_op_call *call)
{
    return (qkv_of(call)->dim[1] + CUDNN_ROWS - 1) / CUDNN_ROWS * CUDNN_ROWS;
}

/* Space for `heads` query heads of one sequence: their [T,T] in bf16, and dk and dv of each in bf16. In any order
 * there is no [T,T], and no dk and dv for heads that share none; plans for sm_80 and 100 need dq in f32 once more. */
static int64_t cudnn_space(const struct sh_op_call *call, int64_t heads)
{
    int64_t seq = rows_of(call), dim = call->attr->attn.head_dim;
    int64_t any_order = call->attr->attn.heads > call->attr->attn.kv_heads ? 8 * dim : 4 * dim;
    return heads * seq * (call->attr->attn.any_order ? any_order : 2 * seq + 4 * dim);
}

/* dq in f32, to which blocks add in any order. The caller provides it, in addition to the plan's space. cuDNN clears
 * it, since 9.6. */
static int64_t dq_sums(const struct sh_op_call *call, int64_t heads)
{
    return call->attr->attn.any_order
               ? heads * qkv_of(call)->dim[1] * call->attr->attn.head_dim * (int64_t)sizeof(float)
               : 0;
}

/* What the caller and the plan need together for that many heads. */
static int64_t cudnn_bytes(const struct sh_op_call *call, int64_t heads)
{
    return cudnn_space(call, heads) + dq_sums(call, heads);
}

/* The largest divisor of n with each * divisor <= CUDNN_MOST; 0: not even 1 fits. */
static int64_t most_at_once(int64_t n, int64_t each)
{
    for (int64_t d = n; d > 0; d--)
        if (n % d == 0 && d * each <= CUDNN_MOST)
            return d;
    return 0;
}

/* The backward is cut by key-value heads, then by sequences, until its scratch fits CUDNN_MOST. In any order the scratch of a
 * group grows as the sequence does, and may be larger. batch 0: cuDNN does not support the call. */
struct sh_cuda_cudnn_work sh_cuda_cudnn_work(const struct sh_op_call *call)
{
    struct sh_cuda_cudnn_work w = {0};
    int64_t batch = qkv_of(call)->dim[0], seq = qkv_of(call)->dim[1], kv = call->attr->attn.kv_heads;
    if (!cudnn_can(call))
        return w;
    if (call->kind == SH_OP_ATTENTION) {
        w = (struct sh_cuda_cudnn_work){.batch = batch, .kv_heads = kv, .plan = CUDNN_SLACK};
    } else {
        int64_t group = call->attr->attn.heads / kv, each = cudnn_bytes(call, group);
        int64_t heads = most_at_once(kv, each), whole;
        if (heads == 0 && call->attr->attn.any_order && each <= cudnn_most_of_group)
            heads = 1;
        if (heads == 0)
            return w;
        whole = heads == kv ? most_at_once(batch, kv * each) : 1;
        whole = whole ? whole : 1; /* a group that is larger */
        w = (struct sh_cuda_cudnn_work){.batch = whole, .kv_heads = heads};
        w.sums = sh_cuda_round256(whole * heads * group * seq * (int64_t)sizeof(float));
        w.dq_sums = sh_cuda_round256(whole * dq_sums(call, heads * group));
        w.plan = sh_cuda_round256(whole * cudnn_space(call, heads * group)) + CUDNN_SLACK;
    }
    w.bytes = w.sums + w.dq_sums + w.plan + 256;
    return w;
}

int64_t sh_cuda_attention_work_bytes(const struct sh_op_call *call)
{
    return sh_cuda_cudnn_work(call).bytes;
}

/* The other kernels need the row sums of all heads, as many as lse has. cuDNN takes no runs of queries. */
int64_t sh_cuda_attention_bwd_work_bytes(const struct sh_op_call *call)
{
    bool packed = call->kind == SH_OP_ATTENTION_BWD;
    const struct sh_operand *lse = &call->in[packed ? 3 : 4];
    int64_t sums = lse->dim[0] * lse->dim[1] * lse->dim[2] * (int64_t)sizeof(float);
    int64_t cudnn = packed ? sh_cuda_cudnn_work(call).bytes : 0;
    return sums > cudnn ? sums : cudnn;
}
