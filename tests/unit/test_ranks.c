/* The programs of all ranks, compared: correct ones agree on every mesh, and each planted fault is reported with its
 * rank and its operation or unit. A program that is converted to another rank equals the one that is built there. */
#include "src/plan/ranks.h"

#include "src/base/mem.h"
#include "tests/unit/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SHARD = 4, REPLICATE = 2, WORLD = SHARD * REPLICATE, BAD = 5, MICRO = 3 };

/* A rank's own build, program and mesh; a fault changes one of them before the comparison. */
struct faulty {
    struct sh_build b;
    void (*build)(struct sh_build *b);
    void (*program)(struct sh_program *p);
    void (*mesh)(struct sh_mesh_shape *m);
    void (*hold)(struct sh_program *p, int rank); /* what a rank holds; for get_half() */
    bool everywhere;                              /* on all ranks alike, so no rank differs */
    bool experts;                                 /* spread over pairs of ranks */
    struct sh_program *p;
    struct sh_mesh_shape shape;
};

static sh_rc get(void *from, int rank, const struct sh_program **p, const struct sh_mesh_shape **mesh)
{
    struct faulty *f = from;
    struct sh_build b = f->b;

    sh_program_destroy(f->p);
    f->p = NULL;
    b.options.mesh.rank = rank;
    if (rank == BAD && f->build)
        f->build(&b);
    SH_TRY(sh_pass_build(&b, &f->p));
    f->shape = b.options.mesh;
    if ((rank == BAD || f->everywhere) && f->program)
        f->program(f->p);
    if (rank == BAD && f->mesh)
        f->mesh(&f->shape);
    *p = f->p;
    *mesh = &f->shape;
    return SH_OK;
}

static struct sh_build job(void)
{
    struct sh_build b = tiny_build(&tiny_models[1], 2);

    b.act = SH_BF16;
    b.options.mesh = tiny_mesh(SHARD, REPLICATE, 1, 0);
    b.options.micro_steps = MICRO;
    b.options.forward_prefetch = b.options.backward_prefetch = 1;
    return b;
}

/* Pairs of ranks of each shard group have half of the experts each, if their number is even. */
static void spread_experts(struct sh_build *b)
{
    int size[SH_AXES], from;

    for (int i = 0; i < SH_AXES; i++)
        size[i] = b->options.mesh.axis[i].size;
    from = size[SH_AXIS_OUTER] % 2 ? SH_AXIS_INNER : SH_AXIS_OUTER;
    if (size[from] % 2 == 0) {
        size[from] /= 2;
        size[SH_AXIS_EXPERT] = 2;
    }
    b->options.mesh = sh_mesh_shape_of(size, b->options.mesh.rank);
    b->model.family = SH_FAMILY_QWEN3_MOE;
    b->model.n_experts = 4;
    b->model.n_experts_per_token = 2;
    b->model.expert_ffn_dim = 5;
    b->batch.spread.capacity = 1;
}

/* Trained as a whole; with adapters; with adapters on packed weights; as a whole with updates carried into the next
 * step; with an optimizer that needs whole matrices; with experts on several ranks; and with whole matrices at their
 * owners, updates carried or not, or so that exchanges of replicas are hidden. */
enum { WAYS = 9 };
static void train_by(int way, struct sh_build *b)
{
    b->offload.carry = way == 3 || way >= 7;
    b->options.ortho.near = way == 8;
    if (way == 1 || way == 2)
        b->batch.adapters = (struct sh_adapters){.rank = 2, .scale = 1, .targets = ~0u};
    b->packed = way == 2;
    if (way == 4)
        b->options.optim = &tiny_cubic;
    if (way >= 6)
        b->options.optim = sh_optim_of(SH_OPTIM_MUON);
    if (way == 5)
        spread_experts(b);
    if (b->packed) /* matrices must be whole blocks */
        b->model.dim = b->model.ffn_dim = 64;
}

