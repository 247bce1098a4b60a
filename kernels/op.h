/* Every operation a program is made of. Each kind has a line in the list below and a row in op.c, which gives its
 * operands with their shapes and types, its cost and its attributes. Each device has one kernel per kind
 * (kernels/ref, kernels/cpu, kernels/cuda), and each kind that models emit has one rule in src/pass/grad/.
 * CONTRIBUTING.md lists the steps for adding one.
 *
 * All tensors are row-major and dense. "act" is the compute type (f32, bf16 or f16), used for activations, their
 * gradients and gathered parameters; gradients of parameters are always f32. Kernels accumulate in f32 or better and
 * round once, at the end. Optional operands may be absent: data == NULL. An output marked += is added to if its bit
 * is set in attr->accumulate (sh_op_adds()), otherwise overwritten. kernels/shape.h describes the notation that op.c
 * uses for shapes.
 *
 * A step that continues sequences from a cache has two more operands: `count` [B] says how many of a row's T tokens
 * are valid (0 to T), and `at` [B,T] holds their positions. A position is a row of the tables and of the cache, and
 * must be within both even for a token that is not valid. Keys and values of tokens that are not valid are not
 * stored, and the attention output of those tokens is 0.
 *
 * Experts. A row goes to k of E experts. A score is the softmax of the row's logits, or their sigmoid; logits are f32
 * and never rounded to act. Experts are chosen, and listed, by descending score + bias, then by ascending number, NaN
 * last: a total order, so that any logits choose k different experts. If there are groups of neighbouring experts, the
 * groups with the largest sums of their two best score + bias come first, in the same order. The weights come from the
 * scores alone. ROUTE_BWD adds the gradients of two losses, multiplied by scalars->router_scale:
 *     aux E sum_e f_e sum_n p[n,e]   f_e: the share of the N k choices that fell on e, a constant; p: the score, divided
 *                                    by the sum of its row if it is a sigmoid
 *     z sum_n lse[n]^2               lse: log of the sum of the exponentials of a row's logits; of the softmax only
 *
 * ROUTE_PLAN sorts the N k choices. order has an entry token * k + slot for each of the M rows of experts, place is its
 * inverse, and expert e has rows [first[e], first[e+1]).
 *
 * Experts may be spread over the P ranks of a group: the rank at place q has the E/P experts from q E/P on. The rows of
 * a rank for another rank's experts are neighbours then, since rows are sorted by expert. They travel in waves of at
 * most `room` rows to a rank. A segment is what one rank has for one expert; it is never cut. The segments for a rank
 * are dealt out by expert, then by source; one that finds no room in a wave begins the next. With first of all ranks,
 * ROUTE_WAVE says for its wave
 *     parts[0][i][j]   how many rows place i has for place j
 *     parts[1][i][j]   which of place i's sorted rows is the first of them; they are neighbours
 *     groups           where the segments begin among the rows that this rank receives, which lie end to end by source,
 *                      then by expert: P E/P segments; most are empty in most waves. The last number is the end
 *     used             1 if any rank receives rows, else 0; the rows of the rank that receives most
 * A wave past the last segment has no rows. ALL_TO_ALL with parts brings a wave's rows from x, where they are at home, to
 * y, where they lie end to end; with attr->exchange.back from x, where they lie end to end, to their home in y. Rows of
 * no part are left alone; with attr->exchange.others those of a rank for itself too. ROW_GATHER and ROW_SUM know a second
 * place for such rows: as many sorted rows from at[0] on as lie between the first and the last number of `first` are not in
 * xs or ys, but are the rows of near from that first number on.
 *
 * EXPERT_LINEAR* have groups of rows: group g has rows [first[g], first[g+1]) and the expert g mod E, in whose gradient
 * groups are added in their order. M is a bound: rows from the last number of first on are neither read nor written, by
 * SWIGLU_ROWS* too if it has first; ROW_ADD may compute them as well. With first, UNPACK may leave out the matrices of
 * experts without rows.
 *
 * Words may be spread over P ranks: this one has V of them from attr->part.first on, and their logits z. Of each row
 * LOSS_PART makes the largest logit, the sum of exponentials relative to it, and the target's logit if the target is
 * among these words, else 0; and the first word with the largest logit, counted over all ranks. With those of all ranks, in the order of their words, LOSS_REST makes the gradient of z, and
 * the losses of all rows if this rank has the first word, else 0; SCORE_REST makes what HEAD_SCORE does. EMBED takes 0 for the rows of words that other ranks have, so
 * the ranks' results add up to the whole; EMBED_BWD has no gradient of them. So does LOGITS, which has columns for all words.
 *
 * HEAD_LOSS may learn from a teacher, by the K words of each row that it found most probable, and their log-probabilities.
 * With T = attr->head.temperature, q the softmax of these divided by T, and p that of all logits divided by T, the loss of
 * a row is alpha T^2 sum q (log q - log p) + (1 - alpha) times that of its target. With attr->head.form SH_KD_STORED, for
 * T = 1, q are the probabilities themselves, of sum s. With SH_KD_TAIL, for T = 1 and words that differ, these too, and
 * alpha (1 - s) (log(1 - s) - log(1 - P)) comes to the loss if s < 1, where P is the model's probability of these words;
 * 1 - P counts as at least SH_KD_REST. HEAD_SCORE makes such words: the K largest logits in descending order, of equal
 * ones the lower word first; NaN counts as -Inf there; K is at most V.
 *
 * With attr->head.squares the square of lse, the log of the sum of exponentials of a row's logits, comes to the loss of the
 * row that often, with the row's weight. Its sum is a second number, which the first one does not hold. Where attr has a
 * temperature there are SH_HEAD_NUMBERS, the others 0 without the words: sums over rows, with their weights, of what
 * alpha T^2 multiplies or alpha does; of the teacher's probability of its words; and of 1 where the target is the first
 * word with the largest logit.
 *
 * With attr->head.multi_label logits are of labels, each by itself: teacher [N,V], without words, says from 0 to 1 whether a row
 * has each. The loss of a row is the mean over labels of log(1 + e^z) - y z. Of the SH_HEAD_NUMBERS, TRUE_POSITIVES counts
 * labels that are present, y >= 1/2, and predicted, z > 0; POSITIVES the present ones and the predicted ones; RIGHT the rows
 * in which both are the same labels.
 *
 * With attr->head.raw there is no softmax: logits stand for log-probabilities. HEAD_LOSS sums minus that of a row's target,
 * and the derivative is -1. For values, of which w has one row, and in HEAD_SCORE for labels; without a teacher.
 *
 * PAIR_LOSS reads rows that consist of pairs of documents: the first, third, ... is the answer that was chosen, the
 * next one that was rejected. docs: the first place of each place's document. What follows the last pair has no targets;
 * a pair without targets does not count. With l the sum of the log-probabilities of a document's targets, and ref the
 * same number of the reference, which lies at the document's first place, or 0 without one,
 *     sum      l, at the first place of each document; 0 elsewhere
 *     weight   of each target minus the derivative of the pair's loss by its document's l; 0 without a target
 *     loss     sums over pairs: the loss; beta (l - ref) of the chosen, and of the rejected; how often the former is the
 *              larger one; l of the chosen, and of the rejected
 * With label each document is an answer by itself: chosen if the label at its first place is 1, rejected if it is 0. The
 * fourth sum is then how many were chosen. With label 2 it is an answer to another prompt, which only says for kto what z
 * is in its row; a seventh sum is then z, once for each answer that is compared with it. kernels/preference.h has the losses, and says of which beta multiplies the
 * mean of l over targets instead.
 *
 * A norm of all queries together, and of all keys, may find its heads on several ranks. QK_MEANS gives this rank's part of a
 * mean over all of them; the ranks' parts add up. QK_NORM takes that of squares as `mean`, QK_NORM_BWD that of dy x w.
 * With K = 0 there are queries alone; wk, which is not looked at, is then wq.
 *
 * Heads may be spread over P ranks while attention looks at whole sequences, of which each rank otherwise has a part.
 * The rank at place p gets query heads [p H, (p + 1) H), with H heads of a rank, and J key-value heads from
 * p K / P on. With P > K that is one head, of which P / K ranks have a copy. A part has queries, keys, values.
 *
 * Or ranks keep their rows and gather keys and values. Sequences are then cut into 2 P pieces of M rows, of which the rank
 * at place p has p and 2 P - 1 - p: both see as many keys together on each rank. Its rows are the first pieces of all
 * sequences, then the second ones. Queries of ATTENTION_ROWS are in U such runs for each sequence; run i has positions
 * from attr->attn.first[i] on, a multiple of M, and first[0] < first[1]. docs is that of queries.
 *
 * ORTHO_ROWS (NorMuon, arXiv:2510.05491) takes what ORTHO left, scale U: for each row of U, an output of its product,
 * v = b v + (1 - b) mean(row^2) with b = muon_beta2, and the row is divided by sqrt(max(v, SH_ORTHO_LEAST)). The matrix
 * then gets the Frobenius norm again that it had, and the scale. A rank has the v of its matrices' rows, unit after unit.
 *
 * ORTHO replaces each matrix X that call->matrices lists by scale U, where U is what a polynomial makes of X / |X|, its
 * Frobenius norm: attr->ortho.steps times X = a X + b (X X') X + c (X X')^2 X, with the coefficients of kernels/muon.h.
 * Its singular values come near 1. |X| is a sum in f64; if it is 0, U is 0. Elements of no matrix are left alone.
 *
 * A sink is a learned number of each head that takes part in the softmax of each query, and has no value. SINK makes from
 * o and lse of attention what they are with it: total = log(e^lse + e^sink), y = o e^(lse - total). ATTENTION_BWD of y
 * and total is then that of attention with the sink, and dsink = - sum over queries of e^(sink - total) dy.y.
 *
 * GATED_DELTA (Yang et al., arXiv:2412.06464) has a state S [D,V] for each of H heads of values, which is 0 at the first
 * row of a document. A row of x is queries and keys of K heads, H / K heads of values to each, then values; a row of ba is
 * b, then a, of each head. With q and k divided by their lengths (kernels/delta.h), q by the root of D too,
 *     S = e^g S,  S += k sigmoid(b) (v - S'k),  o = S'q  with  g = - e^alog softplus(a + dt)
 *
 * SHORT_CONV_CACHE, GATED_DELTA_CACHE and SCAN_CACHE go on with texts, from what the call before left in `tail` or `state`. The first
 * `count` rows of a sequence are tokens at positions from at[b,0] on; a text that is at position 0 begins with zeros,
 * whatever was left. Other rows of the result are 0, and a sequence without tokens keeps what it has.
 *
 * SCAN (Dao and Gu, arXiv:2405.21060, section 6) has a state S [D,V] for each of H heads, which is 0 at the first row of a
 * document. A row of x is the values X of all heads, then what each of K groups writes, B, then what it reads, C; H / K
 * heads to a group. `heads` has for each head a_log, then those of bias, then those of skip. With
 * step = max(softplus(dt + bias), least)
 *     S = e^g S + B step X',  o = S'C + skip X  with  g = - e^a_log step
 * SHORT_CONV may have a bias, which is added before SiLU.
 *
 * SWIGLU_ROWS* with attr->rows.limit L and alpha are those of gpt-oss: gate and up are neighbours, element by element,
 * and h = min(gate, L) sigmoid(alpha min(gate, L)) (up between -L and L, plus 1). `more` is added to dweight.
 *
 * Latent attention makes keys and values from a short vector of each row. A query has P elements without a position and
 * then R that are turned; kv has P elements of a key and V of a value for each head; the R of a key that are turned are
 * one vector for all heads. LATENT_HEADS puts the R turned elements of queries and keys first, where ROPE expects them,
 * and fills values with zeros up to P + R, which is at least V; so attention itself has one width of heads.
 *
 * Every kernel is deterministic: the same inputs give the same bits with any number of threads. The only exception is
 * ATTENTION_BWD when attr->attn.any_order is set. */
