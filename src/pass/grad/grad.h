/* Shared by the files of the grad pass: what a rule is, and what rules are made of. Local.
 *
 * A tensor used twice gets two contributions. A rule that can add to what is there (an optional `dres` operand) takes
 * the earlier one with it; otherwise an ADD is emitted. Gradients of parameters are f32 and add in place. */
#ifndef SH_PASS_GRAD_H
#define SH_PASS_GRAD_H

#include "src/pass/build.h"

struct sh_grad {
    struct sh_program *p;
    int *of;          /* by storage root of the forward: its gradient so far, or SH_NONE */
    bool *depends;    /* by storage root of the forward: it depends on a trained parameter, or is one */
    struct sh_op fwd; /* the operation whose rule runs */
    int fwd_index;
};

/* Emits the backward of g->fwd. */
typedef void sh_grad_rule(struct sh_grad *g);

/* RULE(kind, name): sh_grad_rule_<name>, by file. A kind with neither a row here nor `backward` in the table of operations
 * cannot be trained. */
/* clang-format off */
#define SH_GRAD_RULES(RULE) \
    /* dense.c */ RULE(EMBED, embed) RULE(NORM, norm) RULE(LINEAR, linear) RULE(BIAS, bias) RULE(LORA, lora) \
    RULE(SCALE, scale) RULE(SCALE_BY, scale_by) RULE(ADD, add) RULE(HEAD_LOSS, head) \
    /* attention.c */ RULE(ROPE, rope) RULE(QK_NORM, qk_norm) RULE(REGROUP, regroup) RULE(VALUE_NORM, value_norm) \
    RULE(ATTENTION, attention) RULE(SINK, sink) RULE(ATTENTION_ROWS, attention_rows) RULE(SPLIT_KV, split_kv) \
    RULE(JOIN_KV, join_kv) RULE(SPLIT_GATE, split_gate) RULE(GATE, gate) RULE(LATENT_HEADS, latent_heads) \
    /* recurrent.c */ RULE(SHORT_CONV, short_conv) RULE(GATED_DELTA, gated_delta) RULE(GATED_NORM, gated_norm) \
    RULE(SCAN, scan) RULE(GATE_NORM, gate_norm) \
    /* experts.c */ RULE(ROUTE, route) RULE(ROW_GATHER, row_gather) RULE(ROW_SUM, row_sum) \
    RULE(EXPERT_LINEAR, expert_linear) RULE(EXPERT_BIAS, expert_bias) RULE(SWIGLU_ROWS, swiglu_rows) \
    RULE(SQUARED_RELU_ROWS, squared_relu_rows) \
    /* ranks.c */ RULE(SEND, send) RULE(RECEIVE, receive)
/* clang-format on */
#define SH_GRAD_DECLARE(kind, name) sh_grad_rule sh_grad_rule_##name;
SH_GRAD_RULES(SH_GRAD_DECLARE)
#undef SH_GRAD_DECLARE

/* For kinds that name their backward: one element at a time; and collectives. */
sh_grad_rule sh_grad_rule_pointwise, sh_grad_rule_exchange;

/* Whether t has a gradient; SH_NONE has none. */
bool sh_grad_wanted(const struct sh_grad *g, int t);

/* A new gradient of an activation, in its type, named after it. */
int sh_grad_fresh(struct sh_grad *g, int t);

/* An operation of the backward, in the block of g->fwd, with its attributes if both kinds use the same ones. */
struct sh_op sh_grad_op(const struct sh_grad *g, enum sh_op_kind kind);

/* Gradient of an output of the forward operation; SH_NONE when nothing depends on it. */
int sh_grad_upstream(struct sh_grad *g, int out);

/* Take what others have contributed to the gradient of t so far, SH_NONE if nothing: the caller adds it to its own
 * contribution. Give contributes d, and adds it to what others have contributed and nobody has taken. */
int sh_grad_take(struct sh_grad *g, int t);
void sh_grad_give(struct sh_grad *g, int t, int d);

/* Make output `out` of `op` the gradient of parameter tensor t: the first such output writes, later ones add. A frozen
 * parameter has none. */
void sh_grad_to_param(struct sh_grad *g, struct sh_op *op, int out, int t);

#endif
