/* The guard judges each step by its loss and its gradient norm. It keeps a running mean and variance of the norms of
 * good steps (Welford's update), and calls a norm an outlier if it lies more than z_score deviations above that mean.
 * All ranks feed it the same numbers, so all ranks come to the same verdict without a message. */
#include "src/optim/optim.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEWEST = 16 }; /* norms before a deviation means anything, unless the window is shorter */

/* Once `window` norms are in, each new one removes 1/window of m2, so that the variance follows the run: norms of the
 * first steps are much larger than those of later ones. */
static void learn(struct sh_guard *g, double norm)
{
    double delta = norm - g->mean;

    if (g->seen < g->window)
        g->seen++;
    else
        g->m2 -= g->m2 / (double)g->window;
    g->mean += delta / (double)g->seen;
    g->m2 += delta * (norm - g->mean);
}

/* Only upwards: a small norm does no harm. A deviation of 0 (equal norms so far) would make any other norm an
 * outlier. */
static bool is_outlier(const struct sh_guard *g, double norm)
{
    int fewest = g->window < FEWEST ? g->window : FEWEST;
    double deviation;

    if (g->z_score <= 0 || g->seen < fewest)
        return false;
    deviation = sqrt(g->m2 / (double)g->seen);
    return norm - g->mean > g->z_score * deviation && deviation > 0;
}

static sh_rc refuse(int64_t step, double loss, double norm, const char *why, int n)
{
    return sh_fail(SH_E_NUMERIC, "step %lld: loss %g, gradient norm %g; %s %d", (long long)step, loss, norm, why, n);
}

/* Counts the step against its limit. Past the limit the run ends: many bad steps in a row are no
 * accident of the data. */
static sh_rc act(struct sh_guard *g, int64_t step, double loss, double norm)
{
    switch (g->action) {
    case SH_GUARD_SKIP:
        return ++g->skips <= g->max_skips ? SH_OK
                                          : refuse(step, loss, norm,
                                                   "as many steps were skipped in a row as guard.max_skips "
                                                   "allows:",
                                                   g->max_skips);
    case SH_GUARD_ROLLBACK:
        return ++g->rollbacks <= g->max_rollbacks
                   ? SH_OK
                   : refuse(step, loss, norm,
                            "gone back to the newest checkpoint as often as guard.max_rollbacks allows:",
                            g->max_rollbacks);
    case SH_GUARD_STOP: break;
    }
    return sh_fail(SH_E_NUMERIC, "step %lld: loss %g, gradient norm %g%s; guard.action=stop", (long long)step, loss,
                   norm, isfinite(loss) && isfinite(norm) ? ", an outlier" : "");
}

sh_rc sh_guard_judge(struct sh_guard *g, int64_t step, double loss, double norm, enum sh_verdict *verdict)
{
    bool finite = isfinite(loss) && isfinite(norm);

    if (finite && !is_outlier(g, norm)) {
        learn(g, norm);
        g->skips = 0;
        *verdict = SH_STEP_GOOD;
        return SH_OK;
    }
    SH_TRY(act(g, step, loss, norm));
    *verdict = finite ? SH_STEP_OUTLIER : SH_STEP_NON_FINITE;
    return SH_OK;
}

void sh_guard_saved(struct sh_guard *g)
{
    g->rollbacks = 0;
}

/* After a rollback: the norms seen since the checkpoint belong to a course that is undone. `rollbacks` stays, because
 * it ends a run that keeps coming back. */
void sh_guard_forget(struct sh_guard *g)
{
    g->seen = g->skips = 0;
    g->mean = g->m2 = 0;
}

/* %a prints doubles in hexadecimal, which reads back to the same bits: a resumed run judges as the first one would
 * have. */
void sh_guard_save(const struct sh_guard *g, char *text, int size)
{
    snprintf(text, (size_t)size, "%lld %a %a %d", (long long)g->seen, g->mean, g->m2, g->skips);
}

sh_rc sh_guard_read(struct sh_guard *g, struct sh_loss_scale *scale, const char *text)
{
    const char *more = strstr(text, SH_GUARD_SCALE);
    char *own = sh_strfmt("%.*s", more ? (int)(more - text) : (int)strlen(text), text);
    sh_rc rc = sh_guard_load(g, own);
    free(own);
    return rc == SH_OK && more && scale->window ? sh_loss_scale_load(scale, more + strlen(SH_GUARD_SCALE)) : rc;
}

sh_rc sh_guard_check(const char *text)
{
    struct sh_guard g = {.window = 1};
    struct sh_loss_scale scale = {.window = 1};
    return text[0] ? sh_guard_read(&g, &scale, text) : SH_OK;
}

/* If the window has become shorter, the deviation stays: the sum of squares shrinks with the number of norms. */
sh_rc sh_guard_load(struct sh_guard *g, const char *text)
{
    long long seen;
    double mean, m2;
    int skips, end = 0;
    bool read = sscanf(text, "%lld %la %la %d%n", &seen, &mean, &m2, &skips, &end) == 4 && text[end] == '\0';

    if (!read || seen < 0 || skips < 0 || !isfinite(mean) || !isfinite(m2) || m2 < 0)
        return sh_fail(SH_E_DATA, "the state of the guard in the checkpoint is not readable: \"%.60s\"", text);
    g->seen = seen < g->window ? seen : g->window;
    g->mean = mean;
    g->m2 = seen > g->window ? m2 * ((double)g->seen / (double)seen) : m2;
    g->skips = skips;
    return SH_OK;
}
