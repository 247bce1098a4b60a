#include "src/job/job.h"

#include <math.h>
#include <stdlib.h>

/* How much two saves of one run may differ by the load of the file system, and two steps by the load of the network. */
#define FACTOR 1.5

/* Leaves *end alone when the variable is unset or empty, so that of two calls the later variable wins. */
static sh_rc read_end(const char *name, double *end)
{
    const char *text = getenv(name);
    char *rest;

    if (!text || !text[0])
        return SH_OK;
    *end = strtod(text, &rest);
    if (*rest || !isfinite(*end) || *end < 0)
        return sh_fail(SH_E_USAGE, "%s=%.40s in the environment is not a time in seconds since 1970", name, text);
    return SH_OK;
}

sh_rc sh_job_limit_read(double spare, double save_guess, struct sh_job_limit *out)
{
    double end = 0;

    SH_TRY(read_end("SLURM_JOB_END_TIME", &end));
    /* Read last: a time that the user sets takes precedence over the one that Slurm knows. */
    SH_TRY(read_end("SHERD_END_TIME", &end));
    *out = (struct sh_job_limit){.end = end, .spare = spare, .save = save_guess, .last_save = -1};
    return SH_OK;
}

/* The longest of the last 129 to 256 steps: two stretches, of which the older one is dropped when the newer one is
 * full. So one slow step is remembered for a while, but not for the whole run. */
void sh_job_limit_step(struct sh_job_limit *l, double seconds)
{
    if (l->seen == SH_JOB_STEPS_SEEN) {
        l->step[1] = l->step[0];
        l->step[0] = 0;
        l->seen = 0;
    }
    l->step[0] = fmax(l->step[0], seconds);
    l->seen++;
}

/* While last_save is < 0 the first measured save replaces the guess, even if it was faster. */
void sh_job_limit_save(struct sh_job_limit *l, double seconds)
{
    l->save = fmax(l->last_save, seconds);
    l->last_save = seconds;
}

/* Example: spare 60 s, longest step 4 s, one save of 20 s: 60 + 1.5 x (4 + 20) = 96 s before the end no further step
 * begins. */
double sh_job_limit_margin(const struct sh_job_limit *l, int saves)
{
    return l->spare + FACTOR * (fmax(l->step[0], l->step[1]) + saves * l->save);
}

/* No factor for a validation: it can be cut off, and then only its own time was wasted. */
bool sh_job_limit_no_validation(const struct sh_job_limit *l, double now, int saves)
{
    return sh_job_limit_near(l, now + l->validation, saves);
}

bool sh_job_limit_near(const struct sh_job_limit *l, double now, int saves)
{
    return l->end > 0 && now + sh_job_limit_margin(l, saves) >= l->end;
}
