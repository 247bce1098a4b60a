/* The gradient of each parameter is the slope of the loss: along its direction the loss rises by its length. This shows
 * that the passes make the right backward for the forward, whatever is recomputed. One rank, reference kernels. */
#include "src/base/number/rng.h"
#include "src/config/family.h"
#include "src/model/objective.h"
#include "src/program/saved.h"
#include "tests/unit/simulate.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 3, TOKENS = BATCH * TINY_SEQ, SEED = 3 };
#define STEP 2e-3

static void feed(const struct sim *s)
{
    const struct sh_program *p = s->ranks[0].p;
    int32_t *tokens = sim_data(s, 0, p->port[SH_PORT_TOKENS]), *targets = sim_data(s, 0, p->port[SH_PORT_TARGETS]);

    for (int i = 0; i < TOKENS; i++) {
        uint32_t bits[4];

        sh_philox(SEED, 0, (uint64_t)i, bits);
        tokens[i] = (int32_t)(bits[0] % TINY_VOCAB);
        targets[i] = i == 5 ? -1 : (int32_t)(bits[1] % TINY_VOCAB);
        if (p->port[SH_PORT_DOCS] != SH_NONE)
            ((int32_t *)sim_data(s, 0, p->port[SH_PORT_DOCS]))[i] = i % TINY_SEQ < 2 ? 0 : 2;
    }
}

static double loss_of(struct sim *s)
{
    sim_run(s, SH_SECTION_ONLY);
    return *(double *)sim_data(s, 0, s->ranks[0].p->port[SH_PORT_LOSS]);
}

/* Central difference of the loss along the gradient, per unit of length. */
static double slope_along(struct sim *s, float *param, const float *grad, int64_t n, double length)
{
    float *was = malloc((size_t)n * sizeof *was);
    double loss[2];

    memcpy(was, param, (size_t)n * sizeof *was);
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < n; i++)
            param[i] = (float)(was[i] + (side ? STEP : -STEP) * grad[i] / length);
        loss[side] = loss_of(s);
    }
    memcpy(param, was, (size_t)n * sizeof *was);
    free(was);
    return (loss[1] - loss[0]) / (2 * STEP);
}

/* `times`: how often the gradient the slope is. */
static void check_param(struct sim *s, const struct sh_param *param, double times)
{
    const struct sh_unit *u = &s->ranks[0].p->units[param->unit];
    float *values = (float *)sim_data(s, 0, u->compute) + param->unit_elems;
    float *grad = malloc((size_t)param->elems * sizeof *grad);
    double length = 0, slope;

    loss_of(s);
    memcpy(grad, (float *)sim_data(s, 0, u->grad_shard) + param->unit_elems, (size_t)param->elems * sizeof *grad);
    for (int64_t i = 0; i < param->elems; i++)
        length += (double)grad[i] * grad[i];
    length = sqrt(length);
    if (!(length > 0.01)) /* a shorter one proves nothing */
        fail_msg("%s: its gradient has length %g", sh_saved_of(s->ranks[0].p, param)->name, length);
    slope = slope_along(s, values, grad, param->elems, length);
    slope /= times;
    if (fabs(slope - length) > 0.02 * length + 0.01)
        fail_msg("%s: the loss rises by %g along a gradient of length %g", sh_saved_of(s->ranks[0].p, param)->name,
                 slope, length);
    free(grad);
}

/* Move adapters away from their initial values: with B = 0 the gradient of A is zero. */
static void fill_adapters(struct sim *s)
{
    const struct sh_program *p = s->ranks[0].p;

    for (int i = 0; i < p->n_params; i++) {
        const struct sh_param *param = &p->params[i];
        float *values = (float *)sim_data(s, 0, p->units[param->unit].compute) + param->unit_elems;

        if (strstr(sh_saved_of(p, param)->name, ".lora_"))
            sh_rng_fill_normal(sh_rng_key(SEED, sh_saved_of(p, param)->name), 0, param->elems, 0.5f, values);
    }
}

