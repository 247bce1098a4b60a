/* How many steps a run has, and how often it logs, saves and validates. Epochs count the samples that earlier starts have
 * used, and a share of the steps needs their number, so most of this waits for the data. */
#include "src/tools/run_clm/clm.h"

#include "src/base/mem.h"
#include "src/config/foreign/trainer.h"
#include "src/mesh/mesh.h"
#include "src/run/save/newest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What is done every so many steps: the options, and the key. */
static const struct {
    const char *strategy, *older, *steps, *key;
    double none;
} events[] = {
    [SH_CLM_LOG] = {"--logging_strategy", NULL, "--logging_steps", "metrics.log_freq", 500},
    [SH_CLM_SAVE] = {"--save_strategy", NULL, "--save_steps", "checkpoint.interval", 500},
    [SH_CLM_EVAL] = {"--eval_strategy", "--evaluation_strategy", "--eval_steps", "validation.freq", 0},
};

static sh_rc read_strategy(struct sh_clm *c, int i)
{
    const char *given = sh_clm_option(c, events[i].strategy);

    if (!given && events[i].older)
        given = sh_clm_option(c, events[i].older);
    c->when[i] = i == SH_CLM_EVAL && !sh_clm_option(c, events[i].steps) ? SH_CLM_NEVER : SH_CLM_STEPS;
    if (!given)
        return SH_OK;
    c->when[i] = !strcasecmp(given, "epoch")   ? SH_CLM_EPOCHS
                 : !strcasecmp(given, "steps") ? SH_CLM_STEPS
                                               : SH_CLM_NEVER;
    if (c->when[i] == SH_CLM_NEVER && strcasecmp(given, "no") != 0)
        return sh_clm_refuse("%s must be steps, epoch or no, not \"%s\"", events[i].strategy, given);
    return SH_OK;
}

/* A share of the steps below 1, or a whole number of them. */
static sh_rc read_share(struct sh_clm *c, const char *name, double none, double *out)
{
    SH_CLM_NOTE(sh_cmd_number(c->cmd, c->args, name, 0, (double)SH_CLM_MOST_STEPS, none, out));
    if (*out > 1 && *out != floor(*out))
        return sh_clm_refuse("%s must be a whole number, or a share of the steps below 1", name);
    return SH_OK;
}

/* In Trainer, warm-up steps take precedence over a share. */
sh_rc sh_clm_read_numbers(struct sh_clm *c)
{
    const struct sh_cmd *cmd = c->cmd;
    const struct sh_cmd_args *args = c->args;
    double ratio;

    for (int i = 0; i < SH_CLM_EVENTS; i++) {
        SH_CLM_NOTE(read_strategy(c, i));
        SH_CLM_NOTE(read_share(c, events[i].steps, events[i].none, &c->every[i]));
        if (sh_clm_option(c, events[i].steps) && c->every[i] <= 0)
            SH_CLM_NOTE(sh_clm_refuse("%s must be above 0", events[i].steps));
    }
    SH_CLM_NOTE(sh_cmd_whole(cmd, args, "--max_steps", -1, SH_CLM_MOST_STEPS, -1, &c->most));
    SH_CLM_NOTE(sh_cmd_number(cmd, args, "--num_train_epochs", 1e-9, 1e9, 3, &c->epochs));
    SH_CLM_NOTE(sh_cmd_whole(cmd, args, "--gradient_accumulation_steps", 1, 1 << 20, 1, &c->accumulate));
    SH_CLM_NOTE(sh_cmd_whole(cmd, args, "--validation_split_percentage", 1, 99, 5, &c->percent));
    SH_CLM_NOTE(sh_cmd_number(cmd, args, "--warmup_ratio", 0, 1, 0, &ratio));
    SH_CLM_NOTE(read_share(c, "--warmup_steps", 0, &c->warmup));
    c->warmup = c->warmup > 0 ? c->warmup : ratio < 1 ? ratio : (double)SH_CLM_MOST_STEPS;
    return SH_OK;
}

/* Rank 0: the checkpoint that the run will go on from, "" for none; the run itself judges the file. */
static sh_rc find_position(struct sh_clm *c)
{
    const struct sh_config *cfg = &c->cfg;
    struct sh_ckpt_meta meta = {0};
    char *folder = sh_path_join(cfg->job.dump_folder, cfg->checkpoint.folder), *path = NULL;
    sh_rc rc = cfg->checkpoint.resume == SH_RESUME_NEVER ? SH_OK : sh_newest_whole(folder, &path);

    snprintf(c->newest, sizeof c->newest, "%s", path ? path : "");
    if (rc == SH_OK && !path && cfg->checkpoint.initial_load_path[0] && !cfg->checkpoint.initial_load_model_only)
        rc = sh_newest_find(cfg->checkpoint.initial_load_path, &path);
    if (rc == SH_OK && path)
        rc = sh_ckpt_trusted(path, cfg->checkpoint.trust);
    if (rc == SH_OK && path)
        rc = sh_ckpt_read_meta(path, &meta);
    c->done[0] = meta.step;
    c->done[1] = meta.samples;
    sh_ckpt_meta_free(&meta);
    free(path);
    free(folder);
    return rc;
}

