#include "src/base/time.h"
#include "src/run/feed.h"
#include "src/run/run.h"
#include "src/run/tree.h"

/* Read sequences [first, first + n) of the set; those past its end are masked. */
static sh_rc read_batch(struct sh_feed *f, int64_t first, int64_t n, int64_t end, int seq_len, int64_t *unmasked)
{
    int64_t real = first >= end ? 0 : end - first < n ? end - first : n, row;

    *unmasked = 0;
    if (real)
        SH_TRY(sh_data_read(f->data, first, real, f->tokens, f->targets, f->docs, unmasked));
    /* The shapes are fixed in the program, so the rows past the end still run. A target of -1 adds neither loss nor
     * tokens. */
    for (row = real * seq_len; row < n * seq_len; row++) {
        f->tokens[row] = 0;
        f->targets[row] = -1;
        if (f->docs)
            f->docs[row] = 0;
    }
    return SH_OK;
}

/* Sums of losses that a section leaves: one, or one for each leaf of this rank's part of the sequences. */
static int64_t losses_of(const struct sh_run *r)
{
    return r->p->tensors[r->p->port[SH_PORT_LOSS]].dim[0];
}

double sh_run_own_loss(struct sh_run *r)
{
    double loss[SH_ROW_LEAVES_MAX];
    struct sh_tree sum = {0};

    sh_exec_get(r->exec, SH_PORT_LOSS, loss);
    for (int64_t i = 0; i < losses_of(r); i++)
        sh_tree_add(&sum, loss[i]);
    return sh_tree_total(&sum);
}

void sh_run_put_loss(struct sh_run *r, double loss)
{
    sh_exec_put(r->exec, SH_PORT_LOSS, (double[SH_ROW_LEAVES_MAX]){loss});
}

double sh_run_loss(struct sh_run *r)
{
    double loss[SH_ROW_LEAVES_MAX];

    sh_exec_get(r->exec, SH_PORT_LOSS, loss);
    return loss[0];
}

/* The loss of one batch on each rank, summed over the ranks. These batches are neighbours, so on 2^k ranks the sum is a
 * branch of one tree over all batches, whatever k is. */
static double run_batch(struct sh_run *r, struct sh_feed *f)
{
    sh_feed_put(r, f);
    sh_exec_run(r->exec, SH_SECTION_EVAL);
    if (losses_of(r) > 1)
        sh_run_put_loss(r, sh_run_own_loss(r));
    sh_exec_run(r->exec, SH_SECTION_LOSS);
    return sh_run_loss(r);
}

/* Bytes of the text of the targets that count. */
static int64_t text_bytes(const struct sh_run *r, const struct sh_feed *f, int64_t n)
{
    int64_t bytes = 0;

    for (int64_t i = 0; r->word_bytes && i < n; i++)
        if (f->targets[i] >= 0)
            bytes += r->word_bytes[f->targets[i]];
    return bytes;
}

/* Collective. A failure of the question itself cannot be agreed on: the others wait in it. */
static bool stops(const struct sh_eval_watch *watch)
{
    bool stop = false;
    sh_rc rc = watch ? watch->ask(watch->arg, &stop) : SH_OK;

    if (rc != SH_OK)
        sh_stop(rc);
    return stop;
}

/* Evaluate the first `sequences` of a set, or all with 0. All ranks call it. The ranks of the data group take
 * neighbouring batches: with 4 ranks of 2 sequences, rank 1 reads 2 and 3, then 10 and 11. */
sh_rc sh_run_evaluate(struct sh_run *r, struct sh_feed *f, int64_t sequences, const struct sh_eval_watch *watch,
                      struct sh_eval_result *out)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;
    int64_t each = r->cfg.training.local_batch_size, pass = each * sh_group_size(m, m->data);
    int64_t own = each * sh_group_index(m, m->data), all = sh_data_samples(f->data);
    int64_t begin = sh_now_ns(), unmasked;
    long long seen[2] = {0}; /* tokens, and bytes of their text */
    struct sh_tree losses = {0};

    if (!sequences || sequences > all)
        sequences = all;
    /* Every rank runs as many passes as all others, even when its own batch lies past the end: the program has
     * collectives. */
    for (int64_t first = 0; first < sequences; first += pass) {
        if (stops(watch)) {
            *out = (struct sh_eval_result){.sequences = first, .seconds = sh_seconds_since(begin), .cut = true};
            return SH_OK;
        }
        sh_rc rc = read_batch(f, first + own, each, sequences, r->cfg.training.seq_len, &unmasked);

        /* The others already wait in those collectives, so an error here cannot be agreed on; it ends the job. */
        if (rc != SH_OK)
            sh_stop(rc);
        seen[0] += sh_mesh_speaks(m) ? unmasked : 0;
        seen[1] += sh_mesh_speaks(m) ? text_bytes(r, f, each * r->cfg.training.seq_len) : 0;
        sh_tree_add(&losses, run_batch(r, f));
    }
    /* A sum over all ranks is right because sh_mesh_speaks() lets only one of those with the same sequences add. */
    SH_TRY(sh_mesh_sum_i64(seen, 2));
    if (!seen[0])
        return sh_fail(SH_E_DATA,
                       "none of the %lld sequences has a target that counts; take more of them, or check the masks",
                       (long long)sequences);
    *out = (struct sh_eval_result){.loss = sh_tree_total(&losses) / (double)seen[0],
                                   .sequences = sequences,
                                   .tokens = seen[0],
                                   .bytes = seen[1],
                                   .seconds = sh_seconds_since(begin)};
    return SH_OK;
}