static void check_build(const struct sh_build *b, double times)
{
    struct sim *s = sim_create(b, 1, 1, 1, SEED);
    int n = 0;

    s->scalars = (struct sh_op_scalars){.loss_scale = 1, .router_scale = 1};
    feed(s);
    fill_adapters(s);
    for (int i = 0; i < s->ranks[0].p->n_params; i++)
        if (s->ranks[0].p->params[i].trainable) {
            check_param(s, &s->ranks[0].p->params[i], times);
            n++;
        }
    assert_true(n > 0);
    sim_destroy(s);
}

static void check_model(void **state)
{
    const struct tiny_model *m = *state;

    for (int r = 0; r < TINY_RECOMPUTES; r++) {
        struct sh_build b = tiny_build(m, BATCH);

        b.recompute = tiny_recomputes[r];
        check_build(&b, 1);
    }
}

/* Adapters of all products, of queries and values only, and of the last product of a block, in both storage orders. */
static void adapters(void **state)
{
    static const unsigned targets[] = {(1u << SH_PARAM_LINEARS) - 1, 1u << SH_PARAM_Q | 1u << SH_PARAM_V,
                                       1u << SH_PARAM_DOWN | 1u << SH_PARAM_GATE | 1u << SH_PARAM_Q};

    (void)state;
    for (int i = 0; i < TINY_MODELS * TINY_RECOMPUTES; i++) {
        struct sh_build b = tiny_build(&tiny_models[i % TINY_MODELS], BATCH);

        b.recompute = tiny_recomputes[i / TINY_MODELS];
        b.batch.adapters = (struct sh_adapters){.rank = 1 + i % 3, .scale = 1.5f, .targets = targets[i % 3]};
        check_build(&b, 1);
    }
}

/* An objective whose rows count by their own log-probability. That is a constant to the backward, so the loss, minus a
 * sum of squares, rises twice as fast as the gradient says. */
static void emit_squares(struct sh_emit *e, int x, int head, int64_t chunk_rows, const struct sh_model_batch *b)
{
    const int64_t rows = (int64_t)e->batch * e->seq;
    struct sh_tensor weight = sh_tensor_make(SH_MEM_ACT, SH_F32, 1, &rows, "weight");
    struct sh_tensor word = sh_tensor_make(SH_MEM_ACT, SH_I32, 1, &rows, "word");
    struct sh_op op = sh_program_op(SH_OP_HEAD_SCORE);

    (void)b;
    op.phase = SH_PHASE_FORWARD;
    op.attr.head.chunk_rows = chunk_rows;
    op.in[0] = x;
    op.in[1] = head;
    op.in[2] = sh_emit_view(e, e->p->port[SH_PORT_TARGETS], 1, &rows);
    op.out[0] = sh_program_add_tensor(e->p, &weight);
    op.out[1] = sh_program_add_tensor(e->p, &word);
    sh_program_add_op(e->p, &op);
    sh_emit_head_loss(e, x, head, op.out[0], chunk_rows, NULL);
}

static void objective(void **state)
{
    static const struct sh_objective squares = {.name = "squares", .emit = emit_squares};

    (void)state;
    for (int i = 0; i < TINY_MODELS * TINY_RECOMPUTES; i++) {
        struct sh_build b = tiny_build(&tiny_models[i % TINY_MODELS], BATCH);

        b.recompute = tiny_recomputes[i / TINY_MODELS];
        b.batch.objective = &squares;
        check_build(&b, 2);
    }
}

/* A weight that depends on the model by another way than through .stops has a gradient that nobody would pass on. */
static void emit_dependent(struct sh_emit *e, int x, int head, int64_t chunk_rows, const struct sh_model_batch *b)
{
    const int64_t rows = (int64_t)e->batch * e->seq;

    (void)b;
    sh_emit_head_loss(e, x, head, sh_emit_view(e, x, 1, &rows), chunk_rows, NULL);
}

