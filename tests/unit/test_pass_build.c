/* Every request that can be planned is planned, for every rank of meshes of up to nine ranks, and all ranks have the
 * same collectives in the same order. */
#include "src/base/number/rng.h"
#include "src/base/string/str.h"
#include "src/layout/layout.h"
#include "src/pass/shard/shard.h"
#include "src/program/saved.h"
#include "tests/unit/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 9 };

/* Check all ranks of one mesh. */
static void check_mesh(const struct sh_build *b, int shard, int replicate, int inner)
{
    uint64_t hash = 0;

    for (int rank = 0; rank < shard * replicate; rank++) {
        struct sh_program *p = tiny_program(b, tiny_mesh(shard, replicate, inner, rank));

        if (rank == 0)
            hash = sh_pass_hash(p);
        assert_int_equal(sh_pass_hash(p), hash);
        sh_program_destroy(p);
    }
}

static void check_meshes(const struct sh_build *b, int most)
{
    bool resident = b->options.strategy.params_resident, keep = b->options.strategy.keep_after_forward;

    for (int shard = 1; shard <= most; shard++)
        for (int replicate = 1; shard * replicate <= most; replicate++)
            for (int inner = 1; inner <= shard; inner++)
                if (shard % inner == 0 && (inner == 1 || (!resident && !keep)))
                    check_mesh(b, shard, replicate, inner);
}

/* Choose each value of each option, in combinations that differ between models and strategies. */
static void choose(struct sh_build *b, int i)
{
    static const int micros[] = {1, 2, 4};

    b->recompute = tiny_recomputes[i % TINY_RECOMPUTES];
    b->options.micro_steps = micros[i % 3];
    b->options.strategy.sync_last_only = i / 2 % 2;
    b->options.forward_prefetch = i / 3 % 4;
    b->options.backward_prefetch = i / 5 % 4;
    b->options.gathers_alive = i / 7 % 4;
    b->options.decay_all = i / 4 % 2;
    b->evaluate = i % 2;
    b->act = i / 6 % 2 ? SH_BF16 : SH_F32;
    b->options.reduce = i / 8 % 2 ? SH_BF16 : SH_F32;
    b->kernels = i / 9 % 2 ? &sh_kernels_cpu : &sh_kernels_ref;
}

static void mixtures_on_all_meshes(void **state)
{
    int i = 0;

    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (int s = 0; s < TINY_STRATEGIES; s++, i += 5) {
            struct sh_build b = tiny_build(&tiny_models[m], 2);

            choose(&b, i);
            b.options.strategy.params_resident = tiny_strategies[s].params_resident;
            b.options.strategy.keep_after_forward = tiny_strategies[s].keep_after_forward;
            check_meshes(&b, MOST_RANKS);
        }
}

static void all_options_on_one_mesh(void **state)
{
    (void)state;
    for (int s = 0; s < TINY_STRATEGIES; s++)
        for (int i = 0; i < 4 * 3 * 5 * 7; i++) {
            struct sh_build b = tiny_build(&tiny_models[i % TINY_MODELS], 1);
            int inner = tiny_strategies[s].params_resident || tiny_strategies[s].keep_after_forward ? 1 : 2;

            choose(&b, i);
            b.options.strategy.params_resident = tiny_strategies[s].params_resident;
            b.options.strategy.keep_after_forward = tiny_strategies[s].keep_after_forward;
            sh_program_destroy(tiny_program(&b, tiny_mesh(4, 2, inner, i % 8)));
        }
}

static void without_training(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (int logits = 0; logits < 2; logits++) {
            struct sh_build b = tiny_build(&tiny_models[m], 1);
            struct sh_program *p;

            b.options.training = false;
            b.logits = logits;
            b.evaluate = !logits;
            check_meshes(&b, 6);
            p = tiny_program(&b, tiny_mesh(2, 1, 1, 1));
            assert_null(sh_program_section(p, SH_SECTION_UPDATE));
            assert_true((sh_program_section(p, SH_SECTION_LOGITS) != NULL) == logits);
            assert_true((sh_program_section(p, SH_SECTION_EVAL) != NULL) == !logits);
            for (int u = 0; u < p->n_units; u++)
                assert_int_equal(p->units[u].state[0], SH_NONE);
            sh_program_destroy(p);
        }
}

static int count(const struct sh_program *p, enum sh_section_kind section, enum sh_op_kind kind)
{
    const struct sh_section *s = sh_program_section(p, section);
    int n = 0;

    for (int i = s->first_op; i < s->first_op + s->n_ops; i++)
        n += p->ops[i].kind == kind;
    return n;
}

/* How often each strategy gathers and reduces, as its name promises. Llama, 3 layers: 5 units. */
static void collectives_of_a_step(void **state)
{
    static const struct {
        const char *name;
        struct sh_strategy keeps;
        int shard, replicate, inner, gathers, scatters, sums;
    } table[] = {
        {"one rank", {0}, 1, 1, 1, 0, 0, 0},
        {"no_shard", {true, false, true}, 1, 4, 1, 0, 0, 5},
        {"shard_optim", {true, false, true}, 4, 1, 1, 0, 5, 0},
        {"shard_grad_op", {false, true, false}, 4, 1, 1, 5, 5, 0},
        /* the last unit of the forward is the first of the backward, the last block stays until then; the embedding is
         * not read in the backward */
        {"full_shard", {0}, 4, 1, 1, 7, 5, 0},
        {"full_shard over 2", {0}, 4, 1, 2, 7, 5, 0},
        {"hybrid_shard", {0}, 2, 2, 1, 7, 5, 5},
        {"hybrid_shard_zero2", {false, true, false}, 2, 2, 1, 5, 5, 5},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        struct sh_program *p;

        b.options.strategy = table[i].keeps;
        p = tiny_program(&b, tiny_mesh(table[i].shard, table[i].replicate, table[i].inner, 0));
        assert_int_equal(count(p, SH_SECTION_ONLY, SH_OP_ALL_GATHER), table[i].gathers);
        assert_int_equal(count(p, SH_SECTION_ONLY, SH_OP_REDUCE_SCATTER), table[i].scatters);
        assert_int_equal(count(p, SH_SECTION_ONLY, SH_OP_ALL_REDUCE), table[i].sums);
        sh_program_destroy(p);
    }
}

