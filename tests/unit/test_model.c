/* The models are Hugging Face's: names, shapes and counts of parameters, and the cost of a token. */
#include "src/config/family.h"
#include "src/config/keys.h"
#include "src/config/words.h"
#include "src/model/model.h"
#include "src/program/saved.h"
#include "tests/unit/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* clang-format off */
static const struct sh_model gpt2_124m = {.family = SH_FAMILY_GPT2, .n_layers = 12, .dim = 768, .n_heads = 12,
                                          .n_kv_heads = 12, .head_dim = 64, .ffn_dim = 3072, .vocab_size = 50257,
                                          .max_seq_len = 1024, .tie_word_embeddings = true, .init_std = 0.02f};
static const struct sh_model gpt2_1558m = {.family = SH_FAMILY_GPT2, .n_layers = 48, .dim = 1600, .n_heads = 25,
                                           .n_kv_heads = 25, .head_dim = 64, .ffn_dim = 6400, .vocab_size = 50257,
                                           .max_seq_len = 1024, .tie_word_embeddings = true, .init_std = 0.02f};
static const struct sh_model llama_1b = {.family = SH_FAMILY_LLAMA, .n_layers = 16, .dim = 2048, .n_heads = 32,
                                         .n_kv_heads = 8, .head_dim = 64, .ffn_dim = 8192, .vocab_size = 128256,
                                         .max_seq_len = 8192, .tie_word_embeddings = true, .init_std = 0.02f};
static const struct sh_model llama_8b = {.family = SH_FAMILY_LLAMA, .n_layers = 32, .dim = 4096, .n_heads = 32,
                                         .n_kv_heads = 8, .head_dim = 128, .ffn_dim = 14336, .vocab_size = 128256,
                                         .max_seq_len = 8192, .init_std = 0.02f};
static const struct sh_model llama_70b = {.family = SH_FAMILY_LLAMA, .n_layers = 80, .dim = 8192, .n_heads = 64,
                                          .n_kv_heads = 8, .head_dim = 128, .ffn_dim = 28672, .vocab_size = 128256,
                                          .max_seq_len = 8192, .init_std = 0.02f};
static const struct sh_model mixtral = {.family = SH_FAMILY_MIXTRAL, .n_layers = 32, .dim = 4096, .n_heads = 32,
                                        .n_kv_heads = 8, .head_dim = 128, .n_experts = 8, .n_experts_per_token = 2,
                                        .expert_ffn_dim = 14336, .vocab_size = 32000, .max_seq_len = 8};
static const struct sh_model qwen2_moe = {.family = SH_FAMILY_QWEN2_MOE, .n_layers = 28, .dim = 3584, .n_heads = 28,
                                          .n_kv_heads = 4, .head_dim = 128, .n_experts = 64, .n_experts_per_token = 8,
                                          .expert_ffn_dim = 2560, .shared_ffn_dim = 20480, .vocab_size = 151936,
                                          .max_seq_len = 8};
static const struct sh_model qwen3_moe = {.family = SH_FAMILY_QWEN3_MOE, .n_layers = 48, .dim = 2048, .n_heads = 32,
                                          .n_kv_heads = 4, .head_dim = 128, .n_experts = 128, .n_experts_per_token = 8,
                                          .expert_ffn_dim = 768, .vocab_size = 151936, .max_seq_len = 8};
static const struct sh_model olmoe = {.family = SH_FAMILY_OLMOE, .n_layers = 16, .dim = 2048, .n_heads = 16,
                                      .n_kv_heads = 16, .head_dim = 128, .n_experts = 64, .n_experts_per_token = 8,
                                      .expert_ffn_dim = 1024, .vocab_size = 50304, .max_seq_len = 8};
static const struct sh_model gpt_oss = {.family = SH_FAMILY_GPT_OSS, .n_layers = 24, .dim = 2880, .n_heads = 64,
                                        .n_kv_heads = 8, .head_dim = 64, .n_experts = 32, .n_experts_per_token = 4,
                                        .expert_ffn_dim = 2880, .vocab_size = 201088, .max_seq_len = 8};
