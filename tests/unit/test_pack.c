/* Packing: each document has one place, no row is too long, best fit agrees with a plain search, rows are full. */
#include "io/data/pack.h"
#include "src/base/hash.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { T = 16 };

/* Lengths of a test, in tokens. */
struct lengths {
    const int64_t *tokens;
    uint64_t seed; /* draw lengths at random if `tokens` is NULL */
    double mean, spread;
};

static uint64_t draw(uint64_t *state)
{
    return sh_mix64((*state)++);
}

/* A length whose logarithm is nearly normally distributed: the sum of twelve uniform numbers. */
static int64_t log_normal(const struct lengths *l, int64_t d)
{
    double sum = -6;

    for (uint64_t k = 0; k < 12; k++)
        sum += (double)(sh_mix64(l->seed + (uint64_t)d * 12 + k) >> 11) * 0x1p-53;
    return (int64_t)exp(l->mean + l->spread * sum) + 2;
}

static sh_rc give(const void *ctx, int64_t first, int64_t n, int64_t *tokens)
{
    const struct lengths *l = ctx;

    for (int64_t i = 0; i < n; i++)
        tokens[i] = l->tokens ? l->tokens[first + i] : log_normal(l, first + i);
    return SH_OK;
}

/* Collect the pieces of all rows, in order. Each row is at most T long; the sum of places is the pack's. */
static int64_t walk(const struct sh_pack *p, const int64_t *tokens, struct sh_piece *out)
{
    int64_t n = 0, used = 0;

    for (int64_t row = 0; row < p->rows; row++) {
        int64_t places = 0;
        if (row < p->whole) {
            out[n] = sh_pack_whole(p, row);
            places = out[n++].places;
            assert_int_equal(places, p->seq_len);
        }
        for (int32_t d = row < p->whole ? -1 : p->first[row - p->whole]; d >= 0; d = p->next ? p->next[d] : -1) {
            out[n] = sh_pack_piece(p, d, tokens[d]);
            places += out[n++].places;
        }
        assert_in_range(places, 1, p->seq_len);
        used += places;
    }
    assert_int_equal(used, p->used);
    return n;
}

/* Compare the pieces of each document with what it must have. */
static void check_pieces(const int64_t *tokens, int64_t n_docs, enum sh_cfg_packing packing, enum sh_cfg_excess excess)
{
    struct lengths l = {.tokens = tokens};
    struct sh_piece piece[4096];
    int64_t seen[512] = {0}, n;
    struct sh_pack p;

    assert_int_equal(sh_pack_build("x", T, packing, excess, n_docs, give, &l, &p), SH_OK);
    n = walk(&p, tokens, piece);
    assert_true(n <= 4096);
    for (int64_t i = 0; i < n; i++) {
        int64_t d = piece[i].document;
        assert_true(piece[i].begin % T == 0 && piece[i].places > 0);
        assert_true(piece[i].begin + piece[i].places <= tokens[d] - 1);
        seen[d] += piece[i].places;
    }
    for (int64_t d = 0; d < n_docs; d++) {
        int64_t all = tokens[d] > 1 ? tokens[d] - 1 : 0;
        int64_t right = all <= T || excess == SH_EXCESS_SPLIT ? all : excess == SH_EXCESS_TRUNCATE ? T : 0;
        assert_int_equal(seen[d], right);
    }
    sh_pack_free(&p);
}

static void all_have_a_place(void **state)
{
    static const enum sh_cfg_excess ways[] = {SH_EXCESS_TRUNCATE, SH_EXCESS_DROP, SH_EXCESS_SPLIT};
    uint64_t seed = 1;

    (void)state;
    for (int run = 0; run < 300; run++) {
        int64_t tokens[512], n = 1 + (int64_t)(draw(&seed) % 511);
        uint64_t most = run % 3 == 0 ? T + 2 : 5 * T;
        for (int64_t d = 0; d < n; d++)
            tokens[d] = (int64_t)(draw(&seed) % most);
        tokens[0] = 2;
        for (int w = 0; w < 3; w++) {
            check_pieces(tokens, n, SH_PACKING_BFD, ways[w]);
            check_pieces(tokens, n, SH_PACKING_NONE, ways[w]);
        }
    }
}

/* The definition of best fit: documents from the longest down, each into the row with the least room that suffices.
 * Returns the number of rows. */
static int64_t search(const int64_t *tokens, int64_t n)
{
    int room[512];
    int64_t rows = 0;

    for (int places = T; places > 0; places--)
        for (int64_t d = 0; d < n; d++) {
            int64_t best = -1;
            if (tokens[d] - 1 != places)
                continue;
            for (int64_t r = 0; r < rows; r++)
                if (room[r] >= places && (best < 0 || room[r] < room[best]))
                    best = r;
            if (best < 0)
                room[best = rows++] = T;
            room[best] -= places;
        }
    return rows;
}

