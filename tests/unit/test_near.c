/* Slots of near checkpoints: what a torn or changed one looks like, and which one is written next. */
#include "src/near/slot.h"

#include "src/base/hash.h"
#include "src/base/mem.h"
#include "src/base/number/mixsum.h"
#include "tests/unit/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the rule, without memory ---- */

enum { RANKS = 3, HISTORIES = 10000, STEPS = 12 };

/* What a rank holds: the step of each slot, and the value of each of two words of it, of which a torn one has different
 * ones. */
struct model_slot {
    bool done;
    int64_t step, word[2];
};

struct model {
    struct model_slot slot[RANKS][SH_NEAR_SLOTS];
    int64_t safe[RANKS], mine[RANKS];
};

static uint64_t chance;

static int draw(int n)
{
    chance = sh_mix64(chance + 1);
    return (int)(chance % (uint64_t)n);
}

/* One store of the copy of a generation; false: it was the last. */
static bool store(struct model *m, int rank, int64_t step, int at)
{
    int64_t held[SH_NEAR_SLOTS];
    struct model_slot *s;

    for (int i = 0; i < SH_NEAR_SLOTS; i++)
        held[i] = m->slot[rank][i].done ? m->slot[rank][i].step : -1;
    s = &m->slot[rank][m->mine[rank] >= 0 ? m->mine[rank] : sh_near_choose(held, m->safe[rank])];
    m->mine[rank] = s - m->slot[rank];
    if (at == 0)
        s->done = false;
    if (at == 1 || at == 2)
        s->word[at - 1] = step;
    if (at == 3) {
        s->step = step;
        s->done = true;
        m->mine[rank] = -1;
    }
    return at < 3;
}

/* The newest step that all have, whose words must all be its own. */
static int64_t newest(const struct model *m)
{
    int64_t most = -1;

    for (int64_t step = 0; step <= STEPS; step++) {
        int have = 0;

        for (int r = 0; r < RANKS; r++)
            for (int i = 0; i < SH_NEAR_SLOTS; i++)
                if (m->slot[r][i].done && m->slot[r][i].step == step) {
                    assert_int_equal(m->slot[r][i].word[0], step);
                    assert_int_equal(m->slot[r][i].word[1], step);
                    have++;
                }
        most = have == RANKS ? step : most;
    }
    return most;
}

/* A job whose ranks copy at their own pace and are all killed between any two stores; generations may be left out. */
static void run_history(void)
{
    struct model m = {0};
    int64_t safe = -1;

    for (int r = 0; r < RANKS; r++)
        m.safe[r] = m.mine[r] = -1;
    for (int64_t step = 1; step < STEPS; step++) {
        int at[RANKS] = {0}, left = RANKS;

        if (draw(4) == 0)
            continue; /* not due */
        while (left > 0) {
            int r = draw(RANKS);

            if (draw(60) == 0) {
                assert_true(newest(&m) >= safe);
                return;
            }
            if (at[r] <= 3 && !store(&m, r, step, at[r]++))
                left--;
        }
        safe = step;
        for (int r = 0; r < RANKS; r++)
            m.safe[r] = step;
    }
    assert_int_equal(newest(&m), safe);
}

static void no_history_loses_a_safe_generation(void **state)
{
    (void)state;
    for (int i = 0; i < HISTORIES; i++) {
        chance = sh_mix64((uint64_t)i + 1);
        run_history();
    }
}

/* ---- a slot in memory ---- */

static struct sh_near_slot make(const struct sh_program *p, const struct sh_mesh_shape *shape, int64_t *bytes)
{
    struct sh_near_slot s;
    void *memory = NULL;

    *bytes = sh_near_bytes(p, shape);
    assert_int_equal(posix_memalign(&memory, SH_NEAR_PAGE, (size_t)*bytes), 0);
    memset(memory, 0, (size_t)*bytes);
    assert_false(sh_near_view(memory, *bytes, &s));
    sh_near_format(memory, p, shape, 7, &s);
    return s;
}