/* Gathers of a micro-step with full_shard: the last block and tied embeddings stay through the loss if a gather ahead
 * would bring them back, and a limit has room for them. In an evaluation they do not stay. */
static void units_stay_through_the_loss(void **state)
{
    enum { LLAMA_3 = 1, LLAMA_2_TIED = 2, GPT2_1_TIED = 3 };
    static const struct {
        int model, ahead, limit, gathers, evaluation;
    } table[] = {
        {LLAMA_3, 1, 0, 7, 5},      {LLAMA_3, 0, 0, 8, 5},      {LLAMA_3, 1, 1, 8, 5},      {LLAMA_3, 3, 2, 7, 5},
        {LLAMA_2_TIED, 1, 0, 4, 4}, {LLAMA_2_TIED, 0, 0, 6, 4}, {LLAMA_2_TIED, 2, 1, 6, 4}, {LLAMA_2_TIED, 1, 2, 5, 4},
        {GPT2_1_TIED, 1, 0, 2, 3},  {GPT2_1_TIED, 0, 0, 4, 3},  {GPT2_1_TIED, 1, 2, 3, 3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int inner = 1; inner <= 2; inner++) {
            struct sh_build b = tiny_build(&tiny_models[table[i].model], 1);
            struct sh_program *p;

            b.evaluate = true;
            b.options.backward_prefetch = table[i].ahead;
            b.options.gathers_alive = table[i].limit;
            p = tiny_program(&b, tiny_mesh(4, 1, inner, 0));
            if (count(p, SH_SECTION_ONLY, SH_OP_ALL_GATHER) != table[i].gathers ||
                count(p, SH_SECTION_EVAL, SH_OP_ALL_GATHER) != table[i].evaluation)
                fail_msg("row %d, inner %d: %d gathers, %d in an evaluation", (int)i, inner,
                         count(p, SH_SECTION_ONLY, SH_OP_ALL_GATHER), count(p, SH_SECTION_EVAL, SH_OP_ALL_GATHER));
            sh_program_destroy(p);
        }
}

/* A unit that stays from update to update is gathered at the start and after each update, but in no micro-step. */
static void resident_units_are_gathered_once(void **state)
{
    static const int gathers[] = {7, 6, 4}; /* per micro-step; the first block has two */

    (void)state;
    for (int resident = 0; resident < 3; resident++) {
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        struct sh_program *p;

        b.evaluate = true;
        b.options.resident_units = resident;
        p = tiny_program(&b, tiny_mesh(4, 1, 1, 0));
        assert_int_equal(count(p, SH_SECTION_ONLY, SH_OP_ALL_GATHER), gathers[resident]);
        assert_int_equal(count(p, SH_SECTION_EVAL, SH_OP_ALL_GATHER), 5 - resident);
        assert_int_equal(count(p, SH_SECTION_UPDATE, SH_OP_ALL_GATHER), resident);
        assert_int_equal(count(p, SH_SECTION_INIT, SH_OP_ALL_GATHER), resident);
        assert_int_equal(count(p, SH_SECTION_ONLY, SH_OP_REDUCE_SCATTER), 5);
        sh_program_destroy(p);
    }
}

/* A frozen block is gathered in two units, and a gather ahead does not bring back both of them. */
static void frozen_units_do_not_stay(void **state)
{
    int gathers[2];

    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        struct sh_build b = tiny_build(&tiny_models[2], 1);
        struct sh_program *p;

        b.batch.adapters = (struct sh_adapters){.rank = 2, .scale = 1, .targets = ~0u};
        b.options.backward_prefetch = ahead;
        p = tiny_program(&b, tiny_mesh(4, 1, 1, 0));
        gathers[ahead] = count(p, SH_SECTION_ONLY, SH_OP_ALL_GATHER);
        sh_program_destroy(p);
    }
    assert_int_equal(gathers[0], gathers[1]);
}

