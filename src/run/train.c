#include "src/run/run.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/run/replicas.h"
#include "src/run/rollback.h"
#include "src/run/saving.h"
#include "src/run/sound.h"
#include "src/run/stopping.h"
#include "src/run/stragglers.h"
#include "src/run/tracing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct train {
    struct sh_run *r;
    struct sh_feed feed, validation;
    struct sh_lr lr;
    struct sh_guard guard;
    struct sh_metrics *metrics; /* rank 0 only, else NULL */
    struct sh_progress progress;
    struct sh_tracing tracing;
    struct sh_stopping stopping;
    struct sh_stragglers stragglers;
    bool undo;        /* the step just done was bad, and the run goes back */
    int64_t compared; /* step after which the replicas were found equal */
    struct sh_model_flops flops;
    struct sh_saving saving;
    int64_t global_batch;  /* sequences of a step */
    double data_seconds;   /* since the last step's metrics */
    int64_t rss, gpu_used; /* bytes, largest over the ranks */
};

static double seconds_since(int64_t begin_ns)
{
    return (double)(sh_now_ns() - begin_ns) / 1e9;
}

static sh_rc open_metrics(struct train *t)
{
    char *path = sh_path_join(t->r->folder, "metrics.jsonl");
    sh_rc rc = sh_metrics_open(path, &t->metrics);

    free(path);
    return rc;
}

/* A line between what an earlier process did and what this one does: steps behind `step` may be there twice. */
static void report_start(const struct train *t)
{
    const struct sh_mesh *mesh = t->r->mesh;
    struct sh_start_metrics m = {.step = t->r->step,
                                 .resumed_from = t->r->resumed_from,
                                 .parameters_from = t->r->parameters_from,
                                 .ranks = mesh->world,
                                 .replicate = mesh->shape.size[SH_AXIS_REPLICATE],
                                 .shard = mesh->shape.size[SH_AXIS_SHARD]};

    sh_metrics_start(t->metrics, &m);
}

static sh_rc save_config(const struct sh_run *r)
{
    char *text, *path;
    sh_rc rc;

    SH_TRY(sh_config_print(&r->cfg, &text));
    path = sh_path_join(r->folder, "config.yaml");
    rc = sh_write_file_atomic(path, text, strlen(text));
    free(text);
    free(path);
    return rc;
}

static sh_rc open_feed(struct train *t, const char *key, const char *path, bool shuffle, struct sh_feed *f)
{
    sh_rc rc = sh_feed_open(t->r, path, shuffle, f);

    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "%s: ", key);
}

static sh_rc open_data(struct train *t)
{
    const struct sh_config *cfg = &t->r->cfg;

    SH_TRY(open_feed(t, "training.dataset_path", cfg->training.dataset_path, cfg->data.shuffle, &t->feed));
    if (cfg->validation.enable)
        SH_TRY(open_feed(t, "validation.dataset_path", cfg->validation.dataset_path, false, &t->validation));
    return SH_OK;
}

/* Only when the run is sure to start: one that is refused leaves no trace in the folder. */
static sh_rc open_outputs(struct train *t)
{
    if (t->r->mesh->rank == 0) {
        SH_TRY(sh_tracing_check(t->r));
        SH_TRY(save_config(t->r));
        SH_TRY(open_metrics(t));
        t->saving.metrics = t->metrics;
        report_start(t);
    }
    return sh_stopping_open(&t->stopping, t->r);
}

static void set_up(struct train *t)
{
    const struct sh_config *cfg = &t->r->cfg;
    static const enum sh_lr_decay decay[] = {[SH_DECAY_CONSTANT] = SH_LR_CONSTANT,
                                             [SH_DECAY_LINEAR] = SH_LR_LINEAR,
                                             [SH_DECAY_COSINE] = SH_LR_COSINE,
                                             [SH_DECAY_WSD] = SH_LR_WSD};

    t->global_batch = sh_request_global_batch(cfg, t->r->mesh->world);
    t->flops = sh_model_flops(&t->r->build.model, cfg->training.seq_len);
    t->lr = (struct sh_lr){.peak = cfg->optimizer.lr,
                           .min_factor = cfg->lr_scheduler.min_lr_factor,
                           .warmup = cfg->lr_scheduler.warmup_steps,
                           .decay = decay[cfg->lr_scheduler.decay_type],
                           .total = cfg->lr_scheduler.total_steps ? cfg->lr_scheduler.total_steps : cfg->training.steps,
                           .decay_ratio = cfg->lr_scheduler.decay_ratio};
    t->guard = (struct sh_guard){.action = (enum sh_guard_action)cfg->guard.action,
                                 .z_score = cfg->guard.z_score,
                                 .window = cfg->guard.window,
                                 .max_skips = cfg->guard.max_skips,
                                 .max_rollbacks = cfg->guard.max_rollbacks};
    sh_progress_init(&t->progress, cfg->metrics.progress && t->r->mesh->rank == 0, cfg->training.steps,
                     cfg->metrics.log_freq);
}