#ifndef SH_KERNELS_OP_H
#define SH_KERNELS_OP_H

#include "src/base/number/floats.h"
#include "src/base/number/dtype.h"
#include "src/base/err.h"
#include "src/base/number/rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All kinds, with their names in printed programs. KERNEL: every device has a kernel sh_DEVICE_NAME. FUSED: two kinds
 * in one, which a device need not provide (src/pass/fuse.c). OTHER: collectives, moves and markers, which have no
 * kernel. */
/* clang-format off */
#define SH_OP_LIST(KERNEL, FUSED, OTHER)                                                                              \
    KERNEL(EMBED, embed)                    /* rows of wte by token, plus rows of wpe by position */                  \
    KERNEL(EMBED_BWD, embed_bwd)            /* one table or both */                                                   \
    KERNEL(NORM, norm)                      /* LayerNorm, or RMSNorm, which has no mean */                            \
    KERNEL(NORM_BWD, norm_bwd)              /* dx = norm' + dres */                                                   \
    KERNEL(LINEAR, linear)                  /* y = x w' + b */                                                        \
    KERNEL(LINEAR_BWD_X, linear_bwd_x)      /* dx = dy w + dres */                                                    \
    KERNEL(LINEAR_BWD_W, linear_bwd_w)      /* dw = dy' x */                                                          \
    KERNEL(BIAS_BWD, bias_bwd)              /* sums of columns */                                                     \
    KERNEL(ROPE_TABLE, rope_table)          /* cos in [0,R/2), sin in [R/2,R) */                                      \
    KERNEL(ROPE, rope)                      /* the first R of each head of q and k rotated; at: positions;            \
                                               attr->attn.inverse rotates back */                                     \
    KERNEL(ATTENTION, attention)            /* causal; docs: the first position of a token's document;                \
                                               attr->attn.window */                                                   \
    KERNEL(ATTENTION_BWD, attention_bwd)                                                                              \
    KERNEL(GELU, gelu)                      /* tanh form */                                                           \
    KERNEL(GELU_BWD, gelu_bwd)                                                                                        \
    KERNEL(SWIGLU, swiglu)                  /* silu(gate) * up; the gate comes first */                               \
    KERNEL(SWIGLU_BWD, swiglu_bwd)                                                                                    \
    KERNEL(ADD, add)                                                                                                  \
    FUSED(ADD_NORM, add_norm)               /* s as in ADD; y, rstd, mean as in NORM of s */                          \
    FUSED(NORM_BWD_BIAS, norm_bwd_bias)     /* NORM_BWD, then the bias by BIAS_BWD of dx */                           \
    FUSED(GELU_BWD_BIAS, gelu_bwd_bias)     /* GELU_BWD, then the bias by BIAS_BWD of dx */                           \
    KERNEL(HEAD_LOSS, head_loss)            /* sum over rows of weight * loss; one without a target or of weight 0      \
                                               is skipped */                                                          \
    KERNEL(HEAD_LOSS_GRAD, head_loss_grad)  /* also the gradients of scalars->loss_scale * loss */                    \
    KERNEL(LOGITS, logits)                  /* logits at position scalars->position */                                \
    KERNEL(CAST, cast)                      /* to another type */                                                     \
    KERNEL(COPY, copy)                                                                                                \
    KERNEL(ACCUMULATE, accumulate)          /* y = y + a */                                                           \
    KERNEL(SUMSQ, sumsq)                    /* into the accumulator of src/base/number/exact.h */                             \
    KERNEL(EXACT_ROUND, exact_round)        /* the accumulator's value, rounded once */                               \
    KERNEL(ADAMW, adamw)                    /* in place; p is f32, or bf16 with r, the halves of floats.h;            \
                                               m, v: states.h */                                                      \
    OTHER(ALL_GATHER, all_gather)                                                                                     \
    OTHER(REDUCE_SCATTER, reduce_scatter)   /* sum over the axis */                                                   \
    OTHER(ALL_REDUCE, all_reduce)           /* sum over the axis, in place */                                         \
    OTHER(WAIT, wait)                       /* marker: the op that attr->waits_for names is complete */            \
    OTHER(RELEASE, release)                 /* marker: the gathered unit may be overwritten */                     \
    KERNEL(SGD, sgd)                        /* with momentum; in place, p as in ADAMW */                           \
    KERNEL(LION, lion)                      /* the same operands */                                                   \
    KERNEL(UNPACK, unpack)                  /* a matrix in the format of src/base/number/nf4.h, to the compute type */ \
    KERNEL(KV_PUT, kv_put)                  /* keys and values of qkv into the cache, at their positions */        \
    KERNEL(ATTENTION_CACHE, attention_cache) /* queries of qkv over the cache up to their positions */             \
    KERNEL(PICK, pick)                      /* the last valid row of each sequence */       \
    KERNEL(QK_NORM, qk_norm)                /* RMSNorm of queries and keys, in groups as wide as wq, wk; v copied */  \
    KERNEL(QK_NORM_BWD, qk_norm_bwd)                                                                                  \
    KERNEL(GEGLU, geglu)                    /* gelu(gate) * up, in its tanh form; the gate comes first */             \
    KERNEL(GEGLU_BWD, geglu_bwd)                                                                                      \
    KERNEL(SCALE, scale)                    /* y = attr->scale.by * x */ \
    KERNEL(LORA, lora)                      /* u = scale x a', z = y + u b': a low-rank addition to a product */ \
    KERNEL(LORA_BWD, lora_bwd)              /* with du = scale dy b: dx = du a + dres, da = du' x, db = dy' u */ \
    KERNEL(GELU_ERF, gelu_erf)              /* exact, by the normal distribution function */                         \
    KERNEL(GELU_ERF_BWD, gelu_erf_bwd)                                                                                \
    KERNEL(REGROUP, regroup)                /* q, k, v of each head to all q, all k, all v;                           \
                                               attr->regroup.inverse: back */                                         \
    KERNEL(SPLIT_HEADS, split_heads)        /* rows with all heads to a part for each rank; see above */             \
    KERNEL(JOIN_HEADS, join_heads)          /* back; copies of a key-value head are added, and rounded once */       \
    KERNEL(QK_MEANS, qk_means)              /* means of a b w over the queries and the keys of a row; see above */   \
    KERNEL(HEAD_SCORE, head_score)          /* log-probability of each target, 0 if it is negative; likeliest word */ \
    OTHER(FETCH, fetch)                     /* from a lower tier to the device; starts only, its WAIT completes it */ \
    OTHER(EVICT, evict)                     /* from the device to a lower tier; likewise */                        \
    OTHER(ALL_TO_ALL, all_to_all)           /* each rank has a part for each; its own inverse; parts: see above */ \
    KERNEL(ROUTE, route)                    /* the experts of each row and their weights; see above */             \
    KERNEL(ROUTE_BWD, route_bwd)            /* through the router's product too; dx = ... + dres */                \
    KERNEL(ROUTE_PLAN, route_plan)          /* rows by expert, then token, then slot; place: where each went */    \
    KERNEL(ROUTE_WAVE, route_wave)          /* which rows travel in a wave; see above */                           \
    KERNEL(ROUTE_LOAD, route_load)          /* counts of rows per expert */                                        \
    KERNEL(ROUTE_LOSS, route_loss)          /* the two losses of which ROUTE_BWD adds the gradients; not multiplied */ \
    KERNEL(ROUTE_BIAS, route_bias)          /* bias + attr->route.step sign(mean of load - load), then minus its mean */ \
    KERNEL(ROW_GATHER, row_gather)          /* the row of each entry of order; its backward is ROW_SUM */          \
    KERNEL(ROW_SUM, row_sum)                /* a token's rows in the order of its slots, then addend; rounded once */ \
    KERNEL(EXPERT_LINEAR, expert_linear)    /* y = x w[e]' for the rows of expert e */                             \
    KERNEL(EXPERT_LINEAR_BWD_X, expert_linear_bwd_x) /* dx = dy w[e] */                                              \
    KERNEL(EXPERT_LINEAR_BWD_W, expert_linear_bwd_w) /* dw[g mod E] = dy' x; 0 if the expert has no rows */                \
    KERNEL(SWIGLU_ROWS, swiglu_rows)        /* as SWIGLU, times the weight of the row's entry, or of the row */                   \
    KERNEL(SWIGLU_ROWS_BWD, swiglu_rows_bwd)  /* dweight: the sum of dh silu(gate) up over a row */               \
    KERNEL(ROW_ADD, row_add)                /* as ADD, over the live rows */                                          \
    KERNEL(MUON_MOMENTUM, muon_momentum)    /* g = grad_scale u, m = mean of g, u = m, or the next one as nesterov has it */ \
    KERNEL(ORTHO, ortho)                    /* each matrix to its orthogonal factor, times the row's scale; see above */ \
    KERNEL(MUON_APPLY, muon_apply)          /* p = (1 - lr decay) p - lr u; with cautious_decay only where u shrinks p */ \
    KERNEL(BIAS, bias)                      /* y = x + b in each row */                                               \
    KERNEL(LOSS_PART, loss_part)            /* of some words' logits; see above */                                     \
    KERNEL(LOSS_REST, loss_rest)            /* from the parts of all ranks; dz: as HEAD_LOSS_GRAD */                       \
    KERNEL(PAIR_LOSS, pair_loss)            /* the loss of pairs of documents, and how it weighs their targets; see above */ \
    KERNEL(SPLIT_KV, split_kv)              /* rows of queries, keys, values: queries apart from the others */         \
    KERNEL(JOIN_KV, join_kv)                /* back */                                                                \
    KERNEL(FROM_PIECES, from_pieces)        /* rows as ranks have them to whole sequences; see above */               \
    KERNEL(TO_PIECES, to_pieces)            /* back */                                                                \
    KERNEL(ATTENTION_ROWS, attention_rows)  /* as ATTENTION, for runs of queries; see above */                          \
    KERNEL(ATTENTION_ROWS_BWD, attention_rows_bwd)                                                                    \
    KERNEL(ADAMW_CODED, adamw_coded)        /* as ADAMW, with states in blocks of 64 codes (code8.h) */                  \
    KERNEL(LION_CODED, lion_coded)                                                                                    \
    KERNEL(SCORE_REST, score_rest)          /* from the parts of all ranks; as HEAD_SCORE */                               \
    OTHER(SEND, send)                       /* a message to a neighbour on the axis; its RECEIVE meets it */           \
    OTHER(RECEIVE, receive)                 /* from a neighbour */                                                    \
    KERNEL(SINK, sink)                      /* one more number in the softmax of each row of a head; see above */             \
    KERNEL(SINK_BWD, sink_bwd)              /* of the number; that of attention passes through unchanged */            \
    KERNEL(EXPERT_BIAS, expert_bias)        /* y = x + b[e] for the rows of expert e, times the weight of the row. */ \
    KERNEL(EXPERT_BIAS_BWD, expert_bias_bwd) /* db[g mod E]: sums of rows, weighed; dweight: dy b[e] */                \
    KERNEL(EMA, ema)                        /* e = e + attr->scale.by (p - e); r: the other halves of p */             \
    KERNEL(ORTHO_ROWS, ortho_rows)          /* each row of a matrix by the mean of its squares; see above */            \
    KERNEL(ENCODE, encode)                  /* blocks of 64 codes with their scale, LINEAR of code8.h, to nearest */    \
    KERNEL(DECODE, decode)                  /* back, rounded once */                                                    \
    KERNEL(SHORT_CONV, short_conv)          /* y = silu(sum_j w_j x of row t - (W-1) + j), in a document */ \
    KERNEL(SHORT_CONV_BWD, short_conv_bwd)                                                                            \
    KERNEL(GATED_DELTA, gated_delta)        /* a state for each head; see above. state: those with which chunks begin */ \
    KERNEL(GATED_DELTA_BWD, gated_delta_bwd)                                                                          \
    KERNEL(GATED_NORM, gated_norm)          /* RMSNorm of each head, times w silu(z) */                               \
    KERNEL(GATED_NORM_BWD, gated_norm_bwd)                                                                            \
    KERNEL(GATE, gate)                      /* y = x sigmoid(z) */                                                    \
    KERNEL(GATE_BWD, gate_bwd)                                                                                        \
    KERNEL(SPLIT_GATE, split_gate)          /* rows of q and gate head by head, then k, v: gates apart from the others */ \
    KERNEL(JOIN_GATE, join_gate)            /* back */ \
    KERNEL(LATENT_HEADS, latent_heads)      /* queries, keys and values as attention reads them; see above */         \
    KERNEL(LATENT_HEADS_BWD, latent_heads_bwd) /* dturned: the sum over heads, rounded once */                        \
    KERNEL(LATENT_VALUES, latent_values)    /* the first V elements of each head */                                   \
    KERNEL(LATENT_VALUES_BWD, latent_values_bwd) /* back; the others are 0 */                                         \
    KERNEL(SHORT_CONV_CACHE, short_conv_cache) /* of texts that go on; tail: the last W-1 rows of x; see above */    \
    KERNEL(GATED_DELTA_CACHE, gated_delta_cache) /* of texts that go on; state: the one behind the last row */   \
    KERNEL(SCAN, scan)                      /* a state for each head, by steps; see above. state: as in GATED_DELTA */ \
    KERNEL(SCAN_BWD, scan_bwd)                                                                                        \
    KERNEL(GATE_NORM, gate_norm)            /* RMSNorm of x silu(z) in groups of columns, times w */                  \
    KERNEL(GATE_NORM_BWD, gate_norm_bwd)                                                                              \
    KERNEL(SQUARED_RELU, squared_relu)                    /* the square of what is above 0 */                                       \
    KERNEL(SQUARED_RELU_BWD, squared_relu_bwd)   \
    KERNEL(VALUE_NORM, value_norm)          /* q, k and v / rms(v) of each head; without v in x, v is k */            \
    KERNEL(VALUE_NORM_BWD, value_norm_bwd)                                                                            \
    KERNEL(SCALE_BY, scale_by)              /* y = s[0] x; s has no gradient */                                       \
    KERNEL(SCAN_CACHE, scan_cache)          /* of texts that go on; state: the one behind the last row */ \
    KERNEL(SQUARED_RELU_ROWS, squared_relu_rows) /* as SQUARED_RELU, times the weight as in SWIGLU_ROWS */ \
    KERNEL(SQUARED_RELU_ROWS_BWD, squared_relu_rows_bwd)

