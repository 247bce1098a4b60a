/* A chunk of n <= SH_SCAN_CHUNK rows of the state-space dual form, as both directions need it (doc/decisions/0086). With B
 * and C [n,D] of a group, and of a head steps dt, U = dt X [n,V], G the running sum of -e^a_log dt in the chunk, and
 * F_ij = e^(G_i - G_j) for j <= i, which no decay lets overflow:
 *
 *     P = tril(CB') F    out = e^G CS + PU + skip X    S' = e^Gn S + B'(e^(Gn-G) U)
 *
 * All threads work on a chunk of each sequence at a time: on its groups, then on its heads. What they share is in the
 * call's scratch, so that a head's state does not care which thread has it next. Local to kernels/cpu/scan. */
#ifndef SH_KERNELS_CPU_SCAN_SCAN_H
#define SH_KERNELS_CPU_SCAN_SCAN_H

#include "kernels/cpu/gemm/gemm_engine.h"
#include "kernels/scan.h"

enum { SH_SCAN_ROWS = SH_SCAN_CHUNK };

/* A group's part of the chunk that is computed: n is 0 if its sequence has no more. */
struct sh_dual_group {
    int64_t b, g, begin, n;
    bool starts;      /* the chunk is the first of its document */
    float *B, *C, *M; /* [n,D], [n,D], CB' [n,n] */
};

/* A head's part. G is in f64: differences of a long sum of large numbers decide what is left of a state. */
struct sh_dual_head {
    double G[SH_SCAN_ROWS], raw[SH_SCAN_ROWS], decay;                  /* raw: dt + bias; decay: e^a_log */
    float step[SH_SCAN_ROWS], grown[SH_SCAN_ROWS], tail[SH_SCAN_ROWS]; /* dt after its limit, e^G, e^(Gn-G) */
    float skip;
    float *X, *U; /* [n,V] */
    float *P, *F; /* [n,n] */
};

/* Inputs of a direction: that of x; dt, heads and docs follow it. */
struct sh_dual_call {
    const struct sh_op_call *call;
    struct sh_delta s;
    int x;
    const struct sh_gemm_engine *f32;
};

struct sh_dual_call sh_dual_call_of(const struct sh_op_call *call, int x);

/* The most chunks of a sequence. */
int64_t sh_dual_steps(const struct sh_dual_call *c);

/* Scratch begins with the groups of all sequences and their matrices: bytes, a multiple of 64; group i; all of them, with
 * no chunk yet and their next one at row `begin`. */
int64_t sh_dual_groups_bytes(const struct sh_delta *s);
struct sh_dual_group *sh_dual_group_at(const struct sh_dual_call *c, int64_t i);
void sh_dual_begin_groups(const struct sh_dual_call *c, int64_t begin);

/* That of a head. */
struct sh_dual_group *sh_dual_group_of(const struct sh_dual_call *c, int64_t b, int64_t head);

/* Floats of a head's matrices, and their places in room. */
int64_t sh_dual_head_floats(const struct sh_delta *s);
void sh_dual_place_head(struct sh_dual_head *h, const struct sh_delta *s, float *room);

/* Read B and C of rows [g->begin, g->begin + g->n), and make M; nothing of no rows. */
sh_rc sh_dual_load_group(const struct sh_dual_call *c, struct sh_dual_group *g);

/* Read what head h has there, and make its U, P and F. */
void sh_dual_load_head(const struct sh_dual_call *c, const struct sh_dual_group *g, int64_t head,
                       struct sh_dual_head *h);

/* Whether the limit leaves the step of row i alone, so that a gradient passes. */
bool sh_dual_moves(const struct sh_dual_call *c, const struct sh_dual_head *h, int64_t i);

/* C [m,n] = (add: +) op(A) op(B), all dense. */
sh_rc sh_dual_product(const struct sh_dual_call *c, const struct sh_gemm_tile *t);

/* Row i of a [rows,n] times by[i]. */
void sh_dual_scale(float *a, const float *by, int64_t rows, int64_t n);

/* to [n] += by from */
void sh_dual_add(float *to, const float *from, float by, int64_t n);

/* Rows of an operand, `elems` to each, from element `at` of the first on: to or from [n,cols]. */
void sh_dual_load(const struct sh_operand *t, int64_t at, int64_t elems, int64_t n, int64_t cols, float *to);
void sh_dual_store(const struct sh_operand *t, int64_t at, int64_t elems, int64_t n, int64_t cols, const float *from);

#endif
