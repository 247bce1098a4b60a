/* States in bf16: the guarantees of stochastic rounding, and that its random bits belong to a tensor and not to a
 * shard. */
#include "kernels/states.h"
#include "tests/op/elem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LOWS = 1 << 16 };

static const struct sh_kernel_table *const devices[] = {&sh_kernels_ref, &sh_kernels_cpu};

/* Zero and denormals, the least normal numbers, around 1, the last before the largest; and some between. Both signs. */
static const uint16_t tops[] = {0,      1,      0x7f,   0x80,   0x3f7f, 0x3f80, 0x3f81, 0x4049, 0x7f7e,
                                0x8000, 0x8001, 0x807f, 0x8080, 0xbf7f, 0xbf80, 0xc2f7, 0x1234, 0xff7e};
enum { TOPS = sizeof tops / sizeof *tops };

static double neighbour(uint16_t top, int away)
{
    return (double)sh_bf16_to_f32((sh_bf16)(top + away));
}

/* Over all random bits the mean is the number itself: exactly, in double. */
static void the_mean_is_the_number(void **state)
{
    (void)state;
    for (int t = 0; t < TOPS; t++)
        for (uint32_t low = 0; low < LOWS; low += 1 + low / 3) {
            float x = sh_bits_to_f32((uint32_t)tops[t] << 16 | low);
            double sum = 0;

            for (uint32_t random = 0; random < LOWS; random++) {
                double y = (double)sh_bf16_to_f32(sh_f32_to_bf16_stochastic(x, random | 0xabcd0000u));

                if (y != neighbour(tops[t], 0) && y != neighbour(tops[t], 1))
                    fail_msg("%a becomes %a", (double)x, y);
                sum += y;
            }
            if (sum != (double)x * LOWS)
                fail_msg("%a has the mean %a", (double)x, sum / LOWS);
        }
}

static void numbers_of_bf16_stay(void **state)
{
    static const uint32_t randoms[] = {0, 1, 0x7fff, 0x8000, 0xffff, 0x1234ffff, 0xffffffff};

    (void)state;
    for (uint32_t top = 0; top < LOWS; top++)
        for (size_t r = 0; r < sizeof randoms / sizeof *randoms; r++) {
            float x = sh_bf16_to_f32((sh_bf16)top);
            sh_bf16 y = sh_f32_to_bf16_stochastic(x, randoms[r]);

            if (isnan(x) ? !isnan(sh_bf16_to_f32(y)) : y != top)
                fail_msg("%04x becomes %04x", top, y);
        }
}

/* The largest bf16 number, values beyond it, infinity, and a NaN whose upper half alone would be infinity. */
static void the_ends(void **state)
{
    (void)state;
    for (int negative = 0; negative < 2; negative++)
        for (uint32_t low = 0; low < LOWS; low++)
            for (uint32_t random = 0; random < LOWS; random += 0xffff) {
                uint32_t sign = negative ? 0x80000000u : 0;
                float large = sh_bits_to_f32(sign | 0x7f7f0000u | low), none = sh_bits_to_f32(sign | 0x7f800000u | low);

                assert_int_equal(sh_f32_to_bf16_stochastic(large, random), sign >> 16 | 0x7f7fu);
                assert_int_equal(sh_f32_to_bf16_stochastic(none, random), sign >> 16 | (low ? 0x7fc0u : 0x7f80u));
            }
}

/* One update of AdamW that leaves half of the gradients as m and half of their squares as v. */
static void begin_halves(struct optest *t, int64_t n)
{
    elem_begin_update(t, SH_OP_ADAMW, n);
    t->attr.runs.count = 1;
    t->runs[0] = (struct sh_decay_run){.end = n};
    elem_narrow_states(t);
    t->scalars = (struct sh_op_scalars){.lr = 1e-3f,
                                        .beta1 = 0.5f,
                                        .beta2 = 0.5f,
                                        .adam_eps = 1e-8f,
                                        .beta1_pow = 0.5,
                                        .beta2_pow = 0.5,
                                        .grad_scale = 1};
}

static void clear_states(const struct optest *t)
{
    for (int o = 1; o < 3; o++)
        memset(t->call.out[o].data, 0, (size_t)optest_elems(&t->call.out[o]) * sizeof(sh_bf16));
}

/* Within five deviations of the mean of that many coin flips. Both moments. */
static void unbiased_over_seeds(void **state)
{
    enum { N = 37, SEEDS = 4000 };
    double sum[2][N] = {0};
    struct optest t;

    (void)state;
    optest_seed(3);
    begin_halves(&t, N);
    for (int s = 0; s < SEEDS; s++) {
        t.scalars.seed = (uint64_t)s;
        clear_states(&t);
        optest_run(&t, &sh_kernels_cpu, 1);
        for (int i = 0; i < 2 * N; i++)
            sum[i / N][i % N] += optest_get(&t.call.out[1 + i / N], i % N);
    }
    for (int i = 0; i < 2 * N; i++) {
        double g = optest_get(&t.call.in[0], i % N), x = i < N ? g / 2 : g * g / 2,
               gap = exp2(floor(log2(fabs(x))) - 7);
        double off = sum[i / N][i % N] / SEEDS - x;

        if (fabs(off) > 5 * gap / 2 / sqrt(SEEDS))
            fail_msg("element %d: the mean is %g off, of a gap of %g", i, off, gap);
    }
    optest_end(&t);
}

