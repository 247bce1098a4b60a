#include "io/foreign/hf/config/family.h"

#include <string.h>

/* The keys of transformers for the values of a Llama-like model. */
/* clang-format off */
#define BASE_KEYS                                                                                                       \
    [SH_HF_LAYERS] = {"num_hidden_layers"}, [SH_HF_DIM] = {"hidden_size"}, [SH_HF_HEADS] = {"num_attention_heads"},     \
    [SH_HF_KV_HEADS] = {"num_key_value_heads"}, [SH_HF_HEAD_DIM] = {"head_dim"},                                        \
    [SH_HF_VOCAB] = {"vocab_size"}, [SH_HF_POSITIONS] = {"max_position_embeddings"}, [SH_HF_INIT] = {"initializer_range"}, \
    [SH_HF_TIED] = {"tie_word_embeddings"}, [SH_HF_THETA] = {"rope_theta"}
#define LLAMA_KEYS BASE_KEYS, [SH_HF_FFN] = {"intermediate_size"}
#define RMS_EPS [SH_HF_EPS] = {"rms_norm_eps"}
#define BIAS_KEYS [SH_HF_ATTENTION_BIAS] = {"attention_bias"}, [SH_HF_MLP_BIAS] = {"mlp_bias"}
#define SILU {"hidden_act", {"silu", "swish"}, "the gate's activation is SiLU here"}
#define QWEN_KEYS                                                                                                       \
    [SH_HF_EXPERTS] = {"num_experts", "num_local_experts"}, [SH_HF_CHOSEN] = {"num_experts_per_tok"},                   \
    [SH_HF_ROUTE_NORM] = {"norm_topk_prob"}
#define SPARSE_KEYS                                                                                                     \
    [SH_HF_EXPERT_FFN] = {"moe_intermediate_size"}, [SH_HF_MOE_EVERY] = {"decoder_sparse_step"},                        \
    [SH_HF_FIRST_DENSE] = {"mlp_only_layers"}
#define QWEN_FORM {{"mlp.experts.gate_up_proj", {"mlp.experts.#.gate_proj", "mlp.experts.#.up_proj"}, "mlp.experts.gate_up_proj"}, \
                   {"mlp.experts.down_proj", {"mlp.experts.#.down_proj"}, "mlp.experts.down_proj"}}
#define BALANCE "output_router_logits", "router_aux_loss_coef"
#define GRANITE_KEYS                                                                                                    \
    [SH_HF_ATTENTION_BIAS] = {"attention_bias"}, [SH_HF_SCALAR] = {"attention_multiplier"},                             \
    [SH_HF_EMBED_BY] = {"embedding_multiplier"}, [SH_HF_RESIDUAL_BY] = {"residual_multiplier"},                         \
    [SH_HF_LOGITS_BY] = {"logits_scaling"}
