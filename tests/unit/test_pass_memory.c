/* The memory of a plan: sharding shrinks what it should, recomputation the activations, and the table of memory adds up
 * to the arena. And planning is quick. */
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Large enough that alignment is a small part. */
/* clang-format off */
static const struct tiny_model wide = {
    "wide",
    {.family = SH_FAMILY_LLAMA, .n_layers = 6, .dim = 64, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .ffn_dim = 192,
     .vocab_size = 500, .max_seq_len = 64, .norm_eps = 1e-5f, .init_std = 0.02f, .rope_theta = 1e4},
    false};

static const struct sh_strategy no_shard = {true, false, true}, shard_optim = {true, false, true}, full_shard = {0},
                                /* clang-format on */
    shard_grad_op = {false, true, false};

struct plan {
    int64_t bytes[SH_MEM_KINDS], arena, persistent;
};

/* The memory in use at each operation is at most the arena; the table describes the operation with the peak. */
static void check_use(const struct sh_program *p, const int64_t bytes[SH_MEM_KINDS], const struct sh_pass_peak *peak)
{
    int64_t *in_use = calloc((size_t)p->n_ops, sizeof *in_use), most = 0, sum = 0;

    for (int i = 0; i < SH_MEM_KINDS; i++)
        sum += bytes[i];
    for (int i = 0; i < p->n_sections; i++)
        sh_pass_in_use(p, &p->sections[i], in_use + p->sections[i].first_op);
    for (int i = 0; i < p->n_ops; i++)
        most = in_use[i] > most ? in_use[i] : most;
    assert_true(most <= p->arena_bytes);
    assert_true(peak->section && peak->op >= peak->section->first_op &&
                peak->op < peak->section->first_op + peak->section->n_ops);
    assert_int_equal(in_use[peak->op], sum);
    free(in_use);
}

static struct plan plan(const struct sh_build *b, struct sh_strategy keeps, int shard)
{
    struct sh_build mine = *b;
    struct sh_program *p;
    struct sh_pass_peak peak;
    struct plan l;

    mine.options.strategy = keeps;
    p = tiny_program(&mine, tiny_mesh(shard, 1, 1, 0));
    peak = sh_pass_memory(p, l.bytes);
    check_use(p, l.bytes, &peak);
    l.arena = p->arena_bytes;
    l.persistent = p->persistent_bytes;
    sh_program_destroy(p);
    return l;
}

static struct sh_build build(void)
{
    struct sh_build b = tiny_build(&wide, 2);

    b.batch.seq = 64;
    return b;
}

static void assert_about(int64_t a, int64_t b)
{
    if (a < b * 0.98 || a > b * 1.02)
        fail_msg("%lld is not about %lld", (long long)a, (long long)b);
}

/* Per element: f32 parameter 4, gradient 4, two moments 8. */
static void shards_divide_model_state(void **state)
{
    struct sh_build b = build();
    int64_t elems = sh_model_params(&wide.model);
    struct plan whole = plan(&b, no_shard, 1), optim = plan(&b, shard_optim, 4), full = plan(&b, full_shard, 4);

    (void)state;
    assert_about(whole.bytes[SH_MEM_PARAM], 4 * elems);
    assert_about(whole.bytes[SH_MEM_GRAD], 4 * elems);
    assert_about(whole.bytes[SH_MEM_OPTIM], 8 * elems);
    assert_int_equal(whole.bytes[SH_MEM_GATHERED], 0);
    assert_about(optim.bytes[SH_MEM_PARAM], 4 * elems);
    assert_about(optim.bytes[SH_MEM_OPTIM], 8 * elems / 4);
    assert_about(full.bytes[SH_MEM_PARAM], 4 * elems / 4);
    assert_about(full.bytes[SH_MEM_GRAD], 4 * elems / 4);
    assert_about(full.bytes[SH_MEM_OPTIM], 8 * elems / 4);
    assert_true(full.arena < optim.arena && optim.arena < whole.arena);
}

