#include "src/run/watch/tracing.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/metrics/trace.h"
#include "src/run/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMP_BYTES = 64 }; /* more than a temporary name adds to a name */

/* Clocks of two hosts have nothing in common, so each rank counts from the end of a barrier, the second of three. No
 * other rank leaves it before this rank enters it, which is when this rank leaves the first, nor after this rank has
 * left the third. */
static void set_clock(struct sh_trace *t)
{
    int64_t left[3];

    for (int i = 0; i < 3; i++) {
        sh_mesh_barrier();
        left[i] = sh_now_ns();
    }
    sh_trace_clock(t, left[1], left[1] - left[0] > left[2] - left[1] ? left[1] - left[0] : left[2] - left[1]);
}

static void begin(struct sh_tracing *t, struct sh_run *r)
{
    t->until = r->step + r->cfg.profiling.trace_steps;
    t->trace = sh_trace_create(&r->mesh->shape, r->mesh->host);
    set_clock(t->trace);
    sh_exec_set_trace(r->exec, t->trace);
}

void sh_tracing_before_step(struct sh_tracing *t, struct sh_run *r)
{
    const struct sh_config *cfg = &r->cfg;

    if (cfg->profiling.trace[0] && ++t->steps == cfg->profiling.trace_first_step)
        begin(t, r);
    t->step = r->step;
    t->step_ns = sh_now_ns();
}

/* The file is created and dropped again: a path that cannot be written is found before the steps, not after. */
sh_rc sh_tracing_check(const struct sh_run *r)
{
    struct sh_new_file file;
    sh_rc rc;

    if (!r->cfg.profiling.trace[0] || r->mesh->rank != 0)
        return SH_OK;
    rc = sh_new_file_create(r->cfg.profiling.trace, 0644, &file);
    if (rc != SH_OK)
        return sh_fail_prefix(rc, "profiling.trace: ");
    sh_new_file_abandon(&file);
    return SH_OK;
}

static bool put_head(const struct sh_run *r, FILE *f)
{
    char config[SH_CONFIG_DIGEST] = "", *head;
    struct sh_trace_about about = {.config = config, .ranks = sh_mesh_ranks(&r->mesh->shape)};
    bool ok = sh_config_digest(&r->cfg, config) == SH_OK;

    head = sh_trace_head(&about);
    ok = fputs(head, f) >= 0 && ok;
    free(head);
    return ok;
}

/* Each rank appends its own events; rank 0 opens the JSON and the last one closes it. */
static sh_rc append(struct sh_tracing *t, const struct sh_run *r, const char *path, int last)
{
    int64_t bytes;
    const char *text;
    bool ok;
    FILE *f;

    SH_TRY(sh_open_output(path, "a", &f));
    text = sh_trace_text(t->trace, &bytes);
    ok = r->mesh->rank != 0 || put_head(r, f);
    ok = ok && fwrite(text, 1, (size_t)bytes, f) == (size_t)bytes;
    ok = ok && (r->mesh->rank != last || fputs(sh_trace_foot, f) >= 0);
    ok = fclose(f) == 0 && ok;
    return ok ? SH_OK : sh_fail(SH_E_DATA, "write %s: %s", path, strerror(errno));
}

/* Share the name that the file has until it is complete; rank 0 has created it and tells the others.
 *   path  out  [bytes] */
static sh_rc share_name(const struct sh_run *r, const struct sh_new_file *file, char *path, int bytes)
{
    if (r->mesh->rank == 0)
        snprintf(path, (size_t)bytes, "%s", file->temp);
    return sh_mesh_bcast(path, bytes, 0);
}

/* One rank after the other, with an agreement each: the file is plain JSON, and a rank that fails ends the turn for
 * all. */
static sh_rc append_all(struct sh_tracing *t, struct sh_run *r, const struct sh_new_file *file, int ranks)
{
    char path[SH_CONFIG_PATH_MAX + TEMP_BYTES];

    SH_TRY(share_name(r, file, path, sizeof path));
    for (int rank = 0; rank < ranks; rank++)
        SH_TRY(sh_agree(r->mesh->rank == rank ? append(t, r, path, ranks - 1) : SH_OK));
    return SH_OK;
}

/* Named, since the other ranks open it. Rank 0. */
static sh_rc create(const char *name, struct sh_new_file *file)
{
    SH_TRY(sh_new_file_create(name, 0644, file));
    return sh_new_file_name(file);
}

/* Collective. Under a temporary name until it is whole; a failure leaves no half trace behind. */
static sh_rc write_file(struct sh_tracing *t, struct sh_run *r)
{
    const char *name = r->cfg.profiling.trace;
    int n = sh_mesh_ranks(&r->mesh->shape) < SH_TRACED_RANKS ? sh_mesh_ranks(&r->mesh->shape) : SH_TRACED_RANKS;
    struct sh_new_file file = {.fd = -1};
    char some[64] = "";
    sh_rc rc;

    SH_TRY_OUT(sh_agree(r->mesh->rank == 0 ? create(name, &file) : SH_OK));
    SH_TRY_OUT(append_all(t, r, &file, n));
    SH_TRY_OUT(sh_agree(r->mesh->rank == 0 ? sh_new_file_commit(&file) : SH_OK));
    if (n < sh_mesh_ranks(&r->mesh->shape))
        snprintf(some, sizeof some, ", ranks 0 to %d of %d", n - 1, sh_mesh_ranks(&r->mesh->shape));
    if (!r->passing)
        sh_log_info("trace of the steps up to %lld%s in %s: open it in ui.perfetto.dev or chrome://tracing",
                    (long long)r->step, some, name);
out:
    sh_new_file_abandon(&file);
    return rc;
}

static sh_rc write_and_close(struct sh_tracing *t, struct sh_run *r)
{
    sh_rc rc = write_file(t, r);

    sh_tracing_close(t, r);
    return rc;
}

/* Written when its steps are over, or at the last step of the run if that comes first. */
sh_rc sh_tracing_after_step(struct sh_tracing *t, struct sh_run *r)
{
    if (t->trace && r->step > t->step) /* else the step was left before its first micro-step */
        sh_trace_step(t->trace, r->step, t->step_ns, sh_now_ns());
    return t->trace && (r->step >= t->until || r->step >= r->cfg.training.steps) ? write_and_close(t, r) : SH_OK;
}

sh_rc sh_tracing_finish(struct sh_tracing *t, struct sh_run *r)
{
    const struct sh_config *cfg = &r->cfg;

    if (t->trace)
        return write_and_close(t, r);
    if (cfg->profiling.trace[0] && t->steps < cfg->profiling.trace_first_step)
        sh_log_warn("no step was traced: profiling.trace_first_step=%lld, but %lld steps were done since the start",
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
