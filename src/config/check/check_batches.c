/* The sequences of a step, and steps of several sizes (training.batch_schedule). */
#include "src/config/check/check.h"

#include "src/config/read/batches.h"
#include "src/config/read/place.h"

/* The largest part of `whole` that is not above `most`. */
static int largest_part(int whole, int most)
{
    while (whole % most != 0)
        most--;
    return most;
}

/* Division by the number of ranks is not checked here: the number is not known yet. */
sh_rc sh_config_check_batch(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    int local = c->training.local_batch_size, global = c->training.global_batch_size;
    if (c->training.seq_len > c->model.max_seq_len)
        return sh_config_refuse(state, "training.seq_len",
                                "%d is longer than model.max_seq_len; give --training.seq_len=%d, or less",
                                c->training.seq_len, c->model.max_seq_len);
    /* -1 stands for the default; 0 would make steps without data. */
    if (global == 0)
        return sh_config_refuse(state, "training.global_batch_size",
                                "0; give -1 for local_batch_size * ranks, or a number");
    if (global > 0 && global % local != 0) {
        char place[SH_CONFIG_PATH_MAX];
        sh_config_place_text(sh_config_place_of(state, "training.local_batch_size"), place);
        return sh_config_refuse(state, "training.global_batch_size",
                                "%d is not a multiple of training.local_batch_size %d, given %s; give "
                                "training.local_batch_size=%d, or training.global_batch_size=%d",
                                global, local, place, largest_part(global, local), (global / local + 1) * local);
    }
    return SH_OK;
}

/* What plans one step for all. */
static sh_rc check_others(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;

    if (c->parallelism.pipeline_parallel_degree > 1)
        return sh_config_refuse(state, "training.batch_schedule",
                                "stages have one list of all micro-steps of a step; leave out "
                                "parallelism.pipeline_parallel_degree=%d, or keep one training.global_batch_size",
                                c->parallelism.pipeline_parallel_degree);
    if (c->offload.gradients != SH_OFFLOAD_NONE)
        return sh_config_refuse(state, "training.batch_schedule",
                                "gradients that live elsewhere are squared in the one last micro-step; give "
                                "offload.gradients=none");
    return SH_OK;
}

/* The largest phase is training.global_batch_size, which src/config/preset.c has derived. */
sh_rc sh_config_check_batches(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    struct sh_batches b;
    sh_rc rc = sh_batches_read(c->training.batch_schedule, &b);

    if (rc != SH_OK)
        return sh_config_refuse(state, "training.batch_schedule", "%s", sh_error_text());
    if (b.n == 0)
        return SH_OK;
    for (int i = 0; i < b.n; i++)
        if (b.at[i].sequences % c->training.local_batch_size)
            return sh_config_refuse(state, "training.batch_schedule",
                                    "%lld sequences from step %lld on are not a multiple of "
                                    "training.local_batch_size %d",
                                    (long long)b.at[i].sequences, (long long)b.at[i].step,
                                    c->training.local_batch_size);
    if (c->training.global_batch_size != sh_batches_most(&b))
        return sh_config_refuse(state, "training.batch_schedule",
                                "its largest step has %lld sequences, but training.global_batch_size=%d; leave one of "
                                "them out, as --training.batch_schedule= or --training.global_batch_size=-1 does",
                                (long long)sh_batches_most(&b), c->training.global_batch_size);
    return check_others(state);
}
