/* The training loop: steps, and what is due after them. */
#include "src/run/train.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/base/time.h"
#include "src/run/feed.h"
#include "src/run/kept/kept.h"
#include "src/run/measure/claims.h"
#include "src/run/reference.h"
#include "src/run/run.h"
#include "src/run/save/frozen.h"
#include "src/run/watch/changes.h"
#include "src/run/watch/finite.h"
#include "src/run/watch/gpus.h"
#include "src/run/watch/replicas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Restore guard and loss scale from the state that was loaded. */
static sh_rc load_guard(struct sh_train *t)
{
    sh_guard_forget(&t->guard);
    sh_loss_scale_begin(&t->loss_scale);
    if (!t->r->guard || !t->r->guard[0])
        return SH_OK;
    return sh_agree(sh_guard_read(&t->guard, &t->loss_scale, t->r->guard));
}

/* The sh_eval_watch of a validation. */
static sh_rc ask(void *arg, bool *stop)
{
    struct sh_train *t = arg;

    SH_TRY(sh_train_ask(t));
    *stop = t->stopping.asked;
    return SH_OK;
}

/* One line, and one of the metrics if the validation is whole. Rank 0. */
static void report_validation(struct sh_train *t, const struct sh_eval_result *v)
{
    const struct sh_validation_metrics m = {.step = t->r->step,
                                            .loss = v->loss,
                                            .tokens = v->tokens,
                                            .bytes = v->bytes,
                                            .seconds = v->seconds,
                                            .labels = v->labels,
                                            .accuracy = (double)v->right / (double)v->labels,
                                            .multi_label = v->multi_label,
                                            .f1 = v->f1,
                                            .pairs = v->pairs};
    long long step = (long long)t->r->step;
    char sequences[SH_STR_SHORT];

    sh_progress_break(&t->progress);
    sh_str_plural(v->sequences, "sequence", sequences);
    if (v->cut) {
        sh_log_info("step %lld  validation cut off after %s (%s)%s", step, sequences, t->stopping.why,
                    t->r->cfg.checkpoint.enable ? "; the next start runs it again" : "");
        return;
    }
    sh_log_info("%sstep %lld  validation loss %.4f%s over %s", sh_log_columns() ? "  " : "", step, v->loss,
                t->r->cfg.validation.ema ? " of the average" : "", sequences);
    sh_metrics_validation(t->metrics, &m);
}

/* Whether to leave the validation out because the job ends before. Not that of the last step: what is cut off there,
 * the next start runs again. Collective. */
static sh_rc leaves_out(struct sh_train *t, bool *leave)
{
    SH_TRY(sh_train_ask(t));
    *leave = t->stopping.no_validation && !t->stopping.asked && t->r->step < t->r->cfg.training.steps;
    if (!*leave || !t->metrics)
        return SH_OK;
    sh_progress_break(&t->progress);
    sh_log_info("step %lld  no validation: it takes about %.0f s, and the job ends before", (long long)t->r->step,
                t->stopping.limit.validation);
    return SH_OK;
}

/* Of the average of the parameters, if it is asked for. */
static sh_rc evaluate(struct sh_train *t, struct sh_eval_result *v)
{
    const struct sh_eval_watch watch = {.ask = ask, .arg = t};
    bool mean = t->r->cfg.validation.ema;
    sh_rc rc;

    if (mean)
        sh_run_swap_mean(t->r);
    rc = sh_run_evaluate(t->r, &t->validation, t->r->cfg.validation.sequences, &watch, v);
    if (mean)
        sh_run_swap_mean(t->r);
    return rc;
}

/* Collective. The executor's time is taken and dropped, so that validation does not count as compute of the next step.
 */
static sh_rc validate(struct sh_train *t)
{
    struct sh_eval_result v;
    bool leave;

    SH_TRY(leaves_out(t, &leave));
    if (leave)
        return SH_OK;
    sh_job_doing("ending the validation of step %lld", t->r->step);
    SH_TRY(evaluate(t, &v));
    sh_exec_take_time(t->r->exec);
    if (t->metrics)
        report_validation(t, &v);
    if (sh_stopping_validated(&t->stopping, t->r->step, v.seconds, !v.cut) == SH_OK)
        return SH_OK;
    sh_log_warn("%s", sh_error_text()); /* the run goes on without the record, as after a save */
    sh_error_clear();
    return SH_OK;
}

/* Run the validation that the start before has cut off, after it had saved the step. Collective. */
static sh_rc catch_up(struct sh_train *t)
{
    double owes = sh_stopping_owes_validation(&t->stopping);

    if (!sh_train_validates(t, t->r->step))
        return SH_OK;
    SH_TRY(sh_mesh_max(&owes, 1));
    if (owes <= 0)
        return SH_OK;
    sh_log_info("step %lld  its validation was cut off, and is run again", (long long)t->r->step);
    return validate(t);
}

