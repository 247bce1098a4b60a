/* The ladder of a memory budget: each level takes no more than the one before it, the level chosen is the lowest that
 * fits, the same on every rank; if no level fits, the refusal has the smallest possible size. */
#include "kernels/rows.h"
#include "src/base/mem.h"
#include "tests/unit/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { LAYERS = 6, TOP = 2 * LAYERS };

/* Level i as the mode defines it: first one more selective block per level, then one more full block. */
static struct sh_recompute level(int blocks, int i)
{
    int full = i > blocks ? i - blocks : 0;

    return (struct sh_recompute){.full = full, .selective = i > blocks ? blocks : i};
}

static int64_t arena(const struct sh_build *b, struct sh_recompute recompute)
{
    struct sh_build mine = *b;
    struct sh_program *p;
    int64_t bytes;

    mine.recompute = recompute;
    mine.limit_bytes = 0;
    p = tiny_program(&mine, b->options.mesh);
    bytes = p->arena_bytes;
    sh_program_destroy(p);
    return bytes;
}

static int fit(struct sh_build b, int64_t limit, int from)
{
    int chosen = from;

    b.fit = true;
    b.limit_bytes = limit;
    assert_int_equal(sh_pass_fit(&b, &chosen), SH_OK);
    assert_memory_equal(&b.recompute, &(struct sh_recompute[]){level(b.model.n_layers, chosen)}, sizeof b.recompute);
    return chosen;
}

/* Fill bytes[0 .. 2 layers]; returns the lowest level with the fewest bytes. */
static int climb(const struct sh_build *b, int64_t *bytes)
{
    int least = 0;

    for (int i = 0; i <= 2 * b->model.n_layers; i++) {
        bytes[i] = arena(b, level(b->model.n_layers, i));
        least = bytes[i] < bytes[least] ? i : least;
    }
    return least;
}

static int lowest(const int64_t *bytes, int64_t limit)
{
    int i = 0;

    while (bytes[i] > limit)
        i++;
    return i;
}

/* Plan all levels, and check the choice for budgets at and just below every `step`-th of them; returns the level that
 * takes the least. */
static int check_search(const struct sh_build *b, int step)
{
    int top = 2 * b->model.n_layers, least;
    int64_t *bytes = sh_calloc((size_t)top + 1, sizeof *bytes);

    least = climb(b, bytes);
    for (int i = 1; i <= top; i++)
        assert_true(i <= least ? bytes[i] <= bytes[i - 1] : bytes[i] >= bytes[i - 1]);
    for (int i = 0; i <= top; i += step)
        for (int less = 0; less < 2; less++)
            if (bytes[i] - less >= bytes[least])
                assert_int_equal(fit(*b, bytes[i] - less, 0), lowest(bytes, bytes[i] - less));
    for (int from = 0; from <= least;
         from += least > 0 ? least : 1) /* the ranks of a job ask again after each change */
        assert_int_equal(fit(*b, bytes[least] - 1, from), least);
    free(bytes);
    return least;
}

/* Both halves of the ladder gain something. */
static void check_ladder(const struct sh_build *b, int step)
{
    assert_true(check_search(b, step) > b->model.n_layers);
}

static struct sh_build build(int i, int strategy)
{
    struct sh_build b = tiny_build(&tiny_models[i % TINY_MODELS], 2);

    b.model.n_layers = LAYERS;
    b.options.strategy.params_resident = tiny_strategies[strategy].params_resident;
    b.options.strategy.keep_after_forward = tiny_strategies[strategy].keep_after_forward;
    b.options.micro_steps = i / 2 % 2 + 1;
    b.options.strategy.sync_last_only = i / 4 % 2;
    b.act = i / 3 % 2 ? SH_BF16 : SH_F32;
    return b;
}

static void every_level_on_many_meshes(void **state)
{
    static const int shards[] = {1, 2, 3, 5, 8};

    (void)state;
    for (int i = 0; i < 2 * TINY_MODELS; i += tiny_step(5))
        for (int s = 0; s < TINY_STRATEGIES; s++) {
            struct sh_build b = build(i, s);
            int shard = shards[(i + s) % 5];

            b.options.mesh = tiny_mesh(shard, i % 3 + 1, 1, 0);
            check_ladder(&b, 3);
            b.options.segment_ranks = shard;
            if (shard > 1)
                check_ladder(&b, 4);
        }
}