#define GRANITE_ABSENT                                                                                                  \
    [SH_HF_LAYERS] = "32", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "=", [SH_HF_HEAD_DIM] = "=",  \
    [SH_HF_VOCAB] = "32000", [SH_HF_POSITIONS] = "2048", [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02",                   \
    [SH_HF_THETA] = "10000", [SH_HF_SCALAR] = "1", [SH_HF_EMBED_BY] = "1", [SH_HF_RESIDUAL_BY] = "1",                   \
    [SH_HF_LOGITS_BY] = "1"
#define NOT_YET(what) .refused = what " is not computed here"

/* Defaults are those of the configuration classes of transformers 5.23; tests/hf compares them one key at a time. */
static const struct sh_hf_family rows[] = {
    {.type = "llama",
     .family = "llama",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS, BIAS_KEYS},
     .absent = {[SH_HF_LAYERS] = "32", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "=",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "11008", [SH_HF_VOCAB] = "32000", [SH_HF_POSITIONS] = "2048",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000"},
     .must = {SILU},
     .dropout = {"attention_dropout"},
     .plain = {"pretraining_tp", "is_llama_config"}},
    {.type = "mistral",
     .family = "mistral",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS},
     .absent = {[SH_HF_LAYERS] = "32", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "8",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "14336", [SH_HF_VOCAB] = "32000", [SH_HF_POSITIONS] = "131072",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000"},
     .window = "4096",
     .must = {SILU},
     .dropout = {"attention_dropout"}},
    {.type = "gpt2",
     .family = "gpt2",
     .prefix = "transformer.",
     .key = {[SH_HF_LAYERS] = {"n_layer", "num_hidden_layers"}, [SH_HF_DIM] = {"n_embd", "hidden_size"},
             [SH_HF_HEADS] = {"n_head", "num_attention_heads"}, [SH_HF_FFN] = {"n_inner"}, [SH_HF_VOCAB] = {"vocab_size"},
             [SH_HF_POSITIONS] = {"n_positions", "max_position_embeddings"}, [SH_HF_EPS] = {"layer_norm_epsilon"},
             [SH_HF_INIT] = {"initializer_range"}, [SH_HF_TIED] = {"tie_word_embeddings"}},
     .absent = {[SH_HF_LAYERS] = "12", [SH_HF_DIM] = "768", [SH_HF_HEADS] = "12", [SH_HF_KV_HEADS] = "=",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "=", [SH_HF_VOCAB] = "50257", [SH_HF_POSITIONS] = "1024",
                [SH_HF_EPS] = "1e-5", [SH_HF_INIT] = "0.02", [SH_HF_TIED] = "true"},
     .must = {{"activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "the activation is GELU by tanh here"},
              {"scale_attn_weights", {"true"}, "scores are divided by the root of the head's width here"},
              {"scale_attn_by_inverse_layer_idx", {"false"}, "scores are not divided by the number of the block here"},
              {"add_cross_attention", {"false"}, "there is no other sequence to attend to here"}},
     .dropout = {"attn_pdrop", "embd_pdrop", "resid_pdrop"},
     .plain = {"n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_proj_to_labels", "summary_type",
               "summary_use_proj"}},
    {.type = "qwen2",
     .family = "qwen2",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS},
     .absent = {[SH_HF_LAYERS] = "32", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "32",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "22016", [SH_HF_VOCAB] = "151936", [SH_HF_POSITIONS] = "32768",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000"},
     .window = "4096",
     .layer_types = true,
     .must = {SILU},
     .dropout = {"attention_dropout"}},
    {.type = "phi3",
     .family = "phi3",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS},
     .absent = {[SH_HF_LAYERS] = "32", [SH_HF_DIM] = "3072", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "=",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "8192", [SH_HF_VOCAB] = "32064", [SH_HF_POSITIONS] = "4096",
                [SH_HF_EPS] = "1e-5", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000"},
     .window = "",
     .length = "4096",
     .must = {SILU},
     .dropout = {"attention_dropout", "embd_pdrop", "resid_pdrop"}},
    {.type = "smollm3",
     .family = "smollm3",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS, BIAS_KEYS, [SH_HF_NO_ROPE] = {"no_rope_layer_interval"}},
     .absent = {[SH_HF_LAYERS] = "36", [SH_HF_DIM] = "2048", [SH_HF_HEADS] = "16", [SH_HF_KV_HEADS] = "4",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "11008", [SH_HF_VOCAB] = "128256", [SH_HF_POSITIONS] = "32768",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_TIED] = "true", [SH_HF_NO_ROPE] = "4",
                [SH_HF_THETA] = "2000000"},
     .window = "",
     .layer_types = true,
     .must = {SILU},
     .dropout = {"attention_dropout"},
     .plain = {"pretraining_tp", "max_window_layers"}},
    {.type = "starcoder2",
     .family = "starcoder2",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, [SH_HF_EPS] = {"norm_epsilon"}},
     .absent = {[SH_HF_LAYERS] = "30", [SH_HF_DIM] = "3072", [SH_HF_HEADS] = "24", [SH_HF_KV_HEADS] = "2",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "12288", [SH_HF_VOCAB] = "49152", [SH_HF_POSITIONS] = "4096",
                [SH_HF_EPS] = "1e-5", [SH_HF_INIT] = "0.018042", [SH_HF_TIED] = "true", [SH_HF_THETA] = "10000"},
     .window = "",
     .must = {{"hidden_act", {"gelu_pytorch_tanh", "gelu_new"}, "the activation is GELU by tanh here"},
              {"use_bias", {"true"}, "all products have biases here"},
              {"mlp_type", {"default"}, "the feed-forward layer has no gate here"},
              {"norm_type", {"layer_norm"}, "norms are LayerNorm here"}},
     .dropout = {"attention_dropout", "embedding_dropout", "residual_dropout"},
     .plain = {"activation_function", "layer_norm_epsilon"}}, /* its class does not read these */
    {.type = "qwen3",
     .family = "qwen3",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS, [SH_HF_ATTENTION_BIAS] = {"attention_bias"}},
     .absent = {[SH_HF_LAYERS] = "32", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "32",
                [SH_HF_HEAD_DIM] = "128", [SH_HF_FFN] = "22016", [SH_HF_VOCAB] = "151936", [SH_HF_POSITIONS] = "32768",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000"},
     .window = "4096",
     .layer_types = true,
     .must = {SILU},
     .dropout = {"attention_dropout"}},
    {.type = "olmo2",
     .family = "olmo2",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS, [SH_HF_ATTENTION_BIAS] = {"attention_bias"}},
     .absent = {[SH_HF_LAYERS] = "32", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "=",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "11008", [SH_HF_VOCAB] = "50304", [SH_HF_POSITIONS] = "2048",
                [SH_HF_EPS] = "1e-5", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000"},
     .must = {SILU},
     .dropout = {"attention_dropout"}},
    {.type = "gemma",
     .family = "gemma",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS, [SH_HF_ATTENTION_BIAS] = {"attention_bias"}},
     .absent = {[SH_HF_LAYERS] = "28", [SH_HF_DIM] = "3072", [SH_HF_HEADS] = "16", [SH_HF_KV_HEADS] = "16",
                [SH_HF_HEAD_DIM] = "256", [SH_HF_FFN] = "24576", [SH_HF_VOCAB] = "256000", [SH_HF_POSITIONS] = "8192",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_TIED] = "true", [SH_HF_THETA] = "10000"},
     /* Its class takes "gelu" to mean the tanh form, as in the first files. */
     .must = {{"hidden_act", {"gelu_pytorch_tanh", "gelu", "gelu_new"}, "the gate's activation is GELU by tanh here"},
              {"hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}, "the gate's activation is GELU by tanh here"},
              {"use_bidirectional_attention", {"false"}, "a token sees those before it"}},
     .dropout = {"attention_dropout"}},
    {.type = "gemma3_text",
     .family = "gemma3_text",
     .prefix = "model.",
     .key = {LLAMA_KEYS, RMS_EPS, [SH_HF_ATTENTION_BIAS] = {"attention_bias"}, [SH_HF_SCALAR] = {"query_pre_attn_scalar"}},
     .absent = {[SH_HF_LAYERS] = "26", [SH_HF_DIM] = "2304", [SH_HF_HEADS] = "8", [SH_HF_KV_HEADS] = "4",
                [SH_HF_HEAD_DIM] = "256", [SH_HF_FFN] = "9216", [SH_HF_VOCAB] = "262208", [SH_HF_POSITIONS] = "131072",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_TIED] = "true", [SH_HF_SCALAR] = "256",
                [SH_HF_THETA] = "1000000"},
     .window = "4096",
     .pattern = "6",
     .local_theta = "10000",
     .must = {{"hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}, "the gate's activation is GELU by tanh here"},
              {"use_bidirectional_attention", {"false"}, "a token sees those before it"}},
     .dropout = {"attention_dropout"},
     .plain = {"_sliding_window_pattern"}}, /* its class writes it in addition to layer_types, and does not read it */

    {.type = "gpt_neox",
     .family = "gpt_neox",
     .prefix = "gpt_neox.",
     .head = "embed_out.weight",
     .key = {[SH_HF_LAYERS] = {"num_hidden_layers"}, [SH_HF_DIM] = {"hidden_size"}, [SH_HF_HEADS] = {"num_attention_heads"},
             [SH_HF_FFN] = {"intermediate_size"}, [SH_HF_VOCAB] = {"vocab_size"},
             [SH_HF_POSITIONS] = {"max_position_embeddings"}, [SH_HF_EPS] = {"layer_norm_eps"},
             [SH_HF_INIT] = {"initializer_range"}, [SH_HF_TIED] = {"tie_word_embeddings"},
             [SH_HF_THETA] = {"rotary_emb_base", "rope_theta"}},
     .absent = {[SH_HF_LAYERS] = "44", [SH_HF_DIM] = "6144", [SH_HF_HEADS] = "64", [SH_HF_KV_HEADS] = "=",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "24576", [SH_HF_VOCAB] = "50432", [SH_HF_POSITIONS] = "2048",
                [SH_HF_EPS] = "1e-5", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000"},
     .partial = "rotary_pct",
     .part = 0.25,
     .must = {{"hidden_act", {"gelu"}, "the activation is GELU by the normal distribution here"},
              {"use_parallel_residual", {"true"}, "both branches have the input of the block here"},
              {"attention_bias", {"true"}, "all products have biases here"}},
     .dropout = {"attention_dropout", "hidden_dropout"},
     .plain = {"partial_rotary_factor"}}, /* top level, next to rotary_pct in older files; its class ignores it */
    {.type = "mixtral",
     .family = "mixtral",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {BASE_KEYS, RMS_EPS, [SH_HF_EXPERTS] = {"num_local_experts", "num_experts"},
             [SH_HF_CHOSEN] = {"num_experts_per_tok"}, [SH_HF_EXPERT_FFN] = {"intermediate_size"}},
     .absent = {[SH_HF_LAYERS] = "32", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "8",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_VOCAB] = "32000", [SH_HF_POSITIONS] = "131072", [SH_HF_EPS] = "1e-5",
                [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "1000000", [SH_HF_EXPERTS] = "8", [SH_HF_CHOSEN] = "2",
                [SH_HF_EXPERT_FFN] = "14336", [SH_HF_ROUTE_NORM] = "true"},
     .window = "",
     .form = {{"mlp.gate", {"block_sparse_moe.gate"}, "mlp.gate.weight"},
              {"mlp.experts.gate_up_proj", {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3"},
               "mlp.experts.gate_up_proj"},
              {"mlp.experts.down_proj", {"block_sparse_moe.experts.#.w2"}, "mlp.experts.down_proj"}},
     .must = {SILU},
     .dropout = {"attention_dropout", "router_jitter_noise"},
     .plain = {BALANCE}},
    {.type = "qwen2_moe",
     .family = "qwen2_moe",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS, QWEN_KEYS, SPARSE_KEYS, [SH_HF_SHARED_FFN] = {"shared_expert_intermediate_size"}},
     .absent = {[SH_HF_LAYERS] = "24", [SH_HF_DIM] = "2048", [SH_HF_HEADS] = "16", [SH_HF_KV_HEADS] = "16",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "5632", [SH_HF_VOCAB] = "151936", [SH_HF_POSITIONS] = "32768",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000", [SH_HF_EXPERTS] = "60",
                [SH_HF_CHOSEN] = "4", [SH_HF_EXPERT_FFN] = "1408", [SH_HF_SHARED_FFN] = "5632", [SH_HF_MOE_EVERY] = "1"},
     .form = QWEN_FORM,
     .window = "4096",
     .layer_types = true,
     .must = {SILU, {"qkv_bias", {"true"}, "queries, keys and values have biases here"}},
     .dropout = {"attention_dropout"},
     .plain = {BALANCE}},
    {.type = "qwen3_moe",
     .family = "qwen3_moe",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS, QWEN_KEYS, SPARSE_KEYS, [SH_HF_ATTENTION_BIAS] = {"attention_bias"}},
     .absent = {[SH_HF_LAYERS] = "24", [SH_HF_DIM] = "2048", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "4",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "6144", [SH_HF_VOCAB] = "151936", [SH_HF_POSITIONS] = "32768",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000", [SH_HF_EXPERTS] = "128",
                [SH_HF_CHOSEN] = "8", [SH_HF_EXPERT_FFN] = "768", [SH_HF_MOE_EVERY] = "1"},
     .form = QWEN_FORM,
     .must = {SILU, {"use_sliding_window", {"false"}, "a window of all blocks that a switch turns off is not read here"}},
     .dropout = {"attention_dropout"},
     .plain = {BALANCE, "sliding_window", "max_window_layers", "use_qk_norm"}}, /* the class does not read the last */
    {.type = "olmoe",
     .family = "olmoe",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {BASE_KEYS, RMS_EPS, QWEN_KEYS, [SH_HF_EXPERT_FFN] = {"intermediate_size"},
             [SH_HF_ATTENTION_BIAS] = {"attention_bias"}},
     .absent = {[SH_HF_LAYERS] = "16", [SH_HF_DIM] = "2048", [SH_HF_HEADS] = "16", [SH_HF_KV_HEADS] = "=",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_VOCAB] = "50304", [SH_HF_POSITIONS] = "4096", [SH_HF_EPS] = "1e-5",
                [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000", [SH_HF_EXPERTS] = "64", [SH_HF_CHOSEN] = "8",
                [SH_HF_EXPERT_FFN] = "2048"},
     .form = QWEN_FORM,
     .must = {SILU, {"clip_qkv", {"null"}, "queries, keys and values are not clipped here"}},
     .dropout = {"attention_dropout"},
     .plain = {BALANCE}},
    {.type = "granite",
     .family = "granite",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS, GRANITE_KEYS, [SH_HF_MLP_BIAS] = {"mlp_bias"}},
     .absent = {GRANITE_ABSENT, [SH_HF_FFN] = "11008"},
     .scores_by = true,
     .must = {SILU},
     .dropout = {"attention_dropout"}},
    {.type = "granitemoe",
     .family = "granitemoe",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {BASE_KEYS, RMS_EPS, GRANITE_KEYS, [SH_HF_EXPERTS] = {"num_local_experts"},
             [SH_HF_CHOSEN] = {"num_experts_per_tok"}, [SH_HF_EXPERT_FFN] = {"intermediate_size"}},
     .absent = {GRANITE_ABSENT, [SH_HF_EXPERTS] = "8", [SH_HF_CHOSEN] = "2", [SH_HF_EXPERT_FFN] = "11008",
                [SH_HF_ROUTE_NORM] = "true"},
     .scores_by = true,
     .form = {{"block_sparse_moe.router", {"block_sparse_moe.router.layer"}, "block_sparse_moe.router.weight"},
              {"block_sparse_moe.experts.gate_up_proj", {"block_sparse_moe.input_linear"}, "block_sparse_moe.experts.gate_up_proj"},
              {"block_sparse_moe.experts.down_proj", {"block_sparse_moe.output_linear"}, "block_sparse_moe.experts.down_proj"}},
     .must = {SILU},
     .dropout = {"attention_dropout"},
     .plain = {BALANCE}},
    {.type = "olmo3",
     .family = "olmo3",
     .prefix = "model.",
     .key = {LLAMA_KEYS, RMS_EPS, [SH_HF_ATTENTION_BIAS] = {"attention_bias"}},
     .absent = {[SH_HF_LAYERS] = "32", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "=",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "11008", [SH_HF_VOCAB] = "50304", [SH_HF_POSITIONS] = "2048",
                [SH_HF_EPS] = "1e-5", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "500000"},
     .window = "4096",
     .pattern = "4",
     .lists_only = true,
     .local_theta = "500000", /* whatever rope_theta at the top level says */
     .must = {SILU},
     .dropout = {"attention_dropout"}},
    {.type = "exaone4",
     .family = "exaone4",
     .prefix = "model.",
     .key = {LLAMA_KEYS, RMS_EPS},
     .absent = {[SH_HF_LAYERS] = "32", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "32", [SH_HF_KV_HEADS] = "32",
                [SH_HF_HEAD_DIM] = "=", [SH_HF_FFN] = "16384", [SH_HF_VOCAB] = "102400", [SH_HF_POSITIONS] = "2048",
                [SH_HF_EPS] = "1e-5", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000"},
     .window = "4096",
     .pattern = "4",
     .full_nope = true,
     .must = {SILU},
     .dropout = {"attention_dropout"}},
    {.type = "seed_oss",
     .family = "seed_oss",
     .prefix = "model.",
     .partial = "partial_rotary_factor",
     .key = {LLAMA_KEYS, RMS_EPS, [SH_HF_MLP_BIAS] = {"mlp_bias"}},
     .absent = {[SH_HF_LAYERS] = "64", [SH_HF_DIM] = "4096", [SH_HF_HEADS] = "80", [SH_HF_KV_HEADS] = "8",
                [SH_HF_HEAD_DIM] = "128", [SH_HF_FFN] = "27648", [SH_HF_VOCAB] = "155136", [SH_HF_POSITIONS] = "524288",
                [SH_HF_EPS] = "1e-6", [SH_HF_INIT] = "0.02", [SH_HF_THETA] = "10000"},
     .must = {SILU,
              {"attention_bias", {"true"}, "queries, keys and values have biases here"},
              {"attention_out_bias", {"false"}, "the output of attention has no bias here"}},
     .dropout = {"attention_dropout", "residual_dropout"},
     .plain = {"pretraining_tp"}},
    {.type = "gemma2", NOT_YET("its soft cap on scores and logits")},
    {.type = "gemma3", .refused = "it reads images too; a folder of gemma3_text has the language model alone"},
    {.type = "qwen2_vl", .refused = "it reads images too"},
    {.type = "qwen2_5_vl", .refused = "it reads images too"},
    {.type = "mllama", .refused = "it reads images too"},
    {.type = "llava", .refused = "it reads images too"},
    {.type = "cohere", NOT_YET("its layer norm without bias, and its scale of logits")},
    {.type = "cohere2", NOT_YET("its layer norm without bias, and its scale of logits")},
    {.type = "opt", NOT_YET("its table of positions")},
    {.type = "falcon", NOT_YET("its positions and parallel branches")},
    {.type = "mpt", NOT_YET("its positions, a slope on the scores (ALiBi),")},
    {.type = "bloom", NOT_YET("its positions, a slope on the scores (ALiBi),")},
    {.type = "mamba", .refused = "it has no attention, but a state space"},
    {.type = "mamba2", .refused = "it has no attention, but a state space"},
    {.type = "falcon_h1", .refused = "some of its blocks have a state space"},
    {.type = "qwen3_next", .refused = "some of its blocks have no attention"},
    {.type = "deepseek_v3", .refused = "its feed-forward layers are experts"},
};
/* clang-format on */