/* Each element of the gradient is squared once in the job, whichever ranks have it. */
static void squares_are_shared_out(void **state)
{
    static const int meshes[][2] = {{1, 1}, {2, 1}, {1, 3}, {2, 2}, {3, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        int shard = meshes[i][0], replicate = meshes[i][1];
        int64_t squared = 0, elems = 0;

        for (int rank = 0; rank < shard * replicate; rank++) {
            struct sh_build b = tiny_build(&tiny_models[1], 1);
            struct sh_program *p = tiny_program(&b, tiny_mesh(shard, replicate, 1, rank));
            const struct sh_section *norm = sh_program_section(p, SH_SECTION_NORM);

            for (int k = norm->first_op; k < norm->first_op + norm->n_ops; k++)
                if (p->ops[k].kind == SH_OP_SUMSQ)
                    squared += sh_tensor_elems(&p->tensors[p->ops[k].in[0]]);
            for (int unit = 0; unit < p->n_units && rank == 0; unit++)
                elems += p->units[unit].elems;
            sh_program_destroy(p);
        }
        assert_int_equal(squared, elems);
    }
}

/* Gradients that wait for the last micro-step are reduced only there; replicas are always summed once. */
static void gradients_are_reduced_when_asked(void **state)
{
    (void)state;
    for (int last_only = 0; last_only < 2; last_only++) {
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        struct sh_program *p;

        b.options.micro_steps = 4;
        b.options.strategy.sync_last_only = last_only;
        p = tiny_program(&b, tiny_mesh(2, 2, 1, 0));
        assert_int_equal(sh_program_section(p, SH_SECTION_MIDDLE)->repeat, 2);
        assert_int_equal(count(p, SH_SECTION_FIRST, SH_OP_REDUCE_SCATTER), last_only ? 0 : 5);
        assert_int_equal(count(p, SH_SECTION_MIDDLE, SH_OP_REDUCE_SCATTER), last_only ? 0 : 5);
        assert_int_equal(count(p, SH_SECTION_LAST, SH_OP_REDUCE_SCATTER), 5);
        assert_int_equal(count(p, SH_SECTION_MIDDLE, SH_OP_ALL_REDUCE), 0);
        assert_int_equal(count(p, SH_SECTION_LAST, SH_OP_ALL_REDUCE), 5);
        sh_program_destroy(p);
    }
}

/* The kinds that models emit for training have a gradient rule, and no others; a kind whose backward is a kind is one
 * of them. */
static void what_models_emit_has_a_gradient(void **state)
{
    (void)state;
    for (int k = 0; k < SH_OP_KINDS; k++) {
        const struct sh_op_info *info = sh_op_info((enum sh_op_kind)k);
        bool has_backward = false;
        char name[64];

        snprintf(name, sizeof name, "%s_bwd", info->name);
        for (int other = 0; other < SH_OP_KINDS; other++)
            has_backward |= !strcmp(sh_op_info((enum sh_op_kind)other)->name, name);
        if (info->forward != sh_pass_grad_knows((enum sh_op_kind)k) || (has_backward && !info->forward))
            fail_msg("%s: a row that is %s, %s rule in src/pass/grad/", info->name,
                     info->forward ? "forward" : "not forward", sh_pass_grad_knows((enum sh_op_kind)k) ? "a" : "no");
    }
}

/* Units are reduced once, when their last gradient is complete, with or without tied weights and a segment: the norm
 * squares the results of the reductions, and its first operation initializes the accumulator. */
static void units_are_reduced_once(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (int segment = 0; segment <= 2; segment += 2) {
            struct sh_build b = tiny_build(&tiny_models[m], 1);
            struct sh_program *p;
            int squared = 0;

            b.options.segment_ranks = segment;
            p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
            assert_int_equal(count(p, SH_SECTION_ONLY, SH_OP_REDUCE_SCATTER), p->n_units);
            for (int i = 0; i < p->n_ops; i++)
                if (p->ops[i].kind == SH_OP_SUMSQ)
                    assert_int_equal(p->ops[i].attr.accumulate & 1u, squared++ > 0);
            assert_int_equal(squared, p->n_units);
            sh_program_destroy(p);
        }
}

/* Return the bytes of gradients that a rank sends and sums, and check that they all have this type. */
static int64_t reduced_bytes(const struct sh_program *p, enum sh_dtype dtype)
{
    int64_t bytes = 0;

    for (int i = 0; i < p->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];
        int t = op->kind == SH_OP_REDUCE_SCATTER ? op->in[0] : op->out[0];

        if (op->unit == SH_NONE || (op->kind != SH_OP_REDUCE_SCATTER && op->kind != SH_OP_ALL_REDUCE))
            continue;
        assert_int_equal(p->tensors[t].dtype, dtype);
        assert_int_equal(p->tensors[op->out[0]].dtype, dtype);
        bytes += sh_tensor_bytes(&p->tensors[t]);
    }
    return bytes;
}

static void bf16_reductions_send_half(void **state)
{
    (void)state;
    for (int micros = 1; micros < 4; micros++)
        for (int segment = 0; segment <= 4; segment += 4) {
            struct sh_build b = tiny_build(&tiny_models[1], 1);
            struct sh_program *f32, *bf16;

            b.options.micro_steps = micros;
            b.options.segment_ranks = segment;
            f32 = tiny_program(&b, tiny_mesh(2, 2, 1, 0));
            b.options.reduce = SH_BF16;
            bf16 = tiny_program(&b, tiny_mesh(2, 2, 1, 0));
            assert_true(reduced_bytes(f32, SH_F32) > 0);
            assert_int_equal(reduced_bytes(bf16, SH_BF16) * 2, reduced_bytes(f32, SH_F32));
            sh_program_destroy(f32);
            sh_program_destroy(bf16);
        }
}

/* Return the largest number of units gathered at one time during a phase. */
static int ahead(const struct sh_program *p, enum sh_phase phase)
{
    const struct sh_section *s = sh_program_section(p, SH_SECTION_ONLY);
    int alive = 0, most = 0;

    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        alive += p->ops[i].kind == SH_OP_ALL_GATHER;
        alive -= p->ops[i].kind == SH_OP_RELEASE;
        most = p->ops[i].phase == phase && alive > most ? alive : most;
    }
    return most;
}

/* The prefetch of each phase, while the other phase has none. */
static void prefetch_reaches_as_far_as_asked(void **state)
{
    static const enum sh_phase phases[] = {SH_PHASE_FORWARD, SH_PHASE_BACKWARD};

    (void)state;
    for (int distance = 0; distance < 4; distance++)
        for (int limit = 0; limit < 4; limit++)
            for (int k = 0; k < 2; k++) {
                struct sh_build b = tiny_build(&tiny_models[1], 1);
                struct sh_program *p;
                int wanted = limit && limit < distance + 1 ? limit : distance + 1;

                b.options.forward_prefetch = k == 0 ? distance : 0;
                b.options.backward_prefetch = k == 1 ? distance : 0;
                b.options.gathers_alive = limit;
                p = tiny_program(&b, tiny_mesh(4, 1, 1, 0));
                assert_int_equal(ahead(p, phases[k]), wanted);
                sh_program_destroy(p);
            }
}

/* Return the unit whose gradient contains tensor t; SH_NONE: t is not a gradient. */
static int unit_of_grad(const struct sh_program *p, int t)
{
    int root = t == SH_NONE ? SH_NONE : sh_tensor_root(p, t);

    for (int u = 0; u < p->n_units && root != SH_NONE; u++)
        if (root == p->units[u].grad_shard)
            return u;
    return SH_NONE;
}

/* An operation that makes gradients of two units would keep both unreduced. In GPT-2 a norm and a bias of one block are
 * fused. */
static void no_operation_makes_gradients_of_two_units(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct sh_build b = tiny_build(&tiny_models[m], 1);
        struct sh_program *p;
        int fused = 0;

        b.kernels = &sh_kernels_cpu;
        p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        for (int i = 0; i < p->n_ops; i++) {
            int unit = SH_NONE;

            fused += p->ops[i].kind == SH_OP_NORM_BWD_BIAS;
            for (int k = 0; k < SH_OP_MAX_OUT && p->ops[i].phase == SH_PHASE_BACKWARD; k++) {
                int other = unit_of_grad(p, p->ops[i].out[k]);

                if (unit != SH_NONE && other != SH_NONE && unit != other)
                    fail_msg("%s: operation %d makes gradients of %s and %s", tiny_models[m].name, i,
                             p->units[unit].name, p->units[other].name);
                unit = other == SH_NONE ? unit : other;
            }
        }
        assert_true(fused > 0 || tiny_models[m].model.family != SH_FAMILY_GPT2);
        sh_program_destroy(p);
    }
}

