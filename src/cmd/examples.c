/* A CONFIG may be the name of an example: `sherd train gpt2-124m`. A path always takes precedence over a name, so that
 * an example never replaces a user's file of the same name. */
#include "src/cmd/cmd.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A truncated list of names is better than a message of several pages. */
enum { PATH_BYTES = 4096, NAMES_BYTES = 512, MOST_NAMES = 256 };

/* Whether there is anything at the path: whether it can be read shows when it is opened. */
static bool exists(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0;
}

/* The folder of the running program, "" if /proc does not tell. */
static void program_folder(char out[PATH_BYTES])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_BYTES - 1);

    out[n > 0 ? n : 0] = '\0';
    if (strrchr(out, '/'))
        *strrchr(out, '/') = '\0';
}

/* The folder without "..", because messages name files in it. Takes ownership of `folder` and returns a string in its
 * place. */
static char *tidy(char *folder)
{
    char *whole = realpath(folder, NULL);

    if (!whole)
        return folder;
    free(folder);
    return whole;
}

/* Whether configure has been at work in the folder. Its path does not tell: a build folder may be a copy. */
static bool is_build(const char *folder)
{
    char *left = sh_strfmt("%s/config.status", folder);
    bool is = exists(left);

    free(left);
    return is;
}

/* A program in a build folder, which has no copy of the examples, uses those of the source; one whose installation was
 * moved as a whole uses those that moved with it. */
static char *find_folder(void)
{
    char here[PATH_BYTES], *moved;

    program_folder(here);
    if (here[0] && is_build(here))
        return tidy(sh_strdup(SHERD_SOURCE_EXAMPLES));
    moved = sh_strfmt("%s/../share/sherd/examples", here);
    if (here[0] && sh_is_folder(moved))
        return tidy(moved);
    free(moved);
    return sh_strdup(SHERD_EXAMPLES);
}

/* A filter of scandir(). */
static int is_example(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return dot && strcmp(dot, ".yaml") == 0;
}

/* "; nearest is gpt2-bytes, others are debug, ...", ": debug, gpt2-124m, ...", or that the folder is missing. */
static void list_names(const char *folder, const char *given, char out[NAMES_BYTES])
{
    struct dirent **found = NULL;
    const char *names[MOST_NAMES], *near;
    char others[NAMES_BYTES] = "";
    int n = scandir(folder, &found, is_example, alphasort);

    for (int i = 0; i < n && i < MOST_NAMES; i++) {
        found[i]->d_name[strlen(found[i]->d_name) - strlen(".yaml")] = '\0';
        names[i] = found[i]->d_name;
    }
    near = n > 0 ? sh_str_nearest(given, n < MOST_NAMES ? n : MOST_NAMES, names) : NULL;
    for (int i = 0; i < n && i < MOST_NAMES; i++)
        if (names[i] != near)
            sh_str_add(others, sizeof others, ", ", names[i]);
    if (n < 0)
        snprintf(out, NAMES_BYTES, ": the folder %.400s is missing; make install writes it", folder);
    else
        snprintf(out, NAMES_BYTES, "%s%.40s%s%.400s", near ? "; nearest is " : "", near ? near : "",
                 !others[0] ? ""
                 : near     ? ", others are "
                            : ": ",
                 others);
    for (int i = 0; i < n; i++)
        free(found[i]);
    free(found);
}

/* The caller frees *path; it is NULL after a failure. */
sh_rc sh_cmd_find_config(const char *given, char **path)
{
    char *folder, *file, *word, names[NAMES_BYTES];
    size_t length = strlen(given);
    bool has_end = length > 5 && strcmp(given + length - 5, ".yaml") == 0;

    *path = sh_strdup(given);
    if (!sh_is_folder(given) && (exists(given) || strchr(given, '/')))
        return SH_OK; /* a file, or a path that can only be one: opening it will report what is wrong */
    folder = find_folder();
    file = sh_strfmt("%s/%s%s", folder, given, has_end ? "" : ".yaml");
    word = sh_strfmt("%.*s", (int)length - (has_end ? 5 : 0), given);
    list_names(folder, word, names);
    free(word);
    free(folder);
    free(*path);
    *path = file;
    if (exists(file))
        return SH_OK;
    free(file);
    *path = NULL;
    if (sh_is_folder(given))
        return sh_fail(SH_E_DATA, "%s is a folder, not a CONFIG; a folder of transformers is given as --model.hf=%s",
                       given, given);
    return sh_fail(SH_E_DATA, "open %s: No such file or directory, and no example has that name%s", given, names);
}
