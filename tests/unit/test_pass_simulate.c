/* Training by simulated ranks: any strategy on any mesh does what one rank does, and options that only move or repeat
 * operations change no bit. */
#include "src/base/number/rng.h"
#include "src/config/family.h"
#include "tests/unit/exchange.h"
#include "tests/unit/simulate_coll.h"
#include "tests/unit/tiny.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GLOBAL = 12, STEPS = 2, SEED = 11, TOKENS = GLOBAL * TINY_SEQ, MAX_RANKS = 64, MAX_MICROS = 16, MOST = 8 };

#define TINY_EXPERTS                                                                                      \
    .dim = 12, .ffn_dim = 20, .expert_ffn_dim = 5, .vocab_size = TINY_VOCAB, .max_seq_len = TINY_SEQ + 1, \
    .head_dim = 4, .n_heads = 3, .n_kv_heads = 1, .norm_eps = 1e-5f, .init_std = 0.3f, .rope_theta = 100

/* The result of a training run. */
struct outcome {
    double loss[STEPS], norm[STEPS], eval_loss;
    int64_t elems;
    float *params;
};

static struct {
    int32_t tokens[STEPS][TOKENS], targets[STEPS][TOKENS], docs[STEPS][TOKENS];
    int counted[STEPS];
} batch;

static int make_batch(void **state)
{
    uint32_t bits[4];

    (void)state;
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < TOKENS; i++) {
            int t = i % TINY_SEQ;

            sh_philox(SEED, (uint64_t)step, (uint64_t)i, bits);
            batch.tokens[step][i] = (int32_t)(bits[0] % TINY_VOCAB);
            batch.targets[step][i] = bits[1] % 8 ? (int32_t)(bits[2] % TINY_VOCAB) : -1;
            batch.docs[step][i] = t == 0 || bits[3] % 3 == 0 ? t : batch.docs[step][i - 1];
            batch.counted[step] += batch.targets[step][i] >= 0;
        }
    return 0;
}

/* The inputs of micro-step m; NULL: the rank has no such port. */
static int32_t *input(const struct sim *s, int rank, enum sh_port port, int m)
{
    const struct sh_program *p = s->ranks[rank].p;
    int t = p->port[port];

    return t == SH_NONE
               ? NULL
               : (int32_t *)sim_data(s, rank, t) + m % p->unrolled * (sh_tensor_elems(&p->tensors[t]) / p->unrolled);
}

/* Feed micro-step m of a step to one rank: its rows of the sequences of its place in the batch, which starts again after
 * the last one; where micro-step `to` has its inputs. */
static void feed_as(const struct sim *s, const struct sh_build *b, int rank, int step, int m, int to)
{
    const struct sh_mesh_shape *mesh = &s->ranks[rank].mesh;
    int first = (sh_group_index(mesh, mesh->data) * b->options.micro_steps + m) * b->batch.batch % GLOBAL;
    int ranks = sh_group_size(mesh, mesh->context), place = sh_group_index(mesh, mesh->context);
    int runs = b->options.gather ? 2 : 1, n = TINY_SEQ / (ranks * runs), B = b->batch.batch;
    const int *port = s->ranks[rank].p->port;
    int32_t *tokens = input(s, rank, SH_PORT_TOKENS, to), *targets = input(s, rank, SH_PORT_TARGETS, to);
    int32_t *places = input(s, rank, SH_PORT_AT, to);

    for (int i = 0; i < runs * B * n; i++) {
        int begin = (i / n / B ? 2 * ranks - 1 - place : place) * n;
        int at = (first + i / n % B) * TINY_SEQ + begin + i % n;

        if (tokens)
            tokens[i] = batch.tokens[step][at];
        if (targets)
            targets[i] = batch.targets[step][at];
        if (places)
            places[i] = begin + i % n - (b->batch.anew ? batch.docs[step][at] : 0);
        if (port[SH_PORT_DOCS] != SH_NONE && runs > 1)
            ((int32_t *)sim_data(s, rank, port[SH_PORT_DOCS]))[i] = batch.docs[step][at];
    }
    if (port[SH_PORT_DOCS] != SH_NONE && runs == 1)
        memcpy(input(s, rank, SH_PORT_DOCS, to), &batch.docs[step][first * TINY_SEQ],
               (size_t)b->batch.batch * TINY_SEQ * sizeof(int32_t));
}

static void feed(const struct sim *s, const struct sh_build *b, int rank, int step, int m)
{
    feed_as(s, b, rank, step, m, m);
}

/* The sum of n = 2^k numbers as a balanced binary tree. */
static double tree_sum(const double *x, int n)
{
    return n == 1 ? *x : tree_sum(x, n / 2) + tree_sum(x + n / 2, n / 2);
}

/* The losses that a micro-step has left: one, or one for each leaf of a rank's part of the sequences. */
static double own_loss(const struct sim *s, int rank)
{
    const struct sh_program *p = s->ranks[rank].p;

    return tree_sum(sim_data(s, rank, p->port[SH_PORT_LOSS]), (int)p->tensors[p->port[SH_PORT_LOSS]].dim[0]);
}

/* Stages without a head have no loss. */
static void put_no_loss(const struct sim *s)
{
    for (int rank = 0; rank < s->world; rank++) {
        const struct sh_mesh_shape *m = &s->ranks[rank].mesh;

        if (sh_group_index(m, m->pipeline) < sh_group_size(m, m->pipeline) - 1)
            *(double *)sim_data(s, rank, s->ranks[rank].p->port[SH_PORT_LOSS]) = 0;
    }
}

/* If each micro-step writes its own loss, the host sums them. If all are one section, it runs when their inputs are
 * there. */
static void micro_steps(struct sim *s, const struct sh_build *b, int step)
{
    const struct sh_program *p = s->ranks[0].p;
    double loss[MOST * MAX_RANKS][MOST * MAX_MICROS];
    int n = b->options.micro_steps, run = 0;

    put_no_loss(s);
    for (int m = 0; m < n; m++) {
        for (int rank = 0; rank < s->world; rank++)
            feed(s, b, rank, step, m);
        if ((m + 1) % p->unrolled)
            continue;
        sim_run_section(s, sh_program_micro_step(p, m / p->unrolled));
        for (int rank = 0; rank < s->world; rank++)
            loss[rank][m] = own_loss(s, rank);
    }
    for (int i = 0; i < p->n_sections; i++)
        if (p->sections[i].kind >= SH_SECTION_FIRST && p->sections[i].kind <= SH_SECTION_ONLY)
            run += p->sections[i].repeat * p->unrolled;
    assert_int_equal(run, n);
    for (int rank = 0; rank < s->world && p->tree_sums; rank++)
        *(double *)sim_data(s, rank, s->ranks[rank].p->port[SH_PORT_LOSS]) = tree_sum(loss[rank], n);
}

static double agreed(const struct sim *s, enum sh_port port)
{
    double first = *(double *)sim_data(s, 0, s->ranks[0].p->port[port]);

    for (int rank = 1; rank < s->world; rank++)
        assert_memory_equal(sim_data(s, rank, s->ranks[rank].p->port[port]), &first, sizeof first);
    return first;
}

static void train(struct sim *s, const struct sh_build *b, int step, struct outcome *o)
{
    s->scalars = sim_scalars(step, 1.0 / batch.counted[step]);
    micro_steps(s, b, step);
    sim_run(s, SH_SECTION_LOSS);
    sim_run(s, SH_SECTION_NORM);
    o->loss[step] = agreed(s, SH_PORT_LOSS) / batch.counted[step];
    o->norm[step] = sqrt(agreed(s, SH_PORT_SUMSQ));
    assert_true(isfinite(o->loss[step]) && isfinite(o->norm[step]) && o->norm[step] > 0);
    if (sh_program_carries(s->ranks[0].p) && step != 1)
        sim_put_off(s);
    else
        sim_run(s, SH_SECTION_UPDATE);
}

static void evaluate(struct sim *s, const struct sh_build *b, struct outcome *o)
{
    double sum[MOST * MAX_RANKS] = {0};

    for (int m = 0; m < b->options.micro_steps; m++) {
        /* An evaluation reads the first of the inputs of a step. */
        for (int rank = 0; rank < s->world; rank++)
            feed_as(s, b, rank, 0, m, 0);
        put_no_loss(s);
        sim_run(s, SH_SECTION_EVAL);
        for (int rank = 0; rank < s->world; rank++)
            sum[rank] += own_loss(s, rank);
    }
    for (int rank = 0; rank < s->world; rank++)
        *(double *)sim_data(s, rank, s->ranks[rank].p->port[SH_PORT_LOSS]) = sum[rank];
    sim_run(s, SH_SECTION_LOSS);
    o->eval_loss = agreed(s, SH_PORT_LOSS) / batch.counted[0];
}

static struct outcome run_all(struct sim *s, const struct sh_build *b)
{
    struct outcome o = {.elems = sim_param_elems(s)};

    for (int step = 0; step < STEPS; step++)
        train(s, b, step, &o);
    if (s->pending)
        sim_run(s, SH_SECTION_UPDATE);
    evaluate(s, b, &o);
    o.params = calloc((size_t)o.elems, sizeof *o.params);
    sim_params(s, o.params);
    sim_destroy(s);
    return o;
}

static struct outcome run(const struct sh_build *b, int shard, int replicate, int inner)
{
    return run_all(sim_create(b, shard, replicate, inner, SEED), b);
}

static void assert_near(const struct outcome *a, const struct outcome *b, double rtol, double atol)
{
    for (int step = 0; step < STEPS; step++) {
        assert_true(fabs(a->loss[step] - b->loss[step]) <= rtol * fabs(b->loss[step]));
        assert_true(fabs(a->norm[step] - b->norm[step]) <= rtol * fabs(b->norm[step]));
    }
    assert_true(fabs(a->eval_loss - b->eval_loss) <= rtol * fabs(b->eval_loss));
    for (int64_t i = 0; i < b->elems; i++)
        if (!(fabs((double)a->params[i] - (double)b->params[i]) <= atol + rtol * fabs((double)b->params[i])))
            fail_msg("parameter element %lld is %g, not %g", (long long)i, (double)a->params[i], (double)b->params[i]);
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_memory_equal(a->norm, b->norm, sizeof a->norm);
    assert_memory_equal(&a->eval_loss, &b->eval_loss, sizeof a->eval_loss);
    assert_memory_equal(a->params, b->params, (size_t)b->elems * sizeof *b->params);
}

