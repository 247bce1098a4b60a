/* The CUDA kernels that need no library: the cases of tests/op/elem.h in three thread orders, and cases of CUDA only. */
#include "kernels/cuda/cuda.h"
#include "src/base/number/exact.h"
#include "src/base/number/mixsum.h"
#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/number/rng.h"
#include "tests/gpu/optest_device.h"
#include "tests/op/elem.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Not sh_kernels_cuda: its functions exist only in builds with a GPU. */
static int64_t work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    switch (call->kind) {
    case SH_OP_EMBED_BWD: return sh_cuda_embed_bwd_work_bytes(call);
    case SH_OP_PAIR_LOSS: return sh_cuda_pair_loss_work_bytes(call);
    case SH_OP_NORM_BWD:
    case SH_OP_NORM_BWD_BIAS: return sh_cuda_norm_bwd_work_bytes(call);
    case SH_OP_QK_NORM_BWD: return sh_cuda_qk_norm_bwd_work_bytes(call);
    case SH_OP_LOSS_REST: return sh_cuda_loss_rest_work_bytes(call);
    case SH_OP_BIAS_BWD:
    case SH_OP_GELU_BWD_BIAS: return sh_cuda_bias_bwd_work_bytes(call);
    case SH_OP_SINK_BWD: return sh_cuda_sink_bwd_work_bytes(call);
    default: return 0;
    }
}

/* clang-format off */
static const struct sh_kernel_table table = {
    .name = "cuda",
    .run = {
        [SH_OP_EMBED] = sh_cuda_embed,
        [SH_OP_PAIR_LOSS] = sh_cuda_pair_loss,
        [SH_OP_EMBED_BWD] = sh_cuda_embed_bwd,
        [SH_OP_NORM] = sh_cuda_norm,
        [SH_OP_NORM_BWD] = sh_cuda_norm_bwd,
        [SH_OP_QK_NORM] = sh_cuda_qk_norm,
        [SH_OP_QK_NORM_BWD] = sh_cuda_qk_norm_bwd,
        [SH_OP_QK_MEANS] = sh_cuda_qk_means,
        [SH_OP_BIAS] = sh_cuda_bias,
        [SH_OP_LOSS_PART] = sh_cuda_loss_part,
        [SH_OP_LOSS_REST] = sh_cuda_loss_rest,
        [SH_OP_SCORE_REST] = sh_cuda_score_rest,
        [SH_OP_BIAS_BWD] = sh_cuda_bias_bwd,
        [SH_OP_ROPE_TABLE] = sh_cuda_rope_table,
        [SH_OP_ROPE] = sh_cuda_rope,
        [SH_OP_GELU] = sh_cuda_gelu,
        [SH_OP_GELU_BWD] = sh_cuda_gelu_bwd,
        [SH_OP_ADD_NORM] = sh_cuda_norm,
        [SH_OP_NORM_BWD_BIAS] = sh_cuda_norm_bwd,
        [SH_OP_GELU_BWD_BIAS] = sh_cuda_gelu_bwd_bias,
        [SH_OP_SWIGLU] = sh_cuda_swiglu,
        [SH_OP_SWIGLU_BWD] = sh_cuda_swiglu_bwd,
        [SH_OP_GEGLU] = sh_cuda_geglu,
        [SH_OP_GEGLU_BWD] = sh_cuda_geglu_bwd,
        [SH_OP_SCALE] = sh_cuda_scale,
        [SH_OP_GELU_ERF] = sh_cuda_gelu_erf,
        [SH_OP_GELU_ERF_BWD] = sh_cuda_gelu_erf_bwd,
        [SH_OP_SQUARED_RELU] = sh_cuda_squared_relu,
        [SH_OP_SQUARED_RELU_BWD] = sh_cuda_squared_relu_bwd,
        [SH_OP_REGROUP] = sh_cuda_regroup,
        [SH_OP_SPLIT_HEADS] = sh_cuda_split_heads,
        [SH_OP_JOIN_HEADS] = sh_cuda_join_heads,
        [SH_OP_SPLIT_KV] = sh_cuda_split_kv,
        [SH_OP_JOIN_KV] = sh_cuda_join_kv,
        [SH_OP_FROM_PIECES] = sh_cuda_from_pieces,
        [SH_OP_TO_PIECES] = sh_cuda_to_pieces,
        [SH_OP_ADD] = sh_cuda_add,
        [SH_OP_CAST] = sh_cuda_cast,
        [SH_OP_COPY] = sh_cuda_copy,
        [SH_OP_ACCUMULATE] = sh_cuda_accumulate,
        [SH_OP_SUMSQ] = sh_cuda_sumsq,
        [SH_OP_EXACT_ROUND] = sh_cuda_exact_round,
        [SH_OP_ADAMW] = sh_cuda_adamw,
        [SH_OP_SGD] = sh_cuda_sgd,
        [SH_OP_LION] = sh_cuda_lion,
        [SH_OP_ADAMW_CODED] = sh_cuda_adamw_coded,
        [SH_OP_LION_CODED] = sh_cuda_lion_coded,
        [SH_OP_EMA] = sh_cuda_ema,
        [SH_OP_UNPACK] = sh_cuda_unpack,
        [SH_OP_ENCODE] = sh_cuda_encode,
        [SH_OP_DECODE] = sh_cuda_decode,
        [SH_OP_KV_PUT] = sh_cuda_kv_put,
        [SH_OP_ATTENTION_CACHE] = sh_cuda_attention_cache,
        [SH_OP_PICK] = sh_cuda_pick,
        [SH_OP_SINK] = sh_cuda_sink,
        [SH_OP_SINK_BWD] = sh_cuda_sink_bwd,
    },
    .work_bytes = work_bytes,
};
/* clang-format on */

