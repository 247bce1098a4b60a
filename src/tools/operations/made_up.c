/* What a checked step reads: made-up tokens, in documents with answers, labels or numbers if the objective learns from
 * these, and what a teacher would find likely. */
#include "io/data/format.h"
#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/base/number/half.h"
#include "src/model/objective.h"
#include "src/run/run.h"
#include "src/run/teacher_file.h"
#include "src/text/corpus/documents.h"
#include "src/tools/bench/folder.h"
#include "src/tools/operations/operations.h"

#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 3 }; /* tokens of a document before those that may count as targets */

/* Answers, one or two of them in a row. */
static bool has_answers(const struct sh_config *cfg)
{
    return sh_objective_named(cfg->objective.name)->counts == SH_COUNTS_ANSWERS;
}

static bool has_pairs(const struct sh_config *cfg)
{
    return has_answers(cfg) && !(sh_cfg_loss_takes(sh_config_loss(cfg)) & SH_TAKES_LABELS);
}

static bool is_multi_label(const struct sh_config *cfg)
{
    return cfg->objective.name == SH_OBJECTIVE_MULTI_LABEL;
}

static bool has_numbers(const struct sh_config *cfg)
{
    return is_multi_label(cfg) || (has_answers(cfg) && (sh_cfg_loss_takes(sh_config_loss(cfg)) & SH_TAKES_NUMBERS));
}

static bool in_documents(const struct sh_config *cfg)
{
    return has_answers(cfg) || cfg->model.num_labels || cfg->data.packing == SH_PACKING_BFD ||
           cfg->data.packing == SH_PACKING_NONE;
}

/* A teacher's windows are known before the run is there only for a stream. */
void sh_made_up_prepare(struct sh_config *cfg)
{
    cfg->data.target_mask = SH_MASK_AUTO;
    if (cfg->data.token_weight == SH_MASK_AUTO)
        cfg->data.token_weight = SH_MASK_OFF;
    if (cfg->objective.name == SH_OBJECTIVE_DISTILLATION)
        cfg->data.packing = SH_PACKING_CONCAT;
    else if (cfg->model.num_labels && cfg->data.packing == SH_PACKING_AUTO)
        cfg->data.packing = SH_PACKING_BFD;
}

static uint32_t token(const struct sh_config *cfg, int64_t i)
{
    return (uint32_t)(i * 7919 % cfg->model.vocab_size);
}

/* One document: of texts with a label or a number the last token is the only target, and may be the label. */
static sh_rc put_document(const struct sh_config *cfg, struct sh_document_writer *w, int64_t number, uint32_t tokens)
{
    uint32_t *ids = sh_calloc(tokens, sizeof *ids);
    unsigned char *mask = sh_calloc(tokens, 1);
    bool end = cfg->model.num_labels > 0;
    double value = is_multi_label(cfg) ? (double)(number % 2) : 0.5 * (double)(number % 5) - 1;
    int values = has_numbers(cfg) ? is_multi_label(cfg) ? cfg->model.num_labels : 1 : 0;
    sh_rc rc;

    for (uint32_t i = 0; i < tokens; i++) {
        ids[i] = token(cfg, number * tokens + i);
        mask[i] = end ? i + 1 == tokens : i >= PROMPT;
    }
    if (cfg->model.num_labels)
        ids[tokens - 1] = (uint32_t)(number % cfg->model.num_labels);
    if (has_answers(cfg) && !has_pairs(cfg) && !has_numbers(cfg))
        mask[0] = number % 2; /* the label of an answer */
    rc = sh_document_writer_put(w, ids, mask, tokens, &tokens, 1);
    for (int i = 0; i < values && rc == SH_OK; i++)
        rc = sh_document_writer_numbers(w, &value, sizeof value);
    free(ids);
    free(mask);
    return rc;
}

/* Two documents fill the places of a row, each with one more token than places; a single answer may have another one's
 * beside it. */