static sh_rc check(struct faulty *f, struct sh_ranks *r, struct sh_ranks_found *found)
{
    r->world = sh_mesh_ranks(&f->b.options.mesh);
    r->ranks_per_node = r->ranks_per_node ? r->ranks_per_node : r->world;
    r->batch = 2;
    r->sequences = (int64_t)r->world * 2 * f->b.options.micro_steps;
    r->get = get;
    r->from = f;
    return sh_ranks_check(r, found);
}

/* --- faults --- */

static void prefetch_forward(struct sh_build *b)
{
    b->options.forward_prefetch = 0;
}
static void prefetch_backward(struct sh_build *b)
{
    b->options.backward_prefetch = 0;
}
static void more_micro_steps(struct sh_build *b)
{
    b->options.micro_steps++;
}
static void reduce_bf16(struct sh_build *b)
{
    b->options.reduce = SH_BF16;
}
static void keep_gathered(struct sh_build *b)
{
    b->options.strategy.keep_after_forward = true;
}
static void keep_resident(struct sh_build *b)
{
    b->options.strategy.params_resident = true;
}
static void sync_last(struct sh_build *b)
{
    b->options.strategy.sync_last_only = true;
}
static void larger_batch(struct sh_build *b)
{
    b->batch.batch++;
}
static void one_layer_more(struct sh_build *b)
{
    b->model.n_layers++;
}
static void wider(struct sh_build *b)
{
    b->model.ffn_dim *= 2;
}
static void float32(struct sh_build *b)
{
    b->act = SH_F32;
}
static void other_mesh(struct sh_build *b)
{
    b->options.mesh = tiny_mesh(REPLICATE, SHARD, 1, BAD);
}

/* The i-th collective of a kind in sections of a step. */
static struct sh_op *collective(struct sh_program *p, enum sh_op_kind kind, int i)
{
    for (int s = 0; s < p->n_sections; s++)
        for (int k = 0; k < p->sections[s].n_ops; k++) {
            struct sh_op *op = &p->ops[p->sections[s].first_op + k];

            if (p->sections[s].repeat && op->kind == kind && i-- == 0)
                return op;
        }
    fail();
    return NULL;
}

static struct sh_op *update(struct sh_program *p)
{
    for (int i = 0; i < p->n_ops; i++)
        if (sh_op_info(p->ops[i].kind)->runs && p->ops[i].attr.runs.count > 0)
            return &p->ops[i];
    fail();
    return NULL;
}

static struct sh_tensor *squared(struct sh_program *p)
{
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == SH_OP_SUMSQ && p->ops[i].unit == 1 && p->tensors[p->ops[i].in[0]].dim[0] > 0)
            return &p->tensors[p->ops[i].in[0]];
    fail();
    return NULL;
}

static void chunk_off_by_64(struct sh_program *p)
{
    p->units[1].chunk += 64;
}
static void chunk_too_small(struct sh_program *p)
{
    p->units[1].chunk -= 64;
}
static void unit_of_other_size(struct sh_program *p)
{
    p->units[0].elems--;
}

static void groups_exchanged(struct sh_program *p)
{
    struct sh_op *op = collective(p, SH_OP_REDUCE_SCATTER, 1);

    op->attr.group = p->units[op->unit].replicate;
}

static void other_stream(struct sh_program *p)
{
    collective(p, SH_OP_ALL_GATHER, 2)->stream = SH_STREAM_REPLICATE;
}
static void dropped(struct sh_program *p)
{
    collective(p, SH_OP_ALL_GATHER, 3)->kind = SH_OP_RELEASE;
}
static void section_repeats(struct sh_program *p)
{
    p->sections[2].repeat++;
}

static void exchanged(struct sh_program *p)
{
    struct sh_op *a = collective(p, SH_OP_ALL_GATHER, 0), *b = collective(p, SH_OP_ALL_GATHER, 1), c = *a;

    *a = *b;
    *b = c;
}

