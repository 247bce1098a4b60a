/* One training step: its micro-steps, the verdict on them, the update, and the line that reports it. */
#include "src/run/train.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/job/job.h"
#include "src/model/objective.h"
#include "src/optim/optim.h"
#include "src/run/feed.h"
#include "src/run/kept/kept.h"
#include "src/run/reference.h"
#include "src/run/run.h"
#include "src/run/tree.h"
#include "src/run/watch/gpus.h"
#include "src/run/watch/hunt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A rank's contiguous part of a global batch of `batch` sequences from `samples` on. */
static int64_t part_of(const struct sh_train *t, int rank, int64_t samples, int64_t batch, int64_t *first)
{
    struct sh_mesh_shape m = t->r->mesh->shape;
    int64_t share = batch / sh_group_size(&m, m.data);

    m.rank = rank;
    *first = samples + sh_group_index(&m, m.data) * share;
    return share;
}

static int64_t own_part(const struct sh_train *t, int64_t samples, int64_t batch, int64_t *first)
{
    return part_of(t, t->r->mesh->rank, samples, batch, first);
}

/* Of this step. */
static int64_t own_sequences(const struct sh_train *t, int64_t *first)
{
    return own_part(t, t->r->samples, t->global_batch, first);
}

/* Read micro-step m of that part; what follows is read ahead.
 *   first  out  its first sequence */
static sh_rc read_micro_step(struct sh_train *t, int m, int64_t *first)
{
    struct sh_feed *f = &t->feed;
    int64_t share = own_sequences(t, first), at = m * f->sequences, unmasked, begin = sh_now_ns();
    int64_t then = sh_batches_of(&t->batches, t->r->step + 1), next;
    int64_t next_share = own_part(t, t->r->samples + t->global_batch, then, &next);
    bool last = at + f->sequences == share;

    *first += at;
    SH_TRY(sh_feed_read(f, *first, f->sequences, &unmasked));
    t->read_targets += unmasked;
    sh_data_prefetch(f->data, last ? next : *first + f->sequences, f->sequences, f->with_docs && !f->length,
                     last ? next_share : 0);
    sh_feed_put(t->r, f, m);
    t->data_seconds += sh_seconds_since(begin);
    return SH_OK;
}

/* Count the targets before the first micro-step, because its gradients are divided by their number. */
static sh_rc count_targets(struct sh_train *t)
{
    int64_t first, share = own_sequences(t, &first), begin = sh_now_ns();

    t->read_targets = t->feed.units = 0;
    SH_TRY(sh_data_count(t->feed.data, first, share, &t->own_targets));
    if (t->feed.weights)
        SH_TRY(sh_data_weigh(t->feed.data, first, share, &t->own_units));
    t->data_seconds += sh_seconds_since(begin);
    return SH_OK;
}

/* Positions of the global batch; each has a target, but a mask leaves some of them out. */
static int64_t step_tokens(const struct sh_train *t)
{
    return t->global_batch * t->r->cfg.training.seq_len;
}

/* Sum over all ranks on a channel: MPI stays with the progress thread from step to step, and a rank that hangs is
 * reported with what it is doing. */
static sh_rc sum_over_ranks(struct sh_run *r, double *values, int n)
{
    struct sh_coll coll = {.kind = SH_OP_ALL_REDUCE,
                           .stream = SH_STREAM_REPLICATE,
                           .group = sh_group_world(&r->mesh->shape),
                           .dtype = SH_F64,
                           .recv = values,
                           .count = n,
                           .label = "batch"};
    int64_t ticket;

    SH_TRY(sh_comm_start(r->comm, &coll, &ticket));
    return sh_comm_wait(r->comm, ticket);
}

/* The extremes of all ranks, exactly: each puts its own in its place, and 0 in those of the others. */
static sh_rc share_extremes(struct sh_run *r, struct sh_reference *ref)
{
    enum { LEAST, MOST, EACH };
    double *ends;
    sh_rc rc;

    if (!sh_reference_scores(ref))
        return SH_OK;
    ends = sh_calloc((size_t)r->mesh->world * EACH, sizeof *ends);
    ends[r->mesh->rank * EACH + LEAST] = ref->least;
    ends[r->mesh->rank * EACH + MOST] = ref->most;
    rc = sum_over_ranks(r, ends, r->mesh->world * EACH);
    for (int i = 0; i < r->mesh->world && rc == SH_OK; i++) {
        ref->least = fmin(ref->least, ends[i * EACH + LEAST]);
        ref->most = fmax(ref->most, ends[i * EACH + MOST]);
    }
    free(ends);
    return rc;
}

