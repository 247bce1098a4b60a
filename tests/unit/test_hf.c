/* config.json to keys of `model`: both spellings, defaults of classes, and refusals; and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/foreign/hf/config/config.h"
#include "io/foreign/hf/config/family.h"
#include "io/foreign/hf/names.h"
#include "io/foreign/hf/stacked.h"
#include "src/base/file.h"
#include "src/config/family.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEMOTRON_OF(pattern) "\"model_type\":\"nemotron_h\",\"hybrid_override_pattern\":\"" pattern "\"}"
#define NEMOTRON(pattern) "{" NEMOTRON_OF(pattern)
#define DENSE4 "\"hidden_size_per_layer_input\":0"
#define SIZES_OF(layers)                                                                              \
    "\"vocab_size\":32,\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_layers\":" layers "," \
    "\"num_attention_heads\":4,\"max_position_embeddings\":64"
#define SIZES SIZES_OF("2")
#define LABELS ",\"architectures\":[\"LlamaForSequenceClassification\"]"
#define LLAMA "{\"model_type\":\"llama\"," SIZES
#define MISTRAL "{\"model_type\":\"mistral\"," SIZES
#define QWEN2 "{\"model_type\":\"qwen2\",\"num_key_value_heads\":2," SIZES
#define QWEN3 "{\"model_type\":\"qwen3\",\"num_key_value_heads\":2," SIZES
#define OLMO2 "{\"model_type\":\"olmo2\"," SIZES
#define NEOX "{\"model_type\":\"gpt_neox\"," SIZES
#define GEMMA "{\"model_type\":\"gemma\",\"num_key_value_heads\":2," SIZES
#define GEMMA2 "{\"model_type\":\"gemma2\",\"num_key_value_heads\":2," SIZES
#define DEEPSEEK                                                                                                          \
    "{\"model_type\":\"deepseek_v3\",\"q_lora_rank\":6,\"kv_lora_rank\":5,\"qk_rope_head_dim\":4,\"n_shared_experts\":2," \
    "\"num_key_value_heads\":4,\"moe_intermediate_size\":12,\"first_k_dense_replace\":1," SIZES
#define DEEPSEEK_YARN                                                                                          \
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":16,\"mscale\":0.5," \
    "\"mscale_all_dim\":0.5}}"
#define GEMMA3 "{\"model_type\":\"gemma3_text\",\"num_key_value_heads\":2," SIZES
#define PHI3 "{\"model_type\":\"phi3\"," SIZES
#define GRANITE "{\"model_type\":\"granite\"," SIZES
#define MINISTRAL3                                                                                                           \
    "{\"model_type\":\"ministral3\",\"rope_parameters\":{\"type\":\"yarn\",\"factor\":16,\"mscale\":1,\"mscale_all_dim\":1," \
    "\"max_position_embeddings\":262144,\"original_max_position_embeddings\":16384"
#define GPT_OSS                                                                                              \
    "{\"model_type\":\"gpt_oss\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32,\"truncate\":false," \
    "\"original_max_position_embeddings\":4096}"
#define GRANITEMOE "{\"model_type\":\"granitemoe\"," SIZES
#define HYBRID(list) \
    "{\"model_type\":\"granitemoehybrid\",\"mamba_n_heads\":4,\"mamba_d_state\":6,\"layer_types\":[" list "]," SIZES
#define MIXTRAL "{\"model_type\":\"mixtral\",\"num_key_value_heads\":2," SIZES
#define MOE "\"num_experts\":4,\"num_experts_per_tok\":2,\"num_key_value_heads\":2"
#define QWEN3_MOE(layers) "{\"model_type\":\"qwen3_moe\"," MOE "," SIZES_OF(layers)
#define QWEN2_MOE "{\"model_type\":\"qwen2_moe\"," MOE "," SIZES
#define OLMOE "{\"model_type\":\"olmoe\"," MOE "," SIZES
#define SMOLLM3 "{\"model_type\":\"smollm3\"," SIZES
#define STARCODER2 "{\"model_type\":\"starcoder2\"," SIZES
#define GPT2 "{\"model_type\":\"gpt2\",\"n_embd\":8,\"n_head\":2,\"n_layer\":1,\"n_positions\":16,\"vocab_size\":9"
#define YARN "\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":16"
#define LONGROPE "\"rope_type\":\"longrope\",\"short_factor\":[1,1.5],\"long_factor\":[2,3]"
#define FULL "\"layer_types\":[\"full_attention\",\"full_attention\"]"
#define SLIDING "\"layer_types\":[\"full_attention\",\"sliding_attention\"]"
#define WINDOW ",\"sliding_window\":8,\"use_sliding_window\":true"
#define S "\"sliding_attention\""
#define F "\"full_attention\""
#define SIX_BLOCKS(a, b, c, d, e, f)                                                                               \
    "{\"model_type\":\"qwen3\",\"num_key_value_heads\":2," SIZES_OF("6") WINDOW ",\"layer_types\":[" a "," b "," c \
                                                                                "," d "," e "," f "]"
#define SMOLLM3_OF(layers) "{\"model_type\":\"smollm3\"," SIZES_OF(layers) WINDOW
#define LLAMA3 "\"factor\":8,\"low_freq_factor\":1.5,\"high_freq_factor\":3,\"original_max_position_embeddings\":32"

/* text: of config.json; then "key=value" arguments, NULL: none; says: key and value of the result, or a part of the
 * error message. */
