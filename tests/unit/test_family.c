/* Each family of models: its tensors have Hugging Face's names and shapes, its gradients are the slopes of its loss,
 * and a mesh trains it as one rank does. Numbers of other programs: tests/gold/test_torch.py. */
#include "src/base/number/rng.h"
#include "src/config/family.h"
#include "src/config/words.h"
#include "src/model/block.h"
#include "src/model/rope.h"
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

/* clang-format off */
enum { DIM = 12, HEADS = 3, KV = 1, HEAD_DIM = 4, FFN = 20, BATCH = 6, TOKENS = BATCH * TINY_SEQ, SEED = 5, LAYERS = 2 };
/* clang-format on */
enum { Q = HEADS * HEAD_DIM, KV_ROWS = KV * HEAD_DIM };

#define SIZES                                                                                                 \
    .n_layers = LAYERS, .dim = DIM, .n_heads = HEADS, .n_kv_heads = KV, .head_dim = HEAD_DIM, .ffn_dim = FFN, \
    .vocab_size = TINY_VOCAB, .max_seq_len = TINY_SEQ, .rope_theta = 100, .init_std = 0.3
#define COMMON SIZES, .norm_eps = 1e-5
#define NOT_STEEP SIZES, .norm_eps = 0.1 /* the norm of a head with small queries is steep */

#define EXPERTS .n_experts = 4, .n_experts_per_token = 2, .expert_ffn_dim = 5

#define W(name, rows, columns) " " name ".weight[" #rows "," #columns "]"
#define V(name, rows) " " name "[" #rows "]"
#define QKV W("self_attn.q_proj", 12, 12) W("self_attn.k_proj", 4, 12) W("self_attn.v_proj", 4, 12)
#define QKV_BIAS V("self_attn.q_proj.bias", 12) V("self_attn.k_proj.bias", 4) V("self_attn.v_proj.bias", 4)
#define MLP W("mlp.gate_proj", 20, 12) W("mlp.up_proj", 20, 12)
#define MLP_BIAS V("mlp.gate_proj.bias", 20) V("mlp.up_proj.bias", 20)
#define O W("self_attn.o_proj", 12, 12)
#define DOWN W("mlp.down_proj", 12, 20)
#define ROUTER W("mlp.gate", 4, 12)
#define MOE " mlp.experts.gate_up_proj.weight[4,10,12] mlp.experts.down_proj.weight[4,12,5]"
#define NORM1 V("input_layernorm.weight", 12)
#define NORM2 V("post_attention_layernorm.weight", 12)

#define LATENT                                                                                                        \
    .n_layers = LAYERS, .dim = DIM, .n_heads = HEADS, .n_kv_heads = HEADS, .head_dim = HEAD_DIM, .ffn_dim = FFN,      \
    .vocab_size = TINY_VOCAB, .max_seq_len = TINY_SEQ, .rope_theta = 100, .init_std = 0.3, .norm_eps = 1e-5, EXPERTS, \
    .family = SH_FAMILY_DEEPSEEK_V3, .rotary_dim = 2, .kv_lora_rank = 5, .v_head_dim = 3
#define LATENT_KV W("self_attn.kv_a_proj_with_mqa", 7, 12) W("self_attn.kv_b_proj", 15, 5)

#define GRANITE4                                                                                     \
    NOT_STEEP, .family = SH_FAMILY_GRANITEMOEHYBRID, .linear_key_heads = 1, .linear_value_heads = 2, \
               .linear_key_dim = 4, .linear_value_dim = 6, .linear_conv_size = 4
#define MAMBA                                                                                           \
    W("mamba.in_proj", 34, 12)                                                                          \
    W("mamba.out_proj", 12, 12)                                                                         \
    " mamba.conv1d.weight[20,1,4]" V("mamba.conv1d.bias", 20) V("mamba.A_log", 2) V("mamba.dt_bias", 2) \
        V("mamba.D", 2) V("mamba.norm.weight", 12)

