#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/model/model.h"
#include "src/run/feed.h"
#include "src/run/reference.h"
#include "src/run/run.h"
#include "src/run/tree.h"

#include <stdlib.h>

/* Read sequences [first, first + n) of the set; those past its end are masked. */
static sh_rc read_batch(struct sh_feed *f, int64_t first, int64_t n, int64_t end, int seq_len, int64_t *unmasked)
{
    int64_t real = first >= end ? 0 : end - first < n ? end - first : n, row;

    *unmasked = 0;
    if (real)
        SH_TRY(sh_feed_read(f, first, real, unmasked));
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

/* All numbers of the port. */
static int64_t all_held(const struct sh_run *r)
{
    return r->p->tensors[r->p->port[SH_PORT_LOSS]].dim[0];
}

/* Numbers that a micro-step leaves: those of pairs, or some for each leaf of this rank's part of the sequences. If a tree
 * joins micro-steps that are one list, each has its own. */
static int64_t held_of(const struct sh_run *r)
{
    return all_held(r) / (r->p->tree_sums ? r->p->unrolled : 1);
}

/* Numbers of a leaf. */
static int64_t numbers_of(const struct sh_run *r)
{
    return sh_model_loss_numbers(&r->build.batch);
}

static double *room_for_losses(const struct sh_run *r)
{
    int64_t n = all_held(r) > SH_PAIR_ALL ? all_held(r) : SH_PAIR_ALL;

    return sh_calloc((size_t)n, sizeof(double));
}

/* The first numbers of the port. */
static void take_numbers(const struct sh_run *r, const double *held, double numbers[SH_PAIR_ALL])
{
    for (int i = 0; i < SH_PAIR_ALL; i++)
        numbers[i] = i < numbers_of(r) ? held[i] : 0;
}

void sh_run_own_losses(struct sh_run *r, int step, double numbers[SH_PAIR_ALL])
{
    double *all = room_for_losses(r), *held = all + step * held_of(r);

    sh_exec_get(r->exec, SH_PORT_LOSS, all);
    for (int64_t i = 0; i < SH_PAIR_ALL; i++) {
        struct sh_tree sum = {0};

        for (int64_t at = i; at < held_of(r) && i < numbers_of(r); at += numbers_of(r))
            sh_tree_add(&sum, held[at]);
        numbers[i] = i < numbers_of(r) ? sh_tree_total(&sum) : 0;
    }
    free(all);
}

void sh_run_put_losses(struct sh_run *r, const double numbers[SH_PAIR_ALL])
{
    double *held = room_for_losses(r);

    memcpy(held, numbers, SH_PAIR_ALL * sizeof *numbers);
    sh_exec_put(r->exec, SH_PORT_LOSS, held);
    free(held);
}

void sh_run_no_loss(struct sh_run *r)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;
    const double none[SH_PAIR_ALL] = {0};

    if (sh_group_index(m, m->pipeline) < sh_group_size(m, m->pipeline) - 1)
        sh_run_put_losses(r, none);
}

void sh_run_losses(struct sh_run *r, double numbers[SH_PAIR_ALL])
{
    double *held = room_for_losses(r);

    sh_exec_get(r->exec, SH_PORT_LOSS, held);
    take_numbers(r, held, numbers);
    free(held);
}

/* The loss of one batch on each rank, summed over the ranks. These batches are neighbours, so on 2^k ranks the sum is a
 * branch of one tree over all batches, whatever k is. */
static void run_batch(struct sh_run *r, struct sh_feed *f, struct sh_tree losses[SH_PAIR_ALL])
{
    double numbers[SH_PAIR_ALL] = {0};

    sh_feed_put(r, f, 0);
    sh_run_no_loss(r);
    sh_exec_run(r->exec, SH_SECTION_EVAL);
    sh_reference_take(f->reference, r, 1);
    sh_run_own_losses(r, 0, numbers);
    if (all_held(r) > 1)
        sh_run_put_losses(r, numbers);
    sh_exec_run(r->exec, SH_SECTION_LOSS);
    sh_run_losses(r, numbers);
    for (int i = 0; i < SH_PAIR_ALL; i++)
        sh_tree_add(&losses[i], numbers[i]);
}

/* Pairs, or single answers, of sequences [first, first + n) of the set, of which those past its end do not count. */
static int64_t answers_of(const struct sh_feed *f, int64_t first, int64_t n, int64_t end)
{
    int64_t real = first >= end ? 0 : end - first < n ? end - first : n;

    return f->reference ? sh_data_count_answers(f->data, first, real) : 0;
}

/* Whether the model tells labels apart, of which a text has one; a single one of a model is a value. */
static bool counts_right(const struct sh_feed *f)
{
    return f->labels > 1 && !f->wanted;
}

/* Whether this is the one of the ranks with the same sequences that takes what the head makes: in the last stage. */
static bool takes_results(const struct sh_run *r)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;
    sh_group same = sh_group_others(m, m->data) & ~m->pipeline;

    return sh_group_index(m, same) == 0 && sh_group_index(m, m->pipeline) + 1 == sh_group_size(m, m->pipeline);
}

/* How many of the targets that count are the model's likeliest label, the first of those listed for a place; right: as many
 * numbers as the port has. */
