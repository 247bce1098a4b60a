/* Decoders of all families as one emitter: the embedding, the blocks (branch.c) of this rank's stage, and the head.
 *
 * Parameters are declared first, unit by unit in the order of the forward; a unit is what is gathered at once. */
#include "src/model/part.h"

#include "src/config/words.h"
#include "src/model/objective.h"
#include "src/model/rope.h"

#include <math.h>
#include <stdlib.h>

/* [V,C], or this rank's words of it: as many as those of another, or one less. */
static int declare_words(struct decoder *d, enum sh_param_role role, const char *module)
{
    int64_t V = d->m->vocab_size, first = V * d->tensor.place / d->tensor.ranks;
    struct sh_band words = {first, V * (d->tensor.place + 1) / d->tensor.ranks - first};
    int w = sh_model_declare(d, role, module, 2, DIMS(V, d->m->dim));

    if (d->tensor.ranks > 1)
        sh_emit_hold(&d->e, w, 0, 1, &words);
    return w;
}

/* wte [V,C], wpe [max_seq_len,C]. A tied head is the embedding itself, so the final norm joins that unit: both are
 * needed at the same time. */
static void declare_embed(struct decoder *d)
{
    const struct sh_model *m = d->m;

    sh_emit_unit(&d->e, "embed");
    d->wte = declare_words(d, SH_PARAM_EMBED, d->f->wte);
    d->wpe = SH_NONE;
    if (d->f->learned_positions)
        d->wpe = sh_model_declare(d, SH_PARAM_POSITIONS, d->f->wpe, 2, DIMS(m->max_seq_len, m->dim));
    d->head = d->wte;
    if (sh_family_is_tied(m))
        d->final_norm = sh_model_declare_norm(d, d->f->final_norm);
}

/* head [V,C], its own unit when it is not tied; of labels [labels,C]. */
static void declare_head(struct decoder *d)
{
    if (sh_family_is_tied(d->m))
        return;
    sh_emit_unit(&d->e, "head");
    d->final_norm = sh_model_declare_norm(d, d->f->final_norm);
    if (d->m->num_labels && d->adapters->rank) /* trained, and the norm is not */
        sh_emit_unit_beside(&d->e, "head.score");
    if (d->m->num_labels)
        d->head = sh_model_declare(d, SH_PARAM_HEAD, "score", 2, DIMS(d->m->num_labels, d->m->dim));
    else
        d->head = declare_words(d, SH_PARAM_HEAD, d->f->head);
}

/* One table for all blocks, or a second one for blocks with a window: cos and sin [T,R]. */
static void emit_rope_tables(struct decoder *d)
{
    int length = d->e.cache ? d->e.cache : d->e.seq * d->e.parts;
    struct sh_emit_rope rope = sh_model_rope(d->m, length), local = sh_model_rope_local(d->m);

    if (!sh_family_has_rope(d->m))
        return;
    d->rope_local = d->rope = sh_emit_rope_table(&d->e, "rope", sh_model_rotary_dim(d->m), &rope);
    if (d->m->rope_local_base_freq != 0 || d->f->global_heads)
        d->rope_local = sh_emit_rope_table(&d->e, "rope_local", sh_model_rotary_dim_local(d->m), &local);
}

/* Numbers of parts; 0 is one, the whole. */
static int at_least_1(int n)
{
    return n > 1 ? n : 1;
}

/* Cut the rows, or those of a leaf, into equal parts: each part reads the output matrix, and reads and writes its gradient, once more.
 * Logits of the compute type take at most 50 MiB; but a part of 256 rows, at which that cost is small, may take 128
 * MiB. With a vocabulary of 50,000 words in bf16 that is 512 rows: 10 % faster than 352, 20 % faster than 256
 * (doc/notebook/kernels.md). */
