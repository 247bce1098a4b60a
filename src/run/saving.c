#include "src/run/saving.h"

#include "src/base/log.h"
#include "src/base/time.h"

#include <stdlib.h>

static double seconds_since(int64_t begin_ns)
{
    return (double)(sh_now_ns() - begin_ns) / 1e9;
}

/* *saved: what sh_run_save() or a poll has committed, if anything. */
static void report(struct sh_saving *s, struct sh_run_saved *saved)
{
    struct sh_checkpoint_metrics m = {.step = saved->step,
                                      .path = saved->path,
                                      .bytes = saved->bytes,
                                      .seconds = saved->seconds,
                                      .stall = saved->stall};

    if (!saved->path)
        return;
    sh_progress_break(s->progress);
    sh_log_info("step %lld  saved %s (%.1f MB, %.2f s, training stood still for %.3f s)", (long long)m.step, m.path,
                (double)m.bytes / 1e6, m.seconds, m.stall);
    sh_metrics_checkpoint(s->metrics, &m);
    free(saved->path);
}

sh_rc sh_saving_poll(struct sh_saving *s, bool wait)
{
    struct sh_run_saved saved;
    int64_t begin = sh_now_ns();

    if (!sh_run_is_saving(s->r))
        return SH_OK;
    SH_TRY(sh_run_save_poll(s->r, wait, &saved));
    s->seconds += seconds_since(begin);
    report(s, &saved);
    return SH_OK;
}

/* One at a time: a second copy would take memory that is not planned for. */
static bool skips(const struct sh_saving *s)
{
    const struct sh_config *cfg = &s->r->cfg;

    if (!sh_run_is_saving(s->r) || cfg->checkpoint.async_busy == SH_BUSY_WAIT || s->r->step == cfg->training.steps)
        return false;
    sh_progress_break(s->progress);
    sh_log_info("step %lld  not saved: the checkpoint before is still being written (checkpoint.async_busy=skip)",
                (long long)s->r->step);
    return true;
}

/* A save may take long on one rank, and no limit of a step must end it; it has its own, checkpoint.timeout_seconds. */
sh_rc sh_saving_save(struct sh_saving *s)
{
    struct sh_run_saved saved;
    char guard[128];
    int64_t begin;

    if (skips(s))
        return SH_OK;
    sh_mesh_patience(0);
    SH_TRY(sh_saving_poll(s, true));
    begin = sh_now_ns();
    sh_guard_save(s->guard, guard, sizeof guard);
    SH_TRY(sh_run_save(s->r, guard, &saved));
    sh_mesh_patience(s->r->cfg.comm.train_timeout_seconds);
    s->seconds += seconds_since(begin);
    report(s, &saved);
    return SH_OK;
}