/* clang-format off */
static const struct {
    const char *text, *argument, *key, *says;
} rows[] = {
    /* defaults of classes, not "off" */
    {LLAMA "}", NULL, "model.family", "llama"},
    {LLAMA "}", NULL, "model.n_kv_heads", "4"},
    {LLAMA "}", NULL, "model.head_dim", "4"},
    {LLAMA "}", NULL, "model.norm_eps", "1e-06"},
    {LLAMA "}", NULL, "model.rope_theta", "10000"},
    {LLAMA "}", NULL, "model.rope_factor", "0"},
    {LLAMA "}", NULL, "model.tie_word_embeddings", "false"},
    {LLAMA "}", NULL, "model.name", "custom"},
    {LLAMA ",\"num_key_value_heads\":null,\"head_dim\":null}", NULL, "model.head_dim", "4"},
    {LLAMA ",\"num_key_value_heads\":2,\"head_dim\":6}", NULL, "model.head_dim", "6"},
    {LLAMA ",\"num_key_value_heads\":2,\"rms_norm_eps\":0.001}", NULL, "model.n_kv_heads", "2"},
    {GPT2 "}", NULL, "model.tie_word_embeddings", "true"},
    {GPT2 "}", NULL, "model.ffn_dim", "32"},
    {GPT2 ",\"n_inner\":null}", NULL, "model.ffn_dim", "32"},
    {GPT2 ",\"n_inner\":12}", NULL, "model.ffn_dim", "12"},
    {GPT2 ",\"layer_norm_epsilon\":1e-3}", NULL, "model.norm_eps", "0.001"},
    {"{\"model_type\":\"gpt2\"}", NULL, "model.dim", "768"},
    {"{\"model_type\":\"gpt2\"}", NULL, "model.vocab_size", "50257"},
    /* the command line wins, and a configuration file does not */
    {LLAMA "}", "model.tie_word_embeddings=true", "model.tie_word_embeddings", "true"},
    {LLAMA "}", "model.n_layers=1", "model.n_layers", "1"},
    {LLAMA "}", "model.name=debug", NULL, "--model.name: a preset as well as model.hf_assets_path"},
    {LLAMA "}", "model.hf_assets_path=x", NULL, "--model.hf: contradicts model.hf_assets_path given on the command line"},
    /* rotary positions in both spellings */
    {LLAMA ",\"rope_theta\":500}", NULL, "model.rope_theta", "500"},
    {LLAMA ",\"rope_scaling\":null}", NULL, "model.rope_factor", "0"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"llama3\"," LLAMA3 "}}", NULL, "model.rope_factor", "8"},
    {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "}}", NULL, "model.rope_high_freq_factor", "3"},
    {LLAMA ",\"rope_theta\":7,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500}}", NULL, "model.rope_theta", "500"},
    {LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5," LLAMA3 "}}", NULL, "model.rope_original_max_len",
     "32"},
    {LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_scaling\":{\"type\":\"llama3\"," LLAMA3 "}}", NULL, NULL,
     "rope_parameters and rope_scaling differ"},
    {LLAMA ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":9},\"rope_scaling\":{\"type\":\"linear\","
           "\"factor\":2.0}}", NULL, "model.rope_factor", "2"},
    {LLAMA ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2},\"rope_scaling\":{\"type\":\"linear\",\"factor\":3}}",
     NULL, NULL, "rope_parameters and rope_scaling differ"},
    {LLAMA ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2},\"rope_scaling\":{}}", NULL, "model.rope_type", "linear"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", NULL, "model.rope_factor", "0"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", NULL, "model.rope_type", "linear"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", NULL, NULL, "rope_scaling has no factor"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"beta_fast\":9}}", NULL, NULL, "rope_scaling.beta_fast is not"},
    {LLAMA ",\"rope_scaling\":{" YARN "}}", NULL, "model.rope_type", "yarn"},
    {LLAMA ",\"rope_scaling\":{" YARN "}}", NULL, "model.rope_original_max_len", "16"},
    {LLAMA ",\"rope_scaling\":{" YARN "},\"original_max_position_embeddings\":8}", NULL, "model.rope_original_max_len", "8"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}", NULL, "model.rope_original_max_len", "64"},
    {LLAMA ",\"rope_scaling\":{" YARN "}}", NULL, "model.rope_beta_fast", "32"},
    {LLAMA ",\"rope_scaling\":{" YARN ",\"beta_fast\":20,\"beta_slow\":null}}", NULL, "model.rope_beta_fast", "20"},
    {LLAMA ",\"rope_scaling\":{" YARN ",\"beta_slow\":0}}", NULL, "model.rope_beta_slow", "1"},
    {LLAMA ",\"rope_scaling\":{" YARN ",\"attention_factor\":1.5}}", NULL, "model.rope_attention_factor", "1.5"},
    {LLAMA ",\"rope_scaling\":{" YARN ",\"attention_factor\":0}}", NULL, NULL, "rope_scaling.attention_factor is 0"},
    {LLAMA ",\"rope_scaling\":{" YARN ",\"truncate\":false}}", NULL, "model.rope_truncate", "false"},
    {LLAMA ",\"rope_scaling\":{" YARN ",\"mscale\":1.0,\"mscale_all_dim\":1.0}}", NULL, "model.rope_attention_factor", "1"},
    {LLAMA ",\"rope_scaling\":{" YARN ",\"mscale\":0.707}}", NULL, "model.rope_attention_factor", "0"},
    {LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":8}}", NULL, NULL, "short_factor: longrope wants a list"},
    {LLAMA ",\"rope_scaling\":{" LONGROPE "}}", NULL, "model.rope_type", "longrope"},
    {LLAMA ",\"rope_scaling\":{" LONGROPE "}}", NULL, "model.rope_short_factor", "1,1.5"},
    {LLAMA ",\"rope_scaling\":{" LONGROPE "}}", NULL, "model.rope_long_factor", "2,3"},
    {LLAMA ",\"rope_scaling\":{" LONGROPE "}}", NULL, "model.rope_original_max_len", "64"},
    {LLAMA ",\"rope_scaling\":{" LONGROPE "}}", NULL, "model.rope_factor", "1"},
    {LLAMA ",\"rope_scaling\":{" LONGROPE ",\"factor\":8}}", NULL, "model.rope_factor", "8"},
    {LLAMA ",\"rope_scaling\":{" LONGROPE ",\"original_max_position_embeddings\":16}}", NULL, "model.rope_factor", "4"},
    {LLAMA ",\"rope_scaling\":{" LONGROPE ",\"attention_factor\":2}}", NULL, "model.rope_attention_factor", "2"},
    {LLAMA ",\"rope_scaling\":{" LONGROPE ",\"beta_fast\":9}}", NULL, NULL, "rope_scaling.beta_fast is not computed here"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"short_factor\":[2]}}", NULL, NULL, "short_factor is not computed here"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1,2]}}", NULL, NULL,
     "model.rope_short_factor: has 1 numbers, but 2 pairs of elements turn"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2],\"long_factor\":[1,0]}}", NULL, NULL,
     "model.rope_long_factor: must be numbers above 0"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2],\"long_factor\":[1,\"2\"]}}", NULL, NULL,
     "model.rope_long_factor: must be numbers above 0"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2],\"long_factor\":{}}}", NULL, NULL,
     "long_factor: longrope wants a list"},
    {LLAMA ",\"rope_scaling\":{\"rope_type\":\"proportional\"}}", NULL, NULL, "proportional is not computed here: it turns"},
    {LLAMA ",\"rope_scaling\":{\"rope_type\":\"x\"}}", NULL, NULL, "rope_type x is not known here"},
    {LLAMA ",\"rope_scaling\":{\"rope_type\":3}}", NULL, NULL, "rope_type is not a string"},
    {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", NULL, NULL, "rope_scaling has no low_freq_factor"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":0,\"low_freq_factor\":1}}", NULL, NULL, "rope_scaling.factor is 0"},
    {LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", NULL, NULL, "partial_rotary_factor 0.25 leaves no pair"},
    {LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":1.0}}", NULL, "model.rope_theta", "10000"},
    {LLAMA ",\"rope_parameters\":{\"rope_theta\":\"x\"}}", NULL, NULL, "rope_theta is a string, but must be a number"},
    {LLAMA ",\"rope_parameters\":[1]}", NULL, NULL, "rope_parameters is"},
    /* features that are not computed here */
    {LLAMA ",\"hidden_act\":\"gelu\"}", NULL, NULL, "hidden_act must be silu"},
    {LLAMA ",\"hidden_act\":\"swish\"}", NULL, "model.dim", "16"},
    {GPT2 ",\"activation_function\":\"relu\"}", NULL, NULL, "activation_function must be gelu_new"},
    {GPT2 ",\"scale_attn_weights\":false}", NULL, NULL, "scale_attn_weights must be true"},
    {GPT2 ",\"scale_attn_by_inverse_layer_idx\":true}", NULL, NULL, "scale_attn_by_inverse_layer_idx must be false"},
    {LLAMA ",\"auto_map\":{\"AutoModel\":\"x.Y\"}}", NULL, NULL, "code in the folder"},
    {LLAMA ",\"auto_map\":{\"AutoModel\":\"x.Y\"}}", "model.hf_ignore=auto_map", "model.dim", "16"},
    {LLAMA ",\"quantization_config\":{\"bits\":4}}", NULL, NULL, "only bitsandbytes nf4"},
    {"{\"model_type\":\"mamba\"}", NULL, NULL, "model_type mamba: it has no attention"},
    {"{\"model_type\":\"deepseek_v3\"}", NULL, "model.head_dim", "192"},
    {"{\"model_type\":\"deepseek_v3\"}", NULL, "model.router", "sigmoid"},
    {DEEPSEEK "}", NULL, "model.rotary_dim", "4"},
    {DEEPSEEK "}", NULL, "model.shared_ffn_dim", "24"},
    {DEEPSEEK "}", NULL, "model.first_dense_layers", "1"},
    {"{\"model_type\":\"deepseek_v3\",\"q_lora_rank\":null}", NULL, "model.q_lora_rank", "0"},
    {DEEPSEEK ",\"num_nextn_predict_layers\":1}", NULL, "model.n_layers", "2"},
    {DEEPSEEK "," DEEPSEEK_YARN, NULL, "model.rope_attention_factor", "1"},
    {DEEPSEEK "," DEEPSEEK_YARN, NULL, "model.rope_mscale_all_dim", "0.5"},
    {LLAMA "," DEEPSEEK_YARN, NULL, "model.rope_mscale_all_dim", "0"},
    {DEEPSEEK ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", NULL, NULL, "default and yarn are computed here"},
    {DEEPSEEK ",\"rope_interleave\":false}", NULL, NULL, "rope_interleave must be true"},
    {DEEPSEEK ",\"attention_bias\":true}", NULL, NULL, "attention_bias must be false"},
    {DEEPSEEK ",\"scoring_func\":\"softmax\"}", NULL, NULL, "scoring_func must be sigmoid"},
    {DEEPSEEK ",\"topk_method\":\"greedy\"}", NULL, NULL, "topk_method must be noaux_tc"},
    {"{\"model_type\":\"deepseek_v3\",\"n_shared_experts\":-1}", NULL, NULL, "n_shared_experts must be a whole number from 0"},
    {"{\"model_type\":\"lama\"}", NULL, NULL, "model_type lama is not known here; nearest is llama"},
    {"{\"model_type\":\"\\u001b[2J\"}", NULL, NULL, "is not known here"},
    {"{\"vocab_size\":3}", NULL, NULL, "it has no model_type"},
    {"[]", NULL, NULL, "not an object"},
    {"{", NULL, NULL, "line 1"},
    {"{\"model_type\":\"llama\",\"model_type\":\"gpt2\"}", NULL, NULL, "duplicate"},
    /* sliding windows: absent in mistral they are 4096 */
    {MISTRAL ",\"sliding_window\":null}", NULL, NULL, "model.n_kv_heads: 8 does not divide"},
    {"{\"model_type\":\"mistral\"}", NULL, "model.n_kv_heads", "8"},
    {"{\"model_type\":\"mistral\"}", "training.seq_len=4097", "model.attention_window", "4096"},
    {MISTRAL ",\"num_key_value_heads\":2}", NULL, "model.n_kv_heads", "2"},
    {MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":null}", NULL, "model.attention_window", "0"},
    {MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":63}", NULL, "model.attention_window", "63"},
    {MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":63}", NULL, "training.seq_len", "64"},
    {MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":63}", NULL, "model.layer_types", ""},
    {MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":63}", "model.attention_window=9", "model.attention_window", "9"},
    {MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":63}", "model.hf_ignore=sliding_window", "model.attention_window", "0"},
    {MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":0}", NULL, NULL, "sliding_window 0 leaves"},
    {MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":99999999999}", NULL, NULL, "model.attention_window: 99999999999 is out of range"},
    {MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":\"8\"}", NULL, NULL, "sliding_window is a string"},
    {QWEN2 "}", NULL, "model.family", "qwen2"},
    {QWEN2 ",\"sliding_window\":8,\"max_window_layers\":1}", NULL, "model.attention_window", "0"},
    {QWEN2 WINDOW ",\"max_window_layers\":2}", NULL, "model.attention_window", "0"},
    {QWEN2 WINDOW ",\"max_window_layers\":1}", NULL, "model.attention_window", "8"},
    {QWEN2 WINDOW ",\"max_window_layers\":1}", NULL, "model.layer_types", "full,sliding"},
    {QWEN2 WINDOW "}", NULL, "model.attention_window", "0"},
    {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true}", NULL, "model.attention_window", "4096"},
    {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true}", NULL, "model.layer_types", "28*full,4*sliding"},
    {QWEN2 ",\"sliding_window\":0,\"use_sliding_window\":true,\"max_window_layers\":0}", NULL, NULL, "sliding_window 0 leaves"},
    {QWEN2 WINDOW "," FULL "}", NULL, "model.attention_window", "0"},
    {QWEN2 WINDOW "," SLIDING "}", NULL, "model.attention_window", "8"},
    {QWEN2 WINDOW "," SLIDING "}", NULL, "model.layer_types", "full,sliding"},
    {SIX_BLOCKS(S, S, F, S, S, F) "}", NULL, "model.layer_types", "2*sliding,full"},
    {SIX_BLOCKS(F, S, S, S, F, S) "}", NULL, "model.layer_types", "full,3*sliding,full,sliding"},
    {SIX_BLOCKS(S, S, S, S, S, S) "}", NULL, "model.layer_types", ""},
    {SIX_BLOCKS(S, F, F, S, S, S) "}", NULL, "model.layer_types", "sliding,2*full,3*sliding"},
    {SIX_BLOCKS(S, F, F, S, S, S) "}", "model.layer_types=full,sliding", "model.layer_types", "full,sliding"},
    {SIX_BLOCKS(S, F, F, S, S, S) "}", "model.full_attention_interval=2", "model.layer_types", "sliding,full"},
    {SIX_BLOCKS(S, F, F, S, S, S) "}", "model.attention_window=0", NULL, "need model.attention_window"},
    {SIX_BLOCKS(S, F, F, S, S, S) "}", "model.hf_ignore=sliding_window", "model.attention_window", "0"},
    {SMOLLM3 ",\"sliding_window\":8}", NULL, "model.attention_window", "0"},
    {SMOLLM3 WINDOW "}", NULL, "model.attention_window", "0"},
    {SMOLLM3 WINDOW ",\"no_rope_layer_interval\":2}", NULL, "model.layer_types", "full,sliding_nope"},
    {SMOLLM3_OF("4") ",\"no_rope_layer_interval\":2}", NULL, "model.layer_types", "full,sliding_nope"},
    {SMOLLM3_OF("8") "}", NULL, "model.layer_types", "3*full,sliding_nope"},
    {STARCODER2 ",\"sliding_window\":8}", NULL, "model.attention_window", "8"},
    {QWEN2 "," SLIDING "}", NULL, NULL, "layer_types has windows, and use_sliding_window is not true"},
    {QWEN2 ",\"layer_types\":[\"full_attention\"]}", NULL, NULL, "layer_types must have a word for each block"},
    {QWEN2 ",\"layer_types\":[\"full_attention\",\"linear_attention\"]}", NULL, NULL, "layer_types[1] is not computed here"},
    {MISTRAL ",\"num_key_value_heads\":2," FULL "}", NULL, NULL, "mathematics: layer_types;"},
    {"{\"model_type\":\"olmo3\"}", NULL, "model.layer_types", "3*sliding,full"},
    {"{\"model_type\":\"olmo3\",\"rope_theta\":7}", NULL, "model.rope_local_base_freq", "500000"},
    {"{\"model_type\":\"olmo3\",\"rope_theta\":7}", NULL, "model.rope_theta", "7"},
    {"{\"model_type\":\"olmo3\",\"sliding_window_pattern\":4}", NULL, NULL, "mathematics: sliding_window_pattern;"},
    {"{\"model_type\":\"olmo3\",\"rope_local_base_freq\":7}", NULL, NULL, "mathematics: rope_local_base_freq;"},
    {"{\"model_type\":\"exaone4\"}", NULL, "model.layer_types", "3*sliding,full_nope"},
    {"{\"model_type\":\"exaone4\",\"sliding_window\":null}", NULL, "model.layer_types", ""},
    {"{\"model_type\":\"exaone4\"}", "model.hf_ignore=sliding_window", "model.layer_types", "3*full,full_nope"},
    {"{\"model_type\":\"exaone4\",\"sliding_window_pattern\":\"LLLG\"}", NULL, NULL, "sliding_window_pattern must be a whole"},
    {"{\"model_type\":\"exaone4\",\"attention_bias\":true}", NULL, NULL, "mathematics: attention_bias;"},
    {"{\"model_type\":\"seed_oss\"}", NULL, "model.head_dim", "128"},
    {"{\"model_type\":\"seed_oss\",\"attention_bias\":false}", NULL, NULL, "attention_bias must be true"},
    {"{\"model_type\":\"seed_oss\",\"attention_out_bias\":true}", NULL, NULL, "attention_out_bias must be false"},
    {GPT_OSS "}", NULL, "model.layer_types", "sliding,full"},
    {GPT_OSS "}", NULL, "model.attention_window", "128"},
    {GPT_OSS "}", NULL, "model.rope_truncate", "false"},
    {GPT_OSS "}", NULL, "model.route_norm", "true"},
    {GPT_OSS ",\"swiglu_limit\":7,\"experts_per_token\":4}", NULL, "model.n_experts_per_token", "4"},
    {GPT_OSS ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}}", NULL, "model.n_experts", "128"},
    {LLAMA ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}}", NULL, NULL, "and mxfp4 of a gpt_oss, are read"},
    {GPT_OSS ",\"swiglu_limit\":6.5}", NULL, NULL, "swiglu_limit must be 7.0: the experts' clamp is 7"},
    {GPT_OSS ",\"swiglu_alpha\":1}", NULL, NULL, "swiglu_alpha must be 1.702"},
    {GPT_OSS ",\"attention_bias\":false}", NULL, NULL, "attention_bias must be true"},
    {GPT_OSS ",\"attention_bias\":1}", NULL, NULL, "attention_bias must be true"},
    {"{\"model_type\":\"gpt_oss\"}", NULL, NULL, "neither rope_parameters nor rope_scaling; for gpt_oss"},
    {"{\"model_type\":\"cohere2\"}", NULL, "model.layer_types", "3*sliding,full_nope"},
    {"{\"model_type\":\"cohere2\"}", NULL, "model.logits_scaling", "16"},
    {"{\"model_type\":\"cohere2\",\"logit_scale\":0.25}", NULL, "model.logits_scaling", "4"},
    {"{\"model_type\":\"cohere2\",\"logit_scale\":0}", NULL, NULL, "logit_scale must be a number from"},
    {"{\"model_type\":\"cohere2\",\"sliding_window\":null}", NULL, NULL, "cohere2 computes nothing without a window"},
    {"{\"model_type\":\"cohere2\",\"use_qk_norm\":true}", NULL, NULL, "mathematics: use_qk_norm;"},
    {"{\"model_type\":\"cohere\"}", NULL, "model.rope_theta", "500000"},
    {"{\"model_type\":\"cohere\",\"use_qk_norm\":null}", NULL, "model.family", "cohere"},
    {"{\"model_type\":\"cohere\",\"use_qk_norm\":true}", NULL, NULL, "use_qk_norm must be false: queries and keys have no LayerNorm here"},
    {"{\"model_type\":\"gemma4_text\"}", NULL, "model.per_layer_dim", "256"},
    {"{\"model_type\":\"gemma4_text\",\"vocab_size\":8}", NULL, NULL, "vocab_size_per_layer_input 262144, the class's default"},
    {"{\"model_type\":\"gemma4_text\",\"vocab_size\":8," DENSE4 "}", NULL, "model.per_layer_dim", "0"},
    {"{\"model_type\":\"gemma4_text\",\"hidden_size_per_layer_input\":-1}", NULL, NULL,
     "hidden_size_per_layer_input must be a whole number"},
    {"{\"model_type\":\"gemma4_text\"," DENSE4 "}", NULL, "model.global_head_dim", "512"},
    {"{\"model_type\":\"gemma4_text\"," DENSE4 "}", NULL, "model.rotary_dim", "128"},
    {"{\"model_type\":\"gemma4_text\"," DENSE4 "}", NULL, "model.layer_types", "5*sliding,full"},
    {"{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":3," DENSE4 "}", NULL, "model.layer_types", "2*sliding,full"},
    {"{\"model_type\":\"gemma4_text\",\"num_global_key_value_heads\":2," DENSE4 "}", NULL, "model.global_kv_heads", "0"},
    {"{\"model_type\":\"gemma4_text\",\"attention_k_eq_v\":true,\"num_global_key_value_heads\":2," DENSE4 "}", NULL,
     "model.global_kv_heads", "2"},
    {"{\"model_type\":\"gemma4_text\",\"num_kv_shared_layers\":4," DENSE4 "}", NULL, "model.kv_shared_layers", "4"},
    {"{\"model_type\":\"gemma4_text\",\"num_kv_shared_layers\":4,\"use_double_wide_mlp\":true," DENSE4 "}", NULL,
     "model.double_wide_ffn", "true"},
    {"{\"model_type\":\"gemma4_text\",\"use_double_wide_mlp\":true," DENSE4 "}", NULL, "model.double_wide_ffn", "false"},
    {"{\"model_type\":\"gemma4_text\",\"use_double_wide_mlp\":1," DENSE4 "}", NULL, NULL,
     "use_double_wide_mlp is a whole number, not true or false"},
    {"{\"model_type\":\"gemma4_text\",\"enable_moe_block\":true," DENSE4 "}", NULL, NULL, "enable_moe_block must be false"},
    {"{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":2,\"per_layer_config\":{\"0\":{\"head_dim\":8}}," DENSE4 "}", NULL, NULL,
     "per_layer_config.0: 4 heads of keys of 8 elements; blocks of its kind have 4 of 256"},
    {"{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":2,\"per_layer_config\":{\"1\":{\"head_dim\":8}}," DENSE4 "}", NULL,
     "model.global_head_dim", "8"},
    {"{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":1,\"per_layer_config\":{\"0\":{\"window\":8}}," DENSE4 "}", NULL, NULL,
     "per_layer_config.0.window is not known here"},
    {"{\"model_type\":\"gemma4_text\",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\"}}," DENSE4 "}", NULL, NULL,
     "for gemma4_text there are default and proportional"},
    {"{\"model_type\":\"gemma4\"}", NULL, NULL, "it reads images and sounds too"},
    {"{\"model_type\":\"qwen3_5_text\"}", NULL, "model.layer_types", "3*linear,full"},
    {"{\"model_type\":\"qwen3_5_text\",\"full_attention_interval\":2}", NULL, "model.layer_types", "linear,full"},
    {"{\"model_type\":\"qwen3_5_text\",\"full_attention_interval\":1}", NULL, "model.layer_types", "full"},
    {"{\"model_type\":\"qwen3_5_text\",\"full_attention_interval\":0}", NULL, NULL, "full_attention_interval must be"},
    {"{\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]}", NULL, NULL,
     "layer_types[0] is not computed here"},
    {"{\"model_type\":\"qwen3_5_text\"}", NULL, "model.rotary_dim", "64"},
    {"{\"model_type\":\"qwen3_5_text\"}", NULL, "model.linear_value_heads", "32"},
    {"{\"model_type\":\"qwen3_5_text\",\"attn_output_gate\":true,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5,\"mrope_interleaved\":true,\"mrope_section\":[11,11,10]}}",
     NULL, "model.rope_theta", "5"},
    {"{\"model_type\":\"qwen3_5_text\",\"attn_output_gate\":false}", NULL, NULL, "attn_output_gate"},
    {"{\"model_type\":\"qwen3_5_text\",\"output_gate_type\":\"swish\"}", NULL, "model.family", "qwen3_5_text"},
    {"{\"model_type\":\"qwen3_5_text\",\"output_gate_type\":\"silu\"}", NULL, "model.family", "qwen3_5_text"},
    {"{\"model_type\":\"qwen3_5_text\",\"output_gate_type\":\"sigmoid\"}", NULL, NULL,
     "output_gate_type must be swish: the gate of the norm of heads is SiLU here"},
    {"{\"model_type\":\"qwen3\",\"rope_parameters\":{\"rope_type\":\"default\",\"mrope_section\":[11,11,10]}}", NULL, NULL,
     "rope_parameters.mrope_section is not computed here"},
    {"{\"model_type\":\"qwen3_5\"}", NULL, NULL, "it reads images too"},
    {"{\"model_type\":\"nemotron_h\"}", NULL, NULL, "layers_block_type must have a word for each block"},
    {NEMOTRON("MM-*"), NULL, "model.layer_types", "2*linear,mlp,full_nope"},
    {NEMOTRON("MM-*"), NULL, "model.n_layers", "4"},
    {NEMOTRON("M-"), NULL, "model.linear_least_step", "0.001"},
    {NEMOTRON("MXM*"), NULL, NULL,
     "hybrid_override_pattern, block 1: it is none of Mamba-2, attention, a feed-forward part and experts"},
    {NEMOTRON("MEM*E"), NULL, "model.layer_types", "linear,moe,linear,full_nope,moe"},
    {NEMOTRON("ME"), NULL, "model.n_experts", "8"},
    {NEMOTRON("ME"), NULL, "model.n_experts_per_token", "2"},
    {NEMOTRON("ME"), NULL, "model.shared_ffn_dim", "7688"},
    {NEMOTRON("ME"), NULL, "model.router", "sigmoid"},
    {NEMOTRON("ME"), NULL, "model.router_bias", "true"},
    {NEMOTRON("ME"), NULL, "model.route_norm", "true"},
    {"{\"n_routed_experts\":16,\"moe_intermediate_size\":24,\"routed_scaling_factor\":2.5,\"n_group\":4,\"topk_group\":2,"
     NEMOTRON_OF("ME"), NULL, "model.route_groups", "4"},
    {"{\"moe_latent_size\":1024," NEMOTRON_OF("ME"), NULL, NULL, "moe_latent_size: experts of a vector shorter than the stream"},
    {"{\"moe_latent_size\":1024," NEMOTRON_OF("M-"), NULL, "model.family", "nemotron_h"},
    {"{\"n_shared_experts\":2," NEMOTRON_OF("ME"), NULL, NULL, "n_shared_experts must be 1"},
    {"{\"model_type\":\"nemotron_h\",\"layers_block_type\":[\"mamba\",\"attention\"],\"hybrid_override_pattern\":\"-\"}", NULL,
     "model.layer_types", "linear,full_nope"},
    {"{\"model_type\":\"nemotron_h\",\"layers_block_type\":[\"linear_attention\",\"experts\"]}", NULL, NULL,
     "layers_block_type, block 1: it is none of Mamba-2"},
    {"{\"model_type\":\"nemotron_h\",\"layers_block_type\":[\"linear_attention\",\"moe\"]}", NULL, "model.layer_types", "linear,moe"},
    {"{\"num_hidden_layers\":3," NEMOTRON_OF("M*"), NULL, NULL, "num_hidden_layers must be 2, as many as hybrid_override_pattern has"},
    {"{\"num_hidden_layers\":2.5," NEMOTRON_OF("M*"), NULL, NULL, "num_hidden_layers must be 2, as many as hybrid_override_pattern has"},
    {"{\"time_step_limit\":[0,0.1]," NEMOTRON_OF("M*"), NULL, NULL, "time_step_limit: there is no upper limit of a step here"},
    {"{\"time_step_limit\":[0,Infinity]," NEMOTRON_OF("M*"), NULL, "model.family", "nemotron_h"},
    {"{\"time_step_limit\":[0,-Infinity]," NEMOTRON_OF("M*"), NULL, NULL, "time_step_limit: there is no upper limit of a step here"},
    {"{\"time_step_limit\":0.1," NEMOTRON_OF("M*"), NULL, NULL, "time_step_limit: there is no upper limit of a step here"},
    {"{\"n_groups\":2,\"mamba_n_groups\":1," NEMOTRON_OF("M*"), NULL, NULL, "n_groups is 2, and mamba_n_groups is 1; both are the same"},
    {"{\"time_step_limit\":[0,{\"__float__\":\"Infinity\"}]," NEMOTRON_OF("M*"), NULL, "model.family", "nemotron_h"},
    {"{\"use_conv_bias\":false," NEMOTRON_OF("M*"), NULL, NULL, "use_conv_bias must be true"},
    {"{\"num_nextn_predict_layers\":1," NEMOTRON_OF("M*"), NULL, NULL, "num_nextn_predict_layers must be 0"},
    {"{\"model_type\":\"granitemoehybrid\"}", NULL, "model.layer_types", "linear"},
    {"{\"model_type\":\"granitemoehybrid\"}", NULL, "model.linear_value_dim", "64"},
    {"{\"model_type\":\"granitemoehybrid\"}", NULL, "model.linear_least_step", "0"},
    {HYBRID("\"mamba\",\"attention\"") "}", NULL, "model.layer_types", "linear,full_nope"},
    {HYBRID("\"mamba\",\"attention\"") ",\"position_embedding_type\":\"nope\"}", NULL, "model.layer_types", "linear,full_nope"},
    {HYBRID("\"mamba\",\"attention\"") ",\"position_embedding_type\":null}", NULL, "model.layer_types", "linear,full_nope"},
    {HYBRID("\"linear_attention\",\"full_attention\"") ",\"position_embedding_type\":\"rope\"}", NULL, "model.layer_types", "linear,full"},
    {HYBRID("\"mamba\",\"attention\"") ",\"position_embedding_type\":\"alibi\"}", NULL, NULL, "position_embedding_type must be rope, nope or null"},
    {HYBRID("\"attention\",\"attention\"") ",\"position_embedding_type\":\"rope\"}", NULL, "model.layer_types", "full"},
    {HYBRID("\"attention\",\"attention\"") "}", NULL, "model.linear_value_heads", "0"},
    {HYBRID("\"mamba\"") "}", NULL, NULL, "layer_types must have a word for each block"},
    {HYBRID("\"mamba\",\"moe\"") "}", NULL, NULL, "layer_types[1] is not computed here; attention and mamba are"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"mamba_d_head\":\"auto\"}", NULL, "model.linear_value_dim", "8"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"mamba_d_head\":8,\"mamba_expand\":3}", NULL, NULL,
     "mamba_n_heads 4 x mamba_d_head 8 must be mamba_expand 3 x hidden_size 16"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"mamba_expand\":-2}", NULL, NULL, "must be mamba_expand -2 x hidden_size 16"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"mamba_conv_bias\":false}", NULL, NULL, "mamba_conv_bias must be true"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"mamba_proj_bias\":true}", NULL, NULL, "mamba_proj_bias must be false"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"normalization_function\":\"layernorm\"}", NULL, NULL, "normalization_function must be rmsnorm"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"time_step_limit\":[0.25,Infinity]}", NULL, "model.linear_least_step", "0.25"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"time_step_limit\":[0.0,0.1]}", NULL, NULL, "there is no upper limit of a step here"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"time_step_limit\":0.1}", NULL, NULL, "time_step_limit must be a number and Infinity"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"num_local_experts\":0,\"shared_intermediate_size\":40}", NULL, "model.ffn_dim", "40"},
    {HYBRID("\"mamba\",\"mamba\"") ",\"num_local_experts\":0}", NULL, "model.n_experts_per_token", "0"},
    {HYBRID("\"mamba\",\"mamba\"") "}", NULL, "model.shared_ffn_dim", "1024"},
    {HYBRID("\"mamba\",\"mamba\"") "}", NULL, "model.expert_ffn_dim", "24"},
    {"{\"model_type\":\"glm4\"}", NULL, "model.rotary_dim", "64"},
    {"{\"model_type\":\"glm4\"}", NULL, "model.norm_eps", "1.5625e-07"},
    {"{\"model_type\":\"glm4\",\"attention_bias\":false}", NULL, NULL, "attention_bias must be true"},
    {MINISTRAL3 ",\"llama_4_scaling_beta\":0.1}}", NULL, "model.rope_attention_factor", "1"},
    {MINISTRAL3 ",\"llama_4_scaling_beta\":0.1}}", NULL, "model.rope_original_max_len", "16384"},
    {MINISTRAL3 ",\"llama_4_scaling_beta\":0.2}}", NULL, NULL, "llama_4_scaling_beta must be 0.1"},
    {MINISTRAL3 "}}", NULL, NULL, "llama_4_scaling_beta must be 0.1"},
    {"{\"model_type\":\"ministral3\",\"rope_parameters\":{\"rope_type\":\"default\"}}", NULL, NULL, "for ministral3 there is yarn"},
    {"{\"model_type\":\"ministral3\"}", NULL, NULL, "neither rope_parameters nor rope_scaling"},
    /* experts */
    {"{\"model_type\":\"mixtral\"}", NULL, "model.n_experts", "8"},
    {"{\"model_type\":\"mixtral\"}", NULL, "model.rope_theta", "1000000"},
    {MIXTRAL "}", NULL, "model.n_experts_per_token", "2"},
    {MIXTRAL "}", NULL, "model.expert_ffn_dim", "24"},
    {MIXTRAL "}", NULL, "model.route_norm", "true"},
    {MIXTRAL ",\"num_experts\":5}", NULL, "model.n_experts", "5"},
    {MIXTRAL ",\"num_experts_per_tok\":9}", NULL, NULL, "model.n_experts_per_token: 9 of model.n_experts 8"},
    {MIXTRAL ",\"num_local_experts\":0}", NULL, NULL, "model.n_experts: needed with model.family=mixtral"},
    {MIXTRAL ",\"router_jitter_noise\":0.1,\"router_aux_loss_coef\":0.02,\"output_router_logits\":true}", NULL,
     "model.n_experts", "8"},
    {MIXTRAL ",\"norm_topk_prob\":true}", NULL, NULL, "mathematics: norm_topk_prob;"},
    {MIXTRAL ",\"sliding_window\":8}", NULL, "model.attention_window", "8"},
    {MIXTRAL "}", "model.first_dense_layers=1", NULL, "--model.first_dense_layers: all blocks of mixtral have experts"},
    {"{\"model_type\":\"qwen2_moe\"}", NULL, "model.shared_ffn_dim", "5632"},
    {QWEN2_MOE "}", NULL, "model.route_norm", "false"},
    {QWEN2_MOE ",\"norm_topk_prob\":true}", NULL, "model.route_norm", "true"},
    {QWEN2_MOE ",\"qkv_bias\":false}", NULL, NULL, "qkv_bias must be true"},
    {QWEN2_MOE WINDOW "}", NULL, NULL, "use_sliding_window without layer_types"},
    {QWEN2_MOE WINDOW "}", "model.hf_ignore=sliding_window", "model.attention_window", "0"},
    {QWEN2_MOE WINDOW "," SLIDING "}", NULL, "model.layer_types", "full,sliding"},
    {QWEN3_MOE("2") ",\"num_local_experts\":9}", NULL, "model.n_experts", "4"},
    {QWEN3_MOE("2") WINDOW "}", NULL, NULL, "use_sliding_window must be false"},
    {QWEN3_MOE("2") ",\"sliding_window\":8,\"max_window_layers\":1}", NULL, "model.attention_window", "0"},
    {QWEN3_MOE("2") "}", NULL, "model.moe_every", "0"},
    {QWEN3_MOE("2") "}", NULL, "model.ffn_dim", "24"},
    {QWEN3_MOE("4") ",\"decoder_sparse_step\":2}", NULL, "model.moe_every", "2"},
    {QWEN3_MOE("4") ",\"decoder_sparse_step\":2}", NULL, "model.first_dense_layers", "0"},
    {QWEN3_MOE("6") ",\"decoder_sparse_step\":2,\"mlp_only_layers\":[1]}", NULL, "model.first_dense_layers", "3"},
    {QWEN3_MOE("4") ",\"mlp_only_layers\":[0,2]}", NULL, "model.moe_every", "2"},
    {QWEN3_MOE("4") ",\"mlp_only_layers\":[1,0]}", NULL, "model.first_dense_layers", "2"},
    {QWEN3_MOE("4") ",\"mlp_only_layers\":[0,1,2,9]}", NULL, "model.moe_every", "4"},
    {QWEN3_MOE("4") ",\"mlp_only_layers\":[1]}", NULL, NULL, "blocks with experts are not all, or each n-th, from one on"},
    {QWEN3_MOE("4") ",\"mlp_only_layers\":[0,1,2,3]}", NULL, NULL, "leave no block with experts"},
    {QWEN3_MOE("4") ",\"decoder_sparse_step\":5}", NULL, NULL, "leave no block with experts"},
    {QWEN3_MOE("4") ",\"decoder_sparse_step\":0}", NULL, NULL, "decoder_sparse_step must be a whole number from 1 on"},
    {QWEN3_MOE("4") ",\"mlp_only_layers\":2}", NULL, NULL, "mlp_only_layers is a whole number, but must be a list"},
    {QWEN3_MOE("4") ",\"mlp_only_layers\":[0.5]}", NULL, NULL, "mlp_only_layers[0] is a number"},
    {OLMOE "}", NULL, "model.expert_ffn_dim", "24"},
    {OLMOE ",\"clip_qkv\":1.0}", NULL, NULL, "clip_qkv must be null"},
    {OLMOE ",\"clip_qkv\":null}", NULL, "model.norm_eps", "1e-05"},
    {GRANITE ",\"attention_multiplier\":0.0078125,\"logits_scaling\":16.0}", NULL, "model.query_pre_attn_scalar", "16384"},
    {GRANITE ",\"attention_multiplier\":0.0078125,\"logits_scaling\":16.0}", NULL, "model.logits_scaling", "16"},
    {GRANITE "}", NULL, "model.query_pre_attn_scalar", "1"},
    {GRANITE "}", NULL, "model.residual_multiplier", "1"},
    {GRANITE ",\"attention_multiplier\":0.3}", NULL, NULL, "attention_multiplier must be 1 over the root of a whole number"},
    {GRANITE ",\"attention_multiplier\":0}", NULL, NULL, "attention_multiplier must be 1 over"},
    {LLAMA ",\"residual_multiplier\":0.22}", NULL, NULL, "mathematics: residual_multiplier;"},
    {PHI3 "}", NULL, "model.norm_eps", "1e-05"},
    {PHI3 ",\"sliding_window\":8}", NULL, "model.attention_window", "8"},
    {PHI3 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", NULL, NULL, "linear: for phi3 there are default and longrope"},
    {PHI3 ",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,2],\"long_factor\":[3,4]}}", NULL, "model.rope_type", "longrope"},
    {PHI3 ",\"rope_scaling\":{\"type\":\"yarn\",\"short_factor\":[1,2],\"long_factor\":[3,4]}}", NULL, "model.rope_type", "longrope"},
    {LLAMA ",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,2],\"long_factor\":[3,4]}}", NULL, NULL, "rope_type su is not known here"},
    {PHI3 ",\"rope_scaling\":{" LONGROPE "}}", NULL, "model.rope_original_max_len", "4096"},
    {PHI3 ",\"rope_scaling\":{" LONGROPE "}}", NULL, "model.rope_factor", "1"},
    {PHI3 ",\"original_max_position_embeddings\":16,\"rope_scaling\":{" LONGROPE "}}", NULL, "model.rope_factor", "4"},
    {GEMMA3 ",\"rope_scaling\":{" LONGROPE "}}", NULL, NULL, "longrope is not computed here for gemma3_text"},
    {PHI3 ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", NULL, "model.rotary_dim", "2"},
    {PHI3 ",\"partial_rotary_factor\":0.5}", NULL, "model.rotary_dim", "2"},
    {PHI3 ",\"head_dim\":6,\"partial_rotary_factor\":0.99}", NULL, NULL, "model.rotary_dim: 5 is odd"},
    {PHI3 ",\"partial_rotary_factor\":1}", NULL, "model.rotary_dim", "0"},
    {PHI3 ",\"partial_rotary_factor\":1.5}", NULL, NULL, "partial_rotary_factor must be a number from 0 to 1"},
    {PHI3 ",\"partial_rotary_factor\":\"1\"}", NULL, NULL, "partial_rotary_factor must be a number from 0 to 1"},
    {STARCODER2 "}", NULL, "model.tie_word_embeddings", "true"},
    {STARCODER2 ",\"norm_epsilon\":1e-3}", NULL, "model.norm_eps", "0.001"},
    {STARCODER2 ",\"use_bias\":false}", NULL, NULL, "use_bias must be true"},
    {STARCODER2 ",\"hidden_act\":\"silu\"}", NULL, NULL, "hidden_act must be gelu_pytorch_tanh"},
    {QWEN3 "}", NULL, "model.head_dim", "128"},
    {QWEN3 ",\"head_dim\":6,\"attention_bias\":true}", NULL, "model.attention_bias", "true"},
    {QWEN3 ",\"mlp_bias\":true}", NULL, NULL, "mathematics: mlp_bias;"},
    {OLMO2 "}", NULL, "model.norm_eps", "1e-05"},
    {OLMO2 "}", NULL, "model.head_dim", "4"},
    {GEMMA "}", NULL, "model.head_dim", "256"},
    {NEOX ",\"rotary_pct\":0.5}", NULL, "model.rotary_dim", "2"},
    {NEOX ",\"rotary_pct\":1.0}", NULL, "model.rotary_dim", "0"},
    {NEOX "}", NULL, NULL, "partial_rotary_factor 0.25 leaves no pair"},
    {"{\"model_type\":\"gpt_neox\"}", NULL, "model.rotary_dim", "24"},
    {NEOX ",\"rotary_pct\":0.5,\"rotary_emb_base\":500,\"rope_theta\":7}", NULL, "model.rope_theta", "500"},
    {NEOX ",\"rotary_pct\":0.5,\"use_parallel_residual\":false}", NULL, NULL, "use_parallel_residual must be true"},
    {NEOX ",\"rotary_pct\":0.5,\"hidden_act\":\"gelu_new\"}", NULL, NULL, "hidden_act must be gelu"},
    {GEMMA "}", NULL, "model.tie_word_embeddings", "true"},
    {GEMMA ",\"hidden_act\":\"gelu\",\"hidden_activation\":null}", NULL, "model.family", "gemma"},
    {GEMMA ",\"hidden_act\":\"silu\"}", NULL, NULL, "hidden_act must be gelu_pytorch_tanh"},
    {GEMMA ",\"use_bidirectional_attention\":true}", NULL, NULL, "use_bidirectional_attention must be false"},
    /* two kinds of blocks in one model */
    {"{\"model_type\":\"gemma3_text\"}", NULL, "model.layer_types", "5*sliding,full"},
    {"{\"model_type\":\"gemma3_text\"}", NULL, "model.attention_window", "4096"},
    {"{\"model_type\":\"gemma3_text\"}", NULL, "model.rope_local_base_freq", "10000"},
    {"{\"model_type\":\"gemma3_text\"}", NULL, "model.rope_theta", "1000000"},
    {"{\"model_type\":\"gemma3_text\"}", NULL, "model.query_pre_attn_scalar", "256"},
    {"{\"model_type\":\"gemma3_text\",\"sliding_window_pattern\":4}", NULL, "model.layer_types", "3*sliding,full"},
    {"{\"model_type\":\"gemma3_text\",\"_sliding_window_pattern\":4}", NULL, "model.layer_types", "5*sliding,full"},
    {GEMMA3 ",\"sliding_window_pattern\":0}", NULL, NULL, "sliding_window_pattern must be a whole number from 1 on"},
    {GEMMA3 ",\"sliding_window_pattern\":\"6\"}", NULL, NULL, "sliding_window_pattern must be a whole number"},
    {GEMMA3 ",\"sliding_window_pattern\":1}", NULL, "model.attention_window", "0"},
    {GEMMA3 ",\"sliding_window_pattern\":1}", NULL, "model.rope_local_base_freq", "0"},
    {GEMMA3 "," FULL "}", NULL, "model.rope_local_base_freq", "0"},
    {GEMMA3 "," SLIDING "}", NULL, "model.layer_types", "full,sliding"},
    {GEMMA3 ",\"rope_local_base_freq\":7,\"rope_theta\":8}", NULL, "model.rope_local_base_freq", "7"},
    {GEMMA3 ",\"rope_local_base_freq\":7,\"rope_theta\":8}", NULL, "model.rope_theta", "8"},
    {GEMMA3 ",\"rope_local_base_freq\":7,\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":9}}}", NULL,
     "model.rope_local_base_freq", "9"},
    {GEMMA3 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,\"rope_theta\":9}}}", NULL,
     "model.rope_factor", "8"},
    {GEMMA3 ",\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":9}},\"rope_scaling\":{\"type\":\"linear\","
            "\"factor\":8}}", NULL, "model.rope_factor", "8"},
    {GEMMA3 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8}},\"rope_scaling\":{\"type\":"
            "\"linear\",\"factor\":4}}", NULL, NULL, "rope_parameters and rope_scaling differ"},
    {GEMMA3 ",\"rope_parameters\":{\"rope_theta\":9}}", NULL, NULL, "there are full_attention and sliding_attention in it"},
    {GEMMA3 ",\"rope_parameters\":{\"full_attention\":[]}}", NULL, NULL, "rope_parameters.full_attention is"},
    {GEMMA3 ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}}}", NULL, NULL,
     "sliding_attention.rope_type must be default"},
    {GEMMA3 ",\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":0.5}}}", NULL, NULL,
     "partial_rotary_factor is not computed here for gemma3_text"},
    {GEMMA3 ",\"query_pre_attn_scalar\":0}", NULL, NULL, "query_pre_attn_scalar must be a whole number from 1 on"},
    {GEMMA3 ",\"attn_logit_softcapping\":50.0}", NULL, NULL, "mathematics: attn_logit_softcapping;"},
    {GEMMA3 ",\"vision_config\":{\"hidden_size\":8}}", NULL, NULL, "mathematics: vision_config;"},
    {GEMMA3 ",\"use_bidirectional_attention\":true}", NULL, NULL, "use_bidirectional_attention must be false"},
    {GEMMA3 ",\"hidden_activation\":\"silu\"}", NULL, NULL, "hidden_activation must be gelu_pytorch_tanh"},
    {GEMMA3 ",\"sliding_window\":null}", NULL, NULL, "layer_types has blocks with one, whose rotary positions differ"},
    {GEMMA3 "}", "model.hf_ignore=sliding_window", NULL, "whose rotary positions differ"},
    {GEMMA3 "," FULL ",\"sliding_window\":null}", NULL, "model.attention_window", "0"},
    {GEMMA2 "}", NULL, "model.attention_softcap", "50"},
    {GEMMA2 "}", NULL, "model.logits_softcap", "30"},
    {GEMMA2 "}", NULL, "model.layer_types", "sliding,full"},
    {GEMMA2 ",\"attn_logit_softcapping\":null}", NULL, "model.attention_softcap", "0"},
    {GEMMA2 ",\"attn_logit_softcapping\":7}", NULL, "model.attention_softcap", "7"},
    {GEMMA2 ",\"final_logit_softcapping\":2.5}", NULL, "model.logits_softcap", "2.5"},
    {GEMMA2 ",\"final_logit_softcapping\":0}", NULL, NULL, "final_logit_softcapping must be a number above 0, or null"},
    {GEMMA2 ",\"attn_logit_softcapping\":-1}", NULL, NULL, "attn_logit_softcapping must be a number above 0, or null"},
    {GEMMA2 ",\"sliding_window\":null}", NULL, NULL, "gemma2 computes nothing without a window"},
    {"{\"model_type\":\"gemma3\"}", NULL, NULL, "a folder of gemma3_text has the language model alone"},
    {LLAMA ",\"rope_local_base_freq\":7}", NULL, NULL, "mathematics: rope_local_base_freq;"},
    {LLAMA ",\"query_pre_attn_scalar\":7}", NULL, NULL, "mathematics: query_pre_attn_scalar;"},
    /* biases, and blocks without positions */
    {LLAMA ",\"attention_bias\":true}", NULL, "model.attention_bias", "true"},
    {LLAMA ",\"mlp_bias\":true}", NULL, "model.mlp_bias", "true"},
    {LLAMA "}", NULL, "model.mlp_bias", "false"},
    {QWEN2 ",\"attention_bias\":true}", NULL, NULL, "mathematics: attention_bias;"},
    {SMOLLM3 "}", NULL, "model.layer_types", "full"},
    {SMOLLM3 "}", NULL, "model.rope_theta", "2000000"},
    {SMOLLM3 ",\"no_rope_layer_interval\":2}", NULL, "model.layer_types", "full,full_nope"},
    {SMOLLM3 ",\"no_rope_layers\":[1,1]}", NULL, "model.layer_types", "full"},
    {SMOLLM3 ",\"no_rope_layers\":[1,1],\"no_rope_layer_interval\":2}", NULL, "model.layer_types", "full"},
    {SMOLLM3 ",\"no_rope_layers\":[1,0]}", NULL, "model.layer_types", "full,full_nope"},
    {SMOLLM3 ",\"no_rope_layers\":[0,0]}", NULL, "model.layer_types", "full_nope"},
    {SMOLLM3 ",\"no_rope_layers\":[0,1]}", NULL, "model.layer_types", "full_nope,full"},
    {SMOLLM3 ",\"no_rope_layers\":[1]}", NULL, NULL, "no_rope_layers must have 0 or 1 for each of 2 blocks"},
    {SMOLLM3 ",\"no_rope_layers\":[1,2]}", NULL, NULL, "no_rope_layers must have 0 or 1"},
    {SMOLLM3 ",\"no_rope_layers\":{}}", NULL, NULL, "no_rope_layers must have 0 or 1"},
    {LLAMA ",\"no_rope_layers\":[1,0]}", NULL, NULL, "mathematics: no_rope_layers;"},
    /* unknown keys */
    {LLAMA ",\"logit_scale\":0.5}", NULL, NULL, "it may change the mathematics: logit_scale; name keys in model.hf_ignore"},
    {LLAMA ",\"logit_scale\":0.5,\"b\":[1]}", NULL, NULL, "logit_scale, b;"},
    {LLAMA ",\"logit_scale\":0.5}", "model.hf_ignore=a, logit_scale", "model.dim", "16"},
    {LLAMA ",\"logit_scale\":0.5}", "model.hf_ignore=logit", NULL, "logit_scale"},
    {LLAMA ",\"a\":null,\"b\":false,\"c\":0,\"d\":1,\"e\":\"\",\"f\":[],\"g\":{},\"h\":0.0,\"i\":1.0}", NULL, "model.dim", "16"},
    {LLAMA ",\"a\":true}", NULL, NULL, "mathematics: a;"},
    {LLAMA ",\"use_cache\":true,\"eos_token_id\":[1,2],\"torch_dtype\":\"bfloat16\",\"attention_dropout\":0.3}", NULL, "model.dim",
     "16"},
    {GPT2 ",\"attn_pdrop\":0.1,\"n_ctx\":16,\"summary_type\":\"cls_index\"}", NULL, "model.dim", "8"},
    {GPT2 ",\"sliding_window\":4}", NULL, NULL, "mathematics: sliding_window;"},
    /* impossible sizes */
    {"{\"model_type\":\"llama\",\"num_hidden_layers\":0}", NULL, NULL, "model.n_layers: 0 is out of range"},
    {"{\"model_type\":\"llama\",\"hidden_size\":-32}", NULL, NULL, "out of range"},
    {"{\"model_type\":\"llama\",\"hidden_size\":99999999999}", NULL, NULL, "hidden_size 99999999999 is not a multiple"},
    {"{\"model_type\":\"llama\",\"hidden_size\":99999999999999999999}", NULL, NULL, "hidden_size 9223372036854775807"},
    {"{\"model_type\":\"llama\",\"max_position_embeddings\":1000000000000000019884624838656}", NULL, NULL, "out of range"},
    {"{\"model_type\":\"llama\",\"rope_theta\":100000000000000000000}", NULL, NULL, "100000000000000000000 is out of range"},
    {"{\"model_type\":\"mistral\",\"sliding_window\":99999999999999999999}", NULL, NULL, "must be a whole number"},
    {"{\"model_type\":\"llama\",\"hidden_size\":1e999}", NULL, NULL, "line 1"},
    {"{\"model_type\":\"llama\",\"hidden_size\":NaN}", NULL, NULL, "line 1"},
    {"{\"model_type\":\"llama\",\"hidden_size\":64.5}", NULL, NULL, "model.dim"},
    {"{\"model_type\":\"llama\",\"hidden_size\":\"16\"}", NULL, NULL, "hidden_size is a string, but must be a number"},
    {"{\"model_type\":\"llama\",\"hidden_size\":17}", NULL, NULL, "hidden_size 17 is not a multiple of num_attention_heads 32"},
    {"{\"model_type\":\"llama\",\"num_attention_heads\":0}", NULL, NULL, "num_attention_heads 0"},
    {"{\"model_type\":\"gpt2\",\"n_embd\":-9223372036854775808}", NULL, NULL, "n_embd"},
    {LLAMA ",\"num_key_value_heads\":3}", NULL, NULL, "model.n_kv_heads: 3 does not divide model.n_heads 4"},
    {LLAMA ",\"head_dim\":5}", NULL, NULL, "model.head_dim: 5 is odd"},
    {LLAMA ",\"tie_word_embeddings\":7}", NULL, NULL, "model.tie_word_embeddings"},
    {LLAMA LABELS ",\"num_labels\":\"3\"}", NULL, NULL, "num_labels gives no labels"},
    {LLAMA LABELS ",\"num_labels\":3,\"id2label\":[\"a\",\"b\"]}", NULL, NULL, "id2label gives no labels"},
};
/* clang-format on */