static void fits_best(void **state)
{
    uint64_t seed = 7;

    (void)state;
    for (int run = 0; run < 300; run++) {
        int64_t tokens[512], n = 1 + (int64_t)(draw(&seed) % 511);
        struct lengths l = {.tokens = tokens};
        struct sh_pack p;
        for (int64_t d = 0; d < n; d++)
            tokens[d] = 2 + (int64_t)(draw(&seed) % (run % 2 ? T : 5));
        assert_int_equal(sh_pack_build("x", T, SH_PACKING_BFD, SH_EXCESS_RAISE, n, give, &l, &p), SH_OK);
        assert_int_equal(p.rows, search(tokens, n));
        sh_pack_free(&p);
    }
}

/* The positions of later runs refer to row numbers: the rows must never change. */
static void rows_are_those_of_the_format(void **state)
{
    static const int64_t tokens[] = {9, 5, 40, 1, 13, 5, 17, 0, 3};
    static const struct sh_piece right[] = {{2, 0, 16}, {2, 16, 16}, {6, 0, 16}, {5, 0, 4}, {4, 0, 12},
                                            {2, 32, 7}, {0, 0, 8},   {8, 0, 2},  {1, 0, 4}};
    struct lengths l = {.tokens = tokens};
    struct sh_piece piece[16];
    struct sh_pack p;

    (void)state;
    assert_int_equal(sh_pack_build("x", T, SH_PACKING_BFD, SH_EXCESS_SPLIT, 9, give, &l, &p), SH_OK);
    assert_int_equal(p.rows, 6);
    assert_int_equal(p.whole, 2);
    assert_int_equal(p.left_out, 2);
    assert_int_equal(p.cut, 1);
    assert_int_equal(walk(&p, tokens, piece), 9);
    for (int i = 0; i < 9; i++) {
        if (piece[i].document != right[i].document || piece[i].begin != right[i].begin ||
            piece[i].places != right[i].places)
            fail_msg("piece %d is {%d, %d, %d}", i, (int)piece[i].document, (int)piece[i].begin, piece[i].places);
    }
    sh_pack_free(&p);
}

static void refused(void **state)
{
    static const int64_t lengths[] = {3, 40, 18, 17};
    struct lengths l = {.tokens = lengths};
    struct sh_pack p;

    (void)state;
    assert_int_equal(sh_pack_build("a.bin", T, SH_PACKING_BFD, SH_EXCESS_RAISE, 4, give, &l, &p), SH_E_DATA);
    assert_string_equal(
        sh_error_text(),
        "a.bin: 2 of 4 documents have more than 17 tokens (training.seq_len + 1), the longest 40; give "
        "data.excess_length_strategy: drop, truncate (texts without labels) or split (texts without answers and labels), or longer sequences");
    assert_int_equal(sh_pack_build("a.bin", T, SH_PACKING_BFD, SH_EXCESS_DROP, 0, give, &l, &p), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "none of 0 documents"));
    assert_int_equal(sh_pack_build("a.bin", T, SH_PACKING_BFD, SH_EXCESS_DROP, INT64_C(1) << 31, give, &l, &p),
                     SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "at most 2147483647"));
}

/* Processor time of this thread, because a machine may be busy. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Conversations and articles: half are below 400 tokens, a few reach the length of a row. */
static void rows_are_full(void **state)
{
    struct lengths l = {.seed = 3, .mean = 6, .spread = 1};
    int64_t n = getenv("SHERD_LONG") ? 10000000 : 1000000;
    double begin = seconds(), fill;
    struct sh_pack p;

    (void)state;
    assert_int_equal(sh_pack_build("x", 4096, SH_PACKING_BFD, SH_EXCESS_SPLIT, n, give, &l, &p), SH_OK);
    fill = (double)p.used / ((double)p.rows * 4096);
    print_message("%lld documents in %lld rows, %.5f full, %.2f s, %.1f MB kept\n", (long long)n, (long long)p.rows,
                  fill, seconds() - begin, 4e-6 * (double)(n + p.rows));
    assert_true(fill >= 0.995);
    assert_true(seconds() - begin < 10);
    sh_pack_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_have_a_place),
        cmocka_unit_test(fits_best),
        cmocka_unit_test(rows_are_those_of_the_format),
        cmocka_unit_test(refused),
        cmocka_unit_test(rows_are_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