static void received_as_other_type(struct sh_program *p)
{
    p->tensors[collective(p, SH_OP_ALL_GATHER, 0)->out[0]].dtype = SH_F32;
}

/* As if the number of elements, above 2^31, had overflowed an int. */
static void overflow(struct sh_program *p)
{
    struct sh_tensor *t = &p->tensors[collective(p, SH_OP_REDUCE_SCATTER, 0)->in[0]];

    t->dim[0] = (int32_t)(uint32_t)(t->dim[0] + (1ll << 31));
}

static void parts_for_all(struct sh_program *p)
{
    struct sh_op *op = collective(p, SH_OP_ALL_GATHER, 0);

    op->kind = SH_OP_ALL_TO_ALL;
    op->in[0] = op->out[0];
}

static void count_rows_of(struct sh_program *p, int64_t ranks)
{
    struct sh_tensor parts = sh_tensor_make(SH_MEM_ACT, SH_I32, 3, (const int64_t[]){2, ranks, ranks}, "parts");
    int tensor = sh_program_add_tensor(p, &parts);
    struct sh_op *op = collective(p, SH_OP_ALL_GATHER, 0);

    op->kind = SH_OP_ALL_TO_ALL;
    op->in[1] = tensor;
    op->attr.exchange.row_elems = 4;
}

/* The operands keep their sizes, which differ. */
static void counted_rows(struct sh_program *p)
{
    count_rows_of(p, SHARD);
}
static void rows_for_more_ranks(struct sh_program *p)
{
    count_rows_of(p, SHARD + 1);
}

static void parts_that_do_not_divide(struct sh_program *p)
{
    parts_for_all(p);
    p->tensors[collective(p, SH_OP_ALL_TO_ALL, 0)->out[0]].dim[0]++;
}

static void one_of_sums_grows(struct sh_program *p)
{
    p->tensors[collective(p, SH_OP_ALL_REDUCE, 0)->out[0]].dim[0] *= 2;
}
static void squares_moved(struct sh_program *p)
{
    squared(p)->base_elems += 64;
}
static void squares_cut(struct sh_program *p)
{
    squared(p)->dim[0] -= 1;
}
static void runs_lost(struct sh_program *p)
{
    update(p)->attr.runs.count = 0;
}
static void run_shortened(struct sh_program *p)
{
    p->runs[update(p)->attr.runs.first].end--;
}
static void run_begins_late(struct sh_program *p)
{
    p->runs[update(p)->attr.runs.first].begin++;
}

static void larger_waves(struct sh_build *b)
{
    b->batch.spread.capacity = 1.5;
}
static void other_experts(struct sh_program *p)
{
    for (int i = 0; i < p->n_params; i++)
        if (p->units[p->params[i].unit].split)
            p->params[i].band[0].first = 0;
}
static void other_way(struct sh_program *p)
{
    struct sh_op *op = collective(p, SH_OP_ALL_TO_ALL, 0);

    op->attr.exchange.back = !op->attr.exchange.back;
}
static void longer_rows(struct sh_program *p)
{
    collective(p, SH_OP_ALL_TO_ALL, 0)->attr.exchange.row_elems++;
}
static void other_wave(struct sh_program *p)
{
    collective(p, SH_OP_ALL_TO_ALL, 0)->attr.exchange.wave++;
}
static void wave_lost(struct sh_program *p)
{
    collective(p, SH_OP_ALL_TO_ALL, 1)->kind = SH_OP_RELEASE;
}
static void rows_to_all(struct sh_program *p)
{
    collective(p, SH_OP_ALL_TO_ALL, 0)->attr.group = p->units[0].shard;
}

static void axes_exchanged(struct sh_mesh_shape *m)
{
    int stride = m->axis[SH_AXIS_OUTER].stride;

    m->axis[SH_AXIS_OUTER].stride = m->axis[SH_AXIS_REPLICATE].stride;
    m->axis[SH_AXIS_REPLICATE].stride = stride;
}