/* The tensors of block 0, in file order. */
/* clang-format off */
static const struct row {
    struct tiny_model m;
    const char *architecture, *block;
    int rope; /* blocks with rotary positions */
} rows[] = {
    {{"llama", {COMMON, .family = SH_FAMILY_LLAMA}, false}, "LlamaForCausalLM", NORM1 QKV O NORM2 MLP DOWN, 2},
    {{"llama, biases", {COMMON, .family = SH_FAMILY_LLAMA, .attention_bias = true, .mlp_bias = true}, false},
     "LlamaForCausalLM",
     NORM1 QKV QKV_BIAS O V("self_attn.o_proj.bias", 12) NORM2 MLP MLP_BIAS DOWN V("mlp.down_proj.bias", 12), 2},
    {{"mistral", {COMMON, .family = SH_FAMILY_MISTRAL}, true}, "MistralForCausalLM", NORM1 QKV O NORM2 MLP DOWN, 2},
    {{"qwen2", {COMMON, .family = SH_FAMILY_QWEN2}, false}, "Qwen2ForCausalLM", NORM1 QKV QKV_BIAS O NORM2 MLP DOWN, 2},
    {{"phi3", {COMMON, .family = SH_FAMILY_PHI3}, false}, "Phi3ForCausalLM",
     NORM1 W("self_attn.qkv_proj", 20, 12) O NORM2 W("mlp.gate_up_proj", 40, 12) DOWN, 2},
    {{"phi3, longrope",
      {COMMON, .family = SH_FAMILY_PHI3, .rope_type = SH_ROPE_LONG, .rope_factor = 2, .rope_original_max_len = 2,
       .rope_short_factor = "1,1", .rope_long_factor = "1.5,3"}, false},
     "Phi3ForCausalLM", NORM1 W("self_attn.qkv_proj", 20, 12) O NORM2 W("mlp.gate_up_proj", 40, 12) DOWN, 2},
    {{"smollm3", {COMMON, .family = SH_FAMILY_SMOLLM3, .tie_word_embeddings = true, .layer_types = "full,full_nope"}, false},
     "SmolLM3ForCausalLM", NORM1 QKV O NORM2 MLP DOWN, 1},
    {{"starcoder2", {COMMON, .family = SH_FAMILY_STARCODER2, .tie_word_embeddings = true}, false},
     "Starcoder2ForCausalLM",
     NORM1 V("input_layernorm.bias", 12) QKV QKV_BIAS O V("self_attn.o_proj.bias", 12) NORM2
         V("post_attention_layernorm.bias", 12) W("mlp.c_fc", 20, 12) V("mlp.c_fc.bias", 20) W("mlp.c_proj", 12, 20)
             V("mlp.c_proj.bias", 12),
     2},
    {{"qwen3", {NOT_STEEP, .family = SH_FAMILY_QWEN3}, false}, "Qwen3ForCausalLM",
     NORM1 QKV V("self_attn.q_norm.weight", 4) V("self_attn.k_norm.weight", 4) O NORM2 MLP DOWN, 2},
    {{"qwen3, biases", {NOT_STEEP, .family = SH_FAMILY_QWEN3, .attention_bias = true}, false}, "Qwen3ForCausalLM",
     NORM1 QKV QKV_BIAS V("self_attn.q_norm.weight", 4) V("self_attn.k_norm.weight", 4) O V("self_attn.o_proj.bias", 12)
         NORM2 MLP DOWN, 2},
    {{"olmo2", {NOT_STEEP, .family = SH_FAMILY_OLMO2}, false}, "Olmo2ForCausalLM",
     NORM2 QKV V("self_attn.q_norm.weight", 12) V("self_attn.k_norm.weight", 4) O
         V("post_feedforward_layernorm.weight", 12) MLP DOWN, 2},
    {{"olmo3", {NOT_STEEP, .family = SH_FAMILY_OLMO3, .attention_window = 3, .layer_types = "sliding,full",
                .rope_local_base_freq = 10}, false}, "Olmo3ForCausalLM",
     NORM2 QKV V("self_attn.q_norm.weight", 12) V("self_attn.k_norm.weight", 4) O
         V("post_feedforward_layernorm.weight", 12) MLP DOWN, 2},
    {{"exaone4", {NOT_STEEP, .family = SH_FAMILY_EXAONE4, .attention_window = 3, .layer_types = "sliding,full_nope"}, false},
     "Exaone4ForCausalLM",
     NORM2 QKV V("self_attn.q_norm.weight", 4) V("self_attn.k_norm.weight", 4) O
         V("post_feedforward_layernorm.weight", 12) MLP DOWN, 1},
    {{"seed_oss", {COMMON, .family = SH_FAMILY_SEED_OSS}, false}, "SeedOssForCausalLM", NORM1 QKV QKV_BIAS O NORM2 MLP DOWN, 2},
    {{"gpt_neox",
      {.n_layers = LAYERS, .dim = DIM, .n_heads = HEADS, .n_kv_heads = HEADS, .head_dim = HEAD_DIM, .ffn_dim = FFN,
       .vocab_size = TINY_VOCAB, .max_seq_len = TINY_SEQ, .rope_theta = 100, .init_std = 0.3, .norm_eps = 1e-5,
       .family = SH_FAMILY_GPT_NEOX, .rotary_dim = 2}, false},
     "GPTNeoXForCausalLM",
     NORM1 V("input_layernorm.bias", 12) W("attention.query_key_value", 36, 12) V("attention.query_key_value.bias", 36)
         W("attention.dense", 12, 12) V("attention.dense.bias", 12) NORM2 V("post_attention_layernorm.bias", 12)
             W("mlp.dense_h_to_4h", 20, 12) V("mlp.dense_h_to_4h.bias", 20) W("mlp.dense_4h_to_h", 12, 20)
                 V("mlp.dense_4h_to_h.bias", 12),
     2},
    {{"gemma3_text",
      {NOT_STEEP, .family = SH_FAMILY_GEMMA3, .attention_window = 3, .layer_types = "sliding,full",
       .rope_local_base_freq = 10, .query_pre_attn_scalar = 7}, false},
     "Gemma3ForCausalLM",
     NORM1 QKV V("self_attn.q_norm.weight", 4) V("self_attn.k_norm.weight", 4) O NORM2
         V("pre_feedforward_layernorm.weight", 12) MLP DOWN V("post_feedforward_layernorm.weight", 12),
     2},
    {{"gemma", {COMMON, .family = SH_FAMILY_GEMMA, .tie_word_embeddings = true}, false}, "GemmaForCausalLM",
     NORM1 QKV O NORM2 MLP DOWN, 2},
    {{"mixtral", {COMMON, EXPERTS, .family = SH_FAMILY_MIXTRAL, .route_norm = true}, false}, "MixtralForCausalLM",
     NORM1 QKV O NORM2 ROUTER MOE, 2},
    {{"qwen2_moe", {COMMON, EXPERTS, .family = SH_FAMILY_QWEN2_MOE, .shared_ffn_dim = 6}, false}, "Qwen2MoeForCausalLM",
     NORM1 QKV QKV_BIAS O NORM2 ROUTER W("mlp.shared_expert.gate_proj", 6, 12) W("mlp.shared_expert.up_proj", 6, 12)
         W("mlp.shared_expert.down_proj", 12, 6) W("mlp.shared_expert_gate", 1, 12) MOE, 2},
    {{"qwen3_moe", {NOT_STEEP, EXPERTS, .family = SH_FAMILY_QWEN3_MOE, .first_dense_layers = 1, .route_scale = 2.5,
                    .router = SH_ROUTER_SIGMOID, .route_groups = 2, .route_top_groups = 1, .router_bias = true},
      false},
     "Qwen3MoeForCausalLM",
     NORM1 QKV V("self_attn.q_norm.weight", 4) V("self_attn.k_norm.weight", 4) O NORM2 MLP DOWN, 2},
    {{"granite", {COMMON, .family = SH_FAMILY_GRANITE, .embedding_multiplier = 12, .residual_multiplier = 0.25,
                  .logits_scaling = 8, .query_pre_attn_scalar = 9, .mlp_bias = true}, false}, "GraniteForCausalLM",
     NORM1 QKV O NORM2 MLP V("mlp.gate_proj.bias", 20) V("mlp.up_proj.bias", 20) DOWN V("mlp.down_proj.bias", 12), 2},
    {{"granitemoe", {COMMON, EXPERTS, .family = SH_FAMILY_GRANITEMOE, .route_norm = true, .logits_scaling = 0.5}, false},
     "GraniteMoeForCausalLM",
     NORM1 QKV O NORM2 W("block_sparse_moe.router", 4, 12) " block_sparse_moe.experts.gate_up_proj.weight[4,10,12]"
         " block_sparse_moe.experts.down_proj.weight[4,12,5]", 2},
    {{"gpt_oss", {COMMON, EXPERTS, .family = SH_FAMILY_GPT_OSS, .route_norm = true, .attention_window = 3,
                  .layer_types = "sliding,full"}, false}, "GptOssForCausalLM",
     NORM1 QKV QKV_BIAS O V("self_attn.o_proj.bias", 12) V("self_attn.sinks", 3) NORM2 W("mlp.router", 4, 12)
         V("mlp.router.bias", 4) " mlp.experts.gate_up_proj[4,12,10] mlp.experts.gate_up_proj_bias[4,10]"
             " mlp.experts.down_proj[4,5,12] mlp.experts.down_proj_bias[4,12]", 2},
    {{"ministral3", {COMMON, .family = SH_FAMILY_MINISTRAL3, .rope_original_max_len = TINY_SEQ}, false},
     "Ministral3ForCausalLM", NORM1 QKV O NORM2 MLP DOWN, 2},
    {{"cohere2", {COMMON, .family = SH_FAMILY_COHERE2, .logits_scaling = 4, .attention_window = 3,
                  .layer_types = "sliding,full_nope"}, false}, "Cohere2ForCausalLM", NORM1 QKV O MLP DOWN, 1},
    {{"cohere", {COMMON, .family = SH_FAMILY_COHERE, .logits_scaling = 4}, false}, "CohereForCausalLM", NORM1 QKV O MLP DOWN, 2},
    {{"gemma2", {NOT_STEEP, .family = SH_FAMILY_GEMMA2, .attention_window = 3, .layer_types = "sliding,full",
                 .query_pre_attn_scalar = 7, .attention_softcap = 1, .logits_softcap = 2}, false},
     "Gemma2ForCausalLM",
     NORM1 QKV O NORM2 V("pre_feedforward_layernorm.weight", 12) MLP DOWN V("post_feedforward_layernorm.weight", 12), 2},
    {{"gemma4_text", {SIZES, .norm_eps = 1, .family = SH_FAMILY_GEMMA4, .attention_window = 3, .layer_types = "sliding,full",
                      .query_pre_attn_scalar = 1, .global_head_dim = 6, .global_kv_heads = 3, .keys_as_values = true,
                      .rotary_dim = 2, .logits_softcap = 2}, false}, "Gemma4ForCausalLM",
     NORM1 QKV V("self_attn.q_norm.weight", 4) V("self_attn.k_norm.weight", 4) O NORM2
         V("pre_feedforward_layernorm.weight", 12) MLP DOWN V("post_feedforward_layernorm.weight", 12) V("layer_scalar", 1), 2},
    {{"gemma4_text, small", {SIZES, .norm_eps = 1, .family = SH_FAMILY_GEMMA4, .attention_window = 3, .layer_types = "sliding",
                             .query_pre_attn_scalar = 1, .kv_shared_layers = 1, .double_wide_ffn = true, .per_layer_dim = 6,
                             .tie_word_embeddings = true, .logits_softcap = 2}, false}, "Gemma4ForCausalLM",
     NORM1 QKV V("self_attn.q_norm.weight", 4) V("self_attn.k_norm.weight", 4) O NORM2
         V("pre_feedforward_layernorm.weight", 12) MLP DOWN V("post_feedforward_layernorm.weight", 12)
             W("per_layer_input_gate", 6, 12) W("per_layer_projection", 12, 6) V("post_per_layer_input_norm.weight", 12)
                 V("layer_scalar", 1), 2},
    {{"glm4", {SIZES, .norm_eps = 1, .family = SH_FAMILY_GLM4, .rotary_dim = 2}, false}, "Glm4ForCausalLM",
     NORM1 QKV QKV_BIAS O V("post_self_attn_layernorm.weight", 12) NORM2 W("mlp.gate_up_proj", 40, 12) DOWN
         V("post_mlp_layernorm.weight", 12), 2},
    {{"qwen3_5_text", {NOT_STEEP, .family = SH_FAMILY_QWEN3_5_TEXT, .rotary_dim = 2, .layer_types = "linear,full", .linear_key_heads = 1,
                       .linear_value_heads = 2, .linear_key_dim = 4, .linear_value_dim = 3, .linear_conv_size = 4}, false},
     "Qwen3_5ForCausalLM",
     NORM1 W("linear_attn.in_proj_qkv", 14, 12) W("linear_attn.in_proj_z", 6, 12) W("linear_attn.in_proj_b", 2, 12)
         W("linear_attn.in_proj_a", 2, 12) W("linear_attn.out_proj", 12, 6) " linear_attn.conv1d.weight[14,1,4]"
         V("linear_attn.A_log", 2) V("linear_attn.dt_bias", 2) V("linear_attn.norm.weight", 3) NORM2 MLP DOWN, 1},
    {{"nemotron_h", {NOT_STEEP, .family = SH_FAMILY_NEMOTRON_H, .layer_types = "linear,mlp", .linear_key_heads = 1,
                     .linear_value_heads = 2, .linear_key_dim = 4, .linear_value_dim = 3, .linear_conv_size = 4,
                     .linear_least_step = 0.1}, false},
     "NemotronHForCausalLM",
     V("norm.weight", 12) W("mixer.in_proj", 22, 12) W("mixer.out_proj", 12, 6) " mixer.conv1d.weight[14,1,4]"
         V("mixer.conv1d.bias", 14) V("mixer.A_log", 2) V("mixer.dt_bias", 2) V("mixer.D", 2) V("mixer.norm.weight", 6), 0},
    {{"nemotron_h, experts", {NOT_STEEP, EXPERTS, .family = SH_FAMILY_NEMOTRON_H, .layer_types = "moe,linear", .linear_key_heads = 1,
                              .linear_value_heads = 2, .linear_key_dim = 4, .linear_value_dim = 3, .linear_conv_size = 4,
                              .linear_least_step = 0.1, .shared_ffn_dim = 6, .router = SH_ROUTER_SIGMOID,
                              .router_bias = true}, false},
     "NemotronHForCausalLM",
     V("norm.weight", 12) W("mixer.gate", 4, 12) W("mixer.shared_experts.up_proj", 6, 12)
         W("mixer.shared_experts.down_proj", 12, 6) " mixer.experts.up_proj.weight[4,5,12]"
             " mixer.experts.down_proj.weight[4,12,5]" V("mixer.gate.e_score_correction_bias", 4), 0},
    {{"granitemoehybrid", {GRANITE4, EXPERTS, .layer_types = "linear,full_nope", .shared_ffn_dim = 6, .route_norm = true,
                           .logits_scaling = 0.5, .residual_multiplier = 0.5}, false}, "GraniteMoeHybridForCausalLM",
     NORM1 MAMBA NORM2 W("block_sparse_moe.router", 4, 12) W("shared_mlp.input_linear", 12, 12)
         W("shared_mlp.output_linear", 12, 6) " block_sparse_moe.experts.gate_up_proj.weight[4,10,12]"
             " block_sparse_moe.experts.down_proj.weight[4,12,5]", 0},
    {{"granitemoehybrid, positions, no experts", {GRANITE4, .layer_types = "linear,full", .linear_least_step = 0.1,
                                                  .tie_word_embeddings = true}, false}, "GraniteMoeHybridForCausalLM",
     NORM1 MAMBA NORM2 W("shared_mlp.input_linear", 40, 12) W("shared_mlp.output_linear", 12, 20), 1},
    {{"deepseek_v3", {LATENT, .q_lora_rank = 7, .first_dense_layers = 1, .shared_ffn_dim = 6,
                      .route_scale = 2.5, .router = SH_ROUTER_SIGMOID, .router_bias = true}, false}, "DeepseekV3ForCausalLM",
     NORM1 W("self_attn.q_b_proj", 12, 7) W("self_attn.o_proj", 12, 9) W("self_attn.q_a_proj", 7, 12) LATENT_KV
         V("self_attn.q_a_layernorm.weight", 7) V("self_attn.kv_a_layernorm.weight", 5) NORM2 MLP DOWN, 2},
    {{"deepseek_v3, queries from the stream",
      {LATENT, .rope_factor = 4, .rope_type = SH_ROPE_YARN, .rope_original_max_len = 2, .rope_beta_fast = 32,
       .rope_beta_slow = 1, .rope_attention_factor = 1, .rope_mscale_all_dim = 1}, false}, "DeepseekV3ForCausalLM",
     NORM1 W("self_attn.q_proj", 12, 12) W("self_attn.o_proj", 12, 9) LATENT_KV V("self_attn.kv_a_layernorm.weight", 5) NORM2
         ROUTER MOE, 2},
    {{"olmoe", {NOT_STEEP, EXPERTS, .family = SH_FAMILY_OLMOE}, false}, "OlmoeForCausalLM",
     NORM1 QKV V("self_attn.q_norm.weight", 12) V("self_attn.k_norm.weight", 4) O NORM2 ROUTER MOE, 2},
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof rows[0] };

