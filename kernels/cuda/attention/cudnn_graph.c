/* Attention as graphs of cuDNN's operations, in tables: tensors with their form and type, and nodes that connect
 * them. The tables can be read side by side with the formulas:
 *
 *     forward    P = softmax(scale Q K'), O = P V, stats = max + log sum
 *     backward   P = exp(scale Q K' - stats), dV = P' dO, dS = scale P (dO V' - delta), dQ = dS K, dK = dS' Q
 *
 * where delta is the sum over a row of dO O. */
#include "kernels/cuda/attention/cudnn_graph.h"

#include <string.h>

#define BF16 CUDNN_DATA_BFLOAT16
#define F32 CUDNN_DATA_FLOAT
#define I32 CUDNN_DATA_INT32
#define BOOL CUDNN_DATA_BOOLEAN
#define COUNT(table) (int)(sizeof(table) / sizeof((table)[0]))

/* clang-format off */
#define MATMUL(x_, b_, y_) {.kind = N_MATMUL, .x = T_##x_, .b = T_##b_, .y = T_##y_}
#define POINT(mode_, x_, b_, y_)                                                                    \
    {                                                                                               \
        .kind = N_POINTWISE, .mode = CUDNN_POINTWISE_##mode_, .x = T_##x_, .b = T_##b_, .y = T_##y_ \
    }
#define REDUCE(mode_, x_, y_) {.kind = N_REDUCE, .mode = CUDNN_REDUCE_TENSOR_##mode_, .x = T_##x_, .y = T_##y_}
#define RESHAPE(x_, y_) {.kind = N_RESHAPE, .x = T_##x_, .y = T_##y_}

/* y = x if the key is at or before the query, else -inf */
#define CAUSAL(x_, y_)                                                                                          \
    POINT(GEN_INDEX, x_, NONE, ROW), POINT(GEN_INDEX, x_, NONE, COLUMN), POINT(CMP_GE, ROW, COLUMN, SEEN),      \
    {                                                                                                           \
        .kind = N_POINTWISE, .mode = CUDNN_POINTWISE_BINARY_SELECT, .x = T_##x_, .b = T_MINUS_INF, .t = T_SEEN, \
        .y = T_##y_                                                                                             \
    }

static const struct sh_cudnn_tensor_row forward_tensors[] = {
    {T_Q, F_Q, BF16},          {T_K, F_KV_T, BF16},     {T_V, F_KV, BF16},         {T_O, F_OUT, BF16},
    {T_STATS, F_STATS, F32},   {T_SCALE, F_NUMBER, F32}, {T_MINUS_INF, F_NUMBER, F32},
    {T_SCORES, F_SCORES, F32}, {T_SCALED, F_SCORES, F32}, {T_ROW, F_SCORES, I32},   {T_COLUMN, F_SCORES, I32},
    {T_SEEN, F_SCORES, BOOL},  {T_MASKED, F_SCORES, F32}, {T_MAX, F_ROWS, F32},     {T_SHIFTED, F_SCORES, F32},
    {T_EXP, F_SCORES, F32},    {T_SUM, F_ROWS, F32},     {T_LOG, F_ROWS, F32},      {T_P, F_SCORES, BF16},
};

/* Softmax is written out: cuDNN recognizes the pattern and runs it as one kernel without storing scores. */
static const struct sh_cudnn_node forward_nodes[] = {
    MATMUL(Q, K, SCORES),
    POINT(MUL, SCORES, SCALE, SCALED),
    CAUSAL(SCALED, MASKED),
    REDUCE(MAX, MASKED, MAX),
    POINT(SUB, MASKED, MAX, SHIFTED),
    POINT(EXP, SHIFTED, NONE, EXP),
    REDUCE(ADD, EXP, SUM),
    POINT(LOG, SUM, NONE, LOG),
    POINT(ADD, MAX, LOG, STATS),
    POINT(DIV, EXP, SUM, P),
    MATMUL(P, V, O),
};

static const struct sh_cudnn_tensor_row backward_tensors[] = {
    {T_Q, F_Q, BF16},          {T_K, F_KV_T, BF16},       {T_V, F_KV_T, BF16},       {T_O, F_OUT, BF16},
    {T_STATS, F_STATS, F32},   {T_DO, F_OUT, BF16},       {T_DQ, F_Q, BF16},         {T_DK, F_KV, BF16},
    {T_DV, F_KV, BF16},        {T_SUMS, F_ROWS, F32},     {T_DQ_SUMS, F_HEADS, F32},
        {T_SCALE, F_NUMBER, F32},  {T_MINUS_INF, F_NUMBER, F32},
    {T_ONE, F_NUMBER, F32},    {T_DO_O, F_HEADS, F32},    {T_DELTA, F_ROWS, F32},    {T_SCORES, F_SCORES, F32},
    {T_SCALED, F_SCORES, F32}, {T_CENTRED, F_SCORES, F32}, {T_ROW, F_SCORES, I32},   {T_COLUMN, F_SCORES, I32},
    {T_SEEN, F_SCORES, BOOL},  {T_MASKED, F_SCORES, F32}, {T_PROB, F_SCORES, F32},   {T_PROB_T, F_SCORES_T, BF16},
    {T_DV_HEADS, F_HEADS, BF16}, {T_DP, F_SCORES, F32},   {T_DP_DELTA, F_SCORES, F32}, {T_DS, F_SCORES, F32},
    {T_DS_SCALED, F_SCORES, F32}, {T_DS_T, F_SCORES_T, BF16}, {T_DK_HEADS, F_HEADS, BF16}, {T_K_ROWS, F_KV, F32},
};
/* clang-format on */

