/* `sherd run_clm`: the options of transformers' run_clm.py become a configuration, which is printed and trained. They
 * rank as a configuration file, so keys on the command line take precedence over them. What the options alone do not
 * determine is worked out in three stages: the model and the folders, texts to tokens, then steps from the length of
 * the data. */
#include "src/cmd/run_clm.h"

#include "io/data/data.h"
#include "io/hf/config.h"
#include "io/token/files.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"
#include "src/run/feed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1024 }; /* the default of run_clm.py, unless the model has less */

static const int64_t MOST_STEPS = 1000000000000;

/* One of the two files: the key that it sets, and where the tokens of a text go. */
struct file {
    const char *option, *key, *tokens;
};
static const struct file files[] = {
    {"--train_file", "training.dataset_path", "train.bin"},
    {"--validation_file", "validation.dataset_path", "validation.bin"},
};
enum { N_FILES = sizeof files / sizeof files[0] };

/* Load the keys so far as a configuration, with those of the command line, which take precedence. */
static sh_rc load(const struct sh_cmd_args *args, const struct sh_clm_keys *keys, struct sh_config *cfg)
{
    char *text = sh_clm_yaml(keys);
    sh_rc rc = sh_config_parse(text, strlen(text), "sherd run_clm", args->n_overrides, args->overrides, cfg);

    free(text);
    return rc;
}

/* "key=value": the name must be followed by =, since one key may be a prefix of another. */
static bool gives(const struct sh_cmd_args *args, const char *key)
{
    for (int i = 0; i < args->n_overrides; i++)
        if (!strncmp(args->overrides[i], key, strlen(key)) && args->overrides[i][strlen(key)] == '=')
            return true;
    return false;
}

static bool ends(const char *name, size_t length, const char *end)
{
    return length > strlen(end) && !strncmp(name + length - strlen(end), end, strlen(end));
}

/* Whether the name is that of a text, which may be compressed. */
static bool is_text(const char *name)
{
    size_t length = strlen(name);

    if (ends(name, length, ".gz"))
        length -= 3;
    else if (ends(name, length, ".zst"))
        length -= 4;
    return ends(name, length, ".txt") || ends(name, length, ".jsonl");
}

/* The name decides, since both kinds are opened much later; each refusal gives the command that helps. */
static sh_rc check_file(const struct file *f, const char *given, const struct sh_config *cfg)
{
    const char *folder = cfg->hf.tokenizer[0] ? cfg->hf.tokenizer : cfg->hf.assets_path;
    char *path = sh_path_join(cfg->hf.assets_path, "tokenizer.json");
    bool known = cfg->hf.tokenizer[0] || access(path, R_OK) == 0;

    free(path);
    if (!is_text(given) && !ends(given, strlen(given), ".bin"))
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: %s %s: names of token files end in .bin, of texts in .txt or .jsonl; `sherd "
                       "tokenize %s -o %s --tokenizer %s --format text` makes a token file",
                       f->option, given, given, f->tokens, folder);
    if (is_text(given) && !known)
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: %s %s: there is no %s/tokenizer.json to tokenize it; `sherd tokenize %s -o %s "
                       "--tokenizer TOKENIZER` makes a token file",
                       f->option, given, folder, given, f->tokens);
    return SH_OK;
}

/* Sets the keys of the two files; for a text, to the token file that it will become. */
static sh_rc set_files(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_config *cfg,
                       struct sh_clm_keys *keys)
{
    for (int i = 0; i < N_FILES; i++) {
        const char *given = sh_cmd_option(cmd, args, files[i].option);

        if (!given)
            continue;
        SH_TRY(check_file(&files[i], given, cfg));
        char *tokens = is_text(given) ? sh_path_join(cfg->job.dump_folder, files[i].tokens) : sh_strdup(given);
        sh_clm_set(keys, files[i].key, tokens);
        free(tokens);
    }
    return SH_OK;
}