#define SH_OP_ENUM(KIND, name) SH_OP_##KIND,
enum { SH_OP_PLUGS = 64, SH_OP_NUMBERS = 4 };
/* The operations of plug-ins (kernels/plug.c) have the kinds from SH_OP_KINDS on. */
enum sh_op_kind { SH_OP_LIST(SH_OP_ENUM, SH_OP_ENUM, SH_OP_ENUM) SH_OP_KINDS, SH_OP_ROOM = SH_OP_KINDS + SH_OP_PLUGS };
#undef SH_OP_ENUM

/* For lists of some kinds only. */
#define SH_OP_SKIP(KIND, name)

enum { SH_LORA_PARTS = 3, SH_ROPE_DIVISORS = 128, SH_ROUTE_GROUPS = 64 };
enum { SH_PAIR_LOSS, SH_PAIR_CHOSEN, SH_PAIR_REJECTED, SH_PAIR_RIGHT, SH_PAIR_LOGP_CHOSEN, SH_PAIR_LOGP_REJECTED,
       SH_PAIR_NUMBERS, SH_PAIR_Z = SH_PAIR_NUMBERS, SH_PAIR_ALL }; /* of PAIR_LOSS's loss; z and ALL: of kto */
enum { SH_STATES_MAX = SH_OP_MAX_OUT - 2 }; /* states an optimizer keeps per parameter, besides its two halves */