/* Options that must not change a bit on a given mesh: strategy, recomputation, schedule, inner gathers. */
struct variant {
    int strategy;
    int recompute; /* of tiny_recomputes */
    int forward_prefetch, backward_prefetch, gathers_alive, resident_units;
    bool inner; /* over half or a third of the shard axis, if divisible */
};

/* clang-format off */
static const struct variant variants[] = {
    {0, TINY_NONE, 0, 0, 0, 0, false},      {0, TINY_FULL, 1, 1, 0, 1, false},
    {0, TINY_SELECTIVE, 2, 3, 2, 0, true},  {0, TINY_EVERY_2, 3, 2, 1, 0, false},
    {1, TINY_NONE, 1, 1, 0, 0, false},      {1, TINY_FULL, 3, 0, 3, 2, false},
    {2, TINY_SELECTIVE, 1, 1, 0, 0, false}, {0, TINY_FULL, 3, 3, 0, 2, true},
    {0, TINY_FIRST_FULL, 1, 1, 0, 0, false}, {2, TINY_FIRST_SELECTIVE, 1, 1, 0, 0, false},
};
/* clang-format on */
enum { VARIANTS = sizeof variants / sizeof *variants };

static int inner_size(int shard)
{
    return shard % 2 == 0 && shard > 2 ? 2 : shard % 3 == 0 ? 3 : shard;
}

static struct outcome run_variant(struct sh_build b, const struct variant *v, int shard, int replicate)
{
    b.options.strategy.params_resident = tiny_strategies[v->strategy].params_resident;
    b.options.strategy.keep_after_forward = tiny_strategies[v->strategy].keep_after_forward;
    b.options.forward_prefetch = v->forward_prefetch;
    b.options.backward_prefetch = v->backward_prefetch;
    b.options.gathers_alive = v->gathers_alive;
    b.options.resident_units = v->resident_units;
    b.recompute = tiny_recomputes[v->recompute];
    return run(&b, shard, replicate, v->inner ? inner_size(shard) : 1);
}

/* What build_of() freezes, which units it shards differently, and what it trains instead of the model. */
static const char *const *frozen;
static const struct sh_unit_groups *groups;
static struct sh_adapters adapters;
static const struct sh_optim *optim; /* NULL: AdamW */
static int owners;                   /* at most so many ranks of a group own matrices; 0: all */
static bool coded;                   /* what is gathered */

static struct sh_build build_of(const struct tiny_model *m, int world, int micros, bool sync_last)
{
    struct sh_build b = tiny_build(m, GLOBAL / (world * micros));

    b.frozen = frozen;
    b.groups = groups;
    b.batch.adapters = adapters;
    b.options.micro_steps = micros;
    b.options.strategy.sync_last_only = sync_last;
    b.options.gather_coded = coded;
    b.options.ortho.owners = owners;
    b.evaluate = true;
    if (optim)
        b.options.optim = optim;
    return b;
}

/* Every third variant from v on has the bits of `first`, the first variant. */
static void check_variants(struct sh_build b, int v, int shard, int replicate, const struct outcome *first)
{
    for (v = v % 3 + 1; v < VARIANTS; v += 3) {
        struct outcome other = run_variant(b, &variants[v], shard, replicate);

        assert_same(&other, first);
        free(other.params);
    }
}

static const struct {
    int shard, replicate, micros;
} meshes[] = {{1, 1, 4}, {2, 1, 3}, {1, 2, 2}, {3, 1, 1}, {2, 2, 1},
              {4, 1, 3}, {1, 3, 1}, {2, 3, 2}, {3, 2, 1}, {6, 1, 2}};

/* Its place among the tiny models; those of other tables follow them. */
static int number_of(const struct tiny_model *m)
{
    int i = 0;

    while (i < TINY_MODELS && m != &tiny_models[i])
        i++;
    return i;
}

/* How many ways of summing are tried for a model on a mesh: in each micro-step, or only in the last. In a sample each
 * mesh is run with only every third model, so it may be none. */
static int syncs(size_t mesh, const struct tiny_model *m)
{
    if (((int)mesh + number_of(m)) % tiny_step(3) != 0)
        return 0;
    return meshes[mesh].micros > 1 && meshes[mesh].shard > 1 ? 2 : 1;
}

/* Which third of the variants meets a mesh and a model: it differs among those of a sample, too. */
static int third(size_t mesh, const struct tiny_model *m)
{
    return (int)(2 * mesh + mesh / 3) + number_of(m) * 4 / 3;
}

/* Compare a mesh with a number of micro-steps with one rank and one micro-step. Each two of mesh, model and variant meet,
 * not each three. */
static void check_mesh(const struct tiny_model *m, size_t mesh, bool sync_last, const struct outcome *one)
{
    int shard = meshes[mesh].shard, replicate = meshes[mesh].replicate;
    struct sh_build b = build_of(m, shard * replicate, meshes[mesh].micros, sync_last);
    struct outcome first = run_variant(b, &variants[0], shard, replicate);

    assert_near(&first, one, 1e-5, 2e-6);
    check_variants(b, third(mesh, m), shard, replicate, &first);
    free(first.params);
}

static void check_model(void **state)
{
    const struct tiny_model *m = *state;
    struct sh_build b = build_of(m, 1, 1, false);
    struct outcome one = run_variant(b, &variants[0], 1, 1);

    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        for (int sync_last = 0; sync_last < syncs(i, m); sync_last++)
            check_mesh(m, i, sync_last, &one);
    free(one.params);
}

/* Each mesh with units that are not trained, which keep their bits: the lowest units, one between others, the last. */
static void with_frozen_units(void **state)
{
    static const char *const lists[][4] = {
        {"embed", "layers.0"}, {"layers.1"}, {"head", "layers.2"}, {"embed", "layers.1", "head"}};

    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        frozen = lists[i];
        check_model(&(void *){(void *)(uintptr_t)&tiny_models[i % 2 ? 4 : 1]});
        frozen = NULL;
    }
}

/* Each mesh with units that are sharded over different ranks than the rest: over none, over all, over the replicas of
 * the rest. Groups are those of tiny_mesh(). */