static void dependent_weight(void **state)
{
    static const struct sh_objective dependent = {.name = "dependent", .emit = emit_dependent};
    struct sh_build b = tiny_build(&tiny_models[0], BATCH);
    struct sh_program *p;

    (void)state;
    b.batch.objective = &dependent;
    assert_int_equal(sh_pass_micro_step(&b, true, &p), SH_E_BUG);
    assert_non_null(strstr(sh_error_text(), "no gradient passes to its weight"));
    sh_program_destroy(p);
}

/* The first block sees two keys, the second all, the third two again. */
static const struct tiny_model with_window = {"llama, windows and documents",
                                              {.family = SH_FAMILY_LLAMA,
                                               .n_layers = 3,
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
                                               .attention_window = 2,
                                               .layer_types = "sliding,full"},
                                              true};

/* Blocks with the gated delta rule, and one with attention and its gate. */
static void give_delta(struct sh_model *m)
{
    m->family = SH_FAMILY_QWEN3_5_TEXT;
    strcpy(m->layer_types, "linear,full");
    m->linear_key_heads = 1;
    m->linear_value_heads = 2;
    m->linear_key_dim = 4;
    m->linear_value_dim = 3;
    m->linear_conv_size = 3;
}

static void delta_of_documents(void **state)
{
    struct tiny_model m = with_window;
    void *each = &m;

    (void)state;
    m.model.attention_window = 0;
    m.model.init_std = 1;
    m.model.norm_eps = 0.1f; /* the norm of a head with small queries is steep */
    give_delta(&m.model);
    check_model(&each);
}

/* Blocks of Mamba-2, with steps on both sides of the least one, and one with a feed-forward part alone. */
static void scan_of_documents(void **state)
{
    struct tiny_model m = with_window;
    void *each = &m;

    (void)state;
    m.model.attention_window = 0;
    m.model.init_std = 1;
    m.model.norm_eps = 0.1f;
    give_delta(&m.model);
    m.model.family = SH_FAMILY_NEMOTRON_H;
    strcpy(m.model.layer_types, "linear,mlp");
    m.model.linear_least_step = 0.05;
    check_model(&each);
}

/* Experts without a gate, and a shared one, in blocks of their own; a token has all, so that no choice is near. */
static void experts_without_gates(void **state)
{
    struct tiny_model m = with_window;
    void *each = &m;

    (void)state;
    m.model.attention_window = 0;
    m.model.init_std = 1;
    m.model.norm_eps = 0.1f;
    give_delta(&m.model);
    m.model.family = SH_FAMILY_NEMOTRON_H;
    strcpy(m.model.layer_types, "moe,linear");
    m.model.linear_least_step = 0.05;
    m.model.n_experts = 4;
    m.model.n_experts_per_token = 4;
    m.model.expert_ffn_dim = 5;
    m.model.shared_ffn_dim = 6;
    m.model.router = SH_ROUTER_SIGMOID;
    m.model.route_norm = true;
    m.model.route_scale = 1.5;
    check_model(&each);
}

/* Adapters in every family: products with biases, stacked products that are one parameter, experts and the one that
 * all tokens have. */
static void adapters_of_families(void **state)
{
    static const int families[] = {
#define FAMILY(id, word, ...) SH_FAMILY_##id,
#include "src/config/family.inc"
#undef FAMILY
    };

    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct sh_build b = tiny_build(&tiny_models[2], BATCH);

        b.model.family = families[i];
        if (sh_family_of(b.model.family)->delta)
            give_delta(&b.model);
        if (sh_family_of(b.model.family)->one_width || sh_family_of(b.model.family)->kv_a)
            b.model.n_kv_heads = b.model.n_heads;
        if (sh_family_of(b.model.family)->kv_a) {
            b.model.q_lora_rank = 7;
            b.model.kv_lora_rank = 6;
            b.model.rotary_dim = 2;
            b.model.v_head_dim = 3;
        }
        b.model.n_experts = b.model.n_experts_per_token = 2;
        b.model.expert_ffn_dim = 6;
        b.model.shared_ffn_dim = sh_family_of(b.model.family)->shared_up ? 10 : 0;
        b.batch.adapters = (struct sh_adapters){.rank = 2, .scale = 0.75f, .targets = ~0u};
        check_build(&b, 1);
        b.batch.adapters.targets = 1u << SH_PARAM_KV_B | 1u << SH_PARAM_O; /* frozen queries, and a frozen turned key */
        check_build(&b, 1);
    }
}

