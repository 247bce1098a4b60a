/* Which tokens may be chosen, and how often each is. */
#include "src/text/generate/sampling.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { WORDS = 8, DRAWS = 20000 };

/* Probabilities at temperature 1: 0.3, 0.05, 0.2, 0.1, 0.2, 0.02, 0.12, 0.01; words 2 and 4 are equal. */
static const double chance[WORDS] = {0.3, 0.05, 0.2, 0.1, 0.2, 0.02, 0.12, 0.01};

/* The words that the warpers of transformers leave, worked out by hand: bit i stands for word i. */
static const struct row {
    struct sh_sampling s;
    unsigned left;
} rows[] = {
    {{.temperature = 1, .top_p = 1}, 0xff},
    {{.temperature = 1, .top_p = 1, .top_k = 1}, 0x01},
    {{.temperature = 1, .top_p = 1, .top_k = 2}, 0x15}, /* ties at the limit stay */
    {{.temperature = 1, .top_p = 1, .top_k = 4}, 0x55},
    {{.temperature = 1, .top_p = 1, .top_k = 100}, 0xff},
    {{.temperature = 1, .top_p = 0.75}, 0x55}, /* 0.3 + 0.2 + 0.2 is too little, with 0.12 it is enough */
    {{.temperature = 1, .top_p = 0.6}, 0x15},
    {{.temperature = 1, .top_p = 1e-9}, 0x01}, /* one word is always left */
    {{.temperature = 1, .top_p = 1, .min_p = 0.3}, 0x5d},
    {{.temperature = 1, .top_p = 1, .min_p = 1}, 0x01},
    {{.temperature = 1, .top_k = 4, .top_p = 0.8},
     0x15}, /* 0.82 is left after top_k: the last, 0.12, is less than the fifth to leave out */
    {{.temperature = 0.5, .top_p = 1, .min_p = 0.3}, 0x15}, /* probabilities are squared: 0.2 is 0.4 of the largest */
    {{.temperature = 2, .top_p = 1, .min_p = 0.6}, 0x55},
    {{.temperature = 2, .top_p = 0.75}, 0x5d},
};
enum { ROWS = sizeof rows / sizeof *rows };

static void logits_of(float *logits)
{
    for (int i = 0; i < WORDS; i++)
        logits[i] = (float)(log(chance[i]) + 3);
}

/* Compute the expected probabilities of a row, which sum to 1. */
static void expected_of(const struct row *r, double *p)
{
    double sum = 0;

    for (int i = 0; i < WORDS; i++) {
        p[i] = r->left >> i & 1u ? pow(chance[i], 1 / r->s.temperature) : 0;
        sum += p[i];
    }
    for (int i = 0; i < WORDS; i++)
        p[i] /= sum;
}

/* The value of chi square that a correct sampler exceeds once in 10,000 rows, by degrees of freedom. */
static double limit_of(int freedom)
{
    static const double limit[WORDS] = {0, 15.14, 18.42, 21.11, 23.51, 25.74, 27.86, 29.88};

    return limit[freedom];
}

static void frequencies(void **state)
{
    float logits[WORDS];

    (void)state;
    logits_of(logits);
    for (int r = 0; r < ROWS; r++) {
        struct sh_sampling s = rows[r].s;
        double p[WORDS], chi = 0;
        int count[WORDS] = {0}, freedom = -1;

        s.seed = 7 + (uint64_t)r;
        for (int i = 0; i < DRAWS; i++)
            count[sh_sample(&s, logits, WORDS, (uint64_t)i % 100, (uint64_t)i / 100)]++;
        expected_of(&rows[r], p);
        for (int i = 0; i < WORDS; i++) {
            if (p[i] == 0 && count[i])
                fail_msg("row %d: word %d was chosen %d times", r, i, count[i]);
            freedom += p[i] > 0;
            chi += p[i] > 0 ? (count[i] - DRAWS * p[i]) * (count[i] - DRAWS * p[i]) / (DRAWS * p[i]) : 0;
        }
        if (chi > limit_of(freedom))
            fail_msg("row %d: chi square is %.1f with %d degrees of freedom", r, chi, freedom);
    }
}

/* A token depends only on these three. */
static void by_seed_text_and_position(void **state)
{
    struct sh_sampling s = {.temperature = 1, .top_p = 1, .seed = 3}, other = {.temperature = 1, .top_p = 1, .seed = 4};
    int same[3] = {0};
    float logits[WORDS];

    (void)state;
    logits_of(logits);
    for (uint64_t i = 0; i < 1000; i++) {
        uint32_t id = sh_sample(&s, logits, WORDS, 5, i);

        assert_int_equal(id, sh_sample(&s, logits, WORDS, 5, i));
        same[0] += id == sh_sample(&other, logits, WORDS, 5, i);
        same[1] += id == sh_sample(&s, logits, WORDS, 6, i);
        same[2] += id == sh_sample(&s, logits, WORDS, 5, i + 1);
    }
    /* By chance, 0.2 of them agree. */
    for (int i = 0; i < 3; i++)
        assert_in_range(same[i], 120, 280);
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

/* The limit of top_k is the same as from a full sort, for any number of words with any number of equal ones. */
static void top_k_of_many(void **state)
{
    enum { MOST = 3000 };
    static float logits[MOST], sorted[MOST];

    (void)state;
    srand(5);
    for (int trial = 0; trial < 60; trial++) {
        int n = 2 + rand() % (MOST - 2), k = 1 + rand() % n, kinds = trial % 3 == 0 ? 5 : 1 << 20;
        struct sh_sampling s = {.temperature = 1, .top_p = 1, .top_k = k, .seed = (uint64_t)trial};

        for (int i = 0; i < n; i++)
            sorted[i] = logits[i] = (float)(rand() % kinds) / 65536.0f;
        qsort(sorted, (size_t)n, sizeof *sorted, descending);
        for (uint64_t i = 0; i < 20; i++)
            assert_true(logits[sh_sample(&s, logits, n, 0, i)] >= sorted[k - 1]);
    }
}

/* Greedy takes the first of equal logits, and so does a top_p that it meets exactly; huge logits do not overflow; NaN
 * logits still choose something. */
static void odd_logits(void **state)
{
    static const float equal[] = {1, 4, 4, 2}, two[] = {4, 4}, huge[] = {3e38f, -3e38f, -INFINITY}, nan[] = {NAN, NAN};
    struct sh_sampling greedy = {.temperature = 0}, s = {.temperature = 1, .top_p = 0.9, .top_k = 2, .min_p = 0.1},
                       half = {.temperature = 1, .top_p = 0.5};

    (void)state;
    assert_int_equal(sh_sample(&greedy, equal, 4, 0, 0), 1);
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(sh_sample(&half, two, 2, 0, i), 0);
    assert_int_equal(sh_sample(&s, huge, 3, 0, 0), 0);
    assert_in_range(sh_sample(&s, nan, 2, 0, 0), 0, 1);
    s.top_k = 1;
    assert_in_range(sh_sample(&s, nan, 2, 0, 0), 0, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies),
        cmocka_unit_test(by_seed_text_and_position),
        cmocka_unit_test(top_k_of_many),
        cmocka_unit_test(odd_logits),
    };
    return cmocka_run_group_tests_name("sampling", tests, NULL, NULL);
}
