/* Sequences that continue from a cache of keys and values: the logits after each token are those of a forward over the
 * whole text, whatever pieces the text comes in, for any strategy on any mesh. */
#include "src/base/number/rng.h"
#include "src/config/words.h"
#include "tests/unit/simulate.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Each rank has ROWS texts of TEXT tokens, of which a PREFILL takes up to PIECE. The cache has room to spare. */
enum { ROWS = 3, TEXT = 7, PIECE = 3, CACHE = TEXT + 2, RANKS = 3, SEED = 11 };

static int32_t text[RANKS][ROWS][TEXT];
static float whole[RANKS][ROWS][TEXT][TINY_VOCAB]; /* logits without a cache */

static int make_text(void **state)
{
    uint32_t bits[4];

    (void)state;
    for (int i = 0; i < RANKS * ROWS * TEXT; i++) {
        sh_philox(SEED, 0, (uint64_t)i, bits);
        (&text[0][0][0])[i] = (int32_t)(bits[0] % TINY_VOCAB);
    }
    return 0;
}

static struct sh_build build_of(const struct tiny_model *m, enum sh_dtype act)
{
    struct sh_build b = tiny_build(m, ROWS);

    b.act = act;
    b.model.max_seq_len = CACHE;
    b.options.training = false;
    b.batch.docs = false;
    b.logits = true;
    return b;
}

/* The logits of a causal model at a position do not depend on the tokens after it. */
static void run_whole(struct sh_build b)
{
    struct sim *s;

    b.batch.seq = TEXT;
    s = sim_create(&b, 1, 1, 1, SEED);
    for (int rank = 0; rank < RANKS; rank++) {
        memcpy(sim_data(s, 0, s->ranks[0].p->port[SH_PORT_TOKENS]), text[rank], sizeof text[rank]);
        for (int t = 0; t < TEXT; t++) {
            s->scalars.position = t;
            sim_run(s, SH_SECTION_LOGITS);
            for (int row = 0; row < ROWS; row++)
                memcpy(whole[rank][row][t],
                       (float *)sim_data(s, 0, s->ranks[0].p->port[SH_PORT_LOGITS]) + row * TINY_VOCAB,
                       sizeof whole[rank][row][t]);
        }
    }
    sim_destroy(s);
}

/* How many tokens of each row are in the cache. */
static int fed[RANKS][ROWS];

/* Give a row its next n tokens; the places after them may have anything. */
static void feed(const struct sim *s, int rank, int row, int n, int room)
{
    const struct sh_program *p = s->ranks[rank].p;
    int32_t *tokens = (int32_t *)sim_data(s, rank, p->port[SH_PORT_TOKENS]) + row * room;
    int32_t *at = (int32_t *)sim_data(s, rank, p->port[SH_PORT_AT]) + row * room;

    for (int i = 0; i < room; i++) {
        tokens[i] = i < n ? text[rank][row][fed[rank][row] + i] : TINY_VOCAB - 1;
        at[i] = i < n ? fed[rank][row] + i : 0;
    }
    ((int32_t *)sim_data(s, rank, p->port[SH_PORT_COUNT]))[row] = n;
    fed[rank][row] += n;
}

static void compare(const struct sim *s, int rank, int row, double within)
{
    const float *logits = (float *)sim_data(s, rank, s->ranks[rank].p->port[SH_PORT_LOGITS]) + row * TINY_VOCAB;
    const float *expected = whole[rank][row][fed[rank][row] - 1];

    for (int v = 0; v < TINY_VOCAB; v++)
        if (!(fabs((double)logits[v] - (double)expected[v]) <= within))
            fail_msg("rank %d row %d token %d word %d: %g, without a cache %g", rank, row, fed[rank][row], v,
                     (double)logits[v], (double)expected[v]);
}

/* Run one section on all ranks: row r of a rank gets n[r] tokens. */
static void step(struct sim *s, enum sh_section_kind kind, const int n[ROWS], double within)
{
    for (int rank = 0; rank < s->world; rank++)
        for (int row = 0; row < ROWS; row++)
            feed(s, rank, row, n[row], kind == SH_SECTION_PREFILL ? PIECE : 1);
    sim_run(s, kind);
    for (int rank = 0; rank < s->world; rank++)
        for (int row = 0; row < ROWS; row++)
            if (n[row])
                compare(s, rank, row, within);
}

