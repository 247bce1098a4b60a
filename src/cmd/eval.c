#include "src/cmd/cmd.h"

#include "src/run/run.h"

#include <math.h>
#include <stdio.h>

static sh_rc configure(int argc, char **argv, struct sh_cmd_args *args, struct sh_config *cfg, const char **checkpoint)
{
    const struct sh_cmd *cmd = sh_cmd_find("eval");
    const char *data;

    SH_TRY(sh_cmd_parse(cmd, argc, argv, args));
    *checkpoint = sh_cmd_option(cmd, args, "--checkpoint");
    if (!*checkpoint)
        return sh_fail(SH_E_USAGE, "sherd eval: which model? give --checkpoint FILE");
    SH_TRY(sh_cmd_config(args, *checkpoint, cfg));
    data = sh_cmd_option(cmd, args, "--data");
    if (data)
        snprintf(cfg->validation.dataset_path, sizeof cfg->validation.dataset_path, "%s", data);
    if (!cfg->validation.dataset_path[0])
        return sh_fail(SH_E_USAGE, "sherd eval: which text? give --data FILE or validation.dataset_path");
    return SH_OK;
}

static sh_rc evaluate(struct sh_run *run, const char *checkpoint)
{
    struct sh_feed feed = {0};
    struct sh_eval_result v;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(sh_feed_open(run, run->cfg.validation.dataset_path, false, run->cfg.training.local_batch_size, &feed)));
    SH_TRY_OUT(sh_run_load(run, checkpoint, NULL));
    SH_TRY_OUT(sh_run_evaluate(run, &feed, run->cfg.validation.sequences, &v));
    if (run->mesh->rank == 0)
        printf("loss %.6f  perplexity %.3f  bits per token %.4f  sequences %lld  tokens %lld  %.0f tokens/s\n", v.loss,
               exp(v.loss), v.loss / log(2.0), (long long)v.sequences, (long long)v.tokens, (double)v.tokens / v.seconds);
out:
    sh_feed_close(&feed);
    return rc;
}

sh_rc sh_cmd_eval(int argc, char **argv)
{
    struct sh_cmd_args args;
    struct sh_config cfg;
    struct sh_run *run = NULL;
    const char *checkpoint = NULL;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(configure(argc, argv, &args, &cfg, &checkpoint)));
    SH_TRY_OUT(sh_run_open(&cfg, SH_TO_EVALUATE, &run));
    rc = evaluate(run, checkpoint);
out:
    sh_run_close(run);
    sh_cmd_args_free(&args);
    return rc;
}