static void append(char *text, const struct sh_saved *p, size_t skip)
{
    size_t at = strlen(text);

    at += (size_t)sprintf(text + at, " %s[%lld", p->name + skip, (long long)p->dim[0]);
    for (int i = 1; i < p->ndim; i++)
        at += (size_t)sprintf(text + at, ",%lld", (long long)p->dim[i]);
    strcpy(text + at, "]");
}

static void names_are_hugging_faces(void **state)
{
    const struct row *row = *state;
    struct sh_program *p = sh_program_create(SH_F32);
    char text[4096] = "";
    int rope = 0;

    sh_model_emit(&row->m.model, &(struct sh_model_batch){.batch = 2, .seq = TINY_SEQ, .out = SH_MODEL_LOSS}, p);
    for (int i = 0; i < p->n_saved; i++)
        if (strstr(p->saved[i].name, ".layers.0."))
            append(text, &p->saved[i], (size_t)(strstr(p->saved[i].name, ".0.") + 3 - p->saved[i].name));
    for (int i = 0; i < p->n_ops; i++)
        rope += p->ops[i].kind == SH_OP_ROPE;
    assert_string_equal(text, row->block);
    assert_string_equal(sh_family_of(row->m.model.family)->architecture, row->architecture);
    assert_int_equal(sh_family_of(row->m.model.family)->experts != NULL,
                     sh_family_of(row->m.model.family)->router != NULL);
    assert_int_equal(rope, row->rope);
    sh_program_destroy(p);
}