/* This rank's part of the number by which the objective divides. */
static int64_t counted(const struct sh_train *t)
{
    int64_t first, share = own_sequences(t, &first);

    if (sh_objective_of(t->r->build.batch.objective)->counts == SH_COUNTS_ANSWERS)
        return sh_data_count_answers(t->feed.data, first, share);
    return t->feed.weights ? t->own_units : t->own_targets;
}

static double divisor(const struct sh_train *t)
{
    return (double)t->counted / (t->feed.weights ? SH_DATA_WEIGHT_UNITS : 1);
}

/* Read the first micro-step. The ranks agree whether all could read and all could write their logs, on the number of
 * targets, and whether to stop here. */
static sh_rc prepare(struct sh_train *t)
{
    enum { FAILED, TARGETS, COUNTED, KEPT, REQUESTS };
    double sums[REQUESTS + SH_STOPPING_REQUESTS];
    sh_rc rc = sh_metrics_result(t->metrics);
    int64_t first;

    if (rc == SH_OK)
        rc = count_targets(t);
    if (rc == SH_OK)
        rc = read_micro_step(t, 0, &first);
    if (rc == SH_OK)
        sh_fingerprint_micro_step(&t->fingerprint, 0, first);
    sums[FAILED] = rc != SH_OK;
    bool speaks = rc == SH_OK && sh_mesh_speaks(&t->r->mesh->shape);
    sums[TARGETS] = speaks ? (double)t->own_targets : 0;
    sums[COUNTED] = speaks ? (double)counted(t) : 0;
    sums[KEPT] = sh_kept_share(t->r);
    sh_stopping_step(&t->stopping);
    sh_stopping_requests(&t->stopping, t->r, sums + REQUESTS);
    SH_TRY(sum_over_ranks(t->r, sums, REQUESTS + SH_STOPPING_REQUESTS));
    sh_stopping_decide(&t->stopping, t->r, sums + REQUESTS);
    sh_kept_decide(t->r, sums[KEPT]);
    t->targets = (int64_t)sums[TARGETS];
    t->counted = (int64_t)sums[COUNTED];
    if (rc == SH_OK && sums[COUNTED] > 0x1p53)
        rc = sh_fail(SH_E_DATA,
                     "the weights of step %lld add up to more than 2^29, and their sum is not exact; give smaller ones",
                     (long long)t->r->step + 1);
    return sums[FAILED] > 0 || sums[COUNTED] > 0x1p53 ? sh_agree(rc) : SH_OK;
}

sh_rc sh_train_ask(struct sh_train *t)
{
    double sums[SH_STOPPING_REQUESTS];

    sh_stopping_requests(&t->stopping, t->r, sums);
    SH_TRY(sum_over_ranks(t->r, sums, SH_STOPPING_REQUESTS));
    sh_stopping_decide(&t->stopping, t->r, sums);
    return SH_OK;
}

/* Loss and norm have the same bits on all ranks, and so has the verdict: the ranks meet only to report a failure
 * once. */
static sh_rc judge(struct sh_train *t, double loss, double norm, enum sh_verdict *verdict)
{
    sh_rc rc = sh_guard_judge(&t->guard, t->r->step + 1, loss, norm, verdict);

    return rc == SH_OK ? SH_OK : sh_agree(rc);
}

static int micro_steps_of(const struct sh_train *t)
{
    int64_t first;

    return (int)(own_sequences(t, &first) / t->feed.sequences);
}

static const struct sh_section *section_of(const struct sh_train *t, int m)
{
    const struct sh_program *p = t->r->p;

    return &p->sections[sh_program_micro_step_of(p, m / p->unrolled, micro_steps_of(t) / p->unrolled)];
}

/* If micro-steps are one section, it runs once the inputs of the last one are there. */
static void run_section(struct sh_train *t, int m)
{
    const struct sh_program *p = t->r->p;

    if ((m + 1) % p->unrolled == 0)
        sh_exec_run_section(t->r->exec, section_of(t, m));
}

/* Past prepare() no rank may leave alone: the sections have collectives. A read that fails here ends the job. */
static void run_micro_step(struct sh_train *t, int m)
{
    int64_t first;
    sh_rc rc = m == 0 ? SH_OK : read_micro_step(t, m, &first); /* prepare() has read the first */

    if (rc != SH_OK)
        sh_stop(rc);
    if (m > 0)
        sh_fingerprint_micro_step(&t->fingerprint, m, first);
    run_section(t, m);
}

