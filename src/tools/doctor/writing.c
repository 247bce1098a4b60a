/* Measures how fast the nodes write into the checkpoint folder, all at once: a few MiB each with fsync, for two seconds
 * at most. */
#include "src/tools/doctor/doctor.h"

#include "io/file/file.h"
#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/time.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 4 << 20, PIECES = 8, SECONDS = 2 };

/* Stops after two seconds, whatever is written by then; fsync counts, otherwise memory would be measured. */
static sh_rc write_open_file(int fd, const char *path, const char *piece, double *speed)
{
    int64_t begin = sh_now_ns(), bytes = 0;

    for (int i = 0; i < PIECES && sh_now_ns() - begin < SECONDS * 1000000000ll; i++) {
        SH_TRY(sh_file_write(fd, path, piece, PIECE_BYTES, bytes));
        bytes += PIECE_BYTES;
    }
    SH_TRY(sh_file_sync(fd, path));
    *speed = (double)bytes / sh_seconds_since(begin);
    return SH_OK;
}

/* The file has no name as soon as it is open, so that nothing can be left behind. */
static sh_rc write_file(const struct sh_doctor *d, double *speed)
{
    char *name = sh_strfmt("doctor-writes-%d", d->mesh->node), *path = sh_path_join(d->folder, name);
    char *temp = sh_output_temp_name(path), *piece = sh_calloc(PIECE_BYTES, 1);
    sh_rc rc;
    int fd;

    memset(piece, 0x5a, PIECE_BYTES); /* not zeros, which some file systems do not write */
    /* A random name, so that nothing of another job is touched. */
    rc = sh_file_create(temp, &fd);
    if (rc == SH_OK) {
        unlink(temp);
        rc = write_open_file(fd, path, piece, speed);
        close(fd);
    }
    free(piece);
    free(temp);
    free(path);
    free(name);
    return rc;
}

/* Collective. All nodes write at the same time, as in a save. */
sh_rc sh_doctor_writing(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    double *speed = sh_calloc((size_t)d->mesh->n_nodes, sizeof *speed), mine = 0, sum = 0;
    struct sh_doctor_slowest s;
    bool failed;
    sh_rc rc;

    sh_mesh_barrier();
    SH_TRY_OUT(sh_doctor_any_failed(d, sh_doctor_leads(d) ? write_file(d, &mine) : SH_OK, row, &failed));
    if (failed)
        goto out;
    SH_TRY_OUT(sh_doctor_of_nodes(d, mine, speed));
    for (int i = 0; i < d->mesh->n_nodes; i++)
        sum += speed[i];
    s = sh_doctor_find_slowest(d->mesh->n_nodes, speed);
    /* Slow storage makes saves slow, but training continues during them. */
    if (s.state != SH_DOCTOR_GOOD)
        sh_doctor_note(row, "%s writes %.0f MB/s, the median node %.0f MB/s", sh_doctor_host(d, s.index), s.speed / 1e6,
                       s.median / 1e6);
    else
        sh_doctor_good(row, "%.0f MB/s by all nodes at once, %.0f MB/s by the slowest", sum / 1e6, s.speed / 1e6);
out:
    free(speed);
    return rc;
}