/* Keys of our configuration for the values of SH_HF_VALUES. */
const char *sh_hf_family_key(int value)
{
    static const char *const keys[SH_HF_VALUES] = {
        [SH_HF_LAYERS] = "model.n_layers",
        [SH_HF_DIM] = "model.dim",
        [SH_HF_HEADS] = "model.n_heads",
        [SH_HF_KV_HEADS] = "model.n_kv_heads",
        [SH_HF_HEAD_DIM] = "model.head_dim",
        [SH_HF_FFN] = "model.ffn_dim",
        [SH_HF_VOCAB] = "model.vocab_size",
        [SH_HF_POSITIONS] = "model.max_seq_len",
        [SH_HF_EPS] = "model.norm_eps",
        [SH_HF_INIT] = "model.init_std",
        [SH_HF_TIED] = "model.tie_word_embeddings",
        [SH_HF_ATTENTION_BIAS] = "model.attention_bias",
        [SH_HF_MLP_BIAS] = "model.mlp_bias",
        [SH_HF_SCALAR] = "model.query_pre_attn_scalar",
        [SH_HF_EXPERTS] = "model.n_experts",
        [SH_HF_CHOSEN] = "model.n_experts_per_token",
        [SH_HF_EXPERT_FFN] = "model.expert_ffn_dim",
        [SH_HF_SHARED_FFN] = "model.shared_ffn_dim",
        [SH_HF_ROUTE_NORM] = "model.route_norm",
        [SH_HF_MOE_EVERY] = "model.moe_every",
        [SH_HF_FIRST_DENSE] = "model.first_dense_layers",
        [SH_HF_EMBED_BY] = "model.embedding_multiplier",
        [SH_HF_RESIDUAL_BY] = "model.residual_multiplier",
        [SH_HF_LOGITS_BY] = "model.logits_scaling",
        [SH_HF_THETA] = "model.rope_theta",
    };
    return keys[value];
}

/* NULL after the last row; for lists and messages. */
const struct sh_hf_family *sh_hf_family_row(int i)
{
    return i >= 0 && i < (int)(sizeof rows / sizeof *rows) ? &rows[i] : NULL;
}

/* Types are few enough for a linear search. */
const struct sh_hf_family *sh_hf_family_of_type(const char *type)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].type, type) == 0)
            return &rows[i];
    return NULL;
}

/* Types and families have the same names; the table of families has the class. */
sh_rc sh_hf_family_to_write(const char *family, const struct sh_hf_family **row)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].family && strcmp(rows[i].family, family) == 0) {
            *row = &rows[i];
            return SH_OK;
        }
    if (sh_hf_family_of_type(family))
        return sh_fail(SH_E_USAGE, "model.family=%s: %s", family, sh_hf_family_of_type(family)->refused);
    return sh_fail(SH_E_USAGE,
                   "model.family=%s: transformers has no such model, so no folder of it is written or read here",
                   family);
}
