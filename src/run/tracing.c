#include "src/run/tracing.h"

#include "src/base/log.h"
#include "src/base/time.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Clocks of two hosts have nothing in common: each rank counts from a barrier. */
void sh_tracing_before_step(struct sh_tracing *t, struct sh_run *r)
{
    const struct sh_config *cfg = &r->cfg;

    if (!cfg->profiling.trace[0] || ++t->steps != cfg->profiling.trace_first_step)
        return;
    sh_mesh_barrier();
    t->origin_ns = sh_now_ns();
    t->until = r->step + cfg->profiling.trace_steps;
    t->trace = sh_trace_create(r->mesh->rank, r->mesh->host);
    sh_exec_set_trace(r->exec, t->trace);
}

static sh_rc append(struct sh_tracing *t, const struct sh_run *r, int last)
{
    const char *path = r->cfg.profiling.trace;
    FILE *f = fopen(path, r->mesh->rank == 0 ? "we" : "ae");
    int64_t bytes;
    const char *text;
    bool ok;

    if (!f)
        return sh_fail(SH_E_DATA, "open %s: %s", path, strerror(errno));
    text = sh_trace_text(t->trace, t->origin_ns, &bytes);
    ok = r->mesh->rank != 0 || fputs(sh_trace_head, f) >= 0;
    ok = ok && fwrite(text, 1, (size_t)bytes, f) == (size_t)bytes;
    ok = ok && (r->mesh->rank != last || fputs(sh_trace_foot, f) >= 0);
    ok = fclose(f) == 0 && ok;
    return ok ? SH_OK : sh_fail(SH_E_DATA, "write %s: %s", path, strerror(errno));
}

static sh_rc write_file(struct sh_tracing *t, struct sh_run *r)
{
    int n = r->mesh->world < SH_TRACED_RANKS ? r->mesh->world : SH_TRACED_RANKS;

    for (int rank = 0; rank < n; rank++)
        SH_TRY(sh_agree(r->mesh->rank == rank ? append(t, r, n - 1) : SH_OK));
    sh_log_info("trace of the steps up to %lld in %s: open it in ui.perfetto.dev or chrome://tracing",
                (long long)r->step, r->cfg.profiling.trace);
    return SH_OK;
}

sh_rc sh_tracing_after_step(struct sh_tracing *t, struct sh_run *r)
{
    sh_rc rc;

    if (!t->trace || (r->step < t->until && r->step < r->cfg.training.steps))
        return SH_OK;
    rc = write_file(t, r);
    sh_tracing_close(t, r);
    return rc;
}

void sh_tracing_close(struct sh_tracing *t, struct sh_run *r)
{
    if (!t->trace)
        return;
    sh_exec_set_trace(r->exec, NULL);
    sh_trace_destroy(t->trace);
    t->trace = NULL;
}
