#include "io/hf/plain.h"

#include <string.h>

/* Keys that every configuration may have and that do not affect the mathematics. */
/* clang-format off */
static const char *const plain[] = {
    "_attn_implementation", "_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id",
    "id2label", "label2id", "model_type", "name_or_path", "num_labels", "output_attentions", "output_hidden_states",
    "pad_token_id", "problem_type", "return_dict", "sep_token_id", "task_specific_params", "tokenizer_class", "torch_dtype",
    "transformers.js_config", "transformers_version", "unk_token_id", "use_cache",
};

/* Probabilities of dropout, in all spellings. Training has none here. */
static const char *const dropouts[] = {
    "attention_dropout", "attn_pdrop", "classifier_dropout", "embd_pdrop", "embedding_dropout", "hidden_dropout",
    "resid_pdrop", "residual_dropout", "summary_first_dropout",
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