/* If the guard may go back, bad numbers are only a warning: the loss of the next step makes it go back. */
static sh_rc check_state(struct sh_train *t, bool *finite)
{
    sh_rc rc = sh_run_check_finite(t->r);

    *finite = rc == SH_OK;
    if (rc != SH_E_NUMERIC || t->guard.action != SH_GUARD_ROLLBACK || t->r->step == t->r->cfg.training.steps)
        return rc;
    sh_progress_break(&t->progress);
    if (sh_error_text()[0])
        sh_log_warn("%s", sh_error_text());
    sh_error_clear();
    return SH_OK;
}

/* Numbers that may be wrong are neither saved nor kept in memory. */
static sh_rc distrust(struct sh_train *t, sh_rc rc)
{
    if (rc == SH_E_REPLICA)
        sh_kept_forget(t->r);
    return rc;
}

/* Compare after the step just done; once is enough. */
static sh_rc compare_replicas(struct sh_train *t)
{
    int64_t begun = sh_now_ns();

    if (!t->r->cfg.fault.replica_check_every || t->compared == t->r->step)
        return SH_OK;
    SH_TRY(distrust(t, sh_replicas_compare(t->r)));
    t->compared = t->r->step;
    t->check_seconds += sh_seconds_since(begun);
    return SH_OK;
}

/* Each file was saved after such a check, so it is right. One exception: a run that went on from memory after a flip that
 * no check had seen. Its base was loaded again, but its adapters were trained beside the wrong one. */
static sh_rc check_frozen(struct sh_train *t)
{
    bool changed = sh_frozen_changed(t->r);

    if (changed)
        sh_kept_accuse(t->r, t->r->step);
    return distrust(t, sh_frozen_check(t->r, changed));
}

/* Damage must not be written as good. A save that a signal asks for comes unexpectedly, so the update may be
 * pending. */
static sh_rc check(struct sh_train *t, bool *finite)
{
    int64_t begun = sh_now_ns();

    sh_exec_settle(t->r->exec);
    SH_TRY(compare_replicas(t));
    SH_TRY(check_frozen(t));
    t->saving.look_seconds = sh_seconds_since(begun);
    begun = sh_now_ns();
    SH_TRY(check_state(t, finite));
    t->saving.look_seconds += sh_seconds_since(begun);
    t->check_seconds += sh_seconds_since(begun);
    return SH_OK;
}

/* With bad numbers in the state nothing is saved, and the newest good checkpoint stays the newest. */
static sh_rc save(struct sh_train *t, bool must)
{
    bool finite;

    SH_TRY(check(t, &finite));
    if (finite)
        SH_TRY(sh_saving_save(&t->saving, must));
    return SH_OK;
}

static void report_rollback(struct sh_train *t, const struct sh_rollback_metrics *m)
{
    sh_log_info("step %lld  undone, back at step %lld; samples %lld to %lld of the run are left out (rollback %d of "
                "%d)",
                (long long)m->from, (long long)m->to, (long long)m->first, (long long)m->last, t->guard.rollbacks,
                t->guard.max_rollbacks);
    sh_metrics_rollback(t->metrics, m);
}

/* Go back to the last checkpoint. A save under way is finished first: it may be the one to go back to. The time limit
 * of a step does not apply here, since a load may take long. */
static sh_rc go_back(struct sh_train *t)
{
    struct sh_run *r = t->r;
    struct sh_rollback_metrics m = {.from = r->step, .last = r->samples - 1};

    sh_mesh_timeout(0);
    SH_TRY(sh_saving_poll(&t->saving, true));
    SH_TRY(sh_rollback(r, &m.first));
    SH_TRY(load_guard(t));
    sh_mesh_timeout(r->cfg.comm.train_timeout_seconds);
    t->stopping.saved = m.to = r->step;
    t->compared = -1;
    t->undo = false;
    report_rollback(t, &m);
    return SH_OK;
}

static sh_rc replay(struct sh_train *t)
{
    int64_t begun = sh_now_ns();
    sh_rc rc = distrust(t, sh_train_replay(t));

    t->check_seconds += sh_seconds_since(begun);
    return rc;
}

/* First of all that is due and long: a rank may die in what follows. */
static sh_rc keep_near(struct sh_train *t)
{
    char guard[SH_SAVING_GUARD];

    if (!sh_kept_due(t->r, t->r->step))
        return SH_OK;
    sh_saving_guard(&t->saving, guard);
    return sh_kept_write(t->r, guard);
}

