/* The products of low-rank adapters, for the library of any device; kernels/ref/lora.c has the formulas. Local. */
#ifndef SH_KERNELS_LORA_H
#define SH_KERNELS_LORA_H

#include "kernels/matmul.h"
#include "kernels/op.h"

/* A call's sizes, and what the device runs its products with. */
struct sh_lora {
    const struct sh_op_call *call;
    enum sh_dtype act;
    int64_t N, M, I, R, K; /* K: R times the parts */
    float *sums;           /* [N,K], before they are scaled */
    void *work;            /* scratch of any one product */
    int64_t work_bytes;
    sh_rc (*run)(const struct sh_lora *, const struct sh_matmul *);
};

/* The sizes alone. */
struct sh_lora sh_lora_of(const struct sh_op_call *call);

/* sums = x a', of all parts at once: x is read once. Then, with u = scale sums, the columns of each part of z += u' b',
 * where z has those of y. Errors of both and of the backward: those of `run`. */
sh_rc sh_lora_down(const struct sh_lora *l);
sh_rc sh_lora_up(const struct sh_lora *l);

/* db (+)= dy' u and sums = dy b, part by part. Then, with du [N,K] = scale sums, da (+)= du' x and dx = du a + dres, each
 * one product: x is read once, and dx is written once. */
sh_rc sh_lora_bwd_parts(const struct sh_lora *l);
sh_rc sh_lora_bwd_down(const struct sh_lora *l, const void *du);

#endif