static bool ends_in(const char *name, const char *module, const char *ending)
{
    char end[SH_NAME_MAX];
    size_t n = (size_t)snprintf(end, sizeof end, "%s%s%s", module, module[0] ? "." : "", ending);

    return strlen(name) > n && strcmp(name + strlen(name) - n, end) == 0 && name[strlen(name) - n - 1] == '.';
}

/* Names, shapes, initialization and whether a parameter is trained follow from the role. */
static void check_role(const struct row *row, const struct sh_program *p, const struct sh_param *param)
{
    const struct sh_saved *saved = sh_saved_of(p, param);
    const struct sh_model *m = &row->m.model;
    const struct sh_family *f = sh_family_of(m->family);
    const struct sh_param_info *role = sh_param_info(saved->role);
    float residual = (float)m->init_std / sqrtf((f->single ? 1.0f : 2.0f) * LAYERS);
    bool bare = f->experts_in_out && role->experts; /* names without an ending */
    bool in_out = role->experts ? f->experts_in_out : f->w_in_out;
    struct sh_model own;
    int64_t in, out;
    int block = 0;

    assert_true(bare || ends_in(saved->name, "", role->ending));
    assert_int_equal(role->vector, param->ndim == 1 + (saved->role == SH_PARAM_EXPERT_BIAS));
    assert_int_equal(role->adapter, p->units[param->unit].beside != SH_NONE);
    if (saved->role == SH_PARAM_DECAY)
        assert_true(saved->init == SH_INIT_NORMAL && saved->init_std == 1);
    else if (saved->role == SH_PARAM_STEP && f->scan)
        assert_true(saved->init == SH_INIT_NORMAL && saved->init_std == 2);
    else if (saved->role == SH_PARAM_SKIP || saved->role == SH_PARAM_STEP || saved->role == SH_PARAM_GATED_NORM ||
             saved->role == SH_PARAM_LAYER_SCALE)
        assert_int_equal(saved->init, SH_INIT_ONE);
    else if (role->vector)
        assert_int_equal(saved->init, saved->role == SH_PARAM_NORM && !f->norm_plus_one ? SH_INIT_ONE : SH_INIT_ZERO);
    else if (!role->adapter)
        assert_true(saved->init == SH_INIT_NORMAL &&
                    saved->init_std == (role->residual ? residual : (float)m->init_std));
    if (saved->role >= SH_PARAM_PRODUCTS)
        return;
    sscanf(p->units[param->unit].name, "layers.%d", &block);
    sh_family_linear_dims(sh_model_of_block(m, block, &own), saved->role, &in, &out);
    assert_true(bare || saved->role == SH_PARAM_PER_LAYER_IN || /* in no block */
                ends_in(saved->name, sh_family_linear_name(f, saved->role), role->ending));
    assert_int_equal(param->dim[role->experts], in_out ? in : out);
    assert_int_equal(param->dim[role->experts + 1], in_out ? out : in);
    assert_int_equal(role->residual,
                     saved->role == SH_PARAM_O || strstr(saved->name, "down_proj") || strstr(saved->name, "out_proj") ||
                         strstr(saved->name, "mlp.c_proj") || strstr(saved->name, "output_linear") ||
                         strstr(saved->name, "per_layer_projection.") || strstr(saved->name, "4h_to_h"));
}