/* Weight decay applies to matrices only; with decay_all to every element that a rank owns. */
static void decay_all_decays_norms_and_biases(void **state)
{
    (void)state;
    for (int all = 0; all < 2; all++) {
        struct sh_build b = tiny_build(&tiny_models[4], 1);
        struct sh_program *p;
        int64_t decayed = 0, elems = 0, matrices = 0;

        b.options.decay_all = all;
        p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        for (int i = 0; i < p->n_runs; i++)
            decayed += p->runs[i].decay ? p->runs[i].end - p->runs[i].begin : 0;
        for (int i = 0; i < p->n_params; i++) {
            elems += p->params[i].elems;
            matrices += p->params[i].ndim == 2 ? p->params[i].elems : 0;
        }
        assert_true(matrices < elems);
        assert_int_equal(decayed, all ? elems : matrices);
        sh_program_destroy(p);
    }
}

/* Count how often the runs of a rank, each of one tensor, name each element. */
static void count_elements(const struct sh_program *p, int64_t *seen)
{
    int64_t before = 0;

    for (int i = 0; i < p->n_params; before += p->params[i++].elems)
        for (int k = 0; k < p->n_ops; k++)
            for (int r = 0; sh_op_info(p->ops[k].kind)->runs && r < p->ops[k].attr.runs.count; r++) {
                const struct sh_decay_run *run = &p->runs[p->ops[k].attr.runs.first + r];

                for (int64_t e = run->begin;
                     run->tensor == sh_rng_name(sh_saved_of(p, &p->params[i])->name) && e < run->end; e++) {
                    assert_in_range(e - run->origin, 0, p->params[i].elems - 1);
                    seen[before + e - run->origin]++;
                }
            }
}

/* The arguments of the random bits for states in bf16: over the ranks of a shard group each element of each tensor is
 * named once, by its place in that tensor. In float32 there are no runs. */
static void runs_name_each_element_once(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        for (int ranks = 1; ranks <= 5; ranks++) {
            struct sh_build b = tiny_build(&tiny_models[m], 1);
            int64_t *seen = calloc(1 << 16, sizeof *seen), elems = 0;

            for (int rank = 0; rank < ranks; rank++) {
                struct sh_program *p;

                b.options.state_dtype = SH_F32;
                p = tiny_program(&b, tiny_mesh(ranks, 1, 1, rank));
                for (int i = 0; i < p->n_runs; i++)
                    assert_true(p->runs[i].tensor == 0 && p->runs[i].origin == 0);
                sh_program_destroy(p);
                b.options.state_dtype = SH_BF16;
                p = tiny_program(&b, tiny_mesh(ranks, 1, 1, rank));
                count_elements(p, seen);
                elems = sh_model_params(&tiny_models[m].model);
                sh_program_destroy(p);
            }
            assert_in_range(elems, 1, (1 << 16) - 1);
            for (int64_t i = 0; i < elems; i++)
                assert_int_equal(seen[i], 1);
            assert_int_equal(seen[elems], 0);
            free(seen);
        }
}

static void a_limit_is_kept(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);
    struct sh_program *p = NULL;
    int64_t fits;

    (void)state;
    assert_int_equal(sh_pass_build(&b, &p), SH_OK);
    fits = p->arena_bytes;
    sh_program_destroy(p);
    b.limit_bytes = fits;
    assert_int_equal(sh_pass_build(&b, &p), SH_OK);
    sh_program_destroy(p);
    b.limit_bytes = fits - 1;
    p = NULL;
    assert_int_equal(sh_pass_build(&b, &p), SH_E_MEMORY);
    assert_non_null(p); /* needed for the table of memory */
    assert_non_null(strstr(sh_error_text(), "memory.limit_bytes"));
    sh_program_destroy(p);
}

/* A refusal names the changes that would make the plan smaller and by how much, and nothing else. */
static void cures_are_those_that_help(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], 4);
    char text[SH_CURES_TEXT];

    (void)state;
    b.batch.seq = b.model.max_seq_len = 64;
    b.options.mesh = tiny_mesh(4, 1, 1, 0);
    sh_pass_cures(&b, INT64_MAX, text);
    assert_non_null(strstr(text, "; smaller with activation_checkpoint.mode=memory_budget (at least "));
    assert_non_null(strstr(text, ", training.local_batch_size=1 ("));
    assert_non_null(strstr(text, ", twice the ranks ("));
    assert_null(strstr(text, "full_shard")); /* it already is */
    for (int on_host = 0; on_host < 2; on_host++) {
        b.snapshot_on_host = on_host;
        sh_pass_cures(&b, INT64_MAX, text);
        assert_int_equal(strstr(text, ", offload.optimizer=cpu (") != NULL, on_host);
        assert_int_equal(strstr(text, ", offload.optimizer=nvme (") != NULL, !on_host);
    }
    b.model.n_layers = 8;
    for (int case_of = 0; case_of < 4; case_of++) {
        b.snapshot_on_host = case_of != 1;
        b.offload.act_blocks = case_of == 2 ? 6 : 0;
        b.fit_homes = case_of == 3; /* the budget chooses homes itself */
        sh_pass_cures(&b, INT64_MAX, text);
        assert_int_equal(strstr(text, ", offload.activations=cpu (") != NULL, case_of == 0);
    }
    b.model.n_layers = 3;
    b.fit_homes = false;
    b.snapshot_on_host = false;
    b.fit = true;
    b.batch.batch = 1;
    b.options.strategy = (struct sh_strategy){.params_resident = true, .sync_last_only = true};
    sh_pass_cures(&b, INT64_MAX, text);
    assert_memory_equal(text, "; smaller with parallelism.sharding_strategy=full_shard (", 57);
    assert_null(strstr(text, "memory_budget"));
    assert_null(strstr(text, "local_batch_size"));
    assert_null(strstr(text, "ranks"));
    sh_pass_cures(&b, 1, text);
    assert_string_equal(text, "; it needs more memory, or a smaller model or training.seq_len");
    b.fit = false;
    b.batch.seq = b.model.max_seq_len = 1 << 14;
    for (int case_of = 0; case_of < 3; case_of++) { /* only blocks that recompute all have tiles, and only once */
        b.recompute = tiny_recomputes[case_of == 1 ? TINY_SELECTIVE : TINY_FULL];
        b.tile_rows = case_of == 2 ? 64 : 0;
        sh_pass_cures(&b, INT64_MAX, text);
        assert_int_equal(strstr(text, "training.tile_rows=auto (") != NULL, case_of == 0);
    }
}

