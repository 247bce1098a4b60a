/* Rows brought to the experts and back: copies of whole rows, and their sums. Floor: each row read once and written
 * once; a token's row is read k times, mostly from caches if its experts are near each other. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/stage.h"

#include <string.h>

/* Rows of one number of 32 bits: weights. */
static void gather_numbers(int32_t *xs, const int32_t *x, const int32_t *order, int64_t M, int32_t k)
{
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < M; r++)
        xs[r] = x[order[r] / k];
}

sh_rc sh_cpu_row_gather(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *xs = &call->out[0];
    const int32_t *order = call->in[1].data;
    int64_t M = xs->dim[0], k = M / x->dim[0];
    size_t bytes = (size_t)(xs->dim[1] * sh_dtype_bytes(x->dtype));

    if (bytes == sizeof(int32_t)) {
        gather_numbers(xs->data, x->data, order, M, (int32_t)k);
        return SH_OK;
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < M; r++)
        memcpy((char *)xs->data + (size_t)r * bytes, (const char *)x->data + (size_t)(order[r] / k) * bytes, bytes);
    return SH_OK;
}

/* Columns [c, c + n) of token `token`. addend is read before y is written: they may be the same. */
static void sum_piece(const struct sh_op_call *call, int64_t token, int64_t c, int64_t n)
{
    const struct sh_operand *ys = &call->in[0], *addend = &call->in[2], *y = &call->out[0];
    int64_t C = y->dim[1], k = call->in[1].dim[1];
    const int32_t *place = (const int32_t *)call->in[1].data + token * k;
    struct sh_cpu_block row = {1, n};
    float sum[SH_CPU_PIECE];

    sh_cpu_block_load(row, sum, n, sh_cpu_at(ys->data, ys->dtype, place[0] * C + c), n, ys->dtype);
    for (int64_t j = 1; j < k; j++)
        sh_cpu_block_add(row, sum, n, sh_cpu_at(ys->data, ys->dtype, place[j] * C + c), n, ys->dtype);
    if (addend->data)
        sh_cpu_block_add(row, sum, n, sh_cpu_at(addend->data, addend->dtype, token * C + c), n, addend->dtype);
    sh_cpu_block_store(row, sh_cpu_at(y->data, y->dtype, token * C + c), n, y->dtype, sum, n);
}

sh_rc sh_cpu_row_sum(const struct sh_op_call *call)
{
    int64_t N = call->out[0].dim[0], C = call->out[0].dim[1], pieces = sh_cpu_pieces(C);

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < N * pieces; p++)
        sum_piece(call, p / pieces, p % pieces * SH_CPU_PIECE, sh_cpu_piece_elems(C, p % pieces));
    return SH_OK;
}