static void with_groups_of_their_own(void **state)
{
    enum { SHARD = 30, REPLICATE = 32, ALL = 127 };
    static const struct sh_unit_groups lists[][4] = {
        {{"layers.1", 0, ALL}, {NULL, 0, 0}},
        {{"embed", ALL, 0}, {"layers.0", REPLICATE, SHARD}, {NULL, 0, 0}},
        {{"layers.2", ALL, 0}, {"layers.1", REPLICATE, SHARD}, {"head", 0, ALL}, {NULL, 0, 0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        groups = lists[i];
        check_model(&(void *){(void *)(uintptr_t)&tiny_models[i % 2 ? 4 : 1]});
        groups = NULL;
    }
}

/* Heads that 2 and 4 ranks can share, with fewer key-value heads than ranks, as many, and more. */
static void more_heads(struct sh_build *b, int i)
{
    static const int kv[] = {1, 2, 4};

    b->model.n_heads = 4;
    b->model.n_kv_heads = b->model.family == SH_FAMILY_GPT2 ? 4 : kv[i % 3];
}

/* Row i of a test of sequences cut over ranks, on a mesh with `data` ranks for sequences. */
static struct sh_build cut_build(int i, int data)
{
    int micros = GLOBAL / data > 1 && i % 2 ? 2 : 1;
    struct sh_build b = build_of(&tiny_models[i % TINY_MODELS], data, micros, i % 4 == 3);

    more_heads(&b, i);
    if (b.model.n_layers > 2) { /* activations of whole pages, of which some are moved away below */
        b.model.dim = 512;
        b.model.ffn_dim = i % 12 == 1 ? 64 : 16;
        b.model.init_std = 0.05f; /* longer sums round more */
    }
    b.model.attention_window = i % 5 == 4 && b.model.family != SH_FAMILY_GPT2 ? 2 : 0;
    b.batch.anew = b.batch.docs && i % 2;
    b.batch.adapters = i % 7 == 5 ? (struct sh_adapters){.rank = 2, .scale = 1.5f, .targets = ~0u} : adapters;
    return b;
}

static struct outcome run_cut(struct sh_build b, const struct variant *v, const int axes[SH_AXES])
{
    b.options.strategy.params_resident = tiny_strategies[v->strategy].params_resident;
    b.options.strategy.keep_after_forward = tiny_strategies[v->strategy].keep_after_forward;
    b.options.forward_prefetch = v->forward_prefetch;
    b.options.backward_prefetch = v->backward_prefetch;
    b.options.gathers_alive = v->gathers_alive;
    b.options.resident_units = v->resident_units;
    b.recompute = tiny_recomputes[v->recompute];
    return run_all(sim_create_on(&b, axes, SEED), &b);
}

/* `cut` is near one rank, and has the bits of variant i with what `away` moves, or in some rows (whose models are not deep)
 * of the variant alone. Frees both. */
static void check_cut(const struct sh_build *away, int i, const int axes[SH_AXES], struct outcome *cut,
                      struct outcome *one)
{
    struct sh_build b = *away;
    struct outcome other;

    if (i % 4 == 2)
        b.offload = (struct sh_offload){0};
    other = run_cut(b, &variants[i % VARIANTS], axes);
    assert_near(cut, one, 1e-5, b.model.dim > 100 ? 1e-5 : 2e-6);
    assert_same(&other, cut);
    free(one->params);
    free(cut->params);
    free(other.params);
}

/* Sequences cut over ranks, on any mesh, are learned as whole ones are; strategies and recomputation change no bit. */
static void cut_sequences(void **state)
{
    static const int axes[][SH_AXES] = {{1, 2, 1, 1, 1, 1, 1}, {1, 4, 1, 1, 1, 1, 1}, {1, 2, 1, 2, 1, 1, 1},
                                        {1, 4, 1, 1, 1, 2, 1}, {1, 2, 1, 1, 3, 2, 1}, {1, 4, 1, 1, 6, 2, 1}};
    static const int whole[SH_AXES] = {1, 1, 1, 1, 1, 1, 1};

    (void)state;
    for (int i = 0; i < 2 * VARIANTS; i += tiny_step(7)) {
        const int *mesh = axes[i % (int)(sizeof axes / sizeof *axes)];
        int data = mesh[SH_AXIS_INNER] * mesh[SH_AXIS_OUTER] * mesh[SH_AXIS_REPLICATE];
        struct outcome one = run_cut(cut_build(i, 1), &variants[0], whole);
        struct outcome cut = run_cut(cut_build(i, data), &variants[0], mesh);
        struct sh_build away = cut_build(i, data);
        int rows = away.batch.batch * TINY_SEQ / mesh[SH_AXIS_CONTEXT];

        away.offload = (struct sh_offload){
            .act_blocks = away.model.n_layers > 2 && rows > 1, .optimizer_16 = i % 17, .buffers = 3, .carry = i % 2};
        check_cut(&away, i, mesh, &cut, &one);
    }
}

/* Matrices that several ranks can share: of families whose products lie apart, together, or head by head, with and without
 * biases. */
static struct sh_build matrix_build(int i, int data, int tensor)
{
    static const int families[] = {SH_FAMILY_LLAMA,  SH_FAMILY_GPT2,  SH_FAMILY_PHI3,      SH_FAMILY_GPT_NEOX,
                                   SH_FAMILY_GEMMA3, SH_FAMILY_QWEN3, SH_FAMILY_STARCODER2};
    int family = families[i % (int)(sizeof families / sizeof *families)];
    struct sh_build b = cut_build(2 * i + (family == SH_FAMILY_GPT2 ? 3 : 0), data);
    b.batch.adapters = i % 5 == 2   ? (struct sh_adapters){.rank = 2, .scale = 1.5f, .targets = ~0u}
                       : i % 5 == 4 ? (struct sh_adapters){.rank = 3, .scale = 0.5f, .targets = 0x59}
                                    : adapters;
    b.tensor_tiles = 1 + i % 3;
    b.batch.chunk_rows = i % 2 ? 3 : 0; /* of logits; the last chunk is another one */
    b.model.family = family;
    b.model.n_kv_heads = sh_family_of(family)->one_width || tensor == 4 ? 4 : 2;
    b.model.rope_theta = 100;
    b.model.attention_window = 0;
    return b;
}

/* Matrices cut over ranks, on any mesh, are learned as whole ones are; strategies, recomputation and what lies in a file
 * change no bit. A sample has all families, meshes and numbers of tiles. */
static void cut_matrices(void **state)
{
    static const int axes[][SH_AXES] = {{2, 1, 1, 1, 1, 1, 1}, {4, 1, 1, 1, 1, 1, 1}, {2, 1, 1, 2, 1, 1, 1},
                                        {4, 1, 1, 1, 1, 2, 1}, {2, 1, 1, 1, 3, 2, 1}, {2, 2, 1, 1, 2, 1, 1},
                                        {4, 1, 1, 1, 3, 2, 1}, {4, 1, 1, 1, 6, 2, 1}};
    static const int whole[SH_AXES] = {1, 1, 1, 1, 1, 1, 1};

    (void)state;
    for (int i = 0; i < 3 * VARIANTS; i += tiny_step(5)) {
        const int *mesh = axes[i % (int)(sizeof axes / sizeof *axes)];
        int data = mesh[SH_AXIS_INNER] * mesh[SH_AXIS_OUTER] * mesh[SH_AXIS_REPLICATE], t = mesh[SH_AXIS_TENSOR];
        struct outcome one = run_cut(matrix_build(i, 1, t), &variants[0], whole);
        struct outcome cut = run_cut(matrix_build(i, data, t), &variants[0], mesh);
        struct sh_build away = matrix_build(i, data, t);

        away.offload = (struct sh_offload){.optimizer_16 = i % 17, .buffers = 3, .carry = i % 2};
        check_cut(&away, i, mesh, &cut, &one);
    }
}

/* The same with keys and values gathered, for heads that ranks cannot share: three query heads on one or on three. */
static void gathered_keys(void **state)
{
    static const int axes[][SH_AXES] = {{1, 2, 1, 1, 1, 1, 1}, {1, 2, 1, 2, 1, 1, 1}, {1, 2, 1, 1, 3, 2, 1}};
    static const int whole[SH_AXES] = {1, 1, 1, 1, 1, 1, 1};

    (void)state;
    for (int i = 0; i < 2 * VARIANTS; i += tiny_step(7)) {
        const int *mesh = axes[i % (int)(sizeof axes / sizeof *axes)];
        int data = mesh[SH_AXIS_INNER] * mesh[SH_AXIS_OUTER] * mesh[SH_AXIS_REPLICATE];
        struct sh_build b = cut_build(i, data), alone = cut_build(i, 1);
        struct outcome one, cut;

        alone.model.n_heads = b.model.n_heads = 3;
        alone.model.n_kv_heads = b.model.n_kv_heads = b.model.family == SH_FAMILY_GPT2 || i % 4 == 2 ? 3 : 1;
        b.options.gather = true;
        one = run_cut(alone, &variants[0], whole);
        cut = run_cut(b, &variants[0], mesh);
        b.offload = (struct sh_offload){
            .act_blocks = b.model.n_layers > 2, .optimizer_16 = i % 17, .buffers = 3, .carry = i % 2};
        check_cut(&b, i, mesh, &cut, &one);
    }
}

/* Every axis has 2 ranks, but for those of experts and stages: the numbers of one rank. */
static void with_every_axis(void **state)
{
    static const int two[SH_AXES] = {2, 2, 1, 2, 2, 2, 1}, one_rank[SH_AXES] = {1, 1, 1, 1, 1, 1, 1};

    (void)state;
    for (int v = 0; v < VARIANTS; v += tiny_step(4)) {
        struct sh_build b = build_of(&tiny_models[v % TINY_MODELS], 4, 1, false), whole;
        struct outcome all, one;

        more_heads(&b, 2);
        whole = b;
        whole.options.micro_steps = 8;
        b.options.gather = v % 8 == 4;
        b.options.strategy = (struct sh_strategy){tiny_strategies[variants[v].strategy].params_resident,
                                                  tiny_strategies[variants[v].strategy].keep_after_forward, v % 4 == 1};
        b.recompute = tiny_recomputes[variants[v].recompute];
        all = run_all(sim_create_on(&b, two, SEED), &b);
        one = run_all(sim_create_on(&whole, one_rank, SEED), &whole);
        assert_near(&all, &one, 2e-4, 2e-5);
        free(all.params);
        free(one.params);
    }
}

/* Llama and GPT-2, with documents and without; no embedding is the head. */
static struct tiny_model staged_model(int i)
{
    struct tiny_model m = tiny_models[i % TINY_MODELS];

    m.model.tie_word_embeddings = false;
    m.model.n_layers = 5;
    return m;
}

static struct outcome run_stages(struct sh_build b, const int axes[SH_AXES], int stages, bool last_first)
{
    int all[SH_AXES];
    struct sim *s;

    memcpy(all, axes, sizeof all);
    all[SH_AXIS_PIPELINE] = stages;
    s = sim_create_on(&b, all, SEED);
    s->last_first = last_first;
    return run_all(s, &b);
}

/* Layers on several ranks: the bits of one stage, whatever the number of micro-steps, their order, the strategy, and what is
 * recomputed; with adapters too, and with activations that leave for the host. */
static void stages_change_no_bit(void **state)
{
    static const int axes[][SH_AXES] = {{1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 3, 1, 1}, {1, 1, 1, 1, 2, 2, 1}};
    static const int stages[] = {2, 4, 3, 5}, micros[] = {1, 2, 3, 6};

    (void)state;
    for (int v = 0; v < 48; v += tiny_step(7)) {
        const int *axis = axes[v % 3];
        struct tiny_model m = staged_model(v / 2);
        int micro = axis[SH_AXIS_OUTER] == 2 ? micros[v / 3 % 2 * 2]
                                             : micros[v / 3 % (axis[SH_AXIS_OUTER] == 3 ? 2 : 4)];
        struct sh_build b = build_of(&m, axis[SH_AXIS_OUTER] * axis[SH_AXIS_REPLICATE], micro, true);
        struct outcome one, all;

        b.options.strategy.params_resident = v % 2;
        b.options.strategy.keep_after_forward = !(v % 2);
        b.recompute = tiny_recomputes[v % TINY_RECOMPUTES];
        b.act = v % 5 == 4 ? SH_BF16 : SH_F32;
        b.tile_rows = v % 4 == 3 ? 4 : 0;
        b.row_block = 4;
        b.batch.adapters = v % 4 == 2 ? (struct sh_adapters){.rank = 2, .scale = 1.5f, .targets = ~0u} : adapters;
        b.options.first_less = stages[v % 4] < 5 && v % 3 == 1;
        b.options.last_less = stages[v % 4] < 5 && v % 3 == 2;
        b.options.weights_apart = v % 2;
        if (stages[v % 4] == 2 && micro % 2 == 0) {
            b.options.chunks = 2;
            b.options.first_less = b.options.last_less = 0;
        }
        if (v % 8 == 0) { /* dealt by work: a head of several blocks */
            b.options.first_less = b.options.last_less = SH_LESS_AUTO;
            b.model.vocab_size = 400;
        }
        one = run_stages(b, axis, 1, false);
        b.options.strategy.sync_last_only = v % 2; /* stages reduce once all the same */
        b.snapshot_on_host = true;
        if (stages[v % 4] == 2 || v % TINY_RECOMPUTES == TINY_NONE)
            b.offload.act_blocks = v % 5 + 1;
        all = run_stages(b, axis, stages[v % 4], v % 2);
        assert_same(&all, &one);
        free(one.params);
        free(all.params);
    }
}

/* All axes but that of experts have 2 ranks, 64 together: the bits of one stage on the other five. */
static void stages_on_all_axes(void **state)
{
    static const int axes[SH_AXES] = {2, 2, 1, 2, 2, 2, 1};

    (void)state;
    for (int v = 0; v < 4; v += tiny_step(2)) {
        struct tiny_model m = staged_model(v);
        struct sh_build b = build_of(&m, 4, 1, true);
        struct outcome one, all;

        more_heads(&b, 2);
        b.options.micro_steps = 2;
        b.options.strategy.params_resident = v % 2;
        b.options.strategy.keep_after_forward = !(v % 2);
        b.recompute = tiny_recomputes[v % TINY_RECOMPUTES];
        b.options.weights_apart = v / 2;
        one = run_stages(b, axes, 1, false);
        all = run_stages(b, axes, 2, v % 2);
        assert_same(&all, &one);
        free(one.params);
        free(all.params);
    }
}

/* Matrices cut over ranks inside of stages, whose exchanges have tiles or not: the bits of one stage that cuts them so. The
 * vectors of a stage fill blocks of the norm's sum. */
static void stages_cut_matrices(void **state)
{
    static const int axes[][SH_AXES] = {{2, 1, 1, 1, 1, 1, 1},
                                        {4, 1, 1, 1, 1, 1, 1},
                                        {2, 1, 1, 1, 2, 1, 1},
                                        {2, 2, 1, 1, 1, 1, 1},
                                        {4, 1, 1, 1, 1, 2, 1}};
    static const int stages[] = {2, 4, 3, 5};

    (void)state;
    for (int v = 0; v < 40; v += tiny_step(7)) {
        const int *axis = axes[v % 5];
        struct tiny_model m = staged_model(v / 2);
        struct sh_build b = build_of(&m, axis[SH_AXIS_OUTER] * axis[SH_AXIS_REPLICATE], v % 3 ? 2 : 6, true);
        struct outcome one, all;

        b.model.dim = 64;
        b.model.head_dim = 16;
        b.model.n_heads = b.model.n_kv_heads = 4;
        b.tensor_tiles = 1 + v % 3;
        b.options.strategy.params_resident = v % 2;
        b.options.strategy.keep_after_forward = !(v % 2);
        b.recompute = tiny_recomputes[v % TINY_RECOMPUTES];
        b.act = v % 5 == 4 ? SH_BF16 : SH_F32;
        b.options.weights_apart = v / 2 % 2;
        b.options.chunks = stages[v % 4] == 2 ? 2 : 1;
        one = run_stages(b, axis, 1, false);
        all = run_stages(b, axis, stages[v % 4], v % 2);
        assert_same(&all, &one);
        free(one.params);
        free(all.params);
    }
}

/* Products of weights that run alongside an exchange, which is not over when they start. */
static int n_alongside(const struct sh_build *b, const int axes[SH_AXES])
{
    struct sh_program *p = tiny_program(b, sh_mesh_shape_of(axes, 0));
    int n = 0, under_way = 0;

    for (int s = 0; s < p->n_sections; s++)
        for (int i = 0; i < p->sections[s].n_ops; i++) {
            const struct sh_op *ops = &p->ops[p->sections[s].first_op], *op = &ops[i];
            const struct sh_op *of = op->kind == SH_OP_WAIT ? &ops[op->attr.waits_for] : op;

            if (sh_op_info(of->kind)->async && of->unit == SH_NONE)
                under_way += of == op ? 1 : -1;
            n += under_way && op->kind == SH_OP_LINEAR_BWD_W;
        }
    sh_program_destroy(p);
    return n;
}

/* Over axes and over some sets of them, with each strategy and kind of recomputation, and with activations moved
 * away: losses, gradients, updates and validation have the same bits as without the round trips. */
static void rows_make_a_round_trip(void **state)
{
    static const int axes[][SH_AXES] = {
        {1, 1, 1, 2, 1, 2, 1}, {1, 1, 1, 1, 2, 2, 1}, {1, 1, 1, 2, 2, 2, 1}, {1, 1, 1, 2, 2, 1, 1}};
    const int n = sizeof axes / sizeof *axes;

    (void)state;
    for (int i = 0; i < n * VARIANTS; i += tiny_step(3)) {
        const struct variant *v = &variants[i % VARIANTS];
        struct sh_build b = build_of(&tiny_models[i % TINY_MODELS], GLOBAL, 1, false);
        struct sh_mesh_shape mesh = sh_mesh_shape_of(axes[i % n], 0);
        struct outcome plain, other;

        b.options.micro_steps = 1 + i % 2;
        b.options.strategy = (struct sh_strategy){tiny_strategies[v->strategy].params_resident,
                                                  tiny_strategies[v->strategy].keep_after_forward, false};
        b.options.forward_prefetch = v->forward_prefetch;
        b.options.backward_prefetch = v->backward_prefetch;
        b.recompute = tiny_recomputes[v->recompute];
        b.act = i % 4 == 3 ? SH_BF16 : SH_F32;
        b.snapshot_on_host = true;
        b.offload.act_blocks = b.model.n_layers > 2 && v->recompute != TINY_FULL;
        plain = run_all(sim_create_on(&b, axes[i % n], SEED), &b);
        for (sh_group group = 1; group < 1u << SH_AXES; group++) {
            exchanged.group = group;
            exchanged.ranks = sh_group_size(&mesh, group);
            if (exchanged.ranks == 1 || group != sh_group_widened(&mesh, group))
                continue;
            assert_true(n_alongside(&b, axes[i % n]) > 0);
            other = run_all(sim_create_on(&b, axes[i % n], SEED), &b);
            assert_same(&other, &plain);
            free(other.params);
        }
        exchanged.group = 0;
        free(plain.params);
    }
}

enum { PARTS = MAX_RANKS * 2, EXCHANGED = 3 }; /* elements of a tensor; tensors */

/* x to y and back to z, over a group. */
static void make_exchange(struct sim_rank *r, int rank, const int axes[SH_AXES], sh_group group)
{
    r->p = sh_program_create(SH_F32);
    r->mesh = sh_mesh_shape_of(axes, rank);
    sh_program_add_section(r->p, SH_SECTION_ONLY, 1);
    for (int i = 0; i < EXCHANGED; i++) {
        struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, SH_I32, 1, (const int64_t[]){PARTS}, "%c", "xyz"[i]);

        t.persistent = true;
        t.offset_bytes = i * PARTS * (int64_t)sizeof(int32_t);
        sh_program_add_tensor(r->p, &t);
    }
    r->p->arena_bytes = r->p->persistent_bytes = EXCHANGED * PARTS * (int64_t)sizeof(int32_t);
    for (int i = 0; i < EXCHANGED - 1; i++)
        sh_program_append_collective(r->p, SH_OP_ALL_TO_ALL, SH_STREAM_GATHER, group, SH_NONE, i, i + 1, SH_NONE,
                                     SH_PHASE_FORWARD);
    r->arena = calloc(1, (size_t)r->p->arena_bytes);
    r->flights = calloc((size_t)r->p->n_ops, sizeof *r->flights);
    for (int i = 0; i < PARTS; i++)
        ((int32_t *)(void *)r->arena)[i] = rank * PARTS + i;
}

/* Over every set of axes of 64 ranks: each rank has a part from each rank of its group, and the way back is the same. */
static void parts_are_exchanged(void **state)
{
    static const int two[SH_AXES] = {2, 2, 1, 2, 2, 2, 2};
    struct sim_rank ranks[MAX_RANKS] = {{0}};
    struct sim s = {.world = MAX_RANKS, .ranks = ranks};

    (void)state;
    for (sh_group group = 1; group < 1u << SH_AXES; group++) {
        for (int rank = 0; rank < s.world; rank++)
            make_exchange(&ranks[rank], rank, two, group);
        sim_run_section(&s, 0);
        for (int rank = 0; rank < s.world; rank++) {
            const struct sh_mesh_shape *m = &ranks[rank].mesh;
            int part = PARTS / sh_group_size(m, group), mine = sh_group_index(m, group);
            const int32_t *x = sim_data(&s, rank, 0), *y = sim_data(&s, rank, 1);

            for (int i = 0; i < PARTS; i++)
                assert_int_equal(y[i], sh_group_member(m, group, i / part) * PARTS + mine * part + i % part);
            assert_memory_equal(sim_data(&s, rank, 2), x, PARTS * sizeof *x);
            free(ranks[rank].arena);
            free(ranks[rank].flights);
            sh_program_destroy(ranks[rank].p);
        }
    }
}

/* Each mesh with an optimizer that needs whole matrices; it differs from the elementwise one of its other parameters. */
static void with_whole_matrices(void **state)
{
    struct sh_build b = build_of(&tiny_models[1], 1, 1, false);
    struct outcome plain, whole;

    (void)state;
    b.options.optim = sh_optim_of(SH_OPTIM_SGD);
    plain = run_variant(b, &variants[0], 1, 1);
    b.options.optim = optim = &tiny_cubic;
    whole = run_variant(b, &variants[0], 1, 1);
    assert_memory_not_equal(plain.params, whole.params, (size_t)plain.elems * sizeof *plain.params);
    free(plain.params);
    free(whole.params);
    check_model(&(void *){(void *)(uintptr_t)&tiny_models[1]});
    check_model(&(void *){(void *)(uintptr_t)&tiny_models[5]});
    optim = NULL;
}

/* Each mesh with whole matrices at their owners, which may be few of its ranks. One rank makes all of them. */
static void with_muon(void **state)
{
    (void)state;
    optim = sh_optim_of(SH_OPTIM_MUON);
    check_model(&(void *){(void *)(uintptr_t)&tiny_models[1]});
    check_model(&(void *){(void *)(uintptr_t)&tiny_models[5]});
    owners = 2;
    check_model(&(void *){(void *)(uintptr_t)&tiny_models[1]});
    owners = 0;
    optim = NULL;
}

/* More ranks than matrices and than chunks: some own what they have no part of, most own nothing. A step has the sequences
 * of a rank's micro-steps. Owners may be of one shard group, or of several replicas. */
static void muon_on(int times, int shard, int most_owners, const struct outcome *one)
{
    struct sh_build b;
    struct outcome many;

    owners = most_owners;
    b = build_of(&tiny_models[1], GLOBAL, 1, false);
    many = run(&b, shard, times * MAX_RANKS / shard, 1);
    assert_near(&many, one, 1e-5, 2e-6);
    free(many.params);
    owners = 0;
}

static struct outcome muon_on_one(int times)
{
    struct sh_build b = build_of(&tiny_models[1], 1, GLOBAL / (MAX_RANKS / MAX_MICROS), false);

    b.options.micro_steps = times * MAX_MICROS;
    return run(&b, 1, 1, 1);
}

static void with_muon_on_many_ranks(void **state)
{
    static const struct {
        int shard, owners;
    } rows[] = {{64, 0}, {64, 5}, {16, 3}, {8, 0}, {8, 8}, {8, 16}, {8, 64}};
    struct outcome one;

    (void)state;
    optim = sh_optim_of(SH_OPTIM_MUON);
    one = muon_on_one(1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        muon_on(1, rows[i].shard, rows[i].owners, &one);
    free(one.params);
    optim = NULL;
}

/* 64 replicas of 8 ranks, whose matrices are shared by 1, 2 and 8 replicas. */
static void with_muon_on_most_ranks(void **state)
{
    struct outcome one;

    (void)state;
    optim = sh_optim_of(SH_OPTIM_MUON);
    one = muon_on_one(MOST);
    muon_on(MOST, 8, 8, &one);
    muon_on(MOST, 8, 16, &one);
    muon_on(MOST, 8, 64, &one);
    free(one.params);
    optim = NULL;
}

/* A dense block, then blocks with experts, of which a token has some and all have one. */
static const struct tiny_model with_experts = {"qwen2_moe",
                                               {.family = SH_FAMILY_QWEN2_MOE,
                                                .n_layers = 2,
                                                .dim = 12,
                                                .ffn_dim = 20,
                                                .vocab_size = TINY_VOCAB,
                                                .max_seq_len = TINY_SEQ,
                                                .head_dim = 4,
                                                .n_heads = 3,
                                                .n_kv_heads = 1,
                                                .norm_eps = 1e-5f,
                                                .init_std = 0.3f,
                                                .rope_theta = 100,
                                                .first_dense_layers = 1,
                                                .n_experts = 3,
                                                .n_experts_per_token = 2,
                                                .expert_ffn_dim = 6,
                                                .shared_ffn_dim = 5},
                                               false};

/* Adapters of all products, and of some, on each mesh. */
static void with_adapters(void **state)
{
    const struct tiny_model *models[] = {&tiny_models[1], &tiny_models[4], &with_experts};

    (void)state;
    for (int i = 0; i < 3; i++) {
        adapters = (struct sh_adapters){.rank = 2 + i, .scale = 1.5f, .targets = i ? ~0u : 0x15};
        check_model(&(void *){(void *)(uintptr_t)models[i]});
    }
    adapters = (struct sh_adapters){0};
}

/* Computing in 16 bits rounds each activation, so a mesh is only close to one rank; variants of a mesh still agree. */
static void check_narrow(enum sh_dtype act)
{
    const struct tiny_model *m = &tiny_models[1];
    struct sh_build one_rank = build_of(m, 1, 1, false), four = build_of(m, 4, 3, false);
    struct outcome one, first;

    one_rank.act = four.act = act;
    one = run_variant(one_rank, &variants[0], 1, 1);
    first = run_variant(four, &variants[0], 2, 2);
    assert_near(&first, &one, 2e-2, 2e-2);
    for (int v = 1; v < VARIANTS; v++) {
        struct outcome other = run_variant(four, &variants[v], 2, 2);

        assert_same(&other, &first);
        free(other.params);
    }
    free(one.params);
    free(first.params);
}

static void bf16_trains(void **state)
{
    (void)state;
    check_narrow(SH_BF16);
}

static void f16_trains(void **state)
{
    (void)state;
    check_narrow(SH_F16);
}

/* Gradients that are sent in bf16 are rounded once before and once after their sum: close to those of one rank, which
 * sends nothing, but not equal; and variants agree. If the ranks' gradients cancel, the remaining
 * rounding error is not small compared with eps: a fifth of an update of 0.02. */
static void check_rounded(const struct tiny_model *m, size_t mesh, bool sync_last, const struct outcome *one)
{
    int shard = meshes[mesh].shard, replicate = meshes[mesh].replicate;
    struct sh_build b = build_of(m, shard * replicate, meshes[mesh].micros, sync_last);
    struct outcome exact = run_variant(b, &variants[0], shard, replicate), first;

    b.options.reduce = SH_BF16;
    first = run_variant(b, &variants[0], shard, replicate);
    assert_near(&first, one, 4e-3, 4e-3);
    assert_true((memcmp(first.norm, exact.norm, sizeof exact.norm) == 0) == (shard * replicate == 1));
    check_variants(b, third(mesh, m), shard, replicate, &first);
    free(first.params);
    free(exact.params);
}

static void bf16_is_sent(void **state)
{
    const struct tiny_model *m = &tiny_models[1];
    struct outcome one = run_variant(build_of(m, 1, 1, false), &variants[0], 1, 1);

    (void)state;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        for (int sync_last = 0; sync_last < syncs(i, m); sync_last++)
            check_rounded(m, i, sync_last, &one);
    free(one.params);
}

/* Compare everything except the evaluation, whose sums have no tree. */
static void assert_same_training(const struct outcome *a, const struct outcome *b)
{
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_memory_equal(a->norm, b->norm, sizeof a->norm);
    assert_memory_equal(a->params, b->params, (size_t)b->elems * sizeof *b->params);
}

enum { LEAVES = 8 };
static const struct {
    int shard, replicate;
} tree_meshes[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}, {4, 2}, {2, 4}, {8, 1}, {1, 8}};

static struct outcome run_tree(const struct tiny_model *m, enum sh_dtype act, int shard, int replicate, int v)
{
    struct sh_build b = build_of(m, 1, GLOBAL, true); /* a leaf is one sequence */

    b.options.micro_steps = LEAVES / (shard * replicate);
    b.options.reproducible = true;
    b.act = act;
    return run_variant(b, &variants[v % VARIANTS], shard, replicate);
}

/* All meshes of 2^k ranks, each with some of the variants, give bit for bit the result of one rank. */
static void check_reproducible(const struct tiny_model *m, enum sh_dtype act)
{
    struct outcome one = run_tree(m, act, 1, 1, 0);

    for (int i = 0; i < (int)(sizeof tree_meshes / sizeof *tree_meshes); i++)
        for (int v = i; v < i + 6; v += 2 * tiny_step(3)) {
            struct outcome other = run_tree(m, act, tree_meshes[i].shard, tree_meshes[i].replicate, v);

            assert_same_training(&other, &one);
            free(other.params);
        }
    free(one.params);
}

static void reproducible(void **state)
{
    static const char *const lowest[] = {"embed", "layers.0", NULL};

    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        check_reproducible(&tiny_models[m], m % 2 ? SH_BF16 : SH_F32);
    check_reproducible(&tiny_models[2], SH_F16);
    frozen = lowest;
    check_reproducible(&tiny_models[1], SH_F32);
    check_reproducible(&tiny_models[5], SH_BF16);
    frozen = NULL;
    adapters = (struct sh_adapters){.rank = 2, .scale = 1.5f, .targets = ~0u};
    check_reproducible(&tiny_models[2], SH_F32);
    check_reproducible(&tiny_models[3], SH_BF16);
    adapters = (struct sh_adapters){0};
}

/* Gathered in codes of eight bits: all ranks compute with the same numbers, which no mesh, strategy or schedule shows, and
 * which are near those of the masters but not equal to them. */
static void codes_show_no_mesh(void **state)
{
    static const char *const lowest[] = {"embed", "layers.0", NULL};

    (void)state;
    for (int m = 0; m < TINY_MODELS; m += tiny_step(2)) {
        struct outcome plain = run_tree(&tiny_models[m], SH_F32, 1, 1, 0), near;

        coded = true;
        near = run_tree(&tiny_models[m], SH_F32, 1, 1, 0);
        assert_true(fabs(near.loss[0] / plain.loss[0] - 1) < 0.02 && near.loss[0] != plain.loss[0]);
        check_reproducible(&tiny_models[m], m % 3 == 2 ? SH_F16 : m % 2 ? SH_BF16 : SH_F32);
        coded = false;
        free(plain.params);
        free(near.params);
    }
    coded = true;
    frozen = lowest;
    check_reproducible(&tiny_models[1], SH_F32);
    frozen = NULL;
    adapters = (struct sh_adapters){.rank = 2, .scale = 1.5f, .targets = ~0u};
    check_reproducible(&tiny_models[3], SH_BF16);
    adapters = (struct sh_adapters){0};
    optim = &tiny_cubic;
    check_reproducible(&tiny_models[1], SH_F32);
    optim = NULL;
    coded = false;
}

/* Four micro-steps of three sequences, whose gradients are sums over four parts of each, on some mesh. */
static struct outcome run_parts(int i, bool leaves, const int axes[SH_AXES], int v)
{
    struct sh_build b = build_of(&tiny_models[i % TINY_MODELS], 1, GLOBAL / 3, true);
    int data = axes[SH_AXIS_INNER] * axes[SH_AXIS_OUTER] * axes[SH_AXIS_REPLICATE];

    b.options.micro_steps = GLOBAL / 3 / data;
    b.options.reproducible = true;
    b.options.row_leaves = leaves ? TINY_SEQ : 1;
    b.model.n_heads = b.model.n_kv_heads = 4;
    b.model.attention_window = i == 8 ? 2 : 0;
    b.batch.anew = b.batch.docs && i > 5;
    b.batch.adapters = i == 7 ? (struct sh_adapters){.rank = 2, .scale = 1.5f, .targets = ~0u} : adapters;
    b.tile_rows = v % 2 ? 2 : 0; /* of blocks that recompute all */
    b.act = i % 2 ? SH_BF16 : SH_F32;
    return run_cut(b, &variants[v], axes);
}

/* Sequences cut over ranks: with leaves of rows, each degree on any mesh gives bit for bit the result of one rank, which
 * differs from that of whole sequences in the order of sums only. A degree above 1 has one micro-step. */
static void reproducible_in_parts(void **state)
{
    static const int one_rank[SH_AXES] = {1, 1, 1, 1, 1, 1, 1};
    static const int axes[][SH_AXES] = {{1, 2, 1, 1, 4, 1, 1}, {1, 4, 1, 1, 1, 4, 1}, {1, 1, 1, 1, 2, 1, 1},
                                        {1, 4, 1, 2, 2, 1, 1}, {1, 2, 1, 1, 2, 2, 1}, {1, 1, 1, 2, 1, 2, 1},
                                        {1, 2, 1, 2, 1, 2, 1}, {1, 4, 1, 1, 2, 2, 1}};
    const int n = sizeof axes / sizeof *axes;

    (void)state;
    for (int i = 0; i < TINY_MODELS + 3; i++) {
        struct outcome one = run_parts(i, true, one_rank, 0), whole = run_parts(i, false, one_rank, 0);

        assert_near(&one, &whole, i % 2 ? 2e-2 : 1e-5, i % 2 ? 2e-2 : 2e-6);
        assert_true(memcmp(one.params, whole.params, (size_t)one.elems * sizeof *one.params) != 0);
        for (int k = i % 2; k < n; k += tiny_step(3)) {
            struct outcome other = run_parts(i, true, axes[k], (i + k) % VARIANTS);

            assert_same_training(&other, &one);
            free(other.params);
        }
        free(one.params);
        free(whole.params);
    }
}

/* The gradient of what blocks add to has one place, though each norm makes its rows part by part. */
static void parts_write_over(void **state)
{
    struct sh_build b = build_of(&tiny_models[1], 1, 1, true);
    struct sh_program *p;
    int n = 0;

    (void)state;
    b.options.reproducible = true;
    b.options.row_leaves = TINY_SEQ;
    p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == SH_OP_NORM_BWD && p->ops[i].in[5] != SH_NONE) {
            assert_int_equal(sh_tensor_root(p, p->ops[i].out[0]), sh_tensor_root(p, p->ops[i].in[5]));
            n++;
        }
    assert_int_equal(n, 2 * b.model.n_layers * b.batch.batch * TINY_SEQ);
    sh_program_destroy(p);
}

