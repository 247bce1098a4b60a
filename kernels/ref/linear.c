/* y = x W' + b. The weight W[o,i] is stored [O,I] as in Llama, or transposed, [I,O], as in GPT-2
 * (attr->linear.w_in_out). */
#include "kernels/ref/ref.h"

#include "src/base/mem.h"

#include <stdlib.h>

struct shape {
    int64_t N, I, O;
};

/* Element (o, i) in either storage. */
static int64_t weight_at(const struct sh_op_call *call, struct shape s, int64_t o, int64_t i)
{
    return call->attr->linear.w_in_out ? i * s.O + o : o * s.I + i;
}

/* N is taken from the output side, since a gradient has the rows of y. */
static struct shape shape_of(const struct sh_operand *with_i, const struct sh_operand *with_o)
{
    int64_t I = with_i->dim[with_i->ndim - 1], O = with_o->dim[with_o->ndim - 1];
    return (struct shape){.N = sh_ref_elems(with_o) / O, .I = I, .O = O};
}

/* c [rows, cols] += a [rows, inner] b [inner, cols], each element of c summed in the order of `inner`. */
static void add_product(int64_t rows, int64_t inner, int64_t cols, const double *a, const double *b, double *c)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < inner; k++)
            for (int64_t j = 0; j < cols; j++)
                c[r * cols + j] += a[r * inner + k] * b[k * cols + j];
}

/* The operand as doubles, [rows, cols] or turned [cols, rows]; the caller frees it. Zeros if the operand is absent. */
static double *doubles_of(const struct sh_operand *t, int64_t rows, int64_t cols, bool turned)
{
    double *d = sh_calloc((size_t)(rows * cols), sizeof *d);

    for (int64_t i = 0; t->data && i < rows * cols; i++)
        d[turned ? i % cols * rows + i / cols : i] = sh_ref_get(t, i);
    return d;
}

/* The weight as [O,I], or turned. */
static double *weight_of(const struct sh_op_call *call, const struct sh_operand *w, struct shape s, bool turned)
{
    bool in_out = call->attr->linear.w_in_out;

    return doubles_of(w, in_out ? s.I : s.O, in_out ? s.O : s.I, turned != in_out);
}

/* The bias is added in double as well, before the one rounding. */
sh_rc sh_ref_linear(const struct sh_op_call *call)
{
    const struct sh_operand *b = &call->in[2], *y = &call->out[0];
    struct shape s = shape_of(&call->in[0], y);
    double *x = doubles_of(&call->in[0], s.N, s.I, false), *w = weight_of(call, &call->in[1], s, true);
    double *sums = sh_calloc((size_t)(s.N * s.O), sizeof *sums);

    for (int64_t i = 0; b->data && i < s.N * s.O; i++)
        sums[i] = sh_ref_get(b, i % s.O);
    add_product(s.N, s.I, s.O, x, w, sums);
    for (int64_t i = 0; i < s.N * s.O; i++)
        sh_ref_set(y, i, sums[i]);
    free(sums);
    free(w);
    free(x);
    return SH_OK;
}

/* dx = dy W + dres */
sh_rc sh_ref_linear_bwd_x(const struct sh_op_call *call)
{
    const struct sh_operand *dx = &call->out[0];
    struct shape s = shape_of(dx, &call->in[0]);
    double *dy = doubles_of(&call->in[0], s.N, s.O, false), *w = weight_of(call, &call->in[1], s, false);
    double *sums = doubles_of(&call->in[2], s.N, s.I, false);

    add_product(s.N, s.O, s.I, dy, w, sums);
    for (int64_t i = 0; i < s.N * s.I; i++)
        sh_ref_set(dx, i, sums[i]);
    free(sums);
    free(w);
    free(dy);
    return SH_OK;
}

/* dW = dy' x */
sh_rc sh_ref_linear_bwd_w(const struct sh_op_call *call)
{
    struct shape s = shape_of(&call->in[1], &call->in[0]);
    double *dy = doubles_of(&call->in[0], s.N, s.O, true), *x = doubles_of(&call->in[1], s.N, s.I, false);
    double *sums = sh_calloc((size_t)(s.O * s.I), sizeof *sums);

    add_product(s.O, s.N, s.I, dy, x, sums);
    for (int64_t o = 0; o < s.O; o++)
        for (int64_t i = 0; i < s.I; i++)
            sh_ref_sum(call, 0, weight_at(call, s, o, i), sums[o * s.I + i]);
    free(sums);
    free(x);
    free(dy);
    return SH_OK;
}

/* db = sum of dy over the rows */
sh_rc sh_ref_bias_bwd(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0];
    int64_t O = sh_ref_elems(&call->out[0]), N = sh_ref_elems(dy) / O;

    for (int64_t o = 0; o < O; o++) {
        double sum = 0;
        for (int64_t n = 0; n < N; n++)
            sum += sh_ref_get(dy, n * O + o);
        sh_ref_sum(call, 0, o, sum);
    }
    return SH_OK;
}
