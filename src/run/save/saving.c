#include "src/run/save/saving.h"

#include "src/base/log.h"
#include "src/base/time.h"
#include "src/run/run.h"

#include <stdio.h>
#include <stdlib.h>

enum { REASON_BYTES = 2048 };

/* What was read back, if that is less than the default. */
static const char *const how[] = {[SH_VERIFY_DISK] = "",
                                  [SH_VERIFY_CACHE] = ", read back from the page cache only (checkpoint.verify=cache)",
                                  [SH_VERIFY_OFF] = ", not read back (checkpoint.verify=off)"};

/* Report what a save or a poll has committed, if anything. */
static void report(struct sh_saving *s, struct sh_run_saved *saved)
{
    struct sh_checkpoint_metrics m;
    char paused[64];

    if (!saved->path)
        return;
    saved->seconds += s->look_seconds;
    saved->stall += s->look_seconds;
    m = (struct sh_checkpoint_metrics){.step = saved->step,
                                       .path = saved->path,
                                       .bytes = saved->bytes,
                                       .verify = sh_ckpt_verify_name[s->r->cfg.checkpoint.verify],
                                       .seconds = saved->seconds,
                                       .stall = saved->stall,
                                       .disk_seconds = saved->disk_seconds};
    s->failures = 0;
    sh_progress_break(s->progress);
    /* A terminal has no room to say the same twice. */
    snprintf(paused, sizeof paused, ", training paused for %.3f s", m.stall);
    sh_log_info("step %lld  saved %s (%.1f MB, %.2f s%s)%s", (long long)m.step, m.path, (double)m.bytes / 1e6,
                m.seconds, sh_log_columns() && m.stall >= m.seconds ? "" : paused, how[s->r->cfg.checkpoint.verify]);
    sh_metrics_checkpoint(s->metrics, &m);
    free(saved->path);
    if (sh_stopping_saved(s->stopping, saved) == SH_OK)
        return;
    sh_log_warn("%s", sh_error_text()); /* the checkpoint is there all the same */
    sh_error_clear();
}

void sh_saving_guard(const struct sh_saving *s, char text[SH_SAVING_GUARD])
{
    char guard[128], scale[64];
    bool dynamic = s->loss_scale->window;

    sh_guard_save(s->guard, guard, sizeof guard);
    sh_loss_scale_save(s->loss_scale, scale, sizeof scale);
    snprintf(text, SH_SAVING_GUARD, "%s%s%s", guard, dynamic ? SH_GUARD_SCALE : "", dynamic ? scale : "");
}

/* Start a save of the current step. The guard's state and the loss scale belong to the file, so they are taken at the
 * same moment as the parameters. */
static sh_rc begin(struct sh_saving *s)
{
    struct sh_run_saved saved;
    char text[SH_SAVING_GUARD];
    sh_rc rc;

    s->step = s->r->step;
    sh_saving_guard(s, text);
    rc = sh_run_save(s->r, text, &saved);
    s->lost = rc != SH_OK && saved.lost;
    SH_TRY(rc);
    sh_guard_saved(s->guard);
    report(s, &saved);
    return SH_OK;
}

/* Let a save under way proceed; with `wait` until it is committed. Nothing to do without one. */
static sh_rc go_on(struct sh_saving *s, bool wait)
{
    struct sh_run_saved saved;

    if (!sh_run_is_saving(s->r))
        return SH_OK;
    SH_TRY(sh_run_save_poll(s->r, wait, &saved));
    report(s, &saved);
    return SH_OK;
}

/* Only one rank has the text of an agreed failure, and no rank knows which. Find it and give all ranks the reason;
 * afterwards none has it as an error text. */
static sh_rc share_reason(const struct sh_run *r, char reason[REASON_BYTES])
{
    /* Ranks without a text count as 0, so rank 0 sends its own if it alone has one. If several have a text, that of the
     * highest rank is taken. */
    double who = sh_error_text()[0] ? r->mesh->rank : 0;

    snprintf(reason, REASON_BYTES, "%s", sh_error_text());
    sh_error_clear();
    SH_TRY(sh_mesh_max(&who, 1));
    return sh_mesh_bcast(reason, REASON_BYTES, (int)who);
}