/* Whether the model can be exported: not, for example, if it has a window that transformers' class lacks. */
static bool is_exported(const struct sh_config *cfg)
{
    bool can = sh_hf_config_can_write(cfg) == SH_OK;

    sh_error_clear();
    return can;
}

/* First stage: what the model and the options decide. Local. */
static sh_rc begin(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys,
                   struct sh_config *cfg)
{
    int64_t accumulate;
    int rank, world;

    SH_TRY(sh_clm_words(cmd, args, keys));
    SH_TRY(sh_clm_model(cmd, args, keys));
    SH_TRY(sh_cmd_whole(cmd, args, "--gradient_accumulation_steps", 1, 1 << 20, 1, &accumulate));
    /* A placeholder until the steps are known: keys on the command line may have a warm-up longer than the default. */
    if (!gives(args, "training.steps"))
        sh_clm_set_number(keys, "training.steps", MOST_STEPS);
    SH_TRY(load(args, keys, cfg));
    if (!sh_cmd_option(cmd, args, "--block_size"))
        sh_clm_set_number(keys, "training.seq_len", cfg->model.max_seq_len < BLOCK ? cfg->model.max_seq_len : BLOCK);
    sh_mesh_world(&rank, &world);
    sh_clm_set_number(keys, "training.global_batch_size", cfg->training.local_batch_size * accumulate * world);
    if (!cfg->lora.rank && cfg->checkpoint.enable && is_exported(cfg))
        sh_clm_set(keys, "checkpoint.last_save_in_hf", "true");
    if (sh_cmd_option(cmd, args, "--validation_file")) {
        sh_clm_set(keys, "validation.enable", "true");
        sh_clm_set(keys, "validation.sequences", "0");
    }
    SH_TRY(set_files(cmd, args, cfg, keys));
    return load(args, keys, cfg);
}

/* Rank 0 only. The file is written again each time: it is the same, unless the text or the tokenizer has changed. */
static sh_rc tokenize(const char *text, const char *to, const struct sh_config *cfg)
{
    const char *folder = cfg->hf.tokenizer[0] ? cfg->hf.tokenizer : cfg->hf.assets_path;
    struct sh_token_options opt = {.tokenizer = folder, .inputs = &text, .n_inputs = 1, .output = to};
    struct sh_token_report report;

    SH_TRY(sh_mkdir_p(cfg->job.dump_folder));
    SH_TRY(sh_token_file(&opt, &report));
    sh_log_info("%s: %lld bytes -> %lld tokens in %s", text, (long long)report.bytes, (long long)report.tokens, to);
    return SH_OK;
}

/* The other ranks wait in the agreement that follows. */
static sh_rc tokenize_all(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_config *cfg)
{
    int rank, world;

    sh_mesh_world(&rank, &world);
    for (int i = 0; i < N_FILES && rank == 0; i++) {
        const char *given = sh_cmd_option(cmd, args, files[i].option);

        if (!given || !is_text(given))
            continue;
        char *to = sh_path_join(cfg->job.dump_folder, files[i].tokens);
        sh_rc rc = tokenize(given, to, cfg);

        free(to);
        SH_TRY(rc);
    }
    return SH_OK;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Steps of an epoch as Trainer counts them: micro-steps of all ranks, the last of which may not be full, divided by the
 * accumulation. */
static sh_rc count_epoch(struct sh_config *cfg, int64_t *steps)
{
    struct sh_data_options opt;
    struct sh_data *data;
    int rank, world;

    SH_TRY(sh_cmd_settle(cfg));
    SH_TRY(sh_feed_options(cfg, cfg->training.dataset_path, false, &opt));
    SH_TRY(sh_data_open(&opt, &data));
    sh_mesh_world(&rank, &world);
    int64_t micro = (int64_t)cfg->training.local_batch_size * world;
    int64_t batch = cfg->training.global_batch_size > 0 ? cfg->training.global_batch_size : micro;

    *steps = divide_up(divide_up(sh_data_samples(data), micro), batch > micro ? batch / micro : 1);
    sh_data_close(data);
    return SH_OK;
}

/* --max_steps takes precedence over epochs, as in Trainer; -1 means not given. */
static sh_rc set_steps(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_config *cfg,
                       struct sh_clm_keys *keys)
{
    const char *file = sh_cmd_option(cmd, args, "--train_file");
    int64_t most, epoch;
    double epochs;

    SH_TRY(sh_cmd_whole(cmd, args, "--max_steps", -1, MOST_STEPS, -1, &most));
    SH_TRY(sh_cmd_number(cmd, args, "--num_train_epochs", 1e-9, 1e9, 3, &epochs));
    if (most > 0)
        sh_clm_set_number(keys, "training.steps", most);
    if (most > 0 || gives(args, "training.steps"))
        return SH_OK;
    if (!file && !cfg->training.dataset_path[0] && !cfg->data.mix[0])
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: on what? give --train_file FILE, a token file (.bin) or a text (.txt, .jsonl)");
    if (sh_cmd_option(cmd, args, "--print-config") && file && is_text(file))
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: --print-config does not tokenize %s, so the steps of its epochs are not known; "
                       "add --max_steps N",
                       file);
    SH_TRY(count_epoch(cfg, &epoch));
    sh_clm_set_number(keys, "training.steps", (int64_t)ceil(epochs * (double)epoch));
    return SH_OK;
}

