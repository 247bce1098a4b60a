#include "src/run/watch/stopping.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/time.h"
#include "src/run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The requests after those of the signals. */
enum { LIMIT = SH_JOB_SIGNALS, NO_VALIDATION };

/* The step of the newest checkpoint, at most that of the run: checkpoints newer than where the run stands were
 * skipped. */
static int64_t newest_saved(const struct sh_run *r)
{
    char *folder = sh_run_checkpoint_folder(r), *path = NULL;
    int64_t step = -1;

    if (sh_ckpt_newest(folder, &path) == SH_OK && path)
        step = sh_ckpt_step_of(path);
    sh_error_clear();
    free(path);
    free(folder);
    return step < r->step ? step : r->step;
}

/* Guess the seconds of a save that was never measured: 50 MB/s per rank, 10 GB/s in all, and 5 s that do not depend on
 * the size. */
static double guess_save(const struct sh_run *r)
{
    double bytes = 12.0 * (double)sh_model_trained(&r->build.model, &r->build.batch.adapters);

    return 5 + fmax(bytes / sh_mesh_ranks(&r->mesh->shape) / 50e6, bytes / 10e9);
}

/* First read what an earlier process of the same run has left: how long its saves took, and how often it was started
 * since the last one. Rank 0 only. */
static sh_rc open_record(struct sh_stopping *s, const struct sh_run *r)
{
    bool found;

    s->path = sh_path_join(r->folder, "progress.json");
    s->record = (struct sh_job_record){.save_seconds = -1, .validation_seconds = -1, .validated_step = r->step};
    sh_job_record_read(s->path, &s->record, &found);
    s->record.steps = r->cfg.training.steps;
    s->record.first_step = s->record.step = r->step;
    s->record.saved_step = newest_saved(r);
    /* Count starts without a save in between: by that number a job script ends a chain of jobs that get nowhere. */
    s->record.starts++;
    s->record.status = -1;
    s->record.reason[0] = '\0';
    s->limit.validation = fmax(s->record.validation_seconds, 0);
    if (!r->cfg.validation.enable)
        s->record.validated_step = -1;
    else if (s->record.validated_step > r->step)
        s->record.validated_step = r->step;
    if (s->record.save_seconds >= 0)
        sh_job_limit_save(&s->limit, s->record.save_seconds);
    return sh_job_record_write(s->path, &s->record);
}

/* Only rank 0 knows the end of the job and keeps the record; the others learn of both through the sums of each step. */
sh_rc sh_stopping_open(struct sh_stopping *s, const struct sh_run *r)
{
    double spare = r->cfg.job.stop_before_limit_seconds;

    *s = (struct sh_stopping){.saved = -1};
    if (r->mesh->rank != 0)
        return SH_OK;
    SH_TRY(sh_job_limit_read(spare, guess_save(r), &s->limit));
    if (spare < 0 || !r->cfg.checkpoint.enable) /* stopping early would save nothing */
        s->limit.end = 0;
    return open_record(s, r);
}

void sh_stopping_step(struct sh_stopping *s)
{
    int64_t now = sh_now_ns();

    if (s->step_ns)
        sh_job_limit_step(&s->limit, (double)(now - s->step_ns) / 1e9 - s->stall);
    s->step_ns = now;
    s->stall = 0;
}

/* What this rank wants, as numbers that are summed over all ranks with those that each step sums anyway: a stop costs
 * no message of its own. */
void sh_stopping_requests(struct sh_stopping *s, const struct sh_run *r, double requests[SH_STOPPING_REQUESTS])
{
    /* A save under way must be finished, and one more be made: leave time for two. */
    int saves = sh_run_is_saving(r) ? 2 : 1;
    double now = (double)time(NULL);

    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        requests[i] = sh_job_heard((enum sh_job_signal)i);
    requests[LIMIT] = sh_job_limit_near(&s->limit, now, saves);
    requests[NO_VALIDATION] = sh_job_limit_no_validation(&s->limit, now, saves);
}

/* Signals take precedence over the limit: whoever sent one wants to see it named. */
static void name_reason(struct sh_stopping *s, const struct sh_run *r, const double sums[SH_STOPPING_REQUESTS])
{
    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        if (sums[i] > 0) {
            snprintf(s->why, sizeof s->why, "%s to %d of %d ranks", sh_job_signal_name((enum sh_job_signal)i),
                     (int)sums[i], sh_mesh_ranks(&r->mesh->shape));
            return;
        }
    snprintf(s->why, sizeof s->why, "the job ends in %.0f s", s->limit.end - (double)time(NULL));
}

