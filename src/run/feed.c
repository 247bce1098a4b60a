#include "io/data/mix.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/model/model.h"
#include "src/model/objective.h"
#include "src/run/feed.h"
#include "src/run/reference.h"
#include "src/run/run.h"
#include "src/run/teacher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum sh_data_answers answers(const struct sh_config *cfg)
{
    int takes = sh_cfg_loss_takes(sh_config_loss(cfg));

    if (cfg->objective.name == SH_OBJECTIVE_MULTI_LABEL)
        return SH_DATA_MULTI_LABEL;
    if (sh_objective_named(cfg->objective.name)->counts != SH_COUNTS_ANSWERS)
        return SH_DATA_NO_ANSWERS;
    if (takes & SH_TAKES_NUMBERS)
        return takes & SH_TAKES_LABELS ? SH_DATA_NUMBERED : SH_DATA_SCORED;
    if (takes & SH_TAKES_MISMATCHED)
        return SH_DATA_MISMATCHED;
    return takes & SH_TAKES_LABELS ? SH_DATA_LABELLED : SH_DATA_PAIRS;
}

/* One place that turns keys into options, shared by training, validation and `sherd plan`. */
sh_rc sh_feed_options(const struct sh_config *cfg, const char *path, bool shuffle, struct sh_data_options *opt)
{
    *opt =
        (struct sh_data_options){.path = path,
                                 .seq_len = cfg->training.seq_len,
                                 .vocab_size = cfg->model.vocab_size,
                                 .type = cfg->data.token_type,
                                 .masks = cfg->data.target_mask,
                                 .weights = path == cfg->training.dataset_path ? cfg->data.token_weight : SH_MASK_OFF,
                                 .shuffle = shuffle,
                                 .seed = cfg->debug.seed,
                                 .document_separator = cfg->data.document_separator,
                                 .packing = cfg->data.packing,
                                 .excess = cfg->data.excess_length_strategy,
                                 .answers = answers(cfg),
                                 .labels = cfg->model.num_labels,
                                 .mix = path[0] ? NULL : cfg->data.mix};
    /* Token files do not record a tokenizer, so its file need not be read for them. */
    if (path[0] && sh_data_packing_of(path) == SH_PACKING_CONCAT)
        return SH_OK;
    return sh_run_tokenizer_hash(cfg, &opt->tokenizer);
}

/* Decide by the first set of a mix, because all others must be of the same kind. */
static sh_rc settle_by(struct sh_config *cfg, const char *path, const char *first)
{
    if (cfg->data.packing == SH_PACKING_AUTO && answers(cfg))
        cfg->data.packing = SH_PACKING_BFD;
    if (cfg->data.packing == SH_PACKING_AUTO)
        cfg->data.packing = (int)sh_data_packing_of(first);
    if (path == cfg->training.dataset_path && cfg->data.token_weight == SH_MASK_AUTO)
        cfg->data.token_weight = sh_data_has_weights(first) ? SH_MASK_MUST : SH_MASK_OFF;
    if (cfg->data.length_schedule[0] && cfg->data.packing != SH_PACKING_CONCAT)
        return sh_fail(SH_E_USAGE,
                       "data.length_schedule cuts sequences of a stream, and %s has documents; give "
                       "data.packing=concat, or leave it out",
                       path[0] ? path : cfg->data.mix);
    return SH_OK;
}

sh_rc sh_feed_settle(struct sh_config *cfg, const char *path)
{
    struct sh_mix mix = {0};
    sh_rc rc;

    if (!path[0] && cfg->data.mix[0])
        SH_TRY(sh_mix_parse(cfg->data.mix, &mix));
    rc = settle_by(cfg, path, mix.n ? mix.path[0] : path);
    sh_mix_free(&mix);
    return rc;
}

/* A model with a large vocabulary trains on a file of bytes, but most rows of its embedding never move. It is noted
 * once and never refused: such a set is legal. */
void sh_feed_note_bytes(const struct sh_data *d, const char *path, int vocab_size)
{
    enum { BYTES = 256, MUCH_LARGER = 4 * BYTES };
    int largest;

    if (vocab_size <= MUCH_LARGER)
        return;
    if (sh_data_largest(d, &largest) != SH_OK)
        sh_error_clear(); /* the step that reads the set reports it */
    else if (largest < BYTES)
        sh_log_info("note: all ids in %s are below %d, but model.vocab_size is %d: are these byte tokens? Those need "
                    "--model.vocab_size=256",
                    path, BYTES, vocab_size);
}

