/* A folder for the files of benchmarks: made for one run of them, and empty again at its end. */
#include "src/tools/bench/folder.h"

#include "src/mesh/mesh.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Collective. Rank 0 makes a folder with a random name, so that two benchmarks cannot collide, and broadcasts the
 * name. */
sh_rc sh_bench_folder_make(struct sh_config *cfg, const char *folder)
{
    int rank, world, n;

    sh_mesh_world(&rank, &world);
    n = snprintf(cfg->job.dump_folder, sizeof cfg->job.dump_folder, "%s/sherd-bench-XXXXXX", folder);
    if (n >= (int)sizeof cfg->job.dump_folder)
        return sh_agree(sh_fail(SH_E_USAGE, "sherd bench: the folder's name is too long"));
    SH_TRY(sh_agree(rank == 0 && !mkdtemp(cfg->job.dump_folder)
                        ? sh_fail(SH_E_DATA, "create a folder in %s: %s", folder, strerror(errno))
                        : SH_OK));
    return sh_mesh_bcast(cfg->job.dump_folder, sizeof cfg->job.dump_folder, 0);
}

/* Collective: no rank deletes while another still reads, and none continues before the file is gone. */
void sh_bench_folder_drop(const char *path)
{
    int rank, world;

    sh_mesh_world(&rank, &world);
    sh_mesh_barrier();
    if (rank == 0)
        unlink(path);
    sh_mesh_barrier();
}

/* Deletes only an empty folder: files left by a failure stay and can be inspected. */
void sh_bench_folder_delete(const struct sh_config *cfg)
{
    rmdir(cfg->job.dump_folder);
}
