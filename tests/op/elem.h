/* Test cases of the elementwise operations, shared by all devices. Each case compares a kernel with the reference:
 * f32 and bf16, odd shapes, += on and off, optional operands absent. The bits must not depend on how a kernel is run,
 * on the alignment of its operands, on running in place, or on fusing two operations.
 *
 * A test program fills `elem`, then runs ELEM_TESTS. */
#ifndef SH_TESTS_OP_ELEM_H
#define SH_TESTS_OP_ELEM_H

#include "tests/op/optest.h"

/* Ways to run a kernel that must give the same bits: 1, 2 and 3 threads on a CPU, different thread orders on a GPU. */
enum { ELEM_WAYS = 3 };

struct elem {
    const struct sh_kernel_table *table; /* fused kinds that it lacks are not tested */
    void (*run)(struct optest *t, const struct sh_kernel_table *table, int way);
    const int64_t *lengths; /* of vectors */
    const int64_t (*matrices)[2];
    int n_lengths, n_matrices;
    bool half;        /* the other activation type is f16 rather than bf16, in tests that have activations */
    bool exact_codes; /* an update rounds to codes as the reference does: products and sums are rounded one by one */
    bool few;         /* only the first shapes of the other tests too: a sanitizer makes them slow */
};
extern struct elem elem;

/* Run `before` in all ways and free it. terms: those of optest_close() for each output; 0: bit for bit. */
void elem_check(struct optest *before, const double terms[SH_OP_MAX_OUT]);
/* clang-format off */
#define TERMS(...) (const double[SH_OP_MAX_OUT]){__VA_ARGS__}
/* clang-format on */

/* The kinds that update parameters, all of them in the order of their numbers, and what each writes apart from low
 * halves: parameters and states. */
enum { ELEM_UPDATES = 3 };
extern const enum sh_op_kind elem_updates[ELEM_UPDATES];
int elem_written(enum sh_op_kind update);

/* An update of n elements, in three runs that leave some out. */
void elem_begin_update(struct optest *t, enum sh_op_kind kind, int64_t n);

/* Its states in bf16, each run belonging to a separate tensor that starts before the shard. */
void elem_narrow_states(struct optest *t);

/* Numbers from which an update makes states without rounding to f32, so that all devices round the same numbers to
 * bf16. */
void elem_make_exact(struct optest *t);

/* elem_coded.c: an update of n elements, a multiple of 64, with states in codes, in two runs, the second of which begins within
 * a block; some are in none. Numbers of which all devices round the same sums to codes. Compare with the reference, of whose
 * codes `most` may be off by one, and free `before`. */
void elem_begin_coded(struct optest *t, enum sh_op_kind kind, int64_t n);
void elem_make_exact_coded(struct optest *t);
void elem_check_coded(struct optest *before, int64_t most);

/* Run `before` in the ways that are left, which must give the bits of `one`. */
void elem_variants(const struct optest *before, const struct optest *one);

void elem_norm(void **state);
void elem_qk_norm(void **state);
void elem_qk_elsewhere(void **state);
void elem_regroup(void **state);
void elem_heads(void **state);
void elem_pieces(void **state);
void elem_embed(void **state);
void elem_rope(void **state);
void elem_rope_table(void **state);
void elem_act(void **state);
void elem_bias(void **state);
void elem_loss(void **state);
void elem_capped_loss(void **state);
void elem_vector(void **state);
void elem_update(void **state);
void elem_update_in_halves(void **state);
void elem_update_of_bf16_states(void **state);
void elem_update_of_codes(void **state);
void elem_codes(void **state);
void elem_not_finite(void **state);
void elem_fused(void **state);
void elem_unpack(void **state);
void elem_unpack_some(void **state); /* of a device that leaves out experts without rows */
/* elem_kv.c: kernels that continue a sequence from a cache */
void elem_rope_at(void **state);
void elem_kv_put(void **state);
void elem_attention_cache(void **state);
void elem_capped_cache(void **state);
void elem_pick(void **state);
void elem_sink(void **state);
/* elem_pair.c: the loss of pairs of answers */
void elem_pair(void **state);
void elem_pair_not_finite(void **state);
void elem_pair_slopes(void **state);
/* The last one has the largest blocks: after it the race detector of the GPU's emulation takes longer for
 * everything. */
#define ELEM_TESTS                                                                                               \
    cmocka_unit_test(elem_norm), cmocka_unit_test(elem_qk_norm), cmocka_unit_test(elem_qk_elsewhere),            \
        cmocka_unit_test(elem_regroup), cmocka_unit_test(elem_heads), cmocka_unit_test(elem_pieces),             \
        cmocka_unit_test(elem_rope), cmocka_unit_test(elem_rope_table), cmocka_unit_test(elem_act),              \
        cmocka_unit_test(elem_bias), cmocka_unit_test(elem_loss), cmocka_unit_test(elem_capped_loss),            \
        cmocka_unit_test(elem_vector), cmocka_unit_test(elem_update), cmocka_unit_test(elem_update_in_halves),   \
        cmocka_unit_test(elem_not_finite), cmocka_unit_test(elem_fused), cmocka_unit_test(elem_unpack),          \
        cmocka_unit_test(elem_rope_at), cmocka_unit_test(elem_kv_put), cmocka_unit_test(elem_attention_cache),   \
        cmocka_unit_test(elem_capped_cache), cmocka_unit_test(elem_pick), cmocka_unit_test(elem_sink),           \
        cmocka_unit_test(elem_pair), cmocka_unit_test(elem_pair_not_finite), cmocka_unit_test(elem_pair_slopes), \
        cmocka_unit_test(elem_update_of_bf16_states), cmocka_unit_test(elem_embed)

#endif