/* Documents that are left out or cut are always reported. */
void sh_feed_note_rows(const struct sh_data *d, enum sh_cfg_excess excess)
{
    struct sh_data_rows r;
    char documents[SH_STR_SHORT], left_out[64] = "", cut[64] = "", learned[80] = "";

    if (!sh_data_rows(d, &r)) {
        if (excess != SH_EXCESS_RAISE)
            sh_log_info("note: data.excess_length_strategy has no effect: the data has no documents, or they are one "
                        "stream; `sherd tokenize --documents` and data.packing=bfd keep them apart");
        return;
    }
    if (r.left_out)
        snprintf(left_out, sizeof left_out, ", %lld of them left out", (long long)r.left_out);
    if (r.cut && r.kept)
        snprintf(cut, sizeof cut, ", %lld of more than %lld tokens", (long long)r.cut, (long long)r.kept);
    else if (r.cut)
        snprintf(cut, sizeof cut, ", %lld longer than a sequence", (long long)r.cut);
    if (r.learned)
        snprintf(learned, sizeof learned, ", %lld of %lld tokens are learned", (long long)r.learned,
                 (long long)r.tokens);
    sh_log_info("%s in %lld sequences, %.1f %% full%s%s%s", sh_str_plural(r.documents, "document", documents),
                (long long)r.rows, 100 * r.full, cut, left_out, learned);
}

/* Buffers hold one micro-step: tokens, targets and, with a document mask, documents, all [sequences][seq_len]. */
sh_rc sh_feed_open(struct sh_run *r, const char *path, bool shuffle, struct sh_feed *f)
{
    struct sh_data_options opt;
    int64_t sequences = r->cfg.training.local_batch_size;
    size_t n = (size_t)(sequences * r->cfg.training.seq_len),
           words = r->p->port[SH_PORT_TEACHER_WORDS] == SH_NONE ? 1 : (size_t)r->cfg.objective.top_k;
    bool multi_label = r->cfg.objective.name == SH_OBJECTIVE_MULTI_LABEL;

    *f = (struct sh_feed){
        .labels = r->cfg.model.num_labels, .sequences = sequences, .with_docs = r->p->port[SH_PORT_DOCS] != SH_NONE};
    SH_TRY(sh_feed_options(&r->cfg, path, shuffle, &opt));
    SH_TRY(sh_data_open(&opt, &f->data));
    f->tokens = sh_calloc(n, sizeof *f->tokens);
    f->targets = sh_calloc(n, sizeof *f->targets);
    words = multi_label ? (size_t)f->labels : words;
    f->part = sh_calloc(n * words, sizeof *f->part);
    if (multi_label) {
        f->wanted = sh_calloc(n * words, sizeof *f->wanted);
        f->number = sh_calloc(words, sizeof *f->number);
        f->document = sh_calloc(n, sizeof *f->document);
    }
    if (opt.weights == SH_MASK_MUST)
        f->weights = sh_calloc(n, sizeof *f->weights);
    if (f->with_docs)
        f->docs = sh_calloc(n, sizeof *f->docs);
    f->length = r->cfg.data.length_schedule[0] ? r->cfg.training.seq_len : 0; /* a run of steps says otherwise */
    if (opt.answers && !multi_label)
        f->reference = sh_reference_create(f->data, sh_config_loss(&r->cfg), sequences, r->cfg.training.seq_len);
    return SH_OK;
}

/* Also right for a feed that was never opened, or opened in part. */
void sh_feed_close(struct sh_feed *f)
{
    if (f->data)
        sh_data_close(f->data);
    free(f->tokens);
    free(f->targets);
    free(f->docs);
    free(f->weights);
    free(f->wanted);
    free(f->number);
    free(f->document);
    free(f->part);
    sh_reference_free(f->reference);
    sh_teacher_close(f->teacher);
    *f = (struct sh_feed){0};
}

/* This rank's rows of the sequences: runs of `rows`, one or, if keys and values are gathered, one of either half; the
 * first runs of all sequences, then the second ones. */
struct part {
    int64_t ranks, place, runs, rows;
};

static struct part part_of(const struct sh_run *r)
{
    const struct sh_mesh_shape *m = &r->mesh->shape;
    struct part p = {sh_group_size(m, m->context), sh_group_index(m, m->context), r->build.options.gather ? 2 : 1, 0};

    p.rows = r->build.batch.seq / (p.ranks * p.runs);
    return p;
}