/* Bits of a tensor of N elements for one update; the lower half is state 0. */
enum { BITS_OF = 4096 };

static void draw(uint64_t seed, const char *name, uint64_t update, uint32_t bits[BITS_OF])
{
    struct sh_op_scalars scalars = {.seed = seed, .update = update};
    struct sh_op_call call = {.scalars = &scalars};
    struct sh_decay_run run = {.end = BITS_OF, .tensor = sh_rng_name(name)};
    struct sh_random random = sh_random_of(&call, &run);
    uint32_t block[4];

    for (int64_t i = 0; i < BITS_OF; i++) {
        int place = sh_random_place(&random, i);

        sh_random_block(&random, i, block);
        bits[i] = sh_random_word(block[place / 2], place);
    }
}

/* Half of the bits are equal, within six deviations. */
static void assert_independent(const uint32_t *a, const uint32_t *b, int shift, int64_t n, const char *what)
{
    int64_t equal = 0, bits = 16 * n;

    for (int64_t i = 0; i < n; i++)
        equal += 16 - __builtin_popcount((a[i] ^ b[i] >> shift) & 0xffffu);
    if (fabs((double)equal - (double)bits / 2) > 6 * sqrt((double)bits) / 2)
        fail_msg("%s: %lld of %lld bits are equal", what, (long long)equal, (long long)bits);
}

static void random_bits_are_independent(void **state)
{
    static uint32_t one[BITS_OF], other[BITS_OF];

    (void)state;
    draw(1, "a", 1, one);
    assert_independent(one, one, 16, BITS_OF, "the two states");
    for (int k = 1; k < 9; k++)
        assert_independent(one, one + k, 0, BITS_OF - k, "neighbours");
    draw(1, "a", 2, other);
    assert_independent(one, other, 0, BITS_OF, "updates");
    draw(2, "a", 1, other);
    assert_independent(one, other, 0, BITS_OF, "seeds");
    draw(1, "b", 1, other);
    assert_independent(one, other, 0, BITS_OF, "tensors");
}

/* Elements [from, to) of an update as a separate call, whose element 0 is `from`. */
static void run_part(const struct optest *t, const struct sh_kernel_table *device, int64_t from, int64_t to)
{
    struct optest part = *t;

    part.call.attr = &part.attr;
    part.call.runs = part.runs;
    part.attr.runs.count = 0;
    for (int r = 0; r < t->attr.runs.count; r++) {
        struct sh_decay_run run = t->runs[r];

        run.begin = run.begin < from ? from : run.begin;
        run.end = run.end > to ? to : run.end;
        if (run.begin >= run.end)
            continue;
        run.begin -= from;
        run.end -= from;
        run.origin -= from;
        part.runs[part.attr.runs.count++] = run;
    }
    for (int i = 0; i < SH_OP_MAX_IN + SH_OP_MAX_OUT; i++) {
        struct sh_operand *o = i < SH_OP_MAX_IN ? &part.call.in[i] : &part.call.out[i - SH_OP_MAX_IN];

        if (o->data)
            *o = (struct sh_operand){(char *)o->data + from * sh_dtype_bytes(o->dtype), o->dtype, 1, {to - from}};
    }
    assert_int_equal(device->run[part.call.kind](&part.call), SH_OK);
}

/* The way ranks cut a unit and slices cut a shard: any cut gives the bits of the whole. */
static void cuts_do_not_show(void **state)
{
    enum { N = 1500 };
    static const int64_t sizes[] = {1, 3, 64, 127, 130, 1000};

    (void)state;
    optest_seed(4);
    for (int d = 0; d < 2; d++)
        for (int k = 0; k < ELEM_UPDATES; k++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                struct optest whole, parts;

                elem_begin_update(&whole, elem_updates[k], N);
                elem_narrow_states(&whole);
                optest_copy(&parts, &whole);
                optest_run(&whole, devices[d], 2);
                for (int64_t at = 0; at < N; at += sizes[s])
                    run_part(&parts, devices[d], at, at + sizes[s] < N ? at + sizes[s] : N);
                for (int o = 0; o < elem_written(elem_updates[k]); o++)
                    optest_same(&whole, &parts, o);
                optest_end(&whole);
                optest_end(&parts);
            }
}

