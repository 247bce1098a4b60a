/* y[i] = f(a[i], b[i]) over whole tensors, each of type f32, bf16 or f16, by all threads. Local, no failure. */
#ifndef SH_KERNELS_CPU_MAP_H
#define SH_KERNELS_CPU_MAP_H

#include "kernels/op.h"

/* The loop over one piece. y may be a or b. b is NULL if the map has one input. */
typedef void (*sh_cpu_map_fn)(float *y, const float *a, const float *b, int64_t n);
typedef void (*sh_cpu_map_bf16_fn)(sh_bf16 *y, const sh_bf16 *a, const sh_bf16 *b, int64_t n);

/* y, a and b (NULL: none) have the same number of elements; y may use the storage of a or b if it has the same type.
 * If all are bf16 and there is a loop for that (NULL: none), that loop is used; otherwise pieces go through f32. */
void sh_cpu_map(const struct sh_operand *y, const struct sh_operand *a, const struct sh_operand *b, sh_cpu_map_fn f,
                sh_cpu_map_bf16_fn bf16);

/* The same for elements [at, at + n), at most SH_CPU_PIECE of them, by the calling thread. */
void sh_cpu_map_piece(const struct sh_operand *y, const struct sh_operand *a, const struct sh_operand *b,
                      sh_cpu_map_fn f, sh_cpu_map_bf16_fn bf16, int64_t at, int64_t n);

#endif
