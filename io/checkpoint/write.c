/* Each rank opens the file for itself. Nothing here waits for another rank, so no rank can be left waiting by one that met
 * an error: opening and closing for all ranks are collectives, in which MPI libraries do leave the others when the file
 * system fails one of them, and HDF5's writes its own structures there too. The places are known, so it is not needed. */
#include "io/checkpoint/write.h"

#include "io/checkpoint/road.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>

/* Elements in one call: 256 MiB, since MPI counts in an int; of halves as many as are joined at a time. */
enum { SLAB_ELEMS = 64 << 20, JOINED_ELEMS = 1 << 20 };

static sh_rc fail_mpi(const char *path, const char *what, int mpi_rc)
{
    char why[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(mpi_rc, why, &length);
    return sh_fail(SH_E_DATA, "%s %s through MPI-IO: %s", what, path, why);
}

struct target {
    const char *path;
    MPI_File file;
};

static sh_rc open_file(struct target *f, const char *hints)
{
    MPI_Info info;
    sh_mesh_own_mpi();
    SH_TRY(sh_ckpt_road_info(hints, &info));
    int mpi_rc = MPI_File_open(MPI_COMM_SELF, f->path, MPI_MODE_RDWR, info, &f->file);
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    return mpi_rc == MPI_SUCCESS ? SH_OK : fail_mpi(f->path, "open", mpi_rc);
}

static sh_rc write_at(const struct target *f, const float *data, int64_t elems, int64_t at)
{
    MPI_Status status;
    int put = 0, mpi_rc = MPI_File_write_at(f->file, at, data, (int)elems, MPI_FLOAT, &status);
    if (mpi_rc != MPI_SUCCESS)
        return fail_mpi(f->path, "write", mpi_rc);
    MPI_Get_count(&status, MPI_FLOAT, &put);
    if (put != elems)
        return sh_fail(SH_E_DATA, "write %s through MPI-IO failed after %d of %lld bytes at byte %lld", f->path, 4 * put,
                       (long long)elems * 4, (long long)at);
    return SH_OK;
}

/* room: [JOINED_ELEMS] to join halves in; NULL: there are none. */
static sh_rc write_interval(const struct target *f, struct sh_floats data, int64_t elems, int64_t at, float *room)
{
    int64_t most = room ? JOINED_ELEMS : SLAB_ELEMS, n;
    for (int64_t done = 0; done < elems; done += n) {
        struct sh_floats from = sh_floats_at(data, done);
        n = elems - done < most ? elems - done : most;
        if (room)
            sh_floats_get(from, n, room);
        SH_TRY(write_at(f, room ? room : from.whole, n, at + done * 4));
    }
    return SH_OK;
}

static sh_rc write_piece(const struct target *f, const struct sh_ckpt_index *index, const struct sh_ckpt_piece *piece)
{
    for (int s = 0; s < SH_CKPT_STATES; s++) {
        int64_t at = index->entry[piece->tensor].offset[s] + piece->begin * 4;
        float *room = piece->data[s].whole ? NULL : sh_calloc(JOINED_ELEMS, sizeof *room);
        sh_rc rc = write_interval(f, piece->data[s], piece->elems, at, room);
        free(room);
        SH_TRY(rc);
    }
    return SH_OK;
}

static sh_rc write_all(const struct target *f, const struct sh_ckpt_set *set, const struct sh_ckpt_index *index)
{
    for (int i = 0; i < set->n_pieces; i++)
        if (set->pieces[i].elems > 0)
            SH_TRY(write_piece(f, index, &set->pieces[i]));
    return SH_OK;
}

sh_rc sh_ckpt_write_pieces(const char *path, const struct sh_ckpt_set *set, const struct sh_ckpt_index *index,
                           const char *hints)
{
    struct target f = {.path = path};
    SH_TRY(open_file(&f, hints));
    sh_rc rc = write_all(&f, set, index);
    int mpi_rc = MPI_File_close(&f.file);
    return rc == SH_OK && mpi_rc != MPI_SUCCESS ? fail_mpi(path, "close", mpi_rc) : rc;
}
