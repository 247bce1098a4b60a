#include "src/run/watch/changes.h"

#include <stdio.h>
#include <string.h>

/* The learning-rate schedule of the configuration. Without lr_scheduler.total_steps it ends with the training, so that
 * a longer training.steps also stretches the decay. */
struct sh_lr sh_changes_lr(const struct sh_config *cfg)
{
    return (struct sh_lr){.peak = cfg->optimizer.lr,
                          .min_factor = cfg->lr_scheduler.min_lr_factor,
                          .warmup = cfg->lr_scheduler.warmup_steps,
                          .decay = cfg->lr_scheduler.decay_type,
                          .total = cfg->lr_scheduler.total_steps ? cfg->lr_scheduler.total_steps : cfg->training.steps,
                          .decay_ratio = cfg->lr_scheduler.decay_ratio,
                          .shape = cfg->lr_scheduler.decay_shape,
                          .power = cfg->lr_scheduler.power};
}

/* Compare schedules in everything but their end. The decay ratio counts only for the one decay that has it. */
static bool same_shape(const struct sh_lr *a, const struct sh_lr *b)
{
    return a->peak == b->peak && a->min_factor == b->min_factor && a->warmup == b->warmup && a->decay == b->decay &&
           (!sh_cfg_decay_has_tail((int)a->decay) || (a->decay_ratio == b->decay_ratio && a->shape == b->shape)) &&
           ((a->decay != SH_DECAY_POWER && a->decay != SH_DECAY_POWER_TAIL) || a->power == b->power);
}

static bool is_endless(enum sh_cfg_decay decay)
{
    return decay == SH_DECAY_CONSTANT || decay == SH_DECAY_POWER;
}

/* Say why the learning rate jumps at a resume. Such a rate has no end that could move, so another total then
 * changes nothing. "keeps it" is offered only if the end is all that differs: no single key would restore a changed
 * shape. */
const char *sh_changes_schedule(const struct sh_config *before, const struct sh_config *now, int64_t step,
                                char out[SH_CHANGES_TEXT])
{
    struct sh_lr a = sh_changes_lr(before), b = sh_changes_lr(now);
    bool shape = same_shape(&a, &b), end = a.total == b.total || (shape && is_endless(b.decay));
    char ends[96] = "changed", keeps[64] = "";

    if (shape && end)
        return NULL;
    if (!end)
        snprintf(ends, sizeof ends, "now ends at step %lld instead of %lld", (long long)b.total, (long long)a.total);
    if (shape)
        snprintf(keeps, sizeof keeps, "; --lr_scheduler.total_steps=%lld keeps it", (long long)a.total);
    snprintf(out, SH_CHANGES_TEXT, "lr schedule %s: lr at step %lld was %.2e, is %.2e%s", ends, (long long)step,
             sh_lr_at(&a, step), sh_lr_at(&b, step), keeps);
    return out;
}

/* The sample order is a function of the number of samples done, not of the file. After a change the run therefore
 * continues at the same number: sample 1030 of a set of 1000 is sequence 30 of epoch 2. */
const char *sh_changes_data(const struct sh_config *before, const struct sh_config *now, int64_t samples,
                            int64_t windows, char out[SH_CHANGES_TEXT])
{
    const bool same = strcmp(before->training.dataset_path, now->training.dataset_path) == 0 &&
                      strcmp(before->data.mix, now->data.mix) == 0 && before->data.packing == now->data.packing &&
                      before->data.excess_length_strategy == now->data.excess_length_strategy &&
                      before->training.seq_len == now->training.seq_len &&
                      before->data.token_type == now->data.token_type && before->data.shuffle == now->data.shuffle &&
                      before->debug.seed == now->debug.seed;

    if (same)
        return NULL;
    snprintf(out, SH_CHANGES_TEXT,
             "data changed: the sample order does not restart; it continues at sequence %lld of %lld in epoch %lld of "
             "the new data",
             (long long)(samples % windows), (long long)windows, (long long)(samples / windows + 1));
    return out;
}

const char *sh_changes_files(const char *then, const char *now, int64_t samples, int64_t windows,
                             char out[SH_CHANGES_TEXT])
{
    if (!then || strcmp(then, now) == 0)
        return NULL;
    snprintf(out, SH_CHANGES_TEXT,
             "data changed under the same name: %s -> %s; the sample order does not restart; it continues at sequence "
             "%lld of %lld in epoch %lld of the new data",
             then, now, (long long)(samples % windows), (long long)windows, (long long)(samples / windows + 1));
    return out;
}

/* Only the change to float32 loses no bits. */
const char *sh_changes_states(const struct sh_config *before, const struct sh_config *now, char out[SH_CHANGES_TEXT])
{
    static const char *const names[] = {
        [SH_PRECISION_FLOAT32] = "float32", [SH_PRECISION_BFLOAT16] = "bfloat16", [SH_PRECISION_INT8] = "int8"};
    const int was = before->optimizer.state_dtype, is = now->optimizer.state_dtype;

    if (was == is)
        return NULL;
    if (is == SH_PRECISION_FLOAT32)
        snprintf(
            out, SH_CHANGES_TEXT,
            "optimizer.state_dtype changed: the optimizer states are now in float32, with the values that they had "
            "in %s",
            names[was]);
    else
        snprintf(
            out, SH_CHANGES_TEXT,
            "optimizer.state_dtype changed: the optimizer states are now in %s, rounded to nearest on loading, and "
            "stochastically in each update",
            names[is]);
    return out;
}
