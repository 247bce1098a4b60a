/* `sherd eval`: the loss of a checkpoint on a token file; requests, choices and texts are in eval_task.c. */
#include "src/cmd/cmd.h"

#include "src/config/config.h"
#include "src/run/feed.h"
#include "src/run/reference.h"
#include "src/run/run.h"
#include "src/run/teacher.h"
#include "src/text/command/scores.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Refuse options that only go with the texts of a file. */
static sh_rc not_of_tasks(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    static const char *const options[] = {"--batch", "--context", "--tokenizer"};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (sh_cmd_option(cmd, args, options[i]))
            return sh_fail(SH_E_USAGE, "sherd eval: %s goes with --requests, --choices or --text", options[i]);
    return SH_OK;
}

/* --top-k K -o FILE. */
static sh_rc configure_teacher(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_config *cfg)
{
    int64_t top_k;

    if (!sh_cmd_option(cmd, args, "--top-k"))
        return SH_OK;
    if (!sh_cmd_option(cmd, args, "-o"))
        return sh_fail(SH_E_USAGE, "sherd eval: --top-k writes a file; give its name with -o");
    if (sh_cmd_option(cmd, args, "--sequences"))
        return sh_fail(SH_E_USAGE, "sherd eval: --top-k is for all of --data; leave out --sequences");
    SH_TRY(sh_cmd_whole(cmd, args, "--top-k", 1, 256, 0, &top_k));
    cfg->objective.top_k = (int)top_k;
    return SH_OK;
}

/* --reference -o FILE. */
static sh_rc check_reference(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_config *cfg)
{
    if (!sh_cmd_option(cmd, args, "--reference"))
        return SH_OK;
    if (sh_cmd_option(cmd, args, "--top-k"))
        return sh_fail(SH_E_USAGE, "sherd eval: --reference is of answers, --top-k of tokens; give one of them");
    if (!sh_cmd_option(cmd, args, "-o"))
        return sh_fail(SH_E_USAGE, "sherd eval: --reference writes a file; give its name with -o");
    if (sh_cmd_option(cmd, args, "--sequences"))
        return sh_fail(SH_E_USAGE, "sherd eval: --reference is for all of --data; leave out --sequences");
    return cfg->objective.name == SH_OBJECTIVE_DPO
               ? SH_OK
               : sh_fail(SH_E_USAGE, "sherd eval: --reference is for objective.name=dpo; leave out objective.name");
}

/* What is of training steps, and need not suit another length, another micro-step or a file of documents. */
static const char *const of_steps[] = {
    "data.length_schedule=", "training.batch_schedule=", "training.global_batch_size=-1"};

/* What a model may have been trained with, but no preferences. */
static const char *const of_answers[] = {"objective.name=dpo", "data.packing=bfd", "data.mix=", "training.z_loss=0"};

static sh_rc set_unless_given(struct sh_cmd_args *args, const struct sh_cmd_args *given, const char *pair)
{
    size_t name = strcspn(pair, "=") + 1;

    for (int k = 0; k < given->n_overrides; k++)
        if (!strncmp(sh_config_argument_pair(given->overrides[k]), pair, name))
            return SH_OK;
    return sh_cmd_set(args, pair);
}

/* Local; the caller makes the ranks agree. --data is the key validation.dataset_path. */
static sh_rc configure(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *checkpoint,
                       struct sh_config *cfg, int64_t *sequences)
{
    struct sh_cmd_args without = *args;

    for (size_t i = 0; i < sizeof of_steps / sizeof *of_steps; i++)
        SH_TRY(sh_cmd_set(&without, of_steps[i]));
    for (size_t i = 0; sh_cmd_option(cmd, args, "--reference") && i < sizeof of_answers / sizeof *of_answers; i++)
        SH_TRY(set_unless_given(&without, args, of_answers[i]));
    SH_TRY(sh_cmd_config(&without, checkpoint, cfg));
    if (!cfg->validation.dataset_path[0])
        return sh_fail(SH_E_USAGE, "sherd eval: which text? give --data FILE or validation.dataset_path");
    SH_TRY(sh_feed_settle(cfg, cfg->validation.dataset_path));
    SH_TRY(configure_teacher(cmd, args, cfg));
    SH_TRY(check_reference(cmd, args, cfg));
    return sh_cmd_whole(cmd, args, "--sequences", 1, INT64_MAX, 0, sequences);
}

/* Local; the caller makes the ranks agree. More sequences than there are would count some of them twice. */
static sh_rc open_feed(struct sh_run *run, int64_t sequences, struct sh_feed *feed)
{
    SH_TRY(sh_feed_open(run, run->cfg.validation.dataset_path, false, feed));
    if (sequences > sh_data_samples(feed->data))
        return sh_fail(SH_E_USAGE, "sherd eval: --sequences %lld, but %s has %lld of %d tokens", (long long)sequences,
                       run->cfg.validation.dataset_path, (long long)sh_data_samples(feed->data),
                       run->cfg.training.seq_len);
    return SH_OK;
}

