/* What this process may use of its node: cores, as the launcher has bound it, and memory, as its container limits it.
 * Every call reads /proc and cgroups again; nothing is kept. */
#include "src/device/device.h"

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/mem.h"

#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* On machines with more cores than a cpu_set_t holds the call fails; then all online cores count. */
static void allowed_cores(cpu_set_t *set)
{
    CPU_ZERO(set);
    if (sched_getaffinity(0, sizeof *set, set) != 0)
        for (long i = 0; i < sysconf(_SC_NPROCESSORS_ONLN); i++)
            CPU_SET((size_t)i, set);
}

/* The launcher's binding counts, not the size of the node: 8 ranks bound to 8 of 64 cores each get those 8. */
int sh_device_threads(int sharing)
{
    cpu_set_t set;
    int threads;

    allowed_cores(&set);
    threads = CPU_COUNT(&set) / (sharing > 0 ? sharing : 1);
    return threads > 0 ? threads : 1;
}

/* Ranks compare these numbers to find out which of them share cores; a hash is enough for that. */
uint64_t sh_device_cores(void)
{
    cpu_set_t set;

    allowed_cores(&set);
    return sh_hash64(&set, sizeof set);
}

/* As words, which ranks can combine with a bitwise or. */
void sh_device_core_set(uint64_t set[SH_DEVICE_CORE_WORDS])
{
    cpu_set_t mine;

    allowed_cores(&mine);
    memset(set, 0, SH_DEVICE_CORE_WORDS * sizeof *set);
    for (size_t i = 0; i < SH_DEVICE_CORE_WORDS * 64 && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &mine))
            set[i / 64] |= UINT64_C(1) << i % 64;
}

/* Dynamic adjustment is off: with it OpenMP may give a kernel fewer threads than requested, and times vary. */
void sh_device_set_threads(int threads)
{
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
}

/* A cgroup's limit; `none` if the file says "max" or does not exist. */
static int64_t cgroup_limit(const char *path, int64_t none)
{
    char *text;
    int64_t limit;

    if (sh_read_file(path, 64, &text, NULL) != SH_OK) {
        sh_error_clear();
        return none;
    }
    limit = strtoll(text, NULL, 10);
    free(text);
    return limit > 0 && limit < none ? limit : none;
}

/* Version 2: every limit of a group from this process's own up to the root applies. */
static int64_t nested_limit(int64_t all)
{
    char *text, *path, *file;

    if (sh_read_file("/proc/self/cgroup", 65536, &text, NULL) != SH_OK) {
        sh_error_clear();
        return all;
    }
    path = strstr(text, "0::");
    path = path ? path + strlen("0::") : text + strlen(text);
    path[strcspn(path, "\n")] = '\0';
    for (;;) {
        file = sh_strfmt("/sys/fs/cgroup%s/memory.max", strcmp(path, "/") ? path : "");
        all = cgroup_limit(file, all);
        free(file);
        if (!strrchr(path, '/'))
            break;
        *strrchr(path, '/') = '\0';
    }
    free(text);
    return all;
}

/* Cgroups of version 1 and 2: files that do not exist limit nothing. */
int64_t sh_device_node_memory(void)
{
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);

    return cgroup_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes", nested_limit(all));
}

/* The kernel's figure, or a container's limit if that is less. */
int64_t sh_device_node_free(void)
{
    int64_t limit = sh_device_node_memory(), available = limit;
    char *text, *line;

    if (sh_read_file("/proc/meminfo", 65536, &text, NULL) != SH_OK) {
        sh_error_clear();
        return limit;
    }
    line = strstr(text, "MemAvailable:");
    if (line)
        available = 1024 * strtoll(line + strlen("MemAvailable:"), NULL, 10);
    free(text);
    return available < limit ? available : limit;
}

/* Linux counts ru_maxrss in KiB. */
int64_t sh_device_peak_rss(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}