/* Degrees stay as they are: the figure is that of the plan of such a job, at the same place of the same stage. */
static void cures_keep_the_degrees(void **state)
{
    static const struct sh_mesh_request rows[] = {
        {SH_MESH_ALL, SH_MESH_AUTO, .inner = 1, .pipeline = 2},
        {SH_MESH_ALL, SH_MESH_AUTO, .inner = 1, .expert = 2},
        {SH_MESH_ALL, SH_MESH_AUTO, .inner = 4, .expert = 2},
    };

    (void)state;
    for (int i = 0; i < 6; i++) {
        const struct sh_mesh_request *r = &rows[i / 2];
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        char text[SH_CURES_TEXT], bytes[SH_STR_SHORT], words[64];
        struct sh_mesh_shape twice;
        struct sh_program *p;

        b.model.dim = 256;
        if (r->expert) {
            b.model.family = SH_FAMILY_QWEN3_MOE;
            b.model.n_experts = 4;
            b.model.n_experts_per_token = 2;
            b.model.expert_ffn_dim = 5;
            b.batch.spread.capacity = 1;
        }
        b.options.strategy.keep_after_forward = r->pipeline;
        b.options.micro_steps = 2;
        assert_int_equal(sh_mesh_shape_make(r, 8, i % 2 * 4, &b.options.mesh), SH_OK);
        assert_int_equal(sh_mesh_shape_make(r, 16, i % 2 * (r->pipeline ? 8 : 4), &twice), SH_OK);
        b.offload.optimizer_16 = 16;
        b.offload.buffers = 3;
        sh_pass_cures(&b, INT64_MAX, text);
        assert_int_equal(strstr(text, "offload.gradients=nvme") != NULL, !r->pipeline);
        b.offload = (struct sh_offload){0};
        sh_pass_cures(&b, INT64_MAX, text);
        assert_null(strstr(text, "full_shard"));
        p = tiny_program(&b, twice);
        snprintf(words, sizeof words, "twice the ranks (%s)", sh_str_bytes(p->arena_bytes, bytes));
        if (!strstr(text, words))
            fail_msg("%d: %s, not%s", i, words, text);
        sh_program_destroy(p);
    }
}

/* 2^10 micro-steps have a tree with ten levels, the last of which need not be kept. */
static void the_deepest_tree(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);
    struct sh_program *p;

    (void)state;
    b.options.reproducible = b.options.strategy.sync_last_only = true;
    b.options.micro_steps = 1 << SH_GRAD_LEVELS;
    p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
    assert_int_not_equal(sh_program_micro_step(p, b.options.micro_steps - 1), SH_NONE);
    sh_program_destroy(p);
}

static void has_group(const struct sh_program *p, const char *name, sh_group axes, unsigned streams)
{
    int row = sh_program_find_group(p->groups, p->n_groups, axes);

    assert_int_not_equal(row, SH_NONE);
    assert_string_equal(p->groups[row].name, name);
    assert_int_equal(p->groups[row].streams, streams);
}

