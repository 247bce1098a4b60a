/* Float16 against its definition: all 65,536 patterns to float32, and back everything at, next to and between any two
 * of them. */
#include "src/base/number/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PATTERNS = 1 << 16, INFINITE = 0x7c00, SIGN = 0x8000, AROUND = 5 };

/* The size of a pattern without its sign, exact in double; for infinity the value that would come next, which is
 * where rounding ends. */
static double size_of(int pattern)
{
    int exponent = pattern >> 10, fraction = pattern & 0x3ff;

    return exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
}

static uint32_t widened(int pattern)
{
    uint32_t sign = (uint32_t)(pattern & SIGN) << 16;
    int rest = pattern & ~SIGN;

    if (rest > INFINITE) /* NaN: its payload, made quiet */
        return sign | 0x7fc00000u | (uint32_t)(rest & 0x3ff) << 13;
    return sign | (rest == INFINITE ? 0x7f800000u : sh_f32_to_bits((float)size_of(rest)));
}

/* The nearest pattern, the even one of two. Patterns are ordered like their sizes, and everything here is exact in
 * double. */
static int narrowed(float x)
{
    int sign = signbit(x) ? SIGN : 0, low = 0, high = INFINITE;
    double size = fabs((double)x), middle;

    if (isnan(x))
        return sign | 0x7e00 | (int)(sh_f32_to_bits(x) >> 13 & 0x3ff);
    if (size >= size_of(INFINITE))
        return sign | INFINITE;
    while (high - low > 1) { /* size_of(low) <= size < size_of(high) */
        int between = (low + high) / 2;

        *(size_of(between) <= size ? &low : &high) = between;
    }
    middle = (size_of(low) + size_of(high)) / 2;
    return sign | (size < middle || (size == middle && low % 2 == 0) ? low : high);
}

typedef void widen_fn(float *to, const sh_f16 *from, int64_t n);
typedef void narrow_fn(sh_f16 *to, const float *from, int64_t n);

static void check_widen(widen_fn *widen)
{
    static sh_f16 from[PATTERNS];
    static float to[PATTERNS];

    for (int i = 0; i < PATTERNS; i++)
        from[i] = (sh_f16)i;
    widen(to, from, PATTERNS);
    for (int i = 0; i < PATTERNS; i++)
        if (sh_f32_to_bits(to[i]) != widened(i))
            fail_msg("%04x is %08x, not %08x", i, sh_f32_to_bits(to[i]), widened(i));
}

static void test_widen(void **state)
{
    (void)state;
    check_widen(sh_half_widen);
    check_widen(sh_half_widen_plain);
}

static void check_narrow(narrow_fn *narrow, const float *from, int64_t n)
{
    sh_f16 to[64];

    assert_in_range(n, 0, 64);
    narrow(to, from, n);
    for (int i = 0; i < n; i++)
        if (to[i] != narrowed(from[i]))
            fail_msg("%a is %04x, not %04x", (double)from[i], to[i], narrowed(from[i]));
}

/* With the floats next to it, and the same with a minus sign. */
static int around(double size, float *out)
{
    float x = (float)size,
          near[AROUND] = {nextafterf(x, 0), x, nextafterf(x, INFINITY), nextafterf(nextafterf(x, 0), 0),
                          nextafterf(nextafterf(x, INFINITY), INFINITY)};

    for (int i = 0; i < AROUND; i++) {
        out[2 * i] = near[i];
        out[2 * i + 1] = -near[i];
    }
    return 2 * AROUND;
}

/* Where rounding changes: each number, and each midpoint between two, the last of which is where infinity begins. */
static void test_narrow_edges(void **state)
{
    float from[4 * AROUND];

    (void)state;
    for (int i = 0; i < INFINITE; i++) {
        int n = around(size_of(i), from);

        n += around((size_of(i) + size_of(i + 1)) / 2, from + n);
        check_narrow(sh_half_narrow, from, n);
        check_narrow(sh_half_narrow_plain, from, n);
    }
}

/* Any bits, including NaN, in lengths that vectors do not divide. */
static void test_narrow_any(void **state)
{
    static const uint32_t some[] = {0,          1,          0x007fffff, 0x00800000, 0x477fe000, 0x477fefff, 0x477ff000,
                                    0x47800000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7f801fff, 0x7fbfffff, 0x7fc00000,
                                    0x7fffffff, 0xff800001, 0x33000000, 0x33000001, 0x32ffffff};
    enum { SOME = sizeof some / sizeof *some };
    float from[64];
    uint64_t x = 88172645463325252u;

    (void)state;
    for (int i = 0; i < SOME; i++)
        from[i] = sh_bits_to_f32(some[i]);
    check_narrow(sh_half_narrow, from, SOME);
    check_narrow(sh_half_narrow_plain, from, SOME);
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < 64; i++) {
            x ^= x << 13; /* xorshift64: Marsaglia, 2003 */
            x ^= x >> 7;
            x ^= x << 17;
            from[i] = sh_bits_to_f32((uint32_t)(x >> 32));
        }
        check_narrow(sh_half_narrow, from, round % 65);
        check_narrow(sh_half_narrow_plain, from, round % 65);
    }
}

/* Nothing after the last element is written. */
static void test_ends(void **state)
{
    sh_f16 half[40];
    float whole[40] = {0};

    (void)state;
    for (int n = 0; n < 33; n++) {
        memset(half, 0x5a, sizeof half);
        sh_half_narrow(half, whole, n);
        assert_int_equal(half[n], 0x5a5a);
        whole[n] = 7;
        memset(half, 0, sizeof half);
        sh_half_widen(whole, half, n);
        assert_true(whole[n] == 7);
        whole[n] = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widen),
        cmocka_unit_test(test_narrow_edges),
        cmocka_unit_test(test_narrow_any),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests_name("half", tests, NULL, NULL);
}
