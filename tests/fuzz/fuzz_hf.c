/* Untrusted files in a model's folder: headers of safetensors, their index, config.json. Each is refused in one line,
 * or the result is sound: tensors that lie end to end in the file, plain file names, a configuration that prints and
 * loads back.
 *
 *   fuzz_hf [RUNS [SEED]]        random mutations of good texts; default 30000 runs; see fuzz.h
 *   clang -fsanitize=fuzzer      built with -DSH_LIBFUZZER: guided by coverage */
#include "io/foreign/hf/config/config.h"
#include "io/foreign/safetensors/index.h"
#include "src/base/hash.h"
#include "src/config/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* A refusal has no control characters, which would reach a terminal. */
static void check_refusal(sh_rc rc)
{
    const unsigned char *s = (const unsigned char *)sh_error_text();

    if ((rc != SH_E_DATA && rc != SH_E_USAGE) || s[0] == '\0')
        abort();
    for (; *s; s++)
        if (*s < 0x20 || *s == 0x7f)
            abort();
}

static void try_header(const char *text, size_t n)
{
    enum { DATA = 64 };
    struct sh_st_header h;
    int64_t at = (int64_t)n, end;
    sh_rc rc = sh_st_header_parse(text, (int64_t)n, at, at + DATA, "fuzz", &h);

    if (rc != SH_OK) {
        check_refusal(rc);
        return;
    }
    for (int64_t i = 0; i < h.n; i++) {
        end = h.entry[i].at + h.entry[i].elems * sh_st_type_bytes(h.entry[i].type);
        if (h.entry[i].at != at || end < at || end > (int64_t)n + DATA || !sh_st_name_plain(h.entry[i].name))
            abort();
        at = end;
    }
    if (at != (int64_t)n + DATA)
        abort();
    free(h.entry);
}

static void try_index(const char *text, size_t n)
{
    struct sh_st_index x;
    sh_rc rc = sh_st_index_files(text, n, "fuzz", &x);

    if (rc != SH_OK) {
        check_refusal(rc);
        return;
    }
    for (int64_t i = 0; i < x.n_files; i++)
        if (!x.file[i].name[0] || strchr(x.file[i].name, '/') || x.file[i].name[0] == '.')
            abort();
    sh_st_index_free(&x);
}

/* Like src/config, with the text in place of the file. */
static const char *config_text;
static size_t config_bytes;
static sh_rc read_text(const struct sh_config *so_far, const char *place, sh_config_give_value give, void *to)
{
    return sh_hf_config_parse(config_text, config_bytes, so_far, place, give, to);
}

static void check_loaded(const struct sh_config *cfg)
{
    struct sh_config back;
    char *text;

    if (sh_hf_config_write(cfg, "float32", NULL, &text) != SH_OK)
        abort();
    config_text = text;
    config_bytes = strlen(text);
    const char *const arguments[] = {"model.hf=fuzz", "model.hf_ignore=sliding_window"};
    if (sh_config_load(NULL, 2, arguments, &back) != SH_OK || memcmp(&cfg->model, &back.model, sizeof back.model) != 0)
        abort();
    free(text);
}

static void try_config(const char *text, size_t n)
{
    const char *const arguments[] = {"model.hf=fuzz", "model.hf_ignore=sliding_window"};
    struct sh_config cfg;
    sh_rc rc;

    config_text = text;
    config_bytes = n;
    rc = sh_config_load(NULL, 2, arguments, &cfg);
    if (rc == SH_OK)
        check_loaded(&cfg);
    else
        check_refusal(rc);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    sh_config_folder_hook(read_text);
    sh_error_clear();
    try_header((const char *)bytes, n);
    sh_error_clear();
    try_index((const char *)bytes, n);
    sh_error_clear();
    try_config((const char *)bytes, n);
    return 0;
}

#ifndef SH_LIBFUZZER
#include "tests/fuzz/fuzz.h"

static const char *const seeds[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[0,64]}}   ",
    "{\"__metadata__\":{\"format\":\"pt\"},\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[16],\"data_offsets\":[32,64]},"
    "\"a\":{\"dtype\":\"F16\",\"shape\":[2,8],\"data_offsets\":[0,32]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[60],\"data_offsets\":[4,64]}}",
    "{\"metadata\":{\"total_size\":128},\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}",
    "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}",
    "{\"model_type\":\"llama\",\"hidden_size\":16,\"num_attention_heads\":4,\"rope_parameters\":{\"rope_type\":\"llama3\","
    "\"rope_theta\":500.0,\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":32},\"attention_bias\":false,\"eos_token_id\":[1,2]}",
    "{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2},\"rope_theta\":1e4,\"head_dim\":null}",
    "{\"model_type\":\"gpt2\",\"n_embd\":8,\"n_head\":2,\"n_layer\":2,\"n_inner\":null,\"attn_pdrop\":0,\"scale_attn_weights\":true}",
    "{\"model_type\":\"mistral\",\"sliding_window\":4096,\"max_position_embeddings\":512,\"tie_word_embeddings\":true}",
    "{\"model_type\":\"qwen2_moe\",\"num_hidden_layers\":6,\"decoder_sparse_step\":2,\"mlp_only_layers\":[1,3],"
    "\"num_experts\":4,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"output_router_logits\":false}",
};

/* clang-format off */
static const char *const pieces[] = {
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u0000", "\\u001b", "\\ud800", "null", "true", "false", "0", "-1", "1e999", "1.5",
    "9223372036854775807", "9223372036854775808", "4611686018427387904", "64", "63", "65", "\"F32\"", "\"BF16\"", "\"U8\"",
    "\"dtype\"", "\"shape\"", "\"data_offsets\"", "\"__metadata__\"", "\"weight_map\"", "\"../a\"", "\"model_type\"",
    "\"hidden_size\":", "\"rope_type\":", "\"linear\"", "\"num_key_value_heads\":3,", "\"auto_map\":{},", "\xff", "\xc2\x85", " ",
    "\n", "\"x\":1,", "\"vocab_size\":0,", "[0,0]", "[[[[", "\"a\":",
};
/* clang-format on */

int main(int argc, char **argv)
{
    const struct fuzz_texts made = {.name = "fuzz_hf", .what = "texts", FUZZ_TEXTS(seeds, pieces)};

    if (!freopen("/dev/null", "w", stderr)) /* each dropout is logged */
        return 1;
    return fuzz_texts(argc, argv, 30000, &made, LLVMFuzzerTestOneInput);
}
#endif
