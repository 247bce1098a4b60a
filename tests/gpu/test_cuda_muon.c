/* Muon's operations of CUDA against the reference, on the double of cuBLASLt: momentum and step with states in both types,
 * orthogonal factors of matrices that lie in any way, by products in float32 and in bfloat16, and rows by their means. The
 * order of threads does not show. */
#include "kernels/cuda/cuda.h"
#include "kernels/muon.h"
#include "src/base/number/rng.h"
#include "tests/gpu/optest_device.h"
#include "tests/op/muon.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return call->kind == SH_OP_ORTHO        ? sh_cuda_ortho_work_bytes(call)
           : call->kind == SH_OP_ORTHO_ROWS ? sh_cuda_ortho_rows_work_bytes(call)
                                            : 0;
}

/* clang-format off */
static const struct sh_kernel_table table = {
    .name = "cuda",
    .run = {
        [SH_OP_MUON_MOMENTUM] = sh_cuda_muon_momentum,
        [SH_OP_MUON_APPLY] = sh_cuda_muon_apply,
        [SH_OP_ORTHO] = sh_cuda_ortho,
        [SH_OP_ORTHO_ROWS] = sh_cuda_ortho_rows,
    },
    .prepare = sh_cuda_product_prepare,
    .work_bytes = work_bytes,
};
/* clang-format on */

/* With SHERD_FEW_SHAPES in the environment only some of each, for a simulator, which is slow. */
static bool few;

/* Outputs 0 to last of the call, in each order of threads, within that of the reference; and the same bits after a move. */
static void check(struct optest *ref, int last, double atol, double rtol)
{
    struct optest gpu[OPTEST_ORDERS];

    for (int way = 0; way < OPTEST_ORDERS; way++) {
        optest_copy(&gpu[way], ref);
        if (way == 1)
            optest_shift(&gpu[way], 3);
        optest_device_order(way);
        optest_device_run(&gpu[way], &table);
    }
    optest_device_order(0);
    optest_run(ref, &sh_kernels_ref, 1);
    for (int o = 0; o <= last; o++)
        for (int way = 0; way < OPTEST_ORDERS; way++) {
            optest_within(ref, &gpu[way], o, atol, rtol);
            optest_same(&gpu[0], &gpu[way], o);
        }
    for (int way = 0; way < OPTEST_ORDERS; way++)
        optest_end(&gpu[way]);
    optest_end(ref);
}

static void momentum_and_step(void **state)
{
    static const int64_t lengths[] = {15, 1000, 20011};

    (void)state;
    optest_seed(3);
    for (int i = 0; i < (few ? 1 : 3); i++)
        for (int cautious = 0; cautious < 2; cautious++) {
            struct optest t;

            muon_begin(&t, SH_OP_MUON_MOMENTUM, lengths[i], SH_F32);
            check(&t, 1, 0x1p-20, 0x1p-22);
            muon_begin(&t, SH_OP_MUON_APPLY, lengths[i], SH_F32);
            t.scalars.cautious_decay = cautious;
            check(&t, 0, 0x1p-20, 0x1p-22);
        }
}

/* Rounded by bits of the element: like the reference, but where its sum lies on the other side of a number. */
static void narrow_states(void **state)
{
    struct optest t;

    (void)state;
    optest_seed(4);
    muon_begin(&t, SH_OP_MUON_MOMENTUM, few ? 100 : 3000, SH_BF16);
    check(&t, 1, 0x1p-20, 0x1p-7);
}

static void layouts(void **state)
{
    (void)state;
    optest_seed(5);
    for (int kind = 0; kind < (few ? 1 : SH_ORTHO_KINDS); kind++) {
        struct optest t;

        muon_begin_matrices(&t, kind, MUON_ROOM, 100, muon_layouts, few ? 1 : MUON_LAYOUTS);
        check(&t, 0, 2e-4, 2e-4);
    }
}