/* Run the micro-steps of a step that changes nothing again, to say where the first number that is not finite comes
 * from. What they leave behind is written anew by the next step. */
static sh_rc find_nan(struct sh_train *t)
{
    struct sh_hunt hunt;

    sh_hunt_begin(&hunt, t->r);
    for (int m = 0; m < micro_steps_of(t); m++) {
        int64_t first;
        sh_rc rc = read_micro_step(t, m, &first);

        if (rc != SH_OK)
            sh_stop(rc);
        sh_hunt_micro_step(&hunt, m, first);
        run_section(t, m);
    }
    return sh_hunt_end(&hunt);
}

/* The sh_replay_run of a step that is done: r->samples is past it. */
static void run_first_of(void *arg, int rank, const struct sh_section *section)
{
    struct sh_train *t = arg;
    int64_t unmasked, first;

    part_of(t, rank, t->r->samples - t->global_batch, t->global_batch, &first);
    for (int m = 0; m < t->r->p->unrolled; m++) {
        sh_rc rc = sh_feed_read(&t->feed, first + m * t->feed.sequences, t->feed.sequences, &unmasked);

        if (rc != SH_OK)
            sh_stop(rc);
        sh_feed_put(t->r, &t->feed, m);
    }
    sh_exec_run_section(t->r->exec, section);
}

sh_rc sh_train_replay(struct sh_train *t)
{
    return sh_replay_step(&t->replay, section_of(t, 0), run_first_of, t);
}

/* Leaves the sum over this rank's micro-steps in the program's loss; with tree_sums, summed in the same tree as their
 * gradients (the stack of src/pass/shard/shard_grad.c). */
static void micro_steps(struct sh_train *t)
{
    struct sh_run *r = t->r;
    struct sh_tree losses[SH_PAIR_ALL] = {0};
    double numbers[SH_PAIR_ALL];

    sh_run_no_loss(r);
    sh_reference_forget(t->feed.reference);
    sh_routers_begin(&t->routers, r);
    for (int m = 0; m < micro_steps_of(t); m++) {
        run_micro_step(t, m);
        if ((m + 1) % r->p->unrolled)
            continue;
        sh_reference_take(t->feed.reference, r, r->p->unrolled);
        if (!r->p->tree_sums)
            continue;
        for (int k = 0; k < r->p->unrolled; k++) {
            sh_run_own_losses(r, k, numbers);
            for (int i = 0; i < SH_PAIR_ALL; i++)
                sh_tree_add(&losses[i], numbers[i]);
        }
        sh_routers_add(&t->routers, r);
    }
    if (t->read_targets != t->own_targets || (t->feed.weights && t->feed.units != t->own_units))
        sh_stop(sh_fail(SH_E_DATA, "the masks or weights of %s changed while they were read",
                        r->cfg.training.dataset_path[0] ? r->cfg.training.dataset_path : r->cfg.data.mix));
    if (!r->p->tree_sums)
        return;
    for (int i = 0; i < SH_PAIR_ALL; i++)
        numbers[i] = sh_tree_total(&losses[i]);
    sh_run_put_losses(r, numbers);
    sh_routers_total(&t->routers, r);
}

static void measured_micro_steps(struct sh_train *t)
{
    bool due = sh_norms_due(t->r, t->r->step + 1);

    if (due)
        sh_largest_begin(&t->norms.largest, t->r);
    micro_steps(t);
    if (due)
        sh_largest_end(&t->norms.largest);
}

/* The gradients are sums over targets or answers; dividing by those of all ranks makes them means, and float16 multiplies
 * them by its loss scale. Those of the routers' losses are sums over tokens. loss and sumsq are already summed over all
 * ranks when they are read. */
