#include "src/cmd/cmd.h"

#include "src/mesh/mesh.h"
#include "src/run/feed.h"
#include "src/run/run.h"

#include <stdlib.h>

/* Checked before the job allocates anything: the most frequent mistakes of a first run. */
static sh_rc wants_data(const struct sh_config *cfg)
{
    if (!cfg->training.dataset_path[0] && !cfg->data.mix[0])
        return sh_fail(SH_E_USAGE, "training.dataset_path is not set; `sherd tokenize` makes a token file");
    if (cfg->validation.enable && !cfg->validation.dataset_path[0])
        return sh_fail(SH_E_USAGE, "validation.enable=true, but validation.dataset_path is not set");
    return SH_OK;
}

sh_rc sh_cmd_settle(struct sh_config *cfg)
{
    SH_TRY(wants_data(cfg));
    return sh_feed_settle(cfg, cfg->training.dataset_path);
}

/* Rank 0 looks whether what a new run begins from is there. */
static sh_rc wants_start(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const struct sh_config *cfg)
{
    const char *option = sh_cmd_option(cmd, args, "--init-from") ? "--init-from" : "checkpoint.initial_load_path";
    int rank, world;
    sh_rc rc;

    sh_mesh_world(&rank, &world);
    rc = rank == 0 ? sh_run_check_named(cfg) : SH_OK;
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "%s: ", option);
}

/* Local; the caller makes the ranks agree. A configuration may be printed without data. */
static sh_rc configure(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_config *cfg,
                       bool *print_only)
{
    SH_TRY(sh_cmd_config(args, NULL, cfg));
    *print_only = sh_cmd_option(cmd, args, "--print-config") != NULL;
    if (*print_only)
        return SH_OK;
    SH_TRY(sh_cmd_settle(cfg));
    return wants_start(cmd, args, cfg);
}

/* Every rank has the same text; rank 0 prints it. */
sh_rc sh_cmd_print_config(const struct sh_config *cfg)
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

sh_rc sh_cmd_train_with(const struct sh_config *cfg)
{
    struct sh_run *run = NULL;
    sh_rc rc;

    SH_TRY_OUT(sh_run_open(cfg, SH_TO_TRAIN, &run));
    rc = sh_run_train(run);
out:
    sh_run_close(run);
    return rc;
}

/* Collective. */
sh_rc sh_cmd_train(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    struct sh_config cfg;
    bool print_only = false;

    /* Ranks may see different files; a rank that fails must not leave the others waiting in sh_run_open(). */
    SH_TRY(sh_agree(configure(cmd, args, &cfg, &print_only)));
    /* If only printing, no run is opened: nothing is created in the folder. */
    return print_only ? sh_cmd_print_config(&cfg) : sh_cmd_train_with(&cfg);
}
