/* Floats in halves: each comes back bit for bit, and the upper half is the number rounded to bf16. */
#include "kernels/cpu/base/math.h"
#include "src/base/number/floats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LOWS = 1 << 16 };

/* Zero and denormals, the least normal numbers, around 1, the largest, infinity, NaN; and some between. Both signs. */
static int tops(uint16_t top[512])
{
    static const uint16_t some[] = {0,      1,      2,      0x7e,   0x7f,   0x80,   0x81,   0x3f7f, 0x3f80,
                                    0x3f81, 0x7f7e, 0x7f7f, 0x7f80, 0x7f81, 0x7fbf, 0x7fc0, 0x7ffe, 0x7fff};
    int n = 0;

    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        top[n++] = some[i];
        top[n++] = some[i] | 0x8000;
    }
    for (int i = 0; n < 256; i++)
        top[n++] = (uint16_t)(i * 40503);
    return n;
}

static void all_come_back(void **state)
{
    float *from = malloc(LOWS * sizeof *from), *back = malloc(LOWS * sizeof *back);
    sh_bf16 *high = malloc(LOWS * sizeof *high);
    int16_t *low = malloc(LOWS * sizeof *low);
    struct sh_floats halves = {.high = high, .low = low};
    uint16_t top[512];
    int n = tops(top);

    (void)state;
    for (int t = 0; t < n; t++) {
        for (uint32_t i = 0; i < LOWS; i++)
            from[i] = sh_bits_to_f32((uint32_t)top[t] << 16 | i);
        sh_floats_put(halves, LOWS, from);
        sh_floats_get(halves, LOWS, back);
        for (uint32_t i = 0; i < LOWS; i++) {
            uint32_t bits = (uint32_t)top[t] << 16 | i, want = isnan(sh_bits_to_f32(bits)) ? 0x7fc00000u : bits;

            if (sh_f32_to_bits(back[i]) != want)
                fail_msg("%08x comes back as %08x", bits, sh_f32_to_bits(back[i]));
        }
    }
    free(from);
    free(back);
    free(high);
    free(low);
}

/* Equal to rounding to nearest elsewhere, except if the number is exactly in the middle. */
static void upper_half_is_rounded(void **state)
{
    uint16_t top[512];
    int n = tops(top);

    (void)state;
    for (int t = 0; t < n; t++)
        for (uint32_t i = 0; i < LOWS; i++) {
            float x = sh_bits_to_f32((uint32_t)top[t] << 16 | i);
            sh_bf16 high, want = sh_f32_to_bf16(x);
            int16_t low;

            sh_floats_split(x, &high, &low);
            if (isnan(x))
                want = 0x7fc0;
            else if (i == LOWS / 2)
                want = (sh_bf16)(top[t] + 1);
            if (high != want)
                fail_msg("%08x has the upper half %04x, not %04x", sh_f32_to_bits(x), high, want);
        }
}

/* Any length and any start, and nothing around it is touched. */
static void parts(void **state)
{
    enum { N = 100 };
    float from[N], back[N];
    sh_bf16 high[N];
    int16_t low[N];
    struct sh_floats halves = {.high = high, .low = low};

    (void)state;
    for (int i = 0; i < N; i++)
        from[i] = (float)i * 1.0001f;
    for (int begin = 1; begin < 20; begin++)
        for (int n = 0; n < 70; n++) {
            memset(high, 0x11, sizeof high);
            memset(low, 0x11, sizeof low);
            memset(back, 0x11, sizeof back);
            sh_floats_put(sh_floats_at(halves, begin), n, from + begin);
            sh_floats_get(sh_floats_at(halves, begin), n, back + begin);
            assert_memory_equal(back + begin, from + begin, (size_t)n * sizeof *back);
            assert_true(high[begin - 1] == 0x1111 && low[begin - 1] == 0x1111);
            assert_true(high[begin + n] == 0x1111 && low[begin + n] == 0x1111);
            assert_int_equal(sh_f32_to_bits(back[begin + n]), 0x11111111);
        }
}

static void arrays(void **state)
{
    float room[64];
    struct sh_floats whole = sh_floats_in(room, 6, false), halves = sh_floats_in(room, 6, true), none = {0};
    struct sh_floats packed = {.packed = (unsigned char *)room};

    (void)state;
    assert_true(sh_floats_none(none) && sh_floats_none(sh_floats_at(none, 3)));
    assert_false(sh_floats_none(whole) || sh_floats_none(halves));
    assert_ptr_equal(sh_floats_array(whole, 0), room);
    assert_null(sh_floats_array(whole, 1));
    assert_ptr_equal(sh_floats_array(sh_floats_at(whole, 2), 0), room + 2);
    assert_ptr_equal(sh_floats_array(halves, 0), room);
    assert_ptr_equal(sh_floats_array(sh_floats_at(halves, 2), 1), room + 4);
    assert_int_equal(sh_floats_bytes(whole, 3), 12);
    assert_int_equal(sh_floats_bytes(halves, 3), 6);
    assert_int_equal(sh_floats_bytes(packed, 128), 72);
    assert_false(sh_floats_none(packed));
    assert_ptr_equal(sh_floats_array(sh_floats_at(packed, 128), 0), (char *)room + 72);
    assert_null(sh_floats_array(packed, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_come_back), cmocka_unit_test(upper_half_is_rounded),
                                       cmocka_unit_test(parts), cmocka_unit_test(arrays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