/* A run in --output_dir is resumed, and nothing is deleted. */
static sh_rc check_resume(const struct sh_clm *c)
{
    const char *from = sh_clm_option(c, "--resume_from_checkpoint");
    bool overwrites, is_truth = from && sh_trainer_truth(from) >= 0;

    SH_TRY(sh_clm_truth(c, "--overwrite_output_dir", &overwrites));
    if (c->newest[0] && (overwrites || (is_truth && !sh_trainer_truth(from))))
        return sh_clm_refuse("%s: %s would be resumed, and nothing is deleted; give another --output_dir, or "
                             "remove that folder",
                             overwrites ? "--overwrite_output_dir" : "--resume_from_checkpoint False", c->newest);
    if (from && !is_truth && strcmp(from, c->newest) != 0 && strcmp(from, c->cfg.job.dump_folder) != 0)
        return sh_clm_refuse(
            "--resume_from_checkpoint %s: leave it out: the newest checkpoint of --output_dir is "
            "always resumed; --checkpoint.initial_load_path=FILE goes on from another, in a new --output_dir",
            from);
    return SH_OK;
}

/* Second stage: where earlier starts stopped. Collective: all ranks take what rank 0 has found. */
sh_rc sh_clm_locate(struct sh_clm *c)
{
    sh_rc rc = c->rank == 0 ? find_position(c) : SH_OK;

    if (c->rank == 0 && rc == SH_OK)
        rc = check_resume(c);
    SH_TRY(sh_agree(rc));
    return sh_mesh_bcast(c->done, sizeof c->done, 0);
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* --max_steps takes precedence over epochs, as in Trainer; -1 means not given. Epochs count the samples that earlier
 * starts have used, so that another number of ranks, or another batch, ends after as many samples. */
sh_rc sh_clm_set_steps(struct sh_clm *c, int64_t *epoch)
{
    bool by_epochs = c->most <= 0 && !sh_clm_gives(c, "training.steps"), counts = by_epochs;
    int64_t windows = 0;

    *epoch = 1;
    if (c->most > 0)
        sh_clm_set_number(c, "training.steps", c->most);
    for (int i = 0; i < SH_CLM_EVENTS; i++)
        counts = counts || c->when[i] == SH_CLM_EPOCHS;
    if (!counts)
        return SH_OK;
    SH_TRY(sh_clm_count_windows(c, &windows));
    int64_t batch = c->cfg.training.global_batch_size;

    if (batch <= 0)
        batch = (int64_t)c->cfg.training.local_batch_size * c->world;
    *epoch = divide_up(windows, batch);
    if (!by_epochs)
        return SH_OK;
    /* The small number is for products such as 0.1 * 30, which are a little more than a whole one. */
    double left = fmin(ceil(c->epochs * (double)windows - 1e-6) - (double)c->done[1], 1e18);
    int64_t steps = c->done[0] + (left > 0 ? divide_up((int64_t)left, batch) : 0);

    sh_clm_set_number(c, "training.steps", steps > 0 ? steps : 1);
    return SH_OK;
}

/* Steps from a number of them, or from a share of all; at least `least`. */
static int64_t whole(double every, int64_t steps, int64_t least)
{
    int64_t n = every < 1 ? (int64_t)ceil(every * (double)steps - 1e-6)
                          : (int64_t)fmin(every, (double)SH_CLM_MOST_STEPS);

    return n < least ? least : n;
}

/* Validation without a frequency of its own is once, at the end, or as often as logging. */
void sh_clm_set_events(struct sh_clm *c, int64_t epoch)
{
    int64_t steps = c->cfg.training.steps;

    for (int i = 0; i < (c->cfg.validation.enable ? SH_CLM_EVENTS : SH_CLM_EVAL); i++) {
        double every = c->every[i] > 0 ? c->every[i] : c->every[SH_CLM_LOG];

        sh_clm_set_number(c, events[i].key,
                          c->when[i] == SH_CLM_STEPS    ? whole(every, steps, 1)
                          : c->when[i] == SH_CLM_EPOCHS ? epoch
                          : i == SH_CLM_EVAL            ? steps
                                                        : SH_CLM_MOST_STEPS);
    }
    sh_clm_set_number(c, "lr_scheduler.warmup_steps",
                      c->warmup == (double)SH_CLM_MOST_STEPS ? steps : whole(c->warmup, steps, 0));
}