/* In a fixed order, dq is one more product, for which the kernel keeps a [T,T] in scratch. In any order, blocks add
 * to dq in f32 as they finish: this moves less memory, and it is what other frameworks do. */
static const struct sh_cudnn_node backward_nodes[] = {
    POINT(MUL, DO, O, DO_O),
    REDUCE(ADD, DO_O, DELTA),
    POINT(MUL, DELTA, ONE, SUMS),
    MATMUL(Q, K, SCORES),
    POINT(MUL, SCORES, SCALE, SCALED),
    POINT(SUB, SCALED, STATS, CENTRED),
    CAUSAL(CENTRED, MASKED),
    POINT(EXP, MASKED, NONE, PROB),
    RESHAPE(PROB, PROB_T),
    {.kind = N_MATMUL, .x = T_PROB_T, .b = T_DO, .y = T_DV, .when = NOT_GROUPED},
    {.kind = N_MATMUL, .x = T_PROB_T, .b = T_DO, .y = T_DV_HEADS, .when = GROUPED},
    {.kind = N_REDUCE, .mode = CUDNN_REDUCE_TENSOR_ADD, .x = T_DV_HEADS, .y = T_DV, .when = GROUPED},
    MATMUL(DO, V, DP),
    POINT(SUB, DP, SUMS, DP_DELTA),
    POINT(MUL, DP_DELTA, PROB, DS),
    POINT(MUL, DS, SCALE, DS_SCALED),
    RESHAPE(DS_SCALED, DS_T),
    {.kind = N_MATMUL, .x = T_DS_T, .b = T_Q, .y = T_DK, .when = NOT_GROUPED},
    {.kind = N_MATMUL, .x = T_DS_T, .b = T_Q, .y = T_DK_HEADS, .when = GROUPED},
    {.kind = N_REDUCE, .mode = CUDNN_REDUCE_TENSOR_ADD, .x = T_DK_HEADS, .y = T_DK, .when = GROUPED},
    RESHAPE(K, K_ROWS),
    {.kind = N_MATMUL, .x = T_DS_SCALED, .b = T_K_ROWS, .y = T_DQ, .when = ONE_ORDER},
    {.kind = N_MATMUL, .x = T_DS_SCALED, .b = T_K_ROWS, .y = T_DQ_SUMS, .when = ANY_ORDER},
    {.kind = N_POINTWISE, .mode = CUDNN_POINTWISE_IDENTITY, .x = T_DQ_SUMS, .y = T_DQ, .when = ANY_ORDER},
};

const struct sh_cudnn_graph sh_cudnn_forward = {forward_tensors, forward_nodes, COUNT(forward_tensors),
                                                COUNT(forward_nodes)};
const struct sh_cudnn_graph sh_cudnn_backward = {backward_tensors, backward_nodes, COUNT(backward_tensors),
                                                 COUNT(backward_nodes)};

/* GROUPED: fewer key heads than query heads, so gradients of keys are summed over a group. */
bool sh_cudnn_takes_part(const struct sh_cudnn_node *node, const struct sh_cudnn_shape *s)
{
    switch (node->when) {
    case ALWAYS: return true;
    case GROUPED: return s->heads > s->kv_heads;
    case NOT_GROUPED: return s->heads == s->kv_heads;
    case ONE_ORDER: return !s->any_order;
    case ANY_ORDER: return s->any_order;
    }
    return false;
}

/* Dims and strides, in elements. All are views of qkv [B,T,(H+2K)D]: a head is D columns of a row. Swapping D and T
 * gives the transposed form. */
void sh_cudnn_form(enum sh_cudnn_form form, const struct sh_cudnn_shape *s, int64_t dim[4], int64_t stride[4])
{
    int64_t B = s->batch, H = s->heads, K = s->kv_heads, T = s->seq, D = s->dim;
    int64_t row = (s->all_heads + 2 * s->all_kv_heads) * D, out = s->all_heads * D;
    const int64_t forms[][8] = {
        [F_Q] = {B, H, T, D, T * row, D, row, 1},
        [F_KV] = {B, K, T, D, T * row, D, row, 1},
        [F_KV_T] = {B, K, D, T, T * row, D, 1, row},
        [F_OUT] = {B, H, T, D, T * out, D, out, 1},
        [F_HEADS] = {B, H, T, D, H * T * D, T * D, D, 1},
        [F_SCORES] = {B, H, T, T, H * T * T, T * T, T, 1},
        [F_SCORES_T] = {B, H, T, T, H * T * T, T * T, 1, T},
        [F_ROWS] = {B, H, T, 1, H * T, T, 1, 1},
        [F_STATS] = {B, H, T, 1, s->all_heads * T, T, 1, 1},
        [F_NUMBER] = {1, 1, 1, 1, 1, 1, 1, 1},
    };
    memcpy(dim, forms[form], 4 * sizeof *dim);
    memcpy(stride, forms[form] + 4, 4 * sizeof *stride);
}