/* As the state that was loaded has it. */
static sh_rc load_guard(struct train *t)
{
    sh_guard_forget(&t->guard);
    if (!t->r->guard || !t->r->guard[0])
        return SH_OK;
    return sh_agree(sh_guard_load(&t->guard, t->r->guard));
}

/* Micro-step m of this rank's contiguous part of the global batch that starts at r->samples; what follows is read
 * ahead. */
static sh_rc read_micro_step(struct train *t, int m)
{
    struct sh_feed *f = &t->feed;
    int64_t share = t->global_batch / t->r->mesh->world, at = m * f->sequences, counted, begin = sh_now_ns();
    int64_t first = t->r->samples + t->r->mesh->rank * share + at;
    bool last = at + f->sequences == share;

    SH_TRY(sh_data_read(f->data, first, f->sequences, f->tokens, f->targets, f->docs, &counted));
    SH_REQUIRE(counted == f->sequences * t->r->cfg.training.seq_len); /* as step_tokens() counts */
    sh_data_prefetch(f->data, last ? first - at + t->global_batch : first + f->sequences, f->sequences, f->with_docs);
    sh_feed_put(t->r, f);
    t->data_seconds += seconds_since(begin);
    return SH_OK;
}

/* Target tokens of the global batch: every position has one. */
static int64_t step_tokens(const struct train *t)
{
    return t->global_batch * t->r->cfg.training.seq_len;
}

/* On a channel: MPI stays with the progress thread from step to step, and a rank that hangs is found with what it does.
 * */
static sh_rc sum_over_ranks(struct sh_run *r, double *values, int n)
{
    struct sh_coll coll = {.kind = SH_OP_ALL_REDUCE,
                           .stream = SH_STREAM_REPLICATE,
                           .axis = SH_AXIS_WORLD,
                           .dtype = SH_F64,
                           .recv = values,
                           .count = n,
                           .label = "batch"};
    int64_t ticket;

    SH_TRY(sh_comm_start(r->comm, &coll, &ticket));
    return sh_comm_wait(r->comm, ticket);
}

/* Read what comes first; the ranks agree that all could, that all could write their logs, and whether to stop here. */
static sh_rc prepare(struct train *t)
{
    double sums[1 + SH_STOPPING_WISHES];
    sh_rc rc = sh_metrics_result(t->metrics);

    if (rc == SH_OK)
        rc = read_micro_step(t, 0);
    sums[0] = rc != SH_OK;
    sh_stopping_wish(&t->stopping, t->r, sums + 1);
    SH_TRY(sum_over_ranks(t->r, sums, 1 + SH_STOPPING_WISHES));
    sh_stopping_decide(&t->stopping, t->r, sums + 1);
    return sums[0] > 0 ? sh_agree(rc) : SH_OK;
}

/* Loss and norm have the same bits on all ranks, and so has the verdict: they meet only to tell of a failure once. */
static sh_rc judge(struct train *t, double loss, double norm, enum sh_verdict *verdict)
{
    sh_rc rc = sh_guard_judge(&t->guard, t->r->step + 1, loss, norm, verdict);

    return rc == SH_OK ? SH_OK : sh_agree(rc);
}

/* The loss of micro-step m joins those before it in the tree that their gradients are summed in (the stack of
 * src/pass/shard_section.c); after the last one the sum is open[0]. */
