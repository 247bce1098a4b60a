/* Sums that detect every change: for any length and place the result equals that of one element at a time, copied or
 * not. */
#include "src/base/number/mixsum.h"
#include "src/base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 5024, ODD = 5017, AHEAD = 70 }; /* in halves: both arrays are aligned alike in a line, or not */

static const int64_t lengths[] = {0, 1, 15, 16, 17, 31, 32, 33, 64, 100, 1023, 1024, 1025, 4096, ODD - AHEAD};
static const uint64_t place = 0x0123456789abcdefu;

static uint32_t bits_at(struct sh_floats f, int64_t i)
{
    float x = f.whole ? f.whole[i] : sh_floats_join(f.high[i], f.low ? f.low[i] : 0);
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint64_t sum_one_by_one(struct sh_floats f, int64_t n)
{
    uint64_t sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += sh_mix64(bits_at(f, i) ^ (place + (uint64_t)i * 0x9e3779b97f4a7c15u));
    return sum;
}

/* Copies in which both sides start anywhere, and nothing next to them changes. */
static void check(struct sh_floats from, struct sh_floats to, char *memory, int64_t n)
{
    static char before[MOST * 4];
    uint64_t expected = sum_one_by_one(from, n);

    memset(memory, 0x55, sizeof before);
    memcpy(before, memory, sizeof before);
    assert_true(sh_mixsum(from, n, place) == expected);
    assert_true(sh_mixsum_copy(to, from, n, place) == expected);
    for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(to, i); i++) {
        size_t bytes = (size_t)sh_floats_bytes(to, n);
        char *array = sh_floats_array(to, i);

        assert_memory_equal(array, sh_floats_array(from, i), bytes);
        memset(array, 0x55, bytes);
    }
    assert_memory_equal(memory, before, sizeof before);
}

static void any_length_and_place(void **state)
{
    float *from = aligned_alloc(64, MOST * 4 / 64 * 64 + 64), *to = aligned_alloc(64, MOST * 4 / 64 * 64 + 64);

    (void)state;
    for (uint32_t i = 0; i < MOST; i++)
        memcpy(&from[i], &(uint32_t){i * 2654435761u}, sizeof *from);
    for (int kind = 0; kind < 4; kind++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
            for (int64_t at = 0; at < AHEAD; at += 1 + at / 4) {
                struct sh_floats a = sh_floats_at(sh_floats_in(from, MOST, kind > 0), AHEAD - 1 - at);
                struct sh_floats b = sh_floats_at(sh_floats_in(to, kind == 2 ? ODD : MOST, kind > 0), at);

                if (kind == 3) /* upper halves only */
                    a.low = b.low = NULL;
                check(a, b, (char *)to, lengths[k]);
            }
    free(from);
    free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_length_and_place)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