static sh_rc forward_backward(struct sh_train *t, struct sh_step_metrics *m)
{
    struct sh_run *r = t->r;
    double numbers[SH_PAIR_ALL], norm;

    sh_exec_scalars(r->exec)->loss_scale = t->loss_scale.scale / divisor(t);
    sh_exec_scalars(r->exec)->router_scale = t->loss_scale.scale / (double)step_tokens(t);
    measured_micro_steps(t);
    sh_exec_run(r->exec, SH_SECTION_LOSS);
    sh_exec_run(r->exec, SH_SECTION_NORM);
    sh_run_losses(r, numbers);
    sh_exec_get(r->exec, SH_PORT_SUMSQ, &norm);
    m->loss = numbers[0] / divisor(t);
    m->has_head_z = r->build.batch.z_loss != 0;
    m->head_z = m->has_head_z ? numbers[1] / divisor(t) : 0;
    if (sh_model_distils(&r->build.batch))
        m->teacher = (struct sh_teacher_metrics){.learns = true,
                                                 .kl = numbers[SH_HEAD_KL] / divisor(t),
                                                 .mass = numbers[SH_HEAD_MASS] / divisor(t),
                                                 .accuracy = numbers[SH_HEAD_RIGHT] / divisor(t)};
    m->grad_norm = sqrt(norm) / t->loss_scale.scale;
    SH_TRY(share_extremes(r, t->feed.reference));
    if (t->feed.reference)
        m->pairs = sh_reference_metrics(t->feed.reference, numbers, t->counted);
    return SH_OK;
}

/* `updates`, not the step, drives Adam's bias correction: skipped steps do not count. */
static void update(struct sh_train *t, double lr, double norm)
{
    const struct sh_config *cfg = &t->r->cfg;
    struct sh_op_scalars *s = sh_exec_update_scalars(t->r->exec);

    t->r->updates++;
    s->lr = (float)lr;
    sh_optim_scalars(cfg, t->r->updates, s);
    s->grad_scale = (float)(sh_clip_scale(norm, cfg->training.max_norm) / t->loss_scale.scale);
    s->seed = cfg->debug.seed;
    sh_exec_update(t->r->exec, sh_train_looks(t, t->r->step + 1));
}

/* Collective. The largest over the ranks, since that rank is the one that runs out of memory. */
static sh_rc measure_memory(struct sh_train *t)
{
    const struct sh_device *device = t->r->device;
    double bytes[] = {(double)sh_device_peak_rss(), device->used_bytes ? (double)device->used_bytes() : 0};

    SH_TRY(sh_mesh_max(bytes, 2));
    t->rss = (int64_t)bytes[0];
    t->gpu_used = (int64_t)bytes[1];
    return SH_OK;
}

/* Where the time to the first step went: once, since later steps are long behind it. */
static void report_begin(struct sh_train *t, struct sh_step_metrics *m)
{
    char text[SH_JOB_START];

    sh_job_reached(SH_PHASE_STEP);
    memcpy(m->start, sh_job_start_seconds(), sizeof m->start);
    if (t->metrics && t->r->cfg.metrics.progress)
        sh_log_info("%s", sh_job_start_text(m->start, text));
}

static void report(struct sh_train *t, struct sh_step_metrics *m)
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

/* The update is left out, and the guard is not asked: at a lower scale a later step does not overflow. */
static sh_rc overflow(struct sh_train *t, struct sh_step_metrics *m)
{
    sh_rc rc = sh_loss_scale_lower(&t->loss_scale, t->r->step + 1);

    m->skipped = "gradients overflow float16";
    return rc == SH_OK ? SH_OK : sh_agree(rc);
}

/* Skip a step without gradients. The update of an earlier step may still be pending, since no forward has carried it
 * out. */
static void leave_out(struct sh_train *t, struct sh_step_metrics *m)
{
    m->skipped = t->targets ? "no target weighs anything" : "no target counts";
    if (sh_train_looks(t, t->r->step + 1))
        sh_exec_settle(t->r->exec);
}

/* A loss scale that can still be lowered is the reason of an overflow. */
static bool hunts(const struct sh_train *t, const struct sh_step_metrics *m)
{
    bool scale = sh_loss_scale_overflows(&t->loss_scale, m->loss, m->grad_norm) && t->loss_scale.scale > 1;

    return t->r->cfg.debug.find_nan && !scale && !(isfinite(m->loss) && isfinite(m->grad_norm));
}

/* Compute gradients and, if these are good, the update. A batch in which no target counts or weighs anything has neither loss nor
 * gradients: the state stays as it is, and the guard is not asked. */
