#include "src/run/tracing.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/time.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Under this name until the file is whole. */
static char *unfinished(const struct sh_run *r)
{
    return sh_strfmt("%s.tmp", r->cfg.profiling.trace);
}

sh_rc sh_tracing_check(const struct sh_run *r)
{
    char *path;
    FILE *f;
    int why;

    if (!r->cfg.profiling.trace[0] || r->mesh->rank != 0)
        return SH_OK;
    path = unfinished(r);
    f = fopen(path, "we");
    why = errno;
    if (f) {
        fclose(f);
        unlink(path);
    }
    free(path);
    return f ? SH_OK
             : sh_fail(SH_E_DATA, "profiling.trace: create %s.tmp: %s", r->cfg.profiling.trace, strerror(why));
}

static sh_rc append(struct sh_tracing *t, const struct sh_run *r, const char *path, int last)
{
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

static sh_rc append_all(struct sh_tracing *t, struct sh_run *r, const char *path, int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        SH_TRY(sh_agree(r->mesh->rank == rank ? append(t, r, path, ranks - 1) : SH_OK));
    return SH_OK;
}

/* Rank 0. */
static sh_rc publish(const char *path, const char *name)
{
    return rename(path, name) == 0 ? SH_OK : sh_fail(SH_E_DATA, "rename %s: %s", path, strerror(errno));
}

static sh_rc write_file(struct sh_tracing *t, struct sh_run *r)
{
    const char *name = r->cfg.profiling.trace;
    int n = r->mesh->world < SH_TRACED_RANKS ? r->mesh->world : SH_TRACED_RANKS;
    char *path = unfinished(r), some[64] = "";
    sh_rc rc;

    SH_TRY_OUT(append_all(t, r, path, n));
    SH_TRY_OUT(sh_agree(r->mesh->rank == 0 ? publish(path, name) : SH_OK));
    if (n < r->mesh->world)
        snprintf(some, sizeof some, ", ranks 0 to %d of %d", n - 1, r->mesh->world);
    sh_log_info("trace of the steps up to %lld%s in %s: open it in ui.perfetto.dev or chrome://tracing",
                (long long)r->step, some, name);
out:
    if (rc != SH_OK && r->mesh->rank == 0)
        unlink(path);
    free(path);
    return rc;
}

static sh_rc write_and_close(struct sh_tracing *t, struct sh_run *r)
{
    sh_rc rc = write_file(t, r);

    sh_tracing_close(t, r);
    return rc;
}

sh_rc sh_tracing_after_step(struct sh_tracing *t, struct sh_run *r)
{
    return t->trace && (r->step >= t->until || r->step >= r->cfg.training.steps) ? write_and_close(t, r) : SH_OK;
}

sh_rc sh_tracing_finish(struct sh_tracing *t, struct sh_run *r)
{
    const struct sh_config *cfg = &r->cfg;

    if (t->trace)
        return write_and_close(t, r);
    if (cfg->profiling.trace[0] && t->steps < cfg->profiling.trace_first_step)
        sh_log_warn("no step was traced: profiling.trace_first_step=%lld, and %lld steps were done since the start",
                    (long long)cfg->profiling.trace_first_step, (long long)t->steps);
    return SH_OK;
}

void sh_tracing_close(struct sh_tracing *t, struct sh_run *r)
{
    if (!t->trace)
        return;
    sh_exec_set_trace(r->exec, NULL);
    sh_trace_destroy(t->trace);
    t->trace = NULL;
}
