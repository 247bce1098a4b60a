#include "src/device/device.h"

#include "src/base/file.h"

#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int sh_device_threads(int ranks_on_node)
{
    cpu_set_t set;
    int online = (int)sysconf(_SC_NPROCESSORS_ONLN), allowed = online;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        allowed = CPU_COUNT(&set);
    if (allowed >= online)
        allowed = online / (ranks_on_node > 0 ? ranks_on_node : 1);
    return allowed > 0 ? allowed : 1;
}

void sh_device_set_threads(int threads)
{
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
}

/* A cgroup's limit, "max" or absent when there is none. */
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

int64_t sh_device_node_memory(void)
{
    int64_t all = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);

    all = cgroup_limit("/sys/fs/cgroup/memory.max", all);
    return cgroup_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes", all);
}

int64_t sh_device_peak_rss(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}
