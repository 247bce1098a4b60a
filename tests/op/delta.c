#include "tests/op/delta.h"

#include "tests/op/gradient.h"

const enum sh_dtype delta_acts[] = {SH_F32, SH_BF16, SH_F16};

void delta_begin(struct optest *t, enum sh_op_kind kind, const struct delta_shape *s, double eps)
{
    optest_begin(t, kind);
    t->attr.delta.key_heads = s->K;
    t->attr.delta.heads = s->H;
    t->attr.delta.key_dim = s->D;
    t->attr.delta.value_dim = s->V;
    t->attr.delta.eps = (float)eps;
}

void delta_docs(struct optest *t, int i, const struct delta_shape *s)
{
    optest_in_ints(t, i, 0, 1, DIMS(s->B, s->T));
    for (int n = 0, first = 0; n < s->B * s->T; n++) {
        int row = n % s->T;

        first = row ? first : 0;
        for (int k = 0; k < 6; k++)
            first = s->begin[k] && s->begin[k] == row ? row : first;
        optest_set(&t->call.in[i], n, first);
    }
}

void delta_give(struct optest *t, const struct optest *f, int n, bool keeps, int like)
{
    const struct sh_operand *in = f->call.in, *out = f->call.out;

    optest_in(t, 0, out[0].dtype, out[0].ndim, out[0].dim);
    for (int i = 0; i < n; i++)
        gradient_give(t, 1 + i, &in[i]);
    if (keeps)
        gradient_give(t, 1 + n, &out[1]);
    for (int i = 0; i < like; i++)
        optest_out(t, i, in[i].dtype, in[i].ndim, in[i].dim);
}

void delta_take_rows(struct optest *t, int i, const struct sh_operand *from, int first, int n)
{
    for (int64_t k = 0; k < n * from->dim[2]; k++)
        optest_set(&t->call.in[i], k, optest_get(from, first * from->dim[2] + k));
}

void delta_agree(const struct delta_device *on, struct optest *f, const struct delta_shape *s, delta_back begin,
                 const struct delta_bounds *bounds)
{
    int alias = bounds->in_place ? 0 : -1;
    struct optest b;

    on->check(f, bounds->n_made, bounds->made, alias, alias);
    optest_run(f, &sh_kernels_ref, 1);
    begin(&b, f, SH_F32, s);
    on->check(&b, bounds->n_back, bounds->back, -1, -1);
    for (int k = bounds->adds; k < bounds->n_back; k++)
        optest_add_to(&b, k);
    if (bounds->adds < bounds->n_back)
        on->check(&b, bounds->n_back, bounds->back, -1, -1);
    optest_end(f);
    optest_end(&b);
}

static struct optest *forward;
static const struct sh_operand *up_stream;

static double objective(void)
{
    optest_run(forward, &sh_kernels_ref, 1);
    return gradient_dot(up_stream, &forward->call.out[0]);
}

void delta_gradients(struct optest *f, struct optest *back, int n, int other)
{
    forward = f;
    up_stream = &back->call.in[0];
    optest_run(back, &sh_kernels_ref, 1);
    for (int i = 0; i < n; i++)
        gradient_check(&f->call.in[i], &back->call.out[i], objective);
    if (other)
        gradient_check(&f->call.in[other], &back->call.out[n], objective);
    optest_end(f);
    optest_end(back);
}
