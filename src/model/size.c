/* Sizes that are refused before anything is emitted, so that no pass and no kernel needs to check what a product of
 * sizes comes to. A plan adds up at most a few hundred times what is counted here, for types, optimizer, levels of a
 * tree and copies: far from 2^63 bytes. */
#include "kernels/delta.h"
#include "src/base/err.h"
#include "src/base/number/size.h"
#include "src/config/family.h"
#include "src/config/words.h"
#include "src/model/ffn.h"
#include "src/model/model.h"

#include <limits.h>

#define MOST_PARAMS (1ll << 48)      /* 4 PiB of masters and optimizer */
#define MOST_ACTIVATIONS (1ll << 51) /* of all layers of a micro-step, with their gradients */
#define MOST_SCORES (1ll << 58)      /* attention weights of a layer, which never exist at once */

/* All of these are at most 2^34: heads, widths, and products of two of them. */
static int64_t widest_head(const struct sh_model *m)
{
    return m->global_head_dim > m->head_dim ? m->global_head_dim : m->head_dim;
}

static int64_t qkv_width(const struct sh_model *m)
{
    int64_t kv = m->global_kv_heads > m->n_kv_heads ? m->global_kv_heads : m->n_kv_heads;

    return ((int64_t)m->n_heads + 2 * kv) * widest_head(m);
}

static int64_t heads_width(const struct sh_model *m)
{
    return (int64_t)m->n_heads * widest_head(m);
}

/* Elements of the matrices of a block between latent vectors and heads. */
static int64_t latent_params(const struct sh_model *m)
{
    int64_t kv = sh_size_mul(m->kv_lora_rank, heads_width(m) + (int64_t)m->n_heads * m->v_head_dim);

    return sh_size_add(sh_size_mul(m->q_lora_rank, heads_width(m)), kv);
}

/* Kernels index a token's row with int. */
static sh_rc check_heads(const struct sh_model *m)
{
    if (qkv_width(m) <= INT_MAX)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "(model.n_heads %d + 2 x model.n_kv_heads %d) x model.head_dim %d: queries, keys and values of a token "
        "have at most %d elements",
        m->n_heads, m->n_kv_heads, m->head_dim, INT_MAX);
}

/* Columns that blocks with the gated delta rule make of a token; and numbers of states that are kept for it. */
static int64_t delta_width(const struct sh_model *m)
{
    return sh_family_delta_columns(m) + 2 * (int64_t)m->linear_value_heads * ((int64_t)m->linear_value_dim + 1);
}

static int64_t delta_states(const struct sh_model *m)
{
    return (int64_t)m->linear_value_heads * m->linear_key_dim * m->linear_value_dim / SH_DELTA_CHUNK;
}

/* Of the widest block. */
static int64_t ffn_width(const struct sh_model *m)
{
    return (m->double_wide_ffn ? 2 : 1) * (int64_t)m->ffn_dim;
}

/* Widths of a block's matrices are summed generously: each is a multiple of dim. */
static sh_rc check_params(const struct sh_model *m)
{
    int64_t experts = sh_size_mul(m->n_experts, 3 * (int64_t)m->expert_ffn_dim + 1);
    int64_t dense = sh_size_add(3 * (ffn_width(m) + m->shared_ffn_dim), sh_ffn_params(m) / m->dim);
    int64_t latent = (int64_t)m->q_lora_rank + m->kv_lora_rank;
    int64_t others =
        sh_size_add(qkv_width(m) + heads_width(m) + delta_width(m) + latent + 3 * (int64_t)m->per_layer_dim + 9, dense);
    int64_t block = sh_size_add(sh_size_mul(m->dim, sh_size_add(others, experts)), latent_params(m));
    int64_t blocks = sh_size_mul(block, m->n_layers);
    int64_t inputs = sh_size_mul(m->vocab_size, (int64_t)m->n_layers * m->per_layer_dim);
    int64_t tables = sh_size_add(sh_size_mul(m->dim, 2 * (int64_t)m->vocab_size + m->max_seq_len), inputs);

    if (sh_size_add(blocks, tables) <= MOST_PARAMS)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "model.dim %d with model.n_layers %d, model.ffn_dim %d, model.vocab_size %d, model.max_seq_len %d and heads "
        "of %lld elements: more than %lld parameters, which no plan can hold",
        m->dim, m->n_layers, m->ffn_dim, m->vocab_size, m->max_seq_len, (long long)heads_width(m), MOST_PARAMS);
}