/* Adapters of some products of blocks with experts: what is below the first of them has no backward. */
static void adapters_of_experts(void **state)
{
    static const unsigned targets[] = {1u << SH_PARAM_EXPERT_UP, 1u << SH_PARAM_EXPERT_DOWN, 1u << SH_PARAM_SHARED_DOWN,
                                       1u << SH_PARAM_SHARED_UP, 1u << SH_PARAM_Q};

    (void)state;
    for (size_t i = 0; i < TINY_RECOMPUTES * sizeof targets / sizeof *targets; i++) {
        struct sh_build b = tiny_build(&tiny_models[2], BATCH);

        b.model.family = SH_FAMILY_QWEN2_MOE;
        b.model.n_experts = 3;
        b.model.n_experts_per_token = 2;
        b.model.expert_ffn_dim = 6;
        b.model.shared_ffn_dim = 10;
        b.recompute = tiny_recomputes[i % TINY_RECOMPUTES];
        b.batch.adapters = (struct sh_adapters){.rank = 2, .scale = 0.75f, .targets = targets[i / TINY_RECOMPUTES]};
        check_build(&b, 1);
    }
}

/* Two branches of model.ffn, one of them of a value that both read. */
static void statements(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * TINY_RECOMPUTES; i++) {
        struct sh_build b = tiny_build(&tiny_models[i < TINY_RECOMPUTES ? 2 : 4], BATCH);

        strcpy(b.model.ffn,
               "n = norm(x, inner); g = linear(n, gate_up, 2F); h = geglu(g); y = linear(h, down, C); "
               "u = linear(n, thin, 5); a = gelu(u); z = linear(a, back, C); s = add(y, z); r = add(x, s)");
        b.recompute = tiny_recomputes[i % TINY_RECOMPUTES];
        check_build(&b, 1);
    }
}

int main(void)
{
    struct CMUnitTest tests[TINY_MODELS + 10];

    tests[TINY_MODELS] = (struct CMUnitTest){
        .name = with_window.name, .test_func = check_model, .initial_state = (void *)(uintptr_t)&with_window};
    for (int i = 0; i < TINY_MODELS; i++)
        tests[i] = (struct CMUnitTest){
            .name = tiny_models[i].name, .test_func = check_model, .initial_state = (void *)(uintptr_t)&tiny_models[i]};
    tests[TINY_MODELS + 1] = (struct CMUnitTest)cmocka_unit_test(adapters);
    tests[TINY_MODELS + 2] = (struct CMUnitTest)cmocka_unit_test(adapters_of_families);
    tests[TINY_MODELS + 3] = (struct CMUnitTest)cmocka_unit_test(objective);
    tests[TINY_MODELS + 4] = (struct CMUnitTest)cmocka_unit_test(dependent_weight);
    tests[TINY_MODELS + 5] = (struct CMUnitTest)cmocka_unit_test(adapters_of_experts);
    tests[TINY_MODELS + 6] = (struct CMUnitTest)cmocka_unit_test(statements);
    tests[TINY_MODELS + 7] = (struct CMUnitTest)cmocka_unit_test(delta_of_documents);
    tests[TINY_MODELS + 8] = (struct CMUnitTest)cmocka_unit_test(scan_of_documents);
    tests[TINY_MODELS + 9] = (struct CMUnitTest)cmocka_unit_test(experts_without_gates);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
