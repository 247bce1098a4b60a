/* Baselines for checkpoints: the speed of plain programs with the same bytes. One rank in pieces of 4 MiB like dd, all
 * ranks through MPI-IO in pieces of 16 MiB like IOR, and a memcpy by all threads. All collective. */
#include "src/tools/bench/baseline.h"

#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"

#include "io/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DD_BYTES = 4 << 20, IOR_BYTES = 16 << 20 };

/* Returns a buffer of noise, since zeros may cost a disk nothing. */
static char *make_noise(int64_t bytes)
{
    uint64_t *word = sh_calloc((size_t)bytes / 8 + 1, sizeof *word), x = 1;

    for (int64_t i = 0; i <= bytes / 8; i++)
        word[i] = x = x * 6364136223846793005u + 1442695040888963407u;
    return (char *)word;
}

/* Returns the seconds since `begin`. */
static double since(int64_t begin)
{
    return sh_seconds_since(begin);
}

/* The file is written back first: the kernel drops only clean pages. */
void sh_baseline_drop(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* The lesser of a piece and the remaining bytes. */
static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* fdatasync counts in the time: without it the page cache would be measured. */
static sh_rc write_all(int fd, const char *path, const char *data, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += DD_BYTES)
        SH_TRY(sh_file_write(fd, path, data, least(DD_BYTES, bytes - at), at));
    if (fdatasync(fd) != 0)
        return sh_fail(SH_E_DATA, "fdatasync %s: %s", path, strerror(errno));
    return SH_OK;
}

/* The caller deletes the file. */
static sh_rc write_alone(const char *path, const char *data, int64_t bytes)
{
    int fd;
    sh_rc rc;

    SH_TRY(sh_file_create(path, &fd));
    rc = write_all(fd, path, data, bytes);
    close(fd);
    return rc;
}

/* Rank 0 writes and all others wait: the agreement ends the time on every rank. */
sh_rc sh_baseline_write(const char *path, int64_t bytes, double *seconds)
{
    char *data = make_noise(DD_BYTES);
    int rank, world;
    int64_t begin;
    sh_rc rc;

    sh_mesh_world(&rank, &world);
    sh_mesh_barrier();
    begin = sh_now_ns();
    rc = sh_agree(rank == 0 ? write_alone(path, data, bytes) : SH_OK);
    *seconds = since(begin);
    free(data);
    return rc;
}

/* Reads into the same buffer again and again, since the file system is measured. */
static sh_rc read_alone(const char *path, char *data)
{
    int64_t bytes;
    int fd;
    sh_rc rc = SH_OK;

    SH_TRY(sh_file_open(path, &fd, &bytes));
    for (int64_t at = 0; at < bytes && rc == SH_OK; at += DD_BYTES)
        rc = sh_file_read(fd, path, data, least(DD_BYTES, bytes - at), at);
    close(fd);
    return rc;
}

/* Cold: first every rank drops the file from its page cache. */
sh_rc sh_baseline_read(const char *path, double *seconds)
{
    char *data = make_noise(DD_BYTES);
    int rank, world;
    int64_t begin;
    sh_rc rc;

    sh_mesh_world(&rank, &world);
    sh_baseline_drop(path);
    sh_mesh_barrier();
    begin = sh_now_ns();
    rc = sh_agree(rank == 0 ? read_alone(path, data) : SH_OK);
    *seconds = since(begin);
    free(data);
    return rc;
}

/* Each rank syncs its own part; MPI_File_sync is collective, so a rank without bytes calls it, too. */
static sh_rc write_part(MPI_File file, const char *data, int64_t begin, int64_t end)
{
    for (int64_t at = begin; at < end; at += IOR_BYTES)
        SH_MPI(MPI_File_write_at(file, at, data, (int)least(IOR_BYTES, end - at), MPI_BYTE, MPI_STATUS_IGNORE));
    SH_MPI(MPI_File_sync(file));
    return SH_OK;
}

/* The ranks write adjacent ranges of one file; the last rank takes the remainder. */
static sh_rc write_together(const char *path, const char *data, int64_t bytes, int rank, int world)
{
    MPI_File file;
    sh_rc rc;

    SH_MPI(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file));
    rc = write_part(file, data, bytes / world * rank, rank == world - 1 ? bytes : bytes / world * (rank + 1));
    MPI_File_close(&file);
    return rc;
}

/* Collective. One file, all ranks, no hints: the default behaviour of MPI-IO. */
sh_rc sh_baseline_mpiio(const char *path, int64_t bytes, double *seconds)
{
    char *data = make_noise(IOR_BYTES);
    int rank, world;
    int64_t begin;
    sh_rc rc;

    sh_mesh_world(&rank, &world);
    sh_mesh_own_mpi();
    sh_mesh_barrier();
    begin = sh_now_ns();
    rc = sh_agree(write_together(path, data, bytes, rank, world));
    *seconds = since(begin);
    free(data);
    return rc;
}

/* Parts are as equal as whole bytes allow; the last thread takes the remainder. */
static void copy_by_all_threads(char *to, const char *from, int64_t bytes)
{
#pragma omp parallel
    {
        int64_t n = omp_get_num_threads(), begin = bytes / n * omp_get_thread_num();
        int64_t end = omp_get_thread_num() == n - 1 ? bytes : begin + bytes / n;

        memcpy(to + begin, from + begin, (size_t)(end - begin));
    }
}

/* Copies half of the bytes there and half of them back, so that each buffer needs only half the size. */
sh_rc sh_baseline_copy(int64_t bytes, double *seconds)
{
    char *a = sh_calloc((size_t)bytes / 2 + 1, 1), *b = sh_calloc((size_t)bytes / 2 + 1, 1);
    int64_t begin;

    /* Once without the clock, so that all pages exist. */
    copy_by_all_threads(a, b, bytes / 2);
    copy_by_all_threads(b, a, bytes / 2);
    sh_mesh_barrier();
    begin = sh_now_ns();
    copy_by_all_threads(a, b, bytes / 2);
    copy_by_all_threads(b, a, bytes / 2);
    sh_mesh_barrier();
    *seconds = since(begin);
    free(a);
    free(b);
    return SH_OK;
}
