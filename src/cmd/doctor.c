#include "src/cmd/cmd.h"

#include "src/doctor/doctor.h"

/* Collective. The configuration is agreed on first: a rank that cannot read it would leave the others waiting. */
sh_rc sh_cmd_doctor(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const struct sh_doctor_report_request report = {.path = sh_cmd_option(cmd, args, "--report"),
                                                    .about = sh_cmd_version};
    struct sh_config cfg;

    SH_TRY(sh_agree(sh_cmd_config(args, NULL, &cfg)));
    return sh_doctor_run(&cfg, &report);
}
