/* Muon's operations: momentum and step by hand and against the reference, with any cut of a shard; and orthogonal factors
 * of matrices that lie in any way among other elements. */
#include "kernels/cpu/cpu.h"
#include "kernels/muon.h"
#include "tests/op/muon.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const struct sh_kernel_table *const devices[] = {&sh_kernels_ref, &sh_kernels_cpu};

/* g = 0.5 * 8 is 4, m = 0.75 * 2 + 0.25 * 4, and one more step of it with nesterov. */
static void momentum_by_hand(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int nesterov = 0; nesterov < 2; nesterov++) {
            struct optest t;

            muon_begin(&t, SH_OP_MUON_MOMENTUM, 15, SH_F32);
            t.scalars = muon_scalars(nesterov);
            optest_set(&t.call.out[0], 0, 8);
            optest_set(&t.call.out[1], 0, 2);
            optest_run(&t, devices[d], 1);
            assert_true(optest_get(&t.call.out[1], 0) == 2.5);
            assert_true(optest_get(&t.call.out[0], 0) == (nesterov ? 0.25 * 4 + 0.75 * 2.5 : 2.5));
            optest_end(&t);
        }
}

/* The decay is lr * weight_decay, whatever the step. */
static void step_by_hand(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        struct optest t;

        muon_begin(&t, SH_OP_MUON_APPLY, 15, SH_F32);
        for (int64_t i = 0; i < 15; i++) {
            optest_set(&t.call.in[0], i, 4);
            optest_set(&t.call.out[0], i, 8);
        }
        optest_run(&t, devices[d], 1);
        assert_true(optest_get(&t.call.out[0], 0) == 8 * (1 - 0.125 * 0.25) - 0.5); /* decays */
        assert_true(optest_get(&t.call.out[0], 6) == 8);                            /* in no run */
        assert_true(optest_get(&t.call.out[0], 8) == 7.5);                          /* does not decay */
        optest_end(&t);
    }
}

/* Where step and parameter have one sign, and nowhere else. */
static void cautious_by_hand(void **state)
{
    static const double u[] = {4, 4, -4, -4, 0}, p[] = {8, -8, 8, -8, 8}, kept[] = {31. / 32, 1, 1, 31. / 32, 1};

    (void)state;
    for (int d = 0; d < 2; d++) {
        struct optest t;

        muon_begin(&t, SH_OP_MUON_APPLY, 15, SH_F32);
        t.scalars.cautious_decay = true;
        for (int64_t i = 0; i < 15; i++) {
            optest_set(&t.call.in[0], i, u[i % 5]);
            optest_set(&t.call.out[0], i, p[i % 5]);
        }
        optest_run(&t, devices[d], 1);
        for (int64_t i = 0; i < 5; i++)
            assert_true(optest_get(&t.call.out[0], i) == p[i] * kept[i] - 0.125 * u[i]);
        optest_end(&t);
    }
}

static void as_reference(void **state)
{
    static const int64_t lengths[] = {15, 1000, 20011};
    static const enum sh_op_kind kinds[] = {SH_OP_MUON_MOMENTUM, SH_OP_MUON_APPLY};

    (void)state;
    optest_seed(3);
    for (int i = 0; i < 6; i++) {
        struct optest ref, cpu, halves, joined;

        muon_begin(&ref, kinds[i % 2], lengths[i / 2], SH_F32);
        ref.scalars.cautious_decay = i / 2 == 2;
        optest_copy(&cpu, &ref);
        optest_run(&ref, &sh_kernels_ref, 1);
        optest_run(&cpu, &sh_kernels_cpu, 2);
        for (int o = 0; o <= (kinds[i % 2] == SH_OP_MUON_MOMENTUM); o++)
            optest_close(&ref, &cpu, o, 16);
        optest_end(&ref);
        optest_end(&cpu);
        if (kinds[i % 2] == SH_OP_MUON_MOMENTUM)
            continue;
        muon_begin(&cpu, kinds[i % 2], lengths[i / 2], SH_F32);
        optest_split_params(&halves, &cpu);
        optest_run(&cpu, &sh_kernels_cpu, 2);
        optest_run(&halves, &sh_kernels_cpu, 3);
        optest_join_params(&joined, &halves);
        optest_same(&cpu, &joined, 0);
        optest_end(&cpu);
        optest_end(&halves);
        optest_end(&joined);
    }
}

