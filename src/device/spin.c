/* How long the threads of OpenMP wait for each other before they sleep.
 *
 * GCC's runtime spins 300,000 times, several milliseconds. If another program has the core of the thread that is waited
 * for, that time is lost at each of hundreds of waits in a step. A wait of a step is either shorter than the limit set
 * here, about a tenth of a millisecond, or so long that waking up costs nothing beside it. */
#include "src/device/device.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* GCC's runtime counts turns of a loop, LLVM's milliseconds. With 1,000 turns a model of 0.1 million parameters was a
 * fifth slower on two idle cores; with 10,000 the gain on busy ones was half as large. */
static const struct {
    const char *name, *value;
} limits[] = {{"GOMP_SPINCOUNT", "3000"}, {"KMP_BLOCKTIME", "1"}};
enum { LIMITS = sizeof limits / sizeof limits[0] };

static bool user_decides(void)
{
    bool given = getenv("OMP_WAIT_POLICY") != NULL;

    for (int i = 0; i < LIMITS; i++)
        given |= getenv(limits[i].name) != NULL;
    return given;
}

/* The runtime reads its environment when it is loaded, before any code of this program. The path, unlike
 * /proc/self/exe, keeps the name under which `ps` shows the process. */
void sh_device_spin_briefly(char **argv)
{
    char path[PATH_MAX];
    ssize_t length;

    if (user_decides() || sh_device_threads(1) == 1)
        return;
    for (int i = 0; i < LIMITS; i++)
        if (setenv(limits[i].name, limits[i].value, true) != 0)
            return;
    length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return;
    path[length] = '\0';
    execv(path, argv); /* returns only if it failed: then threads spin as long as they always did */
}