/* Realistic models, in which scratch and the head's gradients are large compared with a block. */
static void every_level_of_real_models(void **state)
{
    /* clang-format off */
    static const struct tiny_model models[] = {
        {"gpt2-124m",
         {.family = SH_FAMILY_GPT2, .n_layers = 12, .dim = 768, .n_heads = 12, .n_kv_heads = 12, .head_dim = 64,
          .ffn_dim = 3072, .vocab_size = 50257, .max_seq_len = 1024, .norm_eps = 1e-5f, .init_std = 0.02f, .tie_word_embeddings = true},
         false},
        {"llama3.2-1b",
         {.family = SH_FAMILY_LLAMA, .n_layers = 16, .dim = 2048, .n_heads = 32, .n_kv_heads = 8, .head_dim = 64,
          .ffn_dim = 8192, .vocab_size = 128256, .max_seq_len = 8192, .norm_eps = 1e-5f, .init_std = 0.02f,
          .rope_theta = 5e5, .tie_word_embeddings = true},
         false},
    };
    /* clang-format on */

    (void)state;
    for (int i = 0; i < 8; i += tiny_step(3)) {
        struct sh_build b = tiny_build(&models[i / 4], 4);

        b.act = SH_BF16;
        b.batch.seq = i % 2 ? 1024 : 256;
        b.kernels = i / 2 % 2 ? &sh_kernels_cuda : &sh_kernels_cpu;
        b.threads = 4;
        b.options.mesh = tiny_mesh(8, 1, 1, 0);
        check_ladder(&b, 9);
    }
}

static void the_ranks_of_a_mesh_agree(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_MODELS; i++)
        for (int s = 0; s < TINY_STRATEGIES; s++)
            for (int k = 0; k <= TOP; k += tiny_step(4)) {
                struct sh_build b = build(i, s);
                int64_t first;

                b.options.mesh = tiny_mesh(4, 2, s ? 1 : 2, 0);
                first = arena(&b, level(LAYERS, k));
                for (int rank = 1; rank < 8; rank++) {
                    b.options.mesh = tiny_mesh(4, 2, s ? 1 : 2, rank);
                    assert_int_equal(arena(&b, level(LAYERS, k)), first);
                }
            }
}

/* A rank that is given another rank's higher level takes that level, or a higher one. */
static void from_a_level_up(void **state)
{
    struct sh_build b = build(1, 0);
    int64_t bytes[TOP + 1];
    int least = climb(&b, bytes);

    (void)state;
    for (int i = 0; i <= TOP; i++) {
        assert_int_equal(fit(b, bytes[0], i), i);
        if (i < least)
            assert_int_equal(fit(b, bytes[least], i), lowest(bytes, bytes[least]));
    }
}

/* Tiles are taken where they save whole blocks, or where nothing else fits; else the choice is the one without them. */
static void tiles_where_they_save_blocks(void **state)
{
    struct sh_build b = build(1, 0), tiled;
    int64_t whole[TOP + 1], tiles[TOP + 1];
    int taken = 0, top, least;

    (void)state;
    b.batch.batch = 1;
    b.batch.seq = b.model.max_seq_len = SH_ROW_BLOCK + 4096;
    b.model.ffn_dim = 64 * b.model.dim;
    tiled = b;
    tiled.tile_rows = SH_ROW_BLOCK;
    b.fit = b.fit_tiles = true;
    least = climb(&b, whole);
    top = climb(&tiled, tiles);
    assert_true(tiles[top] < whole[least]);
    for (int i = 0; i <= TOP; i++) {
        struct sh_build mine = b;
        int chosen = 0, with = lowest(tiles, tiles[i]),
            without = whole[least] <= tiles[i] ? lowest(whole, tiles[i]) : TOP + 1;

        mine.limit_bytes = tiles[i];
        assert_int_equal(sh_pass_fit(&mine, &chosen), SH_OK);
        assert_int_equal(mine.tile_rows, with < without ? SH_ROW_BLOCK : 0);
        assert_int_equal(chosen, with < without ? with : without);
        taken += with < without;
        /* Asked for, or for no more rows than a tile has, there is nothing to choose. */
        mine.fit_tiles = false;
        mine.tile_rows = 64;
        chosen = 0;
        assert_int_equal(sh_pass_fit(&mine, &chosen), SH_OK);
        assert_int_equal(mine.tile_rows, 64);
    }
    assert_in_range(taken, 1, TOP);
    b.batch.seq = SH_ROW_BLOCK;
    b.limit_bytes = 1;
    top = 0;
    assert_int_equal(sh_pass_fit(&b, &top), SH_OK);
    assert_int_equal(b.tile_rows, 0);
}

static void too_little_is_refused(void **state)
{
    struct sh_build b = build(0, 0);
    int64_t bytes[TOP + 1], least = bytes[climb(&b, bytes)];
    struct sh_program *p = NULL;
    char words[64];
    int chosen = 0;

    (void)state;
    b.fit = true;
    b.limit_bytes = least - 1;
    assert_int_equal(sh_pass_fit(&b, &chosen), SH_OK);
    assert_int_equal(sh_pass_build(&b, &p), SH_E_MEMORY);
    snprintf(words, sizeof words, "(%lld bytes) per rank at least", (long long)least);
    assert_non_null(strstr(sh_error_text(), words));
    assert_non_null(strstr(sh_error_text(), "memory.limit_bytes"));
    assert_null(strstr(sh_error_text(), "activation_checkpoint")); /* recomputation cannot save more */
    sh_program_destroy(p);
}

