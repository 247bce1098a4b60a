/* Element types compared with the definitions of their formats, and parts of files in any order and cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/move/parts.h"
#include "src/base/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    return bits;
}

/* Sign, 5 bits of exponent, 10 of fraction, by arithmetic that rounds nowhere. */
static float f16_by_definition(uint16_t h)
{
    double fraction = h & 0x3ff, sign = h & 0x8000 ? -1 : 1;
    int exponent = h >> 10 & 31;

    if (exponent == 31)
        return fraction == 0 ? (float)(sign * (double)INFINITY) : NAN;
    return (float)(sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24)));
}

static void each_f16_and_bf16_is_widened_exactly_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i, back = 0;
        float want[2] = {f16_by_definition(h), sh_bf16_to_f32(h)}, got;
        const enum sh_move_type type[2] = {SH_MOVE_F16, SH_MOVE_BF16};

        for (int t = 0; t < 2; t++) {
            bool finite = isfinite(want[t]);

            assert_int_equal(sh_move_widen(type[t], &h, 1, (struct sh_floats){.whole = &got}), finite ? 1 : 0);
            if (isnan(want[t])) {
                assert_true(isnan(got));
                continue;
            }
            assert_int_equal(bits_of(got), bits_of(want[t]));
            assert_int_equal(sh_move_narrow(type[t], (struct sh_floats){.whole = &got}, 1, &back), 1);
            assert_int_equal(back, h);
        }
    }
}

/* bf16 fills only the upper half: the compute value is exactly the file's value. */
static void bf16_in_halves_leaves_no_remainder(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        sh_bf16 h = (sh_bf16)i, high;
        int16_t low;

        (void)sh_move_widen(SH_MOVE_BF16, &h, 1, (struct sh_floats){.high = &high, .low = &low});
        if (!isnan(sh_bf16_to_f32(h))) {
            assert_int_equal(high, h);
            assert_int_equal(low, 0);
        }
    }
}

/* A number between two neighbours of float16 is rounded to the nearer one, in a tie to the even one. */
static void f16_rounds_to_nearest(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x7bff; i++) {
        float a = f16_by_definition((uint16_t)i), b = f16_by_definition((uint16_t)(i + 1)), middle = a + (b - a) / 2;
        float x[3] = {nextafterf(middle, 0), middle, nextafterf(middle, 1e9f)};
        uint16_t got[3];

        assert_int_equal(sh_move_narrow(SH_MOVE_F16, (struct sh_floats){.whole = x}, 3, got), 3);
        assert_int_equal(got[0], i);
        assert_int_equal(got[1], i + (i & 1));
        assert_int_equal(got[2], i + 1);
    }
}

static void what_f16_does_not_have_is_told(void **state)
{
    const float x[] = {65504, 65519.99f, -65520, 1e30f};
    uint16_t got[4];

    (void)state;
    assert_int_equal(sh_move_narrow(SH_MOVE_F16, (struct sh_floats){.whole = (float *)(uintptr_t)x}, 4, got), 2);
    assert_int_equal(got[1], 0x7bff);
}

enum { ELEMS = 3000000, PARTS = 40 };

/* Parts of two files, of all types, at odd places, some longer than a chunk; given in any order. */
static int make_parts(float *data, struct sh_move_part *part, size_t *bytes)
{
    int64_t at[2] = {3, 8}, used = 0;
    int n = 0;

    for (; n < PARTS && used < ELEMS; n++) {
        int f = n % 2;
        int64_t elems = n == 4 ? 2200000 : 1 + (int64_t)(sh_mix64((uint64_t)n) % 40000);

        elems = elems < ELEMS - used ? elems : ELEMS - used;
        part[n] = (struct sh_move_part){.name = "a",
                                        .type = (enum sh_move_type)(n % SH_MOVE_TYPES),
                                        .file = f,
                                        .at = at[f],
                                        .elems = elems,
                                        .data = {.whole = data + used}};
        at[f] += elems * sh_move_type_bytes(part[n].type) + n % 3;
        used += elems;
    }
    for (int i = 0; i < n; i++) {
        int k = (int)(sh_mix64((uint64_t)i + 99) % (uint64_t)n);
        struct sh_move_part p = part[i];

        part[i] = part[k];
        part[k] = p;
    }
    *bytes = (size_t)used * sizeof *data;
    return n;
}

