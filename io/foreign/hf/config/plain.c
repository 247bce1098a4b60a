#include "io/foreign/hf/config/plain.h"

#include <string.h>

/* Keys that every configuration may have and that do not affect the mathematics: what made and named the file, how
 * attention is computed, and how text is generated, which older files say here and not in generation_config.json. */
/* clang-format off */
static const char *const plain[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
    "_flash_attn_2_enabled", "_name_or_path", "architectures", "attn_implementation", "bad_words_ids",
    "begin_suppress_tokens", "bos_token_id", "cache_implementation", "chunk_size_feed_forward",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
    "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label",
    "keys_to_ignore_at_inference", "label2id", "length_penalty", "max_length", "max_new_tokens",
    "max_sequence_length", "min_length", "model_max_length", "model_type", "name_or_path", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_labels", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_past", "output_scores", "pad_token_id", "predict_special_tokens", "prefix",
    "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tokenizer_class",
    "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config", "transformers_version", "typical_p",
    "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "use_return_dict",
};

/* Probabilities of dropout, and other noise, in all spellings. Training has none here. */
static const char *const dropouts[] = {
    "attention_dropout", "attn_pdrop", "classifier_dropout", "embd_pdrop", "embedding_dropout", "hidden_dropout",
    "resid_pdrop", "residual_dropout", "router_jitter_noise", "summary_first_dropout",
};
/* clang-format on */

/* Keys that an export copies from its source. */
static const char *const kept[] = {"bos_token_id", "eos_token_id", "pad_token_id", "tokenizer_class", "use_cache"};

static bool is_in(const char *const *names, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], key) == 0)
            return true;
    return false;
}

/* Dropouts are ignored with a line in the log: they affect training, not the model. */
bool sh_hf_is_dropout(const char *key)
{
    return is_in(dropouts, sizeof dropouts / sizeof *dropouts, key);
}

/* Keys that may have any value. */
bool sh_hf_plain_key(const char *key)
{
    return is_in(plain, sizeof plain / sizeof *plain, key) || sh_hf_is_dropout(key);
}

bool sh_hf_plain_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return json_object_size(value) == 0;
    case JSON_ARRAY: return json_array_size(value) == 0;
    case JSON_STRING: return json_string_length(value) == 0;
    case JSON_INTEGER: return json_integer_value(value) == 0 || json_integer_value(value) == 1;
    case JSON_REAL: return json_real_value(value) == 0 || json_real_value(value) == 1;
    default: return !json_is_true(value);
    }
}

/* Whether a comma-separated list contains exactly this word. */
bool sh_hf_is_named(const char *key, const char *list)
{
    size_t n = strlen(key);
    for (const char *at = list; *at;) {
        at += strspn(at, ", ");
        size_t word = strcspn(at, ", ");
        if (word == n && n > 0 && memcmp(at, key, n) == 0)
            return true;
        at += word;
    }
    return false;
}

const char *sh_hf_kept_key(int i)
{
    return i >= 0 && i < (int)(sizeof kept / sizeof *kept) ? kept[i] : NULL;
}
