#include "io/checkpoint/folder/misnamed.h"

#include "io/checkpoint/file/pack.h"
#include "io/file/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Digests are not compared: if damage has changed the step, that is only another reason to leave the file alone. */
static sh_rc step_of_open(int fd, const char *path, int64_t bytes, int64_t *step)
{
    unsigned char head[SH_CKPT_HEAD_BYTES], tail[SH_CKPT_FOOTER_BYTES];
    struct sh_ckpt_footer f;
    if (bytes < SH_CKPT_HEAD_BYTES + SH_CKPT_FOOTER_BYTES)
        return sh_fail(SH_E_DATA, "%s is too short for a checkpoint", path);
    SH_TRY(sh_file_read(fd, path, tail, sizeof tail, bytes - SH_CKPT_FOOTER_BYTES));
    if (!sh_ckpt_footer_unpack(tail, &f) || f.at < 0 || f.at > bytes - SH_CKPT_HEAD_BYTES)
        return sh_fail(SH_E_DATA, "%s: its last bytes do not say where its index is", path);
    SH_TRY(sh_file_read(fd, path, head, sizeof head, f.at));
    return sh_ckpt_packed_step(head, step) ? SH_OK : sh_fail(SH_E_DATA, "%s: its index does not start like one", path);
}

/* Whether the step in the file's name differs from the step inside: the file was copied or renamed by hand. Errors
 * count as false, since the file is then left alone anyway. */
bool sh_ckpt_is_misnamed(const char *path, int64_t named, int64_t *step)
{
    int64_t bytes;
    int fd;
    sh_rc rc = sh_file_open(path, &fd, &bytes);
    if (rc == SH_OK) {
        rc = step_of_open(fd, path, bytes, step);
        close(fd);
    }
    if (rc != SH_OK)
        sh_error_clear();
    return rc == SH_OK && *step != named;
}

/* A file of another step is in the way of a new one. It is renamed and never overwritten, since it may be the only one
 * that somebody has. */
sh_rc sh_ckpt_set_aside(const char *path, int64_t step)
{
    int64_t inside;
    sh_rc rc = SH_OK;
    if (access(path, F_OK) != 0 || !sh_ckpt_is_misnamed(path, step, &inside))
        return SH_OK;
    char *aside = sh_strfmt("%s.holds-step-%lld", path, (long long)inside);
    if (access(aside, F_OK) == 0)
        rc = sh_fail(SH_E_DATA, "%s holds step %lld, and so does %s: delete or rename one of them", path,
                     (long long)inside, aside);
    else if (rename(path, aside) != 0)
        rc = sh_fail(SH_E_DATA, "rename %s, which holds step %lld: %s", path, (long long)inside, strerror(errno));
    else
        sh_log_warn("%s held step %lld and stood in the way; it is now %s", path, (long long)inside, aside);
    free(aside);
    return rc;
}
