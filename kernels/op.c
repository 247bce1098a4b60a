#include "kernels/op.h"

#define BIT(i) (1u << (i))
/* Output 0 may take the storage of input i: allowed only where every kernel reads an element, at the latest, just
 * before it writes the same index. */
#define OVER(i) .inplace_in = (i), .inplace_out = 0
#define APART .inplace_in = -1, .inplace_out = -1

static const struct sh_op_info op_table[SH_OP_KINDS] = {
    [SH_OP_EMBED] = {.name = "embed", .n_in = 3, .n_out = 1, .opt_in = BIT(2), APART},
    [SH_OP_EMBED_BWD] = {.name = "embed_bwd", .n_in = 2, .n_out = 2, .opt_out = BIT(0) | BIT(1), APART},
    [SH_OP_NORM] = {.name = "norm", .n_in = 3, .n_out = 3, .opt_in = BIT(2), .opt_out = BIT(2), APART},
    [SH_OP_NORM_BWD] =
        {.name = "norm_bwd", .n_in = 6, .n_out = 3, .opt_in = BIT(4) | BIT(5), .opt_out = BIT(2), OVER(5)},
    [SH_OP_LINEAR] = {.name = "linear", .n_in = 3, .n_out = 1, .opt_in = BIT(2), APART},
    [SH_OP_LINEAR_BWD_X] = {.name = "linear_bwd_x", .n_in = 3, .n_out = 1, .opt_in = BIT(2), OVER(2)},
    [SH_OP_LINEAR_BWD_W] = {.name = "linear_bwd_w", .n_in = 2, .n_out = 1, APART},
    [SH_OP_BIAS_BWD] = {.name = "bias_bwd", .n_in = 1, .n_out = 1, APART},
    [SH_OP_ROPE_TABLE] = {.name = "rope_table", .n_in = 0, .n_out = 1, APART},
    [SH_OP_ROPE] = {.name = "rope", .n_in = 2, .n_out = 1, OVER(0)},
    [SH_OP_ATTENTION] = {.name = "attention", .n_in = 2, .n_out = 2, .opt_in = BIT(1), APART},
    [SH_OP_ATTENTION_BWD] = {.name = "attention_bwd", .n_in = 5, .n_out = 1, .opt_in = BIT(4), APART},
    [SH_OP_GELU] = {.name = "gelu", .n_in = 1, .n_out = 1, APART},
    [SH_OP_GELU_BWD] = {.name = "gelu_bwd", .n_in = 2, .n_out = 1, OVER(0)},
    [SH_OP_SWIGLU] = {.name = "swiglu", .n_in = 1, .n_out = 1, APART},
    [SH_OP_SWIGLU_BWD] = {.name = "swiglu_bwd", .n_in = 2, .n_out = 1, APART},
    [SH_OP_ADD] = {.name = "add", .n_in = 2, .n_out = 1, OVER(0)},
    [SH_OP_ADD_NORM] = {.name = "add_norm", .n_in = 4, .n_out = 4, .opt_in = BIT(3), .opt_out = BIT(3), .fused = true,
                        .inplace_in = 1, .inplace_out = 1},
    [SH_OP_NORM_BWD_BIAS] = {.name = "norm_bwd_bias", .n_in = 6, .n_out = 4, .opt_in = BIT(4) | BIT(5),
                             .opt_out = BIT(2), .fused = true, OVER(5)},
    [SH_OP_GELU_BWD_BIAS] = {.name = "gelu_bwd_bias", .n_in = 2, .n_out = 2, .fused = true, OVER(0)},
    [SH_OP_HEAD_LOSS] = {.name = "head_loss", .n_in = 3, .n_out = 1, APART},
    [SH_OP_HEAD_LOSS_GRAD] = {.name = "head_loss_grad", .n_in = 3, .n_out = 3, APART},
    [SH_OP_LOGITS] = {.name = "logits", .n_in = 2, .n_out = 1, APART},
    [SH_OP_CAST] = {.name = "cast", .n_in = 1, .n_out = 1, APART},
    [SH_OP_COPY] = {.name = "copy", .n_in = 1, .n_out = 1, APART},
    [SH_OP_ACCUMULATE] = {.name = "accumulate", .n_in = 1, .n_out = 1, .rw_out = BIT(0), APART},
    [SH_OP_SUMSQ] = {.name = "sumsq", .n_in = 1, .n_out = 1, APART},
    [SH_OP_EXACT_ROUND] = {.name = "exact_round", .n_in = 1, .n_out = 1, APART},
    [SH_OP_ADAMW] =
        {.name = "adamw", .n_in = 1, .n_out = 4, .opt_out = BIT(3), .rw_out = BIT(0) | BIT(1) | BIT(2) | BIT(3), APART},
    [SH_OP_SGD] =
        {.name = "sgd", .n_in = 1, .n_out = 3, .opt_out = BIT(2), .rw_out = BIT(0) | BIT(1) | BIT(2), APART},
    [SH_OP_LION] =
        {.name = "lion", .n_in = 1, .n_out = 3, .opt_out = BIT(2), .rw_out = BIT(0) | BIT(1) | BIT(2), APART},
    [SH_OP_ALL_GATHER] = {.name = "all_gather", .n_in = 1, .n_out = 1, .comm = true, APART},
    [SH_OP_REDUCE_SCATTER] = {.name = "reduce_scatter", .n_in = 2, .n_out = 2, .opt_in = BIT(1), .opt_out = BIT(1),
                              .comm = true, APART},
    [SH_OP_ALL_REDUCE] = {.name = "all_reduce", .n_in = 0, .n_out = 1, .rw_out = BIT(0), .comm = true, APART},
    [SH_OP_WAIT] = {.name = "wait", .marker = true, APART},
    [SH_OP_RELEASE] = {.name = "release", .n_in = 1, .marker = true, APART},
};

const struct sh_op_info *sh_op_info(enum sh_op_kind kind)
{
    return &op_table[kind];
}