static const struct sh_model deepseek = {
    .family = SH_FAMILY_DEEPSEEK_V3, .n_layers = 61, .dim = 7168, .n_heads = 128, .n_kv_heads = 128, .head_dim = 192,
    .rotary_dim = 64, .q_lora_rank = 1536, .kv_lora_rank = 512, .v_head_dim = 128, .ffn_dim = 18432, .n_experts = 256,
    .n_experts_per_token = 8, .expert_ffn_dim = 2048, .shared_ffn_dim = 2048, .first_dense_layers = 3,
    .vocab_size = 129280, .max_seq_len = 8};
static const struct sh_model nano = {
    .family = SH_FAMILY_NEMOTRON_H, .n_layers = 52, .dim = 2688, .n_heads = 32, .n_kv_heads = 2, .head_dim = 128,
    .layer_types = "linear,moe,linear,moe,linear,full_nope,moe,linear,moe,linear,moe,linear,full_nope,moe,linear,"
                   "moe,linear,moe,linear,full_nope,moe,linear,moe,linear,moe,linear,full_nope,moe,linear,moe,"
                   "linear,moe,linear,full_nope,moe,linear,moe,linear,moe,linear,moe,linear,full_nope,moe,linear,"
                   "moe,linear,moe,linear,moe,linear,moe",
    .linear_key_heads = 8, .linear_value_heads = 64, .linear_key_dim = 128, .linear_value_dim = 64, .linear_conv_size = 4,
    .n_experts = 128, .n_experts_per_token = 6, .expert_ffn_dim = 1856, .shared_ffn_dim = 3712, .vocab_size = 131072,
    .max_seq_len = 8};
/* clang-format on */

/* The published counts. */
static void parameter_counts(void **state)
{
    static const struct {
        const struct sh_model *model;
        int64_t params;
    } table[] = {
        {&gpt2_124m, 124439808},          {&gpt2_1558m, 1557611200},          {&llama_1b, 1235814400},
        {&llama_8b, INT64_C(8030261248)}, {&llama_70b, INT64_C(70553706496)}, {&gpt_oss, INT64_C(20914757184)}};

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_int_equal(sh_model_params(table[i].model), table[i].params);
}

/* OpenAI's 3.6 billion leave out the embedding, of which a token has one row. */
static void gpt_oss_is_counted(void **state)
{
    double embedding = (double)gpt_oss.vocab_size * gpt_oss.dim, active = (double)sh_model_active(&gpt_oss) - embedding;

    (void)state;
    assert_true(fabs(active / 1e9 - 3.6) < 0.05);
    assert_true(fabs(sh_model_flops(&gpt_oss, 8).matmul / 6 / active - 1) < 1e-3);
}

/* In billions, as the cards of the models say: all parameters, and the active ones. */
static void experts_count_as_a_token_meets_them(void **state)
{
    static const struct {
        const struct sh_model *model;
        double all, active, digit; /* the last that is published */
    } table[] = {{&mixtral, 46.7, 12.9, 0.1}, {&qwen2_moe, 57.4, 14, 1}, {&qwen3_moe, 30.5, 3.3, 0.1},
                 {&olmoe, 6.9, 1.3, 0.1},     {&deepseek, 671, 37, 1},   {&nano, 31.6, 3.6, 0.1}};

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct sh_model *m = table[i].model;
        double embedding = (double)m->vocab_size * m->dim, active = (double)sh_model_active(m);

        assert_true(fabs((double)sh_model_params(m) / 1e9 - table[i].all) < 0.1);
        assert_true(fabs(active / 1e9 - table[i].active) < table[i].digit);
        assert_true(fabs(sh_model_flops(m, 8).matmul / 6 / (active - embedding) - 1) < 1e-3);
    }
}

/* Scores of 192 elements and values of 128, whatever widths the kernels compute. */
static void latent_attention_is_counted(void **state)
{
    (void)state;
    assert_true(fabs(sh_model_flops(&deepseek, 8).attention_causal / (3.0 * 61 * 128 * (192 + 128) * 8) - 1) < 1e-12);
}

static struct sh_program *forward(const struct sh_model *m, enum sh_model_output out, bool docs)
{
    struct sh_program *p = sh_program_create(SH_F32);

    sh_model_emit(m, &(struct sh_model_batch){.batch = 2, .seq = 8, .docs = docs, .out = out}, p);
    return p;
}

