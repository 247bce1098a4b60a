#include "src/metrics/table.h"

#include "sherd_config.h"

#include "src/device/nvml.h"

#include <math.h>
#include <string.h>
#include <time.h>

static bool has_name(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), name))
            return true;
    return false;
}

/* Reasons may hold names of files, and these may hold any bytes. */
static json_t *words(const char *text)
{
    json_t *s = json_string(text);

    return s ? s : json_string("(not UTF-8)");
}

/* Each host once. Ranks of a node are neighbours nearly always, so the newest name is compared first: a job of 4,096
 * ranks is not worth a table. */
static json_t *list_hosts(const void *event)
{
    const struct sh_start_metrics *s = event;
    json_t *list = json_array();
    const char *newest = "";

    for (int i = 0; i < s->n_hosts; i++) {
        const char *name = s->hosts + (size_t)i * SH_METRICS_HOST;

        if (strcmp(name, newest) && !has_name(list, name))
            json_array_append_new(list, words(name));
        newest = name;
    }
    return list;
}

/* By name, since the bits are Sherd's own. */
static json_t *list_reasons(const void *event)
{
    const struct sh_step_metrics *s = event;
    json_t *list = json_array();

    for (int i = 0; i < SH_NVML_REASONS; i++)
        if (s->gpu.why >> i & 1)
            json_array_append_new(list, json_string(sh_nvml_reason(i)));
    return list;
}

static json_t *list_numbers(const double *values, int n)
{
    json_t *list = json_array();

    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_real(values[i]));
    return list;
}

static json_t *list_arenas(const void *event)
{
    const struct sh_start_metrics *s = event;
    json_t *list = json_array();

    for (int i = 0; i < s->stages; i++)
        json_array_append_new(list, json_integer((json_int_t)s->stage_bytes[i]));
    return list;
}

static json_t *list_largest(const void *event)
{
    const struct sh_step_metrics *s = event;

    return list_numbers(s->routers.largest, s->routers.blocks);
}

static json_t *list_spread(const void *event)
{
    const struct sh_step_metrics *s = event;

    return list_numbers(s->routers.spread, s->routers.blocks);
}

/* JSON has no NaN or Inf. */
static json_t *name_numbers(int n, const char *const *name, const double *values)
{
    json_t *object = json_object();

    for (int i = 0; i < n; i++)
        json_object_set_new(object, name[i], isfinite(values[i]) ? json_real(values[i]) : json_null());
    return object;
}

static json_t *name_gradients(const void *event)
{
    const struct sh_norm_metrics *n = &((const struct sh_step_metrics *)event)->norms;

    return name_numbers(n->rows, n->name, n->gradient);
}

static json_t *name_parameters(const void *event)
{
    const struct sh_norm_metrics *n = &((const struct sh_step_metrics *)event)->norms;

    return name_numbers(n->rows, n->name, n->parameter);
}

static json_t *name_updates(const void *event)
{
    const struct sh_norm_metrics *n = &((const struct sh_step_metrics *)event)->norms;

    return name_numbers(n->rows, n->name, n->update);
}

static json_t *name_largest(const void *event)
{
    const struct sh_norm_metrics *n = &((const struct sh_step_metrics *)event)->norms;

    return name_numbers(n->blocks, n->block, n->largest);
}

/* clang-format off */
/* A field with its type, so that the two cannot differ. */
#define FIELD(s, f) \
    {_Generic(((struct s *)0)->f, int: SH_METRIC_INT, int64_t: SH_METRIC_WHOLE, double: SH_METRIC_REAL, \
              bool: SH_METRIC_FLAG, const char *: SH_METRIC_TEXT), offsetof(struct s, f)}

#define START(f) .event = SH_METRICS_START, .value = FIELD(sh_start_metrics, f)
#define STEP(f) .event = SH_METRICS_STEP, .value = FIELD(sh_step_metrics, f)
#define VALIDATION(f) .event = SH_METRICS_VALIDATION, .value = FIELD(sh_validation_metrics, f)
#define SAVED(f) .event = SH_METRICS_CHECKPOINT, .value = FIELD(sh_checkpoint_metrics, f)
#define NOT_SAVED(f) .event = SH_METRICS_NOT_SAVED, .value = FIELD(sh_not_saved_metrics, f)
#define ROLLBACK(f) .event = SH_METRICS_ROLLBACK, .value = FIELD(sh_rollback_metrics, f)
#define ONE(kind) .event = kind, .value = {SH_METRIC_ONE, 0}
#define NOW(kind) .event = kind, .value = {SH_METRIC_NOW, 0}
#define IF(f) .given = FIELD(sh_step_metrics, f)
#define GAUGE(n, u, h) .name = "sherd_" n, .unit = u, .help = h
#define COUNTER(n, h) .counter = true, .name = "sherd_" n, .help = h

