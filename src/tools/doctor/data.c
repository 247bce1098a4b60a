/* Checks that every node sees the same token files: their number, sizes and beginnings. With a file system mounted on
 * only some nodes, or a copy cut short on one, that node would silently train on other data. */
#include "src/tools/doctor/doctor.h"

#include "io/data/mix.h"
#include "io/file/file.h"
#include "src/base/hash.h"
#include "src/base/mem.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_BYTES = 1 << 20, NAMES = 400 };

/* Name, size and first MiB: enough to tell two data sets apart, and quick to read for any size. */
static sh_rc add_open_file(const char *path, int fd, int64_t bytes, char *head, uint64_t *hash)
{
    ssize_t got = pread(fd, head, HEAD_BYTES, 0);

    if (got < 0)
        return sh_fail(SH_E_DATA, "read %s: %s", path, strerror(errno));
    *hash = sh_mix64(*hash ^ sh_hash64(path, strlen(path)));
    *hash = sh_mix64(*hash ^ (uint64_t)bytes);
    *hash = sh_mix64(*hash ^ sh_hash64(head, (size_t)got));
    return SH_OK;
}

/* head is on the heap: a MiB is too large for the stack of some threads. */
static sh_rc add_file(const char *path, uint64_t *hash)
{
    int64_t bytes;
    char *head;
    sh_rc rc;
    int fd;

    SH_TRY(sh_file_open(path, &fd, &bytes));
    head = sh_calloc(HEAD_BYTES, 1);
    rc = add_open_file(path, fd, bytes, head, hash);
    free(head);
    close(fd);
    return rc;
}

/* glob sorts by name, so all nodes hash in the same order. */
static sh_rc add_pattern(const char *pattern, uint64_t *hash, double *files)
{
    glob_t found;
    sh_rc rc = SH_OK;

    /* A missing data set is a note, not a failure: doctor may run before there is one. */
    if (!pattern[0])
        return SH_OK;
    if (glob(pattern, 0, NULL, &found) != 0)
        return sh_fail(SH_E_DATA, "%s: no such file", pattern);
    for (size_t i = 0; i < found.gl_pathc && rc == SH_OK; i++)
        rc = add_file(found.gl_pathv[i], hash);
    *files += (double)found.gl_pathc;
    globfree(&found);
    return rc;
}

/* Adds the sets of data.mix, one pattern each. */
static sh_rc add_mix(const char *text, uint64_t *hash, double *files)
{
    struct sh_mix mix;
    sh_rc rc = SH_OK;

    if (!text[0])
        return SH_OK;
    SH_TRY(sh_mix_parse(text, &mix));
    for (int i = 0; i < mix.n && rc == SH_OK; i++)
        rc = add_pattern(mix.path[i], hash, files);
    sh_mix_free(&mix);
    return rc;
}

/* One rank of each node looks: the others see the same file systems. */
static sh_rc look(const struct sh_doctor *d, uint64_t *hash, double *files)
{
    if (!sh_doctor_leads(d))
        return SH_OK;
    SH_TRY(add_pattern(d->cfg->training.dataset_path, hash, files));
    SH_TRY(add_mix(d->cfg->data.mix, hash, files));
    return d->cfg->validation.enable ? add_pattern(d->cfg->validation.dataset_path, hash, files) : SH_OK;
}

/* Collective. The node that differs from most is named, since one missing mount is more likely than many. */
sh_rc sh_doctor_data(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    uint64_t *hash = sh_calloc((size_t)d->mesh->n_nodes, sizeof *hash), mine = 1;
    char names[NAMES];
    double files = 0;
    bool failed;
    sh_rc rc;

    SH_TRY_OUT(sh_doctor_any_failed(d, look(d, &mine, &files), row, &failed));
    if (failed)
        goto out;
    SH_TRY_OUT(sh_doctor_of_nodes_u64(d, mine, hash));
    SH_TRY_OUT(sh_mesh_max(&files, 1));
    if (files == 0)
        sh_doctor_note(row, "training.dataset_path is not set");
    else if (sh_doctor_odd_nodes(d, hash, NAMES, names))
        sh_doctor_bad(row, SH_E_DATA,
                      "token files on %s differ from those of the other nodes (names, sizes or first MiB)", names);
    else
        sh_doctor_good(row, "%g file%s, the same on all nodes", files, files == 1 ? "" : "s");
out:
    free(hash);
    return rc;
}
