#include "src/config/family.h"

#include "src/config/words.h"

/* Sources: modeling_*.py and configuration_*.py of Hugging Face's transformers. */
static const struct sh_family families[] = {
    [SH_FAMILY_LLAMA] = {.name = "llama",
                         .architecture = "LlamaForCausalLM",
                         .wte = "model.embed_tokens",
                         .block = "model.layers",
                         .final_norm = "model.norm",
                         .head = "lm_head",
                         .norm1 = "input_layernorm",
                         .q = "self_attn.q_proj",
                         .k = "self_attn.k_proj",
                         .v = "self_attn.v_proj",
                         .o = "self_attn.o_proj",
                         .norm2 = "post_attention_layernorm",
                         .gate = "mlp.gate_proj",
                         .up = "mlp.up_proj",
                         .down = "mlp.down_proj"},
    [SH_FAMILY_GPT2] = {.name = "gpt2",
                        .architecture = "GPT2LMHeadModel",
                        .layer_norm = true,
                        .learned_positions = true,
                        .gelu = true,
                        .attention_bias = true,
                        .mlp_bias = true,
                        .w_in_out = true,
                        .one_width = true,
                        .wte = "transformer.wte",
                        .wpe = "transformer.wpe",
                        .block = "transformer.h",
                        .final_norm = "transformer.ln_f",
                        .head = "lm_head",
                        .norm1 = "ln_1",
                        .q = "attn.c_attn",
                        .o = "attn.c_proj",
                        .norm2 = "ln_2",
                        .up = "mlp.c_fc",
                        .down = "mlp.c_proj"},
};

const struct sh_family *sh_family_of(int word)
{
    return &families[word];
}
