/* What was built, from what, and how: the first questions of every bug report. */
#include "src/cmd/cmd.h"

#include "sherd_commit.h"
#include "sherd_config.h"
#include "src/mesh/mesh.h"

/* One fact per line, so that a script finds each by its first words. */
void sh_cmd_version(FILE *out)
{
    char mpi[SH_MESH_LIBRARY];

    sh_mesh_library(mpi);
    fprintf(out, "sherd %s%s%s%s\n", PACKAGE_VERSION, SHERD_COMMIT[0] ? " (commit " : "", SHERD_COMMIT,
            SHERD_COMMIT[0] ? ")" : "");
    fprintf(out, "built with %s\n", SHERD_BUILT_WITH);
    fprintf(out, "configured with %s\n", SHERD_CONFIGURED_WITH);
    fprintf(out, "compiled with %s\n", SHERD_COMPILED_WITH);
    fprintf(out, "runs with %s\n", mpi);
}

/* The same as `sherd --version`. */
sh_rc sh_cmd_version_run(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    (void)cmd;
    if (args->n_positional)
        return sh_fail(SH_E_USAGE, "sherd version: takes no argument, not %s", args->positional[0]);
    sh_cmd_version(stdout);
    return SH_OK;
}