/* What does not apply (no peak, no GPU, no masks) is left out rather than written as 0, which would look like a
 * measurement. Counters begin at 0 with each process, as Prometheus expects. */
const struct sh_metric sh_metric_table[] = {
    {ONE(SH_METRICS_STEP), COUNTER("steps", "Training steps done by this process.")},
    {STEP(step), .key = "step", GAUGE("step", NULL, "Newest step of the run.")},
    {NOW(SH_METRICS_STEP), GAUGE("step_timestamp_seconds", "seconds", "When the newest step ended, since 1970.")},
    {STEP(loss), .key = "loss", .tag = "train/loss", GAUGE("loss", NULL, "Training loss of the newest step, nats per token.")},
    {STEP(grad_norm), .key = "grad_norm", .tag = "train/grad_norm",
     GAUGE("grad_norm", NULL, "Norm of the gradient, before clipping.")},
    {STEP(lr), .key = "lr", .tag = "train/learning_rate", GAUGE("learning_rate", NULL, "Learning rate.")},
    {STEP(tokens), .key = "tokens", COUNTER("tokens", "Tokens trained on by this process, over all ranks.")},
    {STEP(tokens_seen), .key = "tokens_seen", .tag = "train/tokens_seen"},
    {STEP(skipped), .tag = "train/skipped", COUNTER("skipped_steps", "Steps whose update was left out.")},
    {STEP(tokens_per_second), .key = "tokens_per_second", .tag = "speed/tokens_per_second",
     GAUGE("tokens_per_second", NULL, "Tokens per second of the newest step, over all ranks.")},
    {STEP(mfu), IF(mfu), .key = "mfu", .tag = "speed/mfu",
     GAUGE("mfu_ratio", "ratio", "Model FLOPs utilization of the newest step.")},
    {STEP(time.step), .in = "seconds", .key = "step", .tag = "seconds/step",
     GAUGE("step_seconds", "seconds", "Duration of the newest step.")},
    {STEP(time.compute), .in = "seconds", .key = "compute", .tag = "seconds/compute",
     GAUGE("compute_seconds", "seconds", "Computation in the newest step.")},
    {STEP(time.exposed_comm), .in = "seconds", .key = "exposed_comm", .tag = "seconds/exposed_comm",
     GAUGE("exposed_comm_seconds", "seconds", "Waiting for communication in the newest step.")},
    {STEP(time.exposed_offload), IF(offloads), .in = "seconds", .key = "exposed_offload", .tag = "seconds/exposed_offload",
     GAUGE("exposed_offload_seconds", "seconds", "Waiting for moves between tiers in the newest step.")},
    {STEP(time.data), .in = "seconds", .key = "data", .tag = "seconds/data",
     GAUGE("data_seconds", "seconds", "Reading data in the newest step.")},
    {STEP(time.checkpoint), .in = "seconds", .key = "checkpoint", .tag = "seconds/checkpoint"},
    {STEP(time.near), IF(time.near), .in = "seconds", .key = "near", .tag = "seconds/near"},
    {STEP(time.checks), .in = "seconds", .key = "checks"},
    {STEP(arena_bytes), .key = "arena_bytes", .tag = "memory/arena_bytes",
     GAUGE("arena_bytes", "bytes", "Planned memory of a rank.")},
    {STEP(peak_rss_bytes), .key = "peak_rss_bytes", .tag = "memory/peak_rss_bytes",
     GAUGE("peak_rss_bytes", "bytes", "Peak resident memory, largest over the ranks.")},
    {STEP(gpu_used_bytes), IF(gpu_used_bytes), .key = "gpu_used_bytes", .tag = "memory/gpu_used_bytes",
     GAUGE("gpu_used_bytes", "bytes", "Memory in use on a GPU, largest over the ranks.")},
    {STEP(offload_read_bytes), IF(offloads), .key = "offload_read_bytes", .tag = "offload/read_bytes",
     GAUGE("offload_read_bytes", "bytes", "Moved to the device of rank 0 in the newest step.")},
    {STEP(offload_written_bytes), IF(offloads), .key = "offload_written_bytes", .tag = "offload/written_bytes",
     GAUGE("offload_written_bytes", "bytes", "Moved from the device of rank 0 in the newest step.")},
    {STEP(targets), IF(masked), .key = "targets"},
    {STEP(pairs.pairs), .given = FIELD(sh_step_metrics, pairs.pairs), .key = "pairs",
     GAUGE("pairs_in_step", NULL, "Pairs of answers in the newest step.")},
    {STEP(pairs.n_chosen), .given = FIELD(sh_step_metrics, pairs.singles), .in = "answers", .key = "chosen",
     GAUGE("chosen_in_step", NULL, "Desirable answers in the newest step.")},
    {STEP(pairs.n_rejected), .given = FIELD(sh_step_metrics, pairs.singles), .in = "answers", .key = "rejected",
     GAUGE("rejected_in_step", NULL, "Undesirable answers in the newest step.")},
    {STEP(pairs.chosen), .given = FIELD(sh_step_metrics, pairs.n_chosen), .in = "rewards", .key = "chosen", .tag = "rewards/chosen",
     GAUGE("reward_chosen", NULL, "Mean reward of chosen answers in the newest step.")},
    {STEP(pairs.rejected), .given = FIELD(sh_step_metrics, pairs.n_rejected), .in = "rewards", .key = "rejected", .tag = "rewards/rejected",
     GAUGE("reward_rejected", NULL, "Mean reward of rejected answers in the newest step.")},
    {STEP(pairs.margin), .given = FIELD(sh_step_metrics, pairs.n_less), .in = "rewards", .key = "margins", .tag = "rewards/margins",
     GAUGE("reward_margin", NULL, "Mean difference of the rewards of a pair in the newest step.")},
    {STEP(pairs.accuracy), .given = FIELD(sh_step_metrics, pairs.pairs), .in = "rewards", .key = "accuracies", .tag = "rewards/accuracies",
     GAUGE("reward_accuracy", NULL, "Share of pairs whose chosen answer has the larger reward.")},
    {STEP(pairs.logp_chosen), .given = FIELD(sh_step_metrics, pairs.n_chosen), .in = "logps", .key = "chosen", .tag = "logps/chosen",
     GAUGE("logp_chosen", NULL, "Mean log-probability of chosen answers in the newest step.")},
    {STEP(pairs.logp_rejected), .given = FIELD(sh_step_metrics, pairs.n_rejected), .in = "logps", .key = "rejected", .tag = "logps/rejected",
     GAUGE("logp_rejected", NULL, "Mean log-probability of rejected answers in the newest step.")},
    {STEP(pairs.kl), .given = FIELD(sh_step_metrics, pairs.compared), .key = "kl", .tag = "train/kl",
     GAUGE("kl", NULL, "Mean log-ratio of answers to other prompts in their row, at least 0, in the newest step.")},
    {STEP(pairs.scored), .given = FIELD(sh_step_metrics, pairs.scored), .key = "pairs",
     GAUGE("scored_pairs_in_step", NULL, "Pairs whose answers a head scored in the newest step.")},
    {STEP(pairs.reward), .given = FIELD(sh_step_metrics, pairs.scored), .key = "mean_reward", .tag = "train/mean_reward",
     GAUGE("mean_reward", NULL, "Mean reward of both answers of pairs in the newest step.")},
    {STEP(pairs.least), .given = FIELD(sh_step_metrics, pairs.scored), .key = "min_reward", .tag = "train/min_reward",
     GAUGE("min_reward", NULL, "Smallest reward of an answer in the newest step.")},
    {STEP(pairs.most), .given = FIELD(sh_step_metrics, pairs.scored), .key = "max_reward", .tag = "train/max_reward",
     GAUGE("max_reward", NULL, "Largest reward of an answer in the newest step.")},
    {STEP(pairs.margin), .given = FIELD(sh_step_metrics, pairs.scored), .key = "margin", .tag = "train/margin",
     GAUGE("margin", NULL, "Mean difference of the rewards that a head gives a pair, in the newest step.")},
    {STEP(pairs.accuracy), .given = FIELD(sh_step_metrics, pairs.scored), .key = "accuracy", .tag = "train/accuracy",
     GAUGE("accuracy", NULL, "Share of pairs whose chosen answer has the larger reward, in the newest step.")},
    {STEP(pairs.values), .given = FIELD(sh_step_metrics, pairs.values), .key = "texts",
     GAUGE("texts_in_step", NULL, "Texts with numbers in the newest step.")},
    {STEP(teacher.kl), IF(teacher.learns), .in = "teacher", .key = "kl", .tag = "teacher/kl",
     GAUGE("teacher_kl", NULL, "Divergence of the student from its teacher in the newest step, nats per token.")},
    {STEP(teacher.mass), IF(teacher.learns), .in = "teacher", .key = "mass", .tag = "teacher/mass",
     GAUGE("teacher_mass", NULL, "Probability that the teacher gives the words it has stored, mean of the newest step.")},
    {STEP(teacher.accuracy), IF(teacher.learns), .key = "mean_token_accuracy", .tag = "train/mean_token_accuracy",
     GAUGE("mean_token_accuracy", NULL, "Share of targets that are the likeliest word, in the newest step.")},
    {STEP(loss_scale), IF(loss_scale), .key = "loss_scale", .tag = "train/loss_scale",
     GAUGE("loss_scale", NULL, "Scale of the loss of the newest step, in float16.")},
    {STEP(head_z), IF(has_head_z), .key = "head_z_loss", .tag = "train/head_z_loss",
     GAUGE("head_z_loss", NULL, "Loss that keeps the logits of words small, in the newest step.")},
    {STEP(routers.aux), IF(routers.has_aux), .key = "aux_loss", .tag = "train/aux_loss",
     GAUGE("aux_loss", NULL, "Loss that spreads tokens over experts, in the newest step.")},
    {STEP(routers.z), IF(routers.has_z), .key = "z_loss", .tag = "train/z_loss",
     GAUGE("z_loss", NULL, "Loss that keeps the logits of routers small, in the newest step.")},
    {STEP(routers.most), IF(routers.blocks), .in = "expert_load", .key = "max", .tag = "experts/load_max",
     GAUGE("expert_load_max_ratio", "ratio", "Largest load of an expert in the newest step, over the mean of its block.")},
    {.event = SH_METRICS_STEP, IF(routers.listed), .in = "expert_load", .key = "max_by_block", .list = list_largest},
    {.event = SH_METRICS_STEP, IF(routers.listed), .in = "expert_load", .key = "entropy_by_block", .list = list_spread},
    {STEP(routers.waves), IF(routers.waves), .in = "expert_waves", .key = "max", .tag = "experts/waves_max",
     GAUGE("expert_waves", NULL, "Most waves in which rows travelled to experts of other ranks, in the newest step.")},
    {STEP(routers.mean_waves), IF(routers.waves), .in = "expert_waves", .key = "mean", .tag = "experts/waves_mean"},
    {STEP(routers.busiest), IF(routers.waves), .in = "expert_waves", .key = "busiest_rank", .tag = "experts/busiest_rank",
     GAUGE("expert_busiest_rank_ratio", "ratio", "Rows of the rank that got most in each wave, over the mean of ranks.")},
    {.event = SH_METRICS_STEP, IF(norms.rows), .in = "norms", .key = "gradient", .list = name_gradients},
    {.event = SH_METRICS_STEP, IF(norms.rows), .in = "norms", .key = "parameter", .list = name_parameters},
    {.event = SH_METRICS_STEP, IF(norms.rows), .in = "norms", .key = "update", .list = name_updates},
    {.event = SH_METRICS_STEP, IF(norms.rows), .in = "norms", .key = "largest", .list = name_largest},
    {STEP(norms.seconds), IF(norms.rows), .in = "norms", .key = "seconds"},
    {STEP(start[SH_PHASE_LAUNCH]), IF(start[SH_PHASE_STEP]), .in = "start_seconds", .key = "launch"},
    {STEP(start[SH_PHASE_MPI]), IF(start[SH_PHASE_STEP]), .in = "start_seconds", .key = "mpi"},
    {STEP(start[SH_PHASE_PLAN]), IF(start[SH_PHASE_STEP]), .in = "start_seconds", .key = "plan"},
    {STEP(start[SH_PHASE_MESH]), IF(start[SH_PHASE_STEP]), .in = "start_seconds", .key = "mesh"},
    {STEP(start[SH_PHASE_MEMORY]), IF(start[SH_PHASE_STEP]), .in = "start_seconds", .key = "memory"},
    {STEP(start[SH_PHASE_DATA]), IF(start[SH_PHASE_STEP]), .in = "start_seconds", .key = "data"},
    {STEP(start[SH_PHASE_LOAD]), IF(start[SH_PHASE_STEP]), .in = "start_seconds", .key = "load"},
    {STEP(start[SH_PHASE_STEP]), IF(start[SH_PHASE_STEP]), .in = "start_seconds", .key = "first_step"},
    {STEP(skipped), IF(skipped), .key = "skipped"},
    {STEP(pace.least), IF(pace.node), .in = "rank_seconds", .key = "min"},
    {STEP(pace.median), IF(pace.node), .in = "rank_seconds", .key = "median"},
    {STEP(pace.most), IF(pace.node), .in = "rank_seconds", .key = "max"},
    {STEP(pace.slowest), IF(pace.node), .in = "rank_seconds", .key = "slowest_rank"},
    {STEP(pace.node), IF(pace.node), .in = "rank_seconds", .key = "slowest_node"},
    {STEP(gpu.gpus), IF(gpu.gpus), .in = "gpu", .key = "told"},
    {STEP(gpu.held), IF(gpu.gpus), .in = "gpu", .key = "held", .tag = "gpu/held",
     GAUGE("gpus_held", NULL, "Ranks whose GPU clock is throttled, by power, heat or a setting.")},
    {.event = SH_METRICS_STEP, IF(gpu.gpus), .in = "gpu", .key = "held_by", .list = list_reasons},
    {STEP(gpu.watts), IF(gpu.gpus), .finite = true, .in = "gpu", .key = "power_watts", .tag = "gpu/power_watts",
     GAUGE("gpu_power_watts", "watts", "Power of a GPU, mean over the ranks.")},
    {STEP(gpu.limit_watts), IF(gpu.gpus), .finite = true, .in = "gpu", .key = "limit_watts"},
    {STEP(gpu.usual_watts), IF(gpu.gpus), .finite = true, .in = "gpu", .key = "default_limit_watts"},
    {STEP(gpu.mhz), IF(gpu.gpus), .finite = true, .in = "gpu", .key = "clock_mhz", .tag = "gpu/clock_mhz",
     GAUGE("gpu_clock_hertz", "hertz", "Clock of the slowest GPU's multiprocessors."), .base = 1e6},
    {STEP(gpu.median_mhz), IF(gpu.gpus), .finite = true, .in = "gpu", .key = "median_clock_mhz"},
    {STEP(gpu.most_mhz), IF(gpu.gpus), .finite = true, .in = "gpu", .key = "highest_clock_mhz"},
    {STEP(gpu.celsius), IF(gpu.gpus), .finite = true, .in = "gpu", .key = "celsius", .tag = "gpu/celsius",
     GAUGE("gpu_temperature_celsius", "celsius", "Temperature of the hottest GPU.")},
    {STEP(gpu.slowest), IF(gpu.node), .in = "gpu", .key = "slowest_rank"},
    {STEP(gpu.node), IF(gpu.node), .in = "gpu", .key = "slowest_node"},

    {VALIDATION(step), .key = "step"},
    {VALIDATION(loss), .key = "validation_loss", .tag = "validation/loss",
     GAUGE("validation_loss", NULL, "Newest validation loss, nats per token.")},
    {VALIDATION(tokens), .key = "tokens"},
    {VALIDATION(seconds), .key = "seconds"},
    {VALIDATION(bits_per_byte), .given = FIELD(sh_validation_metrics, bytes), .key = "bits_per_byte",
     .tag = "validation/bits_per_byte"},
    {VALIDATION(accuracy), .given = FIELD(sh_validation_metrics, labels), .key = "accuracy", .tag = "validation/accuracy"},
    {VALIDATION(f1), .given = FIELD(sh_validation_metrics, multi_label), .key = "f1", .tag = "validation/f1"},
    {VALIDATION(pairs.pairs), .given = FIELD(sh_validation_metrics, pairs.pairs), .key = "pairs"},
    {VALIDATION(pairs.n_chosen), .given = FIELD(sh_validation_metrics, pairs.singles), .in = "answers", .key = "chosen"},
    {VALIDATION(pairs.n_rejected), .given = FIELD(sh_validation_metrics, pairs.singles), .in = "answers", .key = "rejected"},
    {VALIDATION(pairs.chosen), .given = FIELD(sh_validation_metrics, pairs.n_chosen), .in = "rewards", .key = "chosen", .tag = "validation/rewards/chosen"},
    {VALIDATION(pairs.rejected), .given = FIELD(sh_validation_metrics, pairs.n_rejected), .in = "rewards", .key = "rejected", .tag = "validation/rewards/rejected"},
    {VALIDATION(pairs.margin), .given = FIELD(sh_validation_metrics, pairs.n_less), .in = "rewards", .key = "margins", .tag = "validation/rewards/margins"},
    {VALIDATION(pairs.accuracy), .given = FIELD(sh_validation_metrics, pairs.pairs), .in = "rewards", .key = "accuracies", .tag = "validation/rewards/accuracies"},
    {VALIDATION(pairs.logp_chosen), .given = FIELD(sh_validation_metrics, pairs.n_chosen), .in = "logps", .key = "chosen", .tag = "validation/logps/chosen"},
    {VALIDATION(pairs.logp_rejected), .given = FIELD(sh_validation_metrics, pairs.n_rejected), .in = "logps", .key = "rejected", .tag = "validation/logps/rejected"},
    {VALIDATION(pairs.kl), .given = FIELD(sh_validation_metrics, pairs.compared), .key = "kl", .tag = "validation/kl"},
    {VALIDATION(pairs.scored), .given = FIELD(sh_validation_metrics, pairs.scored), .key = "pairs"},
    {VALIDATION(pairs.reward), .given = FIELD(sh_validation_metrics, pairs.scored), .key = "mean_reward", .tag = "validation/mean_reward"},
    {VALIDATION(pairs.least), .given = FIELD(sh_validation_metrics, pairs.scored), .key = "min_reward", .tag = "validation/min_reward"},
    {VALIDATION(pairs.most), .given = FIELD(sh_validation_metrics, pairs.scored), .key = "max_reward", .tag = "validation/max_reward"},
    {VALIDATION(pairs.margin), .given = FIELD(sh_validation_metrics, pairs.scored), .key = "margin", .tag = "validation/margin"},
    {VALIDATION(pairs.accuracy), .given = FIELD(sh_validation_metrics, pairs.scored), .key = "accuracy", .tag = "validation/accuracy"},
    {VALIDATION(pairs.values), .given = FIELD(sh_validation_metrics, pairs.values), .key = "texts"},

    {ONE(SH_METRICS_CHECKPOINT), COUNTER("checkpoints", "Checkpoints committed.")},
    {SAVED(step), .key = "step", GAUGE("checkpoint_step", NULL, "Step of the newest checkpoint.")},
    {SAVED(path), .key = "checkpoint"},
    {SAVED(bytes), .key = "bytes"},
    {SAVED(verify), .key = "verify"},
    {SAVED(seconds), .key = "seconds", .tag = "checkpoint/seconds",
     GAUGE("checkpoint_seconds", "seconds", "Duration of the newest save.")},
    {SAVED(stall), .key = "stall_seconds", .tag = "checkpoint/stall_seconds"},
    {SAVED(gb_per_second), .key = "gb_per_second"},
    {SAVED(disk_gb_per_second), .key = "disk_gb_per_second"},
    {SAVED(disk_share), .key = "disk_share"},

    {.event = SH_METRICS_NOT_SAVED, .key = "event", .fixed = "checkpoint_failed"},
    {NOW(SH_METRICS_NOT_SAVED), .key = "time"},
    {NOT_SAVED(step), .key = "step"},
    {NOT_SAVED(failures), .key = "failures"},
    {NOT_SAVED(reason), .key = "reason"},
    {ONE(SH_METRICS_NOT_SAVED), COUNTER("failed_checkpoints", "Saves that failed.")},

    {ROLLBACK(to), .key = "step"},
    {ROLLBACK(from), .key = "rollback_from"},
    {ROLLBACK(first), .key = "first_sample_left_out"},
    {ROLLBACK(last), .key = "last_sample_left_out"},
    {ONE(SH_METRICS_ROLLBACK), COUNTER("rollbacks", "Times the run went back to a checkpoint.")},

    {.event = SH_METRICS_START, .key = "event", .fixed = "start"},
    {NOW(SH_METRICS_START), .key = "time"},
    {START(step), .key = "step"},
    {START(resumed_from), .key = "resumed_from"},
    {START(parameters_from), .key = "parameters_from"},
    {START(seconds_down), .given = FIELD(sh_start_metrics, seconds_down), .key = "seconds_down"},
    {START(recoveries), .given = FIELD(sh_start_metrics, recoveries), .key = "recoveries",
     COUNTER("recoveries", "Times the run went on from memory since it began, by any process.")},
    {START(lost_nodes), .given = FIELD(sh_start_metrics, n_lost_nodes), .key = "lost_nodes"},
    {START(ranks), .key = "ranks"},
    {START(replicate), .in = "mesh", .key = "replicate"},
    {START(shard), .in = "mesh", .key = "shard"},
    {START(nodes), .key = "nodes"},
    {START(threads), .key = "threads"},
    {START(device), .key = "device"},
    {START(cores), .key = "cores"},
    {.event = SH_METRICS_START, .given = FIELD(sh_start_metrics, stages), .key = "stage_arena_bytes", .list = list_arenas},
    {START(parameters), .key = "parameters"},
    {.event = SH_METRICS_START, .key = "hosts", .list = list_hosts},
    {.event = SH_METRICS_START, .key = "version", .fixed = PACKAGE_VERSION},
    {.event = SH_METRICS_START, .key = "built_with", .fixed = SHERD_BUILT_WITH},
    {START(config), .key = "config"},
    {.event = SH_METRICS_START, .key = "flops_formula",
     .fixed = "6*weights_in_products + 6*L*H*D*T (causal) or 12*L*H*D*T (full)"},
    {START(flops_causal), .key = "flops_per_token_causal"},
    {START(flops_full), .key = "flops_per_token_full"},
    {START(peak_tflops), .given = FIELD(sh_start_metrics, peak_tflops), .key = "peak_tflops"},
};
/* clang-format on */
const int sh_metric_rows = sizeof sh_metric_table / sizeof *sh_metric_table;