/* Blocks have either a dense feed-forward part or experts, or neither, and either attention, with queries from the stream or
 * from a latent vector, or a state, or neither. */
static int blocks_with(const struct row *row, int role)
{
    bool latent = row->m.model.q_lora_rank;
    bool dense = role == SH_PARAM_GATE || role == SH_PARAM_UP || role == SH_PARAM_DOWN;
    int experts = 0, delta = 0, mixers = 0, ffns = 0;

    for (int i = 0; i < LAYERS; i++) {
        experts += sh_family_has_experts(&row->m.model, i);
        delta += sh_family_has_delta(&row->m.model, i);
        mixers += sh_family_has_mixer(&row->m.model, i);
        ffns += sh_family_has_ffn(&row->m.model, i);
    }
    if (latent ? role == SH_PARAM_Q : role == SH_PARAM_Q_A || role == SH_PARAM_Q_B)
        return 0;
    if (role == SH_PARAM_V && row->m.model.keys_as_values)
        return 1; /* the block with a window */
    if (role >= SH_PARAM_PER_LAYER_GATE)
        return !row->m.model.per_layer_dim ? 0 : role == SH_PARAM_PER_LAYER_IN ? 1 : LAYERS;
    if (role == SH_PARAM_K || role == SH_PARAM_V)
        mixers -= row->m.model.kv_shared_layers;
    if (role >= SH_PARAM_DELTA_QKV)
        return delta;
    if (role >= SH_PARAM_SHARED_GATE && !row->m.model.shared_ffn_dim)
        return 0;
    if (role < SH_PARAM_GATE || (role >= SH_PARAM_Q_A && role <= SH_PARAM_KV_B))
        return mixers - delta;
    return role >= SH_PARAM_LINEARS ? experts : dense ? ffns - experts : LAYERS;
}

