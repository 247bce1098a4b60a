#include "src/config/family.h"

#include "src/config/words.h"

/* Names of Llama, which most families took over. */
#define LLAMA_STREAM                                                                                     \
    .wte = "model.embed_tokens", .block = "model.layers", .final_norm = "model.norm", .head = "lm_head", \
    .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .o = "self_attn.o_proj"
#define LLAMA_QKV .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj"
#define LLAMA_MLP .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"

static const struct sh_family families[] = {
#define FAMILY(id, word, ...) [SH_FAMILY_##id] = {.name = word, __VA_ARGS__},
#include "src/config/family.inc"
#undef FAMILY
};

const struct sh_family *sh_family_of(int word)
{
    return &families[word];
}