/* A run of elements of a flat shard with the same weight decay rule. If states are rounded stochastically, a run
 * belongs to one tensor and names it: element i of the shard is element i - origin of that tensor, on any mesh. Code
 * that cuts the shard and so renumbers its elements shifts begin, end and origin by the same amount. */
struct sh_decay_run {
    int64_t begin, end; /* elements of the shard */
    bool decay;
    int group;       /* of the numbers that the call gives for it, from 1 on; 0: those of the scalars */
    uint64_t tensor; /* sh_rng_name() of the tensor's name */
    int64_t origin;  /* where the tensor begins; negative: in an earlier shard */
};

/* Numbers of a group of parameters in place of those of the scalars; NaN: those. lr is a factor. */
struct sh_group_numbers {
    double lr, weight_decay, beta1, beta2, eps;
    bool adamw;  /* its matrices are not Muon's */
    int pattern; /* which pattern of optimizer.groups it is of, from 1 on; 0: none */
};

/* A matrix [out,in] among the elements of a unit, or `repeat` of them: copy k has element (r, c) at
 *   at + k stride + (r / block * block_stride + r % block) row_step + c col_step
 * so rows may lie in blocks, as queries do where a head's keys follow them. */
struct sh_matrix {
    int64_t at, out, in, row_step, col_step;
    int64_t block, block_stride;
    int64_t repeat, stride;
    float scale;
    int64_t row, row_stride; /* row r of copy k is number row + k row_stride + (r / block * block_stride + r % block) of the
                                rows of all of the unit's matrices */
};

