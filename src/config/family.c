#include "src/config/family.h"

#include "src/config/layers.h"
#include "src/config/words.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Names from Llama, which most families adopted. */
#define LLAMA_STREAM                                                                                     \
    .wte = "model.embed_tokens", .block = "model.layers", .final_norm = "model.norm", .head = "lm_head", \
    .norm = {"input_layernorm", "post_attention_layernorm"}, .o = "self_attn.o_proj"
#define LLAMA_QKV .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj"
#define QK_NORM .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"
#define QWEN_EXPERTS                                                                         \
    .router = "mlp.gate", .experts = "mlp.experts", .expert_up = "mlp.experts.gate_up_proj", \
    .expert_down = "mlp.experts.down_proj"
#define GRANITE_EXPERTS                                                         \
    .router = "block_sparse_moe.router", .experts = "block_sparse_moe.experts", \
    .expert_up = "block_sparse_moe.experts.gate_up_proj", .expert_down = "block_sparse_moe.experts.down_proj"
#define OLMO_STREAM                                                                                       \
    .norm_after = true, .wte = "model.embed_tokens", .block = "model.layers", .final_norm = "model.norm", \
    .head = "lm_head", .o = "self_attn.o_proj", .norm = {"post_attention_layernorm", "post_feedforward_layernorm"}
#define GEMMA_STREAM                                                                                     \
    .wte = "model.embed_tokens", .block = "model.layers", .final_norm = "model.norm", .head = "lm_head", \
    .norm = {"input_layernorm", "pre_feedforward_layernorm"}, .o = "self_attn.o_proj",                   \
    .after = {"post_attention_layernorm", "post_feedforward_layernorm"}
#define COHERE_STREAM                                                                                           \
    .layer_norm = true, .norm_no_bias = true, .rope_pairs = true, .parallel = true, .attention_bias_key = true, \
    .wte = "model.embed_tokens", .block = "model.layers", .final_norm = "model.norm", .head = "lm_head",        \
    .norm = {"input_layernorm"}, .o = "self_attn.o_proj"
#define DELTA                                                                                                  \
    .delta = "linear_attn", .delta_qkv = "linear_attn.in_proj_qkv", .delta_z = "linear_attn.in_proj_z",        \
    .delta_b = "linear_attn.in_proj_b", .delta_a = "linear_attn.in_proj_a", .delta_o = "linear_attn.out_proj", \
    .delta_conv = "linear_attn.conv1d", .delta_norm = "linear_attn.norm"
#define SCAN(module)                                                                              \
    .scan = true, .delta = module, .delta_qkv = module ".in_proj", .delta_o = module ".out_proj", \
    .delta_conv = module ".conv1d", .delta_norm = module ".norm"
#define LLAMA_MLP .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"

/* Both these rows and the words of the key come from family.inc, so a family cannot be in one and not in the other. */
static const struct sh_family families[] = {
#define FAMILY(id, word, ...) [SH_FAMILY_##id] = {.name = word, __VA_ARGS__},
#include "src/config/family.inc"
#undef FAMILY
};

/* `word` is a checked value of model.family, so the index is in range. */
const struct sh_family *sh_family_of(int word)
{
    return &families[word];
}

bool sh_family_is_tied(const struct sh_model *m)
{
    return m->tie_word_embeddings && !m->num_labels;
}

bool sh_family_has_experts(const struct sh_model *m, int block)
{
    const struct sh_family *f = sh_family_of(m->family);

    if (f->single) /* one look at the list, which may be long */
        return f->router && sh_layers_kind(m, block) & SH_LAYER_MOE;
    return sh_family_takes_experts(m) && block >= m->first_dense_layers &&
           (m->moe_every == 0 || (block + 1) % m->moe_every == 0);
}

bool sh_family_takes_experts(const struct sh_model *m)
{
    const struct sh_family *f = sh_family_of(m->family);

    if (!f->router)
        return false;
    return f->single ? sh_layers_any(m, SH_LAYER_MOE) : m->n_experts || !f->dense_too;
}

bool sh_family_has_rope(const struct sh_model *m)
{
    const struct sh_family *f = sh_family_of(m->family);

    for (int i = 0; i < m->n_layers && f->scan; i++)
        if (sh_layers_kind(m, i) == 0)
            return true;
    return !f->learned_positions && !f->scan;
}

