#include "io/checkpoint/write.h"

#include "io/checkpoint/h5.h"
#include "io/checkpoint/road.h"
#include "src/base/mem.h"

#include <stdint.h>
#include <stdlib.h>

/* Elements in one H5Dwrite: 256 MiB, since MPI-IO counts bytes in an int; of halves as many as are joined at a time. */
enum { SLAB_ELEMS = 64 << 20, JOINED_ELEMS = 1 << 20 };

/* A row-major interval of a tensor is not one hyperslab but up to 2 * ndim - 1 of them. This is the largest one that
 * begins at element `at` and has at most `elems` elements: whole rows of as many inner dims as fit.
 * Returns its number of elements. */
static int64_t next_box(const struct sh_ckpt_tensor *t, int64_t at, int64_t elems, hsize_t *start, hsize_t *count)
{
    int d = t->ndim - 1;
    int64_t row = 1; /* elements of one step along dim d */
    while (d > 0 && at % (row * t->dim[d]) == 0 && elems >= row * t->dim[d])
        row *= t->dim[d--];
    int64_t rows = elems / row, left = t->dim[d] - at / row % t->dim[d];
    for (int k = t->ndim - 1; k >= 0; k--) {
        start[k] = (hsize_t)(at % t->dim[k]);
        count[k] = k > d ? (hsize_t)t->dim[k] : 1;
        at /= t->dim[k];
    }
    count[d] = (hsize_t)(rows < left ? rows : left);
    return (int64_t)count[d] * row;
}

static sh_rc write_box(hid_t set, hid_t space, const hsize_t *start, const hsize_t *count, const float *data,
                       int64_t elems, const char *path, const char *name)
{
    hsize_t n = (hsize_t)elems;
    SH_H5(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL), path, name);
    hid_t memory = H5Screate_simple(1, &n, NULL);
    SH_H5(memory, path, name);
    /* The default transfer list: independent. Collective transfers hang the others when one rank meets an error. */
    herr_t status = H5Dwrite(set, H5T_IEEE_F32LE, memory, space, H5P_DEFAULT, data);
    sh_ckpt_h5_close(H5Sclose, memory);
    SH_H5(status, path, name);
    return SH_OK;
}

/* room: [JOINED_ELEMS] to join halves in; NULL: there are none. */
static sh_rc write_interval(hid_t set, const struct sh_ckpt_tensor *t, int64_t begin, int64_t elems,
                            struct sh_floats data, float *room, const char *path)
{
    hid_t space = H5Dget_space(set);
    int64_t most = room ? JOINED_ELEMS : SLAB_ELEMS;
    sh_rc rc = SH_OK;
    SH_H5(space, path, t->name);
    while (elems > 0 && rc == SH_OK) {
        hsize_t start[4], count[4];
        int64_t n = next_box(t, begin, elems < most ? elems : most, start, count);
        if (room)
            sh_floats_get(data, n, room);
        rc = write_box(set, space, start, count, room ? room : data.whole, n, path, t->name);
        begin += n;
        data = sh_floats_at(data, n);
        elems -= n;
    }
    H5Sclose(space);
    return rc;
}

static sh_rc write_piece(hid_t file, const char *path, const struct sh_ckpt_set *set, const struct sh_ckpt_piece *piece)
{
    const struct sh_ckpt_tensor *t = &set->tensors[piece->tensor];
    for (int s = 0; s < SH_CKPT_STATES; s++) {
        char name[SH_CKPT_NAME_MAX + 32];
        snprintf(name, sizeof name, "%s/%s", sh_ckpt_state_name[s], t->name);
        hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
        SH_H5(dataset, path, name);
        float *room = piece->data[s].whole ? NULL : sh_calloc(JOINED_ELEMS, sizeof *room);
        sh_rc rc = write_interval(dataset, t, piece->begin, piece->elems, piece->data[s], room, path);
        free(room);
        H5Dclose(dataset);
        SH_TRY(rc);
    }
    return SH_OK;
}

static sh_rc open_by_all(const char *path, const char *hints, hid_t *file)
{
    MPI_Info info;
    SH_TRY(sh_ckpt_road_info(hints, &info));
    hid_t fapl = sh_ckpt_h5_parallel_access(info);
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    SH_H5(fapl, path, "MPI-IO driver");
    *file = H5Fopen(path, H5F_ACC_RDWR, fapl);
    sh_ckpt_h5_close(H5Pclose, fapl);
    SH_H5(*file, path, "open for writing by all ranks");
    return SH_OK;
}

sh_rc sh_ckpt_write_pieces(const char *path, const struct sh_ckpt_set *set, const char *hints)
{
    hid_t file = H5I_INVALID_HID;
    SH_TRY(open_by_all(path, hints, &file));
    sh_rc rc = SH_OK;
    for (int i = 0; i < set->n_pieces && rc == SH_OK; i++)
        if (set->pieces[i].elems > 0)
            rc = write_piece(file, path, set, &set->pieces[i]);
    /* Closing is collective: a rank that failed takes part too. */
    if (H5Fclose(file) < 0 && rc == SH_OK)
        rc = sh_ckpt_h5_fail(path, "close");
    return rc;
}
