/* The gated delta rule and the state-space dual form of CUDA, and what belongs to it, against the reference: the cases that the CPU has, wide heads, texts
 * that go on, and a document that is packed with others. The order of threads does not show. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/delta/scan.h"
#include "tests/gpu/optest_device.h"
#include "tests/op/delta_rule.h"
#include "tests/op/gradient.h"
#include "tests/op/heads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return call->kind == SH_OP_GATED_DELTA_BWD  ? sh_cuda_gated_delta_bwd_work_bytes(call)
           : call->kind == SH_OP_SCAN_BWD       ? sh_cuda_scan_bwd_work_bytes(call)
           : call->kind == SH_OP_SHORT_CONV_BWD ? sh_cuda_short_conv_bwd_work_bytes(call)
           : call->kind == SH_OP_GATED_NORM_BWD || call->kind == SH_OP_GATE_NORM_BWD
               ? sh_cuda_gated_norm_bwd_work_bytes(call)
               : 0;
}

/* clang-format off */
static const struct sh_kernel_table table = {
    .name = "cuda",
    .run = {
        [SH_OP_GATED_DELTA] = sh_cuda_gated_delta,
        [SH_OP_GATED_DELTA_BWD] = sh_cuda_gated_delta_bwd,
        [SH_OP_GATED_DELTA_CACHE] = sh_cuda_gated_delta_cache,
        [SH_OP_SCAN] = sh_cuda_scan,
        [SH_OP_SCAN_BWD] = sh_cuda_scan_bwd,
        [SH_OP_SCAN_CACHE] = sh_cuda_scan_cache,
        [SH_OP_SHORT_CONV] = sh_cuda_short_conv,
        [SH_OP_SHORT_CONV_BWD] = sh_cuda_short_conv_bwd,
        [SH_OP_SHORT_CONV_CACHE] = sh_cuda_short_conv_cache,
        [SH_OP_GATED_NORM] = sh_cuda_gated_norm,
        [SH_OP_GATED_NORM_BWD] = sh_cuda_gated_norm_bwd,
        [SH_OP_GATE] = sh_cuda_gate,
        [SH_OP_GATE_BWD] = sh_cuda_gate_bwd,
        [SH_OP_SPLIT_GATE] = sh_cuda_split_gate,
        [SH_OP_JOIN_GATE] = sh_cuda_join_gate,
        [SH_OP_GATE_NORM] = sh_cuda_gate_norm,
        [SH_OP_GATE_NORM_BWD] = sh_cuda_gate_norm_bwd,
        [SH_OP_LATENT_HEADS] = sh_cuda_latent_heads,
        [SH_OP_LATENT_HEADS_BWD] = sh_cuda_latent_heads_bwd,
        [SH_OP_LATENT_VALUES] = sh_cuda_latent_values,
        [SH_OP_LATENT_VALUES_BWD] = sh_cuda_latent_values_bwd,
        [SH_OP_VALUE_NORM] = sh_cuda_value_norm,
        [SH_OP_VALUE_NORM_BWD] = sh_cuda_value_norm_bwd,
        [SH_OP_SCALE_BY] = sh_cuda_scale_by,
    },
    .work_bytes = work_bytes,
};
/* clang-format on */

/* In each order of threads, and once with other addresses: within the bounds, and the same bits. */
static void check(const struct optest *t, int n, const struct sh_bound *bound, int alias_in, int alias_out)
{
    struct optest ref, gpu[OPTEST_ORDERS];

    optest_copy(&ref, t);
    optest_run(&ref, &sh_kernels_ref, 1);
    for (int way = 0; way < OPTEST_ORDERS; way++) {
        optest_copy(&gpu[way], t);
        if (way == 1)
            optest_shift(&gpu[way], 3);
        if (way == 1 && alias_in >= 0)
            optest_alias(&gpu[way], alias_in, alias_out);
        optest_device_order(way);
        optest_device_run(&gpu[way], &table);
    }
    optest_device_order(0);
    for (int o = 0; o < n; o++)
        for (int way = 0; way < OPTEST_ORDERS && t->call.out[o].data; way++) {
            optest_within(&ref, &gpu[way], o, bound[o].atol, bound[o].rtol);
            optest_same(&gpu[0], &gpu[way], o);
        }
    for (int way = 0; way < OPTEST_ORDERS; way++)
        optest_end(&gpu[way]);
    optest_end(&ref);
}