/* End the job; rank 0 has the text. */
static sh_rc give_up(const struct sh_saving *s, sh_rc rc, const char *reason)
{
    if (s->r->mesh->rank != 0)
        return rc;
    /* The second try was made already, so the message counts tries, not failures in a row. */
    if (s->must && s->again)
        return sh_fail(rc, "step %lld had to be saved, but the second try failed too: %s", (long long)s->step, reason);
    return sh_fail(rc, "step %lld not saved: %s; that is failure %d in a row (checkpoint.max_failures=%d)",
                   (long long)s->step, reason, s->failures, s->r->cfg.checkpoint.max_failures);
}

/* End the progress line first, so that the warning starts a new one. */
static void warn(const struct sh_saving *s, const char *reason)
{
    if (s->r->mesh->rank != 0)
        return;
    sh_progress_break(s->progress);
    sh_log_warn("step %lld not saved: %s; %s", (long long)s->step, reason,
                s->must ? "trying once more" : "training continues");
}

/* A state that must be saved gets its second try whatever happened to the saves before. */
static bool must_succeed(const struct sh_saving *s)
{
    int most = s->r->cfg.checkpoint.max_failures;

    return s->must && most > 0 ? s->again : s->failures > most;
}

/* Decide what follows from a save. A failure of storage may not repeat next time, under another name. The save is not
 * the cause of any other failure, nor of a state that did not come back from its home: these end the run. */
static sh_rc settle(struct sh_saving *s, sh_rc rc)
{
    char reason[REASON_BYTES];

    if (rc == SH_OK)
        return SH_OK;
    sh_run_save_abandon(s->r);
    if (s->lost || (rc != SH_E_DATA && rc != SH_E_MEMORY))
        return rc;
    SH_TRY(share_reason(s->r, reason));
    s->failures++;
    sh_metrics_not_saved(s->metrics, &(struct sh_not_saved_metrics){s->step, s->failures, reason});
    if (must_succeed(s))
        return give_up(s, rc, reason);
    warn(s, reason);
    if (!s->must)
        return SH_OK;
    s->again = true;
    rc = begin(s);
    /* The recursion ends: after one second try must_succeed() is true for a state that must be saved. */
    return settle(s, rc == SH_OK ? go_on(s, true) : rc);
}

/* Time spent here is reported as checkpoint time of the step, not as its own. */
sh_rc sh_saving_poll(struct sh_saving *s, bool wait)
{
    int64_t begun = sh_now_ns();
    sh_rc rc = settle(s, go_on(s, wait));

    s->seconds += sh_seconds_since(begun);
    return rc;
}

/* One at a time: a second copy would take memory that is not planned for. */
static bool skips(const struct sh_saving *s, bool must)
{
    if (!sh_run_is_saving(s->r) || s->r->cfg.checkpoint.async_busy == SH_BUSY_WAIT || must)
        return false;
    sh_progress_break(s->progress);
    sh_log_info("step %lld  not saved: the checkpoint before is still being written (checkpoint.async_busy=skip)",
                (long long)s->r->step);
    return true;
}

/* The save before is finished first; its failure counts against max_failures as if it had ended earlier. */
static sh_rc save(struct sh_saving *s, bool must)
{
    SH_TRY(settle(s, go_on(s, true)));
    s->must = must;
    s->again = false;
    return settle(s, begin(s));
}

/* A save may take long on one rank, and no limit of a step must end it; it has its own, checkpoint.timeout_seconds. */
sh_rc sh_saving_save(struct sh_saving *s, bool must)
{
    int64_t begun = sh_now_ns();
    sh_rc rc;

    if (skips(s, must))
        return SH_OK;
    sh_mesh_timeout(0);
    rc = save(s, must);
    sh_mesh_timeout(s->r->cfg.comm.train_timeout_seconds);
    /* Time spent here is reported as checkpoint time of the step. */
    s->seconds += sh_seconds_since(begun);
    return rc;
}