/* With and without adapters; if there are adapters, only they are trained. */
static void each_parameter_has_the_role_of_its_name(void **state)
{
    const struct row *row = *state;

    for (int rank = 0; rank <= 2; rank += 2) {
        struct sh_program *p = sh_program_create(SH_F32);
        struct sh_model_batch b = {.batch = 2, .seq = TINY_SEQ, .out = SH_MODEL_LOSS};
        int count[SH_PARAM_ROLES] = {0};

        b.adapters = (struct sh_adapters){.rank = rank, .scale = 1, .targets = 1u << SH_PARAM_O | 1u << SH_PARAM_Q};
        sh_model_emit(&row->m.model, &b, p);
        for (int i = 0; i < p->n_params; i++) {
            check_role(row, p, &p->params[i]);
            assert_int_equal(p->params[i].trainable,
                             !rank || sh_param_info(sh_saved_of(p, &p->params[i])->role)->adapter);
            count[sh_saved_of(p, &p->params[i])->role]++;
        }
        assert_int_equal(count[SH_PARAM_EMBED], 1);
        assert_int_equal(count[SH_PARAM_HEAD], !row->m.model.tie_word_embeddings);
        assert_int_equal(count[SH_PARAM_LORA_A],
                         rank ? blocks_with(row, SH_PARAM_Q) + blocks_with(row, SH_PARAM_O) : 0);
        assert_int_equal(count[SH_PARAM_ROUTER_BIAS], row->m.model.router_bias ? blocks_with(row, SH_PARAM_ROUTER) : 0);
        for (int i = 0; i < SH_PARAM_PRODUCTS; i++)
            assert_int_equal(count[i],
                             sh_family_linear_name(sh_family_of(row->m.model.family), i) ? blocks_with(row, i) : 0);
        sh_program_destroy(p);
    }
}

/* The figures of Qwen 2.5 for 128k tokens, worked out by hand: ln(32768 / (32 * 2 pi)) * 128 / (2 ln 1e6) = 23.6, with
 * 1 for 32 turns 39.7, and 0.1 ln 4 + 1. */
static void yarn_is_a_ramp(void **state)
{
    struct sh_model m = {COMMON,
                         .rope_factor = 4,
                         .rope_type = SH_ROPE_YARN,
                         .rope_original_max_len = 32768,
                         .rope_beta_fast = 32,
                         .rope_beta_slow = 1,
                         .rope_truncate = true};
    struct sh_emit_rope r;

    (void)state;
    m.rope_theta = 1e6;
    m.head_dim = 128;
    r = sh_model_rope(&m, 1);
    assert_true(r.ramp_first == 23 && r.ramp_last == 40);
    assert_true(fabs(r.scale - 1.1386294) < 1e-7);
    m.rope_attention_factor = 2;
    m.rope_truncate = false;
    r = sh_model_rope(&m, 1);
    assert_true(fabs(r.ramp_first - 23.59595) < 1e-4 && fabs(r.ramp_last - 39.65088) < 1e-4 && r.scale == 2);
    m.rope_original_max_len = 1; /* all waves are longer */
    r = sh_model_rope(&m, 1);
    assert_true(r.ramp_first == 0 && r.ramp_last == 0.001);
    m.rope_factor = 0;
    r = sh_model_rope(&m, 1);
    assert_true(r.factor == 0 && r.ramp_last == 0 && r.scale == 0);
}

