#include "io/checkpoint/file/io_method.h"

#include "io/file/file.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* File systems on which everything is in the file afterwards when several nodes write into it side by side, without
 * MPI-IO's help. NFS is not one of them: its clients write back whole pages, each with an old view of the neighbour's
 * bytes. */
static bool is_coherent(long type)
{
    static const long known[] = {
        0x0bd00bd0, /* Lustre */
        0x47504653, /* GPFS, Spectrum Scale */
        0x00c36400, /* CephFS */
        0x01021994, /* tmpfs and the following: one node only, which needs no help at all */
        0xef53,     /* ext4 */
        0x58465342, /* XFS */
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i] == type)
            return true;
    return false;
}

/* Hints are only for MPI-IO, so giving some selects it. */
static sh_rc decide(const char *folder, const struct sh_ckpt_options *options, bool one_node, enum sh_cfg_io *io_method)
{
    struct statfs fs;
    if (statfs(folder, &fs) != 0)
        return sh_fail(SH_E_DATA, "checkpoint folder %s: %s", folder, strerror(errno));
    *io_method = !options->hints[0] && (one_node || is_coherent((long)fs.f_type)) ? SH_IO_DIRECT : SH_IO_MPIIO;
    return SH_OK;
}

/* Collective. Rank 0 decides for all: the ranks of one file must use one I/O method. */
sh_rc sh_ckpt_io_method_choose(const char *folder, const struct sh_ckpt_options *options, enum sh_cfg_io *io_method)
{
    int rank, world, node_rank, node_size, smallest;
    enum sh_cfg_io chosen = SH_IO_AUTO;
    *io_method = options->io_method;
    if (*io_method != SH_IO_AUTO)
        return SH_OK;
    sh_mesh_world(&rank, &world);
    SH_TRY(sh_mesh_nodes(&node_rank, &node_size, &smallest));
    sh_rc rc = rank == 0 ? decide(folder, options, node_size == world, &chosen) : SH_OK;
    SH_TRY(sh_mesh_bcast(&chosen, sizeof chosen, 0));
    *io_method = chosen;
    return rc;
}

/* Replaces the "=" in the text of the hint by a zero. */
static sh_rc add_hint(MPI_Info info, char *hint)
{
    char *equals = strchr(hint, '=');
    if (!equals || equals == hint || !equals[1] || equals - hint >= MPI_MAX_INFO_KEY ||
        strlen(equals) > MPI_MAX_INFO_VAL)
        return sh_fail(SH_E_USAGE, "checkpoint.hints: \"%s\" is not name=value", hint);
    *equals = '\0';
    SH_MPI(MPI_Info_set(info, hint, equals + 1));
    return SH_OK;
}

static sh_rc add_hints(MPI_Info info, const char *hints)
{
    char *text = sh_strdup(hints), *rest = text, *hint;
    sh_rc rc = SH_OK;
    while (rc == SH_OK && (hint = strsep(&rest, ",")))
        rc = add_hint(info, hint);
    free(text);
    return rc;
}

/* Returns MPI_INFO_NULL without hints; otherwise the caller frees the object. */
sh_rc sh_ckpt_io_method_info(const char *hints, MPI_Info *info)
{
    MPI_Info made;
    *info = MPI_INFO_NULL;
    if (!hints[0])
        return SH_OK;
    SH_MPI(MPI_Info_create(&made));
    sh_rc rc = add_hints(made, hints);
    if (rc == SH_OK)
        *info = made;
    else
        MPI_Info_free(&made);
    return rc;
}

static sh_rc create_failed(const char *path, int mpi_rc)
{
    char why[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(mpi_rc, why, &length);
    return sh_fail(SH_E_DATA, "create %s with checkpoint.hints: %s", path, why);
}

/* MPI-IO creates files with mode 0666 less the umask. */
static int create_with(const char *path, MPI_Info info)
{
    MPI_File file;
    mode_t before = umask(0777);
    umask(before | 0137);
    int mpi_rc = MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, info, &file);
    umask(before);
    return mpi_rc == MPI_SUCCESS ? MPI_File_close(&file) : mpi_rc;
}

/* Rank 0. With hints MPI-IO must create the file: striping, for example, can only be chosen at creation. */
sh_rc sh_ckpt_io_method_create(const char *path, const char *hints, int *fd)
{
    MPI_Info info;
    int64_t bytes;
    SH_TRY(sh_ckpt_io_method_info(hints, &info));
    if (info == MPI_INFO_NULL)
        return sh_file_create(path, fd);
    int mpi_rc = create_with(path, info);
    MPI_Info_free(&info);
    return mpi_rc == MPI_SUCCESS ? sh_file_reopen(path, fd, &bytes) : create_failed(path, mpi_rc);
}