static char folder[] = "test_hf.XXXXXX";

static void put(const char *name, const char *text)
{
    char *path = sh_path_join(folder, name);

    assert_int_equal(sh_write_file_atomic(path, text, strlen(text)), SH_OK);
    free(path);
}

static sh_rc load(const char *argument, struct sh_config *cfg)
{
    char hf[64];
    const char *arguments[] = {hf, argument};

    snprintf(hf, sizeof hf, "model.hf=%s", folder);
    return sh_config_load(NULL, argument ? 2 : 1, arguments, cfg);
}

static void each_config_is_what_its_class_makes_of_it(void **state)
{
    struct sh_config cfg;
    char *value;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put("config.json", rows[i].text);
        sh_error_clear();
        if (load(rows[i].argument, &cfg) != SH_OK) {
            if (rows[i].key || !strstr(sh_error_text(), rows[i].says))
                fail_msg("row %zu, %s: %s", i, rows[i].text, sh_error_text());
            bool of_argument = rows[i].says[0] == '-'; /* the argument is wrong */
            if (!strstr(sh_error_text(), of_argument ? rows[i].says : "/config.json: "))
                fail_msg("row %zu: the file is not named: %s", i, sh_error_text());
            continue;
        }
        assert_int_equal(sh_config_get(&cfg, rows[i].key ? rows[i].key : "model.dim", &value), SH_OK);
        if (!rows[i].key || strcmp(value, rows[i].says) != 0)
            fail_msg("row %zu, %s: %s is %s", i, rows[i].text, rows[i].key ? rows[i].key : "accepted; model.dim",
                     value);
        free(value);
    }
}

