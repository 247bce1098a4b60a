/* Random numbers: the published Philox answers, and the promised properties of the normal stream. */
#include "src/base/number/philox.h"
#include "src/base/number/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Known answers published with Random123: nothing, all ones, digits of pi. */
static const struct {
    int rounds;
    uint64_t key, hi, lo;
    uint32_t out[4];
} known[] = {
    {10, 0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {10, UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {10, 0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    {7, 0, 0, 0, {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
    {7, UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
    {7, 0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
};

static void test_known_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t out[4];
        sh_philox_block_of(known[i].rounds, known[i].key, known[i].hi, known[i].lo, out);
        assert_memory_equal(out, known[i].out, sizeof out);
        sh_philox(known[i].key, known[i].hi, known[i].lo, out);
        assert_true((memcmp(out, known[i].out, sizeof out) == 0) == (known[i].rounds == 10));
    }
}

static void test_keys_differ(void **state)
{
    (void)state;
    uint64_t key = sh_rng_key(1, "model.embed_tokens.weight");
    assert_true(key == sh_rng_key(1, "model.embed_tokens.weight"));
    assert_true(key != sh_rng_key(2, "model.embed_tokens.weight"));
    assert_true(key != sh_rng_key(1, "model.embed_tokens.weighu"));
    assert_true(sh_rng_key(0, "a") != sh_rng_key(0, "b"));
}

/* Any cut of a tensor gives the same bits as the whole, also if the counter needs its upper word. */
static void test_parts_equal_whole(void **state)
{
    (void)state;
    enum { N = 257 };
    static const int64_t firsts[] = {0, 5, (int64_t)UINT32_MAX - 100, (int64_t)1 << 40};
    float whole[N], part[N];
    for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
        sh_rng_fill_normal(42, firsts[f], N, 0.02f, whole);
        for (int cut = 0; cut <= N; cut += 37) {
            sh_rng_fill_normal(42, firsts[f], cut, 0.02f, part);
            sh_rng_fill_normal(42, firsts[f] + cut, N - cut, 0.02f, part + cut);
            assert_memory_equal(whole, part, sizeof whole);
        }
    }
}

/* Bits that are saved in checkpoints of old runs: they may never change. */
static void test_bits_are_fixed(void **state)
{
    (void)state;
    /* centred sums of the halves of Philox blocks: key 0, counters 0, 1, 2 */
    static const float sums[] = {120177, 21134, -139317};
    float out[3];
    sh_rng_fill_normal(0, 0, 3, 1, out);
    for (int i = 0; i < 3; i++)
        assert_true(out[i] == sums[i] * 0x1.3988e200p-16f);
}

/* Moments of a million numbers, within five standard errors of those the header promises. */
static void test_moments(void **state)
{
    (void)state;
    enum { N = 1000000 };
    float *x = malloc(N * sizeof *x);
    double m1 = 0, m2 = 0, m4 = 0, largest = 0, lag = 0;
    assert_non_null(x);
    sh_rng_fill_normal(sh_rng_key(7, "w"), 0, N, 1, x);
    for (int i = 0; i < N; i++) {
        double v = x[i];
        m1 += v / N;
        m2 += v * v / N;
        m4 += v * v * v * v / N;
        lag += i > 0 ? v * x[i - 1] / N : 0;
        largest = fmax(largest, fabs(v));
    }
    assert_true(fabs(m1) < 5e-3);
    assert_true(fabs(m2 - 1) < 5 * sqrt(1.85 / N));
    assert_true(fabs(m4 - 2.85) < 0.05); /* 3 minus the excess of 0.15 */
    assert_true(fabs(lag) < 5e-3);
    assert_true(largest > 4 && largest < 4.8990);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),     cmocka_unit_test(test_keys_differ),
        cmocka_unit_test(test_parts_equal_whole), cmocka_unit_test(test_bits_are_fixed),
        cmocka_unit_test(test_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
