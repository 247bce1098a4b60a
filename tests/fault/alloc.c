/* Memory that runs out on request, for LD_PRELOAD: the n-th allocation of a process of the program `sherd` fails,
 * counted from main() on over all threads. From the environment:
 *
 *   ALLOC_NUMBER=3     which allocation fails, 0: none
 *   ALLOC_LASTING=1    and all later ones too
 *   ALLOC_REPORT=file  gets a line at the failure: the libraries on the stack, starting with the one that asked for
 *                      memory; and a line at the end: how many allocations there were */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);

enum { FRAMES = 24 };

static atomic_long count;
static long number = -1; /* before main(): nothing is counted */
static bool lasting;
static int report = -1;
static _Thread_local bool inside; /* in the shim's own code */

static const char *library_of(void *address)
{
    Dl_info at;
    const char *slash;

    if (!dladdr(address, &at) || !at.dli_fname)
        return "?";
    slash = strrchr(at.dli_fname, '/');
    return slash ? slash + 1 : at.dli_fname;
}

static void say_who(void)
{
    void *frame[FRAMES];
    const char *last = "";
    int n = backtrace(frame, FRAMES);

    for (int i = 2; i < n; i++) {
        const char *name = library_of(frame[i]);

        if (strcmp(name, last) != 0)
            dprintf(report, "%s ", name);
        last = name;
    }
    dprintf(report, "\n");
}

static bool fails(void)
{
    long n;

    if (number < 0 || inside)
        return false;
    n = atomic_fetch_add(&count, 1) + 1;
    if (!number || (lasting ? n < number : n != number))
        return false;
    if (n == number && report >= 0) {
        inside = true;
        say_who();
        inside = false;
    }
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    return fails() ? NULL : __libc_realloc(old, size);
}

void *reallocarray(void *old, size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(old, bytes);
}

void *memalign(size_t align, size_t size)
{
    return fails() ? NULL : __libc_memalign(align, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    return memalign(align, size);
}

int posix_memalign(void **out, size_t align, size_t size)
{
    void *p = memalign(align, size);

    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

static long setting(const char *name)
{
    const char *value = getenv(name);

    return value ? strtol(value, NULL, 10) : 0;
}

/* Runs before main(), but after the constructors of the libraries that the program was linked with. */
__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("ALLOC_REPORT");
    void *frame[1];

    if (strcmp(program_invocation_short_name, "sherd") != 0)
        return;
    backtrace(frame, 1); /* the first call allocates */
    if (path)
        report = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    lasting = setting("ALLOC_LASTING") != 0;
    number = setting("ALLOC_NUMBER");
}

__attribute__((destructor)) static void end(void)
{
    if (report >= 0)
        dprintf(report, "%ld\n", atomic_load(&count));
}