/* Lengths around vectors, blocks and grids; matrices around warps, blocks, and a thread's share of a row. With
 * SHERD_FEW_SHAPES in the environment only the first of each, for programs that a sanitizer slows down. */
static const int64_t lengths[] = {1, 7, 32, 1023, 1024, 8195};
static const int64_t matrices[][2] = {{1, 1}, {3, 17}, {65, 33}, {21, 768}, {2, 3001}, {2, 8232}};

static void run(struct optest *t, const struct sh_kernel_table *of, int way)
{
    optest_device_order(way);
    optest_device_run(t, of);
    optest_device_order(0);
}

static void norm_refuses(void **state)
{
    (void)state;
    struct optest t;
    optest_begin(&t, SH_OP_NORM);
    optest_in(&t, 0, SH_F32, DIMS(1, 32769));
    optest_in(&t, 1, SH_F32, DIMS(32769));
    optest_out(&t, 0, SH_F32, DIMS(1, 32769));
    assert_int_equal(sh_cuda_norm(&t.call), SH_E_USAGE);
    optest_end(&t);
}

/* Nothing is read or written outside the table; the row of such a token is unusable. */
static void embed_outside(void **state)
{
    (void)state;
    struct optest t;
    optest_seed(2);
    optest_begin(&t, SH_OP_EMBED);
    optest_in_ints(&t, 0, 0, 7, DIMS(1, 3));
    optest_set(&t.call.in[0], 1, 7);
    optest_set(&t.call.in[0], 2, -1);
    optest_in(&t, 1, SH_F32, DIMS(7, 3));
    optest_out(&t, 0, SH_F32, DIMS(1, 3, 3));
    optest_device_run(&t, &table);
    for (int i = 0; i < 9; i++)
        assert_int_equal(isnan(optest_get(&t.call.out[0], i)), i >= 3);
    optest_end(&t);

    optest_begin(&t, SH_OP_EMBED_BWD);
    optest_in(&t, 0, SH_F32, DIMS(1, 2, 3));
    optest_in_ints(&t, 1, 7, 8, DIMS(1, 2));
    optest_out(&t, 0, SH_F32, DIMS(7, 3));
    optest_device_run(&t, &table);
    for (int i = 0; i < 21; i++)
        assert_true(optest_get(&t.call.out[0], i) == 0);
    optest_end(&t);
}

