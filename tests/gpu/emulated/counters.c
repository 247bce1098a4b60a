#include "tests/gpu/emulated/emulated.h"

#include <stdio.h>
#include <stdlib.h>

static _Atomic int64_t counted[SH_EMULATED_COUNTERS];

void sh_emulated_count(enum sh_emulated_counter which, int64_t n)
{
    counted[which] += n;
}

int64_t sh_emulated_counted(enum sh_emulated_counter which)
{
    return counted[which];
}

/* One write, so that lines of several ranks do not interleave. */
__attribute__((destructor)) static void write_line(void)
{
    const char *path = getenv("SHERD_EMULATED_COUNTERS");
    FILE *file = path ? fopen(path, "a") : NULL;

    if (!file)
        return;
    fprintf(file,
            "{\"launches\": %lld, \"waits\": %lld, \"host_bytes\": %lld, \"queries\": %lld, \"threads\": %lld, "
            "\"other_products\": %lld, \"pinned\": %lld, \"connections\": %lld}\n",
            (long long)counted[SH_EMULATED_LAUNCHES], (long long)counted[SH_EMULATED_WAITS],
            (long long)counted[SH_EMULATED_HOST_BYTES], (long long)counted[SH_EMULATED_QUERIES],
            (long long)counted[SH_EMULATED_THREADS], (long long)counted[SH_EMULATED_OTHER],
            (long long)counted[SH_EMULATED_PINNED], (long long)counted[SH_EMULATED_CONNECTIONS]);
    fclose(file);
}