static void add_loss(double open[SH_GRAD_LEVELS + 1], int m, double loss)
{
    int level = __builtin_popcount((unsigned)m);

    open[level] = loss;
    for (int pairs = m; pairs & 1; pairs >>= 1, level--)
        open[level - 1] += open[level];
}

static void run_micro_step(struct train *t, int m)
{
    const struct sh_program *p = t->r->p;
    sh_rc rc = m == 0 ? SH_OK : read_micro_step(t, m); /* prepare() has read the first */

    if (rc != SH_OK)
        sh_stop(rc);
    sh_exec_run_section(t->r->exec, &p->sections[sh_program_micro_step(p, m)]);
}

/* Leaves the sum over this rank's micro-steps in the program's loss. */
static void micro_steps(struct train *t)
{
    struct sh_run *r = t->r;
    double open[SH_GRAD_LEVELS + 1], loss;

    for (int m = 0; m < r->build.options.micro_steps; m++) {
        run_micro_step(t, m);
        if (!r->p->tree_sums)
            continue;
        sh_exec_get(r->exec, r->p->loss, &loss);
        add_loss(open, m, loss);
    }
    if (r->p->tree_sums)
        sh_exec_put(r->exec, r->p->loss, &open[0]);
}

static void forward_backward(struct train *t, double *loss, double *norm)
{
    struct sh_run *r = t->r;

    sh_exec_scalars(r->exec)->loss_scale = 1.0 / (double)step_tokens(t);
    micro_steps(t);
    sh_exec_run(r->exec, SH_SECTION_LOSS);
    sh_exec_run(r->exec, SH_SECTION_NORM);
    sh_exec_get(r->exec, r->p->loss, loss);
    sh_exec_get(r->exec, r->p->sumsq, norm);
    *loss /= (double)step_tokens(t);
    *norm = sqrt(*norm);
}

static void update(struct train *t, double lr, double norm)
{
    const struct sh_config *cfg = &t->r->cfg;
    struct sh_op_scalars *s = sh_exec_scalars(t->r->exec);

    t->r->updates++;
    s->lr = (float)lr;
    s->beta1 = (float)cfg->optimizer.beta1;
    s->beta2 = (float)cfg->optimizer.beta2;
    s->adam_eps = (float)cfg->optimizer.eps;
    s->weight_decay = (float)cfg->optimizer.weight_decay;
    s->beta1_pow = pow(cfg->optimizer.beta1, (double)t->r->updates);
    s->beta2_pow = pow(cfg->optimizer.beta2, (double)t->r->updates);
    s->grad_scale = (float)sh_clip_scale(norm, cfg->training.max_norm);
    sh_exec_run(t->r->exec, SH_SECTION_UPDATE);
}

static bool due(int64_t step, int64_t interval, int64_t last)
{
    return step == last || (interval > 0 && step % interval == 0);
}

static sh_rc measure_memory(struct train *t)
{
    const struct sh_device *device = t->r->device;
    double bytes[] = {(double)sh_device_peak_rss(), device->used_bytes ? (double)device->used_bytes() : 0};

    SH_TRY(sh_mesh_max(bytes, 2));
    t->rss = (int64_t)bytes[0];
    t->gpu_used = (int64_t)bytes[1];
    return SH_OK;
}

static void report(struct train *t, struct sh_step_metrics *m)
{
    if (!t->metrics)
        return;
    sh_metrics_step(t->metrics, m);
    if (m->skipped)
        sh_progress_break(&t->progress);
    sh_progress_step(&t->progress, m);
}

static const char *verdict_text(enum sh_verdict v)
{
    static const char *const text[] = {[SH_STEP_GOOD] = NULL,
                                       [SH_STEP_NON_FINITE] = "loss or gradient norm is not finite",
                                       [SH_STEP_OUTLIER] = "gradient norm is an outlier"};
    return text[v];
}