static sh_rc write_documents(const struct sh_config *cfg, int64_t rows)
{
    uint32_t tokens = (uint32_t)cfg->training.seq_len / 2;
    struct sh_document_writer *w;
    sh_rc rc;

    if (tokens <= PROMPT + 1)
        return sh_fail(SH_E_USAGE, "sherd check --operations: made-up answers need a training.seq_len of %d or more",
                       2 * (PROMPT + 2));
    SH_TRY(sh_document_writer_open(cfg->training.dataset_path, cfg->model.vocab_size, 0, 1, NULL, &w));
    if (has_pairs(cfg))
        sh_document_writer_flag(w, SH_DOCUMENT_PAIRS);
    else if (has_answers(cfg) && !has_numbers(cfg))
        sh_document_writer_flag(w, SH_DOCUMENT_LABELS);
    if (has_numbers(cfg))
        sh_document_writer_width(w, is_multi_label(cfg) ? cfg->model.num_labels : 1);
    for (int64_t i = 0; i < 2 * rows; i++) {
        rc = put_document(cfg, w, i, tokens);
        if (rc != SH_OK) {
            sh_document_writer_abandon(w);
            return rc;
        }
    }
    return sh_document_writer_commit(w);
}

/* The record of a window of a stream: neighbouring words, the later the less likely. */
static void fill_record(const struct sh_config *cfg, const struct sh_teacher_header *h, int64_t window, char *record)
{
    int64_t n = (int64_t)h->seq_len * h->top_k, width = sh_teacher_id_bytes(h);
    int32_t *tokens = sh_calloc((size_t)h->seq_len, sizeof *tokens);
    char *ids = record + sizeof(struct sh_teacher_record);
    struct sh_teacher_record r;

    for (int64_t i = 0; i < n; i++) {
        uint32_t word = (uint32_t)((i / h->top_k * 31 + i % h->top_k) % cfg->model.vocab_size);
        sh_f16 logp = sh_f32_to_f16(-1.0F - (float)(i % h->top_k));

        memcpy(ids + i * width, &word, (size_t)width); /* little-endian */
        memcpy(ids + n * width + 2 * i, &logp, sizeof logp);
    }
    for (int64_t i = 0; i < h->seq_len; i++)
        tokens[i] = (int32_t)token(cfg, window * h->seq_len + i);
    r.tokens = sh_hash64(tokens, (size_t)h->seq_len * sizeof *tokens);
    memcpy(record, &r, sizeof r);
    r.sum = sh_teacher_record_sum(h, record);
    memcpy(record, &r, sizeof r);
    free(tokens);
}

static sh_rc write_teacher(const struct sh_run *r, int64_t windows)
{
    struct sh_teacher_header h = {.magic = {0},
                                  .windows = windows,
                                  .words = r->cfg.model.vocab_size,
                                  .seq_len = r->cfg.training.seq_len,
                                  .top_k = r->cfg.objective.top_k,
                                  .documents = r->p->port[SH_PORT_DOCS] != SH_NONE};
    size_t bytes = (size_t)sh_teacher_record_at(&h, windows);
    char *file = sh_calloc(bytes, 1);
    sh_rc rc;

    memcpy(h.magic, SH_TEACHER_MAGIC, sizeof h.magic);
    h.sum = sh_teacher_header_sum(&h);
    memcpy(file, &h, sizeof h);
    for (int64_t i = 0; i < windows; i++)
        fill_record(&r->cfg, &h, i, file + sh_teacher_record_at(&h, i));
    rc = sh_write_file_atomic(r->cfg.objective.teacher_path, file, bytes);
    free(file);
    return rc;
}

/* Beside the tokens: 0 to 1.5 in turn. */
static sh_rc write_weights(const struct sh_config *cfg, int64_t tokens)
{
    sh_f16 *weight = sh_calloc((size_t)tokens, sizeof *weight);
    char *path = sh_strfmt("%s.weight", cfg->training.dataset_path);
    sh_rc rc;

    for (int64_t i = 0; i < tokens; i++)
        weight[i] = sh_f32_to_f16(0.5F * (float)(i % 4));
    rc = sh_write_file_atomic(path, weight, (size_t)tokens * sizeof *weight);
    free(path);
    free(weight);
    return rc;
}

sh_rc sh_made_up_write(const struct sh_run *r)
{
    int64_t rows = sh_mesh_ranks(&r->mesh->shape) + 1, T = r->cfg.training.seq_len;

    if (r->cfg.data.token_weight == SH_MASK_MUST)
        SH_TRY(write_weights(&r->cfg, in_documents(&r->cfg) ? 2 * rows * (T / 2) : rows * T + 1));
    if (in_documents(&r->cfg))
        return write_documents(&r->cfg, rows);
    SH_TRY(sh_bench_write_tokens(&r->cfg, rows * r->cfg.training.seq_len + 1, 0));
    return r->cfg.objective.name == SH_OBJECTIVE_DISTILLATION ? write_teacher(r, rows) : SH_OK;
}