/* The tree changes the order of sums, and nothing else. */
static void reproducible_is_near(void **state)
{
    struct sh_build b = build_of(&tiny_models[1], 1, GLOBAL, true);
    struct outcome plain, tree = run_tree(&tiny_models[1], SH_F32, 2, 2, 0);

    (void)state;
    b.options.micro_steps = LEAVES;
    plain = run_variant(b, &variants[0], 1, 1);
    plain.eval_loss = tree.eval_loss;
    assert_near(&tree, &plain, 1e-5, 2e-6);
    free(plain.params);
    free(tree.params);
}

/* ---- experts on several ranks ---- */

/* Every second block has experts; in the first three the best of groups, or an expert that each rank has, or two losses
 * of routers. */
static const struct tiny_model spread_models[] = {
    {"qwen2_moe",
     {.family = SH_FAMILY_QWEN2_MOE,
      TINY_EXPERTS,
      .n_layers = 2,
      .n_experts = 8,
      .n_experts_per_token = 2,
      .shared_ffn_dim = 8,
      .first_dense_layers = 1,
      .route_norm = true},
     true},
    {"qwen3_moe",
     {.family = SH_FAMILY_QWEN3_MOE,
      TINY_EXPERTS,
      .n_layers = 2,
      .n_experts = 4,
      .n_experts_per_token = 3,
      .router = SH_ROUTER_SIGMOID,
      .route_scale = 2.5},
     false},
    {"mixtral",
     {.family = SH_FAMILY_MIXTRAL, TINY_EXPERTS, .n_layers = 1, .n_experts = 8, .n_experts_per_token = 1},
     false},
};
enum { SPREAD_MODELS = sizeof spread_models / sizeof *spread_models, SPREAD_LEAVES = 16 };

