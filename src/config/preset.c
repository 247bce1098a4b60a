/* Model sizes by name. A preset fills keys that nothing else has given; what is left follows from other keys: the width
 * of the feed-forward, the heads, the length of a sequence. "custom" fills nothing. */
#include "src/config/preset.h"

#include "src/base/string/str.h"
#include "src/config/family.h"
#include "src/config/foreign/alias.h"
#include "src/config/read/batches.h"
#include "src/config/read/place.h"
#include "src/config/read/text.h"

#include <string.h>

#define YARN_ROPE .rope_beta_fast = 32, .rope_beta_slow = 1, .rope_truncate = true
#define ROPE(theta) .rope_theta = theta, .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, YARN_ROPE
#define PLAIN_ROPE ROPE(10000)
/* Keys that all sizes of a family have in common. */
#define GPT2_BASE                                                                                                     \
    .family = SH_FAMILY_GPT2, .head_dim = 64, .vocab_size = 50257, .max_seq_len = 1024, .norm_eps = 1e-5, PLAIN_ROPE, \
    .tie_word_embeddings = true, .init_std = 0.02
/* Granite 4.0: of ten blocks one has attention, and the others have Mamba-2. */
#define GRANITE4_BASE                                                                                       \
    .family = SH_FAMILY_GRANITEMOEHYBRID, .n_layers = 40, .vocab_size = 100352, .max_seq_len = 131072,      \
    .layer_types = "5*linear,full_nope,4*linear", .linear_key_heads = 1, .linear_key_dim = 128,             \
    .linear_value_dim = 64, .linear_conv_size = 4, .embedding_multiplier = 12, .residual_multiplier = 0.22, \
    .norm_eps = 1e-5, PLAIN_ROPE, .tie_word_embeddings = true, .init_std = 0.1
#define LLAMA3_BASE                                                                                             \
    .family = SH_FAMILY_LLAMA, .n_kv_heads = 8, .vocab_size = 128256, .max_seq_len = 131072, .norm_eps = 1e-5,  \
    .rope_theta = 500000, .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_max_len = 8192, \
    YARN_ROPE, .init_std = 0.02

#define GEMMA2_BASE                                                                                                   \
    .family = SH_FAMILY_GEMMA2, .head_dim = 256, .vocab_size = 256000, .max_seq_len = 8192, .attention_window = 4096, \
    .layer_types = "sliding,full", .query_pre_attn_scalar = 256, .attention_softcap = 50, .logits_softcap = 30,       \
    .norm_eps = 1e-6, PLAIN_ROPE, .tie_word_embeddings = true, .init_std = 0.02

#define GEMMA4_SMALL                                                                                                  \
    .family = SH_FAMILY_GEMMA4, .n_heads = 8, .head_dim = 256, .global_head_dim = 512, .rotary_dim = 128,             \
    .per_layer_dim = 256, .vocab_size = 262144, .max_seq_len = 131072, .attention_window = 512,                       \
    .query_pre_attn_scalar = 1, .logits_softcap = 30, .norm_eps = 1e-6, ROPE(1000000), .rope_local_base_freq = 10000, \
    .tie_word_embeddings = true, .init_std = 0.02

/* Dimensions as published with the models: "Language Models are Unsupervised Multitask Learners" (2019) for gpt2, the
 * config.json of the releases for the others. `debug` and `debug-moe` are ours, small enough for a laptop. */
