/* Attention: what turns, norms and orders its heads, attention itself and its cache. */
#include "src/program/emit_op.h"

#include <math.h>

int sh_emit_regroup(struct sh_emit *e, int qkv, const struct sh_emit_heads *h)
{
    struct sh_op op = OP(e, SH_OP_REGROUP, qkv);

    op.attr.regroup.heads = h->heads;
    op.attr.regroup.head_dim = h->head_dim;
    return sh_emit_out(e, &op, sh_emit_dims(e, qkv), "regrouped");
}

static void set_latent(struct sh_op *op, const struct sh_emit_latent *l)
{
    op->attr.latent.heads = l->heads;
    op->attr.latent.plain = l->plain;
    op->attr.latent.turned = l->turned;
    op->attr.latent.value = l->value;
}

int sh_emit_latent_heads(struct sh_emit *e, int q, int kv, int turned, const struct sh_emit_latent *l)
{
    struct sh_op op = OP(e, SH_OP_LATENT_HEADS, q, kv, turned);

    set_latent(&op, l);
    return sh_emit_out(e, &op, DIMS(sh_emit_dims(e, q)[0], 3 * sh_emit_dims(e, q)[1]), "heads");
}

int sh_emit_latent_values(struct sh_emit *e, int o, const struct sh_emit_latent *l)
{
    struct sh_op op = OP(e, SH_OP_LATENT_VALUES, o);

    set_latent(&op, l);
    return sh_emit_out(e, &op, DIMS(sh_emit_dims(e, o)[0], (int64_t)l->heads * l->value), "values");
}

int sh_emit_value_norm(struct sh_emit *e, int x, const struct sh_emit_heads *h, float eps)
{
    struct sh_op op = OP(e, SH_OP_VALUE_NORM, x);
    int64_t rows = sh_emit_dims(e, x)[0], D = h->head_dim, width = ((int64_t)h->heads + 2 * (int64_t)h->kv_heads) * D;

    op.attr.values.heads = h->heads;
    op.attr.values.kv_heads = h->kv_heads;
    op.attr.values.head_dim = h->head_dim;
    op.attr.values.kv_in = (int)(sh_emit_dims(e, x)[1] / D) - h->heads;
    op.attr.values.eps = eps;
    op.out[0] = sh_emit_act(e, 2, DIMS(rows, width), "value_norm");
    op.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(rows, h->kv_heads), "rstd");
    return sh_emit_append(e, &op);
}

/* rstd [B*T,G] of the G groups of a row is kept for the backward, like a norm's. */
int sh_emit_qk_norm(struct sh_emit *e, int qkv, int wq, int wk, const struct sh_emit_heads *h, struct sh_emit_norm how)
{
    struct sh_op op = OP(e, SH_OP_QK_NORM, qkv, wq, wk);
    int64_t q_width = sh_emit_dims(e, wq)[0], k_width = sh_emit_dims(e, wk)[0];
    int64_t groups = (int64_t)h->heads * h->head_dim / q_width + (int64_t)h->kv_heads * h->head_dim / k_width;

    op.attr.qk.heads = h->heads;
    op.attr.qk.kv_heads = h->kv_heads;
    op.attr.qk.head_dim = h->head_dim;
    op.attr.qk.q_width = (int)q_width;
    op.attr.qk.k_width = (int)k_width;
    op.attr.qk.groups = (int)groups;
    op.attr.qk.eps = how.eps;
    op.attr.qk.plus_one = how.plus_one;
    op.out[0] = sh_emit_act(e, 2, sh_emit_dims(e, qkv), "qk_norm");
    op.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(sh_emit_dims(e, qkv)[0], groups), "rstd");
    return sh_emit_append(e, &op);
}

/* The scale of scores is 1/sqrt(head_dim), unless the model gives another number. */
static void set_heads(struct sh_op *op, const struct sh_emit_heads *h)
{
    op->attr.attn.heads = h->heads;
    op->attr.attn.kv_heads = h->kv_heads;
    op->attr.attn.head_dim = h->head_dim;
    op->attr.attn.scale = 1.0f / sqrtf((float)(h->scalar ? h->scalar : h->head_dim));
    if (h->sharper != 0)
        op->attr.attn.scale *= h->sharper;
    op->attr.attn.cap = h->cap;
}

/* Cosines and sines for each position, [T,rotary_dim] f32; with a cache, for all positions that it holds. Computed once
 * in the init phase and kept, since they depend on nothing that training changes. */
int sh_emit_rope_table(struct sh_emit *e, const char *name, int rotary_dim, const struct sh_emit_rope *rope)
{
    struct sh_op op = sh_emit_op(e, SH_OP_ROPE_TABLE, 0, NULL);

    op.phase = SH_PHASE_INIT;
    op.attr.rope.theta = rope->theta;
    op.attr.rope.factor = rope->factor;
    op.attr.rope.low_freq = rope->low_freq;
    op.attr.rope.high_freq = rope->high_freq;
    op.attr.rope.original_len = rope->original_len;
    op.attr.rope.ramp_first = rope->ramp_first;
    op.attr.rope.ramp_last = rope->ramp_last;
    op.attr.rope.scale = rope->scale;
    op.attr.rope.turned = rope->turned;
    op.attr.rope.divisors = rope->divisors;
    op.attr.rope.first_divisor = e->p->n_divisors;
    for (int i = 0; i < rope->divisors; i++)
        sh_program_add_divisor(e->p, rope->divisor[i]);
    op.out[0] =
        sh_emit_tensor(e, SH_MEM_CONST, SH_F32, 2, DIMS(e->cache ? e->cache : sh_emit_whole(e), rotary_dim), name);
    e->p->tensors[op.out[0]].persistent = true;
    return sh_emit_append(e, &op);
}