/* Which parameters of a unit an update is of: all, the matrices of its linear products, or all but those; or its first
 * elements, whose states are in float32, or those whose states are in codes (struct sh_unit.wide). */
enum sh_runs_of { SH_RUNS_ALL, SH_RUNS_OTHERS, SH_RUNS_MATRICES, SH_RUNS_WIDE, SH_RUNS_CODED };

/* A loss of answers (kernels/preference.h). */
struct sh_op_pair {
    int loss; /* enum sh_cfg_loss_type */
    double beta, smoothing;
    double gamma;              /* the margin of simpo */
    double sft;                /* what the mean log-probability of the chosen answer's targets counts */
    double desirable, undesirable; /* what single answers count */
    double center;             /* what the square of the sum of a pair's rewards counts */
    int own;                   /* the kind of a plug-in's loss, which is an operation of its own; 0: none */
};

#define SH_KD_REST 1e-7 /* the smallest rest of a model beside a teacher's words */
enum { SH_KD_WORDS = 256 }; /* the most words of a teacher, if it has another form than the normalized one */

/* The numbers of a loss of logits. */
enum {
    SH_HEAD_SUM,
    SH_HEAD_SQUARES,
    SH_HEAD_KL,
    SH_HEAD_MASS,
    SH_HEAD_RIGHT,
    SH_HEAD_NUMBERS,
    SH_HEAD_TRUE_POSITIVES = SH_HEAD_KL, /* with multi_label */
    SH_HEAD_POSITIVES = SH_HEAD_MASS
};

/* What a loss takes from a teacher (HEAD_LOSS). */
struct sh_teacher_numbers {
    int top_k; /* words of each row */
    double temperature, alpha;
    int form; /* enum sh_cfg_kd_form */
};

/* What an operation knows besides its operands. Passes set the first four fields on any operation. Kernels read the
 * member of the union that belongs to the kind; `attrs` of struct sh_op_info says which member that is and lists its
 * fields. */