/* In Trainer, warm-up steps take precedence over a share. */
static sh_rc set_warmup(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_config *cfg,
                        struct sh_clm_keys *keys)
{
    double ratio;
    int64_t steps;

    SH_TRY(sh_cmd_number(cmd, args, "--warmup_ratio", 0, 1, 0, &ratio));
    SH_TRY(sh_cmd_whole(cmd, args, "--warmup_steps", 0, MOST_STEPS, 0, &steps));
    if (!steps)
        steps = (int64_t)ceil(ratio * (double)cfg->training.steps);
    sh_clm_set_number(keys, "lr_scheduler.warmup_steps", steps);
    return SH_OK;
}

/* Last stage: what the data decide. Local. */
static sh_rc finish(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys,
                    struct sh_config *cfg)
{
    const char *freq = sh_cmd_option(cmd, args, "--eval_steps");

    SH_TRY(set_steps(cmd, args, cfg, keys));
    SH_TRY(load(args, keys, cfg));
    SH_TRY(set_warmup(cmd, args, cfg, keys));
    if (freq)
        sh_clm_set(keys, "validation.freq", freq);
    else if (cfg->validation.enable)
        sh_clm_set_number(keys, "validation.freq", cfg->training.steps);
    SH_TRY(load(args, keys, cfg));
    return sh_cmd_option(cmd, args, "--print-config") ? SH_OK : sh_cmd_settle(cfg);
}

/* Print the options as a file for `sherd train`, with the keys of the command line in a comment. */
static void print_words(const struct sh_cmd_args *args, const struct sh_clm_keys *keys)
{
    char *text = sh_clm_yaml(keys);
    int rank, world;

    sh_mesh_world(&rank, &world);
    if (rank == 0) {
        printf("# sherd train THIS.yaml");
        for (int i = 0; i < args->n_overrides; i++)
            printf(" --%s", args->overrides[i]);
        printf("\n%s", text);
        fflush(stdout);
    }
    free(text);
}

/* Collective. */
sh_rc sh_cmd_run_clm(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct sh_clm_keys keys = {.n = 0};
    struct sh_config cfg;
    bool print_only = sh_cmd_option(cmd, args, "--print-config") != NULL;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(begin(cmd, args, &keys, &cfg)));
    SH_TRY_OUT(sh_agree(print_only ? SH_OK : tokenize_all(cmd, args, &cfg)));
    SH_TRY_OUT(sh_agree(finish(cmd, args, &keys, &cfg)));
    if (!print_only)
        print_words(args, &keys);
    rc = print_only ? sh_cmd_print_config(&cfg) : sh_cmd_train_with(&cfg);
out:
    sh_clm_free(&keys);
    return rc;
}