/* In a segment the parameters exist once for all ranks: each rank's part of them counts. */
static void a_shared_copy_is_shared_out(void **state)
{
    struct sh_build b = build();
    struct plan l;

    (void)state;
    b.options.segment_ranks = 4;
    l = plan(&b, no_shard, 4);
    assert_about(l.bytes[SH_MEM_PARAM], 4 * sh_model_params(&wide.model) / 4);
}

/* The masters are in halves: the upper half is gathered. */
static void bf16_keeps_halves(void **state)
{
    struct sh_build b = build();
    int64_t elems = sh_model_params(&wide.model);
    struct plan full, optim;

    (void)state;
    b.act = SH_BF16;
    full = plan(&b, full_shard, 4);
    optim = plan(&b, shard_optim, 4);
    assert_about(full.bytes[SH_MEM_PARAM], 2 * elems / 4);
    assert_about(full.bytes[SH_MEM_REMAINDER], 2 * elems / 4);
    assert_about(optim.bytes[SH_MEM_PARAM], 2 * elems);
    assert_about(optim.bytes[SH_MEM_REMAINDER], 2 * elems / 4);
}

/* float32 masters, on the rank that updates them. */
static void f16_keeps_masters(void **state)
{
    struct sh_build b = build();
    int64_t elems = sh_model_params(&wide.model);
    struct plan optim;

    (void)state;
    b.act = SH_F16;
    optim = plan(&b, shard_optim, 4);
    assert_about(optim.bytes[SH_MEM_PARAM], 2 * elems);
    assert_about(optim.bytes[SH_MEM_MASTER], 4 * elems / 4);
    assert_int_equal(optim.bytes[SH_MEM_REMAINDER], 0);
}

/* States take half as much as in float32, except for the alignment of tensors; in a copy for the background only the
 * masters keep their size. */
static void bf16_states_are_half(void **state)
{
    struct sh_build b = build();
    const int64_t most = 256 * 2 * (wide.model.n_layers + 2);
    struct plan wide_states, narrow;

    (void)state;
    b.options.snapshot = true;
    wide_states = plan(&b, full_shard, 4);
    b.options.state_dtype = SH_BF16;
    narrow = plan(&b, full_shard, 4);
    assert_in_range(narrow.bytes[SH_MEM_OPTIM] - wide_states.bytes[SH_MEM_OPTIM] / 2, 0, most);
    assert_in_range(narrow.bytes[SH_MEM_SNAPSHOT] - wide_states.bytes[SH_MEM_SNAPSHOT] * 2 / 3, 0, most);
    assert_int_equal(narrow.bytes[SH_MEM_GRAD], wide_states.bytes[SH_MEM_GRAD]);
    assert_int_equal(wide_states.persistent - narrow.persistent,
                     wide_states.bytes[SH_MEM_OPTIM] - narrow.bytes[SH_MEM_OPTIM] + wide_states.bytes[SH_MEM_SNAPSHOT] -
                         narrow.bytes[SH_MEM_SNAPSHOT]);
}

/* Units gathered at one time: one, and one more for each unit of prefetch; if they are kept for the backward, all
 * except the embedding, which the backward does not read. */
static void gathered_units(void **state)
{
    struct sh_build b = build();
    int64_t before = 0, all = plan(&b, shard_grad_op, 4).bytes[SH_MEM_GATHERED];

    (void)state;
    assert_about(all, 4 * (sh_model_params(&wide.model) - (int64_t)wide.model.vocab_size * wide.model.dim));
    for (int ahead = 0; ahead < 4; ahead++) {
        int64_t gathered;

        b.options.forward_prefetch = b.options.backward_prefetch = ahead;
        gathered = plan(&b, full_shard, 4).bytes[SH_MEM_GATHERED];
        assert_true(gathered > before && gathered < all);
        before = gathered;
    }
}