static int64_t count_right(const struct sh_run *r, const struct sh_feed *f, int32_t *right)
{
    int64_t n = 0, listed = r->build.batch.top_k;

    if (!right || !takes_results(r))
        return 0;
    sh_feed_take(r, SH_PORT_TOP_WORDS, right);
    for (int64_t i = 0; i < f->sequences * r->cfg.training.seq_len; i++)
        n += f->targets[i] >= 0 && f->targets[i] == right[i * listed];
    return n;
}

/* Bytes of the text of the targets that count. */
static int64_t text_bytes(const struct sh_run *r, const struct sh_feed *f, int64_t n)
{
    int64_t bytes = 0;

    for (int64_t i = 0; r->word_bytes && !f->labels && i < n; i++)
        if (f->targets[i] >= 0)
            bytes += r->word_bytes[f->targets[i]];
    return bytes;
}

/* Collective. A failure of the question itself cannot be agreed on: the others wait in it. */
static bool stops(const struct sh_eval_watch *watch)
{
    bool stop = false;
    sh_rc rc = watch && watch->ask ? watch->ask(watch->arg, &stop) : SH_OK;

    if (rc != SH_OK)
        sh_stop(rc);
    return stop;
}

/* Give away what came of a batch. As in read_batch(), a failure ends the job. */
static void give(const struct sh_eval_watch *watch, const struct sh_run *r, int64_t first, int64_t n, int64_t end)
{
    int64_t real = first >= end || !takes_results(r) ? 0 : end - first < n ? end - first : n;
    sh_rc rc = watch && watch->take ? watch->take(watch->arg, first, real) : SH_OK;

    if (rc != SH_OK)
        sh_stop(rc);
}

/* Collective. */
static sh_rc share_extremes(struct sh_reference *ref)
{
    double ends[2];

    if (!sh_reference_scores(ref))
        return SH_OK;
    ends[0] = -ref->least;
    ends[1] = ref->most;
    SH_TRY(sh_mesh_max(ends, 2));
    ref->least = -ends[0];
    ref->most = ends[1];
    return SH_OK;
}

/* What the loss has counted if a text has several labels: right are the texts of which all are. */
static void take_labels(const struct sh_feed *f, const double sums[SH_PAIR_ALL], struct sh_eval_result *out)
{
    if (!f->wanted)
        return;
    out->labels = out->tokens;
    out->right = (int64_t)sums[SH_HEAD_RIGHT];
    out->multi_label = true;
    out->f1 = sums[SH_HEAD_POSITIVES] > 0 ? 2 * sums[SH_HEAD_TRUE_POSITIVES] / sums[SH_HEAD_POSITIVES] : 0;
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
    double sums[SH_PAIR_ALL];
    long long seen[4] = {0}; /* tokens, bytes of their text, pairs or answers, and labels that are right */
    int32_t *right = NULL;
    struct sh_tree losses[SH_PAIR_ALL] = {0};

    if (!sequences || sequences > all)
        sequences = all;
    sh_reference_forget(f->reference);
    if (counts_right(f))
        right = sh_calloc((size_t)(each * r->cfg.training.seq_len * r->build.batch.top_k), sizeof *right);
    /* Every rank runs as many passes as all others, even when its own batch lies past the end: the program has
     * collectives. */
    for (int64_t first = 0; first < sequences; first += pass) {
        if (stops(watch)) {
            *out = (struct sh_eval_result){.sequences = first, .seconds = sh_seconds_since(begin), .cut = true};
            free(right);
            return SH_OK;
        }
        sh_rc rc = read_batch(f, first + own, each, sequences, r->cfg.training.seq_len, &unmasked);

        /* The others already wait in those collectives, so an error here cannot be agreed on; it ends the job. */
        if (rc != SH_OK)
            sh_stop(rc);
        seen[0] += sh_mesh_speaks(m) ? unmasked : 0;
        seen[1] += sh_mesh_speaks(m) ? text_bytes(r, f, each * r->cfg.training.seq_len) : 0;
        seen[2] += sh_mesh_speaks(m) ? answers_of(f, first + own, each, sequences) : 0;
        run_batch(r, f, losses);
        seen[3] += count_right(r, f, right);
        give(watch, r, first + own, each, sequences);
    }
    /* A sum over all ranks is right because sh_mesh_speaks() lets only one of those with the same sequences add. */
    free(right);
    SH_TRY(sh_mesh_sum_i64(seen, 4));
    SH_TRY(share_extremes(f->reference));
    if (!seen[0])
        return sh_fail(SH_E_DATA,
                       "none of the %lld sequences has a target that counts; take more of them, or check the masks",
                       (long long)sequences);
    for (int i = 0; i < SH_PAIR_ALL; i++)
        sums[i] = sh_tree_total(&losses[i]);
    *out = (struct sh_eval_result){.loss = sums[0] / (double)(f->reference ? seen[2] : seen[0]),
                                   .sequences = sequences,
                                   .tokens = seen[0],
                                   .bytes = seen[1],
                                   .labels = counts_right(f) ? seen[0] : 0,
                                   .right = seen[3],
                                   .seconds = sh_seconds_since(begin)};
    take_labels(f, sums, out);
    if (f->reference)
        out->pairs = sh_reference_metrics(f->reference, sums, seen[2]);
    return SH_OK;
}