/* Kernels have no halves; with SHERD_FEW_SHAPES in the environment there are fewer shapes, for a simulator, which is
 * slow. */
static struct delta_device gpu = {check, DELTA_ACTS - 1, false};

static void rule(void **state)
{
    (void)state;
    delta_rule(&gpu);
}

static void scan(void **state)
{
    (void)state;
    delta_scan(&gpu);
}

static void convolution(void **state)
{
    (void)state;
    delta_convolution(&gpu);
}

static void norms(void **state)
{
    (void)state;
    delta_norms(&gpu);
    delta_gate_norms(&gpu);
}

static void gates(void **state)
{
    (void)state;
    delta_gates(&gpu);
}

static void gates_apart(void **state)
{
    (void)state;
    delta_gates_apart(&gpu);
}

static void latent_heads(void **state)
{
    (void)state;
    heads_latent_cases(&gpu);
}

static void value_norms(void **state)
{
    (void)state;
    heads_value_norms(&gpu);
}

static void factors_of_blocks(void **state)
{
    (void)state;
    heads_factors(&gpu);
}

/* Backwards, over a window of rows: what goes into a document's rows does not depend on the text in front of it. */
static void packed_back(void)
{
    enum { FIRST = 37, N = 560, H = 2, D = 5, V = 6, ROW = H * V + 2 * D };
    const struct delta_shape all = {1, FIRST + N, 1, H, D, V, {FIRST}}, one = {1, N, 1, H, D, V, {0}};
    struct optest f[2], b[2];

    optest_seed(84);
    for (int i = 0; i < 2; i++) {
        delta_begin_scan(&f[i], SH_F32, SH_F32, i ? &one : &all, -1);
        if (i) {
            delta_take_rows(&f[1], 0, &f[0].call.in[0], FIRST, N);
            delta_take_rows(&f[1], 1, &f[0].call.in[1], FIRST, N);
            gradient_copy(&f[1].call.in[2], &f[0].call.in[2]);
        }
        optest_device_run(&f[i], &table);
        delta_begin_scan_bwd(&b[i], &f[i], SH_F32, i ? &one : &all);
        if (i)
            delta_take_rows(&b[1], 0, &b[0].call.in[0], FIRST, N);
        optest_device_run(&b[i], &table);
    }
    assert_memory_equal((float *)b[0].call.out[0].data + FIRST * ROW, b[1].call.out[0].data, N * ROW * sizeof(float));
    assert_memory_equal((float *)b[0].call.out[1].data + FIRST * H, b[1].call.out[1].data, N * H * sizeof(float));
    for (int i = 0; i < 2; i++) {
        optest_end(&f[i]);
        optest_end(&b[i]);
    }
}

/* Rows from 37 on are a document. */
static void packed(bool space)
{
    enum { FIRST = 37 };
    int n = space ? 183 : 73, rows = FIRST + n;
    const struct delta_shape all = {1, rows, 1, 2, 16, 40, {FIRST}}, one = {1, n, 1, 2, 16, 40, {0}};
    struct optest whole, alone;

    optest_seed(83);
    (space ? delta_begin_scan : delta_begin_delta)(&whole, SH_F32, SH_F32, &all, -1);
    (space ? delta_begin_scan : delta_begin_delta)(&alone, SH_F32, SH_F32, &one, -1);
    delta_take_rows(&alone, 0, &whole.call.in[0], FIRST, n);
    delta_take_rows(&alone, 1, &whole.call.in[1], FIRST, n);
    gradient_copy(&alone.call.in[space ? 2 : 3], &whole.call.in[space ? 2 : 3]);
    optest_device_run(&whole, &table);
    optest_device_run(&alone, &table);
    assert_memory_equal((float *)whole.call.out[0].data + FIRST * 80, alone.call.out[0].data,
                        (size_t)n * 80 * sizeof(float));
    optest_end(&whole);
    optest_end(&alone);
}

