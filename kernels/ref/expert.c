/* What lies between a router's choice and its experts' products: the order of the rows, their load, and the bias that
 * evens it out; rows brought to the experts and back. */
#include "kernels/ref/ref.h"

/* Expert by expert, in the order of the tokens. */
sh_rc sh_ref_route_plan(const struct sh_op_call *call)
{
    const struct sh_operand *expert = &call->in[0], *first = &call->out[2];
    int64_t M = sh_ref_elems(expert), E = sh_ref_elems(first) - 1, row = 0;

    for (int64_t e = 0; e < E; e++) {
        sh_ref_set(first, e, (double)row);
        for (int64_t i = 0; i < M; i++)
            if ((int64_t)sh_ref_get(expert, i) == e) {
                sh_ref_set(&call->out[0], row, (double)i);
                sh_ref_set(&call->out[1], i, (double)row++);
            }
    }
    sh_ref_set(first, E, (double)row);
    return SH_OK;
}

/* Whole numbers in f64: exact, in any order. */
sh_rc sh_ref_route_load(const struct sh_op_call *call)
{
    const struct sh_operand *first = &call->in[0];

    for (int64_t e = 0; e < sh_ref_elems(&call->out[0]); e++)
        sh_ref_sum(call, 0, e, sh_ref_get(first, e + 1) - sh_ref_get(first, e));
    return SH_OK;
}

/* Wang et al., Auxiliary-loss-free load balancing (arXiv:2408.15664); the mean is taken out since only differences
 * choose. */
sh_rc sh_ref_route_bias(const struct sh_op_call *call)
{
    const struct sh_operand *load = &call->in[0], *bias = &call->out[0];
    int64_t E = sh_ref_elems(load);
    double step = (double)call->attr->route.step, mean = 0, sum = 0;

    for (int64_t e = 0; e < E; e++)
        mean += sh_ref_get(load, e) / (double)E;
    for (int64_t e = 0; e < E; e++) {
        double less = mean - sh_ref_get(load, e);
        sh_ref_set(bias, e, sh_ref_get(bias, e) + (less > 0 ? step : less < 0 ? -step : 0));
        sum += sh_ref_get(bias, e);
    }
    for (int64_t e = 0; e < E; e++)
        sh_ref_set(bias, e, sh_ref_get(bias, e) - sum / (double)E);
    return SH_OK;
}

sh_rc sh_ref_row_gather(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *order = &call->in[1], *xs = &call->out[0];
    int64_t C = xs->dim[1], M = xs->dim[0], k = M / x->dim[0];

    for (int64_t i = 0; i < M * C; i++)
        sh_ref_set(xs, i, sh_ref_get(x, (int64_t)sh_ref_get(order, i / C) / k * C + i % C));
    return SH_OK;
}

sh_rc sh_ref_row_sum(const struct sh_op_call *call)
{
    const struct sh_operand *ys = &call->in[0], *place = &call->in[1], *addend = &call->in[2], *y = &call->out[0];
    int64_t N = y->dim[0], C = y->dim[1], k = place->dim[1];

    for (int64_t i = 0; i < N * C; i++) {
        double sum = addend->data ? sh_ref_get(addend, i) : 0;
        for (int64_t j = 0; j < k; j++)
            sum += sh_ref_get(ys, (int64_t)sh_ref_get(place, i / C * k + j) * C + i % C);
        sh_ref_set(y, i, sum);
    }
    return SH_OK;
}
