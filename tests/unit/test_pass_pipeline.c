/* Stages: their order of work, their blocks, and that messages which do not fit together are named. */
#include "src/config/words.h"
#include "src/pass/pipeline/deal.h"
#include "src/pass/pipeline/links.h"
#include "src/pass/pipeline/order.h"
#include "src/pass/pipeline/stages.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES_MAX = 16, MICROS_MAX = 64, CHUNKS_MAX = 4, LAYERS_MAX = 32, AUTO = SH_LESS_AUTO };

/* Each part of each chunk once, ascending, backwards after their forwards and weights after their backwards. No more
 * micro-steps of a chunk are kept than there are stages from this one on, or than there are stages. */
static void check_parts(const struct sh_pipe *pipe, int place)
{
    static struct sh_pipe_item items[SH_PIPE_PARTS * MICROS_MAX * CHUNKS_MAX];
    int done[CHUNKS_MAX][SH_PIPE_PARTS] = {{0}}, n = sh_pipe_items(pipe, place, items);
    int last = pipe->weights_apart ? SH_PIPE_WEIGHTS : SH_PIPE_BACKWARD;

    assert_int_equal(n, (2 + pipe->weights_apart) * pipe->micro_steps * pipe->chunks);
    for (int i = 0; i < n; i++) {
        int *of = done[items[i].chunk], kept = 0;

        assert_int_equal(items[i].micro, of[items[i].part]++);
        assert_true(of[SH_PIPE_FORWARD] >= of[SH_PIPE_BACKWARD] && of[SH_PIPE_BACKWARD] >= of[SH_PIPE_WEIGHTS]);
        for (int c = 0; c < pipe->chunks; c++)
            kept += done[c][SH_PIPE_FORWARD] - done[c][last];
        if (pipe->chunks == 1)
            assert_true(kept <= (pipe->weights_apart ? pipe->stages : pipe->stages - place));
        else
            assert_true(kept <= (pipe->chunks + 1) * pipe->stages - 2 * place - 1);
    }
    for (int c = 0; c < pipe->chunks; c++)
        assert_int_equal(done[c][last], pipe->micro_steps);
}

static void parts_come_in_order(void **state)
{
    (void)state;
    for (int stages = 1; stages <= STAGES_MAX; stages++)
        for (int place = 0; place < stages; place++) {
            for (int micros = 1; micros <= MICROS_MAX; micros *= 2)
                for (int apart = 0; apart < 2; apart++)
                    check_parts(&(struct sh_pipe){stages, micros, 1, apart}, place);
            for (int chunks = 2; chunks <= CHUNKS_MAX; chunks++)
                for (int micros = stages; micros <= MICROS_MAX; micros += stages)
                    check_parts(&(struct sh_pipe){stages, micros, chunks, false}, place);
        }
}

static void blocks_are_shared(void **state)
{
    static const struct {
        struct sh_pipe_deal deal;
        int of[5];
    } rows[] = {{{8, 4, 1, 0, 0, NULL}, {2, 2, 2, 2}},    {{10, 4, 1, 0, 0, NULL}, {3, 3, 2, 2}},
                {{8, 4, 1, 1, 1, NULL}, {2, 3, 2, 1}},    {{32, 4, 1, 2, 2, NULL}, {7, 9, 9, 7}},
                {{5, 5, 1, 0, 0, NULL}, {1, 1, 1, 1, 1}}, {{7, 2, 1, 1, 0, NULL}, {3, 4}},
                {{7, 2, 1, 0, 1, NULL}, {4, 3}},          {{3, 1, 1, 0, 0, NULL}, {3}},
                {{9, 2, 2, 0, 1, NULL}, {3, 3, 2, 1}}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int begin[LAYERS_MAX + 1];

        assert_true(sh_pipe_divides(&rows[i].deal));
        sh_pipe_deal(&rows[i].deal, begin);
        assert_int_equal(begin[0], 0);
        for (int c = 0; c < rows[i].deal.stages * rows[i].deal.chunks; c++)
            assert_int_equal(begin[c + 1] - begin[c], rows[i].of[c]);
    }
    assert_false(sh_pipe_divides(&(struct sh_pipe_deal){3, 4, 1, 0, 0, NULL}));
    assert_false(sh_pipe_divides(&(struct sh_pipe_deal){4, 4, 1, 2, 0, NULL}));
    assert_false(sh_pipe_divides(&(struct sh_pipe_deal){4, 4, 1, 2, AUTO, NULL}));
    assert_true(sh_pipe_divides(&(struct sh_pipe_deal){6, 4, 1, AUTO, 1, NULL}));
    assert_false(sh_pipe_divides(&(struct sh_pipe_deal){7, 4, 2, AUTO, AUTO, NULL}));
    assert_true(sh_pipe_divides(&(struct sh_pipe_deal){8, 4, 2, AUTO, AUTO, NULL}));
}