static const struct sh_param *param(const struct sh_program *p, const char *name)
{
    for (int i = 0; i < p->n_params; i++)
        if (!strcmp(sh_saved_of(p, &p->params[i])->name, name))
            return &p->params[i];
    return NULL;
}

static const struct sh_saved *saved(const struct sh_program *p, const char *name)
{
    return sh_saved_of(p, param(p, name));
}

static void names_and_shapes(void **state)
{
    static const struct {
        const struct sh_model *model;
        const char *name, *unit;
        int ndim;
        int64_t dim[2];
        enum sh_init init;
        enum sh_param_role role;
    } table[] = {
        {&gpt2_124m, "transformer.wte.weight", "embed", 2, {50257, 768}, SH_INIT_NORMAL, SH_PARAM_EMBED},
        {&gpt2_124m, "transformer.wpe.weight", "embed", 2, {1024, 768}, SH_INIT_NORMAL, SH_PARAM_POSITIONS},
        {&gpt2_124m, "transformer.h.11.ln_1.weight", "layers.11", 1, {768}, SH_INIT_ONE, SH_PARAM_NORM},
        {&gpt2_124m, "transformer.h.11.ln_2.bias", "layers.11", 1, {768}, SH_INIT_ZERO, SH_PARAM_BIAS},
        {&gpt2_124m, "transformer.h.0.attn.c_attn.weight", "layers.0", 2, {768, 2304}, SH_INIT_NORMAL, SH_PARAM_Q},
        {&gpt2_124m, "transformer.h.0.attn.c_attn.bias", "layers.0", 1, {2304}, SH_INIT_ZERO, SH_PARAM_BIAS},
        {&gpt2_124m, "transformer.h.0.attn.c_proj.weight", "layers.0", 2, {768, 768}, SH_INIT_NORMAL, SH_PARAM_O},
        {&gpt2_124m, "transformer.h.0.mlp.c_fc.weight", "layers.0", 2, {768, 3072}, SH_INIT_NORMAL, SH_PARAM_UP},
        {&gpt2_124m, "transformer.h.0.mlp.c_proj.weight", "layers.0", 2, {3072, 768}, SH_INIT_NORMAL, SH_PARAM_DOWN},
        {&gpt2_124m, "transformer.ln_f.bias", "embed", 1, {768}, SH_INIT_ZERO, SH_PARAM_BIAS},
        {&llama_8b, "model.embed_tokens.weight", "embed", 2, {128256, 4096}, SH_INIT_NORMAL, SH_PARAM_EMBED},
        {&llama_8b, "model.layers.31.input_layernorm.weight", "layers.31", 1, {4096}, SH_INIT_ONE, SH_PARAM_NORM},
        {&llama_8b,
         "model.layers.31.self_attn.q_proj.weight",
         "layers.31",
         2,
         {4096, 4096},
         SH_INIT_NORMAL,
         SH_PARAM_Q},
        {&llama_8b,
         "model.layers.31.self_attn.k_proj.weight",
         "layers.31",
         2,
         {1024, 4096},
         SH_INIT_NORMAL,
         SH_PARAM_K},
        {&llama_8b,
         "model.layers.31.self_attn.v_proj.weight",
         "layers.31",
         2,
         {1024, 4096},
         SH_INIT_NORMAL,
         SH_PARAM_V},
        {&llama_8b,
         "model.layers.31.self_attn.o_proj.weight",
         "layers.31",
         2,
         {4096, 4096},
         SH_INIT_NORMAL,
         SH_PARAM_O},
        {&llama_8b,
         "model.layers.31.post_attention_layernorm.weight",
         "layers.31",
         1,
         {4096},
         SH_INIT_ONE,
         SH_PARAM_NORM},
        {&llama_8b,
         "model.layers.31.mlp.gate_proj.weight",
         "layers.31",
         2,
         {14336, 4096},
         SH_INIT_NORMAL,
         SH_PARAM_GATE},
        {&llama_8b, "model.layers.31.mlp.up_proj.weight", "layers.31", 2, {14336, 4096}, SH_INIT_NORMAL, SH_PARAM_UP},
        {&llama_8b,
         "model.layers.31.mlp.down_proj.weight",
         "layers.31",
         2,
         {4096, 14336},
         SH_INIT_NORMAL,
         SH_PARAM_DOWN},
        {&llama_8b, "model.norm.weight", "head", 1, {4096}, SH_INIT_ONE, SH_PARAM_NORM},
        {&llama_8b, "lm_head.weight", "head", 2, {128256, 4096}, SH_INIT_NORMAL, SH_PARAM_HEAD},
        {&llama_1b, "model.norm.weight", "embed", 1, {2048}, SH_INIT_ONE, SH_PARAM_NORM},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct sh_program *p = forward(table[i].model, SH_MODEL_LOSS, false);
        const struct sh_param *w = param(p, table[i].name);

        if (!w)
            fail_msg("no parameter %s", table[i].name);
        assert_string_equal(p->units[w->unit].name, table[i].unit);
        assert_int_equal(w->ndim, table[i].ndim);
        assert_memory_equal(w->dim, table[i].dim, (size_t)w->ndim * sizeof *w->dim);
        assert_int_equal(sh_saved_of(p, w)->init, table[i].init);
        assert_int_equal(sh_saved_of(p, w)->role, table[i].role);
        sh_program_destroy(p);
    }
}