static void same_rank_twice(struct sh_mesh_shape *m)
{
    m->rank = BAD - 1;
}
static void data_over_shards(struct sh_mesh_shape *m)
{
    m->data = m->shard;
}
static void rows_over_shards(struct sh_mesh_shape *m)
{
    m->rows = m->shard;
}

static const struct {
    const char *what;
    struct faulty f;
    const char *says; /* in addition to the rank */
} faults[] = {
    {"another prefetch forward", {.build = prefetch_forward}, "all_gather): another place"},
    {"another prefetch backward", {.build = prefetch_backward}, "rank 0"},
    {"a micro-step more", {.build = more_micro_steps}, "runs"},
    {"gradients in bfloat16", {.build = reduce_bf16}, "reduce_scatter): another type"},
    {"gathered units kept", {.build = keep_gathered}, "rank 0"},
    {"gathered units resident", {.build = keep_resident}, "rank 0"},
    {"reduced at the end only", {.build = sync_last}, "rank 0"},
    {"a larger batch", {.build = larger_batch}, "a micro-step of 3 sequences"},
    {"one layer more", {.build = one_layer_more}, "units"},
    {"a wider model", {.build = wider}, "unit "},
    {"computes in float32", {.build = float32}, "another type"},
    {"another mesh", {.build = other_mesh}, "axes of its mesh"},
    {"a chunk off by 64", {.program = chunk_off_by_64}, "unit "},
    {"a chunk too small", {.program = chunk_too_small}, "unit "},
    {"a unit of another size", {.program = unit_of_other_size}, "unit embed"},
    {"groups exchanged", {.program = groups_exchanged}, "reduce_scatter)"},
    {"another stream", {.program = other_stream}, "all_gather): another stream"},
    {"a collective dropped", {.program = dropped}, "rank 0"},
    {"a section more often", {.program = section_repeats}, "section 2"},
    {"two collectives exchanged", {.program = exchanged}, "all_gather): another collective"},
    {"received as another type", {.program = received_as_other_type}, "all_gather)"},
    {"an int that overflows", {.program = overflow}, "reduce_scatter)"},
    {"an int that overflows everywhere", {.program = overflow, .everywhere = true}, "are not"},
    {"received as another type everywhere", {.program = received_as_other_type, .everywhere = true}, "are not"},
    {"parts that do not divide", {.program = parts_that_do_not_divide, .everywhere = true}, "are not"},
    {"rows for more ranks", {.program = rows_for_more_ranks, .everywhere = true}, "for 5 ranks are not"},
    {"squares cut everywhere", {.program = squares_cut, .everywhere = true}, "squared by no rank"},
    {"a sum of another size", {.program = one_of_sums_grows}, "reduce_scatter)"},
    {"squares moved", {.program = squares_moved}, "squared by"},
    {"squares cut", {.program = squares_cut}, "squared by no rank"},
    {"runs lost", {.program = runs_lost}, "updated by"},
    {"a run shortened", {.program = run_shortened}, "updated by no rank"},
    {"a run that begins late", {.program = run_begins_late}, "runs of weight decay"},
    {"larger waves", {.build = larger_waves, .experts = true}, "all_to_all"},
    {"the experts of others", {.program = other_experts, .experts = true}, "squared by two ranks"},
    {"rows the other way", {.program = other_way, .experts = true}, "all_to_all wave 0): other rows"},
    {"longer rows", {.program = longer_rows, .experts = true}, "all_to_all wave 0): other rows"},
    {"another wave", {.program = other_wave, .experts = true}, "all_to_all wave 1): other rows"},
    {"a wave lost", {.program = wave_lost, .experts = true}, "all_to_all"},
    {"rows to more ranks", {.program = rows_to_all, .experts = true}, "for 2 ranks are not"},
    {"axes exchanged", {.mesh = axes_exchanged}, "axes of its mesh"},
    {"a rank twice", {.mesh = same_rank_twice}, "its mesh is that of rank 4"},
    {"data over shards only", {.mesh = data_over_shards}, "axes of its mesh"},
    {"rows over shards only", {.mesh = rows_over_shards}, "axes of its mesh"},
};