/* Some sequences on a mesh of expert x inner x outer x replicate ranks. */
static struct outcome run_leaves(struct sh_build b, const int axes[SH_AXES], int leaves)
{
    struct sh_mesh_shape mesh = sh_mesh_shape_of(axes, 0);

    b.batch.batch = 1;
    b.options.micro_steps = leaves / sh_mesh_ranks(&mesh);
    return run_all(sim_create_on(&b, axes, SEED), &b);
}

static struct outcome run_spread(struct sh_build b, const int axes[SH_AXES])
{
    return run_leaves(b, axes, SPREAD_LEAVES);
}

static struct sh_build spread_build(int i, double capacity, bool reproducible)
{
    const struct variant *v = &variants[i % VARIANTS];
    struct sh_build b = build_of(&spread_models[i % SPREAD_MODELS], GLOBAL, 1, reproducible || i % 2);

    b.batch.spread.capacity = capacity;
    if (i % 5 ==
        2) { /* matrices of whole blocks, whose sums of squares are the same in any unit (src/base/number/exact.h) */
        b.model.dim = b.batch.adapters.rank = 16;
        b.model.expert_ffn_dim = 8;
        b.batch.adapters.scale = 1.5f;
        b.batch.adapters.targets = ~0u;
    }
    b.batch.balance = (struct sh_model_balance){.aux = 0.1f, .z = i % SPREAD_MODELS == 1 ? 0 : 0.01f};
    b.options.reproducible = reproducible;
    b.options.strategy.params_resident = tiny_strategies[v->strategy].params_resident;
    b.options.strategy.keep_after_forward = tiny_strategies[v->strategy].keep_after_forward;
    b.options.forward_prefetch = v->forward_prefetch;
    b.options.backward_prefetch = v->backward_prefetch;
    b.options.gathers_alive = v->gathers_alive;
    b.options.resident_units = v->resident_units;
    b.recompute = tiny_recomputes[v->recompute];
    b.act = i % 4 == 3 ? SH_BF16 : SH_F32;
    return b;
}

