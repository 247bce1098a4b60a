/* LD_PRELOAD: Sherd sees a system with pages of 64 KiB, as Linux on Arm servers may have. Its calls of sysconf, mmap, munmap and
 * madvise follow that system's rules: an address or an offset inside a page is refused, and a length is rounded up. Calls
 * of libraries go through. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 65536 };

static int is_sherd(const void *caller)
{
    Dl_info at;
    const char *name;

    if (!dladdr(caller, &at) || !at.dli_fname)
        return 0;
    name = strrchr(at.dli_fname, '/');
    return strcmp(name ? name + 1 : at.dli_fname, "sherd") == 0;
}

static size_t whole(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

long sysconf(int name)
{
    long (*next)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");

    return name == _SC_PAGESIZE && is_sherd(__builtin_return_address(0)) ? PAGE : next(name);
}

/* A larger range first, in which a page begins. */
static void *map_aligned(size_t bytes, int protection, int flags, int fd, off_t offset)
{
    char *range = map(NULL, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *at = (char *)whole((uintptr_t)range);

    return range == MAP_FAILED ? range : map(at, bytes, protection, flags | MAP_FIXED, fd, offset);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (!is_sherd(__builtin_return_address(0)))
        return map(at, bytes, protection, flags, fd, offset);
    if ((flags & MAP_FIXED && (uintptr_t)at % PAGE) || offset % PAGE) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    if (flags & MAP_FIXED)
        return map(at, whole(bytes), protection, flags, fd, offset);
    return map_aligned(whole(bytes), protection, flags, fd, offset);
}

static int refuse(void)
{
    errno = EINVAL;
    return -1;
}

int munmap(void *at, size_t bytes)
{
    if (!is_sherd(__builtin_return_address(0)))
        return (int)syscall(SYS_munmap, at, bytes);
    return (uintptr_t)at % PAGE ? refuse() : (int)syscall(SYS_munmap, at, whole(bytes));
}

int madvise(void *at, size_t bytes, int advice)
{
    if (is_sherd(__builtin_return_address(0)) && (uintptr_t)at % PAGE)
        return refuse();
    return (int)syscall(SYS_madvise, at, bytes, advice);
}
