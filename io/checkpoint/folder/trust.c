/* Checks who could have written a file that is about to be loaded. The digests of a checkpoint protect against damage,
 * not against malice: whoever can write the file can write matching digests, and the structures that are parsed on the
 * way. */
#include "io/checkpoint/checkpoint.h"

#include "src/base/mem.h"

#include <grp.h>
#include <libgen.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CURE "or set checkpoint.trust=any (sherd ckpt or plugin: --trust any) if you trust them"

/* Root can change any file anyway. */
static bool is_trusted_owner(uid_t owner)
{
    return owner == 0 || owner == geteuid();
}

/* The members of a group do not include the users whose first group it is. */
static bool is_first_of_others(gid_t gid, uid_t owner)
{
    bool found = false;
    setpwent();
    for (const struct passwd *user; !found && (user = getpwent());)
        found = user->pw_gid == gid && user->pw_uid != owner;
    endpwent();
    return found;
}

/* Whether the group has only one user, as many systems create them, with a umask that lets the group write. */
static bool is_private_group(gid_t gid, uid_t owner)
{
    /* getpwuid() and getgrgid() may query a directory service, so they are called only if the mode requires it. */
    const struct passwd *user = getpwuid(owner);
    const struct group *group = user ? getgrgid(gid) : NULL;
    if (!group || strcmp(group->gr_name, user->pw_name) != 0)
        return false;
    for (char **member = group->gr_mem; *member; member++)
        if (strcmp(*member, user->pw_name) != 0)
            return false;
    return !is_first_of_others(gid, owner);
}

/* The name tells the user whom to ask. */
static sh_rc refuse_owner(const char *what, const char *path, uid_t owner)
{
    const struct passwd *user = getpwuid(owner);
    return sh_fail(SH_E_DATA,
                   "%s%s belongs to another user, %s (%ld), who may have put anything into it; copy the file, " CURE,
                   what, path, user ? user->pw_name : "without a name", (long)owner);
}

static sh_rc refuse_mode(const char *what, const char *path, const struct stat *st)
{
    bool all = st->st_mode & S_IWOTH;
    const struct group *group = all ? NULL : getgrgid(st->st_gid);
    return sh_fail(SH_E_DATA, "%s%s may be written by %s%s; remove that permission (chmod %s-w), " CURE, what, path,
                   all ? "everybody" : "all of the group ",
                   all     ? ""
                   : group ? group->gr_name
                           : "that it has",
                   all ? "o" : "g");
}

/* A private group counts as its user. */
static bool others_may_write(const struct stat *st)
{
    return st->st_mode & S_IWOTH || (st->st_mode & S_IWGRP && !is_private_group(st->st_gid, st->st_uid));
}

/* In a sticky folder, such as /tmp, only the owner of a file can rename or delete it. */
static sh_rc judge(const char *what, const char *path, const struct stat *st)
{
    bool sticky = S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX;
    if (!is_trusted_owner(st->st_uid))
        return refuse_owner(what, path, st->st_uid);
    return others_may_write(st) && !sticky ? refuse_mode(what, path, st) : SH_OK;
}

/* Whoever can write the folder can replace the file in it. */
static sh_rc judge_folder(const char *folder)
{
    struct stat st;
    return stat(folder, &st) == 0 ? judge("the folder ", folder, &st) : SH_OK;
}

/* Whoever can write a folder further up can put another one in its place. There only everybody counts: the folders of a
 * cluster's projects belong to a group or its head, and a rule that refuses all files below them is turned off. */
static sh_rc judge_way(char *folder)
{
    struct stat st;
    while (strcmp(folder, "/") != 0) {
        folder = dirname(folder);
        if (stat(folder, &st) == 0 && st.st_mode & S_IWOTH && !(st.st_mode & S_ISVTX))
            return refuse_mode("the folder ", folder, &st);
    }
    return SH_OK;
}

/* A path that cannot be examined cannot be opened either; the open then reports why. */
sh_rc sh_ckpt_trusted(const char *path, enum sh_cfg_trust trust)
{
    char real[PATH_MAX];
    struct stat st;
    if (trust == SH_TRUST_ANY || !realpath(path, real) || stat(real, &st) != 0)
        return SH_OK;
    SH_TRY(judge("", path, &st));
    if (!S_ISDIR(st.st_mode))
        SH_TRY(judge_folder(dirname(real)));
    return judge_way(real);
}
