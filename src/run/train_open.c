/* What a training run opens before its first step. */
#include "src/run/train.h"

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/run/feed.h"
#include "src/run/kept/kept.h"
#include "src/run/measure/claims.h"
#include "src/run/run.h"
#include "src/run/teacher.h"
#include "src/run/watch/changes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The scheduler's number of the job, by which a site finds what else it has measured of the job; without a scheduler,
 * the number of the process. */
static const char *job_name(char pid[24])
{
    const char *job = getenv("SLURM_JOB_ID");

    snprintf(pid, 24, "%lld", (long long)getpid());
    return job && job[0] ? job : pid;
}

/* A path in the configuration is relative to the run's folder, like that of metrics.jsonl. */
static sh_rc open_openmetrics(struct sh_train *t)
{
    const struct sh_config *cfg = &t->r->cfg;
    char pid[24], *path;
    struct sh_metrics_labels labels = {.job = job_name(pid), .run = t->r->folder, .host = t->r->mesh->host};
    sh_rc rc;

    if (!cfg->metrics.openmetrics[0])
        return SH_OK;
    path = sh_path_join(t->r->folder, cfg->metrics.openmetrics);
    rc = sh_metrics_openmetrics(t->metrics, path, &labels);
    free(path);
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "metrics.openmetrics: ");
}

/* Events after r->step are written again; viewers no longer show those that an earlier process wrote for the same
 * steps. */
static sh_rc open_tensorboard(struct sh_train *t)
{
    const struct sh_config *cfg = &t->r->cfg;
    char *folder;
    sh_rc rc;

    if (!cfg->metrics.tensorboard[0])
        return SH_OK;
    folder = sh_path_join(t->r->folder, cfg->metrics.tensorboard);
    rc = sh_metrics_tensorboard(t->metrics, folder, t->r->step);
    free(folder);
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "metrics.tensorboard: ");
}

/* metrics.jsonl is always there; the other two only if they are asked for. */
static sh_rc open_metrics(struct sh_train *t)
{
    char *path = sh_path_join(t->r->folder, "metrics.jsonl");
    sh_rc rc = sh_metrics_open(path, &t->metrics);

    free(path);
    SH_TRY(rc);
    SH_TRY(open_tensorboard(t));
    return open_openmetrics(t);
}

/* Count the cores of the node that its ranks may use, each once however the launcher has pinned the ranks. */
static sh_rc gather_cores(int *cores)
{
    uint64_t set[SH_DEVICE_CORE_WORDS];

    sh_device_core_set(set);
    SH_TRY(sh_mesh_or_on_node(set, SH_DEVICE_CORE_WORDS));
    *cores = 0;
    for (int i = 0; i < SH_DEVICE_CORE_WORDS; i++)
        *cores += __builtin_popcountll(set[i]);
    return SH_OK;
}

/* Collective, so that the line of the start can name all nodes. */
sh_rc sh_train_gather_nodes(struct sh_train *t)
{
    const struct sh_mesh *mesh = t->r->mesh;
    char mine[SH_METRICS_HOST];

    SH_TRY(gather_cores(&t->cores));
    snprintf(mine, sizeof mine, "%s", mesh->host);
    if (mesh->rank == 0)
        t->hosts = sh_calloc((size_t)mesh->world, sizeof mine);
    return sh_mesh_gather(mine, sizeof mine, t->hosts);
}

/* What the job's script says of lost nodes, without spaces at the end. Freed with free(). */
static char *lost_nodes(int *n)
{
    const char *said = getenv("SHERD_LOST_NODES");
    char *text = sh_strdup(said ? said : ""), *end = text + strlen(text);

    while (end > text && end[-1] == ' ')
        *--end = '\0';
    *n = text[0] != '\0';
    for (const char *c = text; *c; c++)
        *n += *c == ' ';
    return text;
}

/* Write a line between what an earlier process did and what this one does: steps after `step` may be there twice. */
static sh_rc report_start(const struct sh_train *t)
{
    const struct sh_mesh *mesh = t->r->mesh;
    bool from_memory = t->r->resumed_from && !strcmp(t->r->resumed_from, SH_METRICS_FROM_MEMORY);
    char config[SH_CONFIG_DIGEST], *lost;
    struct sh_start_metrics m = {.step = t->r->step,
                                 .resumed_from = t->r->resumed_from,
                                 .parameters_from = t->r->parameters_from,
                                 .seconds_down = fmax(sh_kept_seconds_down(t->r), 0),
                                 .ranks = sh_mesh_ranks(&mesh->shape),
                                 .replicate = sh_group_size(&mesh->shape, mesh->shape.replicate),
                                 .shard = sh_group_size(&mesh->shape, mesh->shape.shard),
                                 .nodes = mesh->n_nodes,
                                 .threads = t->r->threads,
                                 .cores = t->cores,
                                 .device = t->r->device->gpu ? t->r->gpu.info.name : "cpu",
                                 .stages = t->r->stage_bytes ? sh_group_size(&mesh->shape, mesh->shape.pipeline) : 0,
                                 .stage_bytes = t->r->stage_bytes,
                                 .parameters = sh_model_params(&t->r->build.model),
                                 .hosts = t->hosts,
                                 .n_hosts = mesh->world,
                                 .config = config,
                                 .flops_causal = t->flops.matmul + t->flops.attention_causal,
                                 .flops_full = t->flops.matmul + t->flops.attention_full,
                                 .peak_tflops = t->r->cfg.metrics.peak_tflops};

    SH_TRY(sh_config_digest(&t->r->cfg, config));
    if (t->r->cfg.checkpoint.near_interval)
        m.recoveries = sh_metrics_recoveries(t->metrics) + from_memory;
    lost = lost_nodes(&m.n_lost_nodes);
    m.lost_nodes = lost;
    sh_metrics_start(t->metrics, &m);
    free(lost);
    return SH_OK;
}

