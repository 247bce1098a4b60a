#include "tests/op/gradient.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

void gradient_copy(const struct sh_operand *to, const struct sh_operand *from)
{
    memcpy(to->data, from->data, (size_t)(optest_elems(from) * sh_dtype_bytes(from->dtype)));
}

void gradient_give(struct optest *t, int i, const struct sh_operand *from)
{
    optest_in(t, i, from->dtype, from->ndim, from->dim);
    gradient_copy(&t->call.in[i], from);
}

double gradient_dot(const struct sh_operand *a, const struct sh_operand *b)
{
    double sum = 0;

    for (int64_t i = 0; i < optest_elems(a); i++)
        sum += optest_get(a, i) * optest_get(b, i);
    return sum;
}

void gradient_check(const struct sh_operand *in, const struct sh_operand *grad, double (*L)(void))
{
    const double h = 0x1p-16;

    for (int64_t i = 0; i < optest_elems(in); i++) {
        double old = optest_get(in, i), up, want, got = optest_get(grad, i);

        optest_set(in, i, old + h);
        up = L();
        optest_set(in, i, old - h);
        want = (up - L()) / (2 * h);
        optest_set(in, i, old);
        if (!(fabs(want - got) <= 1e-6 * (1 + fabs(want))))
            fail_msg("the gradient of element %lld is %.9g, differences give %.9g", (long long)i, got, want);
    }
}