static int64_t auto_chunk_rows(const struct sh_model *m, const struct sh_model_batch *b, enum sh_dtype act)
{
    enum { WHOLE = 32, LEAST = 64, ENOUGH = 256, ROOM = 50 << 20, MOST_ROOM = 128 << 20 };
    int64_t ranks = at_least_1(b->tensor.ranks);
    int64_t words = m->num_labels ? m->num_labels : (m->vocab_size + ranks - 1) / ranks;
    int64_t row_bytes = sh_dtype_bytes(act) * words, parts, rows;
    int64_t all = b->leaves > 1 ? b->seq / b->leaves : (int64_t)b->batch * b->seq / at_least_1(b->parts);
    int64_t enough = MOST_ROOM / row_bytes < ENOUGH ? MOST_ROOM / row_bytes : ENOUGH, most = ROOM / row_bytes;

    most = most < enough ? enough : most;
    /* Whole panels of 32 rows, at least 64. */
    most = most < LEAST ? LEAST : most / WHOLE * WHOLE;
    parts = (all + most - 1) / most;
    rows = (all + parts * WHOLE - 1) / (parts * WHOLE) * WHOLE;
    return rows < all ? rows : all;
}

/* Before the first operation. */
static struct sh_emit position(const struct sh_model *m, const struct sh_model_batch *b, struct sh_program *p)
{
    return (struct sh_emit){.p = p,
                            .batch = b->batch * at_least_1(b->runs),
                            .seq = b->seq / (at_least_1(b->parts) * at_least_1(b->runs)),
                            .parts = at_least_1(b->parts) * at_least_1(b->runs),
                            .runs = at_least_1(b->runs),
                            .leaves = at_least_1(b->leaves) / at_least_1(b->parts),
                            .apart = b->parts > 1 || b->leaves > 1 || b->tensor.ranks > 1,
                            .cache = b->cache,
                            .block = SH_NONE,
                            .anew = b->anew,
                            .choose = b->choose,
                            /* Labels have none. */
                            .cap = m->num_labels ? 0 : (float)m->logits_softcap,
                            .z = b->z_loss,
                            .raw = m->num_labels == 1};
}

/* All blocks, unless ranks share them. */
static struct sh_model_stage stage_of(const struct sh_model_batch *b, const int *all)
{
    return b->stage.ranks > 1 ? b->stage : (struct sh_model_stage){1, 0, 1, all};
}

static bool is_first(const struct decoder *d)
{
    return d->stage.place == 0;
}

static bool is_last(const struct decoder *d)
{
    return d->stage.place == d->stage.ranks - 1;
}

/* The rows with which the first block begins; SH_NONE: another stage makes them. */
static int emit_embedding(struct decoder *d)
{
    int x;

    d->e.elsewhere = !is_first(d);
    declare_embed(d);
    d->e.elsewhere = false;
    emit_rope_tables(d);
    if (!is_first(d))
        return SH_NONE;
    x = sh_emit_embed(&d->e, d->wte, d->wpe);
    if (d->f->scaled_embedding)
        x = sh_emit_scale(&d->e, x, sqrtf((float)d->m->dim));
    x = sh_model_scaled(d, x, d->m->embedding_multiplier);
    if (sh_model_has_inputs(d))
        sh_model_make_inputs(d, x);
    return x;
}

/* From this place to the one that has a chunk. */
static int to_chunk(const struct sh_model_stage *s, int chunk)
{
    return chunk % s->ranks - s->place;
}

static int emit_blocks(struct decoder *d, int x)
{
    const struct sh_model_stage *s = &d->stage;
    int chunks = s->ranks * s->chunks;

    for (int c = 0; c < chunks; c++) {
        bool own = to_chunk(s, c) == 0;

        if (own && c > 0)
            x = sh_emit_receive(&d->e, d->m->dim, c - 1, to_chunk(s, c - 1));
        d->e.elsewhere = !own;
        for (d->e.block = s->begin[c]; d->e.block < s->begin[c + 1]; d->e.block++)
            x = sh_model_emit_block(d, x);
        d->e.elsewhere = false;
        d->e.block = SH_NONE;
        if (own && c + 1 < chunks)
            sh_emit_send(&d->e, x, c, to_chunk(s, c + 1));
    }
    return x;
}