/* About 16 tensors of width C, and those of attention and feed-forward, for each layer and one more. */
static sh_rc check_activations(const struct sh_model *m, const struct sh_model_batch *b)
{
    int64_t dense = 8 * (ffn_width(m) + m->shared_ffn_dim + sh_ffn_widths(m) + m->per_layer_dim), dim = m->dim;
    int64_t experts = m->n_experts_per_token * (8 * (int64_t)m->expert_ffn_dim + 4 * dim) + 4 * (int64_t)m->n_experts;
    int64_t widths =
        16 * dim + 8 * qkv_width(m) + 4 * heads_width(m) + dense + experts + 4 * delta_width(m) + delta_states(m);
    int64_t tokens = (int64_t)b->batch * b->seq;

    if (sh_size_mul(sh_size_mul(tokens, widths), (int64_t)m->n_layers + 1) <= MOST_ACTIVATIONS)
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "training.local_batch_size %d x training.seq_len %d tokens, with model.n_layers %d, model.dim %d, "
                   "model.ffn_dim %d and heads of %lld elements: more than %lld activations, which no plan can hold",
                   b->batch, b->seq, m->n_layers, m->dim, m->ffn_dim, (long long)heads_width(m), MOST_ACTIVATIONS);
}

/* Kernels count pairs of positions in 64 bits. */
static sh_rc check_scores(const struct sh_model *m, const struct sh_model_batch *b)
{
    int64_t heads = (int64_t)b->batch * m->n_heads;

    if (sh_size_mul(sh_size_mul(heads, b->seq), b->seq) <= MOST_SCORES)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "training.local_batch_size %d x model.n_heads %d x training.seq_len %d squared: more than %lld attention "
        "weights in a layer, which no plan can count",
        b->batch, m->n_heads, b->seq, MOST_SCORES);
}

/* transformers uses the list for long sequences for a whole batch once one text in it is long, and recomputes a text
 * that grows past the limit. With several texts in a row, or keys that were already rotated, that cannot be reproduced
 * here. */
static sh_rc check_long_texts(const struct sh_model *m, const struct sh_model_batch *b)
{
    int length = b->cache ? b->cache : b->seq;
    int parts = b->parts > 1 ? b->parts : 1, most = m->rope_original_max_len / parts * parts;
    bool docs = b->docs && b->out == SH_MODEL_LOSS;

    if (m->rope_factor == 0 || m->rope_type != SH_ROPE_LONG || length <= m->rope_original_max_len)
        return SH_OK;
    if (b->out == SH_MODEL_LOSS && !b->cache && !docs)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "model.rope_type=longrope: %s of up to %d tokens would each need the frequencies of their own length, below "
        "or above model.rope_original_max_len; give %s of at most %d",
        docs ? "documents in a row" : "texts", length, docs ? "training.seq_len" : "--context", most);
}

/* Ministral 3 multiplies the queries of later positions by a factor that grows with the logarithm of the position. */
static sh_rc check_first_length(const struct sh_model *m, const struct sh_model_batch *b)
{
    int length = b->cache ? b->cache : b->seq;

    if (!sh_family_of(m->family)->first_length || length <= m->rope_original_max_len)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "model.family=%s: queries from position %d on (model.rope_original_max_len) have a factor that is not "
        "computed here, and texts have up to %d tokens; give %s of at most %d",
        sh_family_of(m->family)->name, m->rope_original_max_len, length,
        b->out == SH_MODEL_LOSS && !b->cache ? "training.seq_len" : "--context", m->rope_original_max_len);
}

/* Experts index the rows of all their tokens with int. */
static sh_rc check_rows(const struct sh_model *m, const struct sh_model_batch *b)
{
    int64_t tokens = (int64_t)b->batch * b->seq;

    if (sh_size_mul(tokens, m->n_experts_per_token) <= INT_MAX)
        return SH_OK;
    return sh_fail(
        SH_E_USAGE,
        "training.local_batch_size %d x training.seq_len %d tokens x model.n_experts_per_token %d: more than "
        "%d rows of experts; give fewer sequences",
        b->batch, b->seq, m->n_experts_per_token, INT_MAX);
}

/* Local; checks come in order, from those that depend only on the model to those that depend on the batch. */
sh_rc sh_model_check(const struct sh_model *m, const struct sh_model_batch *b)
{
    SH_TRY(sh_ffn_check(m));
    SH_TRY(check_heads(m));
    SH_TRY(check_params(m));
    SH_TRY(check_activations(m, b));
    SH_TRY(check_long_texts(m, b));
    SH_TRY(check_first_length(m, b));
    SH_TRY(check_rows(m, b));
    return check_scores(m, b);
}