static const struct sh_model presets[] = {
    {.name = "debug",
     .family = SH_FAMILY_LLAMA,
     .n_layers = 4,
     .dim = 128,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 32,
     .ffn_dim = 384,
     .vocab_size = 256,
     .max_seq_len = 512,
     .norm_eps = 1e-5,
     PLAIN_ROPE,
     .init_std = 0.02},
    {.name = "gpt2-124m", GPT2_BASE, .n_layers = 12, .dim = 768, .n_heads = 12, .n_kv_heads = 12, .ffn_dim = 3072},
    {.name = "gpt2-1558m", GPT2_BASE, .n_layers = 48, .dim = 1600, .n_heads = 25, .n_kv_heads = 25, .ffn_dim = 6400},
    {.name = "llama3.2-1b",
     LLAMA3_BASE,
     .n_layers = 16,
     .dim = 2048,
     .n_heads = 32,
     .head_dim = 64,
     .ffn_dim = 8192,
     .rope_factor = 32,
     .tie_word_embeddings = true},
    {.name = "llama3.1-8b",
     LLAMA3_BASE,
     .n_layers = 32,
     .dim = 4096,
     .n_heads = 32,
     .head_dim = 128,
     .ffn_dim = 14336,
     .rope_factor = 8},
    {.name = "llama3.1-70b",
     LLAMA3_BASE,
     .n_layers = 80,
     .dim = 8192,
     .n_heads = 64,
     .head_dim = 128,
     .ffn_dim = 28672,
     .rope_factor = 8},
    {.name = "llama3.1-405b",
     LLAMA3_BASE,
     .n_layers = 126,
     .dim = 16384,
     .n_heads = 128,
     .head_dim = 128,
     .ffn_dim = 53248,
     .rope_factor = 8},
    {.name = "debug-moe",
     .family = SH_FAMILY_QWEN3_MOE,
     .n_layers = 4,
     .dim = 128,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 32,
     .n_experts = 8,
     .n_experts_per_token = 2,
     .expert_ffn_dim = 64,
     .route_norm = true,
     .vocab_size = 256,
     .max_seq_len = 512,
     .norm_eps = 1e-5,
     PLAIN_ROPE,
     .init_std = 0.02},
    {.name = "mixtral-8x7b",
     .family = SH_FAMILY_MIXTRAL,
     .n_layers = 32,
     .dim = 4096,
     .n_heads = 32,
     .n_kv_heads = 8,
     .head_dim = 128,
     .n_experts = 8,
     .n_experts_per_token = 2,
     .expert_ffn_dim = 14336,
     .route_norm = true,
     .vocab_size = 32000,
     .max_seq_len = 32768,
     .norm_eps = 1e-5,
     ROPE(1000000),
     .init_std = 0.02},
    {.name = "qwen3-30b-a3b",
     .family = SH_FAMILY_QWEN3_MOE,
     .n_layers = 48,
     .dim = 2048,
     .n_heads = 32,
     .n_kv_heads = 4,
     .head_dim = 128,
     .n_experts = 128,
     .n_experts_per_token = 8,
     .expert_ffn_dim = 768,
     .route_norm = true,
     .vocab_size = 151936,
     .max_seq_len = 40960,
     .norm_eps = 1e-6,
     ROPE(1000000),
     .init_std = 0.02},
    {.name = "olmoe-1b-7b",
     .family = SH_FAMILY_OLMOE,
     .n_layers = 16,
     .dim = 2048,
     .n_heads = 16,
     .n_kv_heads = 16,
     .head_dim = 128,
     .n_experts = 64,
     .n_experts_per_token = 8,
     .expert_ffn_dim = 1024,
     .vocab_size = 50304,
     .max_seq_len = 4096,
     .norm_eps = 1e-5,
     PLAIN_ROPE,
     .init_std = 0.02},
    {.name = "gpt-oss-20b",
     .family = SH_FAMILY_GPT_OSS,
     .n_layers = 24,
     .dim = 2880,
     .n_heads = 64,
     .n_kv_heads = 8,
     .head_dim = 64,
     .n_experts = 32,
     .n_experts_per_token = 4,
     .expert_ffn_dim = 2880,
     .route_norm = true,
     .vocab_size = 201088,
     .max_seq_len = 131072,
     .attention_window = 128,
     .layer_types = "sliding,full",
     .norm_eps = 1e-5,
     .rope_theta = 150000,
     .rope_factor = 32,
     .rope_type = SH_ROPE_YARN,
     .rope_original_max_len = 4096,
     .rope_low_freq_factor = 1,
     .rope_high_freq_factor = 4,
     .rope_beta_fast = 32,
     .rope_beta_slow = 1,
     .init_std = 0.02},
    {.name = "command-r7b",
     .family = SH_FAMILY_COHERE2,
     .n_layers = 32,
     .dim = 4096,
     .n_heads = 32,
     .n_kv_heads = 8,
     .head_dim = 128,
     .ffn_dim = 14336,
     .vocab_size = 256000,
     .max_seq_len = 8192,
     .attention_window = 4096,
     .layer_types = "3*sliding,full_nope",
     .logits_scaling = 4,
     .norm_eps = 1e-5,
     ROPE(50000),
     .tie_word_embeddings = true,
     .init_std = 0.02},
    {.name = "gemma2-2b", GEMMA2_BASE, .n_layers = 26, .dim = 2304, .n_heads = 8, .n_kv_heads = 4, .ffn_dim = 9216},
    {.name = "gemma2-9b", GEMMA2_BASE, .n_layers = 42, .dim = 3584, .n_heads = 16, .n_kv_heads = 8, .ffn_dim = 14336},
    {.name = "gemma-4-e2b",
     GEMMA4_SMALL,
     .n_layers = 35,
     .dim = 1536,
     .n_kv_heads = 1,
     .ffn_dim = 6144,
     .layer_types = "4*sliding,full",
     .kv_shared_layers = 20,
     .double_wide_ffn = true},
    {.name = "gemma-4-e4b",
     GEMMA4_SMALL,
     .n_layers = 42,
     .dim = 2560,
     .n_kv_heads = 2,
     .ffn_dim = 10240,
     .layer_types = "5*sliding,full",
     .kv_shared_layers = 18},
    {.name = "deepseek-v3",
     .family = SH_FAMILY_DEEPSEEK_V3,
     .n_layers = 61,
     .dim = 7168,
     .n_heads = 128,
     .n_kv_heads = 128,
     .head_dim = 192,
     .rotary_dim = 64,
     .q_lora_rank = 1536,
     .kv_lora_rank = 512,
     .v_head_dim = 128,
     .ffn_dim = 18432,
     .n_experts = 256,
     .n_experts_per_token = 8,
     .expert_ffn_dim = 2048,
     .shared_ffn_dim = 2048,
     .first_dense_layers = 3,
     .router = SH_ROUTER_SIGMOID,
     .router_bias = true,
     .route_norm = true,
     .route_scale = 2.5,
     .route_groups = 8,
     .route_top_groups = 4,
     .vocab_size = 129280,
     .max_seq_len = 163840,
     .norm_eps = 1e-6,
     PLAIN_ROPE,
     .rope_type = SH_ROPE_YARN,
     .rope_factor = 40,
     .rope_original_max_len = 4096,
     .rope_attention_factor = 1,
     .rope_mscale_all_dim = 1,
     .init_std = 0.02},
    {.name = "nemotron-3-nano",
     .family = SH_FAMILY_NEMOTRON_H,
     .n_layers = 52,
     .dim = 2688,
     .n_heads = 32,
     .n_kv_heads = 2,
     .head_dim = 128,
     .ffn_dim = 1856,
     .layer_types = "linear,moe,linear,moe,linear,full_nope,moe,linear,moe,linear,moe,linear,full_nope,moe,linear,"
                    "moe,linear,moe,linear,full_nope,moe,linear,moe,linear,moe,linear,full_nope,moe,linear,moe,"
                    "linear,moe,linear,full_nope,moe,linear,moe,linear,moe,linear,moe,linear,full_nope,moe,linear,"
                    "moe,linear,moe,linear,moe,linear,moe",
     .linear_key_heads = 8,
     .linear_value_heads = 64,
     .linear_key_dim = 128,
     .linear_value_dim = 64,
     .linear_conv_size = 4,
     .linear_least_step = 0.001,
     .n_experts = 128,
     .n_experts_per_token = 6,
     .expert_ffn_dim = 1856,
     .shared_ffn_dim = 3712,
     .router = SH_ROUTER_SIGMOID,
     .router_bias = true,
     .route_norm = true,
     .route_scale = 2.5,
     .vocab_size = 131072,
     .max_seq_len = 262144,
     .norm_eps = 1e-5,
     ROPE(10000),
     .init_std = 0.02},
    {.name = "granite-4.0-h-micro",
     .dim = 2048,
     .n_heads = 32,
     .n_kv_heads = 8,
     .head_dim = 64,
     .ffn_dim = 8192,
     .linear_value_heads = 64,
     .query_pre_attn_scalar = 4096,
     .logits_scaling = 8,
     GRANITE4_BASE},
    {.name = "granite-4.0-h-tiny",
     .dim = 1536,
     .n_heads = 12,
     .n_kv_heads = 4,
     .head_dim = 128,
     .n_experts = 64,
     .n_experts_per_token = 6,
     .expert_ffn_dim = 512,
     .shared_ffn_dim = 1024,
     .route_norm = true,
     .linear_value_heads = 48,
     .query_pre_attn_scalar = 16384,
     .logits_scaling = 6,
     GRANITE4_BASE},
    {.name = "granite-4.0-h-small",
     .dim = 4096,
     .n_heads = 32,
     .n_kv_heads = 8,
     .head_dim = 128,
     .n_experts = 72,
     .n_experts_per_token = 10,
     .expert_ffn_dim = 768,
     .shared_ffn_dim = 1536,
     .route_norm = true,
     .linear_value_heads = 128,
     .query_pre_attn_scalar = 16384,
     .logits_scaling = 16,
     GRANITE4_BASE},
    {.name = "qwen3.5-9b",
     .family = SH_FAMILY_QWEN3_5_TEXT,
     .n_layers = 32,
     .dim = 4096,
     .n_heads = 16,
     .n_kv_heads = 4,
     .head_dim = 256,
     .ffn_dim = 12288,
     .vocab_size = 248320,
     .max_seq_len = 262144,
     .layer_types = "3*linear,full",
     .linear_key_heads = 16,
     .linear_value_heads = 32,
     .linear_key_dim = 128,
     .linear_value_dim = 128,
     .linear_conv_size = 4,
     .rotary_dim = 64,
     .norm_eps = 1e-6,
     ROPE(10000000),
     .init_std = 0.02},
};
enum { PRESETS = sizeof presets / sizeof presets[0], DEFAULT_SEQ_LEN = 2048 };

