/* Emitters of forward operations, with which a model file writes down a network. Local.
 *
 * An emitter holds its position in the network (block) and the batch's shape; each sh_emit_* appends one operation to
 * the program and returns the tensor that the operation makes. Parameters are declared in the order in which they lie
 * in memory; the parameters between two sh_emit_unit() calls are one unit. A model knows nothing of ranks, devices or
 * the backward. */
#ifndef SH_PROGRAM_EMIT_H
#define SH_PROGRAM_EMIT_H

#include "src/program/program.h"

struct sh_emit {
    struct sh_program *p;
    int batch, seq; /* B and T of one micro-step of one rank */
    int parts;      /* of a sequence, each of T tokens on another rank; 0 and 1: the rank has whole sequences */
    int runs;       /* of the rows of a sequence that the rank has, each counted by `batch` and `parts`; 0: 1 */
    int leaves;     /* of a rank's part: its losses are kept apart; 0: 1 */
    bool
        apart; /* rows of a sequence lie on several ranks or in leaves, so that a row's place does not tell its position */
    int cache; /* S: positions per sequence whose keys and values are kept; 0: no cache, each micro-step stands alone */
    int block; /* transformer block being emitted, SH_NONE outside */
    bool anew; /* with docs: positions restart in each document */
    float cap; /* soft cap on the logits of words; 0: none */
    double z;  /* what the square of their lse counts in the loss; 0: no number for it */
    bool choose; /* as in struct sh_op_attr, for the rows of experts */
    bool raw;    /* the head makes a value of each row, not the logits of words */
    bool
        elsewhere; /* what is declared belongs to other ranks: it is listed among the saved tensors, and not held here */
};

/* Parameters declared from here on belong to a new unit of this name. */
void sh_emit_unit(struct sh_emit *e, const char *name);

/* The same, for a unit used between uses of the newest unit that is beside no other. */
void sh_emit_unit_beside(struct sh_emit *e, const char *name);
void sh_emit_unit_of_biases(struct sh_emit *e, const char *name); /* `balances` of struct sh_unit */

/* Declare a parameter; `name` is its Hugging Face name. Returns its tensor [dim...] in the compute type, or SH_NONE if it
 * lies elsewhere. */
int sh_emit_param(struct sh_emit *e, enum sh_param_role role, const char *name, int ndim, const int64_t *dim,
                  enum sh_init init, float std);

/* Let this rank hold only these bands of dimension `cut` of the parameter that was declared last, whose tensor is t. */
void sh_emit_hold(struct sh_emit *e, int t, int cut, int n, const struct sh_band *band);

/* One matrix [sum of rows, columns] over `n` matrices declared one after the other, starting with `first`: q, k and v
 * as one product. Or one vector over n vectors: their biases. */
int sh_emit_stack(struct sh_emit *e, int first, int n);

/* The same storage in another shape with the same number of elements. */
int sh_emit_view(struct sh_emit *e, int t, int ndim, const int64_t *dim);

/* Inputs that the host fills: if asked for, tokens and targets [B,T] i32, docs [B,T] i32 of whole sequences (when documents are
 * masked); with a cache also `at` [B,T] and `count` [B]. */
void sh_emit_inputs(struct sh_emit *e, bool tokens, bool targets, bool docs);

int sh_emit_embed(struct sh_emit *e, int wte, int wpe); /* [V,C], [P,C] or SH_NONE -> [N,C] */
struct sh_emit_norm {
    bool rms, plus_one; /* as in struct sh_op_attr */
    float eps;
};
int sh_emit_norm(struct sh_emit *e, int x, int w, int b, struct sh_emit_norm how); /* [N,C] -> [N,C] */
int sh_emit_linear(struct sh_emit *e, int x, int w, int b, bool w_in_out);         /* [N,I] -> [N,O] */
int sh_emit_pointwise(struct sh_emit *e, enum sh_op_kind kind, int x); /* [N,k F] -> [N,F], k by the kind's row */
int64_t sh_emit_columns(enum sh_op_kind kind);                         /* that k: 2 of [N,2F] -> [N,F] */
int sh_emit_scale(struct sh_emit *e, int x, float by);                 /* [N,C] -> [N,C] */
int sh_emit_scale_by(struct sh_emit *e, int x, int s);                 /* the same, by s [1] f32 */
int sh_emit_add(struct sh_emit *e, int a, int b);                      /* [N,C] -> [N,C] */

struct sh_emit_heads {
    int heads, kv_heads, head_dim;
    bool any_order;              /* see struct sh_op_attr */
    int window, document_tokens; /* the same */
    int scalar;                  /* scores are divided by its square root; 0: head_dim */
    float sharper;               /* and multiplied by this; 0: 1 */
    float cap;                   /* soft cap on scores; 0: none */
    bool pairs;                  /* as in struct sh_op_attr */
    int sink;                    /* [heads], one more score of each head; SH_NONE: none */
};
struct sh_emit_rope {
    double theta, factor, low_freq, high_freq, original_len; /* factor 0: no scaling */
    double ramp_first, ramp_last, scale;                     /* as in struct sh_op_attr */
    int turned;                                              /* as in struct sh_op_attr */
    int divisors;                                            /* rotary_dim / 2 of them; 0: none */
    double divisor[SH_ROPE_DIVISORS];
};
int sh_emit_rope_table(struct sh_emit *e, const char *name, int rotary_dim,
                       const struct sh_emit_rope *rope);                                /* -> [T,R] f32, once */
