#include "src/run/stored.h"

#include "src/run/request.h"

/* Keys, or sections of them, of the machine. Kernels, deterministic or measured or not, and sizes of chunks and
 * micro-batches change roundings, as another machine does; what is rounded to (mixed_precision_...) and how sums are ordered
 * (reproducible) is asked of every one. */
static const char *const machine[] = {
    "job.dump_folder", "job.stop_before_limit_seconds", "training.local_batch_size", "training.threads",
    "training.device", "training.kernels", "training.deterministic", "training.measure_products",
    "training.loss_chunk_rows", "parallelism", "mesh", "activation_checkpoint", "checkpoint", "metrics", "profiling",
    "fault", "comm", "memory", "debug.sync_ops", NULL};

/* Sequences of a step; -1, which follows the ranks, only where the number is larger than the key may be. */
static int global_batch(const struct sh_config *cfg, int world)
{
    enum { LARGEST = 1 << 24 };
    int64_t n = sh_request_global_batch(cfg, world);

    return n <= LARGEST ? (int)n : -1;
}

static int local_batch(int global, int most)
{
    int n = most;

    while (global > 0 && global % n)
        n--;
    return n;
}

sh_rc sh_stored_config(const struct sh_config *cfg, int world, char **text)
{
    static const char *const model[] = {"model.name=debug"}; /* any: only the other sections are taken */
    struct sh_config defaults, stored = *cfg;

    SH_TRY(sh_config_load(NULL, 1, model, &defaults));
    stored.training.global_batch_size = global_batch(cfg, world);
    sh_config_take(&stored, &defaults, machine);
    stored.checkpoint.verify = cfg->checkpoint.verify; /* of the file: it says so in its notes too */
    stored.training.local_batch_size =
        local_batch(stored.training.global_batch_size, defaults.training.local_batch_size);
    return sh_config_print(&stored, text);
}

void sh_stored_diff(const struct sh_config *stored, const struct sh_config *cfg, int world)
{
    static const char *const skip[] = {"job", NULL};
    struct sh_config then = *stored, now = *cfg;

    now.training.global_batch_size = global_batch(cfg, world);
    if (then.training.global_batch_size < 0) /* of a version that did not store the number */
        then.training.global_batch_size = now.training.global_batch_size;
    sh_config_take(&then, &now, machine);
    sh_config_diff(&then, &now, skip, stderr);
}
