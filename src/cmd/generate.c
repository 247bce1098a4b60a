#include "src/cmd/cmd.h"

#include "src/run/run.h"

static sh_rc read_options(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_generate *g)
{
    double tokens, top_k, seed;

    g->prompt = sh_cmd_option(cmd, args, "--prompt");
    if (!g->prompt)
        g->prompt = "\n";
    if (!g->prompt[0])
        return sh_fail(SH_E_USAGE, "sherd generate: --prompt must not be empty: a model continues something");
    SH_TRY(sh_cmd_number(cmd, args, "--tokens", 1, 1e6, 256, &tokens));
    SH_TRY(sh_cmd_number(cmd, args, "--temperature", 0, 100, 0.8, &g->temperature));
    SH_TRY(sh_cmd_number(cmd, args, "--top-k", 0, 1e9, 40, &top_k));
    SH_TRY(sh_cmd_number(cmd, args, "--seed", 0, 9e15, 1, &seed));
    g->tokens = (int)tokens;
    g->top_k = (int)top_k;
    g->seed = (uint64_t)seed;
    return SH_OK;
}

static sh_rc configure(int argc, char **argv, struct sh_cmd_args *args, struct sh_config *cfg, const char **checkpoint,
                       struct sh_generate *g)
{
    const struct sh_cmd *cmd = sh_cmd_find("generate");

    SH_TRY(sh_cmd_parse(cmd, argc, argv, args));
    *checkpoint = sh_cmd_option(cmd, args, "--checkpoint");
    if (!*checkpoint)
        return sh_fail(SH_E_USAGE, "sherd generate: which model? give --checkpoint FILE");
    SH_TRY(read_options(cmd, args, g));
    return sh_cmd_config(args, *checkpoint, cfg);
}

sh_rc sh_cmd_generate(int argc, char **argv)
{
    struct sh_cmd_args args;
    struct sh_config cfg;
    struct sh_generate g = {0};
    struct sh_run *run = NULL;
    const char *checkpoint = NULL;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(configure(argc, argv, &args, &cfg, &checkpoint, &g)));
    SH_TRY_OUT(sh_run_open(&cfg, SH_TO_GENERATE, &run));
    SH_TRY_OUT(sh_run_load(run, checkpoint, NULL));
    rc = sh_run_generate(run, &g);
out:
    sh_run_close(run);
    sh_cmd_args_free(&args);
    return rc;
}