/* Wherever experts are and however many rows fit in a wave: with sums in a tree no bit depends on it. */
static void experts_anywhere(void **state)
{
    static const int axes[][SH_AXES] = {{1, 1, 2, 1, 1, 1, 1}, {1, 1, 4, 1, 1, 1, 1}, {1, 1, 2, 2, 1, 1, 1},
                                        {1, 1, 1, 2, 2, 2, 1}, {1, 1, 2, 2, 2, 2, 1}, {1, 1, 4, 1, 2, 2, 1},
                                        {1, 1, 2, 1, 1, 4, 1}};
    static const double capacity[] = {1, 1.25, 8};

    (void)state;
    for (int i = 0; i < 3 * VARIANTS; i += tiny_step(7)) {
        struct outcome one = run_spread(spread_build(i, 1, true), (const int[SH_AXES]){1, 1, 1, 1, 1, 1, 1});

        for (size_t m = (size_t)(i / 3 % 2); m < sizeof axes / sizeof *axes; m += 2) {
            struct outcome other = run_spread(spread_build(i, capacity[(i + (int)m) % 3], true), axes[m]);

            assert_same_training(&other, &one);
            free(other.params);
        }
        free(one.params);
    }
}

/* Without a tree sums have another order, which the size of a wave does not change. */
static void experts_near(void **state)
{
    static const int axes[SH_AXES] = {1, 1, 4, 2, 1, 1, 1}, none[SH_AXES] = {1, 1, 1, 4, 2, 1, 1};

    (void)state;
    for (int i = 0; i < 2 * VARIANTS; i += 1 + 2 * tiny_step(2)) {
        struct outcome together = run_spread(spread_build(i, 1, false), none);
        struct outcome apart = run_spread(spread_build(i, 1, false), axes);
        struct outcome wide = run_spread(spread_build(i, 8, false), axes);

        if (i % 4 != 3)
            assert_near(&apart, &together, 1e-5, 2e-6);
        assert_same(&wide, &apart);
        free(together.params);
        free(apart.params);
        free(wide.params);
    }
}

/* Alike but for the norm's last bit, since no matrix here is whole blocks of its sum (src/base/number/exact.h). */
static void assert_same_but_norm(struct outcome *a, const struct outcome *b)
{
    for (int step = 0; step < STEPS; step++) {
        assert_true(fabs(a->norm[step] / b->norm[step] - 1) <= 2 * DBL_EPSILON);
        a->norm[step] = b->norm[step];
    }
    assert_same_training(a, b);
}

/* Ranks that share the matrices around experts, on a mesh of 2^k groups of them. */
static struct outcome run_halves(int i, double capacity, const int axes[SH_AXES])
{
    struct sh_mesh_shape mesh = sh_mesh_shape_of(axes, 0);
    struct sh_build b = spread_build(i, capacity, true);

    b.model.n_heads = 4;
    b.model.n_kv_heads = 2;
    b.batch.batch = 1;
    b.tensor_tiles = 1 + i % 2;
    b.options.micro_steps = SPREAD_LEAVES / sh_group_size(&mesh, mesh.data);
    return run_all(sim_create_on(&b, axes, SEED), &b);
}

/* With sums in a tree, meshes with as many ranks for each matrix have the same bits, wherever experts are: a rank's own
 * rows are no leaf, but the sum over the ranks that share matrices is. */
static void experts_beside_halves(void **state)
{
    static const int axes[][SH_AXES] = {{2, 1, 2, 1, 1, 1, 1}, {2, 1, 1, 2, 1, 2, 1}, {2, 1, 2, 1, 2, 1, 1},
                                        {2, 1, 4, 1, 1, 1, 1}, {2, 1, 1, 1, 4, 1, 1}, {2, 1, 2, 2, 1, 2, 1}};
    static const double capacity[] = {1, 1.25, 8};

    (void)state;
    for (int i = 0; i < 2 * VARIANTS; i += tiny_step(7)) {
        struct outcome one = run_halves(i, 1, (const int[SH_AXES]){2, 1, 1, 1, 1, 1, 1});

        for (size_t m = (size_t)(i / 3 % 2); m < sizeof axes / sizeof *axes; m += 2) {
            struct outcome other = run_halves(i, capacity[(i + (int)m) % 3], axes[m]);

            assert_same_but_norm(&other, &one);
            free(other.params);
        }
        free(one.params);
    }
}

/* Stages of eight ranks, two on each of three axes: matrices, sequences and experts. The bits of one stage. */
static void experts_on_all_axes(void **state)
{
    static const int axes[SH_AXES] = {2, 2, 2, 1, 1, 1, 1};

    (void)state;
    for (int i = 0; i < SPREAD_MODELS; i += tiny_step(2)) {
        struct sh_build b = spread_build(i, 1 + i % 2, false);
        struct outcome one, all;

        b.model.n_layers = 3;
        b.model.n_heads = 4;
        b.model.n_kv_heads = 2;
        b.batch.batch = GLOBAL / 4;
        b.options.micro_steps = 2;
        b.options.weights_apart = i % 2;
        b.options.strategy =
            (struct sh_strategy){.params_resident = i % 2, .keep_after_forward = !(i % 2), .sync_last_only = true};
        one = run_stages(b, axes, 1, false);
        all = run_stages(b, axes, 2, i % 2);
        assert_same_but_norm(&all, &one);
        free(one.params);
        free(all.params);
    }
}

