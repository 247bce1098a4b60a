/* Frozen weights in four bits per element: the results have the same bits as with frozen weights that hold the unpacked
 * values, on any mesh; and the bytes that they take. */
#include "src/base/number/nf4.h"
#include "src/base/number/rng.h"
#include "tests/unit/simulate.h"
#include "tests/unit/tiny.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 4, SEED = 5, LISTS = 3, NAMES = 5 };

/* Frozen units: gradients pass through all of them, through some, or end above them. */
static const char *const lists[LISTS][NAMES] = {{"layers.0", "layers.1", "layers.2", "head"},
                                                {"embed", "layers.0", "layers.2"},
                                                {"embed", "layers.0", "layers.1", "head"}};

/* Matrices consist of whole blocks, but not all of whole chunks. */
#define COMMON                                                                                                    \
    .dim = 16, .ffn_dim = 24, .vocab_size = TINY_VOCAB, .max_seq_len = TINY_SEQ + 1, .head_dim = 4, .n_heads = 4, \
    .norm_eps = 1e-5f, .init_std = 0.3f, .n_layers = 3
static const struct tiny_model models[] = {
    {"llama", {COMMON, .family = SH_FAMILY_LLAMA, .n_kv_heads = 1, .rope_theta = 100}, false},
    {"llama with biases",
     {COMMON, .family = SH_FAMILY_LLAMA, .n_kv_heads = 2, .rope_theta = 100, .attention_bias = true},
     true},
    {"gpt2", {COMMON, .family = SH_FAMILY_GPT2, .n_kv_heads = 4}, false},
    {"qwen3_moe",
     {COMMON, .family = SH_FAMILY_QWEN3_MOE, .n_kv_heads = 1, .rope_theta = 100, .first_dense_layers = 1,
      .n_experts = 3, .n_experts_per_token = 2, .expert_ffn_dim = 12},
     false},
};
enum { MODELS = sizeof models / sizeof *models };

struct job {
    struct sh_build build;
    int shard, replicate, inner;
};

/* Rows [first, first + rows) of the batch. */
static void feed(const struct sim *s, int rank, int first, int rows)
{
    const struct sh_program *p = s->ranks[rank].p;
    int32_t *tokens = sim_data(s, rank, p->port[SH_PORT_TOKENS]),
            *targets = sim_data(s, rank, p->port[SH_PORT_TARGETS]);

    for (int i = 0; i < rows * TINY_SEQ; i++) {
        uint32_t bits[4];

        sh_philox(SEED, 0, (uint64_t)(first * TINY_SEQ + i), bits);
        tokens[i] = (int32_t)(bits[0] % TINY_VOCAB);
        targets[i] = (int32_t)(bits[1] % TINY_VOCAB);
        if (p->port[SH_PORT_DOCS] != SH_NONE)
            ((int32_t *)sim_data(s, rank, p->port[SH_PORT_DOCS]))[i] = 0;
    }
}

static struct sim *create(const struct job *j)
{
    struct sim *s = sim_create(&j->build, j->shard, j->replicate, j->inner, SEED);

    s->scalars = (struct sh_op_scalars){.loss_scale = 1.0 / (BATCH * TINY_SEQ),
                                        .lr = 0.02f,
                                        .beta1 = 0.9f,
                                        .beta2 = 0.95f,
                                        .adam_eps = 1e-3f,
                                        .beta1_pow = 0.9,
                                        .beta2_pow = 0.95,
                                        .grad_scale = 0.5f};
    return s;
}

/* Run the global batch in any number of micro-steps, rank after rank. */
static struct sim *run(const struct job *j)
{
    struct sim *s = create(j);
    int micros = j->build.options.micro_steps, rows = j->build.batch.batch;

    for (int m = 0; m < micros; m++) {
        for (int rank = 0; rank < s->world; rank++)
            feed(s, rank, (rank * micros + m) * rows, rows);
        sim_run_section(s, sh_program_micro_step(s->ranks[0].p, m));
    }
    sim_run(s, SH_SECTION_LOSS);
    sim_run(s, SH_SECTION_NORM);
    sim_run(s, SH_SECTION_UPDATE);
    return s;
}

/* The same with frozen weights in the compute type that have the same values. */
static struct sim *run_unpacked(const struct job *j)
{
    struct job plain = *j;
    struct sim *s;