sh_rc sh_stopping_before_load(const struct sh_run *r)
{
    struct sh_stopping s = {0};
    long long heard[SH_JOB_SIGNALS];
    double sums[SH_STOPPING_REQUESTS] = {0};
    bool any = false;

    for (int i = 0; i < SH_JOB_SIGNALS; i++)
        heard[i] = sh_job_heard((enum sh_job_signal)i);
    SH_TRY(sh_mesh_sum_i64(heard, SH_JOB_SIGNALS));
    for (int i = 0; i < SH_JOB_SIGNALS; i++) {
        sums[i] = (double)heard[i];
        any = any || heard[i];
    }
    if (!any)
        return SH_OK;
    name_reason(&s, r, sums);
    sh_log_info("stopped before the first step (%s); run the same command to resume", s.why);
    return SH_REQUEUE;
}

/* The sums are the same on all ranks, so all stop after the same step. */
void sh_stopping_decide(struct sh_stopping *s, const struct sh_run *r, const double sums[SH_STOPPING_REQUESTS])
{
    for (int i = 0; i <= LIMIT; i++)
        s->asked = s->asked || sums[i] > 0;
    s->no_validation = sums[NO_VALIDATION] > 0;
    if (s->asked)
        name_reason(s, r, sums);
}

/* Every rank notes the step; rank 0 also writes the record, with how long the save took. */
sh_rc sh_stopping_saved(struct sh_stopping *s, const struct sh_run_saved *saved)
{
    s->saved = saved->step;
    s->stall += saved->stall;
    if (!s->path)
        return SH_OK;
    sh_job_limit_save(&s->limit, saved->seconds);
    s->record.saved_step = saved->step;
    s->record.save_seconds = s->limit.save;
    s->record.starts = 0;
    return sh_job_record_write(s->path, &s->record);
}

/* The record is written only if a start could begin with this step: a later save writes it anyway. */
sh_rc sh_stopping_validated(struct sh_stopping *s, int64_t step, double seconds, bool whole)
{
    s->stall += seconds;
    if (!s->path)
        return SH_OK;
    if (!whole) {
        s->limit.validation = fmax(s->limit.validation, seconds);
        return SH_OK;
    }
    s->limit.validation = s->record.validation_seconds = seconds;
    s->record.validated_step = step;
    return s->record.saved_step == step ? sh_job_record_write(s->path, &s->record) : SH_OK;
}

bool sh_stopping_owes_validation(const struct sh_stopping *s)
{
    return s->path && s->record.validated_step >= 0 && s->record.validated_step < s->record.first_step;
}

/* After the loop. SH_REQUEUE tells the job script to start the same command again. Without checkpoints that would
 * repeat the work, so it is an error. */
sh_rc sh_stopping_status(const struct sh_stopping *s, const struct sh_run *r)
{
    if (!s->asked)
        return SH_OK;
    if (!r->cfg.checkpoint.enable)
        return sh_agree(sh_fail(SH_E_USAGE,
                                "stopped after step %lld of %lld (%s); nothing is saved, since "
                                "checkpoint.enable=false",
                                (long long)r->step, (long long)r->cfg.training.steps, s->why));
    sh_error_clear();
    sh_log_info("stopped after step %lld of %lld (%s); run the same command to resume", (long long)r->step,
                (long long)r->cfg.training.steps, s->why);
    return SH_REQUEUE;
}

static const char *reason_of(const struct sh_stopping *s, sh_rc rc)
{
    if (rc == SH_OK)
        return "all steps are done";
    if (rc == SH_REQUEUE && s->why[0])
        return s->why;
    return sh_error_text()[0] ? sh_error_text() : "another rank failed; see its line in the log";
}

/* The error text is kept aside: writing the record may fail and replace it. */
void sh_stopping_close(struct sh_stopping *s, const struct sh_run *r, sh_rc rc)
{
    char error[sizeof s->record.reason];

    if (!s->path)
        return;
    snprintf(error, sizeof error, "%s", sh_error_text());
    s->record.step = r->step;
    s->record.status = (int)rc;
    snprintf(s->record.reason, sizeof s->record.reason, "%s", reason_of(s, rc));
    if (sh_job_record_write(s->path, &s->record) != SH_OK) {
        sh_log_warn("cannot record how the run ended: %s", sh_error_text());
        if (error[0])
            rc = sh_fail(rc, "%s", error); /* the error that main has to print */
        else
            sh_error_clear();
    }
    free(s->path);
}
