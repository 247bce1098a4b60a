/* The kinds of attention: of queries, keys and values as one product makes them, and of latent vectors (DeepSeek). */
#include "src/model/part.h"

#include "src/config/layers.h"

/* Of all heads together a rank has the part of its heads. */
static int declare_norm_of_heads(struct decoder *d, const char *module, int64_t width)
{
    struct sh_band here = {width / d->tensor.ranks * d->tensor.place, width / d->tensor.ranks};
    int w = sh_model_declare(d, SH_PARAM_NORM, module, 1, &width);

    if (d->tensor.ranks > 1 && d->f->wide_qk_norm)
        sh_emit_hold(&d->e, w, 0, 1, &here);
    return w;
}

/* The block has no keys and values of its own. */
static bool shares_kv(const struct decoder *d)
{
    return sh_family_shares_kv(d->whole, d->e.block);
}

/* As wide as one head, or as all heads together. Without keys that of queries stands for theirs. */
void sh_model_declare_qk_norm(struct decoder *d, struct branch *b)
{
    const struct sh_model *m = d->m;
    int64_t q = (d->f->wide_qk_norm ? m->n_heads : 1) * (int64_t)m->head_dim;
    int64_t k = (d->f->wide_qk_norm ? m->n_kv_heads : 1) * (int64_t)m->head_dim;

    if (!d->f->q_norm)
        return;
    b->q_norm = declare_norm_of_heads(d, d->f->q_norm, q);
    b->k_norm = shares_kv(d) ? b->q_norm : declare_norm_of_heads(d, d->f->k_norm, k);
}

/* As wide as the latent vectors. */
static void declare_latent_norms(struct decoder *d, struct branch *b)
{
    int64_t q = d->m->q_lora_rank, kv = d->m->kv_lora_rank;

    b->q_norm = q ? sh_model_declare(d, SH_PARAM_NORM, d->f->q_norm, 1, &q) : SH_NONE;
    b->k_norm = sh_model_declare(d, SH_PARAM_NORM, d->f->k_norm, 1, &kv);
}

/* Of this rank's heads. */
static void declare_sink(struct decoder *d, struct branch *b)
{
    int64_t heads = d->m->n_heads;
    struct sh_band here = {heads / d->tensor.ranks * d->tensor.place, heads / d->tensor.ranks};

    b->sink = d->f->sinks ? sh_model_declare(d, SH_PARAM_SINK, d->f->sinks, 1, &heads) : SH_NONE;
    if (d->tensor.ranks > 1)
        sh_emit_hold(&d->e, b->sink, 0, 1, &here);
}

void sh_model_declare_heads(struct decoder *d, struct branch *b)
{
    if (d->f->kv_a)
        declare_latent_norms(d, b);
    declare_sink(d, b);
}

static bool has_rope(const struct decoder *d)
{
    return !d->f->learned_positions && !(sh_layers_kind(d->m, d->e.block) & SH_LAYER_NOPE);
}

int sh_model_window(const struct sh_model *m, int block)
{
    return sh_layers_kind(m, block) & SH_LAYER_SLIDING ? m->attention_window : 0;
}

/* The heads that a block computes, before those of another block join them. */
static struct sh_emit_heads heads_of(const struct decoder *d, const struct branch *b)
{
    struct sh_emit_heads heads = d->heads;

    heads.window = sh_model_window(d->m, d->e.block);
    heads.sink = b->sink;
    if (shares_kv(d))
        heads.kv_heads = 0;
    return heads;
}

static int turn(struct decoder *d, int qkv, const struct sh_emit_heads *heads)
{
    return has_rope(d) ? sh_emit_rope(&d->e, qkv, heads->window ? d->rope_local : d->rope, heads) : qkv;
}

/* Join queries with the keys and values of an earlier block, or keep those of this block for later ones, apart, so that their
 * gradients add up. [N,HD] or [N,(H+2K)D] -> [N,(H+2K)D] */
