#include "src/cmd/cmd.h"

#include "src/run/run.h"

#include <stdlib.h>

/* Defaults that give readable text: temperature 0.8, the 40 likeliest tokens. A prompt of one newline stands for "no
 * prompt", since a model needs a token to start from. */
static sh_rc read_options(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_generate *g)
{
    int64_t tokens, top_k, seed;

    g->prompt = sh_cmd_option(cmd, args, "--prompt");
    if (!g->prompt)
        g->prompt = "\n";
    if (!g->prompt[0])
        return sh_fail(SH_E_USAGE, "sherd generate: --prompt is empty; a model continues at least one token");
    g->tokenizer = sh_cmd_option(cmd, args, "--tokenizer");
    SH_TRY(sh_cmd_whole(cmd, args, "--tokens", 1, 1000000, 256, &tokens));
    SH_TRY(sh_cmd_number(cmd, args, "--temperature", 0, 100, 0.8, &g->temperature));
    SH_TRY(sh_cmd_whole(cmd, args, "--top-k", 0, 1000000000, 40, &top_k));
    SH_TRY(sh_cmd_whole(cmd, args, "--seed", 0, INT64_MAX, 1, &seed));
    g->tokens = (int)tokens;
    g->top_k = (int)top_k;
    g->seed = (uint64_t)seed;
    return SH_OK;
}

/* Local; the caller agrees. Options first, since they are the cheaper mistake. */
static sh_rc configure(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *checkpoint,
                       struct sh_config *cfg, struct sh_generate *g)
{
    SH_TRY(read_options(cmd, args, g));
    return sh_cmd_config(args, checkpoint, cfg);
}

/* Collective. The configuration comes from the checkpoint unless a file is given. */
sh_rc sh_cmd_generate(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct sh_config cfg;
    struct sh_generate g = {0};
    struct sh_run *run = NULL;
    char *checkpoint = NULL;
    sh_rc rc;

    SH_TRY_OUT(sh_cmd_checkpoint(cmd, args, &checkpoint));
    SH_TRY_OUT(sh_agree(configure(cmd, args, checkpoint, &cfg, &g)));
    SH_TRY_OUT(sh_run_open(&cfg, SH_TO_GENERATE, &run));
    SH_TRY_OUT(sh_run_load(run, checkpoint, NULL));
    rc = sh_run_generate(run, &g);
out:
    sh_run_close(run);
    free(checkpoint);
    return rc;
}