bool sh_family_is_global(const struct sh_model *m, int block)
{
    return sh_family_of(m->family)->global_heads && !(sh_layers_kind(m, block) & SH_LAYER_SLIDING);
}

int sh_family_global_dim(const struct sh_model *m)
{
    return m->global_head_dim ? m->global_head_dim : m->head_dim;
}

bool sh_family_shares_kv(const struct sh_model *m, int block)
{
    return block >= m->n_layers - m->kv_shared_layers;
}

int sh_family_kv_source(const struct sh_model *m, int block)
{
    int source = m->n_layers - m->kv_shared_layers - 1;

    while (source >= 0 && sh_family_is_global(m, source) != sh_family_is_global(m, block))
        source--;
    return source;
}

bool sh_family_is_kv_source(const struct sh_model *m, int block)
{
    for (int i = m->n_layers - m->kv_shared_layers; i < m->n_layers && !sh_family_shares_kv(m, block); i++)
        if (sh_family_kv_source(m, i) == block)
            return true;
    return false;
}

bool sh_family_has_delta(const struct sh_model *m, int block)
{
    return (sh_layers_kind(m, block) & SH_LAYER_LINEAR) != 0;
}

bool sh_family_has_mixer(const struct sh_model *m, int block)
{
    return !(sh_layers_kind(m, block) & (SH_LAYER_MLP | SH_LAYER_MOE));
}

bool sh_family_has_ffn(const struct sh_model *m, int block)
{
    return !sh_family_of(m->family)->single || !sh_family_has_mixer(m, block);
}

int64_t sh_family_delta_columns(const struct sh_model *m)
{
    return 2 * (int64_t)m->linear_key_heads * m->linear_key_dim + (int64_t)m->linear_value_heads * m->linear_value_dim;
}

int sh_family_blocks_with_experts(const struct sh_model *m, int blocks)
{
    int n = 0;

    for (int i = 0; i < blocks; i++)
        n += sh_family_has_experts(m, i);
    return n;
}

const char *sh_family_linear_name(const struct sh_family *f, enum sh_param_role which)
{
    const char *const names[SH_PARAM_PRODUCTS] = {[SH_PARAM_Q] = f->q,
                                                  [SH_PARAM_K] = f->k,
                                                  [SH_PARAM_V] = f->v,
                                                  [SH_PARAM_O] = f->o,
                                                  [SH_PARAM_GATE] = f->gate,
                                                  [SH_PARAM_UP] = f->up,
                                                  [SH_PARAM_DOWN] = f->down,
                                                  [SH_PARAM_Q_A] = f->q_a,
                                                  [SH_PARAM_Q_B] = f->q_b,
                                                  [SH_PARAM_KV_A] = f->kv_a,
                                                  [SH_PARAM_KV_B] = f->kv_b,
                                                  [SH_PARAM_ROUTER] = f->router,
                                                  [SH_PARAM_EXPERT_UP] = f->expert_up,
                                                  [SH_PARAM_EXPERT_DOWN] = f->expert_down,
                                                  [SH_PARAM_SHARED_GATE] = f->shared_gate,
                                                  [SH_PARAM_SHARED_UP] = f->shared_up,
                                                  [SH_PARAM_SHARED_DOWN] = f->shared_down,
                                                  [SH_PARAM_SHARED_WEIGHT] = f->shared_weight,
                                                  [SH_PARAM_DELTA_QKV] = f->delta_qkv,
                                                  [SH_PARAM_DELTA_Z] = f->delta_z,
                                                  [SH_PARAM_DELTA_B] = f->delta_b,
                                                  [SH_PARAM_DELTA_A] = f->delta_a,
                                                  [SH_PARAM_DELTA_O] = f->delta_o,
                                                  [SH_PARAM_PER_LAYER_GATE] = f->per_layer_gate,
                                                  [SH_PARAM_PER_LAYER_OUT] = f->per_layer_out,
                                                  [SH_PARAM_PER_LAYER_IN] = f->per_layer_in};
    return names[which];
}