/* Ways to cut, tried one by one: the best is that with the least on the fullest stage, of these that with the least squares, of
 * these that with the fewest blocks on the first stage, on the next, ... */
struct tried {
    const struct sh_pipe_deal *deal;
    int begin[LAYERS_MAX + 1], best[LAYERS_MAX + 1];
    int64_t most, squares;
};

static int64_t squares_of(const struct sh_pipe_deal *d, const int *begin)
{
    int64_t squares = 0;

    for (int s = 0; s < d->stages; s++) {
        int64_t work = d->sums[s == d->stages - 1 ? d->layers + 1 : begin[s + 1]] - d->sums[begin[s]];

        squares += work * work;
    }
    return squares;
}

static void try_cuts(struct tried *t, int chunk)
{
    const struct sh_pipe_deal *d = t->deal;
    int n = d->stages * d->chunks;

    for (int end = t->begin[chunk - 1] + 1; chunk < n && end <= d->layers - (n - chunk); end++) {
        t->begin[chunk] = end;
        try_cuts(t, chunk + 1);
    }
    if (chunk == n) {
        int64_t most, squares;

        t->begin[n] = d->layers;
        most = sh_pipe_most(d, t->begin);
        squares = d->chunks == 1 ? squares_of(d, t->begin) : 0;
        if (most < t->most || (most == t->most && squares < t->squares)) {
            t->most = most;
            t->squares = squares;
            memcpy(t->best, t->begin, sizeof t->best);
        }
    }
}

static void draw(int64_t *sums, int layers, int kinds, uint64_t *seed)
{
    int64_t of[4], all = 0;

    for (int k = 0; k < 4; k++)
        of[k] = 1 + (int64_t)(*seed = *seed * 6364136223846793005u + 1442695040888963407u) / 3 % 1000000 + 1000000;
    sums[0] = 0;
    for (int i = 0; i < layers; i++)
        sums[i + 1] = all += of[(i * 2654435761u >> 7) % (unsigned)kinds];
    sums[layers + 1] = all + of[3] * (int64_t)(*seed >> 60);
}

/* Stages: as brute force deals them, but for equal shares where these are hardly worse. Chunks of equal blocks: no way has less on
 * the fullest stage; others are at least no worse than equal shares. */
static void blocks_are_dealt_by_work(void **state)
{
    int64_t sums[LAYERS_MAX + 2];
    uint64_t seed = 7;
    int dealt = 0;

    (void)state;
    for (int v = 0; v < 2000; v++) {
        struct sh_pipe_deal d = {2 + v % 11, 1 + v / 3 % 5, v % 4 ? 1 : 2, AUTO, AUTO, sums};
        struct sh_pipe_deal equal = {d.layers, d.stages, d.chunks, 0, 0, sums};
        struct tried t = {.deal = &d, .most = INT64_MAX};
        int begin[LAYERS_MAX + 1], shares[LAYERS_MAX + 1], n = d.stages * d.chunks;
        int64_t most;

        if (!sh_pipe_divides(&d))
            continue;
        draw(sums, d.layers, 1 + v % 3, &seed);
        try_cuts(&t, 1);
        sh_pipe_deal(&d, begin);
        sh_pipe_deal(&equal, shares);
        most = sh_pipe_most(&d, shares);
        if (most - t.most < most / SH_PIPE_GAIN) {
            assert_memory_equal(begin, shares, ((size_t)n + 1) * sizeof *begin);
        } else if (d.chunks == 1) {
            assert_memory_equal(begin, t.best, ((size_t)n + 1) * sizeof *begin);
            dealt++;
        } else if (v % 3 == 0) {
            assert_int_equal(sh_pipe_most(&d, begin), t.most);
        } else {
            assert_true(sh_pipe_most(&d, begin) <= most);
        }
    }
    assert_true(dealt > 100);
}