/* Forms of config.json that models are published with, and some that mean mathematics that is not computed here. */
static void published_forms_are_read(void **state)
{
    const char *top = getenv("SHERD_SRCDIR");
    char *path = sh_path_join(top ? top : ".", "tests/hf/forms.jsonl"), *line = NULL;
    FILE *in = fopen(path, "r");
    size_t room = 0;
    int n = 0;

    (void)state;
    assert_non_null(in);
    for (; getline(&line, &room, in) > 0; n++) {
        json_t *root = json_loads(line, 0, NULL), *refused = json_object_get(root, "refused");
        char *text = json_dumps(json_object_get(root, "config"), JSON_COMPACT);
        struct sh_config cfg;
        put("config.json", text);
        sh_error_clear();
        sh_rc rc = load(NULL, &cfg);
        if ((rc == SH_OK) != !refused || (refused && !strstr(sh_error_text(), json_string_value(refused))))
            fail_msg("%s: %s", json_string_value(json_object_get(root, "form")), sh_error_text());
        free(text);
        json_decref(root);
    }
    assert_true(n > 40);
    fclose(in);
    free(line);
    free(path);
}

static void each_family_can_be_exported(void **state)
{
    static const char *const names[] = {
#define FAMILY(id, word, ...) word,
#include "src/config/family.inc"
#undef FAMILY
    };
    const struct sh_hf_family *f = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (sh_hf_family_to_write(names[i], &f) != SH_OK)
            fail_msg("io/foreign/hf/config/family.c has no row of family %s", names[i]);
        assert_string_equal(f->family, names[i]);
    }
    assert_int_equal(sh_hf_family_to_write("gpt2_relu2", &f), SH_E_USAGE);
    assert_non_null(strstr(sh_error_text(), "model.family=gpt2_relu2: transformers has no such model"));
}

