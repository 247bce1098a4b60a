/* `sherd run_clm`: the options of transformers' run_clm.py become a configuration, which is printed and trained. They
 * rank as a configuration file, so keys on the command line take precedence over them. What the options alone do not
 * determine is worked out in stages: the model and the folders, where an earlier start stopped, texts to tokens, then
 * steps from the length of the data. */
#include "src/tools/run_clm/clm.h"

#include "io/foreign/hf/config/config.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1024 }; /* the default of run_clm.py, unless the model has less */

/* Refuse options that contradict each other, or that would silently have no effect. */
static sh_rc check_evaluation(struct sh_clm *c)
{
    static const char other[] = "does not train; `sherd eval --checkpoint FOLDER --data FILE` evaluates";
    const char *train = sh_clm_option(c, "--train_file"), *validation = sh_clm_option(c, "--validation_file");
    bool trains, evaluates;

    SH_CLM_NOTE(sh_clm_truth(c, "--do_train", &trains));
    SH_CLM_NOTE(sh_clm_truth(c, "--do_eval", &evaluates));
    if (sh_clm_option(c, "--do_train") && !trains)
        SH_CLM_NOTE(sh_clm_refuse("--do_train False %s", other));
    else if (evaluates && !trains)
        SH_CLM_NOTE(sh_clm_refuse("--do_eval without --do_train %s", other));
    c->evaluates = evaluates || c->when[SH_CLM_EVAL] != SH_CLM_NEVER;
    c->splits = c->evaluates && !validation && train && sh_clm_is_text(train);
    if (c->evaluates && !validation && !c->splits && !sh_clm_gives(c, "validation.dataset_path"))
        return sh_clm_refuse("--do_eval, --eval_strategy and --eval_steps need --validation_file FILE; only a text as "
                             "--train_file can be split");
    if (!c->evaluates && validation)
        return sh_clm_refuse(
            "--validation_file without --do_eval, --eval_strategy or --eval_steps is not used; add one");
    return SH_OK;
}

/* Trainer's constant has no warm-up, and Trainer silently drops the options for one. */
static sh_rc check_together(struct sh_clm *c)
{
    const char *schedule = sh_clm_option(c, "--lr_scheduler_type");

    for (int i = 0; i < c->args->n_positional; i++)
        SH_CLM_NOTE(sh_clm_refuse("\"%s\" is not an option; each begins with --", c->args->positional[i]));
    if (schedule && !strcmp(schedule, "constant") && c->warmup > 0)
        SH_CLM_NOTE(sh_clm_refuse("--lr_scheduler_type constant has no warm-up; constant_with_warmup has one"));
    if (!sh_clm_option(c, "--train_file") && !sh_clm_gives(c, "training.dataset_path") && !sh_clm_gives(c, "data.mix"))
        SH_CLM_NOTE(sh_clm_refuse(
            "no training data: give --train_file FILE, a token file (.bin) or a text (.txt, .jsonl, .json)"));
    SH_CLM_NOTE(sh_clm_check_files(c));
    SH_CLM_NOTE(check_evaluation(c));
    return SH_OK;
}

/* Whether the model can be exported: not, for example, if it has a window that transformers' class lacks. */
static bool is_exported(const struct sh_config *cfg)
{
    bool can = sh_hf_config_can_write(cfg) == SH_OK;

    sh_error_clear();
    return can;
}

/* What follows from the model and the mesh. */
static sh_rc set_model_keys(struct sh_clm *c)
{
    const struct sh_config *cfg = &c->cfg;

    if (!sh_clm_get(c, "training.seq_len"))
        sh_clm_set_number(c, "training.seq_len", cfg->model.max_seq_len < BLOCK ? cfg->model.max_seq_len : BLOCK);
    sh_clm_set_number(c, "training.global_batch_size", cfg->training.local_batch_size * c->accumulate * c->world);
    if (!cfg->lora.rank && cfg->checkpoint.enable && is_exported(cfg))
        sh_clm_set(c, "checkpoint.last_save_in_hf", "true");
    if (c->evaluates) {
        sh_clm_set(c, "validation.enable", "true");
        sh_clm_default(c, "validation.sequences", "0");
    }
    return sh_clm_set_files(c);
}