/* From the rows of the last block to what the program is for. */
static void emit_head(struct decoder *d, int x, const struct sh_model_batch *b)
{
    const struct sh_model *m = d->m;
    int64_t chunk_rows = b->chunk_rows ? b->chunk_rows : auto_chunk_rows(m, b, d->e.p->act);

    if (b->cache)
        x = sh_emit_pick(&d->e, x);
    x = sh_model_norm(d, x, d->final_norm);
    x = sh_model_scaled(d, x, m->logits_scaling == 0 ? 0 : 1 / m->logits_scaling);
    if (b->out == SH_MODEL_LOGITS)
        sh_emit_logits(&d->e, x, d->head, m->vocab_size);
    else if (b->out == SH_MODEL_SCORE)
        sh_emit_head_score(&d->e, x, d->head, chunk_rows);
    else
        sh_objective_of(b->objective)->emit(&d->e, x, d->head, chunk_rows, b);
    if (b->top_k)
        sh_emit_top_words(&d->e, x, d->head, b->top_k, m->num_labels > 0, chunk_rows);
}

bool sh_model_distils(const struct sh_model_batch *b)
{
    return b->objective == sh_objective_named(SH_OBJECTIVE_DISTILLATION);
}

int sh_model_loss_numbers(const struct sh_model_batch *b)
{
    if (sh_objective_of(b->objective)->counts == SH_COUNTS_ANSWERS)
        return sh_emit_pair_numbers(&b->pairs);
    if (sh_model_distils(b) || b->objective == sh_objective_named(SH_OBJECTIVE_MULTI_LABEL))
        return SH_HEAD_NUMBERS;
    return b->z_loss == 0 ? 1 : 2;
}

void sh_model_emit(const struct sh_model *m, const struct sh_model_batch *b, struct sh_program *p)
{
    const int all[] = {0, m->n_layers};
    struct decoder d = {.e = position(m, b, p),
                        .m = m,
                        .whole = m,
                        .f = sh_family_of(m->family),
                        .adapters = &b->adapters,
                        .spread = {at_least_1(b->spread.ranks), b->spread.place, 0},
                        .tensor = {at_least_1(b->tensor.ranks), b->tensor.place},
                        .stage = stage_of(b, all),
                        .reports = b->reports && sh_family_takes_experts(m),
                        .first_report = SH_NONE,
                        .heads = {.heads = m->n_heads / at_least_1(b->tensor.ranks),
                                  .kv_heads = m->n_kv_heads / at_least_1(b->tensor.ranks),
                                  .head_dim = m->head_dim,
                                  .any_order = b->any_order,
                                  .document_tokens = b->document_tokens,
                                  .pairs = sh_family_of(m->family)->rope_pairs,
                                  .scalar = m->query_pre_attn_scalar,
                                  .sharper = sh_model_sharper(m),
                                  .cap = (float)m->attention_softcap},
                        .delta = {.key_heads = m->linear_key_heads,
                                  .heads = m->linear_value_heads,
                                  .key_dim = m->linear_key_dim,
                                  .value_dim = m->linear_value_dim,
                                  .eps = (float)m->norm_eps},
                        .scan = {.groups = m->linear_key_heads,
                                 .heads = m->linear_value_heads,
                                 .key_dim = m->linear_key_dim,
                                 .value_dim = m->linear_value_dim,
                                 .least = (float)m->linear_least_step,
                                 .eps = (float)m->norm_eps},
                        .route = {.experts = m->n_experts,
                                  .chosen = m->n_experts_per_token,
                                  .sigmoid = m->router == SH_ROUTER_SIGMOID,
                                  .norm = m->route_norm,
                                  .scale = m->route_scale == 0 ? 1 : (float)m->route_scale,
                                  .groups = m->route_groups,
                                  .top_groups = m->route_top_groups,
                                  .aux = b->balance.aux,
                                  .z = b->balance.z,
                                  .forced = b->balance.forced}};
    int x;

    sh_emit_inputs(&d.e, is_first(&d), b->out != SH_MODEL_LOGITS && is_last(&d), b->docs);
    if (d.reports)
        sh_emit_reports(&d.e, sh_family_blocks_with_experts(m, m->n_layers), m->n_experts);
    x = emit_blocks(&d, emit_embedding(&d));
    d.e.elsewhere = !is_last(&d);
    declare_head(&d);
    d.e.elsewhere = false;
    if (is_last(&d))
        emit_head(&d, x, b);
    else
        sh_emit_no_loss(&d.e, sh_model_loss_numbers(b));
    if (b->adapters.rank)
        sh_adapt_freeze(p, m->num_labels > 0);
    free(d.input);
}