    plain.build.packed = false;
    sim_round_frozen = true;
    s = run(&plain);
    sim_round_frozen = false;
    return s;
}

static const struct sh_unit *unit_of(const struct sh_program *p, const char *name)
{
    for (int i = 0; i < p->n_units; i++)
        if (!strcmp(p->units[i].name, name))
            return &p->units[i];
    fail_msg("no unit %s", name);
    return NULL;
}

/* Compare the norm and all trained parameters after the update; and the loss, if the micro-steps are the same. */
static void compare(const struct sim *a, const struct sim *b, bool loss)
{
    const struct sh_program *p = a->ranks[0].p, *q = b->ranks[0].p;
    float *x = calloc((size_t)sim_param_elems(a), sizeof *x), *y = calloc((size_t)sim_param_elems(b), sizeof *y);
    const float *at = x;

    if (loss)
        assert_memory_equal(sim_data(a, 0, p->port[SH_PORT_LOSS]), sim_data(b, 0, q->port[SH_PORT_LOSS]),
                            sizeof(double));
    assert_memory_equal(sim_data(a, 0, p->port[SH_PORT_SUMSQ]), sim_data(b, 0, q->port[SH_PORT_SUMSQ]), sizeof(double));
    sim_params(a, x);
    sim_params(b, y);
    for (int i = 0; i < p->n_saved; at += p->saved[i++].elems)
        if (p->saved[i].trainable)
            assert_memory_equal(at, y + (at - x), (size_t)p->saved[i].elems * sizeof *at);
    free(x);
    free(y);
}

static struct job job_of(int model, int list, enum sh_dtype act, int shard, int replicate)
{
    struct job j = {tiny_build(&models[model], BATCH / (shard * replicate)), shard, replicate, 1};

    j.build.act = act;
    j.build.frozen = lists[list];
    j.build.packed = true;
    return j;
}

static void one_rank(void **state)
{
    (void)state;
    omp_set_num_threads(1);
    for (int i = 0; i < MODELS * TINY_RECOMPUTES * LISTS; i++) {
        struct job j = job_of(i % MODELS, i / MODELS % LISTS, i / 2 % 2 ? SH_BF16 : SH_F32, 1, 1);
        struct sim *packed, *plain;

        j.build.recompute = tiny_recomputes[i / MODELS / LISTS];
        j.build.kernels = i % 2 ? &sh_kernels_ref : &sh_kernels_cpu;
        packed = run(&j);
        plain = run_unpacked(&j);
        compare(packed, plain, true);
        sim_destroy(packed);
        sim_destroy(plain);
    }
}

/* Ranks that own parts of matrices, with each strategy, and gathers in the backward from what neighbours kept. */
static void all_meshes(void **state)
{
    static const int meshes[][3] = {{2, 1, 1}, {4, 1, 1}, {2, 2, 1}, {4, 1, 2}, {1, 4, 1}};

    (void)state;
    for (int i = 0; i < 5 * TINY_STRATEGIES; i++) {
        const int *mesh = meshes[i % 5];
        struct job j = job_of(i % MODELS, i % LISTS, i % 2 ? SH_BF16 : SH_F32, mesh[0], mesh[1]);
        struct sim *packed, *plain;

        j.inner = mesh[2];
        j.build.options.strategy.params_resident = tiny_strategies[i / 5].params_resident;
        j.build.options.strategy.keep_after_forward = tiny_strategies[i / 5].keep_after_forward;
        packed = run(&j);
        plain = run_unpacked(&j);
        compare(packed, plain, true);
        sim_destroy(packed);
        sim_destroy(plain);
    }
}

static int n_unpacked(const struct sim *s)
{
    int n = 0;

    for (int i = 0; i < s->ranks[0].p->n_ops; i++)
        n += s->ranks[0].p->ops[i].kind == SH_OP_UNPACK;
    return n;
}

/* A weight is unpacked once for all tiles of a run, however many operations read it, and there are no fewer tiles. */
static void once_for_all_tiles(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS * LISTS; i++) {
        struct job j = job_of(i % MODELS, i / MODELS, i % 2 ? SH_BF16 : SH_F32, 1 + i % 2, 1);
        struct sim *whole, *tiles, *plain;

        j.build.recompute = tiny_recomputes[TINY_FULL];
        j.build.row_block = 2;
        whole = run(&j);
        j.build.tile_rows = 2;
        tiles = run(&j);
        plain = run_unpacked(&j);
        compare(tiles, whole, true);
        compare(tiles, plain, true);
        assert_true(tiles->ranks[0].p->n_ops > whole->ranks[0].p->n_ops);
        assert_true(n_unpacked(tiles) <= n_unpacked(whole));
        sim_destroy(whole);
        sim_destroy(tiles);
        sim_destroy(plain);
    }
}