int sh_emit_rope(struct sh_emit *e, int qkv, int table, const struct sh_emit_heads *h); /* [N,(H+2K)D] -> same */
/* Reorder the columns of a product that are grouped by head (its q, its k, its v) as the other operations expect them:
 * all q, all k, all v. */
int sh_emit_regroup(struct sh_emit *e, int qkv, const struct sh_emit_heads *h);

/* A row of two parts, of which the second is of even width; _as also says what they are called. [N,left + R] -> [N,left],
 * [N,R] */
void sh_emit_split(struct sh_emit *e, int x, int64_t left, int out[2]);
void sh_emit_split_as(struct sh_emit *e, int x, int64_t left, const char *const what[2], int out[2]);
int sh_emit_join(struct sh_emit *e, int a, int b, const char *what); /* back */
/* Heads from latent vectors (kernels/op.h), with `plain` and `turned` elements of a query, and `value` of a value. */
struct sh_emit_latent {
    int heads, plain, turned, value;
};
/* q [N,H(P+R)], kv [N,H(P+V)], turned [N,R] -> [N,3H(P+R)] */
int sh_emit_latent_heads(struct sh_emit *e, int q, int kv, int turned, const struct sh_emit_latent *l);
int sh_emit_latent_values(struct sh_emit *e, int o, const struct sh_emit_latent *l); /* [N,H(P+R)] -> [N,HV] */

/* Normalize values, without a weight; if x ends with the keys, they are the values too. [N,(H+2K)D] or [N,(H+K)D] ->
 * [N,(H+2K)D] */
int sh_emit_value_norm(struct sh_emit *e, int x, const struct sh_emit_heads *h, float eps);
/* Normalize queries and keys in groups as wide as wq and wk: [N,(H+2K)D] -> same. Without keys wk is wq. */
int sh_emit_qk_norm(struct sh_emit *e, int qkv, int wq, int wk, const struct sh_emit_heads *h, struct sh_emit_norm how);
int sh_emit_attention(struct sh_emit *e, int qkv, const struct sh_emit_heads *h); /* [N,(H+2K)D] -> [N,H*D] */
/* The same over a cache, [B,S,2KD], after keys and values of the new tokens were written into it: cache_put makes the cache
 * of a block and does so. */
int sh_emit_cache_put(struct sh_emit *e, int qkv, const struct sh_emit_heads *h);
int sh_emit_attention_cache(struct sh_emit *e, int qkv, int cache, const struct sh_emit_heads *h);
int sh_emit_pick(struct sh_emit *e, int x); /* [N,C] -> [B,C]: each sequence's last row that counts; from then on T is
                                               1 */

/* The gate of each head lies behind its query: [N,(2H+2K)D] -> [N,(H+2K)D], and gate [N,HD]. */
int sh_emit_split_gate(struct sh_emit *e, int x, const struct sh_emit_heads *h, int *gate);
int sh_emit_gate(struct sh_emit *e, int x, int z); /* x sigmoid(z): [N,C] -> [N,C] */

/* A block with the gated delta rule (kernels/op.h): K key_heads of D, H heads of V. With a cache its convolution and its
 * rule go on from what they left. */
struct sh_emit_delta {
    int key_heads, heads, key_dim, value_dim;
    float eps;      /* of its norm */
    int a_log, dt;  /* [H] */
    int conv, norm; /* [C,1,W] for C = 2KD+HV; [V] */
    int conv_bias;  /* [C]; 0: none */
};
int sh_emit_short_conv(struct sh_emit *e, int x, const struct sh_emit_delta *d);          /* [N,C] -> [N,C] */
int sh_emit_gated_delta(struct sh_emit *e, int x, int ba, const struct sh_emit_delta *d); /* [N,C], [N,2H] -> [N,HV] */
int sh_emit_gated_norm(struct sh_emit *e, int x, int z, const struct sh_emit_delta *d);   /* [N,HV] twice -> [N,HV] */

/* A block with a state space in its dual form (kernels/op.h, SCAN): K groups, H heads of V, states of D by V. The norm is of K
 * groups of columns. */
struct sh_emit_scan {
    int groups, heads, key_dim, value_dim;
    float least, eps; /* the least step; of the norm */
    int per_head;     /* [3H] */
    int norm;         /* [HV] */
};
int sh_emit_scan(struct sh_emit *e, int x, int dt, const struct sh_emit_scan *s);     /* [N,HV+2KD], [N,H] -> [N,HV] */
int sh_emit_gate_norm(struct sh_emit *e, int x, int z, const struct sh_emit_scan *s); /* [N,HV] twice -> [N,HV] */

