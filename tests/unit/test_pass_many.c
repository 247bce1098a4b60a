/* Training by many simulated ranks: the programs of all ranks and every collective that they share give bit for bit the
 * result of one rank whose micro-steps are the ranks' sequences (training.reproducible: mesh). 256 ranks, in
 * `make check-long` 1,024; under the sanitizers 16. */
#include "src/base/number/rng.h"
#include "tests/unit/simulate.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 1024, STEPS = 2, SEED = 5 };

#if defined __SANITIZE_ADDRESS__
enum { RANKS = 16 };
#else
enum { RANKS = 256 };
#endif

static const struct mesh {
    int model, shard, replicate, inner; /* one size is 0: it is what the other one leaves */
    enum sh_dtype act;
    int strategy, recompute;
} meshes[] = {
    {1, 8, 0, 1, SH_F32, 0, TINY_NONE},       {4, 0, 4, 2, SH_BF16, 0, TINY_FULL}, /* reshard_after_forward: 2 */
    {2, 2, 0, 1, SH_BF16, 1, TINY_SELECTIVE}, {5, 1, 0, 1, SH_F32, 2, TINY_NONE},  {3, 0, 1, 1, SH_F32, 0, TINY_NONE},
};
enum { MESHES = sizeof meshes / sizeof *meshes };

struct outcome {
    double loss[STEPS], norm[STEPS];
    int64_t elems;
    float *params;
};

static int ranks(void)
{
    return getenv("SHERD_LONG") && RANKS > 16 ? MOST : RANKS;
}

/* Feed sequence i of a step. Some targets count, the first always. */
static void feed(const struct sim *s, int rank, int step, int i)
{
    const struct sh_program *p = s->ranks[rank].p;
    int32_t *tokens = sim_data(s, rank, p->port[SH_PORT_TOKENS]),
            *targets = sim_data(s, rank, p->port[SH_PORT_TARGETS]);
    uint32_t bits[4];

    for (int t = 0; t < TINY_SEQ; t++) {
        sh_philox(SEED, (uint64_t)step, (uint64_t)i * TINY_SEQ + (uint64_t)t, bits);
        tokens[t] = (int32_t)(bits[0] % TINY_VOCAB);
        targets[t] = t == 0 || bits[1] % 4 ? (int32_t)(bits[2] % TINY_VOCAB) : -1;
        if (p->port[SH_PORT_DOCS] != SH_NONE)
            ((int32_t *)sim_data(s, rank, p->port[SH_PORT_DOCS]))[t] = t;
    }
}

static double tree_sum(const double *x, int n)
{
    return n == 1 ? *x : tree_sum(x, n / 2) + tree_sum(x + n / 2, n / 2);
}

/* Rank r has sequences [r n, (r + 1) n), one per micro-step; the host adds up the losses. */
static void micro_steps(struct sim *s, int n, int step)
{
    double *loss = malloc((size_t)s->world * (size_t)n * sizeof *loss);

    for (int m = 0; m < n; m++) {
        for (int rank = 0; rank < s->world; rank++)
            feed(s, rank, step, rank * n + m);
        sim_run_section(s, sh_program_micro_step(s->ranks[0].p, m));
        for (int rank = 0; rank < s->world; rank++)
            loss[rank * n + m] = *(double *)sim_data(s, rank, s->ranks[rank].p->port[SH_PORT_LOSS]);
    }
    for (int rank = 0; rank < s->world; rank++)
        *(double *)sim_data(s, rank, s->ranks[rank].p->port[SH_PORT_LOSS]) = tree_sum(loss + (ptrdiff_t)rank * n, n);
    free(loss);
}

static double agreed(const struct sim *s, int tensor)
{
    double first = *(double *)sim_data(s, 0, tensor);

    for (int rank = 1; rank < s->world; rank++)
        assert_memory_equal(sim_data(s, rank, tensor), &first, sizeof first);
    return first;
}

static void train(struct sim *s, int n, int step, struct outcome *o)
{
    s->scalars = sim_scalars(step, 1.0 / (ranks() * TINY_SEQ));
    micro_steps(s, n, step);
    sim_run(s, SH_SECTION_LOSS);
    sim_run(s, SH_SECTION_NORM);
    o->loss[step] = agreed(s, s->ranks[0].p->port[SH_PORT_LOSS]);
    o->norm[step] = agreed(s, s->ranks[0].p->port[SH_PORT_SUMSQ]);
    assert_true(isfinite(o->loss[step]) && o->loss[step] > 0 && isfinite(o->norm[step]) && o->norm[step] > 0);
    sim_run(s, SH_SECTION_UPDATE);
}

static struct outcome run(const struct mesh *m, int shard, int replicate, int inner)
{
    struct sh_build b = tiny_build(&tiny_models[m->model], 1);
    struct outcome o = {0};
    struct sim *s;

    b.act = m->act;
    b.recompute = tiny_recomputes[m->recompute];
    b.options.reproducible = true;
    b.options.micro_steps = ranks() / (shard * replicate);
    b.options.strategy.sync_last_only = true;
    b.options.strategy.params_resident = tiny_strategies[m->strategy].params_resident;
    b.options.strategy.keep_after_forward = tiny_strategies[m->strategy].keep_after_forward;
    s = sim_create(&b, shard, replicate, inner, SEED);
    for (int step = 0; step < STEPS; step++)
        train(s, b.options.micro_steps, step, &o);
    o.elems = sim_param_elems(s);
    o.params = malloc((size_t)o.elems * sizeof *o.params);
    sim_params(s, o.params);
    sim_destroy(s);
    return o;
}

static void many_are_as_one(void **state)
{
    const struct mesh *m = *state;
    int shard = m->shard ? m->shard : ranks() / m->replicate;
    struct outcome one = run(m, 1, 1, 1), many = run(m, shard, ranks() / shard, m->inner);

    assert_memory_equal(many.loss, one.loss, sizeof one.loss);
    assert_memory_equal(many.norm, one.norm, sizeof one.norm);
    assert_int_equal(many.elems, one.elems);
    assert_memory_equal(many.params, one.params, (size_t)one.elems * sizeof *one.params);
    free(one.params);
    free(many.params);
}

int main(void)
{
    struct CMUnitTest tests[MESHES];

    for (int i = 0; i < MESHES; i++)
        tests[i] = (struct CMUnitTest){
            .name = "many_are_as_one", .test_func = many_are_as_one, .initial_state = (void *)(uintptr_t)&meshes[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
