#include "src/run/save/newest.h"

#include "io/checkpoint/checkpoint.h"
#include "io/file/outside.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/config/config.h"
#include "src/mesh/mesh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

sh_rc sh_newest_exists(const char *given)
{
    struct stat s;

    return stat(given, &s) == 0 ? SH_OK : sh_fail(SH_E_DATA, "%s: %s", given, strerror(errno));
}

/* Accepts what users have at hand: the folder of checkpoints, or the dump folder around it. Checkpoints in the given
 * folder itself win. */
sh_rc sh_newest_folder(const char *given, char **folder)
{
    char *newest = NULL, *inner = sh_path_join(given, "checkpoint");
    sh_rc rc = sh_ckpt_newest(given, &newest);

    *folder = NULL;
    if (rc == SH_OK)
        *folder = sh_strdup(!newest && sh_is_folder(inner) ? inner : given);
    free(newest);
    free(inner);
    return rc;
}

/* The newest that passes its check. Damaged ones cost a line in the log, not the run; *path is NULL when none is left.
 */
sh_rc sh_newest_whole(const char *folder, char **path)
{
    SH_TRY(sh_ckpt_newest(folder, path));
    while (*path && sh_ckpt_check(*path, true) != SH_OK) {
        char *damaged = *path;
        sh_rc rc;

        sh_log_warn("checkpoint passed over: %s", sh_error_text());
        sh_error_clear();
        /* A failure to look is different from damage and ends the search. */
        rc = sh_ckpt_newest_before(folder, sh_ckpt_step_of(damaged), path);
        free(damaged);
        SH_TRY(rc);
    }
    return SH_OK;
}

sh_rc sh_newest_none(const char *folder)
{
    SH_TRY(sh_outside_refuse(folder));
    return sh_fail(SH_E_DATA, "no checkpoint in %s", folder);
}

/* `given` is a file, a folder of checkpoints or a dump folder. The caller frees *path. */
sh_rc sh_newest_find(const char *given, char **path)
{
    char *folder = NULL;
    sh_rc rc;

    *path = NULL;
    SH_TRY(sh_newest_exists(given));
    if (!sh_is_folder(given)) {
        *path = sh_strdup(given); /* whoever opens it says what is wrong with it */
        return SH_OK;
    }
    SH_TRY(sh_newest_folder(given, &folder));
    rc = sh_newest_whole(folder, path);
    if (rc == SH_OK && !*path)
        rc = sh_newest_none(folder);
    free(folder);
    return rc;
}

/* Only rank 0 looks. On a shared file system the others might see a folder as it was seconds ago and take another file.
 * Collective. */
sh_rc sh_newest_agree(const char *place, const char *given, char **path)
{
    char buffer[SH_CONFIG_PATH_MAX * 2] = "", *found = NULL;
    int rank, world;
    sh_rc rc;

    sh_mesh_world(&rank, &world);
    rc = rank == 0 ? sh_newest_find(given, &found) : SH_OK;
    if (rc == SH_OK && found && snprintf(buffer, sizeof buffer, "%s", found) >= (int)sizeof buffer)
        rc = sh_fail(SH_E_USAGE, "%s: the path has more than %zu bytes", given, sizeof buffer - 1);
    if (rc != SH_OK)
        rc = sh_fail_prefix(rc, "%s: ", place);
    free(found);
    SH_TRY(sh_agree(rc));
    SH_TRY(sh_mesh_bcast(buffer, sizeof buffer, 0));
    *path = sh_strdup(buffer);
    return SH_OK;
}