static void no_other_parameters(void **state)
{
    struct sh_program *gpt2 = forward(&gpt2_124m, SH_MODEL_LOSS, false);
    struct sh_program *llama = forward(&llama_8b, SH_MODEL_LOSS, false),
                      *tied = forward(&llama_1b, SH_MODEL_LOSS, false);

    (void)state;
    assert_int_equal(gpt2->n_params, 12 * 12 + 4);
    assert_int_equal(llama->n_params, 9 * 32 + 3);
    assert_int_equal(llama->n_units, 34);
    assert_int_equal(tied->n_params, 9 * 16 + 2);
    assert_int_equal(tied->n_units, 17);
    assert_null(param(tied, "lm_head.weight"));
    sh_program_destroy(gpt2);
    sh_program_destroy(llama);
    sh_program_destroy(tied);
}

/* Units follow each other, and so do the parameters within them, without gaps. */
static void parameters_lie_end_to_end(void **state)
{
    (void)state;
    for (int m = 0; m < TINY_MODELS; m++) {
        struct sh_program *p = forward(&tiny_models[m].model, SH_MODEL_LOSS, tiny_models[m].docs);
        int i = 0;

        for (int u = 0; u < p->n_units; u++) {
            int64_t at = 0;

            assert_int_equal(p->units[u].first_param, i);
            for (; i < p->units[u].first_param + p->units[u].n_params; i++) {
                assert_int_equal(p->params[i].unit, u);
                assert_int_equal(p->params[i].unit_elems, at);
                at += p->params[i].elems;
            }
            assert_int_equal(p->units[u].elems, at);
        }
        assert_int_equal(i, p->n_params);
        sh_program_destroy(p);
    }
}

static void residual_matrices_start_smaller(void **state)
{
    struct sh_program *p = forward(&llama_8b, SH_MODEL_LOSS, false);
    float small = 0.02f / 8; /* 1 / sqrt(2 * 32) */

    (void)state;
    assert_true(saved(p, "model.layers.0.self_attn.o_proj.weight")->init_std == small);
    assert_true(saved(p, "model.layers.0.mlp.down_proj.weight")->init_std == small);
    assert_true(saved(p, "model.layers.0.mlp.up_proj.weight")->init_std == 0.02f);
    assert_true(saved(p, "lm_head.weight")->init_std == 0.02f);
    sh_program_destroy(p);
}

static void inputs_and_results(void **state)
{
    (void)state;
    for (int docs = 0; docs < 2; docs++)
        for (int out = SH_MODEL_LOSS; out <= SH_MODEL_LOGITS; out++) {
            struct sh_program *p = forward(&tiny_models[0].model, (enum sh_model_output)out, docs);
            enum sh_op_kind last = out == SH_MODEL_LOSS ? SH_OP_HEAD_LOSS : SH_OP_LOGITS;

            assert_int_not_equal(p->port[SH_PORT_TOKENS], SH_NONE);
            assert_true((p->port[SH_PORT_TARGETS] != SH_NONE) == (out == SH_MODEL_LOSS));
            assert_true((p->port[SH_PORT_LOSS] != SH_NONE) == (out == SH_MODEL_LOSS));
            assert_true((p->port[SH_PORT_LOGITS] != SH_NONE) == (out == SH_MODEL_LOGITS));
            assert_true((p->port[SH_PORT_DOCS] != SH_NONE) == docs);
            assert_int_equal(p->ops[p->n_ops - 1].kind, last);
            sh_program_destroy(p);
        }
}

