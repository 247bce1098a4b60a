/* The sequences of a step, steps of several sizes (training.batch_schedule), and of several lengths (data.length_schedule). */
#include "src/config/check/check.h"

#include "src/config/family.h"
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

/* What has documents of its own, or counts positions through whole sequences. */
static sh_rc check_other_documents(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    const struct {
        bool there;
        const char *text;
    } rows[] = {
        {sh_family_of(c->model.family)->learned_positions,
         "this model.family has a vector for each position, and only those of the first tokens would be trained; leave it out"},
        {c->data.document_mask, "data.document_mask has documents already; leave one of them out"},
        {c->model.num_labels, "model.num_labels learns from whole texts, which it would cut; leave it out"},
        {c->data.packing == SH_PACKING_BFD || c->data.packing == SH_PACKING_NONE,
         "sequences are packed from documents, which it would cut; give data.packing=concat"},
        {c->objective.name != SH_OBJECTIVE_LM && c->objective.name != SH_OBJECTIVE_PLUGIN,
         "objective.name needs what other runs made of whole sequences or answers; leave it out"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].there)
            return sh_config_refuse(state, "data.length_schedule", "%s", rows[i].text);
    return SH_OK;
}

sh_rc sh_config_check_lengths(struct sh_config_state *state)
{
    const struct sh_config *c = &state->cfg;
    struct sh_batches b;
    sh_rc rc = sh_batches_read(c->data.length_schedule, &b);

    if (rc != SH_OK)
        return sh_config_refuse(state, "data.length_schedule", "%s", sh_error_text());
    for (int i = 0; i < b.n; i++)
        if (c->training.seq_len % b.at[i].sequences)
            return sh_config_refuse(state, "data.length_schedule",
                                    "%lld tokens from step %lld on do not divide training.seq_len=%d",
                                    (long long)b.at[i].sequences, (long long)b.at[i].step, c->training.seq_len);
    return b.n ? check_other_documents(state) : SH_OK;
}