/* A job connects the groups that its program uses: those of its collectives, and the one over which the host sums. */
static void groups_are_those_in_use(void **state)
{
    enum { GATHER = 1 << SH_STREAM_GATHER, REDUCE = 1 << SH_STREAM_REDUCE, SUM = 1 << SH_STREAM_REPLICATE };
    static const struct {
        int shard, replicate, inner, n;
        bool training;
        unsigned shards, inners, replicas;
    } rows[] = {
        {1, 1, 1, 1, true, 0, 0, 0},
        {4, 1, 1, 2, true, GATHER | REDUCE, 0, 0},
        {1, 3, 1, 2, true, 0, 0, SUM},
        {4, 2, 1, 3, true, GATHER | REDUCE, 0, SUM},
        {4, 2, 2, 4, true, GATHER | REDUCE, GATHER, SUM},
        {4, 2, 2, 2, false, GATHER, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        struct sh_mesh_shape mesh = tiny_mesh(rows[i].shard, rows[i].replicate, rows[i].inner, 0);
        struct sh_program *p;

        b.options.training = rows[i].training;
        b.evaluate = !rows[i].training;
        p = tiny_program(&b, mesh);
        assert_int_equal(p->n_groups, rows[i].n);
        has_group(p, "world", sh_group_world(&mesh), SUM);
        if (rows[i].shards)
            has_group(p, "shard", mesh.shard, rows[i].shards);
        if (rows[i].inners)
            has_group(p, "inner", mesh.inner, rows[i].inners);
        if (rows[i].replicas)
            has_group(p, "replicate", mesh.replicate, rows[i].replicas);
        sh_program_destroy(p);
    }
}

/* The group of the only sum over ranks in a section; that of a loss goes on over stages. */
static sh_group summed_over(const struct sh_program *p, enum sh_section_kind kind)
{
    const struct sh_section *s = sh_program_section(p, kind);
    const sh_group stages = 1 << SH_AXIS_PIPELINE;
    sh_group group = 0;
    int n = 0;

    for (int i = s->first_op; i < s->first_op + s->n_ops; i++)
        if (p->ops[i].kind == SH_OP_ALL_REDUCE) {
            sh_group more = p->ops[i].attr.group;

            assert_true(n == 0 || (kind == SH_SECTION_LOSS && more == stages && !(group & stages)));
            group |= more;
            n++;
        }
    assert_in_range(n, 1, 2);
    return group;
}

/* The loss of a token counts once: ranks of tensor have those of their rows. An element of a gradient has one owner in
 * the world. Groups of the same ranks are one. */
static void sums_count_everything_once(void **state)
{
    enum { WORLD = (1 << SH_AXES) - 1 };
    static const int axes[][SH_AXES] = {
        {2, 2, 1, 2, 2, 2, 1}, {2, 1, 1, 1, 3, 1, 1}, {1, 2, 1, 1, 1, 2, 1}, {1, 1, 1, 1, 2, 1, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        struct sh_program *p;

        b.options.strategy.keep_after_forward = true; /* of stages */
        b.model.n_heads = 4;                          /* so that two ranks can share them */
        b.model.n_kv_heads = 2;
        p = tiny_program(&b, sh_mesh_shape_of(axes[i], 0));
        assert_int_equal(summed_over(p, SH_SECTION_LOSS), WORLD);
        assert_int_equal(summed_over(p, SH_SECTION_NORM), WORLD);
        has_group(p, "world", WORLD, 1 << SH_STREAM_REPLICATE); /* of the host too */
        sh_program_destroy(p);
    }
}

/* Copies of the state are on the host if that is a separate memory; nothing else is. */
static void snapshots_have_a_tier(void **state)
{
    (void)state;
    for (int on_host = 0; on_host < 2; on_host++) {
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        int64_t bytes = 0;
        struct sh_program *p;

        b.options.snapshot = true;
        b.snapshot_on_host = on_host;
        p = tiny_program(&b, tiny_mesh(2, 1, 1, 0));
        assert_int_equal(p->n_tiers, 1 + on_host);
        for (int t = 0; t < p->n_tensors; t++) {
            bool snapshot = p->tensors[t].mem == SH_MEM_SNAPSHOT;

            assert_int_equal(p->tensors[t].tier, snapshot && on_host);
            bytes += snapshot ? sh_tensor_bytes(&p->tensors[t]) : 0;
        }
        assert_int_equal(p->tiers[0].bytes, p->own_bytes);
        assert_true(!on_host || (p->tiers[1].kind == SH_TIER_HOST && p->tiers[1].bytes >= bytes && bytes > 0));
        sh_program_destroy(p);
    }
}

static void counts_of_unit(const struct sh_program *p, int unit, enum sh_op_kind kind, sh_group group, int expected)
{
    int n = 0;

    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind && p->ops[i].unit == unit) {
            assert_int_equal(p->ops[i].attr.group, group);
            n++;
        }
    assert_int_equal(n, expected);
}

/* One unit is sharded over the axis over which the others are replicated, and the other way round. */
static void a_unit_has_groups_of_its_own(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], 1);
    struct sh_mesh_shape mesh = tiny_mesh(2, 3, 1, 4);
    struct sh_program *micro, *p = sh_program_create(SH_F32);
    const struct sh_unit *own, *other;

    (void)state;
    b.options.mesh = mesh;
    assert_int_equal(sh_pass_micro_step(&b, true, &micro), SH_OK);
    micro->units[1].shard = mesh.replicate;
    micro->units[1].replicate = mesh.shard;
    sh_shard_state(micro, &b.options, p);
    sh_shard_init(micro, &b.options, p);
    sh_shard_section(micro, &b.options, SH_SECTION_ONLY, 0, 1, p);
    sh_shard_norm(&b.options, p);
    sh_shard_update(&b, p);
    sh_shard_loss(&b.options, p);
    assert_int_equal(sh_pass_groups(&b, p), SH_OK);
    assert_int_equal(sh_pass_schedule(&b, p), SH_OK);
    assert_int_equal(sh_pass_place(&b, p), SH_OK);
    assert_int_equal(sh_pass_check(&b, p), SH_OK);
    own = &p->units[1];
    other = &p->units[2];
    assert_int_equal(own->chunk, sh_layout_chunk(own->elems, 3));
    assert_int_equal(other->chunk, sh_layout_chunk(other->elems, 2));
    counts_of_unit(p, 1, SH_OP_ALL_GATHER, mesh.replicate, 2);
    counts_of_unit(p, 1, SH_OP_REDUCE_SCATTER, mesh.replicate, 1);
    counts_of_unit(p, 1, SH_OP_ALL_REDUCE, mesh.shard, 1);
    counts_of_unit(p, 2, SH_OP_ALL_GATHER, mesh.shard, 2);
    counts_of_unit(p, 2, SH_OP_REDUCE_SCATTER, mesh.shard, 1);
    counts_of_unit(p, 2, SH_OP_ALL_REDUCE, mesh.replicate, 1);
    sh_program_destroy(micro);
    sh_program_destroy(p);
}

/* Insert operations into a section before index `at`; what waits or follows still names the same collective. */
static void insert(struct sh_program *p, int section, int at, const struct sh_op *ops, int n)
{
    const struct sh_section s = p->sections[section];
    struct sh_op *all = calloc((size_t)(s.n_ops + n), sizeof *all);

    for (int i = 0; i < s.n_ops; i++) {
        struct sh_op op = p->ops[s.first_op + i];

        op.attr.after += op.attr.after >= at ? n : 0;
        op.attr.waits_for += op.kind == SH_OP_WAIT && op.attr.waits_for >= at ? n : 0;
        all[i < at ? i : i + n] = op;
    }
    for (int i = 0; i < n; i++) {
        all[at + i] = ops[i];
        all[at + i].attr.waits_for += ops[i].kind == SH_OP_WAIT ? at : 0;
    }
    sh_program_set_ops(p, section, all, s.n_ops + n);
    free(all);
}

/* Rows of the model that a collective moves, and the wait for it. */
static int exchange_rows(struct sh_program *p, enum sh_op_kind kind, int in, int64_t elems, struct sh_op ops[2])
{
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, p->tensors[in].dtype, 1, &elems, "rows.%s", sh_op_info(kind)->name);

    ops[0] = sh_program_op(kind);
    ops[0].stream = SH_STREAM_GATHER;
    ops[0].attr.group = 1u << SH_AXIS_OUTER;
    ops[0].in[0] = in;
    ops[0].out[0] = sh_program_add_tensor(p, &t);
    ops[0].phase = SH_PHASE_FORWARD;
    ops[1] = sh_program_op(SH_OP_WAIT);
    ops[1].phase = SH_PHASE_FORWARD;
    return ops[0].out[0];
}