static void what_is_not_asked_for_stays(void **state)
{
    struct sh_build b = build(0, 0);
    int chosen = 3;

    (void)state;
    b.recompute = tiny_recomputes[TINY_EVERY_2];
    b.limit_bytes = 1;
    assert_int_equal(sh_pass_fit(&b, &chosen), SH_OK);
    assert_int_equal(chosen, 3);
    assert_memory_equal(&b.recompute, &tiny_recomputes[TINY_EVERY_2], sizeof b.recompute);
}

static void words(void **state)
{
    static const struct {
        struct sh_recompute wish;
        const char *text;
    } cases[] = {
        {{0}, "none"},
        {{.selective = SH_ALL_BLOCKS}, "selective"},
        {{.full = SH_ALL_BLOCKS}, "full"},
        {{.full = SH_ALL_BLOCKS, .every_k = 1}, "full"},
        {{.full = SH_ALL_BLOCKS, .every_k = 5}, "full in 3 of 12 blocks"},
        {{.selective = 9}, "selective in 9 of 12 blocks"},
        {{.full = 3, .selective = 12}, "selective in 9, full in 3 of 12 blocks"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[SH_RECOMPUTE_TEXT];

        assert_string_equal(sh_recompute_text(&cases[i].wish, 12, text), cases[i].text);
    }
}

/* If the feed-forward of the last block is a large part, the middle of the ladder is flat, and many budgets lead to the
 * same level. */
static void wide_and_narrow(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i += tiny_step(5)) {
        struct sh_build b = build(i % 2, i % TINY_STRATEGIES);

        b.model.ffn_dim = i / 2 % 2 ? 20 : 400;
        b.model.vocab_size = i / 4 % 3 ? 13 : 5000;
        b.model.max_seq_len = b.batch.seq = i / 12 ? 64 : TINY_SEQ;
        b.evaluate = i / 3 % 2;
        b.kernels = &sh_kernels_cuda;
        check_search(&b, 2);
    }
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Llama 3.1 70B with as many layers as the 405B, for budgets that all, some and no levels fit. A search takes a tenth
 * of this limit or less. */
static void large_searches_are_quick(void **state)
{
    struct sh_build b = tiny_build(&not_tiny_model, 1);

    (void)state;
    b.model.n_layers = 126;
    b.batch.seq = 8192;
    b.act = SH_BF16;
    b.options.mesh = tiny_mesh(64, 64, 1, 4095);
    b.fit = true;
    for (int64_t gib = 1; gib < 4096; gib *= 4) {
        double begin = cpu_seconds();
        int chosen = 0;

        b.limit_bytes = gib << 30;
        assert_int_equal(sh_pass_fit(&b, &chosen), SH_OK);
        print_message("%4d GiB: level %d of 252, %.3f s\n", (int)gib, chosen, cpu_seconds() - begin);
        assert_true(cpu_seconds() - begin < 3);
    }
}

/* Rows of logits: as many as fit under the limit, but no more than exist or are allowed, and none extra if not asked
 * for. */
static void rows_by_memory(void **state)
{
    static const int64_t rows[] = {2048, 4096, 8192};
    struct sh_build b = tiny_build(&tiny_models[0], 2);
    int64_t bytes[3], most;

    (void)state;
    b.model.max_seq_len = b.batch.seq = 4096;
    b.model.vocab_size = 50000;
    b.kernels = &sh_kernels_cuda;
    for (int i = 0; i < 3; i++) {
        b.batch.chunk_rows = rows[i];
        bytes[i] = arena(&b, b.recompute);
        assert_true(i == 0 || bytes[i] > bytes[i - 1]);
    }
    for (int i = 0; i < 3; i++)
        for (int below = 0; below < 2; below++)
            for (int ask = 0; ask < 3; ask++) {
                struct sh_build mine = b;
                int64_t want = !ask ? 2048 : i - below < 0 ? 2048 : rows[i - below];

                mine.batch.chunk_rows = 2048;
                mine.limit_bytes = bytes[i] - below;
                mine.widen = ask;
                mine.batch.batch = ask == 2 ? 1 : 2; /* half as many rows; and less than half of the activations */
                most = INT64_MAX;
                assert_int_equal(sh_pass_widen(&mine, &most), SH_OK);
                assert_int_equal(most, mine.batch.chunk_rows);
                if (ask < 2)
                    assert_int_equal(most, want);
                else
                    assert_true(most <= 4096);
            }
    b.batch.chunk_rows = 2048;
    b.limit_bytes = bytes[2];
    b.widen = true;
    most = 4096;
    assert_int_equal(sh_pass_widen(&b, &most), SH_OK);
    assert_int_equal(b.batch.chunk_rows, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level_on_many_meshes),
        cmocka_unit_test(every_level_of_real_models),
        cmocka_unit_test(wide_and_narrow),
        cmocka_unit_test(the_ranks_of_a_mesh_agree),
        cmocka_unit_test(from_a_level_up),
        cmocka_unit_test(tiles_where_they_save_blocks),
        cmocka_unit_test(too_little_is_refused),
        cmocka_unit_test(what_is_not_asked_for_stays),
        cmocka_unit_test(words),
        cmocka_unit_test(rows_by_memory),
        cmocka_unit_test(large_searches_are_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