static void a_file_counts_less_than_a_folder(void **state)
{
    char text[256];
    struct sh_config cfg;

    (void)state;
    put("config.json", LLAMA "}");
    snprintf(text, sizeof text, "model:\n  n_layers: 7\n  hf_assets_path: %s\n", folder);
    assert_int_equal(sh_config_parse(text, strlen(text), "c.yaml", 0, NULL, &cfg), SH_OK);
    assert_int_equal(cfg.model.n_layers, 2);
    put("config.json", LLAMA LABELS ",\"problem_type\":\"multi_label_classification\"}");
    assert_int_equal(sh_config_parse(text, strlen(text), "c.yaml", 0, NULL, &cfg), SH_OK);
    assert_int_equal(cfg.objective.name, SH_OBJECTIVE_MULTI_LABEL);
    strcat(text, "objective:\n  name: lm\n");
    assert_int_equal(sh_config_parse(text, strlen(text), "c.yaml", 0, NULL, &cfg), SH_OK);
    assert_int_equal(cfg.objective.name, SH_OBJECTIVE_LM);
}

static void what_is_no_folder_is_refused(void **state)
{
    static const char *const arguments[] = {"model.hf=meta-llama/Llama-3.2-1B"};
    struct sh_config cfg;
    char *path = sh_path_join(folder, "config.json"), *long_text = calloc(1 << 21, 1);

    (void)state;
    assert_int_equal(sh_config_load(NULL, 1, arguments, &cfg), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "meta-llama/Llama-3.2-1B is not a folder here; nothing is downloaded"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(load(NULL, &cfg), SH_E_DATA);
    assert_non_null(strstr(sh_error_text(), "config.json"));
    memset(long_text, ' ', (1 << 21) - 1);
    put("config.json", long_text);
    assert_int_equal(load(NULL, &cfg), SH_E_DATA);
    memset(long_text, '[', 100000);
    long_text[100000] = '\0';
    put("config.json", long_text);
    assert_int_equal(load(NULL, &cfg), SH_E_DATA);
    free(long_text);
    free(path);
}

/* A written config.json is read back as the same model, in both spellings: also with the newer keys removed. */
static void what_is_written_is_read_as_the_same_model(void **state)
{
    static const char *const texts[] = {
        LLAMA ",\"rms_norm_eps\":0.003,\"num_key_value_heads\":2,\"rope_theta\":700,"
              "\"rope_scaling\":{\"type\":\"llama3\"," LLAMA3 "}}",
        LLAMA ",\"head_dim\":6}",
        GPT2 ",\"initializer_range\":0.5}",
        GPT2 ",\"tie_word_embeddings\":false}",
        LLAMA ",\"attention_bias\":true,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
        LLAMA ",\"mlp_bias\":true,\"rope_scaling\":{" YARN ",\"truncate\":false,"
              "\"attention_factor\":1.5,\"beta_slow\":2}}",
        LLAMA ",\"rope_scaling\":{" YARN "}}",
        MISTRAL ",\"num_key_value_heads\":2}",
        QWEN2 "}",
        PHI3 "}",
        NEOX ",\"rotary_pct\":0.5}",
        PHI3 ",\"head_dim\":6,\"partial_rotary_factor\":0.67}",
        STARCODER2 "}",
        QWEN3 "}",
        OLMO2 ",\"attention_bias\":true}",
        GEMMA ",\"tie_word_embeddings\":false}",
        SMOLLM3 "}",
        SMOLLM3 ",\"no_rope_layers\":[1,1]}",
        SMOLLM3 ",\"no_rope_layers\":[1,0],\"mlp_bias\":true}",
        PHI3 ",\"sliding_window\":8}",
        STARCODER2 ",\"sliding_window\":8}",
        MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":8}",
        QWEN2 WINDOW ",\"max_window_layers\":1}",
        SIX_BLOCKS(S, S, F, S, S, F) "}",
        SIX_BLOCKS(F, S, S, S, F, S) "}",
        SMOLLM3_OF("4") "}",
        MIXTRAL ",\"num_local_experts\":3,\"sliding_window\":8}",
        QWEN2_MOE ",\"mlp_only_layers\":[0],\"norm_topk_prob\":true}",
        QWEN2_MOE WINDOW "," SLIDING "}",
        QWEN3_MOE("6") ",\"decoder_sparse_step\":2,\"mlp_only_layers\":[1]}",
        OLMOE ",\"attention_bias\":true}",
        GRANITE ",\"attention_multiplier\":0.015625,\"embedding_multiplier\":12.0}",
        GRANITEMOE ",\"attention_multiplier\":0.1,\"residual_multiplier\":0.22}",
        HYBRID("\"mamba\",\"attention\"") "}",
        HYBRID("\"mamba\",\"attention\"") ",\"num_local_experts\":0,\"time_step_limit\":[0.25,Infinity],"
                                          "\"position_embedding_type\":\"rope\"}",
        HYBRID("\"attention\",\"attention\"") ",\"num_local_experts\":0}"};
    struct sh_config cfg, back;
    char *text, *at;

    (void)state;
    for (size_t i = 0; i < 2 * sizeof texts / sizeof *texts; i++) {
        put("config.json", texts[i / 2]);
        assert_int_equal(load(NULL, &cfg), SH_OK);
        assert_int_equal(sh_hf_config_write(&cfg, "bfloat16", NULL, &text), SH_OK);
        assert_non_null(strstr(text, "\"dtype\": \"bfloat16\""));
        assert_non_null(strstr(text, "\"torch_dtype\": \"bfloat16\""));
        assert_non_null(strstr(text, "\"eos_token_id\": null"));
        if (i % 2 && (at = strstr(text, "\"rope_parameters\"")))
            memset(at, ' ', (size_t)(strstr(at, "\"rope_scaling\"") - at)); /* as written by an older version */
        put("config.json", text);
        if (load(NULL, &back) != SH_OK)
            fail_msg("%s: %s", text, sh_error_text());
        assert_memory_equal(&cfg, &back, sizeof cfg);
        free(text);
    }
}

/* Token ids are not part of the model: they are copied from the source of the model. */
static void ids_are_taken_over(void **state)
{
    struct sh_config cfg;
    char *text, *path = sh_path_join(folder, "config.json");

    (void)state;
    put("config.json", LLAMA ",\"eos_token_id\":[1,5],\"bos_token_id\":3,\"attention_dropout\":0.25}");
    assert_int_equal(load(NULL, &cfg), SH_OK);
    assert_int_equal(sh_hf_config_write(&cfg, "float32", path, &text), SH_OK);
    assert_non_null(strstr(text, "\"eos_token_id\": [1, 5]"));
    assert_non_null(strstr(text, "\"bos_token_id\": 3"));
    assert_non_null(strstr(text, "\"attention_dropout\": 0.25"));
    assert_non_null(strstr(text, "\"pad_token_id\": null"));
    free(text);
    free(path);
}

static char *written(const char *source, const char *argument)
{
    struct sh_config cfg;
    char *text, *path = sh_path_join(folder, "config.json");

    put("config.json", source);
    assert_int_equal(load(argument, &cfg), SH_OK);
    assert_int_equal(sh_hf_config_write(&cfg, "float32", path, &text), SH_OK);
    free(path);
    return text;
}

/* Settings that no training sequence was affected by stay as in the source: blocks with a window that no key describes,
 * and positions beyond the last one. A window that would have affected sequences and was left out is not kept. */
static void what_was_not_seen_is_taken_over(void **state)
{
    static const char *const source =
        SIX_BLOCKS(S, F, F, S, S, S) ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}}";
    char *text = written(source, "training.seq_len=8");

    (void)state;
    assert_non_null(strstr(text, "\"sliding_window\": 8"));
    assert_non_null(strstr(text, "\"use_sliding_window\": true"));
    assert_non_null(strstr(text, "\"layer_types\": [" S ", " F ", " F ", "));
    assert_non_null(strstr(text, "\"rope_scaling\": {\"factor\": 2, \"rope_type\": \"dynamic\"}"));
    free(text);
    text = written(source, "model.hf_ignore=sliding_window");
    assert_non_null(strstr(text, "\"sliding_window\": null"));
    assert_null(strstr(text, "use_sliding_window"));
    free(text);
    text = written(MISTRAL ",\"num_key_value_heads\":2,\"sliding_window\":8}", "model.attention_window=0");
    assert_non_null(strstr(text, "\"sliding_window\": null"));
    free(text);
}

