/* Operations on whole vectors. */
#include "src/base/number/exact.h"
#include "kernels/ref/ref.h"

/* In double, rounded once to the type of the output, like all kernels of this folder. */
sh_rc sh_ref_add(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[0], i) + sh_ref_get(&call->in[1], i));
    return SH_OK;
}

sh_rc sh_ref_row_add(const struct sh_op_call *call)
{
    const struct sh_operand *first = &call->in[2], *y = &call->out[0];
    int64_t rows = (int64_t)sh_ref_get(first, sh_ref_elems(first) - 1);

    for (int64_t i = 0; i < rows * y->dim[1]; i++)
        sh_ref_set(y, i, sh_ref_get(&call->in[0], i) + sh_ref_get(&call->in[1], i));
    return SH_OK;
}

sh_rc sh_ref_bias(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[0], i) + sh_ref_get(&call->in[1], i % call->in[1].dim[0]));
    return SH_OK;
}

sh_rc sh_ref_scale(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, (double)call->attr->scale.by * sh_ref_get(&call->in[0], i));
    return SH_OK;
}

sh_rc sh_ref_scale_by(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[1], 0) * sh_ref_get(&call->in[0], i));
    return SH_OK;
}

sh_rc sh_ref_ema(const struct sh_op_call *call)
{
    struct sh_floats whole = {.whole = call->in[0].data};
    struct sh_floats halves = {.high = call->in[0].data, .low = call->in[1].data};

    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++) {
        double e = sh_ref_get(&call->out[0], i);
        float p;

        sh_floats_get(sh_floats_at(call->in[1].data ? halves : whole, i), 1, &p);
        sh_ref_set(&call->out[0], i, e + (double)call->attr->scale.by * ((double)p - e));
    }
    return SH_OK;
}

/* Part p (q, k, v) of head h: order (h, p) on one side, (p, h) on the other. */
sh_rc sh_ref_regroup(const struct sh_op_call *call)
{
    int64_t H = call->attr->regroup.heads, D = call->attr->regroup.head_dim, row = 3 * H * D;

    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++) {
        int64_t n = i / row, h = i % row / (3 * D), p = i / D % 3, d = i % D, by_part = n * row + (p * H + h) * D + d;
        sh_ref_set(&call->out[0], call->attr->regroup.inverse ? i : by_part,
                   sh_ref_get(&call->in[0], call->attr->regroup.inverse ? by_part : i));
    }
    return SH_OK;
}

/* Where row n of the part of rank p begins among parts [B,P,T,W]. */
static int64_t part_row(const struct sh_operand *parts, int64_t p, int64_t n)
{
    int64_t P = parts->dim[1], T = parts->dim[2];

    return ((n / T * P + p) * T + n % T) * parts->dim[3];
}

/* The column that column `at` of a row of all heads has in the part of rank p; -1: that part lacks it. */
static int64_t part_column(const struct sh_op_attr *a, int64_t p, int64_t at)
{
    int64_t P = a->split.ranks, D = a->split.head_dim, q = a->split.heads * D, kv = a->split.kv_here * D, which;

    if (at < P * q)
        return at / q == p ? at % q : -1;
    at -= P * q;
    which = at / (a->split.kv_heads * D); /* keys or values */
    at = at % (a->split.kv_heads * D) - p * a->split.kv_heads / P * D;
    return at >= 0 && at < kv ? q + which * kv + at : -1;
}

sh_rc sh_ref_split_heads(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    int64_t row = x->dim[2];

    for (int64_t i = 0; i < sh_ref_elems(x); i++)
        for (int64_t p = 0; p < y->dim[1]; p++) {
            int64_t column = part_column(call->attr, p, i % row);
            if (column >= 0)
                sh_ref_set(y, part_row(y, p, i / row) + column, sh_ref_get(x, i));
        }
    return SH_OK;
}

sh_rc sh_ref_join_heads(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    int64_t row = y->dim[2];

    for (int64_t i = 0; i < sh_ref_elems(y); i++) {
        double sum = 0;
        for (int64_t p = 0; p < x->dim[1]; p++) {
            int64_t column = part_column(call->attr, p, i % row);
            if (column >= 0)
                sum += sh_ref_get(x, part_row(x, p, i / row) + column);
        }
        sh_ref_set(y, i, sum);
    }
    return SH_OK;
}

sh_rc sh_ref_split_kv(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0];
    int64_t row = x->dim[1], q = call->out[0].dim[1];

    for (int64_t i = 0; i < sh_ref_elems(x); i++) {
        int64_t n = i / row, at = i % row, right = at >= q;
        sh_ref_set(&call->out[right], right ? n * (row - q) + at - q : n * q + at, sh_ref_get(x, i));
    }
    return SH_OK;
}

sh_rc sh_ref_join_kv(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->out[0];
    int64_t row = x->dim[1], q = call->in[0].dim[1];

    for (int64_t i = 0; i < sh_ref_elems(x); i++) {
        int64_t n = i / row, at = i % row, right = at >= q;
        sh_ref_set(x, i, sh_ref_get(&call->in[right], right ? n * (row - q) + at - q : n * q + at));
    }
    return SH_OK;
}

/* Where element i of sequences [B,2PM,W] is among pieces [P,2B,M,W]: piece j of a sequence is the first of rank j, or the
 * second of rank 2P - 1 - j. */
static int64_t in_pieces(const struct sh_operand *pieces, int64_t i)
{
    int64_t P = pieces->dim[0], B = pieces->dim[1] / 2, elems = pieces->dim[2] * pieces->dim[3];
    int64_t b = i / (2 * P * elems), j = i / elems % (2 * P), second = j >= P, p = second ? 2 * P - 1 - j : j;

    return ((p * 2 + second) * B + b) * elems + i % elems;
}

sh_rc sh_ref_from_pieces(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[0], in_pieces(&call->in[0], i)));
    return SH_OK;
}

sh_rc sh_ref_to_pieces(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->in[0]); i++)
        sh_ref_set(&call->out[0], in_pieces(&call->out[0], i), sh_ref_get(&call->in[0], i));
    return SH_OK;
}

sh_rc sh_ref_copy(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->in[0], i));
    return SH_OK;
}

sh_rc sh_ref_accumulate(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++)
        sh_ref_set(&call->out[0], i, sh_ref_get(&call->out[0], i) + sh_ref_get(&call->in[0], i));
    return SH_OK;
}

/* Exact sums have the same bits in any order, so this one is not merely close to what other kernels give, but equal. */
sh_rc sh_ref_sumsq(const struct sh_op_call *call)
{
    struct sh_exact sum = {0};
    if (sh_op_adds(call, 0))
        sh_exact_get(&sum, call->out[0].data);
    sh_exact_add_squares(&sum, call->in[0].data, sh_ref_elems(&call->in[0]));
    sh_exact_put(&sum, call->out[0].data);
    return SH_OK;
}

/* The 22 parts of an exact sum become one double, rounded once. */
sh_rc sh_ref_exact_round(const struct sh_op_call *call)
{
    struct sh_exact sum;
    sh_exact_get(&sum, call->in[0].data);
    *(double *)call->out[0].data = sh_exact_round(&sum);
    return SH_OK;
}