/* Eight blocks and a head of two and a half: a number that is given stays, and the other is chosen. */
static void given_numbers_stay(void **state)
{
    static const int64_t sums[] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 21};
    static const struct {
        int first_less, last_less, of[4];
    } rows[] = {{AUTO, AUTO, {2, 2, 3, 1}}, {AUTO, 0, {2, 2, 2, 2}}, {0, AUTO, {3, 2, 2, 1}},
                {AUTO, 1, {3, 2, 2, 1}},    {1, AUTO, {2, 3, 2, 1}}, {0, 0, {2, 2, 2, 2}}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int begin[5];

        sh_pipe_deal(&(struct sh_pipe_deal){8, 4, 1, rows[i].first_less, rows[i].last_less, sums}, begin);
        for (int s = 0; s < 4; s++)
            assert_int_equal(begin[s + 1] - begin[s], rows[i].of[s]);
    }
}

enum { FITTED = 7 };

static struct sh_build to_fit(int chunks, bool apart)
{
    static struct tiny_model m;
    struct sh_build b;
    int axes[SH_AXES] = {1, 1, 1, 1, 1, 1, 2};

    m = tiny_models[0];
    m.model.n_layers = FITTED;
    m.model.tie_word_embeddings = false;
    b = tiny_build(&m, 2);
    b.options.micro_steps = 4;
    b.options.chunks = chunks;
    b.options.weights_apart = apart;
    b.options.strategy.keep_after_forward = true;
    b.options.mesh = sh_mesh_shape_of(axes, 0);
    b.fit = true;
    return b;
}

/* The arenas of one stage at all levels, with the blocks as a budget deals them. */
static void weigh_levels(struct sh_build b, int stage, int64_t bytes[2 * FITTED + 1])
{
    b.options.mesh.rank = stage;
    for (int level = 0; level <= 2 * FITTED; level++) {
        struct sh_program *p;

        b.recompute = sh_pass_fit_level(FITTED, level);
        assert_int_equal(sh_pass_weigh(&b, &p), SH_OK);
        bytes[level] = p->arena_bytes;
        sh_program_destroy(p);
    }
}

/* The lowest level that fits, of each stage alone; in words, of the blocks that it has. */
static void expect_fitted(const struct sh_build *from, const int64_t bytes[2][2 * FITTED + 1], int64_t limit)
{
    struct sh_build b = *from;
    struct sh_pipe_stages all;
    int own = 0;

    b.limit_bytes = limit;
    assert_int_equal(sh_pass_fit(&b, &own), SH_OK);
    assert_int_equal(sh_pipe_stages_build(&b, false, NULL, NULL, &all), SH_OK);
    for (int s = 0; s < 2; s++) {
        int least = 0;
        struct sh_recompute of;

        while (bytes[s][least] > limit)
            least++;
        of = sh_pass_fit_level(FITTED, least);
        assert_memory_equal(&all.recompute[s], &of, sizeof of);
        assert_int_equal(all.p[s]->arena_bytes, bytes[s][least]);
    }
    sh_pipe_stages_free(&all);
}

static void each_stage_fits_a_budget(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct sh_build b = to_fit(1 + (kind == 1), kind == 2);
        int64_t bytes[2][2 * FITTED + 1], least = 0;
        struct sh_pipe_stages all;
        int own = 0;

        for (int s = 0; s < 2; s++) {
            weigh_levels(b, s, bytes[s]);
            least = bytes[s][2 * FITTED] > least ? bytes[s][2 * FITTED] : least;
        }
        assert_true(bytes[1][1] == bytes[1][0] && bytes[1][FITTED] < bytes[1][0]); /* of its own blocks alone */
        for (int s = 0; s < 2; s++)
            for (int i = 0; i <= 2 * FITTED; i += tiny_step(3))
                if (bytes[s][i] >= least)
                    expect_fitted(&b, bytes, bytes[s][i]);
        b.limit_bytes = least - 1; /* of the stage that needs most */
        assert_int_equal(sh_pass_fit(&b, &own), SH_OK);
        assert_int_equal(sh_pipe_stages_build(&b, false, NULL, NULL, &all), SH_E_MEMORY);
        assert_non_null(strstr(sh_error_text(),
                               bytes[0][2 * FITTED] == least ? "stage 0: the plan needs" : "stage 1: the plan needs"));
        sh_error_clear();
        sh_pipe_stages_free(&all);
    }
}

/* "2 of 4 blocks": those of others do not count. */
static void words_are_of_a_stage(void **state)
{
    const int begin[] = {0, 2, 4, 6, 7};
    const struct sh_pipe_deal d = {.layers = 7, .stages = 2, .chunks = 2};
    const struct {
        int stage;
        struct sh_recompute of;
        const char *text;
    } rows[] = {{0, {0}, "none"},
                {0, {.selective = 4}, "selective in 2 of 4 blocks"},
                {1, {.selective = 4}, "selective in 2 of 3 blocks"},
                {1, {.selective = 2}, "none"},
                {0, {.full = 5, .selective = 7}, "selective in 1, full in 3 of 4 blocks"},
                {1, {.full = 6, .selective = 7}, "selective in 1, full in 2 of 3 blocks"},
                {1, {.full = 7, .selective = 7}, "full"}};
    char text[SH_RECOMPUTE_TEXT];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(sh_pipe_recompute_text(&d, begin, rows[i].stage, &rows[i].of, text), rows[i].text);
}