/* Against the reference's accumulator and its rounding, bit for bit, over floats of all sizes. */
static void check_exact(int64_t n, int exponents, bool add, double odd)
{
    struct optest t, round;
    optest_begin(&t, SH_OP_SUMSQ);
    optest_in(&t, 0, SH_F32, DIMS(n));
    for (int64_t i = 0; i < n && exponents; i++)
        optest_set(&t.call.in[0], i, ldexp(optest_get(&t.call.in[0], i), (int)optest_int(-exponents, exponents)));
    if (odd != 0)
        optest_set(&t.call.in[0], n / 2, odd);
    optest_out(&t, 0, SH_F64, DIMS(SH_EXACT_ELEMS));
    for (int i = 0; i < SH_EXACT_ELEMS; i++)
        optest_set(&t.call.out[0], i, i < SH_EXACT_DIGITS ? (double)optest_int(0, (int64_t)1 << 33) : 0);
    t.attr.accumulate = add;

    optest_begin(&round, SH_OP_EXACT_ROUND);
    optest_in(&round, 0, SH_F64, DIMS(SH_EXACT_ELEMS));
    for (int i = 0; i < SH_EXACT_ELEMS; i++)
        optest_set(&round.call.in[0], i,
                   i == SH_EXACT_DIGITS            ? odd
                   : i < n % (SH_EXACT_DIGITS - 1) ? (double)optest_int(0, (int64_t)1 << 40)
                                                   : 0);
    optest_out(&round, 0, SH_F64, DIMS(1));
    elem_check(&round, TERMS(0));
    elem_check(&t, TERMS(0));
}

static void exact(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 8, 63, 64, 65, 257, 5000, 20000};
    optest_seed(9);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_exact(sizes[i], 0, false, 0);
        check_exact(sizes[i], 70, true, 0);
        check_exact(sizes[i], 126, i % 2, 0);
    }
    check_exact(300, 1, true, INFINITY);
    check_exact(0x1000, 1, true, (double)0x1.fffffep127f);
}

/* The digits of an accumulator that nothing was added to, and rounding at every length of it. */
static void exact_rounds(void **state)
{
    (void)state;
    optest_seed(10);
    for (int n = 0; n <= SH_EXACT_DIGITS; n++) {
        struct optest t;
        optest_begin(&t, SH_OP_EXACT_ROUND);
        optest_in(&t, 0, SH_F64, DIMS(SH_EXACT_ELEMS));
        for (int i = 0; i < SH_EXACT_ELEMS; i++)
            optest_set(&t.call.in[0], i, i < n ? (double)optest_int(0, (int64_t)1 << (i % 33)) : 0);
        optest_out(&t, 0, SH_F64, DIMS(1));
        elem_check(&t, TERMS(0));
    }
}

/* More runs than one launch takes; every third element belongs to no run and keeps its bits. */
static void check_many_runs(enum sh_op_kind kind)
{
    enum { N = 600, RUNS = N / 3 };
    static struct sh_decay_run runs[RUNS];
    struct optest ref, cuda;

    optest_seed(11);
    elem_begin_update(&ref, kind, N);
    for (int i = 0; i < RUNS; i++)
        runs[i] = (struct sh_decay_run){.begin = 3 * i, .end = 3 * i + 2, .decay = i % 2};
    ref.attr.runs.count = RUNS;
    ref.call.runs = runs;
    optest_copy(&cuda, &ref);
    cuda.call.runs = runs;
    optest_run(&ref, &sh_kernels_ref, 1);
    optest_device_run(&cuda, &table);
    for (int o = 0; o < elem_written(kind); o++)
        optest_close(&ref, &cuda, o, 64);
    for (int o = 0; o < elem_written(kind); o++)
        for (int i = 2; i < N; i += 3)
            assert_true(optest_get(&ref.call.out[o], i) == optest_get(&cuda.call.out[o], i));
    optest_end(&ref);
    optest_end(&cuda);
}

static void update_has_many_runs(void **state)
{
    (void)state;
    for (int i = 0; i < ELEM_UPDATES; i++)
        check_many_runs(elem_updates[i]);
}

/* Any stretch of a stream, to any address, equal to the CPU's; and nothing around it is touched. */
/* `run`: a run of so many elements after another, which overlap by one. */
static void check_initial(int64_t first, int64_t n, int64_t run, uint64_t key, int shift, bool halves)
{
    enum { MOST = 1032 };
    float want[MOST], found[MOST];
    size_t bytes = (size_t)(n + 2) * sizeof *found;
    float *device = device_alloc(bytes, (size_t)shift * sizeof *found);
    struct sh_rng_runs runs = {.first = first, .n = run, .stride = run - 1, .count = n / run};
    struct sh_floats out = sh_floats_in(device, n + 2, halves), here = sh_floats_in(found, n + 2, halves);

    assert_true(n + 2 <= MOST);
    memset(found, 0x11, bytes);
    device_put(device, found, bytes);
    assert_int_equal(sh_cuda_fill_normal(key, &runs, 0.02f, sh_floats_at(out, 1), NULL), SH_OK);
    device_get(found, device, bytes);
    device_free(device);
    for (int64_t i = 0; i < runs.count; i++)
        sh_rng_fill_normal(key, first + i * runs.stride, run, 0.02f, want + i * run);
    for (int64_t i = -1; i <= n; i++) {
        float value, outside = sh_floats_join(0x1111, 0x1111);
        sh_floats_get(sh_floats_at(here, i + 1), 1, &value);
        assert_memory_equal(&value, i < 0 || i == n ? &outside : &want[i], sizeof value);
    }
}

