/* Pointwise operations on tensors of any type. A piece of SH_CPU_PIECE elements is converted, computed and converted
 * back while it is in the L1 cache, so memory is read and written once. If all operands are bf16 and there is a
 * function for bf16, nothing is converted in between. */
#include "kernels/cpu/base/map.h"

#include "kernels/cpu/base/stage.h"

#include <stddef.h>

/* Convert a piece, compute in f32, round once. */
static void through_f32(const struct sh_operand *y, const struct sh_operand *a, const struct sh_operand *b,
                        sh_cpu_map_fn f, int64_t at, int64_t n)
{
    float a_room[SH_CPU_PIECE], b_room[SH_CPU_PIECE], y_room[SH_CPU_PIECE];
    float *to = sh_cpu_stage_out(y, at, n, y_room);

    f(to, sh_cpu_stage_in(a, at, n, a_room), b ? sh_cpu_stage_in(b, at, n, b_room) : NULL, n);
    sh_cpu_stage_put(y, at, n, to);
}

void sh_cpu_map_piece(const struct sh_operand *y, const struct sh_operand *a, const struct sh_operand *b,
                      sh_cpu_map_fn f, sh_cpu_map_bf16_fn bf16, int64_t at, int64_t n)
{
    if (bf16 && y->dtype == SH_BF16 && a->dtype == SH_BF16 && (!b || b->dtype == SH_BF16))
        bf16((sh_bf16 *)y->data + at, (const sh_bf16 *)a->data + at, b ? (const sh_bf16 *)b->data + at : NULL, n);
    else
        through_f32(y, a, b, f, at, n);
}

void sh_cpu_map(const struct sh_operand *y, const struct sh_operand *a, const struct sh_operand *b, sh_cpu_map_fn f,
                sh_cpu_map_bf16_fn bf16)
{
    int64_t n = sh_cpu_elems(y), pieces = sh_cpu_pieces(n);

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++)
        sh_cpu_map_piece(y, a, b, f, bf16, p * SH_CPU_PIECE, sh_cpu_piece_elems(n, p));
}