/* How much of all the head is, in 2^-30. */
static int64_t head_of(const struct sh_build *b)
{
    int *begin;
    struct sh_pipe_deal d = sh_pipe_deal_of(b, &begin);
    int64_t head = d.sums[d.layers + 1] - d.sums[d.layers];

    assert_int_equal(begin[d.stages * d.chunks], d.layers);
    assert_true(llabs(d.sums[d.layers + 1] - SH_PIPE_WORK) <= d.layers + 1);
    sh_pipe_deal_free(&d, begin);
    return head;
}

/* The work of a build: products and attention, longer sequences, and what is recomputed. */
static void work_is_of_the_model(void **state)
{
    struct tiny_model m = tiny_models[0];
    struct sh_build b;
    double block, head;
    int axes[SH_AXES] = {1, 1, 1, 1, 1, 1, 2};
    struct sh_model_flops all;

    (void)state;
    m.model.n_layers = 4;
    m.model.tie_word_embeddings = false;
    b = tiny_build(&m, 1);
    b.options.mesh = sh_mesh_shape_of(axes, 0);
    all = sh_model_flops(&b.model, b.batch.seq);
    head = 6.0 * m.model.dim * m.model.vocab_size;
    block = (all.matmul + all.attention_causal - head) / 4;
    assert_true(fabs((double)head_of(&b) / SH_PIPE_WORK - head / (4 * block + head)) < 1e-8);
    b.recompute.full = SH_ALL_BLOCKS;
    assert_true(fabs((double)head_of(&b) / SH_PIPE_WORK - head / (4 * block * 4 / 3 + head)) < 1e-8);
    b.fit = true;
    assert_true(fabs((double)head_of(&b) / SH_PIPE_WORK - head / (4 * block + head)) < 1e-8);
    b.recompute.full = 0;
    b.batch.seq *= 2;
    all = sh_model_flops(&b.model, b.batch.seq);
    assert_true(fabs((double)head_of(&b) / SH_PIPE_WORK - head / (all.matmul + all.attention_causal)) < 1e-8);
}

/* Two wide dense blocks, then four with experts: two stages have 2 and 4, but 3 and 3 where each asks for experts. */
static void stages_have_experts(void **state)
{
    struct tiny_model m = {.model = {.family = SH_FAMILY_QWEN2_MOE,
                                     .dim = 12,
                                     .ffn_dim = 60,
                                     .expert_ffn_dim = 5,
                                     .shared_ffn_dim = 8,
                                     .vocab_size = TINY_VOCAB,
                                     .max_seq_len = TINY_SEQ,
                                     .head_dim = 4,
                                     .n_heads = 3,
                                     .n_kv_heads = 1,
                                     .norm_eps = 1e-5f,
                                     .rope_theta = 100,
                                     .n_layers = 6,
                                     .n_experts = 8,
                                     .n_experts_per_token = 2,
                                     .first_dense_layers = 2}};
    static const struct {
        int ranks, adapters, first;
    } rows[] = {{1, 0, 2}, {2, 0, 3}, {1, 2, 3}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int axes[SH_AXES] = {1, 1, rows[i].ranks, 1, 1, 1, 2}, *begin;
        struct sh_build b = tiny_build(&m, 1);
        struct sh_pipe_deal d;

        b.options.mesh = sh_mesh_shape_of(axes, 0);
        b.options.first_less = b.options.last_less = AUTO;
        b.batch.adapters = (struct sh_adapters){.rank = rows[i].adapters, .scale = 1, .targets = ~0u};
        d = sh_pipe_deal_of(&b, &begin);
        assert_int_equal(begin[1], rows[i].first);
        sh_pipe_deal_free(&d, begin);
    }
}

static void expect_bubble(const struct sh_pipe *pipe, double expected)
{
    double found = sh_pipe_bubble(pipe);

    if (fabs(found - expected) > 1e-12)
        fail_msg("%d stages, %d micro-steps, %d chunks, apart %d: %g, expected %g", pipe->stages, pipe->micro_steps,
                 pipe->chunks, pipe->weights_apart, found, expected);
}