static void initial_values(void **state)
{
    static const int64_t firsts[] = {0, 1, 7, 4000000000, (int64_t)1 << 40};
    (void)state;
    for (int i = 0; i < 5 * elem.n_lengths; i++) {
        int64_t length = lengths[i % elem.n_lengths], n = length < 1030 ? length : 1030;
        int64_t first = firsts[i / elem.n_lengths];
        uint64_t key = sh_rng_key((uint64_t)i, "model.norm.weight");
        for (int halves = 0; halves < 2; halves++) {
            check_initial(first, n, n, key, i % 4, halves);
            check_initial(first, n < 3 ? 3 : n / 3 * 3, 3, key, i % 4, halves);
        }
    }
}

/* Sums of parts, of any length and place, equal to the CPU's. */
static void check_mixsum(int64_t n, int shift, bool halves)
{
    enum { MOST = 2 * SH_MIXSUM_PART + 100 };
    static float memory[MOST];
    uint64_t found[3] = {1, 1, 1}, place = sh_mix64((uint64_t)n), *sums = (uint64_t *)device_alloc(sizeof found, 0);
    float *device = device_alloc((size_t)n * sizeof *memory + 4, (size_t)shift * sizeof *memory);
    struct sh_floats here = sh_floats_in(memory, n, halves);

    assert_true(n <= MOST);
    for (uint32_t i = 0; i < (uint32_t)n; i++)
        memcpy(&memory[i], &(uint32_t){i * 2654435761u}, sizeof *memory);
    device_put(device, memory, (size_t)n * sizeof *memory);
    device_put(sums, found, sizeof found);
    assert_int_equal(sh_cuda_mixsum(sh_floats_in(device, n, halves), 0, n, place, sums, NULL), SH_OK);
    device_get(found, sums, sizeof found);
    device_free(device);
    device_free(sums);
    for (int64_t at = 0, i = 0; i < 3; i++, at += SH_MIXSUM_PART) {
        int64_t left = n - at < SH_MIXSUM_PART ? n - at : SH_MIXSUM_PART;

        assert_true(found[i] ==
                    (left <= 0 ? 1 : sh_mixsum(sh_floats_at(here, at), left, place + (uint64_t)at * SH_MIXSUM_STEP)));
    }
}

static void mixsum(void **state)
{
    static const int64_t counts[] = {
        0, 1, 3, 4, 31, 1024, 5000, SH_MIXSUM_PART, SH_MIXSUM_PART + 1, 2 * SH_MIXSUM_PART + 96};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int shift = 0; shift < 2; shift++) {
            check_mixsum(counts[i], shift, false);
            check_mixsum(counts[i], shift, true);
        }
}

/* Codes, and a part of them that may begin and end within a block: their sum; and as float32, of which the last block may be
 * incomplete. Nothing around it is written. */
static void check_codes(enum sh_code8_law law, int64_t first, int64_t n, size_t blocks_before)
{
    enum { BLOCKS = 1030, ELEMS = BLOCKS * SH_CODE8_ELEMS, BYTES = BLOCKS * SH_CODE8_BLOCK_BYTES };
    static float wide[ELEMS], found[ELEMS + 1];
    static unsigned char codes[BYTES];
    const uint64_t place = sh_mix64((uint64_t)n);
    unsigned char *device = device_alloc(BYTES, blocks_before * SH_CODE8_BLOCK_BYTES);
    uint64_t *sums = device_alloc(2 * sizeof *sums, 0), sum[2] = {1, 1};
    float *to = device_alloc(sizeof found, 4 * (blocks_before % 4));
    struct sh_floats from = {.coded = device, .law = law};

    for (int i = 0; i < ELEMS; i++)
        wide[i] = (float)(law == SH_CODE8_LINEAR ? optest_int(-99, 99) : optest_int(0, 99)) / 64;
    sh_code8_put(codes, law, ELEMS, wide);
    sh_code8_get(codes, law, ELEMS, wide);
    memset(found, 0x11, sizeof found);
    device_put(device, codes, BYTES);
    device_put(sums, sum, sizeof sum);
    device_put(to, found, sizeof found);
    assert_int_equal(sh_cuda_mixsum(from, first, n, place, sums, NULL), SH_OK);
    assert_int_equal(sh_cuda_widen(from, n, to, NULL), SH_OK);
    device_get(sum, sums, sizeof sum);
    device_get(found, to, sizeof found);
    assert_true(sum[0] == sh_mixsum((struct sh_floats){.whole = wide + first}, n, place) && sum[1] == 1);
    assert_memory_equal(found, wide, (size_t)n * sizeof *found);
    assert_true(found[n] == sh_floats_join(0x1111, 0x1111));
    device_free(to);
    device_free(sums);
    device_free(device);
}