/* After the operation at index i: gather its output over two ranks, and scatter the sum; exchange it, and back. */
static void exchange_after(struct sh_program *p, int section, int i)
{
    int x = p->ops[p->sections[section].first_op + i].out[0], y;
    int64_t n = sh_tensor_elems(&p->tensors[x]);
    struct sh_op ops[8];

    y = exchange_rows(p, SH_OP_ALL_GATHER, x, 2 * n, ops);
    exchange_rows(p, SH_OP_REDUCE_SCATTER, y, n, ops + 2);
    y = exchange_rows(p, SH_OP_ALL_TO_ALL, x, n, ops + 4);
    exchange_rows(p, SH_OP_ALL_TO_ALL, y, n, ops + 6);
    for (int k = 1; k < 8; k += 2)
        ops[k].attr.waits_for = k - 1;
    insert(p, section, i + 1, ops, 8);
}

static struct sh_program *with_rows(struct sh_build *b, bool rows)
{
    struct sh_program *micro, *p = sh_program_create(SH_F32);
    int section, found = 0;

    assert_int_equal(sh_pass_micro_step(b, true, &micro), SH_OK);
    sh_shard_state(micro, &b->options, p);
    sh_shard_init(micro, &b->options, p);
    sh_shard_section(micro, &b->options, SH_SECTION_ONLY, 0, 1, p);
    sh_shard_norm(&b->options, p);
    sh_shard_update(b, p);
    sh_shard_loss(&b->options, p);
    section = sh_program_find_section(p, SH_SECTION_ONLY);
    for (int i = p->sections[section].n_ops - 1; rows && i >= 0; i--) {
        enum sh_op_kind kind = p->ops[p->sections[section].first_op + i].kind;

        if (kind == SH_OP_LINEAR || kind == SH_OP_LINEAR_BWD_X) {
            exchange_after(p, section, i);
            found++;
        }
    }
    assert_true(!rows || found > 10);
    assert_int_equal(sh_pass_groups(b, p), SH_OK);
    assert_int_equal(sh_pass_schedule(b, p), SH_OK);
    assert_int_equal(sh_pass_place(b, p), SH_OK);
    assert_int_equal(sh_pass_check(b, p), SH_OK);
    sh_program_destroy(micro);
    return p;
}

/* The next operation of a unit from place i on; its end if there is none. */
static int next_of_unit(const struct sh_program *p, const struct sh_section *s, int i)
{
    while (i < s->n_ops && p->ops[s->first_op + i].unit == SH_NONE)
        i++;
    return i;
}

/* Collectives of the model are not taken for those of a unit, which are scheduled as without them. */
static void units_are_scheduled_as_without_rows(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 4; ahead++) {
        struct sh_build b = tiny_build(&tiny_models[1], 1);
        struct sh_program *p, *plain;
        const struct sh_section *s, *t;
        int i = -1, k = -1;

        b.options.mesh = tiny_mesh(2, 2, 1, 0);
        b.options.forward_prefetch = b.options.backward_prefetch = ahead;
        p = with_rows(&b, true);
        plain = with_rows(&b, false);
        s = sh_program_section(p, SH_SECTION_ONLY);
        t = sh_program_section(plain, SH_SECTION_ONLY);
        while ((i = next_of_unit(p, s, i + 1)) < s->n_ops && (k = next_of_unit(plain, t, k + 1)) < t->n_ops) {
            const struct sh_op *op = &p->ops[s->first_op + i], *same = &plain->ops[t->first_op + k];

            assert_true(op->kind == same->kind && op->unit == same->unit && op->out[0] == same->out[0]);
        }
        assert_true(i == s->n_ops && next_of_unit(plain, t, k + 1) == t->n_ops);
        sh_program_destroy(p);
        sh_program_destroy(plain);
    }
}

static struct sh_build with_experts(void)
{
    struct sh_build b = tiny_build(&tiny_models[2], 1);

    b.model.family = SH_FAMILY_QWEN3_MOE;
    b.model.n_experts = 4;
    b.model.n_experts_per_token = 2;
    b.model.expert_ffn_dim = 6;
    return b;
}

/* How many operations of a kind run while rows travel, from index i of the section to the wait for them. */
static int beside(const struct sh_program *p, const struct sh_section *s, int i, enum sh_op_kind kind)
{
    int n = 0;

    for (int k = i; k < s->n_ops; k++) {
        const struct sh_op *op = &p->ops[s->first_op + k];

        if (op->kind == SH_OP_WAIT && op->attr.waits_for == i)
            return n;
        n += op->kind == kind;
    }
    fail();
    return 0;
}

/* Ranks of a node fetch rows from where they lie. Weights travel while rows are gathered, and gradients of rows while
 * those of weights are computed. The backward sends again only what is recomputed. */
static void rows_travel_beside_products(void **state)
{
    static const int axes[SH_AXES] = {1, 1, 2, 1, 1, 1, 1};

    (void)state;
    for (int row = 0; row < 4; row++) {
        struct sh_build b = with_experts();
        int segment = row % 2 * 2, sent = 0, early = 0, home = 0;
        struct sh_program *p;
        const struct sh_section *s;

        b.batch.spread.capacity = 1.25;
        b.recompute = tiny_recomputes[row < 2 ? TINY_NONE : TINY_FULL];
        b.options.segment_ranks = segment;
        p = tiny_program(&b, sh_mesh_shape_of(axes, 0));
        s = sh_program_section(p, SH_SECTION_ONLY);
        for (int i = 0; i < s->n_ops; i++) {
            const struct sh_op *op = &p->ops[s->first_op + i];

            if (!sh_program_counts_rows(op))
                continue;
            assert_true((p->tensors[sh_tensor_root(p, op->in[0])].space == SH_SPACE_PEERS) == (segment > 0));
            if (op->attr.exchange.wave)
                continue;
            sent += !op->attr.exchange.back;
            early += op->phase == SH_PHASE_FORWARD ? beside(p, s, i, SH_OP_ROW_GATHER) : 0;
            home += op->attr.exchange.back ? beside(p, s, i, SH_OP_EXPERT_LINEAR_BWD_W) : 0;
        }
        assert_int_equal(sent, (row < 2 ? 3 : 4) * b.model.n_layers);
        assert_int_equal(early, b.model.n_layers);
        assert_int_equal(home, 2 * 2 * b.model.n_layers);
        sh_program_destroy(p);
    }
}