/* The dimensions of one product, which may be a stack of several in one parameter. */
void sh_family_linear_dims(const struct sh_model *m, enum sh_param_role which, int64_t *in, int64_t *out)
{
    const struct sh_family *f = sh_family_of(m->family);
    int64_t q = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim, ffn = m->ffn_dim;
    int64_t up = f->gelu || f->gate ? ffn : 2 * ffn;
    int64_t expert = m->expert_ffn_dim, shared = m->shared_ffn_dim, asked = f->attention_gate ? 2 * q : q;
    int64_t shared_up = f->shared_gate || f->gelu ? shared : 2 * shared;
    int64_t plain = m->head_dim - m->rotary_dim, values = (int64_t)m->n_heads * m->v_head_dim; /* of latent attention */
    int64_t heads = m->linear_value_heads, made = heads * m->linear_value_dim; /* of blocks with a state */
    int64_t per_layer = (int64_t)m->n_layers * m->per_layer_dim;
    int64_t asked_of_state = sh_family_delta_columns(m) + (f->scan ? made + heads : 0);
    const int64_t dims[SH_PARAM_PRODUCTS][2] = {[SH_PARAM_Q] = {m->dim, f->k || f->kv_a ? asked : q + 2 * kv},
                                                [SH_PARAM_K] = {m->dim, kv},
                                                [SH_PARAM_V] = {m->dim, kv},
                                                [SH_PARAM_O] = {f->kv_a ? values : q, m->dim},
                                                [SH_PARAM_Q_A] = {m->dim, m->q_lora_rank},
                                                [SH_PARAM_Q_B] = {m->q_lora_rank, q},
                                                [SH_PARAM_KV_A] = {m->dim, m->kv_lora_rank + m->rotary_dim},
                                                [SH_PARAM_KV_B] = {m->kv_lora_rank, m->n_heads * plain + values},
                                                [SH_PARAM_GATE] = {m->dim, ffn},
                                                [SH_PARAM_UP] = {m->dim, up},
                                                [SH_PARAM_DOWN] = {ffn, m->dim},
                                                [SH_PARAM_ROUTER] = {m->dim, m->n_experts},
                                                [SH_PARAM_EXPERT_UP] = {m->dim, f->gelu ? expert : 2 * expert},
                                                [SH_PARAM_EXPERT_DOWN] = {expert, m->dim},
                                                [SH_PARAM_SHARED_GATE] = {m->dim, shared},
                                                [SH_PARAM_SHARED_UP] = {m->dim, shared_up},
                                                [SH_PARAM_SHARED_DOWN] = {shared, m->dim},
                                                [SH_PARAM_SHARED_WEIGHT] = {m->dim, 1},
                                                [SH_PARAM_DELTA_QKV] = {m->dim, asked_of_state},
                                                [SH_PARAM_DELTA_Z] = {m->dim, made},
                                                [SH_PARAM_DELTA_B] = {m->dim, heads},
                                                [SH_PARAM_DELTA_A] = {m->dim, heads},
                                                [SH_PARAM_DELTA_O] = {made, m->dim},
                                                [SH_PARAM_PER_LAYER_GATE] = {m->dim, m->per_layer_dim},
                                                [SH_PARAM_PER_LAYER_OUT] = {m->per_layer_dim, m->dim},
                                                [SH_PARAM_PER_LAYER_IN] = {m->dim, per_layer}};
    *in = dims[which][0];
    *out = dims[which][1];
}

bool sh_family_linear_bias(const struct sh_model *m, enum sh_param_role which)
{
    const struct sh_family *f = sh_family_of(m->family);

    switch (which) {
    case SH_PARAM_Q:
    case SH_PARAM_K:
    case SH_PARAM_V: return f->qkv_bias || m->attention_bias;
    case SH_PARAM_O: return f->o_bias || m->attention_bias;
    case SH_PARAM_Q_A:
    case SH_PARAM_Q_B:
    case SH_PARAM_KV_A:
    case SH_PARAM_KV_B: return false;
    case SH_PARAM_ROUTER:
    case SH_PARAM_EXPERT_UP:
    case SH_PARAM_EXPERT_DOWN: return f->expert_bias;
    case SH_PARAM_DELTA_QKV:
    case SH_PARAM_DELTA_Z:
    case SH_PARAM_DELTA_B:
    case SH_PARAM_DELTA_A:
    case SH_PARAM_DELTA_O:
    case SH_PARAM_PER_LAYER_GATE:
    case SH_PARAM_PER_LAYER_OUT:
    case SH_PARAM_PER_LAYER_IN: return false;
    default: return f->mlp_bias || m->mlp_bias;
    }
}

void sh_family_stack_name(const struct sh_family *f, enum sh_param_role which, char name[SH_FAMILY_WORD])
{
    const char *up = f->gelu ? "up_proj" : "gate_up_proj";

    snprintf(name, SH_FAMILY_WORD, "%s.%s", f->experts, which == SH_PARAM_EXPERT_UP ? up : "down_proj");
}