/* A model that cannot be read is one of the problems, unless it is the only one. */
static sh_rc load_model(struct sh_clm *c)
{
    int before = c->problems.n;

    SH_CLM_NOTE(sh_clm_model(c));
    if (c->problems.n > before)
        return SH_OK;
    sh_rc rc = sh_clm_load(c);

    if (rc == SH_E_DATA && before)
        rc = SH_E_USAGE;
    SH_CLM_NOTE(rc);
    return rc == SH_OK ? set_model_keys(c) : SH_OK;
}

/* First stage: what the model and the options decide. Local. The steps are a placeholder until they are known: keys on
 * the command line may have a warm-up longer than the default. */
static sh_rc begin(struct sh_clm *c)
{
    SH_CLM_NOTE(sh_clm_words(c));
    SH_CLM_NOTE(sh_clm_read_numbers(c));
    SH_CLM_NOTE(check_together(c));
    if (!sh_clm_gives(c, "training.steps"))
        sh_clm_set_number(c, "training.steps", SH_CLM_MOST_STEPS);
    SH_TRY(load_model(c));
    if (c->ignored)
        sh_log_info("ignored: %.*s: without effect here", (int)strlen(c->ignored) - 2, c->ignored);
    SH_TRY(sh_problems_fail(&c->problems));
    return sh_clm_load(c);
}

/* Print a key of the command line for a shell, with the value that it has now: in the file are those of others, which go with
 * it. */
static void print_override(const struct sh_config *cfg, const char *given)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:/+-";
    const char *pair = sh_config_argument_pair(given);
    size_t length = strcspn(pair, "=");
    char *key = sh_strfmt("%.*s", (int)length, pair), *value;

    if (sh_config_get(cfg, key, &value) != SH_OK) { /* an alias has none */
        sh_error_clear();
        value = sh_strdup(pair + length + (pair[length] == '='));
    }
    printf(" --%s=", key);
    if (value[strspn(value, plain)]) {
        putchar('\'');
        for (const char *c = value; *c; c++)
            *c == '\'' ? fputs("'\\''", stdout) : putchar(*c);
        putchar('\'');
    } else {
        fputs(value, stdout);
    }
    free(key);
    free(value);
}

/* Print the options as a file for `sherd train`, with the keys of the command line in a comment. */
static sh_rc print_words(const struct sh_clm *c)
{
    char *text;

    SH_TRY(sh_config_print_some(&c->cfg, sh_clm_has, c, &text));
    printf("# sherd train THIS.yaml");
    for (int i = 0; i < c->args->n_overrides; i++)
        print_override(&c->cfg, c->args->overrides[i]);
    printf("\n%s", text);
    fflush(stdout);
    free(text);
    return SH_OK;
}

/* Last stage: what the data decide. Local. */
static sh_rc finish(struct sh_clm *c)
{
    int64_t epoch;

    SH_TRY(sh_clm_set_steps(c, &epoch));
    SH_TRY(sh_clm_load(c));
    sh_clm_set_events(c, epoch);
    SH_TRY(sh_clm_load(c));
    if (c->prints_only)
        return SH_OK;
    SH_TRY(sh_cmd_settle(&c->cfg));
    return c->rank == 0 ? print_words(c) : SH_OK;
}

/* Collective. */
sh_rc sh_cmd_run_clm(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct sh_clm *c = sh_calloc(1, sizeof *c);
    sh_rc rc;

    c->cmd = cmd;
    c->args = args;
    c->problems = args->problems;
    sh_mesh_world(&c->rank, &c->world);
    c->prints_only = sh_clm_option(c, "--print-config") != NULL;
    SH_TRY_OUT(sh_agree(begin(c)));
    SH_TRY_OUT(sh_clm_locate(c));
    SH_TRY_OUT(sh_agree(c->prints_only ? SH_OK : sh_clm_tokenize_all(c)));
    SH_TRY_OUT(sh_agree(finish(c)));
    rc = c->prints_only ? sh_cmd_print_config(&c->cfg) : sh_cmd_train_with(&c->cfg);
out:
    sh_clm_free(c);
    free(c);
    return rc;
}
