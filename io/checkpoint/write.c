/* Writes each rank's pieces with parallel HDF5's MPI-IO driver, below the level of objects, since the offsets are known
 * and only rank 0 handles the structures. Each rank has a separate file handle, over MPI_COMM_SELF, so no rank waits
 * for another. Opening and closing with all ranks are collectives, in which MPI libraries leave the others waiting if
 * the file system fails one of them; and a close of objects would write structures, too. */
#include "io/checkpoint/write.h"

#include "io/checkpoint/file/h5.h"
#include "io/checkpoint/file/io_method.h"
#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#if __has_include(<H5FDdevelop.h>) /* since HDF5 1.14 the calls of drivers are declared there */
#include <H5FDdevelop.h>
#endif
#include <stdlib.h>

/* Elements per call: 256 MiB, since MPI counts in an int; for split masters as many as are joined at a time. */
enum { SLAB_ELEMS = 64 << 20, JOINED_ELEMS = 1 << 20 };

struct target {
    const char *path;
    H5FD_t *file;
};

/* Sets the driver's end of allocation to the file's length, since it refuses to write past it. */
static sh_rc open_file(struct target *f, int64_t bytes, const char *hints)
{
    MPI_Info info;
    sh_mesh_own_mpi();
    SH_TRY(sh_ckpt_h5_start());
    SH_TRY(sh_ckpt_io_method_info(hints, &info));
    hid_t fapl = sh_ckpt_h5_mpiio_access(info);
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    SH_H5(fapl, f->path, "MPI-IO driver");
    f->file = H5FDopen(f->path, H5F_ACC_RDWR, fapl, HADDR_UNDEF);
    sh_ckpt_h5_close(H5Pclose, fapl);
    if (!f->file)
        return sh_ckpt_h5_fail(f->path, "open through MPI-IO failed");
    if (H5FDset_eoa(f->file, H5FD_MEM_DRAW, (haddr_t)bytes) >= 0)
        return SH_OK;
    sh_rc rc = sh_ckpt_h5_fail(f->path, "open through MPI-IO failed");
    (void)H5FDclose(f->file);
    return rc;
}

/* The driver reports a short write as an error. */
static sh_rc write_at(const struct target *f, const float *data, int64_t elems, int64_t at)
{
    SH_H5(H5FDwrite(f->file, H5FD_MEM_DRAW, H5P_DEFAULT, (haddr_t)at, (size_t)elems * sizeof *data, data), f->path,
          "write through MPI-IO failed");
    return SH_OK;
}

/* Writes state s of piece i. room: [JOINED_ELEMS] to join halves in, or for far data; NULL: neither is needed. */
static sh_rc write_interval(const struct target *f, const struct sh_ckpt_set *set, int i, int s, int64_t at,
                            float *room)
{
    const struct sh_ckpt_piece *p = &set->pieces[i];
    int64_t most = room ? JOINED_ELEMS : SLAB_ELEMS, n;
    for (int64_t done = 0; done < p->elems; done += n) {
        struct sh_floats from = sh_floats_at(p->data[s], done);
        n = p->elems - done < most ? p->elems - done : most;
        if (p->far[s])
            SH_TRY(set->far->get(set->far->arg, i, s, done, n, room));
        else if (room)
            sh_floats_get(from, n, room);
        SH_TRY(write_at(f, room ? room : from.whole, n, at + done * 4));
    }
    return SH_OK;
}

/* A piece is one interval of the file in each state. */
static sh_rc write_piece(const struct target *f, const struct sh_ckpt_index *index, const struct sh_ckpt_set *set,
                         int i)
{
    const struct sh_ckpt_piece *piece = &set->pieces[i];
    for (int s = 0; s < index->states.n; s++) {
        if (!sh_ckpt_has(&index->entry[piece->tensor], s))
            continue;
        int64_t at = index->entry[piece->tensor].offset[s] + piece->begin * 4;
        float *room = piece->data[s].whole ? NULL : sh_calloc(JOINED_ELEMS, sizeof *room);
        sh_rc rc = write_interval(f, set, i, s, at, room);
        free(room);
        SH_TRY(rc);
    }
    return SH_OK;
}

/* Pieces without elements need no write. */
static sh_rc write_all(const struct target *f, const struct sh_ckpt_set *set, const struct sh_ckpt_index *index)
{
    for (int i = 0; i < set->n_pieces; i++)
        if (set->pieces[i].elems > 0)
            SH_TRY(write_piece(f, index, set, i));
    return SH_OK;
}

/* Local, since each rank has its own handle; the save agrees on the result. */
sh_rc sh_ckpt_write_pieces(const char *path, const struct sh_ckpt_set *set, const struct sh_ckpt_index *index,
                           const char *hints)
{
    struct target f = {.path = path};
    SH_TRY(open_file(&f, index->file_bytes, hints));
    sh_rc rc = write_all(&f, set, index);
    if (H5FDclose(f.file) < 0 && rc == SH_OK)
        rc = sh_ckpt_h5_fail(path, "close through MPI-IO failed");
    return rc;
}
