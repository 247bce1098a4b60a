/* Tools for tests of kernels: calls with random operands, run on one device or another, compared with a bound.
 *
 *     struct optest ref, cpu;
 *     optest_begin(&ref, SH_OP_GELU);
 *     optest_in(&ref, 0, SH_BF16, DIMS(17, 33));
 *     optest_out(&ref, 0, SH_BF16, DIMS(17, 33));
 *     optest_copy(&cpu, &ref);
 *     optest_run(&ref, &sh_kernels_ref, 1);
 *     optest_run(&cpu, &sh_kernels_cpu, 2);
 *     optest_close(&ref, &cpu, 0, 1);
 *     optest_end(&ref);
 *     optest_end(&cpu);
 *
 * Numbers come from one stream, which optest_seed() restarts, so that a run can be repeated. Outputs and scratch
 * start as NaN, which reveals anything that a kernel forgets to write, or reads before writing it. Each buffer ends
 * in guard bytes that optest_run() checks. A failed check fails the cmocka test. For one thread. */
#ifndef SH_TESTS_OP_OPTEST_H
#define SH_TESTS_OP_OPTEST_H

#include "kernels/bound.h"
#include "kernels/op.h"

enum { OPTEST_RUNS = 8 };

struct optest {
    struct sh_op_call call; /* attr, scalars and runs point into this structure after optest_begin and optest_copy */
    struct sh_op_attr attr;
    struct sh_op_scalars scalars;
    struct sh_decay_run runs[OPTEST_RUNS];
    void *owned[SH_OP_MAX_IN + SH_OP_MAX_OUT]; /* what to free */
};

/* Dimensions as the last arguments: DIMS(3, 5). */
/* clang-format off */
#define DIMS(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__}
/* clang-format on */

/* Restart the stream of random numbers. */
void optest_seed(uint64_t seed);
/* Approximately normal with deviation 1; an integer in [lo, hi). */
double optest_normal(void);
int64_t optest_int(int64_t lo, int64_t hi);

void optest_begin(struct optest *t, enum sh_op_kind kind);
void optest_end(struct optest *t);
/* A call with its own buffers and the same contents. */
void optest_copy(struct optest *to, const struct optest *from);

/* Input i with normal values (i32: 0, u8: any); integers in [lo, hi); output i, all NaN (-1 for integers). */
void optest_in(struct optest *t, int i, enum sh_dtype dtype, int ndim, const int64_t *dim);
void optest_in_ints(struct optest *t, int i, int64_t lo, int64_t hi, int ndim, const int64_t *dim);
void optest_out(struct optest *t, int i, enum sh_dtype dtype, int ndim, const int64_t *dim);
/* Give output i normal values and, if the kind makes it optional, set its bit in attr.accumulate. */
void optest_add_to(struct optest *t, int i);
/* The same call of an update with its parameters in halves, and the halves joined to f32 again. */
void optest_split_params(struct optest *to, const struct optest *from);
void optest_join_params(struct optest *to, const struct optest *from);
/* Let output `out` use the storage of input `in`. */
void optest_alias(struct optest *t, int in, int out);
/* Move every operand by `elems` elements from its 64-byte boundary (before optest_alias). */
void optest_shift(struct optest *t, int elems);

int64_t optest_elems(const struct sh_operand *operand);
double optest_get(const struct sh_operand *operand, int64_t i);
void optest_set(const struct sh_operand *operand, int64_t i, double value);
/* Multiply by a factor, rounding to the type. */
void optest_scale(const struct sh_operand *operand, double factor);

/* Run with that many threads, and with as much scratch as the table asks for. */
void optest_run(struct optest *t, const struct sh_kernel_table *device, int threads);

/* |a - b| <= atol + rtol |a| for all elements of output i; rtol is two roundings to the output's type, and atol is the
 * rounding of a sum of `terms` numbers of size 1 in f32. NaN and Inf must agree in kind. */
void optest_close(const struct optest *a, const struct optest *b, int i, double terms);
/* The same with a given atol and rtol, if the test can justify better ones. */
void optest_within(const struct optest *a, const struct optest *b, int i, double atol, double rtol);
/* Equal bit for bit. */
void optest_same(const struct optest *a, const struct optest *b, int i);

#endif