/* The position at which run `run` begins. */
static int64_t begin_of(const struct part *p, int64_t run)
{
    return (run ? 2 * p->ranks - 1 - p->place : p->place) * p->rows;
}

/* Where a place of a sequence lies among the rows of all ranks, which come one after the other. */
static int64_t place_of(const struct part *p, int64_t sequences, int64_t sequence, int64_t at)
{
    int64_t piece = at / p->rows, run = piece / p->ranks, rank = run ? 2 * p->ranks - 1 - piece : piece;

    return ((rank * p->runs + run) * sequences + sequence) * p->rows + at % p->rows;
}

void sh_feed_take(const struct sh_run *r, enum sh_port port, void *to)
{
    struct part p = part_of(r);
    const struct sh_tensor *t = &r->p->tensors[r->p->port[port]];
    int64_t sequences = r->build.batch.batch, T = r->build.batch.seq, bytes = sh_tensor_bytes(t) / (sequences * T);
    char *all = sh_calloc((size_t)sh_tensor_bytes(t), 1);

    sh_exec_get(r->exec, port, all);
    for (int64_t i = 0; i < sequences * T; i++)
        memcpy((char *)to + i * bytes, all + place_of(&p, sequences, i / T, i % T) * bytes, (size_t)bytes);
    free(all);
}

/* Put the data of a micro-step, whose inputs lie behind those of the ones before it if a step is one section. */
static void put(struct sh_run *r, enum sh_port port, int micro, const void *data)
{
    int tensor = r->p->port[port];
    int64_t bytes = tensor == SH_NONE ? 0 : sh_tensor_bytes(&r->p->tensors[tensor]) / r->p->unrolled;

    if (tensor != SH_NONE)
        sh_exec_put_at(r->exec, (char *)sh_exec_data(r->exec, tensor) + micro % r->p->unrolled * bytes, data, bytes);
}

/* Put this rank's rows, if its program has the port: another stage may have it. whole: [sequences,T], `width` numbers of four bytes for each place. Targets and documents were made
 * before the cut, so a row at its border lacks nothing. */
static void put_rows(struct sh_run *r, const struct sh_feed *f, enum sh_port port, int micro, const void *whole,
                     int64_t width)
{
    struct part p = part_of(r);
    const int32_t *from = whole;

    if (r->p->port[port] == SH_NONE)
        return;
    for (int64_t i = 0; i < p.runs * f->sequences; i++)
        memcpy(f->part + i * p.rows * width,
               from + (i % f->sequences * r->build.batch.seq + begin_of(&p, i / f->sequences)) * width,
               (size_t)(p.rows * width) * sizeof *from);
    put(r, port, micro, f->part);
}

/* Positions for tables that are looked up by them: they start again with each document if its rows were packed. */
static void put_positions(struct sh_run *r, const struct sh_feed *f, int micro)
{
    struct part p = part_of(r);
    int64_t T = r->build.batch.seq;

    if (r->p->port[SH_PORT_AT] == SH_NONE)
        return;
    for (int64_t i = 0; i < p.runs * f->sequences * p.rows; i++) {
        int64_t run = i / p.rows, b = run % f->sequences, at = begin_of(&p, run / f->sequences) + i % p.rows;

        f->part[i] = (int32_t)(at - (r->build.batch.anew ? f->docs[b * T + at] : 0));
    }
    put(r, SH_PORT_AT, micro, f->part);
}

/* A target that is no label would be looked up behind the logits. */
static sh_rc check_labels(const struct sh_feed *f, int64_t first, int64_t n)
{
    int64_t T = sh_data_seq_len(f->data);

    for (int64_t i = 0; f->labels && i < n * T; i++)
        if (f->targets[i] >= f->labels)
            return sh_fail(
                SH_E_DATA,
                "sequence %lld has the label %d, but model.num_labels is %d; is it a file of `sherd tokenize "
                "--format classification`?",
                (long long)sh_data_window(f->data, first + i / T), f->targets[i], f->labels);
    return SH_OK;
}

/* What the labels of each text are to be, at its only target. */
static sh_rc read_wanted(struct sh_feed *f, int64_t first, int64_t n)
{
    int64_t document = -1;

    SH_TRY(sh_data_beginnings(f->data, first, n, f->document));
    for (int64_t i = 0; i < n * sh_data_seq_len(f->data); i++) {
        document = f->document[i] >= 0 ? f->document[i] : document;
        if (f->targets[i] < 0)
            continue;
        SH_TRY(sh_data_numbers(f->data, document, f->number));
        for (int k = 0; k < f->labels; k++) {
            if (f->number[k] < 0 || f->number[k] > 1)
                return sh_fail(SH_E_DATA, "document %lld has the number %.9g for label %d, which is not from 0 to 1",
                               (long long)document, f->number[k], k);
            f->wanted[i * f->labels + k] = (float)f->number[k];
        }
    }
    return SH_OK;
}