/* NULL after the last one. */
const char *sh_config_preset_name(int i)
{
    return i >= 0 && i < PRESETS ? presets[i].name : NULL;
}

/* The message lists all presets: there are few. */
static sh_rc no_such_preset(struct sh_config_state *state)
{
    char shown[SH_CONFIG_SHOWN], all[512] = "";
    const char *names[PRESETS];
    for (int i = 0; i < PRESETS; i++) {
        names[i] = presets[i].name;
        sh_str_add(all, sizeof all, ", ", names[i]);
    }
    const char *nearest = sh_str_nearest(state->cfg.model.name, PRESETS, names);
    return sh_config_refuse(state, "model.name", "no preset '%s' (known: %s, custom)%s%s",
                            sh_config_text_shown(state->cfg.model.name, shown), all,
                            nearest != NULL ? "; nearest is " : "", nearest != NULL ? nearest : "");
}

/* NULL: no such preset. */
static const struct sh_model *find_preset(const char *name)
{
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

/* A preset is a whole struct sh_model; the offset of a key says where its value is in it. */
static void copy_what_is_not_given(struct sh_config_state *state, const struct sh_model *preset)
{
    const size_t section = offsetof(struct sh_config_state, cfg.model);
    for (int i = 0; i < sh_config_n_keys; i++) {
        const struct sh_config_key *key = &sh_config_keys[i];
        /* Keys of other sections lie outside of the struct. */
        bool in_section = key->offset >= section && key->offset < section + sizeof *preset;
        if (in_section && state->given[i].source == SH_SOURCE_DEFAULT)
            memcpy((char *)state + key->offset, (const char *)preset + (key->offset - section), key->size);
    }
}

/* Report the first dimension that nothing has set. The three that follow from others are derived afterwards. */
static sh_rc check_complete(const struct sh_model *m)
{
    const struct {
        const char *key;
        int value;
    } needed[] = {
        {"n_layers", m->n_layers},       {"dim", m->dim}, {"n_heads", m->n_heads}, {"vocab_size", m->vocab_size},
        {"max_seq_len", m->max_seq_len},
    };
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (needed[i].value == 0)
            return sh_fail(SH_E_USAGE, "model.%s: not given; give it, or choose a preset with model.name",
                           needed[i].key);
    return SH_OK;
}

/* The width used by published models: four times the stream. With SwiGLU, the same work in three matrices instead of
 * two, rounded up to a multiple of 64. */
static void derive_ffn(struct sh_model *m)
{
    enum { ROUND = 64 };
    if (m->ffn_dim == 0 && sh_family_of(m->family)->gelu)
        m->ffn_dim = 4 * m->dim;
    else if (m->ffn_dim == 0)
        m->ffn_dim = (8 * m->dim / 3 + ROUND - 1) / ROUND * ROUND;
}

/* If a preset has as many key-value heads as query heads, keep them equal when model.n_heads is changed. */
static void follow_heads(struct sh_config_state *state, const struct sh_model *preset)
{
    bool given = sh_config_place_of(state, "model.n_kv_heads")->source != SH_SOURCE_DEFAULT;
    if (!given && preset->n_kv_heads == preset->n_heads)
        state->cfg.model.n_kv_heads = state->cfg.model.n_heads;
}

/* head_dim follows from dim and n_heads unless it is given, which some models need. */
static sh_rc derive_heads(struct sh_config_state *state)
{
    struct sh_model *m = &state->cfg.model;
    if (m->n_kv_heads == 0)
        m->n_kv_heads = m->n_heads;
    if (m->query_pre_attn_scalar == 0 && sh_family_of(m->family)->global_heads)
        m->query_pre_attn_scalar = 1;
    if (m->head_dim != 0)
        return SH_OK;
    if (m->dim % m->n_heads != 0)
        return sh_config_refuse(state, "model.dim", "%d is not a multiple of model.n_heads %d; give model.head_dim",
                                m->dim, m->n_heads);
    m->head_dim = m->dim / m->n_heads;
    return SH_OK;
}

/* Some families divide the scores of experts by their sum, have biases to move, or a least step as in their class; a given
 * value wins. */
static void derive_switches(struct sh_config_state *state)
{
    const struct sh_family *f = sh_family_of(state->cfg.model.family);

    if (sh_config_place_of(state, "model.route_norm")->source == SH_SOURCE_DEFAULT)
        state->cfg.model.route_norm |= f->route_norm && sh_family_takes_experts(&state->cfg.model);
    if (sh_config_place_of(state, "model.router_bias")->source == SH_SOURCE_DEFAULT)
        state->cfg.model.router_bias |= state->cfg.moe.load_balance_coeff > 0;
    if (sh_config_place_of(state, "model.linear_least_step")->source == SH_SOURCE_DEFAULT)
        state->cfg.model.linear_least_step = f->least_step;
}

/* A schedule on the command line comes before a number in the file. A text that cannot be read is refused by the
 * checks. */
static void derive_batch(struct sh_config_state *state)
{
    const struct sh_config_place *schedule = sh_config_place_of(state, "training.batch_schedule"),
                                 *batch = sh_config_place_of(state, "training.global_batch_size");
    struct sh_batches b;

    if (sh_batches_read(state->cfg.training.batch_schedule, &b) != SH_OK)
        sh_error_clear();
    else if (b.n && (state->cfg.training.global_batch_size < 0 || schedule->source > batch->source))
        state->cfg.training.global_batch_size = (int)sh_batches_most(&b);
}

/* Order: the preset, the keys that must be set, then the keys that follow from them. A default sequence is never longer
 * than the model allows. */
sh_rc sh_config_preset_apply(struct sh_config_state *state)
{
    struct sh_model *m = &state->cfg.model;
    /* Printed configurations then say "custom". */
    if (m->name[0] == '\0')
        strcpy(m->name, "custom");
    if (strcmp(m->name, "custom") != 0) {
        const struct sh_model *preset = find_preset(m->name);
        if (preset == NULL)
            return no_such_preset(state);
        copy_what_is_not_given(state, preset);
        follow_heads(state, preset);
    }
    SH_TRY(check_complete(m));
    derive_ffn(m);
    derive_switches(state);
    SH_TRY(sh_config_alias_layers(state));
    SH_TRY(derive_heads(state));
    if (state->cfg.training.seq_len == 0)
        state->cfg.training.seq_len = m->max_seq_len < DEFAULT_SEQ_LEN ? m->max_seq_len : DEFAULT_SEQ_LEN;
    derive_batch(state);
    return SH_OK;
}