/* The model's own window is written, not its source's. */
static void a_window_is_written(void **state)
{
    char *text = written(QWEN2 WINDOW ",\"max_window_layers\":1}", "model.attention_window=9");

    (void)state;
    assert_non_null(strstr(text, "\"sliding_window\": 9"));
    assert_non_null(strstr(text, "\"use_sliding_window\": true"));
    assert_non_null(strstr(text, "\"max_window_layers\": 1"));
    assert_non_null(strstr(text, "\"layer_types\": [" F ", " S "]"));
    free(text);
    text = written(MISTRAL ",\"num_key_value_heads\":2}", "model.attention_window=9");
    assert_non_null(strstr(text, "\"sliding_window\": 9"));
    assert_null(strstr(text, "layer_types"));
    free(text);
}

/* The loss that balances experts: a run's own weight, else that of the source. */
static void a_weight_of_balance_is_written(void **state)
{
    static const char *const source = MIXTRAL ",\"router_aux_loss_coef\":0.25,\"output_router_logits\":true}";
    char *text = written(source, NULL);

    (void)state;
    assert_non_null(strstr(text, "\"router_aux_loss_coef\": 0.25"));
    assert_non_null(strstr(text, "\"output_router_logits\": true"));
    free(text);
    text = written(source, "moe.aux_loss_coeff=0.5");
    assert_non_null(strstr(text, "\"router_aux_loss_coef\": 0.5,"));
    free(text);
    text = written(QWEN3_MOE("6") ",\"decoder_sparse_step\":2}", "moe.aux_loss_coeff=0.5");
    assert_non_null(strstr(text, "\"router_aux_loss_coef\": 0.75,")); /* 3 blocks, 2 experts of a token */
    free(text);
    text = written(MIXTRAL "}", NULL);
    assert_non_null(strstr(text, "\"router_aux_loss_coef\": 0.0"));
    assert_non_null(strstr(text, "\"output_router_logits\": false"));
    free(text);
}

