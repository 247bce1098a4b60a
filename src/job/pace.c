/* The speed of ranks, watched for a straggler: one slow node holds up all others, and nothing else in a log shows
 * which. */
#include "src/job/job.h"

#include "src/base/number/median.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* The lower of the two in the middle, so that of two ranks the slower one can be a straggler. */
static double find_median(int n, const double *seconds)
{
    double *sorted = sh_calloc((size_t)n, sizeof *sorted), median;

    memcpy(sorted, seconds, (size_t)n * sizeof *sorted);
    sh_sort_doubles(n, sorted);
    median = sorted[(n - 1) / 2];
    free(sorted);
    return median;
}

/* The slowest rank. Among equal times the lowest rank counts, so that the answer does not change from call to call. */
static int find_most(int n, const double *seconds)
{
    int most = 0;

    for (int i = 1; i < n; i++)
        if (seconds[i] > seconds[most])
            most = i;
    return most;
}

/* A straggler must stay the same rank, be slow for SH_JOB_SLOW_STEPS steps, and have cost SH_JOB_LOST seconds: a single
 * late step, or steps of microseconds where 1.5 times the median is noise, are not reported. If another rank becomes
 * the slowest, the count starts again. */
void sh_job_pace_add(struct sh_job_pace *p, int64_t steps, int n, const double *seconds)
{
    int before = p->slowest;
    bool slow;

    p->slowest = find_most(n, seconds);
    p->most = p->least = seconds[p->slowest];
    for (int i = 0; i < n; i++)
        p->least = seconds[i] < p->least ? seconds[i] : p->least;
    p->median = find_median(n, seconds);
    slow = p->most > SH_JOB_SLOW * p->median;
    if (!slow || p->slowest != before) {
        p->slow_steps = 0;
        p->lost = 0;
        p->reported = false;
    }
    if (slow) {
        p->slow_steps += steps;
        p->lost += (double)steps * (p->most - p->median);
    }
    p->report = slow && !p->reported && p->slow_steps >= SH_JOB_SLOW_STEPS && p->lost >= SH_JOB_LOST;
    p->reported = p->reported || p->report;
}