static sh_rc train_step(struct train *t)
{
    struct sh_run *r = t->r;
    struct sh_step_metrics m = {.lr = sh_lr_at(&t->lr, r->step),
                                .flops_causal = t->flops.matmul + t->flops.attention_causal,
                                .flops_full = t->flops.matmul + t->flops.attention_full,
                                .arena_bytes = r->p->arena_bytes};
    int64_t begin = sh_now_ns();
    struct sh_exec_time spent;
    enum sh_verdict verdict;

    sh_exec_set_step(r->exec, r->step + 1);
    SH_TRY(prepare(t));
    if (t->stopping.asked)
        return SH_OK;
    forward_backward(t, &m.loss, &m.grad_norm);
    SH_TRY(judge(t, m.loss, m.grad_norm, &verdict));
    if (verdict == SH_STEP_GOOD)
        update(t, m.lr, m.grad_norm);
    spent = sh_exec_take_time(r->exec);
    r->step++;
    r->samples += t->global_batch;
    r->tokens += step_tokens(t);
    sh_stragglers_add(&t->stragglers, spent.compute + t->data_seconds);
    if (due(r->step, r->cfg.metrics.log_freq, r->cfg.training.steps) || r->step == 1) {
        SH_TRY(measure_memory(t));
        SH_TRY(sh_stragglers_gather(&t->stragglers, r, &m.pace));
    }
    m.step = r->step;
    m.skipped = verdict_text(verdict);
    m.tokens = step_tokens(t);
    m.tokens_seen = r->tokens;
    m.time.step = seconds_since(begin);
    m.time.compute = spent.compute;
    m.time.exposed_comm = spent.exposed_comm;
    m.time.data = t->data_seconds;
    m.time.checkpoint = t->saving.seconds;
    m.tokens_per_second = (double)m.tokens / m.time.step;
    m.peak_rss_bytes = t->rss;
    m.gpu_used_bytes = t->gpu_used;
    t->data_seconds = t->saving.seconds = 0;
    report(t, &m);
    t->undo = verdict != SH_STEP_GOOD && t->guard.action == SH_GUARD_ROLLBACK;
    return SH_OK;
}

static sh_rc validate(struct train *t)
{
    struct sh_eval_result v;

    SH_TRY(sh_run_evaluate(t->r, &t->validation, t->r->cfg.validation.sequences, &v));
    sh_exec_take_time(t->r->exec);
    if (!t->metrics)
        return SH_OK;
    sh_progress_break(&t->progress);
    sh_log_info("step %lld  validation loss %.4f over %lld sequences", (long long)t->r->step, v.loss,
                (long long)v.sequences);
    sh_metrics_validation(t->metrics, t->r->step, v.loss, v.tokens, v.seconds);
    return SH_OK;
}

/* Where the guard may go back, the loss of the next step makes it do so. */
static sh_rc check_state(struct train *t, bool *sound)
{
    sh_rc rc = sh_run_is_sound(t->r);

    *sound = rc == SH_OK;
    if (rc != SH_E_NUMERIC || t->guard.action != SH_GUARD_ROLLBACK || t->r->step == t->r->cfg.training.steps)
        return rc;
    sh_progress_break(&t->progress);
    if (sh_error_text()[0])
        sh_log_warn("%s", sh_error_text());
    sh_error_clear();
    return SH_OK;
}

/* After the step just done; once is enough. */
static sh_rc compare_replicas(struct train *t)
{
    if (!t->r->cfg.fault.replica_check_every || t->compared == t->r->step)
        return SH_OK;
    SH_TRY(sh_replicas_compare(t->r));
    t->compared = t->r->step;
    return SH_OK;
}

/* Damage is not written as good. */
static sh_rc save(struct train *t, bool must)
{
    bool sound;

    SH_TRY(compare_replicas(t));
    SH_TRY(check_state(t, &sound));
    if (sound)
        SH_TRY(sh_saving_save(&t->saving, must));
    return SH_OK;
}

static void report_rollback(struct train *t, const struct sh_rollback_metrics *m)
{
    sh_log_info("step %lld  undone, back at step %lld; samples %lld to %lld of the run are left out (rollback %d of "
                "%d)", (long long)m->from, (long long)m->to, (long long)m->first, (long long)m->last,
                t->guard.rollbacks, t->guard.max_rollbacks);
    sh_metrics_rollback(t->metrics, m);
}

