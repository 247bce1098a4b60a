#include "src/job/job.h"

#include "src/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    int64_t last; /* end of the phase before; 0: none has ended */
    double seconds[SH_PHASES];
} start;

static double read_clock(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Since this process began: the 22nd word of its line, the 20th behind its name, which may hold anything; 0: the kernel
 * does not say. */
static double since_process(void)
{
    char line[1024] = "", *at, *rest = NULL;
    FILE *f = fopen("/proc/self/stat", "r");
    double ticks = 0;

    if (f && fgets(line, sizeof line, f) && (at = strrchr(line, ')'))) {
        for (int i = 0; at && i < 21; i++)
            at = strtok_r(i ? NULL : at, " ", &rest);
        ticks = at ? strtod(at, NULL) : 0;
    }
    if (f)
        fclose(f);
    return ticks > 0 ? read_clock(CLOCK_BOOTTIME) - ticks / (double)sysconf(_SC_CLK_TCK) : 0;
}

/* The launcher of another node may have another clock. */
static double since_launch(void)
{
    const char *text = getenv("SHERD_LAUNCHED");
    char *end = NULL;
    double launched = text ? strtod(text, &end) : 0, seconds;

    if (!text || end == text || *end)
        return since_process();
    seconds = read_clock(CLOCK_REALTIME) - launched;
    return seconds > 0 ? seconds : 0;
}

void sh_job_reached(enum sh_job_phase phase)
{
    int64_t now = sh_now_ns();

    start.seconds[phase] += start.last ? (double)(now - start.last) / 1e9 : since_launch();
    start.last = now;
}

const double *sh_job_start_seconds(void)
{
    return start.seconds;
}

const char *sh_job_start_text(const double seconds[SH_PHASES], char out[SH_JOB_START])
{
    static const char *const name[SH_PHASES] = {
        [SH_PHASE_LAUNCH] = "launch", [SH_PHASE_MPI] = "MPI",        [SH_PHASE_PLAN] = "plan",
        [SH_PHASE_MESH] = "mesh",     [SH_PHASE_MEMORY] = "memory",  [SH_PHASE_DATA] = "data",
        [SH_PHASE_LOAD] = "load",     [SH_PHASE_STEP] = "first step"};
    double sum = 0;
    int n;

    for (int i = 0; i < SH_PHASES; i++)
        sum += seconds[i];
    n = snprintf(out, SH_JOB_START, "%.1f s from the launch to the first step:", sum);
    for (int i = 0; i < SH_PHASES; i++)
        n += snprintf(out + n, (size_t)(SH_JOB_START - n), "%s %s %.1f", i ? "," : "", name[i], seconds[i]);
    return out;
}
