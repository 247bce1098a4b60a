/* Attention on a GPU: three implementations for the same operands. The shape chooses, and what the GPU and cuDNN have
 * (cudnn_promise.h).
 *
 *   attention_cudnn.c  cuDNN: bf16, head sizes of 8, 16, ... 128, and 256, no documents, no window, no soft cap; needs the
 *                      library
 *   attention.cu       tensor cores of any GPU since sm_80: bf16, head sizes of 32, 64, 96 and 128, no soft cap
 *   attention_any.cu   ordinary arithmetic: f32, other head sizes up to 512, and a soft cap of scores
 *
 * All three are deterministic, except that cuDNN's backward adds dq in any order if attr->attn.any_order allows it.
 * Our own kernels have no such variant: they compute two more products instead of adding across blocks with atomics.
 * Valid C and C++, no CUDA header. */
#ifndef SH_KERNELS_CUDA_ATTENTION_H
#define SH_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/work.h"
#include "kernels/op.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One call of either direction, in the form that the kernels take. Queries are in one run for each sequence, packed
 * with its keys and values, or apart from these in U runs (kernels/op.h), where sequence b of run u is number u B + b;
 * rows of o and dout are H*D elements. Kernels get it by value, and of more than 128 bytes ptxas makes twice the spills. */
struct sh_attention {
    int64_t batch, seq; /* sequences, and the keys of each */
    int rows;           /* queries of a run */
    int runs;           /* U; above 1 if queries are apart from keys */
    int first[2];       /* positions where they begin */
    int heads, kv_heads, dim;
    int window; /* a query sees itself and the window - 1 keys before it; 0: all */
    enum sh_dtype dtype;
    float scale;
    const void *q, *kv;  /* the first query; the first key, with all keys of a row before its values */
    const int32_t *docs; /* [UB,rows] first position of the document of each query; NULL: 0 */
    void *o;             /* [UB,rows,H*D]: output of the forward, input of the backward */
    float *lse;          /* [UB,H,rows]: likewise */
    const void *dout;    /* this and the rest: backward only */
    void *dq, *dkv;      /* with the rows of q and kv */
    float *delta;        /* [UB,H,rows] scratch: sum over d of dout * o */
};

/* Where keys begin in rows that begin with queries. */
static inline void *sh_attention_after_queries(const struct sh_attention *a, const struct sh_operand *packed)
{
    int64_t bytes = a->heads * (int64_t)a->dim * sh_dtype_bytes(a->dtype);
    return packed->data ? (char *)packed->data + bytes : 0;
}

static inline struct sh_attention sh_attention_of(const struct sh_op_call *call)
{
    bool forward = call->kind == SH_OP_ATTENTION || call->kind == SH_OP_ATTENTION_ROWS;
    bool apart = call->kind == SH_OP_ATTENTION_ROWS || call->kind == SH_OP_ATTENTION_ROWS_BWD;
    const struct sh_operand *q = &call->in[forward ? 0 : 1], *kv = apart ? q + 1 : q;
    struct sh_attention a;
    a.batch = kv->dim[0], a.seq = kv->dim[1], a.rows = (int)q->dim[1];
    a.runs = apart ? call->attr->attn.runs : 1;
    for (int i = 0; i < 2; i++)
        a.first[i] = apart && i < a.runs ? (int)call->attr->attn.first[i] : 0;
    a.heads = call->attr->attn.heads, a.kv_heads = call->attr->attn.kv_heads, a.dim = call->attr->attn.head_dim;
    a.window = call->attr->attn.window;
    a.dtype = q->dtype, a.scale = call->attr->attn.scale;
    a.q = q->data;
    a.kv = apart ? kv->data : sh_attention_after_queries(&a, q);
    a.docs = (const int32_t *)kv[forward ? 1 : 3].data;
    a.o = forward ? call->out[0].data : kv[1].data;
    a.lse = (float *)(forward ? call->out[1].data : kv[2].data);
    a.dout = forward ? 0 : call->in[0].data;
    a.dq = forward ? 0 : call->out[0].data;
    a.dkv = forward ? 0 : apart ? call->out[1].data : sh_attention_after_queries(&a, &call->out[0]);
    a.delta = (float *)call->work;
    return a;
}

/* attention.cu: whether it has a kernel for the type and head size, and the two directions. The backward needs
 * delta. */
bool sh_attention_tensor_takes(const struct sh_attention *a);
sh_rc sh_attention_tensor(const struct sh_attention *a, void *queue);
sh_rc sh_attention_tensor_bwd(const struct sh_attention *a, void *queue);

/* Before the first step: whether the kernels of a direction find the shared memory that they want on this GPU.
 * SH_E_USAGE with head size and GPU if not, from sh_attention_fits() (attention_any.cu). */
sh_rc sh_attention_tensor_check(const struct sh_attention *a, bool backward);
sh_rc sh_attention_any_check(const struct sh_attention *a, bool backward);
sh_rc sh_attention_fits(int dim, size_t shared);

/* attention_any.cu: head sizes up to SH_ATTENTION_MAX_DIM; it needs delta in both directions. cap: of scores; 0: none. */
sh_rc sh_attention_any(const struct sh_attention *a, float cap, void *queue);
sh_rc sh_attention_any_bwd(const struct sh_attention *a, float cap, void *queue);
sh_rc sh_attention_delta(const struct sh_attention *a, void *queue);

/* attention_cudnn.c. prepare makes the plan of a call that cuDNN supports, which takes a second or two, and logs the
 * kernel that it took, or why there is none. takes: the library is loaded and has a plan for this call. Errors of
 * prepare: SH_E_BUG for more shapes than there is room for plans. */
sh_rc sh_attention_cudnn_prepare(const struct sh_op_call *call);
bool sh_attention_cudnn_takes(const struct sh_op_call *call);
sh_rc sh_attention_cudnn(const struct sh_op_call *call);

#ifdef __cplusplus
}
#endif
#endif