/* The length decides which list applies; and the square root that acts as a temperature, worked out by hand for a
 * factor of 32 over 4096 tokens: sqrt(1 + 5/12). */
static void longrope_has_two_lists(void **state)
{
    struct sh_model m = {SIZES,
                         .rope_factor = 32,
                         .rope_type = SH_ROPE_LONG,
                         .rope_original_max_len = 4096,
                         .rope_short_factor = "1, 1.5",
                         .rope_long_factor = "2,8"};
    struct sh_emit_rope r = sh_model_rope(&m, 4096);

    (void)state;
    assert_true(r.divisors == 2 && r.divisor[0] == 1 && r.divisor[1] == 1.5);
    assert_true(fabs(r.scale - 1.1902381) < 1e-7);
    r = sh_model_rope(&m, 4097);
    assert_true(r.divisors == 2 && r.divisor[0] == 2 && r.divisor[1] == 8);
    m.rope_attention_factor = 1.5;
    assert_true(sh_model_rope(&m, 1).scale == 1.5);
}

/* If the choice of list could differ from text to text, the model is refused. */
static void longrope_of_many_texts_is_refused(void **state)
{
    static const struct {
        struct sh_model_batch b;
        const char *says;
    } cases[] = {
        {{.batch = 1, .seq = 9}, NULL},
        {{.batch = 1, .seq = 8, .docs = true}, NULL},
        {{.batch = 1, .seq = 3, .cache = 8}, NULL},
        {{.batch = 1, .seq = 8, .out = SH_MODEL_SCORE}, NULL},
        {{.batch = 1, .seq = 9, .docs = true}, "documents in a row of up to 9 tokens"},
        {{.batch = 1, .seq = 3, .cache = 9}, "give --context of at most 8"},
        {{.batch = 1, .seq = 9, .out = SH_MODEL_SCORE}, "texts of up to 9 tokens"},
    };
    struct sh_model m = {COMMON, .rope_factor = 2, .rope_type = SH_ROPE_LONG, .rope_original_max_len = 8};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sh_rc rc = sh_model_check(&m, &cases[i].b);

        if (cases[i].says ? rc != SH_E_USAGE || !strstr(sh_error_text(), cases[i].says) : rc != SH_OK)
            fail_msg("case %zu: %d, %s", i, (int)rc, sh_error_text());
    }
}

static void feed(const struct sim *s, int batch)
{
    for (int rank = 0; rank < s->world; rank++) {
        const struct sh_program *p = s->ranks[rank].p;
        int32_t *tokens = sim_data(s, rank, p->port[SH_PORT_TOKENS]),
                *targets = sim_data(s, rank, p->port[SH_PORT_TARGETS]);
        int32_t *docs = p->port[SH_PORT_DOCS] == SH_NONE ? NULL : sim_data(s, rank, p->port[SH_PORT_DOCS]);

        for (int i = 0; i < batch * TINY_SEQ; i++) {
            uint32_t bits[4];

            sh_philox(SEED, 0, (uint64_t)(rank * batch * TINY_SEQ + i), bits);
            tokens[i] = (int32_t)(bits[0] % TINY_VOCAB);
            targets[i] = (int32_t)(bits[1] % TINY_VOCAB);
            if (docs)
                docs[i] = i % TINY_SEQ == 0 || bits[2] % 3 == 0 ? i % TINY_SEQ : docs[i - 1];
        }
    }
}

/* Initial biases are zeros and norms are ones, which would hide many wrong products, so change them. The change is the
 * same on any mesh with full_shard. */
static void stir(const struct sim *s)
{
    for (int rank = 0; rank < s->world; rank++) {
        const struct sh_program *p = s->ranks[rank].p;

        for (int i = 0; i < p->n_params; i++) {
            const struct sh_param *param = &p->params[i];
            const struct sh_unit *u = &p->units[param->unit];
            int64_t begin = (int64_t)sh_group_index(&s->ranks[rank].mesh, u->shard) * u->chunk;
            float *chunk = sim_data(s, rank, u->compute);

            for (int64_t k = 0; k < param->elems; k++) {
                int64_t at = param->unit_elems + k - begin;

                if (param->ndim == 1 && at >= 0 && at < u->chunk)
                    chunk[at] += 0.2f * sinf((float)(k + i));
            }
        }
    }
}

/* Several ranks recompute all that they can. */
static struct sim *begin(const struct row *row, int shard)
{
    struct sh_build b = tiny_build(&row->m, BATCH / shard);
    struct sim *s;

    b.batch.balance.step = 0.125f;
    b.recompute = tiny_recomputes[shard > 1 ? TINY_FULL : TINY_NONE];
    s = sim_create(&b, shard, 1, 1, SEED);
    stir(s);
    s->scalars = (struct sh_op_scalars){.loss_scale = 1.0 / TOKENS,
                                        .lr = 0.02f,
                                        .beta1 = 0.9f,
                                        .beta2 = 0.95f,
                                        .adam_eps = 1e-3f,
                                        .weight_decay = 0.1f,
                                        .beta1_pow = 0.9,
                                        .beta2_pow = 0.95,
                                        .grad_scale = 1};
    feed(s, BATCH / shard);
    return s;
}