static void what_a_class_lacks_is_not_written(void **state)
{
    static const struct {
        const char *text, *argument, *says;
    } refused[] = {
        {LLAMA "}", "model.attention_window=9", "model.attention_window: transformers' llama has no window"},
        {STARCODER2 ",\"sliding_window\":8}", "model.window_first_layer=1",
         "model.layer_types: transformers' starcoder2"},
        {PHI3 ",\"sliding_window\":8}", "model.full_attention_interval=2", "model.layer_types: transformers' phi3"},
        {STARCODER2 ",\"sliding_window\":8}", "model.rope_local_base_freq=100",
         "model.rope_local_base_freq: transformers' starcoder2 has the same frequencies in all blocks"},
        {LLAMA "}", "model.query_pre_attn_scalar=5",
         "model.query_pre_attn_scalar: transformers' llama divides scores by the root of head_dim"},
        {GEMMA3 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":8}}", "model.rope_local_base_freq=0",
         "model.rope_factor: transformers' gemma3_text scales no frequencies"},
        {LLAMA "}", "model.logits_softcap=5", "model.logits_softcap: transformers' llama has no such cap"},
        {GEMMA3 "}", "model.attention_softcap=5", "model.attention_softcap: transformers' gemma3_text has no such cap"},
        {GEMMA3 "}", "model.rotary_dim=2", "model.rotary_dim: transformers' gemma3_text turns whole heads"},
        {MIXTRAL "}", "model.router=sigmoid", "model.router: transformers' mixtral has softmax"},
        {MIXTRAL "}", "model.route_norm=false", "model.route_norm: transformers' mixtral divides"},
        {QWEN2_MOE "}", "model.shared_ffn_dim=0", "model.shared_ffn_dim: transformers' qwen2_moe has an expert"},
        {LLAMA "}", "model.residual_multiplier=0.5",
         "model.residual_multiplier: transformers' llama has no such factor"},
        {OLMOE "}", "model.router_bias=true", "model.router_bias: transformers' olmoe has no biases"},
        {HYBRID("\"mamba\",\"mamba\"") "}", "model.linear_value_dim=6",
         "model.linear_value_dim: transformers' granitemoehybrid has heads that together are a multiple of model.dim 16 wide"},
        {HYBRID("\"mamba\",\"mamba\"") "}", "model.shared_ffn_dim=0",
         "model.shared_ffn_dim: transformers' granitemoehybrid has an expert"},
        {HYBRID("\"attention\",\"attention\"") ",\"position_embedding_type\":\"rope\"}", "model.rotary_dim=2",
         "model.rotary_dim: transformers' granitemoehybrid turns whole heads"},
        {OLMOE "}", "model.route_scale=2.5", "model.route_scale: transformers' olmoe has no factor"},
    };
    struct sh_config cfg;
    char *text;

    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        put("config.json", refused[i].text);
        assert_int_equal(load(refused[i].argument, &cfg), SH_OK);
        assert_int_equal(sh_hf_config_can_write(&cfg), SH_E_USAGE);
        assert_int_equal(sh_hf_config_write(&cfg, "float32", NULL, &text), SH_E_USAGE);
        assert_non_null(strstr(sh_error_text(), refused[i].says));
    }
}

/* ---- names ---- */

/* The embedding need not come first: its role says which it is. */
static const struct sh_ckpt_tensor wanted[] = {{"model.norm.weight", 1, {2}, 2, SH_PARAM_NORM, 0},
                                               {"model.embed_tokens.weight", 2, {4, 2}, 8, SH_PARAM_EMBED, 0}};
static const struct sh_ckpt_set set = {.tensors = wanted, .n_tensors = 2};

struct have {
    const char *name;
    int type;
    int64_t dim[2];
};

static sh_rc match(const struct have *have, struct sh_hf_match *out)
{
    static struct sh_st_entry entry[8];
    struct sh_st_index x = {.entry = entry};

    memset(entry, 0, sizeof entry);
    for (; have[x.n].name; x.n++) {
        struct sh_st_entry *e = &entry[x.n];

        snprintf(e->name, sizeof e->name, "%s", have[x.n].name);
        e->type = have[x.n].type;
        e->ndim = 1 + (have[x.n].dim[1] > 0);
        memcpy(e->dim, have[x.n].dim, sizeof have[x.n].dim);
        e->elems = e->dim[0] * (e->ndim > 1 ? e->dim[1] : 1);
    }
    return sh_hf_match("D", &x, &set, "llama", false, out);
}