static void codes(void **state)
{
    static const int64_t cuts[][2] = {{0, 64}, {0, 1}, {1, 63}, {4, 128}, {63, 68}, {100, 5000}, {384, SH_MIXSUM_PART}};
    (void)state;
    optest_seed(12);
    for (size_t i = 0; i < (elem.few ? 5 : sizeof cuts / sizeof *cuts); i++)
        for (int law = 0; law < SH_CODE8_LAWS; law++)
            for (size_t blocks = 0; blocks < 2; blocks++)
                check_codes((enum sh_code8_law)law, cuts[i][0], cuts[i][1], blocks);
}

static uint64_t take_slot(uint64_t *slots)
{
    uint64_t found[2];

    assert_int_equal(sh_cuda_take_slots(slots, 2, NULL), SH_OK);
    device_get(found, slots, sizeof found);
    assert_int_equal(found[0], 0);
    return found[1];
}

/* n numbers, `bad` of them not finite, the largest finite number among the others: checks the count, and that a
 * second look starts again from zero. */
static void check_damage(int64_t n, bool halves, size_t shift)
{
    enum { MOST = 5000 };
    static float host[MOST];
    float *room = sh_calloc((size_t)n + 1, sizeof *room);
    struct sh_floats here = sh_floats_in(room, n, halves), x;
    size_t bytes = (size_t)n * sizeof(float);
    char *device = device_alloc(bytes, shift);
    uint64_t *slots = device_alloc(2 * sizeof *slots, 0), bad = 0;

    assert_true(n <= MOST);
    for (int64_t i = 0; i < n; i++) {
        static const float odd[] = {FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN, 0};
        host[i] = odd[sh_mix64((uint64_t)i + 1) % 6];
        bad += !isfinite(host[i]);
    }
    sh_floats_put(here, n, host);
    device_put(device, room, bytes);
    x = sh_floats_in((float *)(void *)device, n, halves);
    for (int order = 0; order < OPTEST_ORDERS; order++) {
        optest_device_order(order);
        assert_int_equal(sh_cuda_count_bad(x, n, 1, NULL), SH_OK);
        assert_int_equal(take_slot(slots), bad);
    }
    optest_device_order(0);
    device_free(slots);
    device_free(device);
    free(room);
}

/* Blocks of codes: of one that holds an infinity, all numbers but those whose code is 0 count, and of a NaN all; not behind n. */
static void damage_in_codes(void **state)
{
    enum { BLOCKS = 40, ELEMS = BLOCKS * SH_CODE8_ELEMS, BYTES = BLOCKS * SH_CODE8_BLOCK_BYTES };
    static unsigned char codes[BYTES];
    static float wide[ELEMS];
    unsigned char *device = device_alloc(BYTES, SH_CODE8_BLOCK_BYTES);
    uint64_t *slots = device_alloc(2 * sizeof *slots, 0), bad = 0;
    int64_t n = ELEMS - 37;

    (void)state;
    for (int law = 0; law < SH_CODE8_LAWS; law++) {
        for (int i = 0; i < ELEMS; i++)
            wide[i] = i % 640 == 70 ? INFINITY : i % 640 == 130 ? NAN : (float)(i % 7);
        sh_code8_put(codes, (enum sh_code8_law)law, ELEMS, wide);
        sh_code8_get(codes, (enum sh_code8_law)law, ELEMS, wide);
        bad = 0;
        for (int64_t i = 0; i < n; i++)
            bad += !isfinite(wide[i]);
        device_put(device, codes, BYTES);
        assert_int_equal(
            sh_cuda_count_bad((struct sh_floats){.coded = device, .law = (enum sh_code8_law)law}, n, 1, NULL), SH_OK);
        assert_true(bad > 64 && take_slot(slots) == bad);
    }
    device_free(slots);
    device_free(device);
}

