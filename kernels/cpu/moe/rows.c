/* Rows brought to the experts and back: copies of whole rows, and their sums. Floor: each row read once and written
 * once; a token's row is read k times, mostly from caches if its experts are near each other. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/stage.h"

#include <string.h>

/* Sorted rows, some of which may be near (kernels/op.h). */
struct sorted {
    char *rows, *near;
    int64_t begin, n, first; /* which are; which row of near is the first of them */
    size_t bytes;            /* of a row */
};

static struct sorted sorted_of(const struct sh_operand *rows, const struct sh_operand *near,
                               const struct sh_operand *at, const struct sh_operand *first)
{
    const int32_t *begin = at->data, *group = first->data;
    struct sorted s = {.rows = rows->data, .bytes = (size_t)(rows->dim[1] * sh_dtype_bytes(rows->dtype))};

    if (near->data) {
        s.near = near->data;
        s.begin = begin[0];
        s.first = group[0];
        s.n = group[first->dim[0] - 1] - group[0];
    }
    return s;
}

static char *row_at(const struct sorted *s, int64_t row)
{
    int64_t i = row - s->begin;

    return i >= 0 && i < s->n ? s->near + (size_t)(s->first + i) * s->bytes : s->rows + (size_t)row * s->bytes;
}

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
    const struct sorted to = sorted_of(xs, &call->out[1], &call->in[2], &call->in[3]);

    if (to.bytes == sizeof(int32_t) && !to.near) {
        gather_numbers(xs->data, x->data, order, M, (int32_t)k);
        return SH_OK;
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < M; r++)
        memcpy(row_at(&to, r), (const char *)x->data + (size_t)(order[r] / k) * to.bytes, to.bytes);
    return SH_OK;
}

/* Columns [c, c + n) of token `token`. addend is read before y is written: they may be the same. */
static void sum_piece(const struct sh_op_call *call, const struct sorted *from, int64_t token, int64_t c, int64_t n)
{
    const struct sh_operand *addend = &call->in[2], *y = &call->out[0];
    enum sh_dtype type = call->in[0].dtype;
    int64_t C = y->dim[1], k = call->in[1].dim[1];
    const int32_t *place = (const int32_t *)call->in[1].data + token * k;
    struct sh_cpu_block row = {1, n};
    float sum[SH_CPU_PIECE];

    sh_cpu_block_load(row, sum, n, sh_cpu_at(row_at(from, place[0]), type, c), n, type);
    for (int64_t j = 1; j < k; j++)
        sh_cpu_block_add(row, sum, n, sh_cpu_at(row_at(from, place[j]), type, c), n, type);
    if (addend->data)
        sh_cpu_block_add(row, sum, n, sh_cpu_at(addend->data, addend->dtype, token * C + c), n, addend->dtype);
    sh_cpu_block_store(row, sh_cpu_at(y->data, y->dtype, token * C + c), n, y->dtype, sum, n);
}

sh_rc sh_cpu_row_sum(const struct sh_op_call *call)
{
    int64_t N = call->out[0].dim[0], C = call->out[0].dim[1], pieces = sh_cpu_pieces(C);
    const struct sorted from = sorted_of(&call->in[0], &call->in[3], &call->in[4], &call->in[5]);

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < N * pieces; p++)
        sum_piece(call, &from, p / pieces, p % pieces * SH_CPU_PIECE, sh_cpu_piece_elems(C, p % pieces));
    return SH_OK;
}