/* What is due after a step that stays. The save comes before the validation, which may take long and is less worth. */
static sh_rc after_step(struct sh_train *t)
{
    struct sh_run *r = t->r;

    if (sh_replay_due(r, r->step))
        SH_TRY(replay(t));
    SH_TRY(keep_near(t));
    if (sh_train_compares(t, r->step))
        SH_TRY(compare_replicas(t));
    if (sh_claims_due(r, r->step))
        SH_TRY(sh_claims_step(r));
    SH_TRY(sh_saving_poll(&t->saving, false));
    if (sh_train_saves(t, r->step))
        SH_TRY(save(t, r->step == r->cfg.training.steps));
    if (sh_train_validates(t, r->step))
        SH_TRY(validate(t));
    return SH_OK;
}

/* Finish the save under way first; it is enough if nothing was done since. The export is due at the last step, whoever
 * saved that: a job may have been killed between the two. */
static sh_rc finish_saves(struct sh_train *t, int64_t first_step)
{
    const struct sh_run *r = t->r;

    sh_mesh_timeout(0);
    SH_TRY(sh_saving_poll(&t->saving, true));
    if (!t->stopping.asked)
        return sh_run_save_hf(t->r);
    if (!r->cfg.checkpoint.enable || (r->step == first_step && !r->unsaved) || t->stopping.saved == r->step)
        return SH_OK;
    sh_progress_break(&t->progress);
    sh_log_info("stopping (%s); saving at step %lld%s", t->stopping.why, (long long)r->step,
                sh_job_heard(SH_JOB_INT) ? "; another Ctrl-C gives up at once" : "");
    SH_TRY(save(t, true));
    sh_mesh_timeout(0);
    return sh_saving_poll(&t->saving, true);
}

/* Few epochs are meant; many are often a small file and the steps of another. Sets of a mix have their own epochs. */
static void say_epochs(const struct sh_train *t, int64_t windows)
{
    enum { MANY = 10 };
    const struct sh_run *r = t->r;
    int64_t left = sh_batches_before(&t->batches, r->cfg.training.steps) - sh_batches_before(&t->batches, r->step);
    double samples = (double)r->samples + (double)left;
    char sequences[SH_STR_SHORT];

    if (r->cfg.data.mix[0] || samples <= (double)MANY * (double)windows)
        return;
    sh_log_info("note: training.steps=%lld reads the data (%s) %.0f times; an epoch is %.0f steps%s",
                (long long)r->cfg.training.steps, sh_str_plural(windows, "sequence", sequences),
                samples / (double)windows, ceil((double)windows / (double)sh_batches_most(&t->batches)),
                t->batches.n > 1 ? " of the largest batch" : "");
}

/* Say what the configuration changes in a run that continues, or that nothing is left to do. */
static void say_beginning(const struct sh_train *t)
{
    const struct sh_run *r = t->r;
    int64_t windows = sh_data_samples(t->feed.data);
    char text[SH_CHANGES_TEXT];

    if (r->step > r->cfg.training.steps)
        sh_log_info("the checkpoint is at step %lld, past training.steps=%lld; nothing to do", (long long)r->step,
                    (long long)r->cfg.training.steps);
    else if (r->step == r->cfg.training.steps)
        sh_log_info("already at step %lld of %lld: %s", (long long)r->step, (long long)r->cfg.training.steps,
                    sh_run_owes_hf(r) ? "only the export for transformers is left to do"
                                      : "nothing to do; give training.steps=N for more, or another job.dump_folder for "
                                        "a new run");
    else
        say_epochs(t, windows);
    if (r->before && r->step < r->cfg.training.steps) {
        if (sh_changes_schedule(r->before, &r->cfg, r->step, text))
            sh_log_info("%s", text);
        if (sh_changes_states(r->before, &r->cfg, text))
            sh_log_info("%s", text);
        if (sh_changes_data(r->before, &r->cfg, r->samples, windows, text) ||
            sh_changes_files(r->provenance.data_then, r->provenance.data, r->samples, windows, text))
            sh_log_info("%s", text);
    }
}

/* A run that goes on from memory may have died in the save of that very step. */
static sh_rc save_again(struct sh_train *t)
{
    if (!t->r->unsaved || !sh_train_saves(t, t->r->step))
        return SH_OK;
    return save(t, t->r->step == t->r->cfg.training.steps);
}

/* Order at the end: saves, trace, metrics, status. A run whose metrics could not be written fails, but only after its
 * state is safe. */