/* Numbers, and their sums as a copy makes them. */
static void fill(const struct sh_near_slot *s, int64_t step)
{
    static const struct sh_near_text text = {"a: 1\n", "guard", "", "base"};
    const struct sh_near_mark mark = {.step = step, .samples = 8 * step};

    sh_near_begin(s);
    assert_int_equal(sh_near_state(s), SH_NEAR_FILLING);
    for (int i = 0; i < s->head->n_units; i++)
        for (int k = 0; k < s->head->n_states; k++) {
            struct sh_floats f = sh_near_array(s, i, k);

            for (int64_t j = 0; j < s->unit[i].n; j++)
                sh_floats_put(sh_floats_at(f, j), 1, &(float){(float)(j + 10 * i + k)});
            s->sum[i * s->head->n_states + k] = sh_mixsum(f, s->unit[i].n, sh_near_place(step, i, k, 0));
        }
    assert_int_equal(sh_near_end(s, &mark, &text), SH_OK);
}

/* Each bit of what is before the arrays. */
static void every_bit_of_the_head_counts(const struct sh_near_slot *s, int64_t bytes)
{
    unsigned char *memory = (unsigned char *)s->head;

    for (int64_t bit = 0; bit < 8 * (s->head->text_at + s->head->text_bytes); bit++) {
        if (bit / 8 >= (int64_t)sizeof *s->head && bit / 8 < s->head->rows_at)
            continue; /* nothing lies there */
        memory[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_true(sh_near_empty_damaged(memory, bytes));
        assert_false(sh_near_empty_damaged(memory, bytes)); /* it is said once */
        atomic_store(&s->head->state, SH_NEAR_DONE);
        if (bit / 8 < (int64_t)offsetof(struct sh_near_head, state) ||
            bit / 8 >= (int64_t)offsetof(struct sh_near_head, state) + 4)
            memory[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    assert_false(sh_near_empty_damaged(memory, bytes));
}

/* Some bits of the arrays. */
static void bits_of_arrays_count(const struct sh_near_slot *s, int64_t bytes)
{
    unsigned char *memory = (unsigned char *)s->head;

    for (int64_t bit = 8 * s->unit[0].at; bit < 8 * bytes; bit += 4001) {
        int64_t at = bit / 8;

        memory[at] ^= (unsigned char)(1 << bit % 8);
        if (sh_near_check(s) == SH_OK) {
            int64_t inside = 0;

            for (int i = 0; i < s->head->n_units; i++)
                for (int k = 0; k < s->head->n_states; k++)
                    for (int a = 0; a < SH_FLOATS_ARRAYS; a++) {
                        unsigned char *array = sh_floats_array(sh_near_array(s, i, k), a);

                        inside += array && memory + at >= array &&
                                  memory + at < array + sh_floats_bytes(sh_near_array(s, i, k), s->unit[i].n);
                    }
            assert_int_equal(inside, 0); /* only what lies between the arrays */
        }
        memory[at] ^= (unsigned char)(1 << bit % 8);
    }
    assert_int_equal(sh_near_check(s), SH_OK);
    sh_error_clear();
}

static void slots_describe_themselves(void **state)
{
    struct sh_build build = tiny_build(&tiny_models[0], 1);

    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        struct sh_mesh_shape shape = tiny_mesh(3, 1, 1, rank);
        struct sh_program *p = tiny_program(&build, shape);
        struct sh_near_slot s, seen;
        int64_t bytes, elems = 0, rows = 0;

        s = make(p, &shape, &bytes);
        fill(&s, 5);
        assert_true(sh_near_view(s.head, bytes, &seen));
        assert_false(sh_near_view(s.head, bytes - SH_NEAR_PAGE, &seen));
        assert_string_equal(sh_near_texts(&s).guard, "guard");
        assert_string_equal(sh_near_texts(&s).base, "base");
        for (int i = 0; i < s.head->n_units; i++)
            elems += s.unit[i].n;
        for (int i = 0; i < s.head->n_rows; i++)
            rows += s.row[i].n * s.row[i].count;
        assert_int_equal(elems, rows);
        if (rank == 1) {
            every_bit_of_the_head_counts(&s, bytes);
            bits_of_arrays_count(&s, bytes);
        }
        free(s.head);
        sh_program_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_history_loses_a_safe_generation),
                                       cmocka_unit_test(slots_describe_themselves)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