/* They are not equal by chance: another seed, update, tensor or place in it rounds differently. */
static void what_the_bits_depend_on(void **state)
{
    (void)state;
    optest_seed(5);
    for (int d = 0; d < 2; d++)
        for (int change = 0; change < 4; change++) {
            struct optest a, b;

            begin_halves(&a, 500);
            optest_copy(&b, &a);
            b.scalars.seed += change == 0;
            b.scalars.update += change == 1;
            b.runs[0].tensor += change == 2;
            b.runs[0].origin -= change == 3;
            optest_run(&a, devices[d], 1);
            optest_run(&b, devices[d], 1);
            for (int o = 1; o < 3; o++)
                assert_true(memcmp(a.call.out[o].data, b.call.out[o].data, 500 * sizeof(sh_bf16)) != 0);
            optest_end(&a);
            optest_end(&b);
        }
}

/* In a tensor of more than 2^34 elements the counters of blocks have a second word, which may change within a call. */
static void far_places_have_bits_of_their_own(void **state)
{
    static const int64_t places[] = {(INT64_C(1) << 34) - 200, (INT64_C(3) << 34) - 8, (INT64_C(5) << 36) + 4};

    (void)state;
    optest_seed(6);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct optest near, far, plain;

        begin_halves(&near, 500);
        optest_copy(&far, &near);
        far.runs[0].origin = -places[i];
        optest_copy(&plain, &far);
        optest_run(&near, &sh_kernels_cpu, 1);
        optest_run(&far, &sh_kernels_cpu, 1);
        optest_run(&plain, &sh_kernels_ref, 1);
        for (int o = 1; o < 3; o++) {
            optest_same(&plain, &far, o);
            assert_true(memcmp(near.call.out[o].data, far.call.out[o].data, 500 * sizeof(sh_bf16)) != 0);
        }
        optest_end(&near);
        optest_end(&far);
        optest_end(&plain);
    }
}

static void damage_shows(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int k = 0; k < ELEM_UPDATES; k++) {
            struct optest t;

            elem_begin_update(&t, elem_updates[k], 200);
            t.runs[0].end = 200;
            t.attr.runs.count = 1;
            elem_narrow_states(&t);
            optest_set(&t.call.in[0], 7, NAN);
            optest_set(&t.call.in[0], 8, INFINITY);
            optest_run(&t, devices[d], 1);
            for (int i = 0; i < 200; i++)
                assert_true(isfinite(optest_get(&t.call.out[1], i)) == (i != 7 && i != 8));
            assert_true(isnan(optest_get(&t.call.out[1], 7)) && isinf(optest_get(&t.call.out[1], 8)));
            optest_end(&t);
        }
}

/* Gradients shrink to a tenth at step 500. At step 3,000 the mean of squares with beta2 = 0.999 has followed: in
 * float32 and, except for its noise, here. Rounded to nearest it stays where it was, since it would have to fall by
 * less than half a step of bf16 each time. */
static void a_mean_of_squares_follows(void **state)
{
    enum { N = 512, SMALLER = 500, STEPS = 3000 };
    double exact[N] = {0}, nearest[N] = {0}, sum[3] = {0};
    struct optest t;

    (void)state;
    optest_seed(6);
    begin_halves(&t, N);
    clear_states(&t);
    t.scalars.beta1 = 0.9f;
    t.scalars.beta2 = 0.999f;
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < N; i++) {
            double g = (double)(float)(optest_normal() * (step > SMALLER ? 0.1 : 1));

            optest_set(&t.call.in[0], i, g);
            exact[i] = 0.999 * exact[i] + 0.001 * g * g;
            nearest[i] = (double)sh_bf16_to_f32(sh_f32_to_bf16((float)(0.999 * nearest[i] + 0.001 * g * g)));
        }
        t.scalars.update = (uint64_t)step;
        t.scalars.beta1_pow = pow(0.9, step);
        t.scalars.beta2_pow = pow(0.999, step);
        optest_run(&t, &sh_kernels_cpu, 1);
    }
    for (int i = 0; i < N; i++) {
        sum[0] += exact[i];
        sum[1] += nearest[i];
        sum[2] += optest_get(&t.call.out[2], i);
    }
    print_message("v in bf16 over v: %.2f to nearest, %.4f stochastically\n", sum[1] / sum[0], sum[2] / sum[0]);
    assert_true(sum[1] / sum[0] > 8);
    assert_true(fabs(sum[2] / sum[0] - 1) < 0.02);
    optest_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_is_the_number),
        cmocka_unit_test(numbers_of_bf16_stay),
        cmocka_unit_test(the_ends),
        cmocka_unit_test(unbiased_over_seeds),
        cmocka_unit_test(random_bits_are_independent),
        cmocka_unit_test(cuts_do_not_show),
        cmocka_unit_test(what_the_bits_depend_on),
        cmocka_unit_test(far_places_have_bits_of_their_own),
        cmocka_unit_test(damage_shows),
        cmocka_unit_test(a_mean_of_squares_follows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