static void rows_of_logits_take_50_mib(void **state)
{
    static const struct {
        enum sh_dtype act;
        int vocab, batch, seq;
        int64_t chunk_rows, rows;
    } table[] = {
        {SH_F32, 256, 1, 8, 0, 8},           {SH_F32, 1024, 64, 1024, 0, 10944}, {SH_F32, 65536, 1, 4096, 0, 256},
        {SH_F32, 1 << 20, 1, 4096, 0, 64},   {SH_F32, 50257, 4, 256, 0, 256},    {SH_F32, 256, 64, 1024, 100, 100},
        {SH_BF16, 50257, 4, 256, 0, 512},    {SH_BF16, 50257, 8, 1024, 0, 512},  {SH_BF16, 128256, 1, 8192, 0, 256},
        {SH_BF16, 1 << 19, 1, 4096, 0, 128},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct sh_model m = tiny_models[0].model;
        struct sh_program *p = sh_program_create(table[i].act);

        m.vocab_size = table[i].vocab;
        sh_model_emit(
            &m,
            &(struct sh_model_batch){.batch = table[i].batch, .seq = table[i].seq, .chunk_rows = table[i].chunk_rows},
            p);
        assert_int_equal(p->ops[p->n_ops - 1].attr.head.chunk_rows, table[i].rows);
        sh_program_destroy(p);
    }
}

/* Compare with the operations of a real program: forward and backward of the products, by the table of costs. */
static void flops_are_those_of_the_program(void **state)
{
    enum { SEQ = 16 };
    static const struct sh_model *const models[] = {&gpt2_124m, &llama_1b, &llama_8b};

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct sh_program *p = sh_program_create(SH_F32);
        double products = 0;

        sh_model_emit(models[i], &(struct sh_model_batch){.batch = 1, .seq = SEQ, .chunk_rows = SEQ}, p);
        assert_int_equal(sh_pass_grad(NULL, p), SH_OK);
        for (int k = 0; k < p->n_ops; k++) {
            enum sh_op_kind kind = p->ops[k].kind;
            struct sh_op_call call;

            sh_program_call(p, &p->ops[k], NULL, &call);
            if (kind == SH_OP_LINEAR || kind == SH_OP_LINEAR_BWD_W || kind == SH_OP_LINEAR_BWD_X)
                products += 2.0 * (double)call.in[0].dim[0] * (double)call.in[1].dim[1] *
                            (kind == SH_OP_LINEAR_BWD_W ? (double)call.in[0].dim[1] : (double)call.in[1].dim[0]);
        }
        products += 6.0 * SEQ * models[i]->vocab_size * models[i]->dim; /* the head */
        assert_true(fabs(products / SEQ / sh_model_flops(models[i], SEQ).matmul - 1) < 1e-12);
        sh_program_destroy(p);
    }
}