static const char *text_of(struct sh_metric_field f, const void *event)
{
    return *(const char *const *)((const char *)event + f.offset);
}

static int64_t whole_of(struct sh_metric_field f, const void *event)
{
    return *(const int64_t *)((const char *)event + f.offset);
}

static double number(struct sh_metric_field f, const void *event)
{
    const void *at = (const char *)event + f.offset;

    switch (f.type) {
    case SH_METRIC_INT: return *(const int *)at;
    case SH_METRIC_WHOLE: return (double)whole_of(f, event);
    case SH_METRIC_REAL: return *(const double *)at;
    case SH_METRIC_FLAG: return *(const bool *)at;
    case SH_METRIC_TEXT: return text_of(f, event) != NULL;
    case SH_METRIC_ONE: return 1;
    case SH_METRIC_NOW: return (double)time(NULL);
    default: return 0;
    }
}

double sh_metric_number(const struct sh_metric *m, const void *event)
{
    return number(m->value, event);
}

bool sh_metric_is_given(const struct sh_metric *m, const void *event)
{
    return (m->given.type == SH_METRIC_NONE || number(m->given, event) > 0) &&
           (!m->finite || isfinite(number(m->value, event)));
}

/* UTC, as in ISO 8601: events are looked up in logs of other programs, on other hosts. */
static json_t *now(void)
{
    char text[32];
    time_t seconds = time(NULL);
    struct tm utc;

    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    return json_string(text);
}

/* JSON has no NaN or Inf: such a number is written as null. */
json_t *sh_metric_json(const struct sh_metric *m, const void *event)
{
    const char *text = m->value.type == SH_METRIC_TEXT ? text_of(m->value, event) : m->fixed;
    double v = number(m->value, event);

    if (m->list)
        return m->list(event);
    if (text)
        return words(text);
    switch (m->value.type) {
    case SH_METRIC_INT: return json_integer((json_int_t)v);
    case SH_METRIC_WHOLE: return json_integer((json_int_t)whole_of(m->value, event));
    case SH_METRIC_REAL: return isfinite(v) ? json_real(v) : json_null();
    case SH_METRIC_NOW: return now();
    default: return json_null();
    }
}
