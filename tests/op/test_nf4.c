/* Four bits per element: what bitsandbytes made of some numbers (tests/hf/make_nf4.py), and any numbers one by one. */
#include "src/base/number/nf4.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 64 };

static struct {
    int64_t blocks;
    float x[MOST][SH_NF4_ELEMS], back[MOST][SH_NF4_ELEMS], scale[MOST];
    unsigned char code[MOST][SH_NF4_CODE_BYTES];
} theirs;

static void take(FILE *in, void *to, size_t bytes)
{
    assert_int_equal(fread(to, 1, bytes, in), bytes);
}

static int read_theirs(void **state)
{
    const char *top = getenv("SHERD_SRCDIR");
    char path[4096];
    FILE *in;

    (void)state;
    snprintf(path, sizeof path, "%s/tests/op/nf4.bin", top ? top : ".");
    in = fopen(path, "rb");
    assert_non_null(in);
    take(in, &theirs.blocks, sizeof theirs.blocks);
    assert_in_range(theirs.blocks, 1, MOST);
    take(in, theirs.x, (size_t)theirs.blocks * sizeof theirs.x[0]);
    take(in, theirs.code, (size_t)theirs.blocks * sizeof theirs.code[0]);
    take(in, theirs.scale, (size_t)theirs.blocks * sizeof theirs.scale[0]);
    take(in, theirs.back, (size_t)theirs.blocks * sizeof theirs.back[0]);
    fclose(in);
    return 0;
}

static void theirs_bit_for_bit(void **state)
{
    static unsigned char packed[MOST][SH_NF4_BLOCK_BYTES], joined[MOST][SH_NF4_BLOCK_BYTES];
    static float back[MOST][SH_NF4_ELEMS];
    size_t bytes = (size_t)sh_nf4_bytes(theirs.blocks * SH_NF4_ELEMS);

    (void)state;
    sh_nf4_pack(theirs.x[0], theirs.blocks, packed);
    sh_nf4_join(theirs.code, NULL, theirs.blocks, joined);
    sh_nf4_join(NULL, theirs.scale, theirs.blocks, joined);
    for (int64_t b = 0; b < theirs.blocks; b++)
        if (memcmp(packed[b], joined[b], sizeof packed[b]) != 0)
            fail_msg("block %lld differs", (long long)b);
    sh_nf4_unpack(packed, theirs.blocks, back[0]);
    assert_memory_equal(back, theirs.back, bytes / SH_NF4_BLOCK_BYTES * sizeof back[0]);
}

/* The code of one number, following the text of the header. */
static int code_of(float x, float scale)
{
    static const float numbers[16] = SH_NF4_NUMBERS;
    volatile float reciprocal = 1 / (scale > 1e-38f ? scale : 1e-38f), scaled = x * reciprocal;
    int code = 0;

    for (int m = 0; m < 15; m++)
        code += scaled > (numbers[m] + numbers[m + 1]) / 2;
    return code;
}

static float random_float(void)
{
    return (float)((rand() / (double)RAND_MAX - 0.5) * pow(10, rand() % 60 - 30));
}

/* No part of the packed matrix depends on another: any cut gives the same bytes. */
static void one_by_one_and_cut(void **state)
{
    static float x[MOST * SH_NF4_ELEMS];
    static unsigned char whole[MOST * SH_NF4_BLOCK_BYTES], parts[MOST * SH_NF4_BLOCK_BYTES + 1];

    (void)state;
    srand(5);
    for (int round = 0; round < 200; round++) {
        int cut = rand() % (MOST + 1);
        unsigned char *odd = parts + round % 2; /* of any alignment */

        for (int i = 0; i < MOST * SH_NF4_ELEMS; i++)
            x[i] = random_float() * (i % 7 ? 1 : 1e-3f);
        sh_nf4_pack(x, MOST, whole);
        for (int i = 0; i < MOST * SH_NF4_ELEMS; i++) {
            const unsigned char *block = whole + i / SH_NF4_ELEMS * SH_NF4_BLOCK_BYTES;
            int pair = block[i % SH_NF4_ELEMS / 2];
            float scale;

            memcpy(&scale, block + SH_NF4_CODE_BYTES, sizeof scale);
            assert_true(fabsf(x[i]) <= scale);
            assert_int_equal(i % 2 ? pair & 15 : pair >> 4, code_of(x[i], scale));
        }
        sh_nf4_pack(x, cut, odd);
        sh_nf4_pack(x + cut * SH_NF4_ELEMS, MOST - cut, odd + cut * SH_NF4_BLOCK_BYTES);
        assert_memory_equal(odd, whole, sizeof whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(theirs_bit_for_bit), cmocka_unit_test(one_by_one_and_cut)};

    return cmocka_run_group_tests(tests, read_theirs, NULL);
}