/* The configuration as the run has it, with all defaults: what `sherd train` was given may have come from several
 * places. */
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

/* Failures name the key that the path is from: there may be two sets of data. */
static sh_rc open_feed(struct sh_train *t, const char *key, const char *path, bool shuffle, struct sh_feed *f)
{
    sh_rc rc = sh_feed_open(t->r, path, shuffle, f);

    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "%s: ", key);
}

/* Every rank opens the data, because each reads its own sequences. Local. */
sh_rc sh_train_open_data(struct sh_train *t)
{
    const struct sh_config *cfg = &t->r->cfg;

    bool mixed = cfg->data.mix[0] != '\0';

    SH_TRY(open_feed(t, mixed ? "data.mix" : "training.dataset_path", cfg->training.dataset_path, cfg->data.shuffle,
                     &t->feed));
    if (cfg->objective.name == SH_OBJECTIVE_DISTILLATION)
        SH_TRY(sh_teacher_open(cfg, t->feed.data, t->feed.with_docs, t->feed.sequences, &t->feed.teacher));
    if (t->r->mesh->rank == 0) {
        sh_feed_note_bytes(t->feed.data, mixed ? cfg->data.mix : cfg->training.dataset_path, cfg->model.vocab_size);
        sh_feed_note_rows(t->feed.data, (enum sh_cfg_excess)cfg->data.excess_length_strategy);
        if (t->feed.weights)
            sh_log_info("targets weigh what the .weight files beside %s say; data.token_weight=off ignores them",
                        mixed ? cfg->data.mix : cfg->training.dataset_path);
    }
    if (cfg->validation.enable)
        SH_TRY(open_feed(t, "validation.dataset_path", cfg->validation.dataset_path, false, &t->validation));
    return SH_OK;
}

/* Rank 0 only writes; the others open nothing but their part of the stopping record. Local. */
sh_rc sh_train_open_outputs(struct sh_train *t)
{
    if (t->r->mesh->rank == 0) {
        SH_TRY(sh_tracing_check(t->r));
        SH_TRY(sh_fingerprint_check(t->r, &t->batches));
        SH_TRY(sh_norms_check(t->r));
        SH_TRY(save_config(t->r));
        SH_TRY(open_metrics(t));
        t->saving.metrics = t->metrics;
        SH_TRY(report_start(t));
        SH_TRY(sh_claims_begin(t->r));
    }
    return sh_stopping_open(&t->stopping, t->r);
}

/* 1 if nothing is scaled, so that whoever multiplies by it need not ask. */
static struct sh_loss_scale scale_of(const struct sh_config *cfg)
{
    bool scales = cfg->training.mixed_precision_param == SH_PRECISION_FLOAT16;
    bool dynamic = scales && cfg->training.loss_scale == SH_LOSS_SCALE_DYNAMIC;
    int64_t init = dynamic ? cfg->training.loss_scale_init : cfg->training.loss_scale;

    return (struct sh_loss_scale){.init = scales ? (double)init : 1,
                                  .window = dynamic ? cfg->training.loss_scale_window : 0};
}

/* Set what follows from the configuration alone: counts, schedules, judges. */
void sh_train_set_up(struct sh_train *t)
{
    const struct sh_mesh_shape *m = &t->r->mesh->shape;
    const struct sh_config *cfg = &t->r->cfg;

    t->batches = sh_request_batches(cfg, sh_group_size(m, m->data));
    t->global_batch = sh_batches_of(&t->batches, t->r->step);
    if (sh_batches_read(cfg->data.length_schedule, &t->lengths) != SH_OK)
        sh_error_clear(); /* the checks have read it */
    t->flops = sh_model_flops_of(&t->r->build.model, &t->r->build.batch);
    t->lr = sh_changes_lr(cfg);
    t->guard = (struct sh_guard){.action = cfg->guard.action,
                                 .z_score = cfg->guard.z_score,
                                 .window = cfg->guard.window,
                                 .max_skips = cfg->guard.max_skips,
                                 .max_rollbacks = cfg->guard.max_rollbacks};
    t->loss_scale = scale_of(cfg);
    sh_progress_init(&t->progress, cfg->metrics.progress && t->r->mesh->rank == 0, cfg->training.steps,
                     cfg->metrics.log_freq, sh_mesh_ranks(m), cfg->metrics.peak_tflops);
}