/* The shared expert computes while the rows of the first wave travel, its three products and its gate. */
static void the_shared_expert_computes_meanwhile(void **state)
{
    static const int axes[SH_AXES] = {1, 1, 2, 1, 1, 1, 1};
    struct sh_build b = with_experts();
    struct sh_program *p;
    const struct sh_section *s;
    int meanwhile = 0;

    (void)state;
    b.model.family = SH_FAMILY_QWEN2_MOE;
    b.model.shared_ffn_dim = 8;
    b.batch.spread.capacity = 1.25;
    p = tiny_program(&b, sh_mesh_shape_of(axes, 0));
    s = sh_program_section(p, SH_SECTION_ONLY);
    for (int i = 0; i < s->n_ops; i++) {
        const struct sh_op *op = &p->ops[s->first_op + i];

        if (sh_program_counts_rows(op) && !op->attr.exchange.wave && !op->attr.exchange.back &&
            op->phase == SH_PHASE_FORWARD)
            meanwhile += beside(p, s, i, SH_OP_LINEAR);
    }
    assert_int_equal(meanwhile, 4 * b.model.n_layers);
    sh_program_destroy(p);
}

/* Full recomputation repeats what experts compute, and never the choice of them or what is counted of it. */
static void the_choice_of_experts_is_kept(void **state)
{
    struct sh_build b = with_experts();
    struct sh_program *p;
    int chosen = 0, gathered = 0;

    (void)state;
    b.batch.balance.aux = 0.5f;
    b.recompute = tiny_recomputes[TINY_FULL];
    p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
    for (int i = 0; i < p->n_ops; i++) {
        bool again = p->ops[i].phase == SH_PHASE_RECOMPUTE;

        chosen += again && (p->ops[i].kind == SH_OP_ROUTE || p->ops[i].kind == SH_OP_ROUTE_PLAN ||
                            p->ops[i].kind == SH_OP_ROUTE_LOAD || p->ops[i].kind == SH_OP_ROUTE_LOSS);
        gathered += again && p->ops[i].kind == SH_OP_ROW_GATHER;
    }
    assert_true(gathered > 0 && chosen == 0);
    sh_program_destroy(p);
}

/* The first operation that writes to a tensor. */
static const struct sh_op *maker(const struct sh_program *p, int root)
{
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            if (p->ops[i].out[k] != SH_NONE && sh_tensor_root(p, p->ops[i].out[k]) == root)
                return &p->ops[i];
    fail();
    return NULL;
}

/* Of what the forward makes where the experts are, the backward reads the first wave's only: the rows of later ones
 * are put in order and travel again, and nothing of them stays in memory. */
static void one_wave_is_kept(void **state)
{
    struct sh_build b = with_experts();
    struct sh_program *p;
    char parts[64];
    int kept = 0;

    (void)state;
    b.batch.spread.capacity = 1;
    p = tiny_program(&b, sh_mesh_shape_of((const int[SH_AXES]){1, 1, 2, 1, 1, 1, 1}, 0));
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind == SH_OP_ROUTE_WAVE) {
            snprintf(parts, sizeof parts, "layers.%d.parts.%d", p->ops[i].block, p->ops[i].attr.wave.wave);
            assert_string_equal(p->tensors[p->ops[i].out[0]].name, parts);
        }
        if (sh_program_counts_rows(&p->ops[i]) && p->ops[i].attr.exchange.wave &&
            p->ops[i].attr.exchange.row_elems > 1 && p->ops[i].phase != SH_PHASE_FORWARD)
            assert_int_not_equal(maker(p, sh_tensor_root(p, p->ops[i].in[0]))->phase, SH_PHASE_FORWARD);
        for (int k = 0; k < SH_OP_MAX_IN && p->ops[i].phase == SH_PHASE_BACKWARD; k++) {
            int root = p->ops[i].in[k] == SH_NONE ? SH_NONE : sh_tensor_root(p, p->ops[i].in[k]);
            const char *name = root == SH_NONE ? "" : p->tensors[root].name;

            if (!strstr(name, ".rows.") && !strstr(name, ".wave."))
                continue;
            const struct sh_op *made = maker(p, root);
            if (made->phase != SH_PHASE_FORWARD)
                continue;
            kept++;
            assert_string_equal(strrchr(name, '.'), ".0");
        }
    }
    assert_true(kept > 0);
    sh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixtures_on_all_meshes),
        cmocka_unit_test(all_options_on_one_mesh),
        cmocka_unit_test(without_training),
        cmocka_unit_test(collectives_of_a_step),
        cmocka_unit_test(units_stay_through_the_loss),
        cmocka_unit_test(frozen_units_do_not_stay),
        cmocka_unit_test(resident_units_are_gathered_once),
        cmocka_unit_test(cures_are_those_that_help),
        cmocka_unit_test(cures_keep_the_degrees),
        cmocka_unit_test(the_deepest_tree),
        cmocka_unit_test(groups_are_those_in_use),
        cmocka_unit_test(sums_count_everything_once),
        cmocka_unit_test(units_are_scheduled_as_without_rows),
        cmocka_unit_test(the_choice_of_experts_is_kept),
        cmocka_unit_test(rows_travel_beside_products),
        cmocka_unit_test(the_shared_expert_computes_meanwhile),
        cmocka_unit_test(one_wave_is_kept),
        cmocka_unit_test(a_unit_has_groups_of_its_own),
        cmocka_unit_test(snapshots_have_a_tier),
        cmocka_unit_test(squares_are_shared_out),
        cmocka_unit_test(gradients_are_reduced_when_asked),
        cmocka_unit_test(units_are_reduced_once),
        cmocka_unit_test(what_models_emit_has_a_gradient),
        cmocka_unit_test(bf16_reductions_send_half),
        cmocka_unit_test(prefetch_reaches_as_far_as_asked),
        cmocka_unit_test(no_operation_makes_gradients_of_two_units),
        cmocka_unit_test(decay_all_decays_norms_and_biases),
        cmocka_unit_test(runs_name_each_element_once),
        cmocka_unit_test(a_limit_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