/* As the kernel's comment describes it. */
static uint64_t sum_words(const unsigned char *x, int64_t bytes)
{
    uint64_t sum = 0, word;

    for (int64_t i = 0; i < (bytes + 7) / 8; i++) {
        memcpy(&word, x + 8 * i, bytes - 8 * i < 8 ? 0 : 8);
        if (bytes - 8 * i < 8)
            word = 0;
        for (int64_t b = 8 * i; bytes - 8 * i < 8 && b < bytes; b++)
            word = word << 8 | x[b];
        sum += sh_mix64(word ^ sh_mix64((uint64_t)i + 1));
    }
    return sum;
}

static void check_sum(int64_t bytes, size_t shift)
{
    unsigned char *host = sh_calloc((size_t)bytes + 1, 1);
    void *device = device_alloc((size_t)bytes, shift);
    uint64_t *slots = device_alloc(2 * sizeof *slots, 0);

    for (int64_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)sh_mix64((uint64_t)i + 1);
    device_put(device, host, (size_t)bytes);
    for (int order = 0; order < OPTEST_ORDERS; order++) {
        optest_device_order(order);
        assert_int_equal(sh_cuda_sum_words(device, bytes, 1, NULL), SH_OK);
        assert_true(take_slot(slots) == sum_words(host, bytes));
    }
    optest_device_order(0);
    device_free(slots);
    device_free(device);
    free(host);
}

/* Against the reference, and the same bits with the parameters in one piece, in halves, and in any order of threads. */
static void average(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int order = 0; order < OPTEST_ORDERS; order++) {
            static sh_bf16 high[8195];
            static int16_t low[8195];
            struct optest t, ref, halves;

            optest_begin(&t, SH_OP_EMA);
            t.attr.scale.by = 0.25f;
            optest_in(&t, 0, SH_F32, DIMS(lengths[i]));
            optest_out(&t, 0, SH_F32, DIMS(lengths[i]));
            optest_add_to(&t, 0);
            optest_copy(&ref, &t);
            optest_copy(&halves, &t);
            sh_floats_put((struct sh_floats){.high = high, .low = low}, lengths[i], t.call.in[0].data);
            halves.call.in[0] = (struct sh_operand){.data = high, .dtype = SH_BF16, .ndim = 1, .dim = {lengths[i]}};
            halves.call.in[1] = (struct sh_operand){.data = low, .dtype = SH_I16, .ndim = 1, .dim = {lengths[i]}};
            optest_run(&ref, &sh_kernels_ref, 1);
            run(&t, &table, order);
            run(&halves, &table, order);
            optest_close(&ref, &t, 0, 4);
            optest_same(&t, &halves, 0);
            optest_end(&t);
            optest_end(&ref);
            optest_end(&halves);
        }
}

static void damage(void **state)
{
    static const int64_t n[] = {0, 1, 3, 4, 64, 1023, 5000};

    (void)state;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        check_damage(n[i], false, 0);
        check_damage(n[i], true, 0);
        check_damage(n[i], false, 4);
        check_sum(n[i], 0);
        check_sum(8 * n[i] + 2, 0);
        check_sum(8 * n[i] + 4, 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ELEM_TESTS,
        cmocka_unit_test(elem_update_of_codes),
        cmocka_unit_test(elem_codes),
        cmocka_unit_test(norm_refuses),
        cmocka_unit_test(embed_outside),
        cmocka_unit_test(damage),
        cmocka_unit_test(damage_in_codes),
        cmocka_unit_test(average),
        cmocka_unit_test(exact),
        cmocka_unit_test(exact_rounds),
        cmocka_unit_test(update_has_many_runs),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(mixsum),
        cmocka_unit_test(codes),
    };
    bool few = getenv("SHERD_FEW_SHAPES") != NULL;

    if (!optest_device_there())
        return 0;
    elem = (struct elem){.table = &table,
                         .run = run,
                         .lengths = lengths,
                         .n_lengths = few ? 3 : 6,
                         .matrices = matrices,
                         .n_matrices = few ? 3 : 6,
                         .exact_codes = true,
                         .few = few};
    return cmocka_run_group_tests_name("cuda_elem", tests, NULL, NULL);
}
