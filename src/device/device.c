#include "src/device/device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static sh_rc no_arena(int64_t bytes)
{
    return sh_fail(SH_E_MEMORY, "the arena of %lld bytes cannot be allocated: %s", (long long)bytes, strerror(errno));
}

static sh_rc arena_create(int64_t own_bytes, int64_t segment_bytes, int segment_fd, char **arena)
{
    int64_t bytes = own_bytes + segment_bytes;
    char *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return no_arena(bytes);
    if (segment_bytes && mmap(p + own_bytes, (size_t)segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                             segment_fd, 0) == MAP_FAILED) {
        sh_rc rc = no_arena(bytes);

        munmap(p, (size_t)bytes);
        return rc;
    }
    madvise(p, (size_t)own_bytes, MADV_HUGEPAGE); /* a wish: fewer faults at the start, fewer misses later */
    *arena = p;
    return SH_OK;
}

static void arena_destroy(char *arena, int64_t bytes)
{
    munmap(arena, (size_t)bytes);
}

static void copy(void *to, const void *from, int64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
}

static const struct sh_device devices[] = {
    {.name = "cpu",
     .kernels = &sh_kernels_cpu,
     .arena_create = arena_create,
     .arena_destroy = arena_destroy,
     .put = copy,
     .get = copy},
    {.name = "ref",
     .kernels = &sh_kernels_ref,
     .arena_create = arena_create,
     .arena_destroy = arena_destroy,
     .put = copy,
     .get = copy},
};

const struct sh_device *sh_device_find(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (!strcmp(devices[i].name, name))
            return &devices[i];
    return NULL;
}