static sh_rc loop(struct sh_train *t)
{
    struct sh_run *r = t->r;
    const struct sh_config *cfg = &r->cfg;
    int64_t first_step = r->step;

    say_beginning(t);
    if (r->step == 0 && cfg->checkpoint.enable && cfg->checkpoint.create_seed_checkpoint)
        SH_TRY(sh_saving_save(&t->saving, false));
    sh_mesh_timeout(cfg->comm.train_timeout_seconds);
    SH_TRY(save_again(t));
    SH_TRY(catch_up(t));
    sh_exec_take_time(r->exec); /* what the start has moved is no step's */
    while (r->step < cfg->training.steps && !t->stopping.asked) {
        sh_tracing_before_step(&t->tracing, r);
        SH_TRY(sh_fingerprint_before_step(&t->fingerprint, r, sh_batches_of(&t->batches, r->step)));
        SH_TRY(sh_train_step(t));
        if (t->stopping.asked)
            break;
        SH_TRY(sh_tracing_after_step(&t->tracing, r));
        SH_TRY(sh_fingerprint_after_step(&t->fingerprint, r));
        SH_TRY(t->undo ? go_back(t) : after_step(t));
    }
    SH_TRY(finish_saves(t, first_step));
    SH_TRY(sh_tracing_finish(&t->tracing, r));
    sh_metrics_finish(t->metrics);
    SH_TRY(sh_agree(sh_metrics_result(t->metrics)));
    return sh_stopping_status(&t->stopping, r);
}

/* Whoever trained adapters has no folder that other programs open. */
static void say_adapters(const struct sh_run *r)
{
    char *checkpoints = sh_run_checkpoint_folder(r);

    if (sh_frozen_exports_adapters(r))
        sh_log_info("the adapters for PEFT: sherd ckpt export %s --adapter %s/adapter", checkpoints, r->folder);
    sh_log_info("the whole model with them: sherd ckpt export %s --merge -o %s/merged", checkpoints, r->folder);
    free(checkpoints);
}

static void say_done(const struct sh_run *r)
{
    char steps[SH_STR_SHORT], tokens[SH_STR_SHORT];

    sh_log_info("done: %s, %s; `sherd report %s` draws the metrics in %s/metrics.jsonl",
                sh_str_plural(r->step, "step", steps), sh_str_plural(r->tokens, "token", tokens), r->folder, r->folder);
    if (sh_frozen_any(r) && r->cfg.checkpoint.enable)
        say_adapters(r);
}

/* Each opening is agreed, so that a rank whose data is missing stops all before the first step. Outputs are always
 * closed; the record of how the run ended is written first, while the error text is there. */
sh_rc sh_run_train(struct sh_run *r)
{
    struct sh_train t = {.r = r,
                         .saving = {.r = r,
                                    .guard = &t.guard,
                                    .loss_scale = &t.loss_scale,
                                    .progress = &t.progress,
                                    .stopping = &t.stopping},
                         .compared = -1};
    sh_rc rc;

    sh_train_set_up(&t);
    SH_TRY_OUT(sh_agree(sh_train_open_data(&t)));
    SH_TRY_OUT(sh_provenance_data(r, t.feed.data));
    sh_job_reached(SH_PHASE_DATA);
    SH_TRY_OUT(sh_stopping_before_load(r));
    SH_TRY_OUT(sh_kept_open(r));
    SH_TRY_OUT(sh_run_start_state(r));
    SH_TRY_OUT(sh_kept_take(r));
    sh_job_reached(SH_PHASE_LOAD);
    sh_run_template_take(r, sh_data_chat_template(t.feed.data));
    SH_TRY_OUT(sh_run_tokenizer_start(r));
    if (r->cfg.validation.enable)
        SH_TRY_OUT(sh_run_tokenizer_lengths(r));
    SH_TRY_OUT(load_guard(&t));
    SH_TRY_OUT(sh_run_can_save(r));
    SH_TRY_OUT(sh_agree(r->mesh->rank == 0 ? sh_run_can_save_hf(r) : SH_OK));
    SH_TRY_OUT(sh_replay_open(&t.replay, r));
    SH_TRY_OUT(sh_gpus_open(r));
    SH_TRY_OUT(sh_train_gather_nodes(&t));
    SH_TRY_OUT(sh_agree(sh_train_open_outputs(&t)));
    SH_TRY_OUT(sh_reference_start(r, &t.feed, false));
    SH_TRY_OUT(sh_reference_start(r, &t.validation, true));
    SH_TRY_OUT(sh_stragglers_open(&t.stragglers, r));
    sh_routers_open(&t.routers, r);
    SH_TRY_OUT(loop(&t));
    if (!r->passing)
        say_done(r);
out:
    sh_mesh_end_within(r->cfg.comm.train_timeout_seconds, rc);
    sh_kept_close(r);
    sh_progress_break(&t.progress);
    sh_stopping_close(&t.stopping, r, rc);
    sh_stragglers_close(&t.stragglers);
    sh_routers_close(&t.routers);
    sh_replay_close(&t.replay);
    sh_gpus_unwatch();
    sh_fingerprint_close(&t.fingerprint);
    sh_norms_close(&t.norms);
    sh_tracing_close(&t.tracing, r);
    sh_metrics_close(t.metrics);
    free(t.hosts);
    sh_feed_close(&t.feed);
    sh_feed_close(&t.validation);
    return rc;
}
