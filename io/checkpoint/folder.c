#include "io/checkpoint/checkpoint.h"

#include "src/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The step in a name like step-00001000.h5, or -1: all else in the folder is none of ours, unfinished files too. */
static int64_t step_of_name(const char *name)
{
    char again[64];
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    errno = 0;
    long long step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08lld.h5", step);
    return errno == 0 && strcmp(again, name) == 0 ? step : -1;
}

sh_rc sh_ckpt_newest_before(const char *folder, int64_t step, char **path)
{
    DIR *dir = opendir(folder);
    int64_t best = -1;
    if (!dir && errno != ENOENT)
        return sh_fail(SH_E_DATA, "checkpoint folder %s: %s", folder, strerror(errno));
    for (struct dirent *d; dir && (d = readdir(dir));) {
        int64_t found = step_of_name(d->d_name);
        if (found < step && found > best)
            best = found;
    }
    if (dir)
        closedir(dir);
    *path = best >= 0 ? sh_strfmt("%s/step-%08lld.h5", folder, (long long)best) : NULL;
    return SH_OK;
}

sh_rc sh_ckpt_newest(const char *folder, char **path)
{
    return sh_ckpt_newest_before(folder, INT64_MAX, path);
}
