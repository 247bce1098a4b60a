#include "sherd_config.h"

#include "src/base/log.h"
#include "src/base/str.h"
#include "src/cmd/cmd.h"
#include "src/mesh/mesh.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static sh_rc no_such_command(const char *word)
{
    const char *names[32], *near;
    int n = 0;

    for (; sh_commands[n].name; n++)
        names[n] = sh_commands[n].name;
    near = sh_str_nearest(word, n, names);
    return sh_fail(SH_E_USAGE, "no command %s%s%s; see sherd --help", word, near ? "; nearest is " : "",
                   near ? near : "");
}

static int report(sh_rc rc)
{
    if (rc != SH_OK)
        sh_log_error("%s", sh_error_text());
    return (int)rc;
}

/* Every rank runs the command, and all end with the same class; one of them says why. */
static int run_job(const struct sh_cmd *cmd, int argc, char **argv)
{
    sh_rc rc = sh_mesh_start(&argc, &argv);
    int status;

    if (rc == SH_OK)
        status = sh_mesh_report(cmd->run(argc, argv));
    else
        status = report(rc);
    sh_mesh_stop();
    return status;
}

/* What was asked for stands on standard output: a full disk there is a failure. */
static int finish(int status)
{
    if (status || (fflush(stdout) == 0 && !ferror(stdout)))
        return status;
    return report(sh_fail(SH_E_DATA, "write to standard output: %s", strerror(errno)));
}

int main(int argc, char **argv)
{
    const struct sh_cmd *cmd;

    if (argc < 2) {
        sh_cmd_help(stderr, SH_HELP_TEXT);
        return SH_E_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        sh_cmd_help(stdout, SH_HELP_TEXT);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("sherd %s\n", PACKAGE_VERSION);
        return 0;
    }
    cmd = sh_cmd_find(argv[1]);
    if (!cmd)
        return report(no_such_command(argv[1]));
    if (cmd->mpi)
        return finish(run_job(cmd, argc - 1, argv + 1));
    return finish(report(cmd->run(argc - 1, argv + 1)));
}
