/* `sherd ckpt ls`: the contents of a folder, the newest first, with a verdict on each file. A damaged file is a line
 * of the list and not a failure of the command. */
#include "io/checkpoint/checkpoint.h"

#include "io/checkpoint/file/index.h"
#include "io/checkpoint/folder/folder.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <sys/stat.h>

/* -1: the file has disappeared meanwhile. */
static int64_t bytes_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

/* "partial" was never committed; "whole" has a good index; only "valid" has had all its data compared. */
static const char *judge(const struct sh_ckpt_found *found, const char *path, bool quick)
{
    if (found->step < 0)
        return "partial";
    if (sh_ckpt_check(path, quick) != SH_OK)
        return "damaged";
    return quick ? "whole" : "valid";
}

/* Prints one line per file, and a second one with the reason if the file is damaged. */
static void list_one(const char *folder, const struct sh_ckpt_found *found, bool quick, FILE *out)
{
    char *path = sh_strfmt("%s/%s", folder, found->name);
    sh_error_clear();
    fprintf(out, "%-8s", judge(found, path, quick));
    if (found->step >= 0)
        fprintf(out, "%10lld", (long long)found->step);
    else
        fprintf(out, "%10s", "-");
    fprintf(out, " %15lld  %s\n", (long long)bytes_of(path), found->name);
    if (sh_error_text()[0])
        fprintf(out, "         %s\n", sh_error_text());
    sh_error_clear();
    free(path);
}

/* An empty list gets no header. */
sh_rc sh_ckpt_list(const char *folder, bool quick, FILE *out)
{
    struct sh_ckpt_folder f;
    SH_TRY(sh_ckpt_folder_scan(folder, &f));
    if (f.n > 0)
        fprintf(out, "%-8s%10s %15s  %s\n", "state", "step", "bytes", "file");
    for (int i = 0; i < f.n; i++)
        list_one(folder, &f.found[i], quick, out);
    sh_ckpt_folder_free(&f);
    return SH_OK;
}
