/* The elementwise CPU kernels: the list of elem.h, with 1, 2 and 3 threads, and tests of the CPU alone. */
#include "tests/op/elem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Lengths around the pieces and vectors that the kernels work in, and row counts around the parts they are cut in. */
static const int64_t lengths[] = {1, 3, 17, 1023, 1024, 1025, 5000};
static const int64_t matrices[][2] = {{1, 1}, {3, 17}, {65, 33}, {130, 768}, {2, 3001}, {19, 1088}};

static void run(struct optest *t, const struct sh_kernel_table *table, int way)
{
    optest_run(t, table, way + 1);
}

static void embed_refuses(void **state)
{
    (void)state;
    struct optest t;
    optest_begin(&t, SH_OP_EMBED);
    optest_in_ints(&t, 0, -1, 0, DIMS(1, 2));
    optest_in(&t, 1, SH_F32, DIMS(7, 3));
    optest_out(&t, 0, SH_F32, DIMS(1, 2, 3));
    assert_int_equal(sh_kernels_cpu.run[SH_OP_EMBED](&t.call), SH_E_DATA);
    optest_end(&t);
}

/* 2 + 0.25 (10 - 2); then against the reference, with the parameters in one piece or in halves. */
static void average(void **state)
{
    static const int64_t some[] = {1, 17, 20011};
    static sh_bf16 high[20011];
    static int16_t low[20011];

    (void)state;
    optest_seed(5);
    for (int i = 0; i < 3; i++) {
        struct optest t, ref, halves;
        optest_begin(&t, SH_OP_EMA);
        t.attr.scale.by = 0.25f;
        optest_in(&t, 0, SH_F32, DIMS(some[i]));
        optest_out(&t, 0, SH_F32, DIMS(some[i]));
        optest_add_to(&t, 0);
        optest_set(&t.call.in[0], 0, 10);
        optest_set(&t.call.out[0], 0, 2);
        optest_copy(&ref, &t);
        optest_copy(&halves, &t);
        sh_floats_put((struct sh_floats){.high = high, .low = low}, some[i], t.call.in[0].data);
        halves.call.in[0] = (struct sh_operand){.data = high, .dtype = SH_BF16, .ndim = 1, .dim = {some[i]}};
        halves.call.in[1] = (struct sh_operand){.data = low, .dtype = SH_I16, .ndim = 1, .dim = {some[i]}};
        optest_run(&ref, &sh_kernels_ref, 1);
        optest_run(&t, &sh_kernels_cpu, 3);
        assert_int_equal(sh_kernels_cpu.run[SH_OP_EMA](&halves.call), SH_OK);
        assert_true(optest_get(&t.call.out[0], 0) == 4);
        optest_close(&ref, &t, 0, 4);
        optest_same(&t, &halves, 0);
        optest_end(&t);
        optest_end(&ref);
        optest_end(&halves);
    }
}

/* test_muon.c and test_code8.c have those whose operands differ. */
static bool is_elsewhere(enum sh_op_kind kind)
{
    return kind == SH_OP_MUON_MOMENTUM || kind == SH_OP_MUON_APPLY || kind == SH_OP_ADAMW_CODED ||
           kind == SH_OP_LION_CODED;
}

/* A kind that updates parameters is in the list, which all tests of updates use, and has a row by hand. */
static void all_updates_are_listed(void **state)
{
    int n = 0;

    (void)state;
    for (int k = 0; k < SH_OP_KINDS; k++)
        if (sh_op_info((enum sh_op_kind)k)->runs && !is_elsewhere((enum sh_op_kind)k)) {
            if (n == ELEM_UPDATES || elem_updates[n] != (enum sh_op_kind)k)
                fail_msg("%s is not in elem_updates", sh_op_info((enum sh_op_kind)k)->name);
            n++;
        }
    assert_int_equal(n, ELEM_UPDATES);
}

/* Three updates of one element by hand: weight decay before, in and after the gradient; and the sign of zero. */
static void updates_by_hand(void **state)
{
    (void)state;
    static const struct {
        enum sh_op_kind kind;
        double g[3], p[3], m[3];
    } rows[ELEM_UPDATES] = {
        /* g / 2 is 2 or -2; m = 0.5 * 2 + 0.5 g / 2, of which 1 - 0.5 is the weight so far; v = 0.75 * 4 + 0.25 * 4, of
         * which it is 1 - 0.75: the quotient is 4 / 4 or 0 */
        {SH_OP_ADAMW, {4, -4, 4}, {8 * (1 - 0.125 * 0.25) - 0.125, 8, 8 - 0.125}, {2, 0, 2}},
        /* g = 0.5 * 4 + 0.25 * 8, m = 0.5 * 2 + g, p = 8 - 0.125 m; without decay g = 2; a gradient of 0 */
        {SH_OP_SGD, {4, 4, 0}, {8 - 0.125 * 5, 8 - 0.125 * 3, 8 - 0.125 * 1}, {5, 3, 1}},
        /* u = sign(0.5 * 2 + 0.5 * g / 2): of 2 it is 1, of -4 -1, of -2 0; m = 0.75 * 2 + 0.25 * g / 2 */
        {SH_OP_LION, {4, -8, -4}, {8 * (1 - 0.125 * 0.25) - 0.125, 8 + 0.125, 8}, {2, 0.5, 1}},
    };
    for (size_t r = 0; r < ELEM_UPDATES; r++)
        for (int device = 0; device < 2; device++) {
            struct optest t;
            assert_int_equal(rows[r].kind, elem_updates[r]);
            elem_begin_update(&t, rows[r].kind, 3);
            t.scalars = (struct sh_op_scalars){.lr = 0.125f,
                                               .beta1 = 0.5f,
                                               .beta2 = 0.75f,
                                               .beta1_pow = 0.5,
                                               .beta2_pow = 0.75,
                                               .weight_decay = 0.25f,
                                               .grad_scale = 0.5f};
            t.runs[0] = (struct sh_decay_run){.begin = 0, .end = 1, .decay = true};
            t.runs[1] = (struct sh_decay_run){.begin = 1, .end = 3, .decay = false};
            for (int i = 0; i < 3; i++) {
                optest_set(&t.call.in[0], i, rows[r].g[i]);
                optest_set(&t.call.out[0], i, 8);
                optest_set(&t.call.out[1], i, 2);
                for (int o = 2; o < elem_written(rows[r].kind); o++)
                    optest_set(&t.call.out[o], i, 4);
            }
            optest_run(&t, device ? &sh_kernels_cpu : &sh_kernels_ref, 1);
            for (int i = 0; i < 3; i++) {
                assert_true(optest_get(&t.call.out[0], i) == rows[r].p[i]);
                assert_true(optest_get(&t.call.out[1], i) == rows[r].m[i]);
            }
            optest_end(&t);
        }
}