/* Which block has a window; a window as long as the sequence does not count. */
static void windows(void **state)
{
    static const struct {
        int window, seq;
        const char *types, *blocks; /* w: has it, -: sees all */
    } rows[] = {
        {0, 16, "", "------"},
        {8, 16, "", "wwwwww"},
        {8, 16, "2*full,4*sliding", "--wwww"},
        {8, 16, "2*sliding,full", "ww-ww-"},
        {8, 16, "full,sliding_nope,2*full", "-w---w"},
        {16, 16, "", "------"},
        {15, 16, "", "wwwwww"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_model m = tiny_models[0].model;
        struct sh_program *p = sh_program_create(SH_F32);
        int at[2] = {0};

        m.n_layers = 6;
        m.attention_window = rows[i].window;
        snprintf(m.layer_types, sizeof m.layer_types, "%s", rows[i].types);
        sh_model_emit(&m, &(struct sh_model_batch){.batch = 1, .seq = rows[i].seq}, p);
        assert_int_equal(sh_pass_grad(NULL, p), SH_OK);
        for (int k = 0; k < p->n_ops; k++) {
            bool forward = p->ops[k].kind == SH_OP_ATTENTION, backward = p->ops[k].kind == SH_OP_ATTENTION_BWD;
            if (!forward && !backward)
                continue;
            int block = backward ? 5 - at[1]++ : at[0]++;
            assert_int_equal(p->ops[k].attr.attn.window, rows[i].blocks[block] == 'w' ? rows[i].window : 0);
        }
        assert_true(at[0] == 6 && at[1] == 6);
        sh_program_destroy(p);
    }
}

/* A window of 4 in 16 tokens: 4 keys per query, except for the first three queries, which together lack 6 keys. */
static void flops_of_windows(void **state)
{
    struct sh_model m = tiny_models[0].model;
    struct sh_model_flops f;

    (void)state;
    m.n_layers = 1;
    m.attention_window = 4;
    f = sh_model_flops(&m, 16);
    assert_true(f.attention_causal == 12.0 * m.n_heads * m.head_dim * (4 - 0.5));
    assert_true(f.attention_full == 12.0 * m.n_heads * m.head_dim * 4);
}

/* Documents of 4 of 16 tokens: a query at t sees 4 (1 - 0.75^t) keys. Where there is no mask, no length, or a window that
 * is shorter, nothing changes. */
static void flops_of_documents(void **state)
{
    struct sh_model m = tiny_models[0].model;
    struct sh_model_batch b = {.seq = 16, .docs = true, .document_tokens = 4};
    struct sh_model_flops whole, f;
    double keys = 0, row;

    (void)state;
    m.n_layers = 1;
    row = 12.0 * m.n_heads * m.head_dim;
    whole = sh_model_flops(&m, 16);
    for (int t = 1; t <= 16; t++)
        keys += 4 * (1 - pow(0.75, t)) / 16;
    f = sh_model_flops_of(&m, &b);
    assert_true(fabs(f.attention_causal / (row * keys) - 1) < 1e-12);
    assert_true(fabs(f.attention_full / (2 * row * keys) - 1) < 1e-12);
    assert_true(f.matmul == whole.matmul);
    b.document_tokens = 1; /* a query sees itself */
    assert_true(sh_model_flops_of(&m, &b).attention_causal == row);
    b.document_tokens = 1000;
    assert_true(sh_model_flops_of(&m, &b).attention_causal == whole.attention_causal);
    b.document_tokens = 0;
    assert_true(sh_model_flops_of(&m, &b).attention_causal == whole.attention_causal);
    b = (struct sh_model_batch){.seq = 16, .document_tokens = 4};
    assert_true(sh_model_flops_of(&m, &b).attention_causal == whole.attention_causal);
    b.docs = true;
    m.attention_window = 2;
    assert_true(sh_model_flops_of(&m, &b).attention_causal == sh_model_flops(&m, 16).attention_causal);
}

/* With adapters, the gradients of the frozen matrices themselves are not computed. */
static void flops_of_frozen_weights_are_four(void **state)
{
    enum { SEQ = 64, RANK = 16 };
    const struct sh_adapters a = {.rank = RANK, .scale = 1, .targets = ~0u};
    struct sh_model_flops whole = sh_model_flops(&llama_1b, SEQ), some;
    double adapters = 0;

    (void)state;
    some = sh_model_flops_of(&llama_1b, &(struct sh_model_batch){.seq = SEQ, .adapters = a});
    for (int i = 0; i < SH_PARAM_LINEARS; i++) {
        int64_t in, out;

        if (!sh_family_linear_name(sh_family_of(llama_1b.family), i))
            continue;
        sh_family_linear_dims(&llama_1b, i, &in, &out);
        adapters += (double)llama_1b.n_layers * RANK * (double)(in + out);
    }
    assert_true(some.matmul == whole.matmul / 6 * 4 + 6 * adapters);
    assert_true((double)sh_model_trained(&llama_1b, &a) == adapters);
    assert_int_equal(sh_model_trained(&llama_1b, &(struct sh_adapters){0}), sh_model_params(&llama_1b));
    assert_true(some.attention_causal == whole.attention_causal);
}

/* The formula of the field: 6 operations for each weight of a product, and 6 L H D T for attention. */
static void flops_are_six_for_each_weight(void **state)
{
    enum { SEQ = 2048 };
    static const struct sh_model *const models[] = {&gpt2_124m, &gpt2_1558m, &llama_1b, &llama_8b, &llama_70b};

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct sh_model *m = models[i];
        struct sh_program *p = forward(m, SH_MODEL_LOSS, false);
        struct sh_model_flops f = sh_model_flops(m, SEQ);
        double weights = m->tie_word_embeddings ? (double)m->vocab_size * m->dim : 0;

        for (int k = 0; k < p->n_params; k++)
            if (p->params[k].ndim == 2 && !strstr(sh_saved_of(p, &p->params[k])->name, "wpe"))
                weights += (double)p->params[k].elems;
        weights -= (double)m->vocab_size * m->dim; /* the embedding is looked up */
        assert_true(f.matmul == 6 * weights);
        assert_true(f.attention_causal == 6.0 * m->n_layers * m->n_heads * m->head_dim * SEQ);
        assert_true(f.attention_full == 2 * f.attention_causal);
        sh_program_destroy(p);
    }
}