static void open_two(struct sh_file_direct file[2], char path[2][32])
{
    for (int i = 0; i < 2; i++) {
        strcpy(path[i], "test_move.XXXXXX");
        file[i] = (struct sh_file_direct){.path = path[i], .fd = mkstemp(path[i]), .direct = -1};
        assert_true(file[i].fd >= 0);
        assert_int_equal(ftruncate(file[i].fd, 20000000), 0);
    }
}

static void parts_come_back(void **state)
{
    float *data = calloc(ELEMS, sizeof *data), *want = calloc(ELEMS, sizeof *want);
    struct sh_move_part part[PARTS];
    struct sh_file_direct file[2];
    struct sh_move_parts p;
    char path[2][32];
    size_t bytes;

    (void)state;
    assert_non_null(data);
    assert_non_null(want);
    for (int i = 0; i < ELEMS; i++) /* numbers that all types can represent */
        data[i] = want[i] = (float)(i % 200 - 100) / 8;
    open_two(file, path);
    int n = make_parts(data, part, &bytes);
    assert_int_equal(sh_move_parts_make(part, n, &p), SH_OK);
    assert_int_equal(sh_move_parts_write(&p, file), SH_OK);
    assert_int_equal(sh_move_parts_compare(&p, file), SH_OK);
    memset(data, 0, ELEMS * sizeof *data);
    assert_int_equal(sh_move_parts_read(&p, file), SH_OK);
    assert_true(bytes > 2 << 22);
    assert_memory_equal(data, want, bytes);
    assert_int_equal(pwrite(file[0].fd, "x", 1, p.part[0].at + 2), 1);
    assert_int_equal(sh_move_parts_compare(&p, file), SH_E_DATA);
    assert_int_equal(ftruncate(file[1].fd, 1000), 0); /* it shrinks while it is read: an error line, and no signal */
    assert_int_equal(sh_move_parts_read(&p, file), SH_E_DATA);
    sh_move_parts_free(&p);
    for (int i = 0; i < 2; i++) {
        close(file[i].fd);
        unlink(path[i]);
    }
    free(data);
    free(want);
}

/* Parts are packed while they are read, each rank its own blocks: the same bytes as when packing the whole, for more
 * than a chunk, from each type. */
static void parts_are_packed(void **state)
{
    enum { BLOCKS = 40000, OWN = 123, ELEMS_OF_ALL = BLOCKS * SH_NF4_ELEMS };
    struct sh_file_direct file[2];
    char path[2][32];
    float *data = malloc(ELEMS_OF_ALL * sizeof *data);
    unsigned char *want = malloc(sh_nf4_bytes(ELEMS_OF_ALL)), *got = malloc(sh_nf4_bytes(ELEMS_OF_ALL));

    (void)state;
    for (int t = 0; t < SH_MOVE_TYPES; t++) {
        struct sh_move_part part[2] = {
            {.name = "w", .type = (enum sh_move_type)t, .at = 5, .elems = ELEMS_OF_ALL, .data.whole = data}};
        struct sh_move_parts parts;

        open_two(file, path);
        for (int i = 0; i < ELEMS_OF_ALL; i++)
            data[i] = (float)((int)(sh_mix64((uint64_t)i) % 2001) - 1000) / 256;
        assert_int_equal(sh_move_parts_make(part, 1, &parts), SH_OK);
        assert_int_equal(sh_move_parts_write(&parts, file), SH_OK);
        assert_int_equal(sh_move_parts_read(&parts, file), SH_OK);
        sh_move_parts_free(&parts);
        sh_nf4_pack(data, BLOCKS, want);

        part[0].data = (struct sh_floats){.packed = got};
        part[1] = part[0];
        part[0].elems = OWN * SH_NF4_ELEMS;
        part[1].elems -= part[0].elems;
        part[1].first = part[0].elems;
        part[1].at += part[0].elems * sh_move_type_bytes(part[1].type);
        part[1].data = sh_floats_at(part[1].data, part[0].elems);
        assert_int_equal(sh_move_parts_make(part, 2, &parts), SH_OK);
        assert_int_equal(sh_move_parts_read(&parts, file), SH_OK);
        assert_memory_equal(got, want, (size_t)sh_nf4_bytes(ELEMS_OF_ALL));
        sh_move_parts_free(&parts);
        for (int i = 0; i < 2; i++) {
            close(file[i].fd);
            unlink(path[i]);
        }
    }
    free(data);
    free(want);
    free(got);
}