/* Larger than what one block takes at once: wide, tall, stored [in,out], and heads whose rows lie in blocks. */
static void large(void **state)
{
    static const struct sh_matrix of[] = {
        {0, 40, 1100, 1100, 1, 40, 40, 1, 44000, 0.25f, 0, 0},
        {44000, 1100, 40, 40, 1, 1100, 1100, 1, 44000, 1, 0, 0},
        {88000, 1100, 33, 1, 1100, 1100, 1100, 1, 36300, 1, 0, 0},
        {124300, 16, 64, 64, 1, 8, 24, 2, 6144, 1, 0, 0},
    };

    (void)state;
    optest_seed(8);
    for (int i = 0; i < (few ? 0 : 4); i++) {
        struct optest t;

        muon_begin_matrices(&t, SH_ORTHO_POLAR_EXPRESS, 140000, 0, &of[i], 1);
        check(&t, 0, 2e-4, 2e-4);
    }
}

/* Products of bfloat16: each of five steps rounds three times, and small singular values grow with their rounding. */
static void narrow_products(void **state)
{
    (void)state;
    optest_seed(6);
    for (int kind = 0; kind < (few ? 1 : SH_ORTHO_KINDS); kind++) {
        struct optest t;

        muon_begin_matrices(&t, kind, MUON_ROOM, 100, muon_layouts, few ? 2 : MUON_LAYOUTS);
        t.attr.ortho.narrow = true;
        check(&t, 0, 0.12, 0);
    }
}

static void odd_matrices(void **state)
{
    const struct sh_matrix of = muon_plain(0, 5, 6);

    (void)state;
    for (int narrow = 0; narrow < 2; narrow++) {
        struct optest t;

        muon_begin_matrices(&t, SH_ORTHO_SIMPLE, 30, 0, &of, 1);
        t.attr.ortho.narrow = narrow;
        optest_scale(&t.call.out[0], 0);
        optest_device_run(&t, &table);
        for (int i = 0; i < 30; i++)
            assert_true(optest_get(&t.call.out[0], i) == 0);
        optest_set(&t.call.out[0], 4, NAN);
        optest_device_run(&t, &table);
        assert_true(isnan(optest_get(&t.call.out[0], 4)) && isnan(optest_get(&t.call.out[0], 29)));
        optest_end(&t);
    }
}

static void rows(void **state)
{
    struct sh_matrix of[MUON_LAYOUTS];
    struct optest t;
    int64_t n;

    (void)state;
    optest_seed(7);
    muon_begin_rows(&t, of, &n);
    t.call.matrices = of + (few ? 3 : 0); /* a row, and one that is stored [in,out] */
    t.attr.ortho.count = few ? 2 : MUON_LAYOUTS;
    check(&t, 1, 16 * 0x1p-23, 4 * 0x1p-23);
}

/* More rows, and more elements of a row, than a block has threads, in both orders. */
static void many_rows(void **state)
{
    static const struct sh_matrix of[] = {
        {0, 1100, 40, 40, 1, 1100, 1100, 1, 44000, 0.25f, 0, 1100},
        {0, 1100, 40, 1, 1100, 1100, 1100, 1, 44000, 0.25f, 0, 1100},
        {0, 20, 1300, 1300, 1, 20, 20, 1, 26000, 1, 0, 20},
        {0, 33, 1300, 1, 33, 33, 33, 1, 42900, 1, 0, 33},
    };

    (void)state;
    optest_seed(9);
    for (int i = 0; i < (few ? 0 : 4); i++) {
        struct optest t;

        optest_begin(&t, SH_OP_ORTHO_ROWS);
        t.scalars.muon_beta2 = 0.75f;
        optest_out(&t, 0, SH_F32, DIMS(44000));
        optest_add_to(&t, 0);
        optest_out(&t, 1, SH_F32, DIMS(1100));
        optest_add_to(&t, 1);
        for (int k = 0; k < 1100; k++)
            optest_set(&t.call.out[1], k, 0.125 + (double)(k % 7));
        t.attr.ortho.count = 1;
        t.attr.ortho.most_long = 1300;
        t.call.matrices = &of[i];
        check(&t, 1, 16 * 0x1p-23, 4 * 0x1p-23);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(momentum_and_step),
        cmocka_unit_test(narrow_states),
        cmocka_unit_test(layouts),
        cmocka_unit_test(large),
        cmocka_unit_test(narrow_products),
        cmocka_unit_test(odd_matrices),
        cmocka_unit_test(rows),
        cmocka_unit_test(many_rows),
    };

    few = getenv("SHERD_FEW_SHAPES") != NULL;
    return optest_device_there() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
