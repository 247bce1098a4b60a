/* The graphs of cuDNN that attention_cudnn.c runs, as tables: the tensors, and the operations between them. No calls
 * of cuDNN here. The wiring follows the attention patterns in NVIDIA's documentation, because cuDNN matches its
 * kernels against those: with one operation more or less, it finds no kernel. */
#ifndef SH_KERNELS_CUDA_CUDNN_GRAPH_H
#define SH_KERNELS_CUDA_CUDNN_GRAPH_H

#include "kernels/cuda/attention/cudnn_plan.h"

#include <cudnn.h>
#include <stdbool.h>

/* Tensors of both graphs. Up to LAST_REAL they are memory that a call binds, then come numbers, then tensors that are
 * never stored. */
/* clang-format off */
enum sh_cudnn_tensor {
    T_NONE,
    T_Q, T_K, T_V, T_O, T_STATS, T_DO, T_DQ, T_DK, T_DV, T_SUMS, T_DQ_SUMS,
    T_LAST_REAL = T_DQ_SUMS,
    T_SCALE, T_MINUS_INF, T_ONE, T_LAST_NUMBER = T_ONE,
    T_SCORES, T_SCALED, T_ROW, T_COLUMN, T_SEEN, T_MASKED, /* both */
    T_MAX, T_SHIFTED, T_EXP, T_SUM, T_LOG, T_P,            /* forward */
    T_DO_O, T_DELTA, T_CENTRED, T_PROB, T_PROB_T, T_DV_HEADS, T_DP, T_DP_DELTA, T_DS, T_DS_SCALED, T_DS_T, T_DK_HEADS,
    T_K_ROWS,                                              /* backward */
    T_COUNT
};
/* clang-format on */

/* How a tensor is laid out: H query heads, K key-value heads. */
enum sh_cudnn_form {
    F_Q,        /* [H,T,D] in rows of qkv */
    F_KV,       /* [K,T,D] in rows of qkv */
    F_KV_T,     /* the same as [K,D,T] */
    F_OUT,      /* [H,T,D] in rows of o */
    F_HEADS,    /* [H,T,D] dense */
    F_SCORES,   /* [H,T,T], never stored */
    F_SCORES_T, /* the same, transposed in storage */
    F_ROWS,     /* [H,T] dense */
    F_STATS,    /* [H,T] in the lse of all heads */
    F_NUMBER
};

struct sh_cudnn_tensor_row {
    enum sh_cudnn_tensor tensor;
    enum sh_cudnn_form form;
    cudnnDataType_t type;
};

enum sh_cudnn_kind { N_MATMUL, N_POINTWISE, N_REDUCE, N_RESHAPE };
enum sh_cudnn_when { ALWAYS, GROUPED, NOT_GROUPED, ONE_ORDER, ANY_ORDER }; /* H > K, H == K; shape.any_order */

/* y = kind(x, b, t) */
struct sh_cudnn_node {
    enum sh_cudnn_kind kind;
    int mode; /* cudnnPointwiseMode_t or cudnnReduceTensorOp_t */
    enum sh_cudnn_tensor x, b, t, y;
    enum sh_cudnn_when when;
};

struct sh_cudnn_graph {
    const struct sh_cudnn_tensor_row *tensors;
    const struct sh_cudnn_node *nodes;
    int n_tensors, n_nodes;
};
extern const struct sh_cudnn_graph sh_cudnn_forward, sh_cudnn_backward;

/* Whether a node is part of the graph for a shape. */
bool sh_cudnn_takes_part(const struct sh_cudnn_node *node, const struct sh_cudnn_shape *s);

/* Dimensions and strides of a form, 4 each. */
void sh_cudnn_form(enum sh_cudnn_form form, const struct sh_cudnn_shape *s, int64_t dim[4], int64_t stride[4]);

#endif
