/* Which rank holds which elements: for 1 to 9 ranks, each element once and in order. */
#include "src/layout/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const int64_t sizes[] = {0,   1,   63,  64,   65,   127,  128,     129,
                                575, 576, 577, 1000, 4096, 4097, 1000003, INT64_C(70) << 30};
enum { SIZES = sizeof sizes / sizeof *sizes, MOST_RANKS = 9 };

/* Check that pieces follow each other without a gap from begin to end, and all except the last ones are
 * whole chunks. */
static void check_cut(struct sh_range whole, int parts, struct sh_range (*piece)(struct sh_range, int, int))
{
    int64_t at = whole.begin, chunk = sh_layout_chunk(whole.end - whole.begin, parts);

    for (int i = 0; i < parts; i++) {
        struct sh_range r = piece(whole, parts, i);

        assert_int_equal(r.begin, at);
        assert_true(r.end >= r.begin && r.end - r.begin <= chunk);
        if (r.end < whole.end)
            assert_int_equal(r.end - r.begin, chunk);
        at = r.end;
    }
    assert_int_equal(at, whole.end);
}

static struct sh_range owned(struct sh_range whole, int parts, int i)
{
    return sh_layout_owned(whole.end, parts, i);
}

static void ranks_own_each_element_once(void **state)
{
    (void)state;
    for (int i = 0; i < SIZES; i++)
        for (int size = 1; size <= MOST_RANKS; size++)
            check_cut((struct sh_range){0, sizes[i]}, size, owned);
}

static void chunks_are_equal_aligned_and_tight(void **state)
{
    (void)state;
    for (int i = 0; i < SIZES; i++)
        for (int size = 1; size <= MOST_RANKS; size++) {
            int64_t chunk = sh_layout_chunk(sizes[i], size);

            assert_int_equal(chunk % SH_LAYOUT_ALIGN, 0);
            assert_true(chunk * size >= sizes[i]);
            assert_true((chunk - SH_LAYOUT_ALIGN) * size < sizes[i] || sizes[i] == 0);
        }
}

static void replicas_split_what_they_hold(void **state)
{
    static const struct sh_range ranges[] = {{0, 0}, {5, 5}, {3, 4}, {0, 64}, {7, 72}, {64, 4161}, {1000, 1000003}};

    (void)state;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int parts = 1; parts <= MOST_RANKS; parts++)
            check_cut(ranges[i], parts, sh_layout_split);
}

static void intersections(void **state)
{
    static const struct {
        struct sh_range a, b, common;
    } table[] = {
        {{0, 10}, {0, 10}, {0, 10}},   {{0, 10}, {3, 5}, {3, 5}},     {{0, 10}, {5, 15}, {5, 10}},
        {{0, 10}, {10, 20}, {10, 10}}, {{0, 10}, {15, 20}, {15, 15}}, {{4, 4}, {0, 10}, {4, 4}},
        {{0, 0}, {0, 0}, {0, 0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int turned = 0; turned < 2; turned++) {
            struct sh_range r = turned ? sh_layout_intersect(table[i].b, table[i].a)
                                       : sh_layout_intersect(table[i].a, table[i].b);

            assert_int_equal(r.begin, table[i].common.begin);
            assert_int_equal(r.end, table[i].common.end);
        }
}

/* The chunk of a rank of one mesh consists, piece by piece, of what the ranks of any other mesh hold. */
static void another_mesh_covers_a_chunk(void **state)
{
    (void)state;
    for (int from = 1; from <= MOST_RANKS; from++)
        for (int to = 1; to <= MOST_RANKS; to++)
            for (int i = 0; i < from; i++) {
                struct sh_range mine = sh_layout_owned(4097, from, i);
                int64_t found = 0;

                for (int k = 0; k < to; k++) {
                    struct sh_range common = sh_layout_intersect(mine, sh_layout_owned(4097, to, k));

                    found += common.end - common.begin;
                }
                assert_int_equal(found, mine.end - mine.begin);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_own_each_element_once),   cmocka_unit_test(chunks_are_equal_aligned_and_tight),
        cmocka_unit_test(replicas_split_what_they_hold), cmocka_unit_test(intersections),
        cmocka_unit_test(another_mesh_covers_a_chunk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
