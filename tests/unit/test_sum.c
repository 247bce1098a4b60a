/* Sums over ranks: one balanced tree over the sources, whatever their number, type and length. */
#include "src/comm/sum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_SOURCES = 17, MOST_ELEMS = 777 };

static double source[MOST_SOURCES][MOST_ELEMS];
static char stored[MOST_SOURCES][MOST_ELEMS * sizeof(double)];
static const void *src[MOST_SOURCES];

static void put(enum sh_dtype t, void *at, int i, double v)
{
    if (t == SH_F64)
        ((double *)at)[i] = v;
    else if (t == SH_F32)
        ((float *)at)[i] = (float)v;
    else
        ((sh_bf16 *)at)[i] = sh_f32_to_bf16((float)v);
}

static double get(enum sh_dtype t, const void *at, int i)
{
    if (t == SH_F64)
        return ((const double *)at)[i];
    return t == SH_F32 ? ((const float *)at)[i] : sh_bf16_to_f32(((const sh_bf16 *)at)[i]);
}

/* The magnitudes differ so much that each order of summation gives different bits. */
static void fill(enum sh_dtype t)
{
    srand(7);
    for (int s = 0; s < MOST_SOURCES; s++) {
        src[s] = stored[s];
        for (int i = 0; i < MOST_ELEMS; i++) {
            put(t, stored[s], i, (rand() / (double)RAND_MAX - 0.5) * (rand() % 3 ? 1e-3 : 1e3));
            source[s][i] = get(t, stored[s], i);
        }
    }
}

/* The sum of sources [first, first + n), in the type of the additions: f32 for bf16. */
static double tree(enum sh_dtype t, int i, int first, int n)
{
    int left = 1;
    double sum;

    if (n == 1)
        return source[first][i];
    while (left * 2 < n)
        left *= 2;
    sum = tree(t, i, first, left) + tree(t, i, first + left, n - left);
    return t == SH_F64 ? sum : (double)(float)sum;
}

static void check(enum sh_dtype t, const char *out, int n, int elems)
{
    char want[sizeof(double)], *behind = (char *)(uintptr_t)out + (size_t)elems * (size_t)sh_dtype_bytes(t);

    for (int i = 0; i < elems; i++) {
        put(t, want, 0, tree(t, i, 0, n));
        if (get(t, want, 0) != get(t, out, i))
            fail_msg("%s, %d sources, element %d of %d: %.17g, not %.17g", sh_dtype_name(t), n, i, elems,
                     get(t, out, i), get(t, want, 0));
    }
    assert_int_equal(*behind, 0x5a);
}

static void sums_are_trees(void **state)
{
    static const enum sh_dtype types[] = {SH_F32, SH_F64, SH_BF16};
    static const int lengths[] = {1, 255, 256, 257, MOST_ELEMS};
    char *out = malloc((MOST_ELEMS + 1) * sizeof(double));

    (void)state;
    for (int t = 0; t < 3; t++) {
        fill(types[t]);
        for (int n = 1; n <= MOST_SOURCES; n++)
            for (int l = 0; l < 5; l++)
                for (int away = 0; away < 2; away++) {
                    memset(out, 0x5a, (MOST_ELEMS + 1) * sizeof(double));
                    (away ? sh_comm_sum_away : sh_comm_sum)(types[t], out, src, n, lengths[l]);
                    check(types[t], out, n, lengths[l]);
                }
    }
    free(out);
}

/* Summing blocks of a power of two of sources first, then the blocks, gives the bits of one sum, also in bf16. */
static void blocks_are_branches(void **state)
{
    static const enum sh_dtype types[] = {SH_F32, SH_F64, SH_BF16};
    static char opened[MOST_SOURCES][MOST_ELEMS * sizeof(double)];
    const void *branch[MOST_SOURCES];
    char *out = malloc((MOST_ELEMS + 1) * sizeof(double));

    (void)state;
    assert_int_equal(sh_comm_sum_type(SH_BF16), SH_F32);
    for (int t = 0; t < 3; t++)
        for (int block = 1; block <= 8; block *= 2)
            for (int blocks = 1; blocks * block <= MOST_SOURCES; blocks++) {
                fill(types[t]);
                for (int b = 0; b < blocks; b++) {
                    branch[b] = opened[b];
                    sh_comm_sum_open(types[t], opened[b], src + (ptrdiff_t)b * block, block, MOST_ELEMS);
                }
                memset(out, 0x5a, (MOST_ELEMS + 1) * sizeof(double));
                sh_comm_sum_close(types[t], out, branch, blocks, MOST_ELEMS);
                check(types[t], out, blocks * block, MOST_ELEMS);
            }
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_trees),
        cmocka_unit_test(blocks_are_branches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