static sh_rc go_back(struct train *t)
{
    struct sh_run *r = t->r;
    struct sh_rollback_metrics m = {.from = r->step, .last = r->samples - 1};

    sh_mesh_patience(0);
    SH_TRY(sh_saving_poll(&t->saving, true));
    SH_TRY(sh_rollback(r, &m.first));
    SH_TRY(load_guard(t));
    sh_mesh_patience(r->cfg.comm.train_timeout_seconds);
    t->stopping.saved = m.to = r->step;
    t->compared = -1;
    t->undo = false;
    report_rollback(t, &m);
    return SH_OK;
}

/* What is due after a step that stays. */
static sh_rc after_step(struct train *t)
{
    struct sh_run *r = t->r;
    const struct sh_config *cfg = &r->cfg;

    if (cfg->fault.replica_check_every && r->step % cfg->fault.replica_check_every == 0)
        SH_TRY(compare_replicas(t));
    SH_TRY(sh_saving_poll(&t->saving, false));
    if (cfg->validation.enable && due(r->step, cfg->validation.freq, cfg->training.steps))
        SH_TRY(validate(t));
    if (cfg->checkpoint.enable && due(r->step, cfg->checkpoint.interval, cfg->training.steps))
        SH_TRY(save(t, r->step == cfg->training.steps));
    return SH_OK;
}

/* What is being written is finished first, and is enough when nothing was done since. */
static sh_rc finish_saves(struct train *t, int64_t first_step)
{
    const struct sh_run *r = t->r;

    sh_mesh_patience(0);
    SH_TRY(sh_saving_poll(&t->saving, true));
    if (!t->stopping.asked || !r->cfg.checkpoint.enable || r->step == first_step || t->stopping.saved == r->step)
        return SH_OK;
    sh_progress_break(&t->progress);
    sh_log_info("asked to stop (%s): saving step %lld", t->stopping.why, (long long)r->step);
    SH_TRY(save(t, true));
    sh_mesh_patience(0);
    return sh_saving_poll(&t->saving, true);
}

static sh_rc loop(struct train *t)
{
    struct sh_run *r = t->r;
    const struct sh_config *cfg = &r->cfg;
    int64_t first_step = r->step;

    if (r->step >= cfg->training.steps)
        sh_log_info("already at step %lld of %lld: nothing to do", (long long)r->step, (long long)cfg->training.steps);
    if (r->step == 0 && cfg->checkpoint.enable && cfg->checkpoint.create_seed_checkpoint)
        SH_TRY(sh_saving_save(&t->saving, false));
    sh_mesh_patience(cfg->comm.train_timeout_seconds);
    while (r->step < cfg->training.steps) {
        sh_tracing_before_step(&t->tracing, r);
        SH_TRY(train_step(t));
        if (t->stopping.asked)
            break;
        SH_TRY(sh_tracing_after_step(&t->tracing, r));
        SH_TRY(t->undo ? go_back(t) : after_step(t));
    }
    SH_TRY(finish_saves(t, first_step));
    SH_TRY(sh_tracing_finish(&t->tracing, r));
    SH_TRY(sh_agree(sh_metrics_result(t->metrics)));
    return sh_stopping_status(&t->stopping, r);
}

static void say_done(const struct sh_run *r)
{
    sh_log_info("done: %lld steps, %lld tokens; metrics in %s/metrics.jsonl", (long long)r->step, (long long)r->tokens,
                r->folder);
}

sh_rc sh_run_train(struct sh_run *r)
{
    struct train t = {.r = r,
                      .saving = {.r = r, .guard = &t.guard, .progress = &t.progress, .stopping = &t.stopping},
                      .compared = -1};
    sh_rc rc;

    set_up(&t);
    SH_TRY_OUT(sh_agree(open_data(&t)));
    SH_TRY_OUT(sh_run_start_state(r));
    SH_TRY_OUT(load_guard(&t));
    SH_TRY_OUT(sh_run_can_save(r));
    SH_TRY_OUT(sh_agree(open_outputs(&t)));
    SH_TRY_OUT(sh_stragglers_open(&t.stragglers, r));
    SH_TRY_OUT(loop(&t));
    say_done(r);
out:
    sh_progress_break(&t.progress);
    sh_stopping_close(&t.stopping, r, rc);
    sh_stragglers_close(&t.stragglers);
    sh_tracing_close(&t.tracing, r);
    sh_metrics_close(t.metrics);
    sh_feed_close(&t.feed);
    sh_feed_close(&t.validation);
    return rc;
}
