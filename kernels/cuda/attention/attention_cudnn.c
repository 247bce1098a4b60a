/* Attention by cuDNN (cudnn_plan.h). A plan for each shape is made before the first step, and kept. Both directions
 * are deterministic where NVIDIA promises it (cudnn_promise.c), except for a backward with attr->attn.any_order.
 * NVIDIA's figures for an H200, causal, 64 query heads to 8, D = 128, T = 8192: 644 TFLOP/s forward, 541 backward (in
 * any order). On an H100, 32 query heads to 8: 532 forward, 249 backward in one order, 430 in any. */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/cudnn_graph.h"
#include "kernels/cuda/attention/cudnn_plan.h"
#include "kernels/cuda/attention/cudnn_promise.h"
#include "kernels/cuda/gemm/operand.h"
#include "kernels/cuda/gemm/work_product.h"
#include "src/base/log.h"
#include "src/base/mem.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

/* Calls of one shape. */
struct known {
    struct sh_cudnn_shape call; /* as shape_of() makes it */
    struct sh_cudnn_pieces by;  /* plan NULL: other kernels compute it */
};

/* A layer has two shapes, and a model one or two kinds of layer; evaluation may add as many. Kept until the process
 * ends. */
static struct {
    bool gone; /* an attempt to load cuDNN failed */
    struct known *known;
    int n, cap;
} state;

/* One piece of a call, as work_product.c cuts it, without addresses. batch 0: cuDNN does not support this call. */
static struct sh_cudnn_shape shape_of(const struct sh_op_call *call)
{
    struct sh_cuda_cudnn_work w = sh_cuda_cudnn_work(call);
    const struct sh_operand *qkv = &call->in[call->kind == SH_OP_ATTENTION ? 0 : 1];
    int64_t heads = call->attr->attn.heads, kv_heads = call->attr->attn.kv_heads;
    /* clang-format off */
    return (struct sh_cudnn_shape){
        .batch = w.batch, .heads = w.kv_heads * (heads / kv_heads), .kv_heads = w.kv_heads,
        .seq = qkv->dim[1], .dim = call->attr->attn.head_dim, .all_heads = heads, .all_kv_heads = kv_heads,
        .most_bytes = w.plan, .backward = call->kind == SH_OP_ATTENTION_BWD,
        .any_order = call->kind == SH_OP_ATTENTION_BWD && call->attr->attn.any_order,
    };
    /* clang-format on */
}

/* Scratch of a piece, in order: the row sums between the two steps of a backward, dq in f32, the plan's own. */
static int64_t sums_bytes(const struct sh_cudnn_shape *s)
{
    return s->backward ? sh_cuda_round256(s->batch * s->heads * s->seq * (int64_t)sizeof(float)) : 0;
}

static int64_t dq_bytes(const struct sh_cudnn_shape *s)
{
    return s->any_order ? sh_cuda_round256(s->batch * s->heads * s->seq * s->dim * (int64_t)sizeof(float)) : 0;
}

/* The whole call as one piece, if the scratch that work_product.c sets aside for a kernel with [T,T] can hold it. */
static struct sh_cudnn_shape whole(const struct sh_op_call *call, struct sh_cudnn_shape s)
{
    s.batch = call->in[s.backward ? 1 : 0].dim[0], s.heads = s.all_heads, s.kv_heads = s.all_kv_heads;
    s.most_bytes = sh_cuda_cudnn_work(call).bytes - 256 - sums_bytes(&s) - dq_bytes(&s);
    return s;
}

sh_rc sh_attention_cudnn_plan(const struct sh_op_call *call, const struct sh_cudnn_gpu *gpu,
                              struct sh_cudnn_pieces *out)
{
    const struct sh_cudnn_engine *engine = NULL;
    *out = (struct sh_cudnn_pieces){.shape = shape_of(call)};
    if (out->shape.batch == 0)
        return sh_fail(SH_E_USAGE, "cuDNN does not support this attention");
    SH_TRY(sh_cudnn_load());
    if (out->shape.backward && !out->shape.any_order)
        SH_TRY(sh_cudnn_ordered_backward(gpu->capability, sh_cudnn_version(), &engine));
    if (engine && engine->linear)
        out->shape = whole(call, out->shape);
    return sh_cudnn_plan_create(&out->shape, *gpu, engine, &out->plan);
}

/* A few rows, so a linear search. */
static struct known *find(const struct sh_cudnn_shape *shape)
{
    for (int i = 0; i < state.n; i++)
        if (memcmp(&state.known[i].call, shape, sizeof *shape) == 0)
            return &state.known[i];
    return NULL;
}

/* Of this process's GPU; 0: it does not say. */
static int capability(void)
{
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
        return 0;
    return 10 * major + minor;
}

