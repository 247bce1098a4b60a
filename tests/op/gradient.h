/* Gradients of the reference against finite differences, in f64, for tests of kernels. A failed check fails the cmocka
 * test. */
#ifndef SH_TESTS_OP_GRADIENT_H
#define SH_TESTS_OP_GRADIENT_H

#include "tests/op/optest.h"

/* What one operand holds into another of the same type and size. */
void gradient_copy(const struct sh_operand *to, const struct sh_operand *from);

/* The same operand of another call as input i. */
void gradient_give(struct optest *t, int i, const struct sh_operand *from);

double gradient_dot(const struct sh_operand *a, const struct sh_operand *b);

/* grad against differences of the number that L() makes, by what `in` holds. */
void gradient_check(const struct sh_operand *in, const struct sh_operand *grad, double (*L)(void));

#endif