/* reproducible=mesh: 1, 2 and 4 ranks agree bit for bit. Leaves of the tree are micro-steps of one row. */
static struct sim *run_reproducibly(int model, int ranks)
{
    struct job j = job_of(model, model % LISTS, model % 2 ? SH_BF16 : SH_F32, ranks, 1);

    j.build.batch.batch = 1;
    j.build.options.micro_steps = BATCH / ranks;
    j.build.options.reproducible = j.build.options.strategy.sync_last_only = true;
    return run(&j);
}

static void same_on_any_mesh(void **state)
{
    (void)state;
    for (int model = 0; model < MODELS; model++) {
        struct sim *one = run_reproducibly(model, 1);

        for (int ranks = 2; ranks <= 4; ranks *= 2) {
            struct sim *more = run_reproducibly(model, ranks);

            compare(more, one, false);
            sim_destroy(more);
        }
        sim_destroy(one);
    }
}

static int64_t rounded(int64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* 36 bytes per 64 elements, in shards and when gathered; the vectors of all blocks are gathered once and stay; nothing
 * else is packed. */
static void bytes_and_units(void **state)
{
    struct job j = job_of(1, 2, SH_BF16, 4, 1);
    struct sh_program *p = tiny_program(&j.build, tiny_mesh(4, 1, 1, 1));
    const struct sh_unit *block = unit_of(p, "layers.1"), *vectors = unit_of(p, "vectors");
    int64_t bytes[SH_MEM_KINDS], matrices = 16 * 16 * 2 + 2 * 8 * 16 + 3 * 16 * 24;
    int gathers = 0;

    (void)state;
    assert_true(block->packed && !block->resident && !block->trainable && block->full == SH_NONE);
    assert_int_equal(block->elems, matrices);
    assert_int_equal(sh_tensor_bytes(&p->tensors[block->compute]), sh_nf4_bytes(block->chunk));
    assert_true(vectors->resident && !vectors->packed && !vectors->trainable && vectors->full != SH_NONE);
    assert_int_equal(vectors->elems, 2 * (2 * 16 + (16 + 2 * 8) + 16));
    assert_true(!unit_of(p, "embed")->packed && !unit_of(p, "head")->packed && !unit_of(p, "layers.2")->packed);
    for (int i = 0; i < p->n_ops; i++) {
        const struct sh_op *op = &p->ops[i];

        if (op->kind != SH_OP_ALL_GATHER || op->unit != block - p->units)
            continue;
        assert_int_equal(p->tensors[op->out[0]].dtype, SH_U8);
        assert_int_equal(sh_tensor_bytes(&p->tensors[op->out[0]]), sh_nf4_bytes(4 * block->chunk));
        gathers++;
    }
    assert_int_equal(gathers, 1); /* nothing below is trained */
    sh_pass_memory(p, bytes);
    assert_int_equal(bytes[SH_MEM_FROZEN],
                     rounded(2 * unit_of(p, "embed")->chunk) + 2 * rounded(sh_nf4_bytes(block->chunk)) +
                         rounded(2 * unit_of(p, "head")->chunk) + rounded(2 * 4 * vectors->chunk));
    sh_program_destroy(p);
}

static void matrices_of_odd_sizes_are_refused(void **state)
{
    struct sh_build b = tiny_build(&tiny_models[1], BATCH);
    struct sh_program *p = NULL;

    (void)state;
    b.frozen = lists[0];
    b.packed = true;
    assert_int_equal(sh_pass_build(&b, &p), SH_E_USAGE);
    assert_string_equal(sh_error_text(), "lora.quantize_base: nf4 needs matrices of a multiple of 64 elements, but "
                                         "model.layers.0.self_attn.q_proj.weight has 144; set none");
    sh_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),           cmocka_unit_test(all_meshes),
        cmocka_unit_test(once_for_all_tiles), cmocka_unit_test(same_on_any_mesh),
        cmocka_unit_test(bytes_and_units),    cmocka_unit_test(matrices_of_odd_sizes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