static sh_rc compute(struct sh_train *t, struct sh_step_metrics *m, enum sh_verdict *verdict)
{
    *verdict = SH_STEP_GOOD;
    m->loss = m->grad_norm = NAN;
    if (!t->targets || !t->counted) {
        leave_out(t, m);
        return SH_OK;
    }
    SH_TRY(forward_backward(t, m));
    sh_routers_take(&t->routers, t->r, step_tokens(t), &m->routers);
    m->loss_scale = t->r->p->act == SH_F16 ? t->loss_scale.scale : 0;
    if (hunts(t, m))
        SH_TRY(find_nan(t));
    sh_fingerprint_before_update(&t->fingerprint);
    if (sh_norms_due(t->r, t->r->step + 1))
        sh_norms_before_update(&t->norms, t->r, t->loss_scale.scale);
    if (sh_loss_scale_overflows(&t->loss_scale, m->loss, m->grad_norm))
        return overflow(t, m);
    SH_TRY(judge(t, m->loss, m->grad_norm, verdict));
    m->skipped = verdict_text(*verdict);
    if (*verdict == SH_STEP_GOOD)
        update(t, m->lr, m->grad_norm);
    if (*verdict != SH_STEP_NON_FINITE)
        sh_loss_scale_good(&t->loss_scale);
    return SH_OK;
}

/* Attention is counted within the documents of this step, which are all of one length. */
static void set_length(struct sh_train *t)
{
    struct sh_model_batch b = t->r->build.batch;
    int length = t->lengths.n ? (int)sh_batches_of(&t->lengths, t->r->step) : t->feed.length;

    if (length == t->feed.length)
        return;
    t->feed.length = b.document_tokens = length;
    t->flops = sh_model_flops_of(&t->r->build.model, &b);
}

/* One step. Collective. Counters move even when the update is skipped: the same batch would only be skipped again. */
sh_rc sh_train_step(struct sh_train *t)
{
    struct sh_run *r = t->r;
    struct sh_step_metrics m = {.lr = sh_lr_at(&t->lr, r->step), .arena_bytes = r->p->arena_bytes};
    int64_t begin = sh_now_ns();
    struct sh_exec_time spent;
    enum sh_verdict verdict;

    t->global_batch = sh_batches_of(&t->batches, r->step);
    set_length(t);
    m.flops_causal = t->flops.matmul + t->flops.attention_causal;
    sh_train_say_doing(t, r->step + 1);
    sh_exec_set_step(r->exec, r->step + 1);
    SH_TRY(prepare(t));
    if (t->stopping.asked)
        return SH_OK;
    SH_TRY(compute(t, &m, &verdict));
    if (t->norms.before)
        SH_TRY(sh_norms_after_update(&t->norms, r, &m.norms));
    spent = sh_exec_take_time(r->exec);
    r->step++;
    r->samples += t->global_batch;
    r->tokens += step_tokens(t);
    sh_stragglers_add(&t->stragglers, spent.compute + t->data_seconds);
    /* Figures that need a message of their own are gathered at log steps only. */
    if (sh_train_due(r->step, r->cfg.metrics.log_freq, r->cfg.training.steps) || r->step == 1) {
        m.routers.listed = m.routers.blocks > 0;
        SH_TRY(measure_memory(t));
        SH_TRY(sh_stragglers_gather(&t->stragglers, r, &m.pace));
        SH_TRY(sh_gpus_gather(r, t->hosts, &m.gpu));
    }
    m.step = r->step;
    m.tokens = step_tokens(t);
    m.masked = sh_data_masked(t->feed.data);
    m.targets = t->targets;
    m.tokens_seen = r->tokens;
    m.time.step = sh_seconds_since(begin);
    m.time.compute = spent.compute;
    m.time.exposed_comm = spent.exposed_comm;
    m.time.exposed_offload = spent.exposed_offload;
    m.offloads = sh_program_moves(r->p);
    m.offload_read_bytes = spent.read_bytes;
    m.offload_written_bytes = spent.written_bytes;
    m.time.data = t->data_seconds;
    m.time.checkpoint = t->saving.seconds;
    m.since_last = sh_seconds_since(t->last_step_ns ? t->last_step_ns : begin);
    if (!t->last_step_ns)
        report_begin(t, &m);
    t->last_step_ns = sh_now_ns();
    m.time.checks = t->check_seconds;
    m.time.near = sh_kept_take_seconds(r);
    m.tokens_per_second = (double)m.tokens / m.time.step;
    m.mfu = sh_mfu(m.tokens_per_second, m.flops_causal, sh_mesh_ranks(&r->mesh->shape), r->cfg.metrics.peak_tflops);
    m.peak_rss_bytes = t->rss;
    m.gpu_used_bytes = t->gpu_used;
    t->data_seconds = t->check_seconds = t->saving.seconds = 0;
    report(t, &m);
    t->undo = verdict != SH_STEP_GOOD && t->guard.action == SH_GUARD_ROLLBACK;
    return SH_OK;
}
