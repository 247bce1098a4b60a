/* Sums of several vectors in a fixed order. Local, no state. */
#ifndef SH_COMM_SUM_H
#define SH_COMM_SUM_H

#include "src/base/number/dtype.h"

/* out[i] = the sum of src[s][i] over a balanced binary tree, ((0 + 1) + (2 + 3)) + ...: n sources split into as many as
 * the largest power of two below n, and the rest. So the bits depend only on the order of src, and summing equal groups
 * of 2^k sources, and then their sums, gives the sum of all.
 *   src  n_src (1..2^20) vectors of elems f32, f64, or bf16, which is summed in f32 and rounded once; out itself may
 *        be one of them */
void sh_comm_sum(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems);

/* The same for a result that is not read again soon and is none of src: f32 goes past the caches, which saves reading
 * the destination first. */
void sh_comm_sum_away(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems);

/* A sum in two steps with the bits of one: for sources that are complete branches of the tree, open sums each branch
 * and leaves it in the type of the additions; close adds these up and rounds. */
enum sh_dtype sh_comm_sum_type(enum sh_dtype dtype); /* f32 of bf16, else dtype itself */
void sh_comm_sum_open(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems);
void sh_comm_sum_close(enum sh_dtype dtype, void *out, const void *const *src, int n_src, int64_t elems);

#endif