static void numbers_that_are_none_have_their_name(void **state)
{
    float x[4] = {1, 2, INFINITY, NAN}, got[4];
    struct sh_move_part part = {.name = "wte.weight", .elems = 4, .first = 100, .data = {.whole = x}};
    struct sh_file_direct file[2];
    struct sh_move_parts p;
    char path[2][32];

    (void)state;
    open_two(file, path);
    assert_int_equal(sh_move_parts_make(&part, 1, &p), SH_OK);
    assert_int_equal(sh_move_parts_write(&p, file), SH_OK);
    p.part[0].data.whole = got;
    assert_int_equal(sh_move_parts_read(&p, file), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "element 102 of wte.weight is not a finite number"));
    sh_move_parts_free(&p);
    x[3] = 70000;
    part = (struct sh_move_part){.name = "wpe.weight", .type = SH_MOVE_F16, .elems = 4, .data = {.whole = x}};
    assert_int_equal(sh_move_parts_make(&part, 1, &p), SH_OK);
    assert_int_equal(sh_move_parts_write(&p, file), SH_E_NUMERIC);
    assert_non_null(strstr(sh_error_text(), "element 3 of wpe.weight is 70000"));
    sh_move_parts_free(&p);
    for (int i = 0; i < 2; i++) {
        close(file[i].fd);
        unlink(path[i]);
    }
}

static void overlaps_are_a_bug(void **state)
{
    float x[4];
    const struct sh_move_part part[2] = {{.name = "a", .at = 0, .elems = 2, .data = {.whole = x}},
                                         {.name = "b", .at = 7, .elems = 2, .data = {.whole = x + 2}}};
    struct sh_move_parts p;

    (void)state;
    assert_int_equal(sh_move_parts_make(part, 2, &p), SH_E_BUG);
    assert_int_equal(sh_move_parts_make(part, 0, &p), SH_OK);
    assert_int_equal(p.n_chunks, 0);
    sh_move_parts_free(&p);
}

static void neighbours_share_a_chunk_within_a_file(void **state)
{
    float x[6];
    const struct sh_move_part part[3] = {{.name = "a", .at = 0, .elems = 2, .data = {.whole = x}},
                                         {.name = "b", .at = 8, .elems = 2, .data = {.whole = x + 2}},
                                         {.name = "c", .file = 1, .at = 16, .elems = 2, .data = {.whole = x + 4}}};
    struct sh_move_parts p;

    (void)state;
    assert_int_equal(sh_move_parts_make(part, 3, &p), SH_OK);
    assert_int_equal(p.n_chunks, 2);
    assert_int_equal(p.chunk[0].n, 2);
    sh_move_parts_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_f16_and_bf16_is_widened_exactly_and_comes_back),
        cmocka_unit_test(bf16_in_halves_leaves_no_remainder),
        cmocka_unit_test(f16_rounds_to_nearest),
        cmocka_unit_test(what_f16_does_not_have_is_told),
        cmocka_unit_test(parts_come_back),
        cmocka_unit_test(parts_are_packed),
        cmocka_unit_test(numbers_that_are_none_have_their_name),
        cmocka_unit_test(overlaps_are_a_bug),
        cmocka_unit_test(neighbours_share_a_chunk_within_a_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