/* Tied embeddings stay from the first operation to the loss, but not under a limit of three units, which has no other
 * effect. The loss needs them with their gradient anyway, so the peak does not grow, except a little by the placement
 * of tensors. */
static void what_stays_takes_no_memory(void **state)
{
    (void)state;
    for (int recompute = 0; recompute < TINY_RECOMPUTES; recompute++)
        for (int shard = 2; shard <= 5; shard++) {
            struct sh_build b = build();
            int64_t stays;

            b.model.tie_word_embeddings = true;
            b.recompute = tiny_recomputes[recompute];
            stays = plan(&b, full_shard, shard).arena;
            b.options.gathers_alive = 3;
            if (stays > 1.005 * (double)plan(&b, full_shard, shard).arena)
                fail_msg("recomputation %d over %d: %lld, more than %lld", recompute, shard, (long long)stays,
                         (long long)plan(&b, full_shard, shard).arena);
        }
}

/* Gradients that are reduced each time cost a shard, and the part of one unit that is about to be added to it. */
static void gradients_kept_back_are_whole(void **state)
{
    struct sh_build b = build();
    int64_t elems = sh_model_params(&wide.model), reduced;

    (void)state;
    b.options.micro_steps = 2;
    assert_about(plan(&b, shard_optim, 4).bytes[SH_MEM_GRAD], 4 * elems + 4 * elems / 4);
    reduced = plan(&b, full_shard, 4).bytes[SH_MEM_GRAD];
    assert_true(reduced >= elems && reduced < elems + elems / wide.model.n_layers);
}

static int64_t kept(struct sh_build b, struct sh_recompute recompute)
{
    struct plan l;

    b.recompute = recompute;
    l = plan(&b, full_shard, 4);
    return l.bytes[SH_MEM_ACT];
}

static void recomputation_shrinks_activations(void **state)
{
    struct sh_build b = build();
    int64_t of[TINY_RECOMPUTES];

    (void)state;
    for (int i = 0; i < TINY_RECOMPUTES; i++)
        of[i] = kept(b, tiny_recomputes[i]);
    assert_true(of[TINY_FULL] < of[TINY_EVERY_2] && of[TINY_EVERY_2] < of[TINY_NONE]);
    assert_true(of[TINY_FULL] < of[TINY_FIRST_FULL] && of[TINY_FIRST_FULL] < of[TINY_SELECTIVE]);
    assert_true(of[TINY_SELECTIVE] < of[TINY_FIRST_SELECTIVE] && of[TINY_FIRST_SELECTIVE] < of[TINY_NONE]);
    assert_int_equal(kept(b, (struct sh_recompute){.full = SH_ALL_BLOCKS, .every_k = 1}), of[TINY_FULL]);
}

/* With all activations dropped, one more block costs only its input [N,C]. */
static void a_block_recomputed_costs_its_border(void **state)
{
    struct sh_build b = build(), deeper = build();
    int64_t border = (int64_t)b.batch.batch * b.batch.seq * wide.model.dim * 4;

    (void)state;
    deeper.model.n_layers += 4;
    assert_int_equal(kept(deeper, tiny_recomputes[TINY_FULL]) - kept(b, tiny_recomputes[TINY_FULL]), 4 * border);
}

static void the_table_adds_up_to_the_arena(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (int mode = 0; mode < TINY_RECOMPUTES; mode++)
            for (int shard = 1; shard <= 4; shard++) {
                struct sh_build b = tiny_build(&tiny_models[m], 3);
                int64_t sum = 0;
                struct plan l;

                b.recompute = tiny_recomputes[mode];
                b.options.micro_steps = shard;
                l = plan(&b, full_shard, shard);
                for (int k = 0; k < SH_MEM_KINDS; k++)
                    sum += l.bytes[k];
                assert_true(sum <= l.arena && sum > l.persistent);
                assert_true(l.arena - sum <= (l.arena - l.persistent) / 4); /* gaps between tensors */
            }
}