/* BAD is a replica, whose parts of squares count but whose runs do not: for faults in runs, the first rank with its
 * shard is damaged. */
static void faults_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct faulty f = faults[i].f;
        struct sh_ranks r = {0};
        struct sh_ranks_found found;
        sh_rc rc;

        f.b = job();
        if (!strncmp(faults[i].says, "updated", 7) || !strcmp(faults[i].what, "a run shortened"))
            f.b.options.mesh = tiny_mesh(WORLD, 1, 1, 0);
        if (f.experts)
            spread_experts(&f.b);
        rc = check(&f, &r, &found);
        if (rc != SH_E_BUG || !strstr(sh_error_text(), faults[i].says) || !strstr(sh_error_text(), "rank"))
            fail_msg("%s: class %d, %s", faults[i].what, rc, rc ? sh_error_text() : "");
        sh_program_destroy(f.p);
    }
}

static void right_programs_agree(void **state)
{
    static const int meshes[][3] = {{1, 1, 1}, {2, 1, 1}, {3, 3, 1}, {4, 2, 2},
                                    {8, 1, 4}, {9, 1, 1}, {1, 5, 1}, {6, 2, 3}};

    (void)state;
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (int s = 0; s < WAYS * TINY_STRATEGIES; s++) {
            struct faulty f = {.b = job()};
            struct sh_ranks r = {0};
            struct sh_ranks_found found;

            f.b.options.mesh = tiny_mesh(meshes[m][0], meshes[m][1], meshes[m][2], 0);
            train_by(s / TINY_STRATEGIES, &f.b);
            f.b.options.strategy.params_resident = tiny_strategies[s % TINY_STRATEGIES].params_resident;
            f.b.options.strategy.keep_after_forward = tiny_strategies[s % TINY_STRATEGIES].keep_after_forward;
            if (check(&f, &r, &found) != SH_OK)
                fail_msg("%d x %d, way %d: %s", meshes[m][1], meshes[m][0], s / TINY_STRATEGIES, sh_error_text());
            assert_true(found.most_bytes > 0 && found.node_bytes >= found.most_bytes &&
                        found.state_most >= found.state_least);
            sh_program_destroy(f.p);
        }
}

static void messages_swapped(struct sh_program *p)
{
    struct sh_op *a = collective(p, SH_OP_SEND, 0), *b = collective(p, SH_OP_SEND, 1);
    int micro = a->attr.link.micro;

    a->attr.link.micro = b->attr.link.micro;
    b->attr.link.micro = micro;
}

/* All ranks of a stage are alike, so that only its neighbour shows that its messages come in another order. */
static void stages_meet(void **state)
{
    static const struct sh_mesh_request two = {.shard = SHARD, .replicate = 1, .inner = 1, .pipeline = WORLD / SHARD};
    struct faulty f = {.b = job(), .everywhere = true};
    struct sh_ranks r = {
        .world = WORLD, .ranks_per_node = WORLD, .batch = 2, .sequences = SHARD * 2 * MICRO, .get = get, .from = &f};
    struct sh_ranks_found found;

    (void)state;
    f.b.options.strategy.keep_after_forward = true;
    assert_int_equal(sh_mesh_shape_make(&two, WORLD, 0, &f.b.options.mesh), SH_OK);
    if (sh_ranks_check(&r, &found) != SH_OK)
        fail_msg("%s", sh_error_text());
    f.program = messages_swapped;
    assert_int_equal(sh_ranks_check(&r, &found), SH_E_BUG);
    if (!strstr(sh_error_text(), "stage 0, forward of micro-step 1, send, ") ||
        !strstr(sh_error_text(), "meets stage 1"))
        fail_msg("%s", sh_error_text());
    sh_program_destroy(f.p);
}