/* 1F1B: (p - 1) / m, whatever a forward and a backward take; v chunks: that over v (Narayanan et al., SC 2021, sections 2.2
 * and 2.2.2). ZBH1: a third of that if all three parts take equally long (Qi et al., ICLR 2024, section 4). */
static void bubbles_have_closed_forms(void **state)
{
    (void)state;
    for (int stages = 1; stages <= STAGES_MAX; stages++)
        for (int micros = stages; micros <= MICROS_MAX; micros += stages) {
            double plain = (stages - 1) / (double)micros;

            for (int chunks = 1; chunks <= CHUNKS_MAX; chunks++)
                expect_bubble(&(struct sh_pipe){stages, micros, chunks, false}, plain / chunks);
            expect_bubble(&(struct sh_pipe){stages, micros, 1, true}, plain / 3);
        }
}

/* The messages of all stages of a job. */
struct job {
    int stages, n[STAGES_MAX];
    struct sh_link *links[STAGES_MAX];
};

static struct job plan(int stages, int micros, int chunks, bool apart)
{
    struct tiny_model m = tiny_models[0];
    struct sh_build b;
    struct job j = {.stages = stages};

    m.model.n_layers = stages * chunks;
    b = tiny_build(&m, 1);
    b.options.micro_steps = micros;
    b.options.chunks = chunks;
    b.options.weights_apart = apart;
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

static void expect_meetings(int stages, int micros, int chunks, bool apart)
{
    struct job j = plan(stages, micros, chunks, apart);

    for (int s = 0; s < stages; s++) { /* a training step, and an evaluation forward */
        int borders = 2 * chunks - (s == 0) - (s + 1 == stages);

        assert_int_equal(j.n[s], 2 * (2 * micros + 1) * borders);
    }
    if (check(&j) != SH_OK)
        fail_msg("%d stages of %d chunks, %d micro-steps: %s", stages, chunks, micros, sh_error_text());
    forget(&j);
}

static void messages_meet(void **state)
{
    (void)state;
    for (int stages = 2; stages <= 8; stages++) {
        for (int micros = 1; micros <= 16; micros = micros * 2 + 1) {
            expect_meetings(stages, micros, 1, false);
            expect_meetings(stages, micros, 1, true);
        }
        for (int chunks = 2; chunks <= 3; chunks++)
            for (int micros = stages; micros <= 3 * stages; micros += stages)
                expect_meetings(stages, micros, chunks, false);
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
    struct job j = plan(3, 4, 1, false);
    struct sh_link *a = nth(&j, 1, SH_OP_SEND, 0), *b = a + 1, swap;

    (void)state;
    while (b->kind != SH_OP_SEND || b->peer != a->peer)
        b++;
    swap = *a;
    a->micro = b->micro;
    b->micro = swap.micro;
    expect(&j, "stage 1, forward of micro-step 1, send, 192 bytes: meets stage 2, forward of micro-step 0, receive");

    j = plan(3, 4, 1, false);
    nth(&j, 2, SH_OP_RECEIVE, 1)->bytes /= 2;
    expect(&j, "micro-step 1, send, 192 bytes: meets stage 2, forward of micro-step 1, receive, 96 bytes");

    j = plan(2, 2, 1, false);
    nth(&j, 0, SH_OP_RECEIVE, 1)->kind = SH_OP_KINDS;
    expect(&j, "stage 1, backward of micro-step 1, send: stage 0 expects no such message");

    j = plan(2, 2, 1, false);
    nth(&j, 0, SH_OP_SEND, 2)->kind = SH_OP_KINDS;
    expect(&j, "stage 1, forward of micro-step 0, receive: stage 0 sends no such message");
}

/* Both stages wait for each message right after they have started it: then the first waits for its second forward to be
 * taken, and the other one for the first backward. */
static void hangs_are_named(void **state)
{
    struct job j = plan(2, 4, 1, false);

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
        cmocka_unit_test(parts_come_in_order),        cmocka_unit_test(blocks_are_shared),
        cmocka_unit_test(blocks_are_dealt_by_work),   cmocka_unit_test(given_numbers_stay),
        cmocka_unit_test(work_is_of_the_model),       cmocka_unit_test(stages_have_experts),
        cmocka_unit_test(bubbles_have_closed_forms),  cmocka_unit_test(messages_meet),
        cmocka_unit_test(swapped_messages_are_named), cmocka_unit_test(hangs_are_named),
        cmocka_unit_test(each_stage_fits_a_budget),   cmocka_unit_test(words_are_of_a_stage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