/* clang-format off */
#define EMBED {"model.embed_tokens.weight", SH_ST_BF16, {4, 2}}
#define NORM {"model.norm.weight", SH_ST_F32, {2, 0}}
/* clang-format on */

/* In the order of names, like an index. */
static const struct {
    struct have have[6];
    const char *says; /* NULL: matches */
} names[] = {
    {{EMBED, NORM}, NULL},
    {{{"embed_tokens.weight", SH_ST_F16, {4, 2}}, {"norm.weight", SH_ST_F16, {2, 0}}}, NULL},
    {{EMBED, {"model.layers.0.self_attn.rotary_emb.inv_freq", SH_ST_F32, {8, 0}}, NORM}, NULL},
    {{{"h.0.attn.bias", SH_ST_BOOL, {8, 0}}, {"h.0.attn.masked_bias", SH_ST_F32, {1, 0}}, EMBED, NORM}, NULL},
    {{{"lm_head.weight", SH_ST_BF16, {4, 2}}, EMBED, NORM}, NULL},
    {{{"lm_head.weight", SH_ST_BF16, {4, 3}}, EMBED, NORM}, "lm_head.weight [4,3] is not a tensor"},
    {{{"lm_head.weight", SH_ST_I64, {4, 2}}, EMBED, NORM}, "lm_head.weight"},
    {{EMBED}, "1 of the model's tensors are missing, the first of them model.norm.weight [2]"},
    {{{"model.embed.weight", SH_ST_BF16, {4, 2}}, NORM}, "missing, the first of them model.embed_tokens.weight [4,2]"},
    {{EMBED, NORM, {"model.norm_2.weight", SH_ST_F32, {2, 0}}},
     "model.norm_2.weight [2] is not a tensor of this model; nearest is "
     "model.norm.weight"},
    {{EMBED, {"norm.weight", SH_ST_F32, {2, 0}}}, "missing"}, /* not all names lack the prefix */
    {{{"model.embed_tokens.weight", SH_ST_BF16, {2, 4}}, NORM}, "has shape [2,4], but this model wants [4,2]"},
    {{{"model.embed_tokens.weight", SH_ST_I64, {4, 2}}, NORM}, "is I64; parameters are F32, F16 or BF16"},
};

static void each_name_is_found_or_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct sh_hf_match m = {0};
        sh_rc rc = match(names[i].have, &m);

        if (rc != (names[i].says ? SH_E_DATA : SH_OK) || (rc && !strstr(sh_error_text(), names[i].says)))
            fail_msg("names %zu: %s", i, rc ? sh_error_text() : "accepted");
        if (rc == SH_OK)
            assert_int_equal(m.copy != NULL, strncmp(names[i].have[0].name, "lm_head", 7) == 0);
        if (rc == SH_OK && m.copy)
            assert_string_equal(m.of->name, "model.embed_tokens.weight");
        sh_hf_match_free(&m);
    }
}

/* Two experts: each matrix of the folder is a range of a tensor of the model. */
static const struct sh_ckpt_tensor stacked[] = {
    {"model.layers.0.mlp.gate.weight", 2, {2, 3}, 6, SH_PARAM_ROUTER, 0},
    {"model.layers.0.mlp.experts.gate_up_proj.weight", 3, {2, 8, 3}, 48, SH_PARAM_EXPERT_UP, 0},
    {"model.layers.0.mlp.experts.down_proj.weight", 3, {2, 3, 4}, 24, SH_PARAM_EXPERT_DOWN, 0}};
static const struct sh_ckpt_set of_experts = {.tensors = stacked, .n_tensors = 3};

static bool has_twice(const void *arg, const char *name)
{
    return strcmp(name, arg) == 0 || strcmp(name, "model.layers.0.mlp.experts.0.down_proj.weight") == 0;
}

static void experts_are_ranges_of_a_tensor(void **state)
{
    static const char *const there[] = {
        "model.layers.0.block_sparse_moe.gate.weight",         "model.layers.0.block_sparse_moe.experts.0.w1.weight",
        "model.layers.0.block_sparse_moe.experts.0.w3.weight", "model.layers.0.block_sparse_moe.experts.1.w1.weight",
        "model.layers.0.block_sparse_moe.experts.1.w3.weight", "model.layers.0.block_sparse_moe.experts.0.w2.weight",
        "model.layers.0.block_sparse_moe.experts.1.w2.weight"};
    struct sh_hf_look look = {.folder = "D", .has = has_twice, .arg = "model.layers.0.mlp.experts.gate_up_proj"};
    struct sh_hf_spread s;
    int64_t into;

    (void)state;
    assert_int_equal(sh_hf_spread_make(sh_hf_family_of_type("mixtral"), &of_experts, NULL, &s), SH_OK);
    assert_int_equal(s.n, 7);
    for (int i = 0; i < s.n; i++) {
        assert_string_equal(s.part[i].name, there[i]);
        assert_int_equal(s.part[i].ndim, 2);
        assert_int_equal(s.part[i].elems, s.part[i].dim[0] * s.part[i].dim[1]);
        assert_int_equal(s.part[i].elems, i ? 12 : 6);
    }
    assert_int_equal(sh_hf_spread_part(&s, 1, 35, &into), 3);
    assert_int_equal(into, 11);
    assert_int_equal(sh_hf_spread_part(&s, 2, 12, &into), 6);
    assert_int_equal(into, 0);
    sh_hf_spread_free(&s);
    /* of a tensor that is in the folder as it is here, and of one that is there in both forms */
    assert_int_equal(sh_hf_spread_make(sh_hf_family_of_type("olmoe"), &of_experts, &look, &s), SH_OK);
    assert_int_equal(s.n, 4);
    assert_string_equal(s.part[1].name, look.arg);
    assert_int_equal(s.part[1].ndim, 3);
    sh_hf_spread_free(&s);
    look.arg = "model.layers.0.mlp.experts.down_proj";
    assert_int_equal(sh_hf_spread_make(sh_hf_family_of_type("olmoe"), &of_experts, &look, &s), SH_E_DATA);
    assert_non_null(
        strstr(sh_error_text(), "D: it has the same experts twice, in model.layers.0.mlp.experts.down_proj"));
}

/* Adapters of four experts of 3 inputs and 5 outputs, and of ranks 2: as PEFT flattens them, and back. */
static void adapters_of_stacks_are_flat_in_files(void **state)
{
    static const struct sh_hf_stacks both = {"mlp.experts", "mlp.experts.gate_up_proj", "mlp.experts.down_proj", 4};
    static const struct sh_hf_stacks up = {"mlp.experts", "mlp.experts.gate_up_proj", NULL, 4};
    static const struct {
        const struct sh_hf_stacks *s;
        const char *here, *there;
        int64_t dim[3], two[2];
        bool turned;
    } flat[] = {
        {&both, "l.mlp.experts.down_proj.lora_A.weight", "l.mlp.experts.lora_A.weight", {4, 2, 3}, {8, 3}, false},
        {&both, "l.mlp.experts.down_proj.lora_B.weight", "l.mlp.experts.lora_B.weight", {4, 5, 2}, {5, 8}, true},
        {&both,
         "l.mlp.experts.gate_up_proj.lora_A.weight",
         "l.mlp.experts.base_layer.lora_A.weight",
         {4, 2, 3},
         {8, 3},
         false},
        {&both,
         "l.mlp.experts.gate_up_proj.lora_B.weight",
         "l.mlp.experts.base_layer.lora_B.weight",
         {4, 5, 2},
         {5, 8},
         true},
        {&up, "l.mlp.experts.gate_up_proj.lora_B.weight", "l.mlp.experts.lora_B.weight", {4, 5, 2}, {5, 8}, true},
    };
    static const float b[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; /* [2,3,2] */
    static const float file[] = {0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11};
    float turned[12], back[12];

    (void)state;
    for (size_t i = 0; i < sizeof flat / sizeof *flat; i++) {
        struct sh_st_entry e = {.ndim = 3, .dim = {flat[i].dim[0], flat[i].dim[1], flat[i].dim[2]}};

        snprintf(e.name, sizeof e.name, "%s", flat[i].here);
        assert_int_equal(sh_hf_stacked_is_turned(flat[i].s, e.name), flat[i].turned);
        sh_hf_stacked_to_file(flat[i].s, e.name, sizeof e.name, &e.ndim, e.dim);
        assert_string_equal(e.name, flat[i].there);
        assert_int_equal(e.ndim, 2);
        assert_memory_equal(e.dim, flat[i].two, sizeof flat[i].two);
        sh_hf_stacked_from_file(flat[i].s, &e);
        assert_string_equal(e.name, flat[i].here);
        assert_int_equal(e.ndim, 3);
        assert_memory_equal(e.dim, flat[i].dim, sizeof flat[i].dim);
    }
    sh_hf_stacked_turn((const int64_t[]){2, 3, 2}, b, 0, 7, turned);
    sh_hf_stacked_turn((const int64_t[]){2, 3, 2}, b, 7, 5, turned + 7);
    assert_memory_equal(turned, file, sizeof file);
    sh_hf_stacked_turn_back((const int64_t[]){2, 3, 2}, file, back);
    assert_memory_equal(back, b, sizeof b);
}

/* Either a family is computed here, or the table says why not. */
static void each_row_has_a_family_or_a_reason(void **state)
{
    const struct sh_hf_family *f;

    (void)state;
    for (int i = 0; (f = sh_hf_family_row(i)); i++) {
        assert_true((f->family != NULL) != (f->refused != NULL));
        assert_ptr_equal(sh_hf_family_of_type(f->type), f);
        if (f->family)
            assert_true(f->prefix && f->key[SH_HF_DIM][0] && f->must[0].key);
    }
}

static int open_folder(void **state)
{
    (void)state;
    sh_config_folder_hook(sh_hf_config_read);
    return mkdtemp(folder) ? 0 : -1;
}

static int delete_folder(void **state)
{
    char *path = sh_path_join(folder, "config.json");

    (void)state;
    (void)unlink(path);
    free(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_config_is_what_its_class_makes_of_it),
        cmocka_unit_test(published_forms_are_read),
        cmocka_unit_test(each_family_can_be_exported),
        cmocka_unit_test(a_file_counts_less_than_a_folder),
        cmocka_unit_test(what_is_no_folder_is_refused),
        cmocka_unit_test(what_is_written_is_read_as_the_same_model),
        cmocka_unit_test(ids_are_taken_over),
        cmocka_unit_test(what_was_not_seen_is_taken_over),
        cmocka_unit_test(a_window_is_written),
        cmocka_unit_test(a_weight_of_balance_is_written),
        cmocka_unit_test(what_a_class_lacks_is_not_written),
        cmocka_unit_test(each_name_is_found_or_told),
        cmocka_unit_test(experts_are_ranges_of_a_tensor),
        cmocka_unit_test(adapters_of_stacks_are_flat_in_files),
        cmocka_unit_test(each_row_has_a_family_or_a_reason),
    };

    return cmocka_run_group_tests(tests, open_folder, delete_folder);
}