/* First pieces of different lengths, a second piece for one of them, steps in which some rows pause, and a row that
 * starts again. */
static void run_cached(struct sh_build b, int shard, int replicate, double within)
{
    static const struct {
        enum sh_section_kind kind;
        int n[ROWS];
    } steps[] = {
        {SH_SECTION_PREFILL, {3, 2, 1}}, {SH_SECTION_PREFILL, {2, 0, 0}}, {SH_SECTION_DECODE, {1, 1, 1}},
        {SH_SECTION_DECODE, {0, 1, 1}},  {SH_SECTION_DECODE, {1, 0, 1}},  {SH_SECTION_PREFILL, {0, 3, 1}},
        {SH_SECTION_DECODE, {0, 0, 1}},
    };
    struct sim *s;

    b.batch.seq = PIECE;
    b.batch.cache = CACHE;
    s = sim_create(&b, shard, replicate, 1, SEED);
    memset(fed, 0, sizeof fed);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        step(s, steps[i].kind, steps[i].n, within);
    for (int rank = 0; rank < s->world; rank++)
        fed[rank][0] = 0;
    step(s, SH_SECTION_PREFILL, (const int[ROWS]){2, 0, 0}, within);
    sim_destroy(s);
}

/* bf16 rounds activations after sums that differ from those of a whole text. */
static void check_model(const struct tiny_model *m, enum sh_dtype act)
{
    double within = act == SH_F32 ? 1e-5 : 0.1;
    struct sh_build b = build_of(m, act);

    run_whole(b);
    for (int strategy = 0; strategy < TINY_STRATEGIES; strategy++) {
        b.options.strategy.params_resident = tiny_strategies[strategy].params_resident;
        b.options.strategy.keep_after_forward = tiny_strategies[strategy].keep_after_forward;
        run_cached(b, 1, 1, within);
        run_cached(b, 2, 1, within);
        run_cached(b, 3, 1, within);
        run_cached(b, 1, 2, within);
    }
}

static void cached_is_uncached(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        check_model(&tiny_models[m], SH_F32);
}

static void in_bfloat16(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++)
        check_model(&tiny_models[m], SH_BF16);
}

/* The CPU kernels, with several threads. */
static void on_the_cpu(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct sh_build b = build_of(&tiny_models[m], SH_F32);

        b.kernels = &sh_kernels_cpu;
        b.threads = 2;
        run_whole(b);
        run_cached(b, 2, 1, 1e-5);
    }
}

#define SIZES                                                                                                         \
    .n_layers = 3, .dim = 12, .n_heads = 3, .head_dim = 4, .ffn_dim = 20, .vocab_size = TINY_VOCAB, .norm_eps = 1e-5, \
    .rope_theta = 100, .init_std = 0.3
#define GROUPED SIZES, .n_kv_heads = 1

#define DELTA                                                                                         \
    SIZES, .n_kv_heads = 1, .family = SH_FAMILY_QWEN3_5_TEXT, .rotary_dim = 2, .linear_key_heads = 1, \
           .linear_value_heads = 2, .linear_key_dim = 4, .linear_value_dim = 6

#define SCAN                                                                                                \
    SIZES, .n_kv_heads = 1, .family = SH_FAMILY_NEMOTRON_H, .linear_key_heads = 1, .linear_value_heads = 2, \
           .linear_key_dim = 4, .linear_value_dim = 6

#define GRANITE                                                                                                   \
    SIZES, .n_kv_heads = 1, .family = SH_FAMILY_GRANITEMOEHYBRID, .linear_key_heads = 1, .linear_value_heads = 2, \
           .linear_key_dim = 4, .linear_value_dim = 6, .linear_conv_size = 4

/* Families chosen by what could go wrong with positions of the cache: windows, blocks without positions, norms of keys,
 * keys by head, partly rotated heads; or with rows that go to experts. */
