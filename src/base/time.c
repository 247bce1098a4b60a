#include "src/base/time.h"

#include <time.h>

/* Monotonic: it never jumps when somebody sets the clock. It starts at boot, so it means nothing on another node. */
int64_t sh_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock on Linux */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double sh_seconds_since(int64_t begin_ns)
{
    return (double)(sh_now_ns() - begin_ns) / 1e9;
}