/* Adapters for some ranges of columns of a linear product; parts 0: none. */
struct sh_emit_lora {
    int parts, a, b;                                /* stacks [parts R,I] and [sum of widths,R] */
    int first[SH_LORA_PARTS], width[SH_LORA_PARTS]; /* columns */
    float scale;
};
int sh_emit_lora(struct sh_emit *e, int y, int x,
                 const struct sh_emit_lora *l); /* [N,M], [N,I] -> [N,M]; returns y if parts is 0 */

/* How a router chooses experts; as in struct sh_op_attr. */
struct sh_emit_route {
    int experts, chosen; /* E, k */
    bool sigmoid, norm;
    float scale;
    int groups, top_groups; /* 0: no groups */
    float aux, z;           /* weights of the two losses of balance */
    bool forced;
};
/* Where the rows of a batch go: M = N k rows of experts (kernels/op.h). */
struct sh_emit_routed {
    int weight, order, place, first;
    int score, lse; /* lse: SH_NONE without the loss that reads it */
};
/* x [N,C], w [E,C], b [E] of the product and bias [E] f32 of the choice or SH_NONE; the router and its plan. */
struct sh_emit_routed sh_emit_route(struct sh_emit *e, int x, int w, int b, int bias, const struct sh_emit_route *how);
/* Make the port of what routers report about `blocks` blocks; and report for the one with number `block` of them, where `first` is
 * the number of the first that this rank computes. */
void sh_emit_reports(struct sh_emit *e, int blocks, int experts);
void sh_emit_report(struct sh_emit *e, const struct sh_emit_routed *to, const struct sh_emit_route *how, int block,
                    int first);
int sh_emit_row_gather(struct sh_emit *e, int x, const struct sh_emit_routed *to); /* [N,C] -> [M,C] */
int sh_emit_expert_linear(struct sh_emit *e, int x, int w, bool w_in_out,
                          const struct sh_emit_routed *to); /* [M,I], [E,O,I] or [E,I,O] -> [M,O] */
/* b [E,O], times the rows' weights or not. [M,O] -> [M,O] */
int sh_emit_expert_bias(struct sh_emit *e, int x, int b, bool weighed, const struct sh_emit_routed *to);
/* Adapters of experts: a [E,R,I], b [E,O,R]. [M,O], [M,I] -> [M,O]; returns y if parts is 0 */
int sh_emit_expert_lora(struct sh_emit *e, int y, int x, const struct sh_emit_lora *l, const struct sh_emit_routed *to);
/* limit, alpha: as in struct sh_op_attr. [M,2F] -> [M,F], weighed */
int sh_emit_swiglu_rows(struct sh_emit *e, int x, float limit, float alpha, const struct sh_emit_routed *to);
int sh_emit_squared_relu_rows(struct sh_emit *e, int x, const struct sh_emit_routed *to); /* [M,F] -> [M,F], weighed */
int sh_emit_row_sum(struct sh_emit *e, int x, int addend,
                    const struct sh_emit_routed *to); /* [M,C], [N,C] or SH_NONE -> [N,C] */

/* The weights of targets by the loss of pairs, whose numbers are the program's loss. x [N,C], w [V,C] -> [N] f32 */
int sh_emit_target_loss(struct sh_emit *e, int x, int w, int64_t chunk_rows,
                        int kind); /* the same, by a plug-in's loss */
int sh_emit_pair_loss(struct sh_emit *e, int x, int w, int64_t chunk_rows, const struct sh_op_pair *how);
int sh_emit_pair_numbers(const struct sh_op_pair *how); /* how many numbers it makes */

/* [N,C], [V,C], [N] f32 or SH_NONE: makes the loss, unless what made the weights has made it */
void sh_emit_head_loss(struct sh_emit *e, int x, int w, int weight, int64_t chunk_rows,
                       const struct sh_teacher_numbers *teacher);              /* NULL: none */
void sh_emit_labels_loss(struct sh_emit *e, int x, int w, int64_t chunk_rows); /* of SH_PORT_WANTED; w [labels,C] */
/* Makes SH_PORT_TOP_WORDS and TOP_LOGP, top_k of each row. */
void sh_emit_top_words(struct sh_emit *e, int x, int w, int top_k, bool raw,
                       int64_t chunk_rows);                                   /* raw: their logits */
void sh_emit_head_score(struct sh_emit *e, int x, int w, int64_t chunk_rows); /* makes logprob and likeliest */
void sh_emit_logits(struct sh_emit *e, int x, int w, int words);              /* makes the logits */

/* Messages [N,C] from and to a rank `peer` places further on the axis of stages, between chunk `border` of
 * the model's blocks and the next one. */
int sh_emit_receive(struct sh_emit *e, int64_t width, int border, int peer);
void sh_emit_send(struct sh_emit *e, int x, int border, int peer);
/* Make the port of the loss, of so many numbers, although another rank makes the loss. */
void sh_emit_no_loss(struct sh_emit *e, int numbers);

#endif