static const struct tiny_model families[] = {
    {"mistral", {GROUPED, .family = SH_FAMILY_MISTRAL, .attention_window = 3}, false},
    {"qwen2", {GROUPED, .family = SH_FAMILY_QWEN2, .attention_window = 3, .layer_types = "full,sliding"}, false},
    {"phi3", {GROUPED, .family = SH_FAMILY_PHI3, .rotary_dim = 2}, false},
    {"longrope",
     {GROUPED, .family = SH_FAMILY_PHI3, .rope_type = SH_ROPE_LONG, .rope_factor = 2, .rope_original_max_len = CACHE,
      .rope_short_factor = "1.5,3", .rope_long_factor = "1,1"},
     false},
    {"smollm3", {GROUPED, .family = SH_FAMILY_SMOLLM3, .layer_types = "full,full_nope"}, false},
    {"starcoder2", {GROUPED, .family = SH_FAMILY_STARCODER2}, false},
    {"qwen3", {GROUPED, .family = SH_FAMILY_QWEN3, .attention_window = 2, .layer_types = "sliding,full"}, false},
    {"olmo2", {GROUPED, .family = SH_FAMILY_OLMO2}, false},
    {"olmo3",
     {GROUPED, .family = SH_FAMILY_OLMO3, .attention_window = 3, .layer_types = "sliding,full",
      .rope_local_base_freq = 10},
     false},
    {"exaone4",
     {GROUPED, .family = SH_FAMILY_EXAONE4, .attention_window = 3, .layer_types = "sliding,full_nope"},
     false},
    {"gemma3_text",
     {GROUPED, .family = SH_FAMILY_GEMMA3, .attention_window = 3, .layer_types = "sliding,full",
      .rope_local_base_freq = 10, .query_pre_attn_scalar = 7},
     false},
    {"gemma", {GROUPED, .family = SH_FAMILY_GEMMA}, false},
    {"qwen2_moe",
     {GROUPED, .family = SH_FAMILY_QWEN2_MOE, .n_experts = 4, .n_experts_per_token = 2, .expert_ffn_dim = 6,
      .shared_ffn_dim = 5},
     false},
    {"granitemoe",
     {GROUPED, .family = SH_FAMILY_GRANITEMOE, .n_experts = 4, .n_experts_per_token = 2, .expert_ffn_dim = 6,
      .embedding_multiplier = 3, .residual_multiplier = 0.5, .logits_scaling = 2, .query_pre_attn_scalar = 9},
     false},
    {"cohere2",
     {GROUPED, .family = SH_FAMILY_COHERE2, .attention_window = 3, .layer_types = "sliding,full_nope",
      .logits_scaling = 2},
     false},
    {"gemma2",
     {GROUPED, .family = SH_FAMILY_GEMMA2, .attention_window = 3, .layer_types = "sliding,full",
      .query_pre_attn_scalar = 7, .attention_softcap = 0.5, .logits_softcap = 0.25},
     false},
    {"gemma4_text",
     {GROUPED, .family = SH_FAMILY_GEMMA4, .attention_window = 3, .layer_types = "sliding,full", .global_head_dim = 6,
      .global_kv_heads = 1, .keys_as_values = true, .rotary_dim = 2, .query_pre_attn_scalar = 1,
      .logits_softcap = 0.25},
     false},
    {"gemma4_text, keys and values of other blocks",
     {GROUPED, .family = SH_FAMILY_GEMMA4, .attention_window = 3, .layer_types = "sliding,full", .global_head_dim = 6,
      .rotary_dim = 2, .query_pre_attn_scalar = 1, .kv_shared_layers = 1, .per_layer_dim = 4},
     false},
    {"cohere", {GROUPED, .family = SH_FAMILY_COHERE, .logits_scaling = 2}, false},
    {"glm4", {GROUPED, .family = SH_FAMILY_GLM4, .rotary_dim = 2}, false},
    {"deepseek_v3",
     {SIZES, .n_kv_heads = 3, .family = SH_FAMILY_DEEPSEEK_V3, .rotary_dim = 2, .q_lora_rank = 5, .kv_lora_rank = 6,
      .v_head_dim = 3, .n_experts = 4, .n_experts_per_token = 2, .expert_ffn_dim = 6, .shared_ffn_dim = 5,
      .first_dense_layers = 1, .router = SH_ROUTER_SIGMOID, .router_bias = true},
     false},
    {"gpt_oss",
     {GROUPED, .family = SH_FAMILY_GPT_OSS, .n_experts = 4, .n_experts_per_token = 2, .expert_ffn_dim = 6,
      .route_norm = true, .attention_window = 3, .layer_types = "sliding,full"},
     false},
    {"gpt_neox", {SIZES, .family = SH_FAMILY_GPT_NEOX, .n_kv_heads = 3, .rotary_dim = 2}, false},
    {"qwen3_5_text", {DELTA, .layer_types = "2*linear,full", .linear_conv_size = 4}, false},
    {"nemotron_h",
     {SCAN, .layer_types = "linear,full_nope,mlp", .linear_conv_size = 4, .linear_least_step = 0.1},
     false},
    {"nemotron_h, experts",
     {SCAN, .layer_types = "linear,moe,full_nope", .linear_conv_size = 4, .linear_least_step = 0.1, .n_experts = 4,
      .n_experts_per_token = 2, .expert_ffn_dim = 5, .shared_ffn_dim = 6, .router = SH_ROUTER_SIGMOID},
     false},
    {"granitemoehybrid",
     {GRANITE, .layer_types = "2*linear,full_nope", .n_experts = 4, .n_experts_per_token = 2, .expert_ffn_dim = 6,
      .shared_ffn_dim = 5, .residual_multiplier = 0.5, .route_norm = true},
     false},
    {"granitemoehybrid, positions, no experts", {GRANITE, .layer_types = "linear,full"}, false},
    {"qwen3_5_text, a convolution of one row", {DELTA, .layer_types = "linear", .linear_conv_size = 1}, false},
};

