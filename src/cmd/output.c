/* A file that rank 0 writes for the job and that appears once it is complete; and a check of files that all ranks
 * read. */
#include "src/cmd/cmd.h"

#include "src/mesh/mesh.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* The stream has its own descriptor (dup), so that it can be closed, and its errors seen, before the file is
 * committed. */
sh_rc sh_cmd_output_open(const char *path, struct sh_cmd_output *o)
{
    int rank, world, fd;

    *o = (struct sh_cmd_output){0};
    sh_mesh_world(&rank, &world);
    if (rank != 0)
        return SH_OK;
    if (!path) {
        o->out = stdout;
        return SH_OK;
    }
    SH_TRY(sh_new_file_create(path, 0644, &o->file));
    fd = dup(o->file.fd);
    o->out = fd >= 0 ? fdopen(fd, "w") : NULL;
    return o->out ? SH_OK : sh_fail(SH_E_DATA, "%s: %s", path, strerror(errno));
}

/* Ranks with different inputs would not fail, but compute nonsense together or wait forever. */
sh_rc sh_cmd_same_on_all(const char *what, uint64_t hash)
{
    bool same = sh_mesh_same(hash);

    return sh_agree(
        same ? SH_OK
             : sh_fail(SH_E_DATA, "the ranks have read different %s; give a file that is the same on all nodes", what));
}

/* Data still in the stream may find the disk full. */
sh_rc sh_cmd_output_close(struct sh_cmd_output *o, sh_rc rc)
{
    bool full = o->out && o->out != stdout && fclose(o->out) != 0;

    if (rc == SH_OK && full)
        rc = sh_fail(SH_E_DATA, "%s: %s", o->file.path, strerror(errno));
    if (!o->file.path)
        return rc;
    if (rc == SH_OK)
        return sh_new_file_commit(&o->file);
    sh_new_file_abandon(&o->file);
    return rc;
}
