/* `sherd doctor`: checks nodes before a job. It needs no configuration; with one, it checks for that job. */
#include "src/cmd/cmd.h"

#include "src/tools/doctor/doctor.h"

#include <string.h>

/* Whether the arguments say anything about a model. */
static bool names_model(const struct sh_cmd_args *args)
{
    for (int i = 0; i < args->n_overrides; i++)
        if (!strncmp(args->overrides[i], "model.", strlen("model.")))
            return true;
    return false;
}

/* Administrators of nodes may have neither model nor data: a small model stands in, and missing data is only a note. */
static sh_rc configure(const struct sh_cmd_args *args, struct sh_config *cfg)
{
    const char *words[SH_CMD_MAX_ARGS + 1] = {"model.name=debug"};

    if (args->n_positional)
        return sh_cmd_config(args, NULL, cfg);
    if (names_model(args))
        return sh_config_load(NULL, args->n_overrides, args->overrides, cfg);
    memcpy(words + 1, args->overrides, (size_t)args->n_overrides * sizeof *words);
    return sh_config_load(NULL, args->n_overrides + 1, words, cfg);
}

/* Collective. The ranks agree on the configuration first: a rank that cannot read it would leave the others waiting. */
sh_rc sh_cmd_doctor(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const struct sh_doctor_report_request report = {.path = sh_cmd_option(cmd, args, "--report"),
                                                    .about = sh_cmd_version};
    struct sh_config cfg;

    SH_TRY(sh_agree(configure(args, &cfg)));
    return sh_doctor_run(&cfg, &report);
}