/* A parameter that is NaN stays NaN for readers of the upper half alone. */
static void check_shows_nan(enum sh_op_kind kind)
{
    enum { N = 200, AT = 150 };
    struct optest t, halves;
    elem_begin_update(&t, kind, N);
    t.runs[0].end = t.runs[1].begin = AT;
    t.runs[1].end = N;
    ((uint32_t *)t.call.out[1].data)[AT] = 0x7fffffff; /* a NaN that would round to -0 */
    optest_split_params(&halves, &t);
    optest_run(&halves, &sh_kernels_cpu, 2);
    for (int i = 0; i < N; i++)
        assert_true(isnan(optest_get(&halves.call.out[0], i)) == (i == AT));
    optest_end(&t);
    optest_end(&halves);
}

static void update_shows_nan(void **state)
{
    (void)state;
    for (int i = 0; i < ELEM_UPDATES; i++)
        check_shows_nan(elem_updates[i]);
}

/* Elements 3 and 4 are between the runs, 7 is after them. */
static void check_padding(struct optest *t, int outs)
{
    struct optest before;
    t->runs[0] = (struct sh_decay_run){.begin = 0, .end = 3, .decay = true};
    t->runs[1] = (struct sh_decay_run){.begin = 5, .end = 7, .decay = false};
    optest_copy(&before, t);
    optest_run(t, &sh_kernels_cpu, 2);
    for (int o = 0; o < outs; o++) {
        size_t size = (size_t)sh_dtype_bytes(t->call.out[o].dtype);
        bool upper = t->call.out[o].dtype == SH_BF16; /* may round to its old value */
        for (size_t i = 0; i < 8; i++) {
            const char *was = (char *)before.call.out[o].data + i * size;
            bool changed = memcmp((char *)t->call.out[o].data + i * size, was, size);
            bool mine = i < 3 || i == 5 || i == 6;
            assert_true(changed ? mine : !mine || upper);
        }
    }
    optest_end(&before);
}

static void update_leaves_padding(void **state)
{
    (void)state;
    for (int i = 0; i < ELEM_UPDATES; i++) {
        struct optest t, halves;
        elem_begin_update(&t, elem_updates[i], 8);
        optest_split_params(&halves, &t);
        check_padding(&t, elem_written(elem_updates[i]));
        check_padding(&halves, elem_written(elem_updates[i]) + 1);
        optest_end(&t);
        optest_end(&halves);
    }
}

/* The reference against itself: the list works for any table. */
static void reference(void **state)
{
    const struct elem mine = elem;

    elem.table = &sh_kernels_ref;
    elem.n_lengths = elem.n_matrices = 3;
    elem.few = true;
    elem_norm(state);
    elem_embed(state);
    elem_act(state);
    elem_update_in_halves(state);
    elem = mine;
}

/* All kinds that have activations. */
static void float16(void **state)
{
    static void (*const tests[])(void **) = {
        elem_norm, elem_qk_norm, elem_regroup,    elem_embed, elem_rope,    elem_heads,  elem_act,
        elem_bias, elem_vector,  elem_not_finite, elem_fused, elem_rope_at, elem_kv_put, elem_attention_cache,
        elem_pick, elem_pieces,  elem_sink,
    };

    elem.half = true;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        tests[i](state);
    elem.half = false;
}

/* The argument is a pattern for the names of the tests to run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ELEM_TESTS,
        cmocka_unit_test(elem_unpack_some),
        cmocka_unit_test(reference),
        cmocka_unit_test(float16),
        cmocka_unit_test(embed_refuses),
        cmocka_unit_test(average),
        cmocka_unit_test(update_leaves_padding),
        cmocka_unit_test(all_updates_are_listed),
        cmocka_unit_test(updates_by_hand),
        cmocka_unit_test(update_shows_nan),
    };

    elem = (struct elem){.table = &sh_kernels_cpu,
                         .run = run,
                         .lengths = lengths,
                         .n_lengths = 7,
                         .matrices = matrices,
                         .n_matrices = 6};
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