/* As many elements are sent as received, or as many rows as there are. */
static void parts_agree(void **state)
{
    static void (*const changes[])(struct sh_program *) = {parts_for_all, counted_rows};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct faulty f = {.b = job(), .program = changes[i], .everywhere = true};
        struct sh_ranks r = {0};
        struct sh_ranks_found found;

        if (check(&f, &r, &found) != SH_OK)
            fail_msg("%s", sh_error_text());
        sh_program_destroy(f.p);
    }
}

/* As expert ranks will: those with the same place in the shard group hold different halves of each tensor. */
static void hold_halves(struct sh_program *p, int rank)
{
    for (int i = 0; i < p->n_params; i++) {
        struct sh_param *param = &p->params[i];
        struct sh_saved *saved = &p->saved[param->saved];

        param->n_bands = 1;
        param->band[0] = (struct sh_band){rank / SHARD * param->dim[0], param->dim[0]};
        saved->dim[0] = 2 * param->dim[0];
        saved->elems = 2 * param->elems;
    }
    for (int i = 0; i < p->n_units; i++)
        p->units[i].replicate = 0;
}

static void hold_one_half_twice(struct sh_program *p, int rank)
{
    hold_halves(p, rank == BAD ? BAD - SHARD : rank);
}

static sh_rc get_half(void *from, int rank, const struct sh_program **p, const struct sh_mesh_shape **mesh)
{
    struct faulty *f = from;

    SH_TRY(get(from, rank % SHARD, p, mesh)); /* no replicas share the squares */
    f->shape = tiny_mesh(SHARD, REPLICATE, 1, rank);
    f->hold(f->p, rank);
    return SH_OK;
}

static void bands_are_compared(void **state)
{
    struct faulty f = {.b = job(), .hold = hold_halves};
    struct sh_ranks r = {.world = WORLD,
                         .ranks_per_node = WORLD,
                         .batch = 2,
                         .sequences = WORLD * 2 * MICRO,
                         .get = get_half,
                         .from = &f};
    struct sh_ranks_found found;

    (void)state;
    f.b.options.mesh = tiny_mesh(SHARD, 1, 1, 0);
    if (sh_ranks_check(&r, &found) != SH_OK)
        fail_msg("%s", sh_error_text());
    f.hold = hold_one_half_twice;
    assert_int_equal(sh_ranks_check(&r, &found), SH_E_BUG);
    if (!strstr(sh_error_text(), "squared by two ranks"))
        fail_msg("%s", sh_error_text());
    sh_program_destroy(f.p);
}

static void memory_is_compared(void **state)
{
    struct faulty f = {.b = job()};
    struct sh_ranks r = {.ranks_per_node = SHARD};
    struct sh_ranks_found found;

    (void)state;
    assert_int_equal(check(&f, &r, &found), SH_OK);
    r.rank_bytes = found.most_bytes - 1;
    assert_int_equal(check(&f, &r, &found), SH_E_MEMORY);
    assert_non_null(strstr(sh_error_text(), "rank 0 needs"));
    r.rank_bytes = 0;
    r.node_bytes = found.most_bytes * SHARD - 1;
    assert_int_equal(check(&f, &r, &found), SH_E_MEMORY);
    assert_non_null(strstr(sh_error_text(), "node 0"));
    sh_program_destroy(f.p);
}