/* qkv [B*T,(heads + 2 kv_heads) head_dim] to the same shape: queries and keys are rotated, values stay as they are. */
int sh_emit_rope(struct sh_emit *e, int qkv, int table, const struct sh_emit_heads *h)
{
    struct sh_op op = OP(e, SH_OP_ROPE, sh_emit_seq(e, qkv), table,
                         e->anew && e->runs <= 1 ? e->p->port[SH_PORT_DOCS] : SH_NONE, e->p->port[SH_PORT_AT]);

    set_heads(&op, h);
    op.attr.attn.rotary_dim = (int)sh_emit_dims(e, table)[1];
    op.attr.attn.pairs = h->pairs;
    op.out[0] = sh_emit_act(e, 3, sh_emit_dims(e, op.in[0]), "rotated");
    return sh_emit_flat(e, sh_emit_append(e, &op));
}

/* Give attention's results [B,T,heads*head_dim] and lse [B,heads,T] to the sink, if there is one. [N,heads*head_dim] */
static int through_sink(struct sh_emit *e, const struct sh_op *attention, const struct sh_emit_heads *h)
{
    struct sh_op op = OP(e, SH_OP_SINK, attention->out[0], attention->out[1], h->sink);

    if (h->sink == SH_NONE)
        return sh_emit_flat(e, attention->out[0]);
    op.attr.attn.heads = h->heads;
    op.attr.attn.head_dim = h->head_dim;
    op.out[0] = sh_emit_act(e, 3, sh_emit_dims(e, op.in[0]), "sink");
    op.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 3, sh_emit_dims(e, op.in[1]), "lse with sink");
    return sh_emit_flat(e, sh_emit_append(e, &op));
}

/* Out [B,T,heads*head_dim], and lse [B,heads,T]: the logarithm of each softmax's sum, from which the backward pass
 * rebuilds the weights instead of storing [B,heads,T,T]. */
int sh_emit_attention(struct sh_emit *e, int qkv, const struct sh_emit_heads *h)
{
    struct sh_op op = OP(e, SH_OP_ATTENTION, sh_emit_seq(e, qkv), e->p->port[SH_PORT_DOCS]);

    set_heads(&op, h);
    op.attr.attn.any_order = h->any_order;
    op.attr.attn.document_tokens = h->document_tokens;
    /* A window that hides nothing counts as none, so that kernels without windows can run it. */
    op.attr.attn.window = h->window < sh_emit_whole(e) ? h->window : 0;
    op.out[0] = sh_emit_act(e, 3, DIMS(e->batch, e->seq, (int64_t)h->heads * h->head_dim), "attention");
    op.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 3, DIMS(e->batch, h->heads, e->seq), "lse");
    sh_emit_append(e, &op);
    return through_sink(e, &op, h);
}

/* They are the last columns of qkv; it is made for a block once. */
int sh_emit_cache_put(struct sh_emit *e, int qkv, const struct sh_emit_heads *h)
{
    struct sh_op op = OP(e, SH_OP_KV_PUT, sh_emit_seq(e, qkv), e->p->port[SH_PORT_AT], e->p->port[SH_PORT_COUNT]);

    set_heads(&op, h);
    op.out[0] = sh_emit_keep(e, e->p->act, 3, DIMS(e->batch, e->cache, 2 * (int64_t)h->kv_heads * h->head_dim), "kv");
    return sh_emit_append(e, &op);
}

int sh_emit_attention_cache(struct sh_emit *e, int qkv, int cache, const struct sh_emit_heads *h)
{
    struct sh_op op =
        OP(e, SH_OP_ATTENTION_CACHE, sh_emit_seq(e, qkv), cache, e->p->port[SH_PORT_AT], e->p->port[SH_PORT_COUNT]);

    set_heads(&op, h);
    op.attr.attn.window = h->window < e->cache ? h->window : 0;
    op.out[0] = sh_emit_act(e, 3, DIMS(e->batch, e->seq, (int64_t)h->heads * h->head_dim), "attention");
    if (h->sink != SH_NONE)
        op.out[1] = sh_emit_tensor(e, SH_MEM_ACT, SH_F32, 3, DIMS(e->batch, h->heads, e->seq), "lse");
    sh_emit_append(e, &op);
    return through_sink(e, &op, h);
}

int sh_emit_split_gate(struct sh_emit *e, int x, const struct sh_emit_heads *h, int *gate)
{
    struct sh_op op = OP(e, SH_OP_SPLIT_GATE, x);
    int64_t rows = sh_emit_dims(e, x)[0], queries = (int64_t)h->heads * h->head_dim;

    set_heads(&op, h);
    op.out[0] = sh_emit_act(e, 2, DIMS(rows, sh_emit_dims(e, x)[1] - queries), "qkv");
    op.out[1] = *gate = sh_emit_act(e, 2, DIMS(rows, queries), "gate");
    return sh_emit_append(e, &op);
}

int sh_emit_gate(struct sh_emit *e, int x, int z)
{
    struct sh_op op = OP(e, SH_OP_GATE, x, z);

    return sh_emit_out(e, &op, sh_emit_dims(e, x), "gated");
}