static int share_kv(struct decoder *d, int qkv)
{
    static const char *const what[2] = {"queries", "shared kv"};
    int *kv = &d->kv[sh_family_is_global(d->whole, d->e.block)], parts[2] = {qkv, *kv};

    if (sh_family_is_kv_source(d->whole, d->e.block)) {
        sh_emit_split_as(&d->e, qkv, (int64_t)d->heads.heads * d->heads.head_dim, what, parts);
        *kv = parts[1];
    } else if (!shares_kv(d)) {
        return qkv;
    }
    return sh_emit_join(&d->e, parts[0], parts[1], "qkv");
}

/* A block that shares keys and values finds those of earlier tokens in the other's cache. */
static int attend_in_cache(struct decoder *d, int qkv, const struct sh_emit_heads *heads)
{
    int *cache = &d->cache[sh_family_is_global(d->whole, d->e.block)];

    if (!shares_kv(d))
        *cache = sh_emit_cache_put(&d->e, qkv, heads);
    return sh_emit_attention_cache(&d->e, qkv, *cache, heads);
}

/* [N,(H+2K)D], or [N,HD] if keys and values are those of another block -> [N,HD] */
static int attend(struct decoder *d, int qkv, const struct branch *b)
{
    struct sh_emit_heads heads = heads_of(d, b);

    qkv = share_kv(d, turn(d, qkv, &heads));
    heads.kv_heads = d->heads.kv_heads;
    return d->e.cache ? attend_in_cache(d, qkv, &heads) : sh_emit_attention(&d->e, qkv, &heads);
}

int sh_model_attention(struct decoder *d, int x, const struct branch *b)
{
    int qkv = sh_model_linear(d, x, b->stack[IN]), gate = SH_NONE; /* [N,(H+2K)D] */
    struct sh_emit_heads heads = heads_of(d, b);

    if (d->f->attention_gate)
        qkv = sh_emit_split_gate(&d->e, qkv, &d->heads, &gate);
    if (d->f->qkv_by_head)
        qkv = sh_emit_regroup(&d->e, qkv, &d->heads);
    if (d->f->value_norm && heads.kv_heads)
        qkv = sh_emit_value_norm(&d->e, qkv, &d->heads, sh_model_norm_kind(d).eps);
    if (d->f->q_norm)
        qkv = sh_emit_qk_norm(&d->e, qkv, b->q_norm, b->k_norm, &heads, sh_model_norm_kind(d));
    qkv = attend(d, qkv, b);
    if (gate != SH_NONE)
        qkv = sh_emit_gate(&d->e, qkv, gate);
    return sh_model_linear(d, qkv, b->stack[OUT]);
}

/* Norms of latent vectors do not follow model.norm_eps in transformers. */
static int norm_latent(struct decoder *d, int x, int w)
{
    return sh_emit_norm(&d->e, x, w, SH_NONE, (struct sh_emit_norm){.rms = true, .eps = 1e-6F});
}

int sh_model_latent_attention(struct decoder *d, int x, const struct branch *b)
{
    const struct sh_model *m = d->m;
    const struct sh_emit_latent sizes = {m->n_heads, m->head_dim - m->rotary_dim, m->rotary_dim, m->v_head_dim};
    int q = x, kv[2], qkv;

    if (m->q_lora_rank)
        q = norm_latent(d, sh_model_linear(d, x, b->stack[Q_LATENT]), b->q_norm);
    q = sh_model_linear(d, q, b->stack[IN]);
    sh_emit_split(&d->e, sh_model_linear(d, x, b->stack[KV_LATENT]), m->kv_lora_rank, kv);
    kv[0] = sh_model_linear(d, norm_latent(d, kv[0], b->k_norm), b->stack[KV_HEADS]);
    qkv = sh_emit_latent_heads(&d->e, q, kv[0], kv[1], &sizes);
    return sh_model_linear(d, sh_emit_latent_values(&d->e, attend(d, qkv, b), &sizes), b->stack[OUT]);
}
