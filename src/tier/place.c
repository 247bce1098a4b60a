/* Whether a folder is suitable for scratch files. File systems are recognized by the number that statfs gives: an open
 * proves nothing, since a tmpfs takes O_DIRECT as well. Numbers: linux/magic.h, and for file systems outside the kernel
 * src/fs.h of coreutils. */
#include "src/tier/tier.h"

#include "src/tier/scratch.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

/* An overlay is treated as what it mostly is, a container's root on a disk: it does not say what is below it. */
/* clang-format off */
static const struct kind {
    uint32_t number;
    const char *name;
    bool memory; /* otherwise: over a network */
} kinds[] = {
    {0x01021994, "tmpfs", true}, {0x858458f6, "ramfs", true}, {0x958458f6, "hugetlbfs", true},
    {0x00006969, "NFS", false}, {0x0000517b, "SMB", false}, {0xfe534d42, "SMB", false}, {0xff534d42, "CIFS", false},
    {0x0bd00bd0, "Lustre", false}, {0x47504653, "GPFS", false}, {0x19830326, "BeeGFS", false},
    {0xaad7aaea, "PanFS", false}, {0x00c36400, "Ceph", false}, {0x01021997, "9P", false}, {0x7461636f, "OCFS2", false}, {0x01161970, "GFS2", false},
    {0x5346414f, "AFS", false}, {0x6b414653, "AFS", false}, {0x73757245, "Coda", false}, {0x0000564c, "NCP", false},
    {0x61636673, "ACFS", false}, {0x013111a8, "Ibrix", false}, {0xbeefdead, "StorNext", false},
    {0x65735546, "FUSE", false}, /* anything may be behind it */
};
/* clang-format on */

/* NULL: some other file system, or the folder cannot be examined. */
static const struct kind *find_kind(const char *folder)
{
    struct statfs st;

    if (statfs(folder, &st) != 0)
        return NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].number == (uint32_t)st.f_type)
            return &kinds[i];
    return NULL;
}

const char *sh_tier_network(const char *folder)
{
    const struct kind *k = find_kind(folder);

    return k && !k->memory ? k->name : NULL;
}

static sh_rc check_kind(const char *folder, bool allow_network)
{
    const struct kind *k = find_kind(folder);

    if (k && k->memory)
        return sh_fail(SH_E_USAGE, "%s is on %s, which is memory itself; choose a folder on a local disk", folder,
                       k->name);
    if (k && !allow_network)
        return sh_fail(SH_E_USAGE,
                       "%s is on %s, which is or may be a network file system; choose a folder on a local disk, or set "
                       "offload.allow_network=true",
                       folder, k->name);
    return SH_OK;
}

static sh_rc check_folder(const char *folder)
{
    struct stat st;

    if (stat(folder, &st) != 0)
        return sh_fail(SH_E_DATA, "%s: %s; create the folder, or choose another one", folder, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return sh_fail(SH_E_DATA, "%s is not a folder; name a folder for scratch files", folder);
    return SH_OK;
}

/* false: the system does not say. */
static bool find_room(const char *folder, int64_t *bytes)
{
    struct statvfs st;

    if (statvfs(folder, &st) != 0)
        return false;
    if (__builtin_mul_overflow(st.f_bavail, st.f_frsize, bytes))
        *bytes = INT64_MAX;
    return true;
}

int64_t sh_tier_free_bytes(const char *folder)
{
    int64_t bytes;

    return find_room(folder, &bytes) ? bytes : INT64_MAX;
}

static sh_rc check_room(const char *folder, int64_t need_bytes)
{
    int64_t free_bytes;

    if (!find_room(folder, &free_bytes))
        return sh_fail(SH_E_DATA, "free space of %s: %s", folder, strerror(errno));
    if (free_bytes < need_bytes)
        return sh_fail(SH_E_DATA,
                       "%s: this node needs %lld bytes there, and %lld are free; make room, or choose another folder",
                       folder, (long long)need_bytes, (long long)free_bytes);
    return SH_OK;
}

/* Some file systems take the flag and refuse the transfer. */
static sh_rc try_page(const char *folder, int fd)
{
    char *page = aligned_alloc(SH_TIER_ALIGN, SH_TIER_ALIGN);
    ssize_t moved = -1;

    if (!page)
        return sh_fail(SH_E_MEMORY, "cannot allocate %d bytes for a transfer", SH_TIER_ALIGN);
    memset(page, 0, SH_TIER_ALIGN);
    do
        moved = pwrite(fd, page, SH_TIER_ALIGN, 0);
    while (moved < 0 && errno == EINTR);
    free(page);
    if (moved != SH_TIER_ALIGN)
        return sh_fail(SH_E_DATA, "write %d bytes past the page cache in %s: %s; choose a folder on a local disk",
                       SH_TIER_ALIGN, folder, moved < 0 ? strerror(errno) : "cut short");
    return SH_OK;
}

sh_rc sh_tier_check(const char *folder, int64_t need_bytes, bool allow_network)
{
    int fd;
    sh_rc rc;

    SH_TRY(check_folder(folder));
    SH_TRY(check_kind(folder, allow_network));
    SH_TRY(check_room(folder, need_bytes));
    SH_TRY(sh_tier_scratch_open(folder, 0, &fd));
    rc = try_page(folder, fd);
    close(fd);
    return rc;
}