/* All sequences have the same documents. */
static void cut_evenly(struct sh_feed *f, int64_t n)
{
    int64_t T = sh_data_seq_len(f->data);

    for (int64_t i = 0; i < n * T && f->length; i++)
        f->docs[i] = (int32_t)(i % T / f->length * f->length);
}

sh_rc sh_feed_read(struct sh_feed *f, int64_t first, int64_t n, int64_t *unmasked)
{
    SH_TRY(sh_data_read(f->data, first, n, f->tokens, f->targets, f->length ? NULL : f->docs, unmasked));
    cut_evenly(f, n);
    SH_TRY(check_labels(f, first, n));
    if (f->weights) {
        SH_TRY(sh_data_weights(f->data, first, n, f->weights));
        f->units += sh_data_weight_units(f->weights, n * sh_data_seq_len(f->data));
    }
    if (f->wanted)
        SH_TRY(read_wanted(f, first, n));
    if (f->reference)
        SH_TRY(sh_reference_place(f->reference, f->data, first, n));
    return f->teacher ? sh_teacher_read(f->teacher, f->data, first, n, f->tokens) : SH_OK;
}

/* The work of the rows of rank `place` in the attention of the sequences. */
static double work_of(const struct sh_run *r, const struct sh_feed *f, const struct sh_model_rows *w, struct part p,
                      int64_t place)
{
    int64_t T = r->cfg.training.seq_len;
    double n = 0;

    p.place = place;
    for (int64_t i = 0; i < p.runs * f->sequences * p.rows; i++) {
        int64_t run = i / p.rows, at = begin_of(&p, run / f->sequences) + i % p.rows;

        n += sh_model_row_work(w, at + 1 - (f->docs ? f->docs[run % f->sequences * T + at] : 0));
    }
    return n;
}

/* Pieces of either half balance whole sequences, but neither documents nor windows. */
static void note_balance(const struct sh_run *r, const struct sh_feed *f)
{
    struct sh_model_rows w = sh_model_rows_of(r->p);
    struct part p = part_of(r);
    double most = 0, all = 0;

    if (!f->docs && !w.window)
        return;
    for (int64_t place = 0; place < p.ranks; place++) {
        double n = work_of(r, f, &w, p, place);

        most = n > most ? n : most;
        all += n;
    }
    sh_log_info("note: %s share the work of attention unequally: of the %lld ranks of the first sequences, the "
                "busiest has %.2f times the mean",
                f->docs ? "documents" : "windows", (long long)p.ranks, all > 0 ? most * (double)p.ranks / all : 1);
}

void sh_feed_put(struct sh_run *r, struct sh_feed *f, int micro)
{
    bool gathers = r->build.options.gather, has_docs = r->p->port[SH_PORT_DOCS] != SH_NONE;

    put_rows(r, f, SH_PORT_TOKENS, micro, f->tokens, 1);
    put_rows(r, f, SH_PORT_TARGETS, micro, f->targets, 1);
    if (f->weights)
        put_rows(r, f, SH_PORT_WEIGHTS, micro, f->weights, 1);
    if (f->wanted)
        put_rows(r, f, SH_PORT_WANTED, micro, f->wanted, f->labels);
    if (has_docs && gathers)
        put_rows(r, f, SH_PORT_DOCS, micro, f->docs, 1);
    else
        put(r, SH_PORT_DOCS, micro, f->docs);
    if (r->p->port[SH_PORT_REFERENCE] != SH_NONE)
        put(r, SH_PORT_REFERENCE, micro, f->reference->places);
    if (r->p->port[SH_PORT_LABELS] != SH_NONE)
        put(r, SH_PORT_LABELS, micro, f->reference->label);
    if (f->teacher) {
        put_rows(r, f, SH_PORT_TEACHER_WORDS, micro, sh_teacher_words(f->teacher), r->cfg.objective.top_k);
        put_rows(r, f, SH_PORT_TEACHER_LOGP, micro, sh_teacher_logp(f->teacher), r->cfg.objective.top_k);
    }
    put_positions(r, f, micro);
    if (gathers && !f->noted)
        note_balance(r, f);
    f->noted = true;
}
