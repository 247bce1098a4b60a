#include "src/config/family.h"

#include "src/config/words.h"

/* Names of Llama, which most families took over. */
#define LLAMA_STREAM                                                                                     \
    .wte = "model.embed_tokens", .block = "model.layers", .final_norm = "model.norm", .head = "lm_head", \
    .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .o = "self_attn.o_proj"
#define LLAMA_QKV .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj"
#define LLAMA_MLP .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"

/* Sources: modeling_*.py and configuration_*.py of Hugging Face's transformers. */
static const struct sh_family families[] = {
    [SH_FAMILY_LLAMA] = {.name = "llama",
                         .architecture = "LlamaForCausalLM",
                         .bias_keys = true,
                         LLAMA_STREAM,
                         LLAMA_QKV,
                         LLAMA_MLP},
    [SH_FAMILY_GPT2] = {.name = "gpt2",
                        .architecture = "GPT2LMHeadModel",
                        .layer_norm = true,
                        .learned_positions = true,
                        .gelu = true,
                        .qkv_bias = true,
                        .o_bias = true,
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
    [SH_FAMILY_MISTRAL] = {.name = "mistral", /* without a window: attention sees the whole sequence */
                           .architecture = "MistralForCausalLM",
                           LLAMA_STREAM,
                           LLAMA_QKV,
                           LLAMA_MLP},
    [SH_FAMILY_QWEN2] = {.name = "qwen2", /* 2, 2.5 and what is distilled into them; without a window */
                         .architecture = "Qwen2ForCausalLM",
                         .qkv_bias = true,
                         LLAMA_STREAM,
                         LLAMA_QKV,
                         LLAMA_MLP},
    [SH_FAMILY_PHI3] = {.name = "phi3",
                        .architecture = "Phi3ForCausalLM",
                        LLAMA_STREAM,
                        .q = "self_attn.qkv_proj",
                        .up = "mlp.gate_up_proj",
                        .down = "mlp.down_proj"},
    [SH_FAMILY_SMOLLM3] = {.name = "smollm3",
                           .architecture = "SmolLM3ForCausalLM",
                           .bias_keys = true,
                           .no_rope_layer_interval = 4,
                           LLAMA_STREAM,
                           LLAMA_QKV,
                           LLAMA_MLP},
    [SH_FAMILY_STARCODER2] = {.name = "starcoder2",
                              .architecture = "Starcoder2ForCausalLM",
                              .layer_norm = true,
                              .gelu = true,
                              .qkv_bias = true,
                              .o_bias = true,
                              .mlp_bias = true,
                              LLAMA_STREAM,
                              LLAMA_QKV,
                              .up = "mlp.c_fc",
                              .down = "mlp.c_proj"},
};

const struct sh_family *sh_family_of(int word)
{
    return &families[word];
}