/* clang-format off */
struct sh_op_attr {
    unsigned accumulate;                           /* outputs marked +=; bit i: add to out[i] */
    unsigned group;                                /* collectives: over these axes (sh_group of src/mesh/shape.h) */
    int waits_for;                                 /* WAIT: index of the collective or move within its section */
    int after;                                     /* collectives: start only when this op is complete; -1: none */
    int64_t row_block;                             /* sums over rows are chains of blocks of so many (rows.h); 0: of all */
    union {
        struct {
            float eps;
            bool rms;                              /* RMSNorm instead of LayerNorm */
            bool plus_one;                         /* times (1 + w) instead of w (Gemma) */
        } norm;                                    /* NORM, NORM_BWD, and the kinds they are fused into */
        struct {
            bool w_in_out;                         /* the weight is stored [I,O] (GPT-2), not [O,I] (Llama) */
        } linear;                                  /* LINEAR* */
        struct {
            int heads, kv_heads, head_dim;
            float scale;                           /* ATTENTION*: 1/sqrt(D) */
            bool inverse;                          /* ROPE: rotates back */
            bool pairs;                            /* ROPE: elements 2i and 2i + 1 turn together, not i and R/2 + i */
            bool any_order;                        /* ATTENTION_BWD: may add in an order that changes from run to run */
            int window;                            /* ATTENTION*, ATTENTION_CACHE: a query sees itself and the
                                                      window - 1 keys before it; 0: all */
            int document_tokens;                   /* ATTENTION*, with docs: their mean length, for prices; 0: not known */
            int runs;                              /* ATTENTION_ROWS*: U */
            int64_t first[2];                      /* ATTENTION_ROWS*: where they begin */
            int rotary_dim;                        /* ROPE: rotated elements of a head, the width of its table */
            float cap;                             /* ATTENTION*: a score s is cap tanh(s / cap); 0: s */
        } attn;                                    /* ROPE, ATTENTION* */
        struct {
            double theta;                          /* scaled as in Llama 3; no scaling if factor == 0 */
            double factor, low_freq, high_freq, original_len;
            double ramp_first, ramp_last;          /* or YaRN if ramp_last > 0: between these elements of a half */
            double scale;                          /* of cos and sin; 0: 1 */
            int divisors, first_divisor;           /* or as in LongRoPE if divisors is R/2: frequency i is divided by
                                                      row first_divisor + i of the program's table of divisors */
            int turned;                            /* only the first so many of the R/2 pairs turn; 0: all */
        } rope;                                    /* ROPE_TABLE */
        struct {
            int heads, kv_heads, head_dim;
            int q_width, k_width, groups;          /* elements per group of queries and of keys; groups per row */
            float eps;
            bool plus_one;                         /* as in norm */
            int ranks;                             /* QK_MEANS: those that have a part of the heads each */
        } qk;                                      /* QK_NORM*, QK_MEANS */
        struct {
            float by;
        } scale;                                   /* SCALE */
        struct {
            int heads, head_dim;
            bool inverse;
        } regroup;                                 /* REGROUP */
        struct {
            int heads, plain, turned, value;       /* H, P, R, V */
        } latent;                                  /* LATENT_* */
        struct {
            int heads, kv_heads, head_dim;         /* H, K, D */
            int kv_in;                             /* heads behind queries in x: 2K, or K if values are the keys */
            float eps;
        } values;                                  /* VALUE_NORM* */
        struct {
            int ranks, heads, kv_here;             /* P; of a rank: H and J, which is K / P or 1, or 0 without K */
            int kv_heads, head_dim;                /* K; D */
        } split;                                   /* SPLIT_HEADS, JOIN_HEADS */
        struct {
            int64_t chunk_rows;                    /* rows of logits held at a time */
            double temperature, alpha;             /* with a teacher */
            int form;                              /* with a teacher, see above */
            bool raw;                              /* no softmax, see above */
            bool multi_label;                      /* labels, each by itself, see above */
            float cap;                             /* a logit z is cap tanh(z / cap); 0: z */
            double squares;                        /* what that of lse counts, see above; 0: no second number */
        } head;                                    /* HEAD_LOSS*, HEAD_SCORE */
        struct sh_op_pair pair;                    /* PAIR_LOSS */
        struct {
            int64_t first;                         /* this rank's first word */
            int64_t all;                           /* EMBED*, LOGITS: words of all ranks; 0: the table has all */
            float cap;                             /* LOGITS, LOSS_*: as in head; z is not yet capped */
            double squares;                        /* LOSS_REST: as in head */
        } part;                                    /* EMBED*, LOGITS, LOSS_PART, LOSS_REST */
        struct {
            int key_heads, heads, key_dim, value_dim;
            float eps;                             /* of GATED_NORM*, GATE_NORM* */
            float least;                           /* SCAN*: the least step */
        } delta;                                   /* GATED_DELTA*, GATED_NORM*, SCAN*, GATE_NORM* */
        struct {
            int first, count;                      /* its rows in the program's table of decay runs */
            int of;                                /* enum sh_runs_of: elements of other parameters are in no run, and left alone */
        } runs;                                    /* ADAMW*, SGD, LION*, MUON_MOMENTUM, MUON_APPLY */
        struct {
            int kind, steps;                       /* enum sh_cfg_coefficients */
            int first, count;                      /* its rows in the program's table of matrices: those of this rank */
            int first_all, count_all;              /* those of all ranks */
            int first_cut;                         /* the cuts where ranks, or replicas that share the work, begin to own
                                                      matrices; -1: all are here */
            int sharers;                           /* replicas of a rank that share the work; 1: each does all */
            int maker;                             /* which of them makes the matrices of all ranks; -1: as the cuts say */
            int wave;                              /* as of the exchanges: units whose updates go together */
            int64_t origin;                        /* which element of the unit is the first of u */
            int64_t most_short, most_long;         /* the largest sides of all ranks' matrices */
            bool narrow;                           /* ORTHO: products of bf16; on GPUs only */
            int first_row_cut;                     /* ORTHO_ROWS: the cuts of rows, as first_cut; -1: all are here */
            int64_t row_origin;                    /* and which of the unit's rows is the first of v */
        } ortho;                                   /* ORTHO, ORTHO_ROWS */
        struct {
            int parts;                             /* adapted matrices of y's stack: part i has rows [R i, R (i + 1))
                                                      of a, and the width[i] rows of b after the earlier parts' */
            int first[SH_LORA_PARTS], width[SH_LORA_PARTS]; /* columns of y */
            float scale;
        } lora;                                    /* LORA* */
        struct {
            int experts, chosen;                   /* E, k */
            bool sigmoid;                          /* scores by expert, instead of the softmax over all */
            bool norm;                             /* weights of a row are divided by their sum */
            float scale;                           /* and multiplied by this */
            int groups, top_groups;                /* only experts of the best groups may be chosen; 0: of all.
                                                      chosen <= top_groups E / groups; groups <= SH_ROUTE_GROUPS */
            float aux, z;                          /* ROUTE_BWD, ROUTE_LOSS: coefficients of the losses; 0: none */
            float step;                            /* ROUTE_BIAS */
            bool forced;                           /* ROUTE: slot j of row n has expert (n k + j) mod E, whatever its score */
        } route;                                   /* ROUTE* */
        struct {
            int wave, place;                       /* from 0 on; of this rank in the group */
            int64_t room;                          /* rows, at least as many as a segment can have */
        } wave;                                    /* ROUTE_WAVE */
        struct {
            int64_t row_elems;                     /* with parts: elements of a row */
            bool back;                             /* to where the rows are at home */
            bool others;                           /* rows of a rank for itself do not travel */
            int64_t expected;                      /* rows that a rank is expected to send, for prices; 0: all; -1: none */
            int wave;                              /* from 0 on; for labels, and units whose updates go together */
            int first_cut, cuts;                   /* without parts, if cuts is not 0: the numbers in the program's table
                                                      of cuts, one more than ranks. A rank has an equal chunk of x, and
                                                      place j gets elements [cut j, cut j + 1) of the whole; or back */
            int sharers;                           /* of cuts, if not 0: of each run of so many ranks in the group, place i
                                                      gives the others elements [cut i, cut i + 1), in place. The cuts
                                                      are sharers + 1 for each place of the unit's shard group */
            int run;                               /* with sharers: this rank's place there */
            int sequences;                         /* of equal parts, if not 0: [S,P,n] to [S,P,n], each by itself */
        } exchange;                                /* ALL_TO_ALL */
        struct {
            int peer;                              /* places on the axis of the group from this rank to the other */
            int micro;                             /* the micro-step of which it is */
            int border;                            /* between chunk `border` of the model's blocks and the next one */
        } link;                                    /* SEND, RECEIVE */
        struct {
            bool w_in_out;                         /* EXPERT_LINEAR*: weights are stored [E,I,O]; first, as in linear */
            int64_t expected;                      /* of the M rows, for prices; 0: all; -1: none */
            float limit, alpha;                    /* SWIGLU_ROWS*: see above; 0: none */
            bool choose;                           /* EXPERT_LINEAR*: on GPUs, a clock chooses between kernels (sh_choices) */
        } rows;                                    /* EXPERT_LINEAR*, SWIGLU_ROWS*, EXPERT_BIAS*, ROW_ADD, UNPACK */
        struct {
            double number[SH_OP_NUMBERS];          /* in the order of its row */
            double reward;                         /* of a loss of pairs: what log-ratios are multiplied by in metrics */
        } plug;                                    /* operations of plug-ins */
    };
};
/* clang-format on */