/* States in bfloat16 are rounded by bits of the element, so threads do not show. */
static void narrow_states(void **state)
{
    (void)state;
    optest_seed(4);
    for (int d = 0; d < 2; d++) {
        struct optest a, b;

        muon_begin(&a, SH_OP_MUON_MOMENTUM, 3000, SH_BF16);
        optest_copy(&b, &a);
        optest_run(&a, devices[d], 1);
        b.scalars.update++;
        optest_run(&b, devices[d], 2);
        optest_same(&a, &b, 0);
        assert_true(memcmp(a.call.out[1].data, b.call.out[1].data, 3000 * sizeof(sh_bf16)) != 0);
        optest_end(&a);
        optest_end(&b);
    }
}

/* ---- orthogonal factors ---- */

static void layouts_as_reference(void **state)
{
    (void)state;
    optest_seed(5);
    for (int kind = 0; kind < SH_ORTHO_KINDS; kind++) {
        struct optest ref, cpu, moved;

        muon_begin_matrices(&ref, kind, MUON_ROOM, 100, muon_layouts, MUON_LAYOUTS);
        optest_copy(&cpu, &ref);
        optest_copy(&moved, &ref);
        optest_shift(&moved, 3);
        optest_run(&ref, &sh_kernels_ref, 1);
        optest_run(&cpu, &sh_kernels_cpu, 1);
        optest_run(&moved, &sh_kernels_cpu, 3);
        optest_within(&ref, &cpu, 0, 2e-4, 2e-4);
        optest_same(&cpu, &moved, 0);
        optest_end(&ref);
        optest_end(&cpu);
        optest_end(&moved);
    }
}

/* A whole matrix is that of float64 up to the rounding of float32, whose effect the products do not multiply. The second
 * has several tiles, of which one is a copy. */
static void near_float64(void **state)
{
    const struct sh_matrix sizes[] = {muon_plain(0, 64, 224), muon_plain(0, 264, 268)};

    (void)state;
    optest_seed(7);
    for (int i = 0; i < SH_ORTHO_KINDS + 1; i++) {
        const struct sh_matrix *of = &sizes[i == SH_ORTHO_KINDS];
        int kind = i % SH_ORTHO_KINDS;
        struct optest ref, cpu;
        double off = 0, size = 0;

        muon_begin_matrices(&ref, kind, of->out * of->in, 0, of, 1);
        optest_copy(&cpu, &ref);
        optest_run(&ref, &sh_kernels_ref, 1);
        optest_run(&cpu, &sh_kernels_cpu, 2);
        for (int64_t e = 0; e < of->out * of->in; e++) {
            double right = optest_get(&ref.call.out[0], e), d = optest_get(&cpu.call.out[0], e) - right;

            off += d * d;
            size += right * right;
        }
        if (!(off <= 1e-10 * size))
            fail_msg("kind %d: %g off", kind, sqrt(off / size));
        optest_end(&ref);
        optest_end(&cpu);
    }
}

/* Elements of no matrix stay as they are: those that no layout names. */
static void others_stay(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        bool named[MUON_ROOM] = {false};
        struct optest t, was;

        muon_begin_matrices(&t, SH_ORTHO_SIMPLE, MUON_ROOM, 100, muon_layouts, MUON_LAYOUTS);
        optest_copy(&was, &t);
        for (int i = 0; i < MUON_LAYOUTS; i++)
            for (int64_t k = 0; k < muon_layouts[i].repeat; k++)
                for (int64_t e = 0; e < muon_layouts[i].out * muon_layouts[i].in; e++) {
                    int64_t n = sh_matrix_long(&muon_layouts[i]);
                    int64_t at = sh_matrix_place(&muon_layouts[i], k, e / n, e % n) - 100;

                    assert_false(named[at]); /* no element belongs to two */
                    named[at] = true;
                }
        optest_run(&t, devices[d], 2);
        for (int i = 0; i < MUON_ROOM; i++)
            assert_true((optest_get(&t.call.out[0], i) == optest_get(&was.call.out[0], i)) == !named[i]);
        optest_end(&t);
        optest_end(&was);
    }
}