static double loss_of(struct sim *s)
{
    sim_run(s, SH_SECTION_ONLY);
    return *(double *)sim_data(s, 0, s->ranks[0].p->port[SH_PORT_LOSS]) / TOKENS;
}

/* For each parameter: steps along its gradient in both directions change the loss by as much as the
 * gradient predicts. With experts they are so small that no token changes its experts. */
static void gradients_are_slopes(void **state)
{
    const struct row *row = *state;
    const float step = row->m.model.n_experts ? 0x1p-11f : 0x1p-6f;
    struct sim *s = begin(row, 1);
    const struct sh_program *p = s->ranks[0].p;

    for (int i = 0; i < p->n_params; i++) {
        const struct sh_param *param = &p->params[i];
        const struct sh_unit *u = &p->units[param->unit];
        if (u->balances) /* without gradients */
            continue;
        float *w = (float *)sim_data(s, 0, u->compute) + param->unit_elems;
        float *before = malloc((size_t)param->elems * sizeof *w), *g = malloc((size_t)param->elems * sizeof *w);
        double norm = 0, slope;

        loss_of(s);
        memcpy(before, w, (size_t)param->elems * sizeof *w);
        memcpy(g, (float *)sim_data(s, 0, u->grad_shard) + param->unit_elems, (size_t)param->elems * sizeof *g);
        for (int64_t k = 0; k < param->elems; k++)
            norm += (double)g[k] * (double)g[k];
        norm = sqrt(norm);
        for (int64_t k = 0; k < param->elems; k++)
            w[k] = before[k] + step * g[k] / (float)norm;
        slope = loss_of(s);
        for (int64_t k = 0; k < param->elems; k++)
            w[k] = before[k] - step * g[k] / (float)norm;
        slope = (slope - loss_of(s)) / (2 * (double)step);
        memcpy(w, before, (size_t)param->elems * sizeof *w);
        if (!(norm > 1e-6) || fabs(slope - norm) > 0.01 * norm + 2e-5)
            fail_msg("%s: the gradient says %g, the loss %g", sh_saved_of(p, param)->name, norm, slope);
        free(before);
        free(g);
    }
    sim_destroy(s);
}

static float *trained(const struct row *row, int shard, int64_t *n)
{
    struct sim *s = begin(row, shard);
    float *params;

    sim_run(s, SH_SECTION_ONLY);
    sim_run(s, SH_SECTION_LOSS);
    sim_run(s, SH_SECTION_NORM);
    sim_run(s, SH_SECTION_UPDATE);
    *n = sim_param_elems(s);
    params = malloc((size_t)*n * sizeof *params);
    sim_params(s, params);
    sim_destroy(s);
    return params;
}

static void a_mesh_trains_as_one_rank(void **state)
{
    int64_t n, m;
    float *one = trained(*state, 1, &n), *three = trained(*state, 3, &m);

    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        if (fabsf(one[i] - three[i]) > 1e-5f * fabsf(one[i]) + 1e-5f)
            fail_msg("element %lld: %g on one rank, %g on three", (long long)i, (double)one[i], (double)three[i]);
    free(one);
    free(three);
}

/* GPT-2's blocks have another name; tests/unit/tiny.c has that family. */
static void each_family_has_a_row(void **state)
{
    static const int families[] = {
#define FAMILY(id, ...) SH_FAMILY_##id,
#include "src/config/family.inc"
#undef FAMILY
    };

    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        bool found = families[f] == SH_FAMILY_GPT2;

        for (int i = 0; i < ROWS; i++)
            found = found || (int)rows[i].m.model.family == families[f];
        if (!found)
            fail_msg("no row of family %s", sh_family_of(families[f])->name);
    }
}

int main(void)
{
    enum { EACH = 4 };
    struct CMUnitTest tests[EACH * ROWS + 4] = {0};
    CMUnitTestFunction functions[EACH] = {names_are_hugging_faces, each_parameter_has_the_role_of_its_name,
                                          gradients_are_slopes, a_mesh_trains_as_one_rank};
    const char *what[EACH] = {"names", "roles", "slopes", "mesh"};
    static char name[EACH * ROWS][64];

    for (int i = 0; i < EACH * ROWS; i++) {
        snprintf(name[i], sizeof name[i], "%s: %s", rows[i / EACH].m.name, what[i % EACH]);
        tests[i] = (struct CMUnitTest){
            .name = name[i], .test_func = functions[i % EACH], .initial_state = (void *)(uintptr_t)&rows[i / EACH]};
    }
    tests[EACH * ROWS] = (struct CMUnitTest)cmocka_unit_test(yarn_is_a_ramp);
    tests[EACH * ROWS + 1] = (struct CMUnitTest)cmocka_unit_test(longrope_has_two_lists);
    tests[EACH * ROWS + 2] = (struct CMUnitTest)cmocka_unit_test(longrope_of_many_texts_is_refused);
    tests[EACH * ROWS + 3] = (struct CMUnitTest)cmocka_unit_test(each_family_has_a_row);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