/* Eight groups of eight ranks, in each of which every rank has one expert: the bits of four ranks that have all of them. */
static void experts_on_many_ranks(void **state)
{
    static const int many[SH_AXES] = {1, 1, 8, 2, 2, 2, 1}, few[SH_AXES] = {1, 1, 1, 2, 2, 1, 1};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct outcome spread = run_leaves(spread_build(2 * i, 1 + i, true), many, MAX_RANKS);
        struct outcome together = run_leaves(spread_build(2 * i, 1, true), few, MAX_RANKS);

        assert_same_but_norm(&spread, &together);
        free(spread.params);
        free(together.params);
    }
}

static void run_logits(struct sh_build b, int shard, int replicate, float *out)
{
    struct sim *s = sim_create(&b, shard, replicate, 1, SEED);
    int logits = s->ranks[0].p->port[SH_PORT_LOGITS];

    s->scalars.position = TINY_SEQ - 2;
    for (int rank = 0; rank < s->world; rank++)
        memcpy(sim_data(s, rank, s->ranks[rank].p->port[SH_PORT_TOKENS]), batch.tokens[0], TINY_SEQ * sizeof(int32_t));
    sim_run(s, SH_SECTION_LOGITS);
    memcpy(out, sim_data(s, 0, logits), TINY_VOCAB * sizeof *out);
    for (int rank = 1; rank < s->world; rank++)
        assert_memory_equal(sim_data(s, rank, logits), out, TINY_VOCAB * sizeof *out);
    sim_destroy(s);
}

static void logits_are_those_of_one_rank(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct sh_build b = tiny_build(&tiny_models[m], 1);
        float one[TINY_VOCAB], many[TINY_VOCAB];

        b.batch.docs = false;
        b.options.training = false;
        b.logits = true;
        run_logits(b, 1, 1, one);
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
            run_logits(b, meshes[i].shard, meshes[i].replicate, many);
            assert_memory_equal(many, one, sizeof one);
        }
    }
}

static int n_fused(const struct sh_build *b)
{
    struct sh_program *p = tiny_program(b, tiny_mesh(1, 1, 1, 0));
    int n = 0;

    for (int i = 0; i < p->n_ops; i++)
        n += sh_op_info(p->ops[i].kind)->fused;
    sh_program_destroy(p);
    return n;
}

/* Training with fused kinds and without them, by the same kernels otherwise. */
static void fused_kinds_change_no_bit(void **state)
{
    struct sh_kernel_table apart = sh_kernels_cpu;

    (void)state;
    omp_set_num_threads(1);
    for (int k = 0; k < SH_OP_KINDS; k++)
        if (sh_op_info((enum sh_op_kind)k)->fused)
            apart.run[k] = NULL;
    for (int i = 0; i < TINY_MODELS * VARIANTS; i += tiny_step(TINY_MODELS + 1)) {
        struct sh_build b = build_of(&tiny_models[i % TINY_MODELS], 2, 2, i / 2 % 2);
        struct outcome with, without;

        b.act = i / TINY_MODELS % 2 ? SH_BF16 : SH_F32;
        b.kernels = &sh_kernels_cpu;
        assert_true(n_fused(&b) > 0);
        with = run_variant(b, &variants[i / TINY_MODELS], 2, 1);
        b.kernels = &apart;
        assert_int_equal(n_fused(&b), 0);
        without = run_variant(b, &variants[i / TINY_MODELS], 2, 1);
        assert_same(&with, &without);
        free(with.params);
        free(without.params);
    }
}

/* Operations on tiles, and the arena. */
static int n_tiled(const struct sh_build *b, int shard, int replicate, int64_t *bytes)
{
    struct sh_program *p = tiny_program(b, tiny_mesh(shard, replicate, 1, 0));
    int n = 0;

    for (int i = 0; i < p->n_ops; i++)
        n += p->ops[i].tiles > 0;
    *bytes = p->arena_bytes;
    sh_program_destroy(p);
    return n;
}

/* The same model without experts, of another family. */
static struct tiny_model of_family(const char *name, enum sh_cfg_family family, int kv_heads, bool tied)
{
    struct tiny_model t = with_experts;

    t.name = name;
    t.model.family = family;
    t.model.n_kv_heads = kv_heads;
    t.model.tie_word_embeddings = tied;
    t.model.first_dense_layers = t.model.n_experts = t.model.n_experts_per_token = 0;
    t.model.expert_ffn_dim = t.model.shared_ffn_dim = 0;
    return t;
}

/* Tiles of one block of rows, of several, and with a rest; of all families of parts, with adapters, on each mesh. Blocks
 * that keep activations are not cut, and their validation is. By the reference: rows of a library's product may depend on
 * how many there are below 16 (tests/mesh/test_tiles.py). */
static void tiles_change_no_bit(void **state)
{
    static const struct {
        int64_t tile, block;
    } rows[] = {{4, 4}, {8, 4}, {12, 4}, {8, 8}, {4, 2}};
    static const int recomputes[] = {TINY_FULL, TINY_FIRST_FULL, TINY_EVERY_2, TINY_NONE};
    const struct tiny_model geglu = of_family("gemma3", SH_FAMILY_GEMMA3, 1, true),
                            parallel = of_family("gpt_neox", SH_FAMILY_GPT_NEOX, 3, false);
    const struct tiny_model *models[TINY_MODELS + 3] = {&with_experts, &geglu, &parallel};
    enum { MODELS_HERE = sizeof models / sizeof *models, RUNS = 9 * 10 };
    int tiled = 0;

    (void)state;
    for (int i = 0; i < TINY_MODELS; i++)
        models[3 + i] = &tiny_models[i];
    for (int i = 0; i < RUNS; i += tiny_step(7)) {
        int mesh = i % (int)(sizeof meshes / sizeof *meshes), shard = meshes[mesh].shard,
            replicate = meshes[mesh].replicate;
        struct variant v = variants[i % VARIANTS];
        int64_t whole_bytes, tile_bytes;
        struct outcome whole, tiles;
        struct sh_build b;

        adapters = i % 5 == 4 ? (struct sh_adapters){.rank = 2, .scale = 1.5f, .targets = ~0u}
                              : (struct sh_adapters){0};
        b = build_of(models[i / 2 % MODELS_HERE], shard * replicate, meshes[mesh].micros, i % 2);
        b.act = i % 3 == 2 ? SH_BF16 : SH_F32;
        b.snapshot_on_host = true;
        b.offload = (struct sh_offload){
            .act_blocks = i % 3 && !adapters.rank ? 3 : 0, .optimizer_16 = i % 4, .buffers = 3, .carry = i % 4 > 1};
        if (b.offload.act_blocks)
            b.model.n_layers = 5;
        b.row_block = rows[i / 3 % 5].block;
        v.recompute = recomputes[i / (2 * MODELS_HERE) % 4];
        if (v.recompute == TINY_NONE)
            b.offload.act_blocks = 0;
        b.recompute = tiny_recomputes[v.recompute];
        whole = run_variant(b, &v, shard, replicate);
        assert_int_equal(n_tiled(&b, shard, replicate, &whole_bytes), 0);
        b.tile_rows = rows[i / 3 % 5].tile;
        tiled += n_tiled(&b, shard, replicate, &tile_bytes) > 0;
        tiles = run_variant(b, &v, shard, replicate);
        assert_same(&tiles, &whole);
        free(tiles.params);
        free(whole.params);
    }
    assert_true(tiled > RUNS / tiny_step(7) / 4);
    adapters = (struct sh_adapters){0};
}

/* One block of rows against all at once: the same sums in another order. What tiles save is the interior of the widest
 * block. */
static void tiles_are_near_and_small(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct sh_build b = build_of(&tiny_models[m], 1, 1, false);
        struct outcome whole, tiles;
        int64_t all, some;

        b.recompute = tiny_recomputes[TINY_FULL];
        whole = run(&b, 1, 1, 1);
        n_tiled(&b, 1, 1, &all);
        b.tile_rows = b.row_block = 4;
        tiles = run(&b, 1, 1, 1);
        assert_near(&tiles, &whole, 1e-5, 2e-6);
        free(tiles.params);
        free(whole.params);
        b.model.ffn_dim = 400;
        assert_true(n_tiled(&b, 1, 1, &some) > 0);
        b.tile_rows = 0;
        n_tiled(&b, 1, 1, &all);
        /* At the least h [N,F] and its gradient, which both have 44 of 48 rows less. */
        assert_true(some < all - 2 * 44 * 400 * (int64_t)sizeof(float));
    }
}

static int n_fetches(const struct sh_build *b)
{
    struct sh_program *p = tiny_program(b, tiny_mesh(1, 1, 1, 0));
    int n = p->n_slices;

    sh_program_destroy(p);
    return n;
}

/* Slices of all states, of some, with units cut in two, and with each number of slices at once that makes
 * a difference. */
static void slices_change_no_bit(void **state)
{
    static const struct {
        int ratio_16, buffers, shard, replicate;
        enum sh_cfg_optimizer optimizer;
    } rows[] = {{16, 3, 1, 1, SH_OPTIM_ADAMW}, {16, 2, 2, 1, SH_OPTIM_ADAMW}, {7, 3, 2, 2, SH_OPTIM_ADAMW},
                {11, 2, 1, 2, SH_OPTIM_SGD},   {16, 5, 3, 1, SH_OPTIM_LION},  {1, 2, 1, 1, SH_OPTIM_ADAMW}};

    (void)state;
    for (size_t i = 0; i < 3 * sizeof rows / sizeof *rows; i++) {
        static const enum sh_dtype types[] = {SH_F32, SH_BF16, SH_F16};
        int r = (int)i / 3, world = rows[r].shard * rows[r].replicate;
        struct sh_build b = build_of(&tiny_models[r % TINY_MODELS], world, 12 / world > 6 ? 2 : 1, false);
        struct outcome with, without;

        b.model.ffn_dim = 500;
        b.act = types[i % 3];
        b.options.optim = sh_optim_of(rows[r].optimizer);
        without = run_variant(b, &variants[r], rows[r].shard, rows[r].replicate);
        b.snapshot_on_host = r % 2; /* homes in host memory */
        b.offload = (struct sh_offload){
            .optimizer_16 = rows[r].ratio_16, .buffers = rows[r].buffers, .slice_elems = SH_SLICE_MULTIPLE};
        assert_true(n_fetches(&b) > 0 && (rows[r].ratio_16 < 16 || n_fetches(&b) > rows[r].buffers));
        with = run_variant(b, &variants[r], rows[r].shard, rows[r].replicate);
        assert_same(&with, &without);
        free(with.params);
        b.offload.carry = true;
        with = run_variant(b, &variants[r], rows[r].shard, rows[r].replicate);
        assert_same(&with, &without);
        free(with.params);
        free(without.params);
    }
}