/* How far U U' is from the unit matrix, in its largest element. */
static double off_unit(const struct sh_operand *u, int m, int n)
{
    double most = 0;

    for (int i = 0; i < m; i++)
        for (int j = 0; j < m; j++) {
            double sum = i == j ? -1 : 0;

            for (int k = 0; k < n; k++)
                sum += optest_get(u, i * n + k) * optest_get(u, j * n + k);
            most = fmax(most, fabs(sum));
        }
    return most;
}

/* quintic and polar_express come near to singular values of 1, however small the matrix is; simple only around it. */
static void becomes_orthogonal(void **state)
{
    static const double bound[SH_ORTHO_KINDS] = {0.6, 0.05, 0.3}, size[] = {1, 1e-30, 1e20};
    const struct sh_matrix of = muon_plain(0, 8, 40);

    (void)state;
    optest_seed(6);
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3 * SH_ORTHO_KINDS; i++) {
            struct optest t;

            muon_begin_matrices(&t, i / 3, 320, 0, &of, 1);
            optest_scale(&t.call.out[0], size[i % 3]);
            optest_run(&t, devices[d], 2);
            if (off_unit(&t.call.out[0], 8, 40) > bound[i / 3])
                fail_msg("kind %d, size %g: %g off", i / 3, size[i % 3], off_unit(&t.call.out[0], 8, 40));
            optest_end(&t);
        }
}

static void odd_matrices(void **state)
{
    const struct sh_matrix of = muon_plain(0, 5, 6);

    (void)state;
    for (int d = 0; d < 2; d++) {
        struct optest t;

        muon_begin_matrices(&t, SH_ORTHO_SIMPLE, 30, 0, &of, 1);
        optest_scale(&t.call.out[0], 0);
        optest_run(&t, devices[d], 1);
        for (int i = 0; i < 30; i++)
            assert_true(optest_get(&t.call.out[0], i) == 0);
        optest_set(&t.call.out[0], 4, NAN);
        optest_run(&t, devices[d], 1);
        assert_true(isnan(optest_get(&t.call.out[0], 4)) && isnan(optest_get(&t.call.out[0], 29)));
        optest_end(&t);
    }
}

/* More steps use the last triple again, and change the result. */
static void steps_count(void **state)
{
    const struct sh_matrix of = muon_plain(0, 5, 6);

    (void)state;
    for (int d = 0; d < 2; d++) {
        struct optest five, seven;

        muon_begin_matrices(&five, SH_ORTHO_QUINTIC, 30, 0, &of, 1);
        optest_copy(&seven, &five);
        seven.attr.ortho.steps = 7;
        optest_run(&five, devices[d], 1);
        optest_run(&seven, devices[d], 1);
        assert_true(memcmp(five.call.out[0].data, seven.call.out[0].data, 30 * sizeof(float)) != 0);
        optest_end(&five);
        optest_end(&seven);
    }
}

/* ---- rows ---- */

static void rows_as_reference(void **state)
{
    struct sh_matrix of[MUON_LAYOUTS];
    struct optest ref, cpu, moved;
    int64_t rows;

    (void)state;
    optest_seed(7);
    muon_begin_rows(&ref, of, &rows);
    optest_copy(&cpu, &ref);
    optest_copy(&moved, &ref);
    optest_shift(&moved, 3);
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_run(&cpu, &sh_kernels_cpu, 1);
    optest_run(&moved, &sh_kernels_cpu, 3);
    for (int o = 0; o < 2; o++) {
        optest_close(&ref, &cpu, o, 16);
        optest_same(&cpu, &moved, o);
    }
    optest_end(&ref);
    optest_end(&cpu);
    optest_end(&moved);
}