static void same_program(const struct sh_program *a, const struct sh_program *b)
{
    assert_int_equal(a->n_ops, b->n_ops);
    assert_int_equal(a->n_runs, b->n_runs);
    assert_int_equal(sh_pass_hash(a), sh_pass_hash(b));
    for (int i = 0; i < a->n_runs; i++) {
        assert_int_equal(a->runs[i].begin, b->runs[i].begin);
        assert_int_equal(a->runs[i].end, b->runs[i].end);
        assert_int_equal(a->runs[i].decay, b->runs[i].decay);
        assert_int_equal(a->runs[i].tensor, b->runs[i].tensor);
        assert_int_equal(a->runs[i].origin, b->runs[i].origin);
    }
    for (int i = 0; i < a->n_ops; i++) {
        assert_memory_equal(&a->ops[i].attr.accumulate, &b->ops[i].attr.accumulate, sizeof a->ops[i].attr.accumulate);
        if (a->ops[i].kind == SH_OP_ROUTE_WAVE)
            assert_memory_equal(&a->ops[i].attr.wave, &b->ops[i].attr.wave, sizeof a->ops[i].attr.wave);
        if (sh_op_info(a->ops[i].kind)->runs)
            assert_memory_equal(&a->ops[i].attr.runs, &b->ops[i].attr.runs, sizeof a->ops[i].attr.runs);
    }
    for (int i = 0; i < a->n_params; i++)
        assert_memory_equal(a->params[i].band, b->params[i].band,
                            sizeof *a->params[i].band * (size_t)a->params[i].n_bands);
    for (int t = 0; t < a->n_tensors; t++) {
        assert_int_equal(a->tensors[t].base_elems, b->tensors[t].base_elems);
        assert_memory_equal(a->tensors[t].dim, b->tensors[t].dim, sizeof a->tensors[t].dim);
    }
}

/* From any rank to any other that has the same place in the group `inner`, or if there is no such group. */
static void moved_programs_are_those_that_are_built(void **state)
{
    static const int meshes[][3] = {{4, 2, 1}, {9, 1, 1}, {1, 3, 1}, {5, 3, 1}, {4, 2, 2}};

    (void)state;
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (int s = 0; s < WAYS * TINY_STRATEGIES; s++) {
            struct sh_build b = job();
            struct sh_ranks_built *built;
            const struct sh_program *moved;
            const struct sh_mesh_shape *mesh;

            b.options.mesh = tiny_mesh(meshes[m][0], meshes[m][1], meshes[m][2], 0);
            train_by(s / TINY_STRATEGIES, &b);
            b.options.strategy.params_resident = tiny_strategies[s % TINY_STRATEGIES].params_resident;
            b.options.state_dtype = s % 2 ? SH_BF16 : SH_F32;
            assert_int_equal(sh_ranks_build(&b, &built), SH_OK);
            for (int k = 0; k < 2 * sh_mesh_ranks(&b.options.mesh); k++) {
                struct sh_program *p;
                int rank = k * 7 % sh_mesh_ranks(&b.options.mesh);

                assert_int_equal(sh_ranks_get(built, rank, &moved, &mesh), SH_OK);
                assert_int_equal(mesh->rank, rank);
                b.options.mesh.rank = rank;
                assert_int_equal(sh_pass_build(&b, &p), SH_OK);
                same_program(moved, p);
                sh_program_destroy(p);
            }
            sh_ranks_free(built);
        }
}

/* A program that was moved has the order of the rank that it was built for; the last rank, whose parts are the smallest or
 * empty, shows whether its own would be another. */
static void the_last_of_a_shard_group_has_its_own(void **state)
{
    const struct sh_program *of[WORLD];
    const struct sh_mesh_shape *mesh;
    struct sh_ranks_built *built;
    struct sh_build b = job();

    (void)state;
    assert_int_equal(sh_ranks_build(&b, &built), SH_OK);
    for (int rank = 0; rank < WORLD; rank++) {
        assert_int_equal(sh_ranks_get(built, rank, &of[rank], &mesh), SH_OK);
        assert_ptr_equal(of[rank], of[rank % SHARD == SHARD - 1 ? SHARD - 1 : 0]);
    }
    assert_ptr_not_equal(of[0], of[SHARD - 1]);
    sh_ranks_free(built);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_named),   cmocka_unit_test(right_programs_agree),
        cmocka_unit_test(stages_meet),        cmocka_unit_test(parts_agree),
        cmocka_unit_test(bands_are_compared), cmocka_unit_test(the_last_of_a_shard_group_has_its_own),
        cmocka_unit_test(memory_is_compared), cmocka_unit_test(moved_programs_are_those_that_are_built),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