/* One line for each shape: which kernel computes it, or why cuDNN does not. */
static void tell(const struct sh_op_call *call, const struct known *k)
{
    const char *name = sh_op_info(call->kind)->name;
    long long seq = k->call.seq, dim = k->call.dim;
    size_t v = sh_cudnn_version();
    if (k->by.plan)
        sh_log_info("%s, T = %lld, D = %lld: cuDNN %zu.%zu.%zu, %s", name, seq, dim, v / 10000, v / 100 % 100, v % 100,
                    sh_cudnn_plan_name(k->by.plan));
    else
        sh_log_info("%s, T = %lld, D = %lld: Sherd's own kernels (%s)", name, seq, dim, sh_error_text());
}

/* Without cuDNN or a plan, other kernels do the work: slower, but just as deterministic. A shape without a plan keeps
 * its row, so it is not tried again. */
sh_rc sh_attention_cudnn_prepare(const struct sh_op_call *call)
{
    struct sh_cudnn_shape shape = shape_of(call);
    if (shape.batch == 0 || state.gone || find(&shape))
        return SH_OK;
    if (sh_cudnn_open() != SH_OK) {
        state.gone = true;
        sh_log_info("attention: using Sherd's own kernels, cuDNN is not available (%s)", sh_error_text());
        sh_error_clear();
        return SH_OK;
    }
    state.known = sh_grow(state.known, state.n, &state.cap, sizeof *state.known);
    struct known *k = &state.known[state.n++];
    *k = (struct known){.call = shape};
    sh_rc rc = sh_attention_cudnn_plan(call, &(struct sh_cudnn_gpu){.capability = capability()}, &k->by);
    tell(call, k);
    if (rc != SH_OK)
        sh_error_clear();
    return SH_OK;
}

/* NULL: other kernels compute this call. */
static const struct sh_cudnn_pieces *pieces_of(const struct sh_op_call *call)
{
    struct sh_cudnn_shape shape = shape_of(call);
    struct known *k = shape.batch ? find(&shape) : NULL;
    return k && k->by.plan ? &k->by : NULL;
}

/* Asked at each call; prepare() has built the plan before the first step. */
bool sh_attention_cudnn_takes(const struct sh_op_call *call)
{
    return pieces_of(call) != NULL;
}

/* Addresses for one piece of a call: sequences from b, key-value heads from k, and their query heads. */
static void bind(const struct sh_op_call *call, const struct sh_cudnn_shape *s, int64_t b, int64_t k, char *sums,
                 char *dq_sums, void *at[T_LAST_NUMBER + 1])
{
    struct sh_attention a = sh_attention_of(call);
    int64_t h = k * (a.heads / a.kv_heads), row = (a.heads + 2 * a.kv_heads) * s->dim, out = a.heads * s->dim, bf16 = 2;
    int64_t q_at = (b * s->seq * row + h * s->dim) * bf16, k_at = (b * s->seq * row + (a.heads + k) * s->dim) * bf16;
    int64_t v_at = k_at + a.kv_heads * s->dim * bf16, o_at = (b * s->seq * out + h * s->dim) * bf16;
    char *qkv = (char *)(uintptr_t)a.q, *dout = (char *)(uintptr_t)a.dout, *dqkv = a.dq;

    at[T_Q] = qkv + q_at, at[T_K] = qkv + k_at, at[T_V] = qkv + v_at, at[T_O] = (char *)a.o + o_at;
    at[T_STATS] = a.lse + (b * a.heads + h) * s->seq;
    if (!s->backward)
        return;
    at[T_DO] = dout + o_at, at[T_DQ] = dqkv + q_at, at[T_DK] = dqkv + k_at, at[T_DV] = dqkv + v_at;
    at[T_SUMS] = sums;
    at[T_DQ_SUMS] = s->any_order ? dq_sums : NULL;
}

/* Piece by piece: shape.batch sequences and shape.kv_heads key-value heads at a time. */
sh_rc sh_attention_cudnn(const struct sh_op_call *call)
{
    const struct sh_cudnn_pieces *p = pieces_of(call);
    SH_REQUIRE(p && call->work_bytes >= sh_cuda_cudnn_work(call).bytes);
    const struct sh_cudnn_shape *s = &p->shape;
    float scale = call->attr->attn.scale, minus_inf = -INFINITY, one = 1;
    char *sums = (char *)call->work + (-(uintptr_t)call->work & 255), *dq_sums = sums + sums_bytes(s);
    int64_t batch = call->in[s->backward ? 1 : 0].dim[0];

    for (int64_t b = 0; b < batch; b += s->batch)
        for (int64_t k = 0; k < call->attr->attn.kv_heads; k += s->kv_heads) {
            void *at[T_LAST_NUMBER + 1] = {
                [T_SCALE] = &scale, [T_MINUS_INF] = &minus_inf, [T_ONE] = s->backward ? &one : NULL};
            bind(call, s, b, k, sums, dq_sums, at);
            SH_TRY(sh_cudnn_plan_run(p->plan, at, T_LAST_NUMBER + 1, dq_sums + dq_bytes(s), call->queue));
        }
    return SH_OK;
}
