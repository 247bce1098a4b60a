/* y = x W' + b, where W[o,i] is stored [O,I] as Llama does, or transposed, [I,O], as GPT-2 does (attr->linear.w_in_out). */
#include "kernels/ref/ref.h"

struct shape {
    int64_t N, I, O;
};

/* Element (o, i) in either storage. */
static int64_t weight_at(const struct sh_op_call *call, struct shape s, int64_t o, int64_t i)
{
    return call->attr->linear.w_in_out ? i * s.O + o : o * s.I + i;
}

/* N from the output, since a gradient's rows are those of y. */
static struct shape shape_of(const struct sh_operand *with_i, const struct sh_operand *with_o)
{
    int64_t I = with_i->dim[with_i->ndim - 1], O = with_o->dim[with_o->ndim - 1];
    return (struct shape){.N = sh_ref_elems(with_o) / O, .I = I, .O = O};
}

/* The bias is added in double as well, before the one rounding. */
sh_rc sh_ref_linear(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *w = &call->in[1], *b = &call->in[2], *y = &call->out[0];
    struct shape s = shape_of(x, y);

    for (int64_t n = 0; n < s.N; n++) {
        for (int64_t o = 0; o < s.O; o++) {
            double sum = b->data ? sh_ref_get(b, o) : 0;
            for (int64_t i = 0; i < s.I; i++)
                sum += sh_ref_get(x, n * s.I + i) * sh_ref_get(w, weight_at(call, s, o, i));
            sh_ref_set(y, n * s.O + o, sum);
        }
    }
    return SH_OK;
}

/* dx = dy W + dres */
sh_rc sh_ref_linear_bwd_x(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *w = &call->in[1], *dres = &call->in[2], *dx = &call->out[0];
    struct shape s = shape_of(dx, dy);

    for (int64_t n = 0; n < s.N; n++) {
        for (int64_t i = 0; i < s.I; i++) {
            double sum = dres->data ? sh_ref_get(dres, n * s.I + i) : 0;
            for (int64_t o = 0; o < s.O; o++)
                sum += sh_ref_get(dy, n * s.O + o) * sh_ref_get(w, weight_at(call, s, o, i));
            sh_ref_set(dx, n * s.I + i, sum);
        }
    }
    return SH_OK;
}

/* dW = dy' x */
sh_rc sh_ref_linear_bwd_w(const struct sh_op_call *call)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1];
    struct shape s = shape_of(x, dy);

    for (int64_t o = 0; o < s.O; o++) {
        for (int64_t i = 0; i < s.I; i++) {
            double sum = 0;
            for (int64_t n = 0; n < s.N; n++)
                sum += sh_ref_get(dy, n * s.O + o) * sh_ref_get(x, n * s.I + i);
            sh_ref_sum(call, 0, weight_at(call, s, o, i), sum);
        }
    }
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
