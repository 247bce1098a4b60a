/* One operation on both devices: the CPU's outputs lie within a bound of the reference's, and their bits depend on
 * neither the number of threads, nor the addresses of the operands, nor an output in the storage of an input. */
#ifndef SH_TESTS_OP_AGREE_H
#define SH_TESTS_OP_AGREE_H

#include "tests/op/optest.h"

struct agree_bound {
    double atol, rtol; /* |ref - cpu| <= atol + rtol |ref| */
};

/* Sums of `terms` products of size 1 in f32, rounded twice to the output's type. */
struct agree_bound agree_sum(enum sh_dtype dtype, double terms);

/* t: inputs, outputs and attr set, not yet run; stays as it is. One bound for each of its n
 * outputs, of which some may be absent. Input alias_in and
 * output alias_out share their storage in one more run; -1: no such run. */
void agree(const struct optest *t, int n, const struct agree_bound *bound, int alias_in, int alias_out);

#endif