static void packed_is_alone(void **state)
{
    (void)state;
    packed(false);
    packed(true);
    packed_back();
}

/* ---- texts that go on ---- */

/* The first begins, the second has no rows, others are anywhere. */
static void give_places(struct optest *t, int at, int count, const struct delta_shape *s)
{
    optest_in_ints(t, at, 0, 3, DIMS(s->B, s->T));
    optest_in_ints(t, count, 0, s->T + 1, DIMS(s->B));
    optest_set(&t->call.in[at], 0, 0);
    optest_set(&t->call.in[count], 0, s->T);
    if (s->B > 1)
        optest_set(&t->call.in[count], 1, 0);
}

static void going_on(void **state)
{
    static const struct delta_shape shapes[] = {
        {3, 5, 1, 2, 16, 24, {0}}, {2, 1, 1, 1, 4, 4, {0}}, {3, 70, 2, 4, 72, 40, {0}}};

    (void)state;
    optest_seed(91);
    for (int i = 0; i < (gpu.few ? 1 : 3) * gpu.acts; i++) {
        const struct delta_shape *s = &shapes[i / gpu.acts];
        enum sh_dtype act = delta_acts[i % gpu.acts];
        /* Of a state space as in delta_scan: nothing divides what it writes. */
        const struct sh_bound made[][2] = {{sh_bound_sum(act, 64), sh_bound_sum(SH_F32, 64)},
                                           {sh_bound_sum(act, 512), sh_bound_sum(SH_F32, 256)}};
        const struct sh_bound rows[] = {made[0][0], {0, 0}};
        struct optest t;

        for (int space = 0; space < 2; space++) {
            delta_begin(&t, space ? SH_OP_SCAN_CACHE : SH_OP_GATED_DELTA_CACHE, s, 0);
            t.attr.delta.least = 0.3f * space;
            optest_in(&t, 0, act, DIMS(s->B, s->T, 2 * s->K * s->D + s->H * s->V));
            optest_in(&t, 1, act, DIMS(s->B, s->T, (2 - space) * s->H));
            optest_in(&t, 2, act, DIMS((1 + 2 * space) * s->H));
            if (!space)
                optest_in(&t, 3, act, DIMS(s->H));
            give_places(&t, 4 - space, 5 - space, s);
            optest_out(&t, 0, act, DIMS(s->B, s->T, s->H * s->V));
            optest_out(&t, 1, SH_F32, DIMS(s->B, s->H * s->D * s->V));
            optest_add_to(&t, 1);
            check(&t, 2, made[space], -1, -1);
            optest_end(&t);
        }
        optest_begin(&t, SH_OP_SHORT_CONV_CACHE);
        optest_in(&t, 0, act, DIMS(s->B, s->T, s->V));
        optest_in(&t, 1, act, DIMS(s->V, 1, 4));
        give_places(&t, 2, 4, s);
        optest_in(&t, 3, act, DIMS(s->V));
        optest_out(&t, 0, act, DIMS(s->B, s->T, s->V));
        optest_out(&t, 1, act, DIMS(s->B, 3, s->V));
        optest_add_to(&t, 1);
        check(&t, 2, rows, -1, -1);
        optest_end(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rule),
        cmocka_unit_test(scan),
        cmocka_unit_test(convolution),
        cmocka_unit_test(norms),
        cmocka_unit_test(gates),
        cmocka_unit_test(gates_apart),
        cmocka_unit_test(packed_is_alone),
        cmocka_unit_test(going_on),
        cmocka_unit_test(latent_heads),
        cmocka_unit_test(value_norms),
        cmocka_unit_test(factors_of_blocks),
    };

    gpu.few = getenv("SHERD_FEW_SHAPES") != NULL;
    if (!optest_device_there())
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