/* Shards of gradients that are moved away between their uses, on each mesh, in a file or host memory, alone or with the
 * states; for units that the backward itself writes, that are scattered into, added to, and summed over replicas; with
 * the update at once and in the next forward. */
static void gradients_away_change_no_bit(void **state)
{
    const int n = sizeof meshes / sizeof *meshes;

    (void)state;
    for (int i = 0; i < 2 * n; i++) {
        int m = i % n, shard = meshes[m].shard, replicate = meshes[m].replicate;
        bool sync_last = i >= n && shard > 1 && meshes[m].micros > 1;
        struct sh_build b = build_of(&tiny_models[i % TINY_MODELS], shard * replicate, meshes[m].micros, sync_last);
        const struct variant *v = &variants[i % VARIANTS];
        struct outcome with, without;

        b.model.ffn_dim = 500;
        b.act = i % 5 == 4 ? SH_F16 : i % 3 ? SH_BF16 : SH_F32;
        b.options.reduce = i % 3 == 2 && b.act == SH_BF16 ? SH_BF16 : SH_F32;
        without = run_variant(b, v, shard, replicate);
        b.offload = (struct sh_offload){.gradients = true, .buffers = 3, .slice_elems = SH_SLICE_MULTIPLE};
        b.offload.optimizer_16 = i % 4 ? 9 : 0;
        for (int host = 0; host < 2; host++) {
            b.snapshot_on_host = host;
            b.offload.carry = (i / 2 + host) % 2;
            with = run_variant(b, v, shard, replicate);
            assert_same(&with, &without);
            free(with.params);
        }
        free(without.params);
    }
}

/* Chunks of parameters that are moved away, for strategies that gather and for those that do not; also frozen ones, in codes, and
 * with adapters; with everything else moved away, and with the update at once and in the next forward. */
static void parameters_away_change_no_bit(void **state)
{
    static const char *const lowest[] = {"embed", "layers.1", NULL};
    const int n = sizeof meshes / sizeof *meshes;

    (void)state;
    for (int i = 0; i < 2 * n; i++) {
        int m = i % n, shard = meshes[m].shard, replicate = meshes[m].replicate;
        const struct variant *v = &variants[i % VARIANTS];
        struct outcome with, without;
        struct sh_build b;

        frozen = i % 5 == 2 ? lowest : NULL;
        adapters = i % 5 == 1 ? (struct sh_adapters){.rank = 2, .scale = 1.5f, .targets = ~0u}
                              : (struct sh_adapters){0};
        b = build_of(&tiny_models[i % TINY_MODELS], shard * replicate, meshes[m].micros, false);
        b.model.ffn_dim = 500;
        b.act = i % 3 ? SH_BF16 : SH_F32;
        b.options.gather_coded = i % 4 > 1;
        without = run_variant(b, v, shard, replicate);
        b.snapshot_on_host = b.options.fetched = true;
        b.offload =
            (struct sh_offload){.parameters = true, .gradients = i % 2, .buffers = 3, .slice_elems = SH_SLICE_MULTIPLE};
        b.offload.optimizer_16 = i % 4 ? 9 : 0;
        b.offload.carry = i / 2 % 2;
        with = run_variant(b, v, shard, replicate);
        assert_same(&with, &without);
        free(with.params);
        free(without.params);
    }
    frozen = NULL;
    adapters = (struct sh_adapters){0};
}

/* The update is in the next step's forward, and sometimes immediate, on each mesh and with each variant. */
static void carried_updates_change_no_bit(void **state)
{
    static const char *const lowest[] = {"embed", "layers.1", NULL};

    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        int mesh = v % (int)(sizeof meshes / sizeof *meshes);
        struct sh_build b;
        struct outcome at_once, carried;

        frozen = v % 3 == 2 ? lowest : NULL;
        adapters = v % 3 == 1 ? (struct sh_adapters){.rank = 2, .scale = 1.5f, .targets = ~0u}
                              : (struct sh_adapters){0};
        b = build_of(&tiny_models[v % TINY_MODELS], meshes[mesh].shard * meshes[mesh].replicate, meshes[mesh].micros,
                     v % 2);
        b.act = v % 2 ? SH_BF16 : SH_F32;
        b.options.reduce = v % 4 ? SH_F32 : SH_BF16;
        b.options.gather_coded = v % 4 > 1;
        at_once = run_variant(b, &variants[v], meshes[mesh].shard, meshes[mesh].replicate);
        b.offload.carry = true;
        carried = run_variant(b, &variants[v], meshes[mesh].shard, meshes[mesh].replicate);
        assert_same(&carried, &at_once);
        free(at_once.params);
        free(carried.params);
    }
    frozen = NULL;
    adapters = (struct sh_adapters){0};
}

/* Activations of whole pages, with five blocks, of which the first three may be moved. */
static struct sh_build deep_build(const struct tiny_model *m, int world, int micros, int blocks)
{
    struct sh_build b = build_of(m, world, micros, false);

    b.model.n_layers = 5;
    b.model.dim = 512;
    b.model.ffn_dim = 16;
    b.offload.act_blocks = blocks;
    return b;
}

/* Activations move to a file or to host memory and back, and a read that comes too early gets poison; with all
 * recomputations, meshes and micro-steps. */
static void activations_away_change_no_bit(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v += 2 * tiny_step(2)) {
        int mesh = v % (int)(sizeof meshes / sizeof *meshes), world = meshes[mesh].shard * meshes[mesh].replicate;
        struct sh_build b = deep_build(&tiny_models[v % TINY_MODELS], world, meshes[mesh].micros, 0);
        struct outcome in_memory, away;

        b.act = v % 4 ? SH_BF16 : SH_F32;
        in_memory = run_variant(b, &variants[v], meshes[mesh].shard, meshes[mesh].replicate);
        b.offload = (struct sh_offload){.act_blocks = 1 + v % 4, .optimizer_16 = v, .buffers = 3, .carry = v > 4};
        for (int host = 0; host < 2; host++) {
            b.snapshot_on_host = host;
            away = run_variant(b, &variants[v], meshes[mesh].shard, meshes[mesh].replicate);
            assert_same(&away, &in_memory);
            free(away.params);
        }
        free(in_memory.params);
    }
}

/* The update is in the first leaf of the tree, and the gradients of the levels are unchanged. */
static void carried_in_a_tree(void **state)
{
    struct sh_build b = build_of(&tiny_models[1], 1, GLOBAL, true);

    (void)state;
    b.options.reproducible = true;
    for (int shard = 1; shard <= 8; shard *= 2) {
        struct outcome at_once, carried;

        b.options.micro_steps = LEAVES / shard;
        b.offload.carry = false;
        at_once = run_variant(b, &variants[shard % 3], shard, 1);
        b.offload.carry = true;
        carried = run_variant(b, &variants[shard % 3], shard, 1);
        assert_same_training(&carried, &at_once);
        free(at_once.params);
        free(carried.params);
    }
}

int main(void)
{
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(bf16_trains),
        cmocka_unit_test(f16_trains),
        cmocka_unit_test(logits_are_those_of_one_rank),
        cmocka_unit_test(reproducible),
        cmocka_unit_test(codes_show_no_mesh),
        cmocka_unit_test(reproducible_is_near),
        cmocka_unit_test(reproducible_in_parts),
        cmocka_unit_test(parts_write_over),
        cmocka_unit_test(experts_anywhere),
        cmocka_unit_test(experts_near),
        cmocka_unit_test(experts_beside_halves),
        cmocka_unit_test(experts_on_many_ranks),
        cmocka_unit_test(experts_on_all_axes),
        cmocka_unit_test(bf16_is_sent),
        cmocka_unit_test(fused_kinds_change_no_bit),
        cmocka_unit_test(tiles_change_no_bit),
        cmocka_unit_test(tiles_are_near_and_small),
        cmocka_unit_test(with_frozen_units),
        cmocka_unit_test(with_groups_of_their_own),
        cmocka_unit_test(with_every_axis),
        cmocka_unit_test(stages_change_no_bit),
        cmocka_unit_test(stages_on_all_axes),
        cmocka_unit_test(stages_cut_matrices),
        cmocka_unit_test(cut_sequences),
        cmocka_unit_test(cut_matrices),
        cmocka_unit_test(gathered_keys),
        cmocka_unit_test(parts_are_exchanged),
        cmocka_unit_test(rows_make_a_round_trip),
        cmocka_unit_test(with_adapters),
        cmocka_unit_test(with_whole_matrices),
        cmocka_unit_test(with_muon),
        cmocka_unit_test(with_muon_on_many_ranks),
        cmocka_unit_test(with_muon_on_most_ranks),
        cmocka_unit_test(slices_change_no_bit),
        cmocka_unit_test(gradients_away_change_no_bit),
        cmocka_unit_test(parameters_away_change_no_bit),
        cmocka_unit_test(carried_updates_change_no_bit),
        cmocka_unit_test(carried_in_a_tree),
        cmocka_unit_test(activations_away_change_no_bit),
    };
    struct CMUnitTest tests[TINY_MODELS + sizeof others / sizeof *others] = {0};

    for (int i = 0; i < TINY_MODELS; i++)
        tests[i] = (struct CMUnitTest){
            .name = tiny_models[i].name, .test_func = check_model, .initial_state = (void *)(uintptr_t)&tiny_models[i]};
    memcpy(tests + TINY_MODELS, others, sizeof others);
    return cmocka_run_group_tests(tests, make_batch, NULL);
}