void sh_family_param_name(const struct sh_family *f, int block, const char *module, enum sh_param_role role, char *name,
                          size_t size)
{
    bool bare = f->experts_in_out && sh_param_info(role)->experts && !sh_param_info(role)->adapter;
    const char *ending = !bare ? sh_param_info(role)->ending : role == SH_PARAM_EXPERT_BIAS ? "_bias" : "";
    const char *dot = bare || !module[0] ? "" : "."; /* a number of the block itself has no module */

    if (block < 0)
        snprintf(name, size, "%s.%s", module, ending);
    else
        snprintf(name, size, "%s.%d.%s%s%s", f->block, block, module, dot, ending);
}

/* Matches like PEFT: the whole name, or its end after a dot. */
static bool is_named(const char *name, const char *word)
{
    size_t n = strlen(name), k = strlen(word);
    return n >= k && strcmp(name + n - k, word) == 0 && (n == k || name[n - k - 1] == '.');
}

/* Whether the model has the product: perhaps all of its blocks have experts, or none has a shared one. */
static bool has_product(const struct sh_model *m, int role)
{
    bool experts = false, dense = false, attention = false, delta = false;

    for (int i = 0; i < m->n_layers; i++) {
        bool with = sh_family_has_experts(m, i);

        delta = delta || sh_family_has_delta(m, i);
        attention = attention || (sh_family_has_mixer(m, i) && !sh_family_has_delta(m, i));
        experts = experts || with;
        dense = dense || (sh_family_has_ffn(m, i) && !with);
    }
    if (!sh_family_linear_name(sh_family_of(m->family), role))
        return false;
    if (role == SH_PARAM_Q && m->q_lora_rank)
        return false;
    if (role == SH_PARAM_V && m->keys_as_values && !sh_layers_any(m, SH_LAYER_SLIDING))
        return false;
    if (role == SH_PARAM_Q_A || role == SH_PARAM_Q_B)
        return m->q_lora_rank;
    if (role < SH_PARAM_GATE || role == SH_PARAM_KV_A || role == SH_PARAM_KV_B)
        return attention;
    if (role >= SH_PARAM_PER_LAYER_GATE)
        return m->per_layer_dim;
    if (role >= SH_PARAM_DELTA_QKV)
        return delta;
    if (role < SH_PARAM_LINEARS)
        return dense;
    return experts && (role < SH_PARAM_SHARED_GATE || m->shared_ffn_dim);
}

/* The bits of one word, which names stacks of experts or else modules; 0: it names nothing. */
static unsigned targets_of(const struct sh_model *m, const char *word, bool experts)
{
    const struct sh_family *f = sh_family_of(m->family);
    unsigned bits = 0;

    for (int i = 0; i < SH_PARAM_PRODUCTS; i++) {
        const struct sh_param_info *info = sh_param_info(i);
        char stack[SH_FAMILY_WORD];

        if (!(experts ? info->experts : info->linear) || !has_product(m, i))
            continue;
        sh_family_stack_name(f, i, stack);
        if (experts ? is_named(stack, word)
                    : strcmp(word, "all-linear") == 0 || is_named(sh_family_linear_name(f, i), word))
            bits |= 1u << i;
    }
    return bits;
}

static bool add_targets(const struct sh_model *m, const char *text, bool experts, unsigned *targets,
                        char bad[SH_FAMILY_WORD])
{
    static const char between[] = ", \t";

    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        size_t n = strcspn(text, between);
        unsigned bits;

        snprintf(bad, SH_FAMILY_WORD, "%.*s", n < SH_FAMILY_WORD ? (int)n : SH_FAMILY_WORD - 1, text);
        bits = targets_of(m, bad, experts);
        if (!bits)
            return false;
        *targets |= bits;
        text += n;
    }
    bad[0] = '\0';
    return true;
}

const char *sh_family_targets(const struct sh_model *m, const char *modules, const char *parameters, unsigned *targets,
                              char bad[SH_FAMILY_WORD])
{
    *targets = 0;
    if (!add_targets(m, parameters, true, targets, bad))
        return "lora.target_parameters";
    if (!add_targets(m, modules, false, targets, bad) || !*targets)
        return "lora.target_modules";
    return NULL;
}
