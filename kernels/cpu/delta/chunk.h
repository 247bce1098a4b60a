/* A chunk of n <= SH_DELTA_CHUNK rows of one head of values, as both directions need it (doc/decisions/0077). With G the
 * running sum of g in the chunk and F_ij = e^(G_i - G_j) for j <= i, which no decay lets overflow:
 *
 *     A = stril(b KK' F)    P = tril(QK') F    U = (I + A)^-1 b (V - e^G KS)    out = e^G QS + PU
 *     S' = e^Gn S + (e^(Gn-G) K)'U
 *
 * Local to kernels/cpu/delta; for one thread. */
#ifndef SH_KERNELS_CPU_DELTA_CHUNK_H
#define SH_KERNELS_CPU_DELTA_CHUNK_H

#include "kernels/delta.h"

enum { SH_CHUNK = SH_DELTA_CHUNK };

/* Matrices are dense. G is in f64: differences of a long sum of large numbers decide what is left of a state. */
struct sh_chunk {
    struct sh_delta s;
    int64_t b, h, begin, n;
    double G[SH_CHUNK], g[SH_CHUNK], raw[SH_CHUNK]; /* raw: a + dt */
    float beta[SH_CHUNK], grown[SH_CHUNK], tail[SH_CHUNK], by_q[SH_CHUNK],
        by_k[SH_CHUNK]; /* e^G, e^(Gn-G), 1 / lengths */
    float *Q, *K;       /* [n,D] */
    float *V, *U;       /* [n,V] V is W = V - e^G KS after sh_chunk_solve() */
    float *A, *P, *F;   /* [n,n] */
};

/* Floats of the matrices. */
int64_t sh_chunk_floats(const struct sh_delta *s);

/* Lay a chunk's matrices into room [sh_chunk_floats()]. */
void sh_chunk_place(struct sh_chunk *c, const struct sh_delta *s, float *room);

/* Read rows [c->begin, c->begin + c->n) of inputs first: x, first + 1: ba, first + 2: a_log, first + 3: dt; make A, P, F. */
void sh_chunk_load(struct sh_chunk *c, const struct sh_op_call *call, int first);

/* U, and W in place of V, from the state S [D,V] with which the chunk begins; NULL: zeros. */
void sh_chunk_solve(struct sh_chunk *c, const float *S);

/* The rows out [n,V] of a chunk, and in S [D,V] the state behind it in place of the one before; starts: that is zeros,
 * whatever S has. Uses up K, V. */
void sh_chunk_run(struct sh_chunk *c, float *S, bool starts, float *out);

/* Put out [n,V] into the chunk's rows of y [B,T,HV]. */
void sh_chunk_store(const struct sh_chunk *c, const struct sh_operand *y, const float *out);

/* c [m,n] += a b, a b', a'b; a is [m,k], in the last [k,m]. */
void sh_small_nn(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k);
void sh_small_nt(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k);
void sh_small_tn(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k);

/* Row i of a [rows,n] times by[i]. */
void sh_small_scale(float *a, const float *by, int64_t rows, int64_t n);

#endif
