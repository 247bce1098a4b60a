#include "src/run/save/stored.h"

#include "src/plan/request.h"

/* Sequences of a step; -1, which follows the number of ranks, only if the number is larger than the key allows. */
static int global_batch(const struct sh_config *cfg, int world)
{
    enum { LARGEST = 1 << 24 };
    int64_t n = sh_request_global_batch(cfg, world);

    return n <= LARGEST ? (int)n : -1;
}

static bool divides_all(const struct sh_batches *b, int n)
{
    int i = 0;

    while (i < b->n && b->at[i].sequences % n == 0)
        i++;
    return i == b->n;
}

/* The largest batch of a micro-step, up to `most`, that divides the sequences of each step. A stored configuration is
 * evaluated on any machine, where the run's own micro-step may not fit. */
static int local_batch(const struct sh_config *cfg, int world, int most)
{
    struct sh_batches steps = sh_request_batches(cfg, world);
    int n = most;

    while (!divides_all(&steps, n))
        n--;
    return n;
}

/* The configuration as a checkpoint stores it: without what belongs to the machine, so that the bytes of a file do not
 * depend on the mesh. The caller frees *text. */
sh_rc sh_stored_config(const struct sh_config *cfg, int world, char **text)
{
    static const char *const model[] = {"model.name=debug"}; /* any model: only the other sections are taken */
    struct sh_config defaults, stored = *cfg;

    SH_TRY(sh_config_load(NULL, 1, model, &defaults));
    stored.training.global_batch_size = global_batch(cfg, world);
    sh_config_take(&stored, &defaults, SH_OF(MACHINE));
    stored.training.local_batch_size = local_batch(cfg, world, defaults.training.local_batch_size);
    return sh_config_print(&stored, text);
}

/* Print each key whose value differs, except those that belong to the machine. Both sides first get the same form of
 * global_batch_size. */
void sh_stored_diff(const struct sh_config *stored, const struct sh_config *cfg, int world)
{
    struct sh_config then = *stored, now = *cfg;

    now.training.global_batch_size = global_batch(cfg, world);
    if (then.training.global_batch_size < 0) /* from a version that did not store the number */
        then.training.global_batch_size = now.training.global_batch_size;
    sh_config_diff(&then, &now, SH_OF(MODEL) | SH_OF(RUN), stderr);
}