static void each_family(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof families / sizeof *families; m++) {
        struct sh_build b = build_of(&families[m], SH_F32);

        run_whole(b);
        run_cached(b, 1, 1, 1e-5);
        run_cached(b, 3, 1, 1e-5);
        b.kernels = &sh_kernels_cpu;
        b.threads = 2;
        run_cached(b, 2, 1, 1e-5);
    }
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* The row of the plan: two bytes or four for each key and value of each position, block and sequence. */
static void memory_is_planned(void **state)
{
    int64_t bytes[SH_MEM_KINDS];

    (void)state;
    for (int act = SH_F32; act <= SH_BF16; act++) {
        struct sh_build b = build_of(&tiny_models[1], (enum sh_dtype)act);
        struct sh_program *p;
        int64_t each = ROWS * CACHE * 2 * b.model.n_kv_heads * b.model.head_dim * sh_dtype_bytes((enum sh_dtype)act);

        b.batch.cache = CACHE;
        p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        sh_pass_memory(p, bytes);
        assert_int_equal(bytes[SH_MEM_KV], b.model.n_layers * aligned(each));
        assert_null(sh_program_section(p, SH_SECTION_LOGITS));
        sh_program_destroy(p);
    }
}

/* A state of f32 for each head of values and the rows before the convolution, whatever the positions; and keys and
 * values of the one block with attention. */
static void states_are_planned(void **state)
{
    static const struct tiny_model m = {"", {DELTA, .layer_types = "2*linear,full", .linear_conv_size = 4}, false};
    int64_t bytes[SH_MEM_KINDS];

    (void)state;
    for (int act = SH_F32; act <= SH_BF16; act++) {
        struct sh_build b = build_of(&m, (enum sh_dtype)act);
        int64_t size = sh_dtype_bytes((enum sh_dtype)act), kv = ROWS * CACHE * 2 * 4 * size, S = ROWS * 2 * 4 * 6 * 4;
        int64_t tail = ROWS * 3 * (2 * 4 + 2 * 6) * size;
        struct sh_program *p;

        b.batch.cache = CACHE;
        p = tiny_program(&b, tiny_mesh(1, 1, 1, 0));
        sh_pass_memory(p, bytes);
        assert_int_equal(bytes[SH_MEM_KV], aligned(kv) + 2 * aligned(S) + 2 * aligned(tail));
        sh_program_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_is_uncached), cmocka_unit_test(in_bfloat16),       cmocka_unit_test(on_the_cpu),
        cmocka_unit_test(each_family),        cmocka_unit_test(memory_is_planned), cmocka_unit_test(states_are_planned),
    };
    return cmocka_run_group_tests_name("cache", tests, make_text, NULL);
}
