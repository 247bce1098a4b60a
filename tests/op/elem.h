/* The elementwise operations, one list of calls for all devices: against the reference, f32 and bf16, odd shapes, += on and
 * off, optional operands absent; and the same bits in every way of running them, for shifted addresses, in place where the
 * table allows it, and for what two operations are fused to.
 *
 * A program fills `elem` before cmocka runs, and puts ELEM_TESTS into its list. */
#ifndef SH_TESTS_OP_ELEM_H
#define SH_TESTS_OP_ELEM_H

#include "tests/op/optest.h"

/* A device may be run in three ways that must not show in the bits: 1, 2 and 3 threads, or orders of threads. */
enum { ELEM_WAYS = 3 };

struct elem {
    const struct sh_kernel_table *table; /* fused kinds that it has not are left out */
    void (*run)(struct optest *t, const struct sh_kernel_table *table, int way);
    const int64_t *lengths;              /* of vectors */
    const int64_t (*matrices)[2];
    int n_lengths, n_matrices;
};
extern struct elem elem;

/* Run `before` in all ways and free it. terms: as optest_close wants them, for each output; 0 for exactly the same. */
void elem_check(struct optest *before, const double terms[SH_OP_MAX_OUT]);
#define TERMS(...) (const double[SH_OP_MAX_OUT]){__VA_ARGS__}

/* The kinds that update parameters, and what one writes but for low halves: parameters and states. */
enum { ELEM_UPDATES = 3 };
extern const enum sh_op_kind elem_updates[ELEM_UPDATES];
int elem_written(enum sh_op_kind update);

/* An update of n elements, in three runs that leave some out. */
void elem_begin_update(struct optest *t, enum sh_op_kind kind, int64_t n);

void elem_norm(void **state);
void elem_embed(void **state);
void elem_rope(void **state);
void elem_rope_table(void **state);
void elem_act(void **state);
void elem_bias(void **state);
void elem_vector(void **state);
void elem_update(void **state);
void elem_update_in_halves(void **state);
void elem_not_finite(void **state);
void elem_fused(void **state);
#define ELEM_TESTS                                                                                                 \
    cmocka_unit_test(elem_norm), cmocka_unit_test(elem_embed), cmocka_unit_test(elem_rope),                        \
        cmocka_unit_test(elem_rope_table), cmocka_unit_test(elem_act), cmocka_unit_test(elem_bias),                \
        cmocka_unit_test(elem_vector), cmocka_unit_test(elem_update), cmocka_unit_test(elem_update_in_halves),     \
        cmocka_unit_test(elem_not_finite), cmocka_unit_test(elem_fused)

#endif
