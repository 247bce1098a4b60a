#include "io/foreign/hf/config/config.h"
#include "src/base/library.h"
#include "src/base/log.h"
#include "src/base/string/screen.h"
#include "src/cmd/cmd.h"
#include "src/device/device.h"
#include "src/job/job.h"
#include "src/mesh/mesh.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Print the error. Only the rank that failed first prints; the others have no text. The error comes last, even if both
 * streams go into one file. */
static int report(sh_rc rc)
{
    fflush(stdout);
    if (sh_error_locate(rc) != SH_OK && sh_error_text()[0])
        sh_log_error("%s", sh_error_text());
    return (int)rc;
}

static sh_rc run_parsed(const struct sh_cmd *cmd, int argc, char **argv)
{
    struct sh_cmd_args args;
    sh_rc rc = sh_cmd_parse(cmd, argc, argv, &args);

    if (cmd->mpi)
        rc = sh_agree(rc);
    if (rc == SH_OK)
        rc = cmd->run(cmd, &args);
    sh_cmd_args_free(&args);
    return rc;
}

/* Every rank runs the command, and all end with the same error class; one of them says why. */
static int run_job(const struct sh_cmd *cmd, int argc, char **argv)
{
    sh_rc rc = sh_mesh_start(&argc, &argv);
    int status;

    sh_job_reached(SH_PHASE_MPI);
    if (rc == SH_OK)
        status = sh_mesh_report(run_parsed(cmd, argc, argv));
    else
        status = report(rc);
    sh_mesh_stop();
    return status;
}

/* The result of a command goes to standard output, so a full disk there is a failure. A reader that went away is none:
 * it ends other commands by SIGPIPE, and those that train do not depend on it. */
static int finish(int status)
{
    if (status || sh_screen_flush() || errno == EPIPE)
        return status;
    return report(sh_fail(SH_E_DATA, "write to standard output: %s", strerror(errno)));
}

static bool is_help(const char *word)
{
    return !strcmp(word, "--help") || !strcmp(word, "-h");
}

/* A signal that comes while the libraries are initialized, before main, must not end a run that listens for it. Not an
 * ordinary constructor: those of the libraries come first. */
__attribute__((section(".preinit_array"), used)) static void (*const hold)(void) = sh_job_hold;

/* Start to listen for signals before MPI, whose start takes tens of seconds on thousands of ranks. */
static int run_command(const struct sh_cmd *cmd, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (is_help(argv[i])) {
            sh_cmd_help_of(stdout, cmd);
            return SH_OK;
        }
    if (cmd->stops) {
        sh_rc rc = sh_job_listen();

        if (rc != SH_OK)
            return report(rc);
    }
    return cmd->mpi ? run_job(cmd, argc, argv) : report(run_parsed(cmd, argc, argv));
}

/* sherd --help and sherd --version, and their letters, take no other argument. */
static int run_flag(int argc, char **argv)
{
    if (argc > 2)
        return report(sh_fail(SH_E_USAGE, "%s takes no arguments, but %s follows it", argv[1], argv[2]));
    if (is_help(argv[1]))
        sh_cmd_help_short(stdout);
    else
        sh_cmd_version(stdout);
    return SH_OK;
}

/* A command line of a script may stand behind `sherd` as it is: python, with options of one letter, is skipped before a command. */
static void skip_python(int *argc, char ***argv)
{
    int skip = 1;

    if (*argc < 2 || strncmp((*argv)[1], "python", 6) != 0 || sh_cmd_find((*argv)[1]))
        return;
    while (1 + skip < *argc && (*argv)[1 + skip][0] == '-')
        skip++;
    if (1 + skip == *argc || !sh_cmd_find((*argv)[1 + skip]))
        return;
    (*argv)[skip] = (*argv)[0];
    *argc -= skip;
    *argv += skip;
}

int main(int argc, char **argv)
{
    const struct sh_cmd *cmd;

    sh_job_reached(SH_PHASE_LAUNCH);
    if (!sh_screen_open())
        return report(sh_fail(SH_E_MEMORY, "out of memory: no room for standard output"));
    sh_library_catch_exceptions();
    sh_config_folder_hook(sh_hf_config_read);
    skip_python(&argc, &argv);
    cmd = argc < 2 ? NULL : sh_cmd_find(argv[1]);
    if (!cmd || !cmd->stops)
        sh_job_release();
    if (argc < 2 || !argv[1][0]) {
        sh_cmd_help_short(stderr);
        return SH_E_USAGE;
    }
    if (is_help(argv[1]) || !strcmp(argv[1], "--version") || !strcmp(argv[1], "-V"))
        return finish(run_flag(argc, argv));
    if (cmd && cmd->mpi)
        sh_device_spin_briefly(argv);
    return cmd ? finish(run_command(cmd, argc - 1, argv + 1)) : report(sh_cmd_unknown(argv[1]));
}