/* The program as text; freed by the caller. */
static char *print_of(const struct sh_model *m)
{
    struct sh_program *p = forward(m, SH_MODEL_LOSS, true);
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(out);
    sh_program_print(p, out);
    fclose(out);
    sh_program_destroy(p);
    return text;
}

/* A family's feed-forward part in words is that part, with its names, roles, initial values and order. */
static void statements_of_families(void **state)
{
    static const struct {
        enum sh_cfg_family family;
        const char *ffn;
    } rows[] = {{SH_FAMILY_PHI3, "gu = linear(x, gate_up_proj, 2F);h=swiglu( gu ) ; y = linear(h, down_proj, C)"},
                {SH_FAMILY_GPT2, "u = linear(x, c_fc, F); h = gelu(u); y = linear(h, c_proj, C)"}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sh_model m = tiny_models[1].model;
        struct sh_program *p, *q;
        char *family, *words;

        m.family = rows[i].family;
        family = print_of(&m);
        p = forward(&m, SH_MODEL_LOSS, true);
        strcpy(m.ffn, rows[i].ffn);
        words = print_of(&m);
        q = forward(&m, SH_MODEL_LOSS, true);
        assert_string_equal(words, family);
        assert_int_equal(q->n_saved, p->n_saved);
        for (int k = 0; k < p->n_saved; k++)
            assert_true(p->saved[k].role == q->saved[k].role && p->saved[k].init_std == q->saved[k].init_std);
        strcat(m.ffn, "; z = add(x, y)");
        free(words);
        words = print_of(&m);
        assert_string_not_equal(words, family);
        sh_program_destroy(p);
        sh_program_destroy(q);
        free(family);
        free(words);
    }
}

/* The words of model.family are the names of the table. */
static void families(void **state)
{
    const struct sh_config_key *key = sh_config_key_find("model.family");

    (void)state;
    for (const struct sh_config_word *w = key->words; w->name; w++)
        assert_string_equal(w->name, sh_family_of((int)w->value)->name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameter_counts),
        cmocka_unit_test(experts_count_as_a_token_meets_them),
        cmocka_unit_test(latent_attention_is_counted),
        cmocka_unit_test(gpt_oss_is_counted),
        cmocka_unit_test(names_and_shapes),
        cmocka_unit_test(no_other_parameters),
        cmocka_unit_test(parameters_lie_end_to_end),
        cmocka_unit_test(residual_matrices_start_smaller),
        cmocka_unit_test(inputs_and_results),
        cmocka_unit_test(rows_of_logits_take_50_mib),
        cmocka_unit_test(flops_are_those_of_the_program),
        cmocka_unit_test(windows),
        cmocka_unit_test(flops_of_windows),
        cmocka_unit_test(flops_of_documents),
        cmocka_unit_test(flops_are_six_for_each_weight),
        cmocka_unit_test(flops_of_frozen_weights_are_four),
        cmocka_unit_test(statements_of_families),
        cmocka_unit_test(families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
