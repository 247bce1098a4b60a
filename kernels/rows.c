#include "kernels/rows.h"

#include <math.h>

bool sh_rows_in(const struct sh_operand_row *row)
{
    char letter = sh_formula_letter(&row->dim[0]);

    return row->any_shape ? letter == 'n' : letter == 'N';
}

/* Outputs are rows, or sums over rows in f32. A sum in another type, such as that of losses, has an order of its own. */
bool sh_rows_are_local(enum sh_op_kind kind)
{
    const struct sh_op_info *info = sh_op_info(kind);
    const struct sh_op_shape *shape = sh_op_shape(kind);
    bool any = false;

    for (int i = 0; i < shape->n_in; i++)
        any |= sh_rows_in(&shape->in[i]);
    for (int i = 0; i < shape->n_out; i++)
        if (!sh_rows_in(&shape->out[i]) && !(shape->out[i].adds && shape->out[i].dtype == SH_F32))
            return false;
    return any && !info->together && !info->marker && !sh_op_starts(info);
}

/* The sums over rows that a call makes, as bits of `accumulate`. */
static unsigned sums_of(const struct sh_op_call *call)
{
    const struct sh_op_shape *shape = sh_op_shape(call->kind);
    unsigned sums = 0;

    for (int i = 0; i < shape->n_out; i++)
        sums |= (unsigned)(call->out[i].ndim && !sh_rows_in(&shape->out[i])) << i;
    return sums;
}

static int64_t rows_of(const struct sh_op_call *call)
{
    const struct sh_op_shape *shape = sh_op_shape(call->kind);

    for (int i = 0; i < shape->n_in; i++)
        if (call->in[i].ndim && sh_rows_in(&shape->in[i]) && !shape->in[i].any_shape)
            return call->in[i].dim[0];
    return 0;
}

int64_t sh_rows_to_divide(const struct sh_op_call *call)
{
    int64_t block = call->attr->row_block, n = block ? rows_of(call) : 0;

    return n > block && sums_of(call) ? n : 0;
}

/* Reduce an operand to `n` of its rows. */
static void reduce(const struct sh_operand_row *row, int64_t first, int64_t n, struct sh_operand *t)
{
    int64_t bytes = sh_dtype_bytes(t->dtype);

    if (!t->ndim || !sh_rows_in(row))
        return;
    for (int i = 1; i < t->ndim; i++)
        bytes *= t->dim[i];
    if (t->data)
        t->data = (char *)t->data + first * bytes;
    t->dim[0] = n;
}

/* The call on rows [first, first + n). `attr` is its storage; blocks after the first are added. */
static struct sh_op_call part_of(const struct sh_op_call *call, int64_t first, int64_t n, struct sh_op_attr *attr)
{
    const struct sh_op_shape *shape = sh_op_shape(call->kind);
    struct sh_op_call part = *call;

    for (int i = 0; i < shape->n_in; i++)
        reduce(&shape->in[i], first, n, &part.in[i]);
    for (int i = 0; i < shape->n_out; i++)
        reduce(&shape->out[i], first, n, &part.out[i]);
    *attr = *call->attr;
    attr->row_block = 0;
    if (first)
        attr->accumulate |= sums_of(call);
    part.attr = attr;
    return part;
}

static float or_float(double number, float usual)
{
    return isnan(number) ? usual : (float)number;
}

/* The scalars of an update for a group. */
static struct sh_op_scalars scalars_of(const struct sh_op_call *call, int group)
{
    const struct sh_group_numbers *g = &call->groups[group - 1];
    struct sh_op_scalars s = *call->scalars;

    s.lr = isnan(g->lr) ? s.lr : (float)((double)s.lr * g->lr);
    s.weight_decay = or_float(g->weight_decay, s.weight_decay);
    s.adam_eps = or_float(g->eps, s.adam_eps);
    s.beta1 = or_float(g->beta1, s.beta1);
    s.beta2 = or_float(g->beta2, s.beta2);
    s.beta1_pow = isnan(g->beta1) ? s.beta1_pow : pow(g->beta1, (double)s.update);
    s.beta2_pow = isnan(g->beta2) ? s.beta2_pow : pow(g->beta2, (double)s.update);
    return s;
}

/* An update for runs of several groups: neighbours of one group together. */
static sh_rc run_groups(sh_kernel kernel, const struct sh_op_call *call)
{
    int n = call->attr->runs.count;

    for (int first = 0, end; first < n; first = end) {
        struct sh_op_attr attr = *call->attr;
        struct sh_op_call part = *call;
        struct sh_op_scalars scalars;

        for (end = first + 1; end < n && call->runs[end].group == call->runs[first].group;)
            end++;
        attr.runs.count = end - first;
        part.attr = &attr;
        part.runs = call->runs + first;
        if (call->runs[first].group) {
            scalars = scalars_of(call, call->runs[first].group);
            part.scalars = &scalars;
        }
        SH_TRY(kernel(&part));
    }
    return SH_OK;
}

sh_rc sh_rows_run(sh_kernel kernel, const struct sh_op_call *call)
{
    int64_t n = sh_rows_to_divide(call), block = call->attr->row_block;

    if (!n && sh_op_info(call->kind)->runs && call->groups)
        return run_groups(kernel, call);
    if (!n)
        return kernel(call);
    for (int64_t first = 0; first < n; first += block) {
        struct sh_op_attr attr;
        struct sh_op_call part = part_of(call, first, n - first < block ? n - first : block, &attr);

        SH_TRY(kernel(&part));
    }
    return SH_OK;
}

/* The first block, one that is added to it, and the last: the others are as large as the second. */
int64_t sh_rows_work_bytes(const struct sh_kernel_table *kernels, const struct sh_op_call *call, int threads)
{
    int64_t n = sh_rows_to_divide(call), block = call->attr->row_block, last = n ? (n - 1) / block * block : 0;
    const int64_t begin[] = {0, block, last}, end[] = {block, block + block, n};
    int64_t most = 0;

    if (!n)
        return kernels->work_bytes(call, threads);
    for (int i = 0; i < 3; i++) {
        struct sh_op_attr attr;
        struct sh_op_call part = part_of(call, begin[i], (end[i] < n ? end[i] : n) - begin[i], &attr);
        int64_t bytes = kernels->work_bytes(&part, threads);

        most = bytes > most ? bytes : most;
    }
    return most;
}