/* A field of one member of that union, for printing and for comparing programs. */
struct sh_attr_field {
    const char *name; /* NULL: the end of the list */
    enum sh_attr_type { SH_ATTR_BOOL, SH_ATTR_INT, SH_ATTR_I64, SH_ATTR_FLOAT, SH_ATTR_DOUBLE } type;
    size_t at;   /* offset in struct sh_op_attr */
    char letter; /* stands for the field in shapes; 0: no letter does */
};

/* The field's value; 0 or 1 for a bool. */
double sh_attr_value(const struct sh_op_attr *attr, const struct sh_attr_field *field);

/* Numbers that change from step to step, the same for all operations of a section. */
struct sh_op_scalars {
    double loss_scale;   /* 1 / unmasked target tokens of the global batch; in f16 times a power of two */
    double router_scale; /* the same with all tokens of the global batch, masked or not: routers see all of them */
    float lr, beta1, beta2, adam_eps, weight_decay, momentum, muon_beta2;
    bool nesterov, cautious_decay;
    double beta1_pow, beta2_pow; /* beta^t for this update t = 1, 2, ... */
    float grad_scale;      /* clipping divided by the loss's scale: gradients are multiplied by it before the update */
    uint64_t seed, update; /* seed and t, for the random bits that round states in bf16 (kernels/states.h) */
    int64_t position;      /* LOGITS */
};

struct sh_op_call {
    enum sh_op_kind kind;
    const struct sh_op_attr *attr;
    const struct sh_op_scalars *scalars;
    const struct sh_decay_run *runs; /* ADAMW: attr->runs.count rows */
    const struct sh_group_numbers
        *groups;                      /* of updates: those of their runs; sh_rows_run() puts them into the scalars */
    const double *divisors;           /* ROPE_TABLE: attr->rope.divisors rows; NULL: none */
    const struct sh_matrix *matrices; /* ORTHO, ORTHO_ROWS: attr->ortho.count rows */
    struct sh_operand in[SH_OP_MAX_IN], out[SH_OP_MAX_OUT];
    void *work; /* sh_op_work_bytes() bytes, 64-byte aligned; contents undefined */
    int64_t work_bytes;
    void *queue; /* the device's queue for the call: a CUDA stream; NULL on the CPU */
};

static inline bool sh_op_adds(const struct sh_op_call *call, int out)
{
    return (call->attr->accumulate >> out) & 1u;
}

/* Numbers of HEAD_LOSS or HEAD_LOSS_GRAD. */
static inline int sh_head_numbers(const struct sh_op_attr *attr)
{
    if (attr->head.temperature != 0 || attr->head.multi_label)
        return SH_HEAD_NUMBERS;
    return attr->head.squares != 0 ? SH_HEAD_SQUARES + 1 : 1;
}

/* Run one call to completion; on a GPU, put it into call->queue and return, after reading *call and its scalars. A
 * kernel trusts shapes and types, which the check pass has compared with the table, and allocates nothing. */
typedef sh_rc (*sh_kernel)(const struct sh_op_call *call);

enum { SH_DAMAGE_SLOTS = 1024 };

/* Calls for which a library offers several kernels. The library names one first, as the best by its tables, but only
 * a clock can tell which is fastest. All of this is used outside the program, by the thread that enqueues; the list
 * is known once all calls are prepared. Another kernel may round differently, so whoever measures makes all ranks use
 * the same one. */
