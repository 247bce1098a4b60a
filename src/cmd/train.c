#include "src/cmd/cmd.h"

#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

static sh_rc wants_data(const struct sh_config *cfg)
{
    if (!cfg->training.dataset_path[0])
        return sh_fail(SH_E_USAGE, "training.dataset_path is not set; `sherd tokenize` makes a token file");
    if (cfg->validation.enable && !cfg->validation.dataset_path[0])
        return sh_fail(SH_E_USAGE, "validation.enable=true, but validation.dataset_path is not set");
    return SH_OK;
}

static sh_rc take_init(const char *file, struct sh_config *cfg)
{
    if (!file)
        return SH_OK;
    if (cfg->checkpoint.initial_load_path[0])
        return sh_fail(SH_E_USAGE, "--init-from and checkpoint.initial_load_path both say where to start; give one");
    if (strlen(file) >= sizeof cfg->checkpoint.initial_load_path)
        return sh_fail(SH_E_USAGE, "--init-from: its name has more than %d bytes", SH_CONFIG_PATH_MAX - 1);
    strcpy(cfg->checkpoint.initial_load_path, file);
    cfg->checkpoint.initial_load_model_only = true;
    return SH_OK;
}

static sh_rc configure(int argc, char **argv, struct sh_cmd_args *args, struct sh_config *cfg, bool *print_only)
{
    const struct sh_cmd *cmd = sh_cmd_find("train");
    const char *trace;

    SH_TRY(sh_cmd_parse(cmd, argc, argv, args));
    SH_TRY(sh_cmd_config(args, NULL, cfg));
    SH_TRY(take_init(sh_cmd_option(cmd, args, "--init-from"), cfg));
    trace = sh_cmd_option(cmd, args, "--trace");
    if (trace)
        snprintf(cfg->profiling.trace, sizeof cfg->profiling.trace, "%s", trace);
    *print_only = sh_cmd_option(cmd, args, "--print-config") != NULL;
    return *print_only ? SH_OK : wants_data(cfg);
}

static sh_rc print_config(const struct sh_config *cfg)
{
    char *text;
    int rank, world;

    SH_TRY(sh_config_print(cfg, &text));
    sh_mesh_world(&rank, &world);
    if (rank == 0)
        fputs(text, stdout);
    free(text);
    return SH_OK;
}

sh_rc sh_cmd_train(int argc, char **argv)
{
    struct sh_cmd_args args;
    struct sh_config cfg;
    struct sh_run *run = NULL;
    bool print_only = false;
    sh_rc rc;

    SH_TRY_OUT(sh_agree(configure(argc, argv, &args, &cfg, &print_only)));
    if (print_only) {
        rc = print_config(&cfg);
        goto out;
    }
    SH_TRY_OUT(sh_run_open(&cfg, SH_TO_TRAIN, &run));
    rc = sh_run_train(run);
out:
    sh_run_close(run);
    sh_cmd_args_free(&args);
    return rc;
}