/* Bits per byte do not depend on the tokenizer, so models with different tokenizers can be compared. */
static void print_result(const struct sh_eval_result *v)
{
    printf("loss %.6f", v->loss);
    if (v->pairs.scored)
        printf("  accuracy %.6f  mean_reward %.6f  min_reward %.6f  max_reward %.6f  margin %.6f  pairs %lld",
               v->pairs.accuracy, v->pairs.reward, v->pairs.least, v->pairs.most, v->pairs.margin,
               (long long)v->pairs.scored);
    else if (v->pairs.values)
        printf("  texts %lld", (long long)v->pairs.values);
    else if (v->multi_label)
        printf("  accuracy %.6f  f1 %.6f", (double)v->right / (double)v->labels, v->f1);
    else if (v->labels)
        printf("  accuracy %.6f", (double)v->right / (double)v->labels);
    else
        printf("  perplexity %.3f  bits per token %.4f", exp(v->loss), v->loss / log(2.0));
    if (v->bytes)
        printf("  bits per byte %.4f", v->loss * (double)v->tokens / log(2.0) / (double)v->bytes);
    printf("  sequences %lld  tokens %lld  %.0f tokens/s\n", (long long)v->sequences, (long long)v->tokens,
           (double)v->tokens / v->seconds);
}

static sh_rc write_reference(struct sh_run *run, struct sh_feed *feed, const char *path)
{
    if (run->mesh->rank == 0)
        sh_feed_note_rows(feed->data, run->cfg.data.excess_length_strategy);
    SH_TRY(sh_reference_write(run, feed, path));
    if (run->mesh->rank == 0)
        printf("log-probabilities of %lld answers in %s\n", (long long)feed->reference->documents, path);
    return SH_OK;
}

/* Collective. file: for what `purpose` makes besides; NULL: none. The data is opened before the checkpoint is read, which may take
 * minutes. */
static sh_rc evaluate(struct sh_run *run, const char *checkpoint, const char *state, int64_t sequences,
                      enum sh_purpose purpose, const char *file)
{
    struct sh_feed feed = {0};
    struct sh_eval_result v;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(open_feed(run, sequences, &feed)));
    run->of_state = state;
    SH_TRY_OUT(sh_run_load(run, checkpoint, NULL));
    SH_TRY_OUT(sh_run_tokenizer_lengths(run));
    if (purpose == SH_TO_REFER) {
        rc = write_reference(run, &feed, file);
        goto out;
    }
    SH_TRY_OUT(purpose == SH_TO_TEACH ? sh_teacher_write(run, &feed, file, &v)
               : file                 ? sh_scores_write(run, &feed, sequences, file, &v)
                                      : sh_run_evaluate(run, &feed, sequences, NULL, &v));
    if (run->mesh->rank == 0)
        print_result(&v);
out:
    sh_feed_close(&feed);
    return rc;
}

static enum sh_purpose purpose_of(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_config *cfg)
{
    if (sh_cmd_option(cmd, args, "--top-k"))
        return SH_TO_TEACH;
    if (sh_cmd_option(cmd, args, "--reference"))
        return SH_TO_REFER;
    return sh_cmd_option(cmd, args, "-o") && cfg->model.num_labels > 1 ? SH_TO_LABEL : SH_TO_EVALUATE;
}

/* Collective. The mean over all sequences, whatever the number of ranks. */
sh_rc sh_cmd_eval(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct sh_config cfg;
    struct sh_run *run = NULL;
    const char *file = sh_cmd_option(cmd, args, "-o"), *state;
    enum sh_purpose purpose;
    char *checkpoint = NULL;
    int64_t sequences = 0;
    sh_rc rc;

    if (sh_cmd_eval_is_task(cmd, args))
        return sh_cmd_eval_task(cmd, args);
    SH_TRY_OUT(sh_agree(not_of_tasks(cmd, args)));
    SH_TRY_OUT(sh_agree(sh_cmd_state(cmd, args, &state)));
    SH_TRY_OUT(sh_cmd_checkpoint(cmd, args, &checkpoint));
    SH_TRY_OUT(sh_agree(configure(cmd, args, checkpoint, &cfg, &sequences)));
    purpose = purpose_of(cmd, args, &cfg);
    SH_TRY_OUT(sh_run_open(&cfg, purpose, &run));
    rc = evaluate(run, checkpoint, state, sequences, purpose, file);
out:
    sh_run_close(run);
    free(checkpoint);
    return rc;
}
