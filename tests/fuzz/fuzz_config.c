/* Damaged configurations: refused in one line or loaded; a loaded one prints and loads back to the same bytes.
 *
 *   fuzz_config [RUNS [SEED]]    random mutations of good texts; default 20000 runs; see fuzz.h
 *   clang -fsanitize=fuzzer      built with -DSH_LIBFUZZER: guided by coverage */
#include "src/base/hash.h"
#include "src/config/config.h"
#include "src/config/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* A refusal is a few lines, and a last one that counts the rest; none is empty. */
static void check_refusal(sh_rc rc)
{
    enum { MOST_LINES = 21 };
    const char *line = sh_error_text();
    int lines = 1;
    if (rc != SH_E_USAGE || line[0] == '\0')
        abort();
    for (; (line = strchr(line, '\n')) != NULL; line++)
        if (line[1] == '\n' || line[1] == '\0' || ++lines > MOST_LINES)
            abort();
}

static void check_loaded(const struct sh_config *cfg)
{
    struct sh_config back;
    char *text;
    if (sh_config_print(cfg, &text) != SH_OK ||
        sh_config_parse(text, strlen(text), "printed", 0, NULL, &back) != SH_OK || memcmp(cfg, &back, sizeof back) != 0)
        abort();
    free(text);
}

/* Try the same bytes as a file, and as an argument next to a good model. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct sh_config cfg;
    sh_error_clear();
    sh_rc rc = sh_config_parse((const char *)bytes, n, "fuzz", 0, NULL, &cfg);
    if (rc == SH_OK)
        check_loaded(&cfg);
    else
        check_refusal(rc);
    char *argument = calloc(n + 1, 1);
    if (argument == NULL)
        abort();
    memcpy(argument, bytes, n);
    const char *const arguments[] = {"model.name=debug", argument};
    rc = sh_config_load(NULL, 2, arguments, &cfg);
    if (rc == SH_OK)
        check_loaded(&cfg);
    else
        check_refusal(rc);
    free(argument);
    return 0;
}

#ifndef SH_LIBFUZZER
#include "tests/fuzz/fuzz.h"

static const char *const seeds[] = {
    "model: {name: debug}\ncheckpoint:\n  hints: {striping_factor: 16, cb_nodes: '4'}\n  interval: 5\n",
    "model:\n  name: debug\ntraining:\n  steps: 100\n  local_batch_size: 4 # sequences\noptimizer:\n  lr: 3.0e-4\n",
    "job: {description: \"\\u20ac\", dump_folder: 'it''s'}\nmodel: {name: gpt2-124m}\nmemory: {limit_bytes: 4GiB}\n",
    "parallelism:\n  zero_stage: 2\n  data_parallel_replicate_degree: 2\nmodel:\n  name: llama3.2-1b\n  n_layers: 2\n",
    "model: {n_layers: 1, dim: 8, n_heads: 2, ffn_dim: 8, vocab_size: 9, max_seq_len: 8}\nmesh:\n  shard: node\n",
    "job:\n  description: >\n    folded\n    text\n  dump_folder: |-\n    literal\nmodel:\n  name: debug\n",
    "activation_checkpoint:\n  mode: selective\n  selective_ac_option: '2'\nmodel:\n  name: debug\n",
    "training.steps=5",
    "debug.seed=18446744073709551615",
};

static const char *const pieces[] = {
    "\n",   "\n  ",   ": ",           "- ",       "[",           "]",    "{",      "}",       "&a ",
    "*a",   "!!str ", "---\n",        "...\n",    "\"",          "'",    "\\0",    "\\u0085", "#",
    "? ",   "|\n",    ">\n",          "~",        "null",        "-1",   "0",      "1e9",     "9223372036854775808",
    ".inf", "nan",    "\xef\xbb\xbf", "\xc3\xa9", "%YAML 1.1\n", "true", "custom", "=",       "<<: ",
    "@",    "`",      "\t",
};

static const char *any_key(void)
{
    const char *name = sh_config_keys[random_below((size_t)sh_config_n_keys)].name;

    return random_below(2) ? name : strchr(name, '.') + 1;
}

int main(int argc, char **argv)
{
    const struct fuzz_texts made = {.name = "fuzz_config", .what = "texts", .word = any_key, FUZZ_TEXTS(seeds, pieces)};

    return fuzz_texts(argc, argv, 20000, &made, LLVMFuzzerTestOneInput);
}
#endif