static int add(struct sh_program *p, int64_t elems, int base, int64_t first)
{
    struct sh_tensor t = sh_tensor_make(SH_MEM_PARAM, SH_F32, 1, &elems, "t%d", p->n_tensors);

    t.persistent = true;
    t.base = base;
    t.base_elems = first;
    return sh_program_add_tensor(p, &t);
}

static void a_view_lies_in_its_base(void **state)
{
    struct sh_program *p = sh_program_create(SH_F32);
    int first = add(p, 3, SH_NONE, 0), base = add(p, 100, SH_NONE, 0);
    int view = add(p, 50, base, 10), again = add(p, 5, view, 7);

    (void)state;
    assert_int_equal(sh_pass_place(&(struct sh_build){.kernels = &sh_kernels_ref, .threads = 1}, p), SH_OK);
    assert_int_equal(p->tensors[first].offset_bytes, 0);
    assert_int_equal(p->tensors[base].offset_bytes, 256);
    assert_int_equal(p->tensors[view].offset_bytes, 256 + 40);
    assert_int_equal(p->tensors[again].offset_bytes, 256 + 68);
    assert_int_equal(p->arena_bytes, 256 + 512);
    sh_program_destroy(p);
}

/* Processor time, not wall time: a machine may be busy. */
static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Llama 3.1 70B on 512 ranks. The limit is generous for a slow machine: a hundredth of what a user would notice. */
static void large_plans_are_quick(void **state)
{
    (void)state;
    for (int micros = 1; micros <= 4; micros += 3)
        for (int mode = 0; mode < TINY_RECOMPUTES; mode++) {
            struct sh_build b = tiny_build(&not_tiny_model, 1);
            double begin = cpu_seconds();
            struct sh_program *p;
            double seconds;

            b.batch.seq = 8192;
            b.act = SH_BF16;
            b.recompute = tiny_recomputes[mode];
            b.options.micro_steps = micros;
            p = tiny_program(&b, tiny_mesh(64, 8, 1, 511));
            seconds = cpu_seconds() - begin;
            print_message("%d operations, %d tensors: %.3f s\n", p->n_ops, p->n_tensors, seconds);
            assert_true(seconds < 2);
            sh_program_destroy(p);
        }
}

static double seconds_to_plan(int layers)
{
    struct sh_build b = tiny_build(&not_tiny_model, 1);
    double least = 1e9;

    b.model.n_layers = layers;
    b.act = SH_BF16;
    b.options.micro_steps = 2;
    for (int i = 0; i < 3; i++) {
        double begin = cpu_seconds();

        sh_program_destroy(tiny_program(&b, tiny_mesh(64, 8, 1, 511)));
        least = fmin(least, cpu_seconds() - begin);
    }
    return least;
}

/* Sixteen times the layers: slightly above 16 times as long if linear, 256 times if each block looks at all others. */
static void deep_plans_take_as_much_longer(void **state)
{
    double few = seconds_to_plan(50), many = seconds_to_plan(800);

    (void)state;
    print_message("50 layers: %.4f s, 800: %.4f s, %.1f times that\n", few, many, many / few);
    assert_true(many / few < 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_divide_model_state),
        cmocka_unit_test(a_shared_copy_is_shared_out),
        cmocka_unit_test(bf16_keeps_halves),
        cmocka_unit_test(f16_keeps_masters),
        cmocka_unit_test(bf16_states_are_half),
        cmocka_unit_test(gathered_units),
        cmocka_unit_test(what_stays_takes_no_memory),
        cmocka_unit_test(gradients_kept_back_are_whole),
        cmocka_unit_test(recomputation_shrinks_activations),
        cmocka_unit_test(a_block_recomputed_costs_its_border),
        cmocka_unit_test(the_table_adds_up_to_the_arena),
        cmocka_unit_test(a_view_lies_in_its_base),
        cmocka_unit_test(large_plans_are_quick),
        cmocka_unit_test(deep_plans_take_as_much_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
