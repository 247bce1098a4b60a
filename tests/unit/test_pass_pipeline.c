/* Stages: their order of work, their blocks, and that messages which do not fit together are named. */
#include "src/pass/pipeline/links.h"
#include "src/pass/pipeline/order.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES_MAX = 16, MICROS_MAX = 64 };

/* Each forward and backward once, ascending; no more micro-steps kept than there are stages from this one on. */
static void items_are_one_forward_one_backward(void **state)
{
    (void)state;
    for (int stages = 1; stages <= STAGES_MAX; stages++)
        for (int place = 0; place < stages; place++)
            for (int micros = 1; micros <= MICROS_MAX; micros *= 2) {
                struct sh_pipe_item items[2 * MICROS_MAX];
                int done[2] = {0, 0};

                sh_pipe_items(stages, place, micros, items);
                for (int i = 0; i < 2 * micros; i++) {
                    assert_int_equal(items[i].micro, done[items[i].backward]++);
                    assert_true(done[0] >= done[1] && done[0] - done[1] <= stages - place);
                }
                assert_int_equal(done[1], micros);
            }
}

static void blocks_are_shared(void **state)
{
    static const struct {
        int layers, stages, first_less, last_less, of[5];
    } rows[] = {{8, 4, 0, 0, {2, 2, 2, 2}},    {10, 4, 0, 0, {3, 3, 2, 2}},
                {8, 4, 1, 1, {2, 3, 2, 1}},    {32, 4, 2, 2, {7, 9, 9, 7}},
                {5, 5, 0, 0, {1, 1, 1, 1, 1}}, {7, 2, 1, 0, {3, 4}},
                {7, 2, 0, 1, {4, 3}},          {3, 1, 0, 0, {3}}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int first = 0;

        assert_true(sh_pipe_divides(rows[i].layers, rows[i].stages, rows[i].first_less, rows[i].last_less));
        for (int s = 0; s < rows[i].stages; s++) {
            struct sh_pipe_blocks b =
                sh_pipe_blocks(rows[i].layers, rows[i].stages, s, rows[i].first_less, rows[i].last_less);

            assert_int_equal(b.first, first);
            assert_int_equal(b.last - b.first, rows[i].of[s]);
            first = b.last;
        }
        assert_int_equal(first, rows[i].layers);
    }
    assert_false(sh_pipe_divides(3, 4, 0, 0));
    assert_false(sh_pipe_divides(4, 4, 2, 0));
}

/* (p - 1) / m, whatever a forward and a backward take (Narayanan et al., SC 2021, section 2.2). */
static void bubble_is_that_of_1f1b(void **state)
{
    (void)state;
    for (int stages = 1; stages <= STAGES_MAX; stages *= 2)
        for (int micros = stages; micros <= MICROS_MAX; micros *= 2)
            assert_true(fabs(sh_pipe_bubble(stages, micros) - (stages - 1) / (double)micros) < 1e-12);
}

/* The messages of all stages of a job. */
struct job {
    int stages, n[STAGES_MAX];
    struct sh_link *links[STAGES_MAX];
};

static struct job plan(int stages, int micros)
{
    struct tiny_model m = tiny_models[0];
    struct sh_build b;
    struct job j = {.stages = stages};

    m.model.n_layers = stages;
    b = tiny_build(&m, 1);
    b.options.micro_steps = micros;
    b.options.strategy.keep_after_forward = true;
    b.evaluate = true;
    for (int s = 0; s < stages; s++) {
        int axes[SH_AXES] = {1, 1, 1, 1, 1, 1, stages};
        struct sh_program *p = tiny_program(&b, sh_mesh_shape_of(axes, s));

        j.n[s] = sh_links_of(p, &j.links[s]);
        sh_program_destroy(p);
    }
    return j;
}

static void forget(struct job *j)
{
    for (int s = 0; s < j->stages; s++)
        free(j->links[s]);
}

static sh_rc check(const struct job *j)
{
    return sh_links_check((const struct sh_link *const *)j->links, j->n, j->stages);
}

static void messages_meet(void **state)
{
    (void)state;
    for (int stages = 2; stages <= 8; stages++)
        for (int micros = 1; micros <= 16; micros = micros * 2 + 1) {
            struct job j = plan(stages, micros);

            for (int s = 0; s < stages; s++) /* a training step, and an evaluation forward */
                assert_int_equal(j.n[s], 2 * ((2 * micros + 1) * ((s > 0) + (s + 1 < stages))));
            if (check(&j) != SH_OK)
                fail_msg("%d stages, %d micro-steps: %s", stages, micros, sh_error_text());
            forget(&j);
        }
}

/* The row of a stage's n-th message of a kind. */
static struct sh_link *nth(struct job *j, int stage, int kind, int n)
{
    struct sh_link *l = j->links[stage];

    while (l->kind != kind || n--)
        l++;
    return l;
}

static void expect(struct job *j, const char *text)
{
    assert_int_equal(check(j), SH_E_BUG);
    if (!strstr(sh_error_text(), text))
        fail_msg("\"%s\" does not say \"%s\"", sh_error_text(), text);
    sh_error_clear();
    forget(j);
}

static void swapped_messages_are_named(void **state)
{
    struct job j = plan(3, 4);
    struct sh_link *a = nth(&j, 1, SH_OP_SEND, 0), *b = a + 1, swap;

    (void)state;
    while (b->kind != SH_OP_SEND || b->peer != a->peer)
        b++;
    swap = *a;
    a->micro = b->micro;
    b->micro = swap.micro;
    expect(&j, "stage 1, forward of micro-step 1, send, 192 bytes: meets stage 2, forward of micro-step 0, receive");

    j = plan(3, 4);
    nth(&j, 2, SH_OP_RECEIVE, 1)->bytes /= 2;
    expect(&j, "micro-step 1, send, 192 bytes: meets stage 2, forward of micro-step 1, receive, 96 bytes");

    j = plan(2, 2);
    nth(&j, 0, SH_OP_RECEIVE, 1)->kind = SH_OP_KINDS;
    expect(&j, "stage 1, backward of micro-step 1, send: stage 0 expects no such message");

    j = plan(2, 2);
    nth(&j, 0, SH_OP_SEND, 2)->kind = SH_OP_KINDS;
    expect(&j, "stage 1, forward of micro-step 0, receive: stage 0 sends no such message");
}

/* Both stages wait for each message right after they have started it: then the first waits for its second forward to be
 * taken, and the other one for the first backward. */
static void hangs_are_named(void **state)
{
    struct job j = plan(2, 4);

    (void)state;
    for (int s = 0; s < j.stages; s++) {
        struct sh_link *sorted = calloc(2 * (size_t)j.n[s], sizeof *sorted);
        int n = 0;

        for (int i = 0; i < j.n[s]; i++) {
            if (j.links[s][i].kind == SH_OP_WAIT)
                continue;
            sorted[n] = sorted[n + 1] = j.links[s][i];
            sorted[n + 1].kind = SH_OP_WAIT;
            sorted[n + 1].of = n;
            n += 2;
        }
        assert_int_equal(n, j.n[s]);
        free(j.links[s]);
        j.links[s] = sorted;
    }
    expect(&j, "would wait for stage 1 for ever");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_are_one_forward_one_backward),
        cmocka_unit_test(blocks_are_shared),
        cmocka_unit_test(bubble_is_that_of_1f1b),
        cmocka_unit_test(messages_meet),
        cmocka_unit_test(swapped_messages_are_named),
        cmocka_unit_test(hangs_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
