/* One operation on both devices: the CPU's outputs are within a bound of the reference's, and their bits do not
 * depend on the number of threads, on the addresses of the operands, or on whether an output uses the storage of an
 * input. */
#ifndef SH_TESTS_OP_AGREE_H
#define SH_TESTS_OP_AGREE_H

#include "kernels/bound.h"
#include "tests/op/optest.h"

/* t: inputs, outputs and attr set, not yet run; stays unchanged. One bound for each of its n outputs, some of which
 * may be absent. In one more run input alias_in and output alias_out share their storage; -1: no such run. */
void agree(const struct optest *t, int n, const struct sh_bound *bound, int alias_in, int alias_out);

#endif
