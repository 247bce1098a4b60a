#include "src/config/family.h"

#include "src/config/words.h"

/* Names of Llama, which most families took over. */
#define LLAMA_STREAM                                                                                     \
    .wte = "model.embed_tokens", .block = "model.layers", .final_norm = "model.norm", .head = "lm_head", \
    .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .o = "self_attn.o_proj"
#define LLAMA_QKV .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj"
#define QK_NORM .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"
#define LLAMA_MLP .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"

/* Rows come from family.inc, which the words of the key come from as well: a family cannot be in one and not in the
 * other. */
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