/* U = [[3, 4], [0, 2]] times a scale of 2. Means of squares 12.5 and 2 enter with 1/4, beside 1/2 and 6 with 3/4: v = 3.5
 * and 5. The norm stays sqrt(29). A matrix of zeros stays zero. */
static void rows_by_hand(void **state)
{
    static const double u[] = {3, 4, 0, 2}, v[] = {3.5, 5};
    const double norm = sqrt(29 / (25 / 3.5 + 4 / 5.));
    const struct sh_matrix of[2] = {{.out = 2,
                                     .in = 2,
                                     .row_step = 2,
                                     .col_step = 1,
                                     .block = 2,
                                     .block_stride = 2,
                                     .repeat = 1,
                                     .stride = 4,
                                     .scale = 2},
                                    {.at = 4,
                                     .out = 1,
                                     .in = 2,
                                     .row_step = 2,
                                     .col_step = 1,
                                     .block = 1,
                                     .block_stride = 1,
                                     .repeat = 1,
                                     .stride = 2,
                                     .scale = 2,
                                     .row = 2}};

    (void)state;
    for (int d = 0; d < 2; d++) {
        struct optest t;

        optest_begin(&t, SH_OP_ORTHO_ROWS);
        t.scalars.muon_beta2 = 0.75f;
        optest_out(&t, 0, SH_F32, DIMS(6));
        optest_add_to(&t, 0);
        optest_out(&t, 1, SH_F32, DIMS(3));
        optest_add_to(&t, 1);
        t.attr.ortho.count = 2;
        t.attr.ortho.most_long = 2;
        t.call.matrices = of;
        for (int i = 0; i < 6; i++)
            optest_set(&t.call.out[0], i, i < 4 ? 2 * u[i] : 0);
        for (int i = 0; i < 3; i++)
            optest_set(&t.call.out[1], i, i == 0 ? 0.5 : i == 1 ? 6 : 0);
        optest_run(&t, devices[d], 1);
        for (int i = 0; i < 4; i++)
            assert_true(fabs(optest_get(&t.call.out[0], i) - 2 * u[i] / sqrt(v[i / 2]) * norm) < 1e-5);
        for (int i = 0; i < 3; i++)
            assert_true(optest_get(&t.call.out[1], i) == (i < 2 ? v[i] : 0));
        assert_true(optest_get(&t.call.out[0], 4) == 0 && optest_get(&t.call.out[0], 5) == 0);
        assert_true(sh_op_cost(&t.call).flops == 3 * 6);
        optest_end(&t);
    }
}

/* Three products a step: 4 m^2 n + 2 m^3 operations. */
static void cost_of_rows(void **state)
{
    const struct sh_matrix of[2] = {muon_plain(0, 4, 10), muon_plain(40, 10, 4)};
    struct optest t;

    (void)state;
    muon_begin_matrices(&t, SH_ORTHO_SIMPLE, 80, 0, of, 2);
    assert_true(sh_op_cost(&t.call).flops == 2 * 5 * (4 * 16 * 10 + 2 * 64));
    optest_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(momentum_by_hand), cmocka_unit_test(step_by_hand),
        cmocka_unit_test(cautious_by_hand), cmocka_unit_test(as_reference),
        cmocka_unit_test(narrow_states),    cmocka_unit_test(layouts_as_reference),
        cmocka_unit_test(others_stay),      cmocka_unit_test(becomes_orthogonal),
        cmocka_unit_test(odd_matrices),     cmocka_unit_test(steps_count),
        cmocka_unit_test(cost_of_rows),     cmocka_unit_test(rows_as_reference),
        cmocka_unit_test(rows_by_hand),     cmocka_unit_test(near_float64),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