enum { SH_CHOICE_TEXT = 256 };
struct sh_choices {
    int (*count)(void);
    /* The library and its version: what the answers depend on besides the call. */
    const char *(*library)(void);
    /* One line with everything that the answers for call i depend on. Equal texts on two ranks with equal GPUs mean
     * equal answers. */
    void (*name)(int i, char text[SH_CHOICE_TEXT]);
    int (*answers)(int i);
    /* Put call i into the queue, using answer `which`; it writes what the call writes. Errors: SH_E_BUG: this answer
     * cannot run. */
    sh_rc (*attempt)(int i, int which, void *queue);
    /* Use answer `which` for call i from now on. Until then answer 0 is used. */
    void (*choose)(int i, int which);
};

/* A device's kernels, indexed by enum sh_op_kind; NULL for collectives, moves and markers, and possibly for fused
 * kinds. */
struct sh_kernel_table {
    const char *name;
    sh_kernel run[SH_OP_ROOM];
    /* Called before the first run of a call (shapes, attr and data set), for anything that takes time, such as
     * libraries and their plans. Errors: those of `run` that follow from shapes and libraries alone. NULL: nothing to
     * prepare. */
    sh_kernel prepare;
    /* Initial values, outside the program: runs of sh_rng_fill_normal(key, std), end to end, the same bits on every
     * device.   out  out  [elements of the runs], on the device; written after what is already in the queue */
    sh_rc (*fill_normal)(uint64_t key, const struct sh_rng_runs *runs, float std, struct sh_floats out, void *queue);
    /* Outside the program: the sums (mixsum.h) of floats [first, first + n) in parts of SH_MIXSUM_PART, the last one shorter;
     * `first` may lie within a block of codes.
     *   sums  out  [parts], in device or pinned memory; written after what is already in the queue
     * NULL: the data is in host memory and sh_mixsum() does it. */
    sh_rc (*mixsum)(struct sh_floats data, int64_t first, int64_t n, uint64_t place, uint64_t *sums, void *queue);
    /* Outside the program: n floats from codes of the device, whose blocks start at multiples of 4 bytes.
     *   to  out  [n], in device or pinned memory; written after what is already in the queue
     * NULL: the codes are in host memory. */
    sh_rc (*widen)(struct sh_floats coded, int64_t n, float *to, void *queue);
    /* Look for damage, outside the program and after what is already in the queue. The device keeps SH_DAMAGE_SLOTS
     * numbers, initially zero. count_bad adds the number of the [n] elements that are not finite to a slot; sum_words
     * adds up all words of the memory (4-byte aligned), each mixed with its place. take_slots copies the first n
     * slots to pinned memory and sets them to zero. NULL if the host can look itself. */
    sh_rc (*count_bad)(struct sh_floats x, int64_t n, int slot, void *queue);
    sh_rc (*sum_words)(const void *x, int64_t bytes, int slot, void *queue);
    sh_rc (*take_slots)(uint64_t *out, int n, void *queue);
    const struct sh_choices *choices; /* NULL: there is nothing to choose */
    /* Scratch bytes that a call (shapes and attr set, data not) needs with `threads` threads. NULL: no call needs
     * any. */
    int64_t (*work_bytes)(const struct sh_op_call *call, int threads);
};

extern const struct sh_kernel_table sh_kernels_ref; /* plain loops that define what is right */
extern const struct sh_kernel_table sh_kernels_cpu; /* threads, vector code, CBLAS, oneDNN */
extern const struct sh_kernel_table
    sh_kernels_cuda; /* one GPU; without CUDA only its work_bytes is useful, for plans */

struct sh_op_cost {
    double flops; /* multiply-adds counted as two */
    double bytes; /* read + written once each: the floor of memory traffic */
};

/* clang-format off */
struct sh_op_info {
    const char *name;
    const char *shape;        /* operands with their shapes and types, in the notation of shape.h */
    const char *flops;        /* a formula over the letters of shape; NULL: none */
    bool forward;             /* models emit it for training: it has a rule in src/pass/grad/ */
    enum sh_op_kind backward; /* for a kind y = f(x) without other operands: the kind dy, x -> dx, or dy -> dx; for a collective that exchanges
                                 rows dy -> dx; 0: another rule */
    bool stops;               /* no gradient passes through it: what it makes is a constant to the backward */
    bool costly;              /* selective recomputation keeps its result */
    bool together;            /* what it makes of a row depends on other rows, although its letters do not say so, or it divides
                                 rows itself */
    bool chooses;             /* so does full recomputation: what follows must meet the same choice */
    int inplace_in, inplace_out; /* the output may take the storage of the input if the input dies here; -1: no */
    bool async;               /* collectives: run alongside other operations until their WAIT */
    bool moves;               /* FETCH, EVICT: between tiers; also run alongside others until their WAIT */
    bool marker;              /* WAIT, RELEASE */
    bool runs;                /* an update: reads runs of the table of weight decay (attr->runs) */
    bool fused;               /* two kinds in one, with the same bits; a device need not provide it (src/pass/fuse.c) */
    const struct sh_attr_field *attrs; /* fields of its member of the union in struct sh_op_attr; NULL: none */

    /* Parsed from shape. */
    int n_in, n_out;          /* operands, optional ones included */
    unsigned opt_in, opt_out; /* bit i: operand i may be absent */
    unsigned add_out;         /* bit i: output i is marked += */
    unsigned rw_out;          /* bit i: the earlier value of output i counts, whatever attr->accumulate says */
};
/* clang-format on */

const struct sh_op_info *sh_op_info(enum sh_op_kind kind);

/* Make a kind from SH_OP_KINDS on, of a row that can be read and stays: kernels/plug.c, before the first program. */
void sh_op_add(enum sh_op_kind kind, const struct sh_op_info *row);

/* Whether it computes over rows of experts, of which attr->rows.expected are expected to live. */
bool sh_op_has_rows(enum sh_op_kind kind);

/* Whether an operation only starts something, and its WAIT delivers the result. */
static inline bool sh_op_starts(const struct sh_op_info *info)
{
    return info->async || info->moves;
}

/* Operations and bytes of one call (shapes and attr set). */
struct sh_op_cost sh_op_cost(const struct sh_op_call *call);

/* How many of these operations the kernels of CPUs leave out: one side of ORTHO's symmetric products is a copy. */
double sh_op_copied(const struct sh_op_call *call);

/* Pairs of a query and a key that it sees among T tokens, within documents of `mean` tokens, at least 1, if each token
 * ends one with the same probability. */
double sh_op_pairs_in_documents(double mean, double T);

#ifdef __cplusplus
}
#endif

#endif
