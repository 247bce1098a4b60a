#include "src/run/watch/stragglers.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/run/run.h"

#include <stdlib.h>

/* Host names are gathered once, so that a report needs no message. Only rank 0 has arrays. Collective. */
sh_rc sh_stragglers_open(struct sh_stragglers *s, const struct sh_run *r)
{
    size_t world = r->mesh->rank == 0 ? (size_t)sh_mesh_ranks(&r->mesh->shape) : 0;

    *s = (struct sh_stragglers){0};
    if (world) {
        s->host = sh_calloc(world, sizeof *s->host);
        s->seconds = sh_calloc(world, sizeof *s->seconds);
    }
    return sh_mesh_gather(r->mesh->host, sizeof *s->host, s->host);
}

void sh_stragglers_close(struct sh_stragglers *s)
{
    free(s->host);
    free(s->seconds);
}

void sh_stragglers_add(struct sh_stragglers *s, double seconds)
{
    s->sum += seconds;
    s->steps++;
}

/* `least`, `median` and `most` are seconds per step. A rank is named only after it was slow for long
 * (sh_job_pace_add). */
static void judge(struct sh_stragglers *s, const struct sh_run *r, struct sh_pace_metrics *out)
{
    struct sh_job_pace *p = &s->pace;

    sh_job_pace_add(p, s->steps, sh_mesh_ranks(&r->mesh->shape), s->seconds);
    *out = (struct sh_pace_metrics){
        .least = p->least, .median = p->median, .most = p->most, .slowest = p->slowest, .node = s->host[p->slowest]};
    if (p->report)
        sh_log_warn(
            "straggler: rank %d on %s has worked %.3g s per step for %lld steps, %.1f times the median of all ranks; "
            "the others wait for it",
            p->slowest, out->node, p->most, (long long)p->slow_steps, p->most / p->median);
}

/* Collective, at log steps: one double per rank. The mean covers the steps since the last time. */
sh_rc sh_stragglers_gather(struct sh_stragglers *s, const struct sh_run *r, struct sh_pace_metrics *out)
{
    double mean = s->steps ? s->sum / (double)s->steps : 0;

    if (sh_mesh_ranks(&r->mesh->shape) == 1)
        return SH_OK;
    SH_TRY(sh_mesh_gather(&mean, sizeof mean, s->seconds));
    if (r->mesh->rank == 0)
        judge(s, r, out);
    s->sum = 0;
    s->steps = 0;
    return SH_OK;
}
