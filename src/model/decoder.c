#include "src/model/model.h"
#include "src/program/emit.h"

#include <math.h>

#define DIMS(...) (const int64_t[]){__VA_ARGS__}

/* What the pieces of a family are called, and how it differs. Hugging Face: modeling_gpt2.py, modeling_llama.py. */
struct family {
    bool rms, biases, w_in_out, learned_positions, swiglu;
    const char *wte, *wpe, *block, *norm1, *norm2, *final_norm, *proj, *up, *down, *head;
};

static const struct family families[] = {
    [SH_MODEL_LLAMA] = {.rms = true, .swiglu = true,
                        .wte = "model.embed_tokens", .block = "model.layers", .norm1 = "input_layernorm",
                        .norm2 = "post_attention_layernorm", .final_norm = "model.norm", .proj = "self_attn.o_proj",
                        .down = "mlp.down_proj", .head = "lm_head"},
    [SH_MODEL_GPT2] = {.biases = true, .w_in_out = true, .learned_positions = true,
                       .wte = "transformer.wte", .wpe = "transformer.wpe", .block = "transformer.h", .norm1 = "ln_1",
                       .norm2 = "ln_2", .final_norm = "transformer.ln_f", .proj = "attn.c_proj", .up = "mlp.c_fc",
                       .down = "mlp.c_proj", .head = "lm_head"},
};

struct decoder {
    struct sh_emit e;
    const struct sh_model *m;
    const struct family *f;
    struct sh_emit_heads heads;
    int wte, wpe, final_norm_w, final_norm_b, head, rope;
};

struct weights {
    int w, b;
};

struct block {
    struct weights norm1, qkv, proj, norm2, up, down;
};

static int declare(struct decoder *d, const char *name, const char *kind, int ndim, const int64_t *dim,
                   enum sh_init init, float std)
{
    char full[SH_NAME_MAX];

    if (d->e.block == SH_NONE)
        snprintf(full, sizeof full, "%s.%s", name, kind);
    else
        snprintf(full, sizeof full, "%s.%d.%s.%s", d->f->block, d->e.block, name, kind);
    return sh_emit_param(&d->e, full, ndim, dim, init, std);
}

static struct weights declare_norm(struct decoder *d, const char *name)
{
    int64_t dim = d->m->dim;
    struct weights n = {.b = SH_NONE};

    n.w = declare(d, name, "weight", 1, &dim, SH_INIT_ONE, 0);
    if (d->f->biases)
        n.b = declare(d, name, "bias", 1, &dim, SH_INIT_ZERO, 0);
    return n;
}

static struct weights declare_linear(struct decoder *d, const char *name, int64_t in, int64_t out, float std)
{
    struct weights l = {.b = SH_NONE};

    l.w = declare(d, name, "weight", 2, d->f->w_in_out ? DIMS(in, out) : DIMS(out, in), SH_INIT_NORMAL, std);
    if (d->f->biases)
        l.b = declare(d, name, "bias", 1, &out, SH_INIT_ZERO, 0);
    return l;
}

static struct weights declare_qkv(struct decoder *d)
{
    const struct sh_model *m = d->m;
    int64_t q = (int64_t)m->heads * m->head_dim, kv = (int64_t)m->kv_heads * m->head_dim;
    struct weights first;

    if (m->family == SH_MODEL_GPT2)
        return declare_linear(d, "attn.c_attn", m->dim, q + 2 * kv, m->init_std);
    first = declare_linear(d, "self_attn.q_proj", m->dim, q, m->init_std);
    declare_linear(d, "self_attn.k_proj", m->dim, kv, m->init_std);
    declare_linear(d, "self_attn.v_proj", m->dim, kv, m->init_std);
    first.w = sh_emit_stack(&d->e, first.w, 3);
    return first;
}

static struct weights declare_up(struct decoder *d)
{
    const struct sh_model *m = d->m;
    struct weights gate;

    if (!d->f->swiglu)
        return declare_linear(d, d->f->up, m->dim, m->ffn_dim, m->init_std);
    gate = declare_linear(d, "mlp.gate_proj", m->dim, m->ffn_dim, m->init_std);
    declare_linear(d, "mlp.up_proj", m->dim, m->ffn_dim, m->init_std);
    gate.w = sh_emit_stack(&d->e, gate.w, 2);
    return gate;
}

/* Matrices that write into the residual stream start smaller by 1/sqrt(2 L), so that the stream keeps its variance over
 * depth (Radford et al. 2019, section 2.3). */
static struct block declare_block(struct decoder *d)
{
    const struct sh_model *m = d->m;
    float residual_std = m->init_std / sqrtf(2.0f * (float)m->layers);
    char unit[SH_NAME_MAX];
    struct block b;

    snprintf(unit, sizeof unit, "layers.%d", d->e.block);
    sh_emit_unit(&d->e, unit);
    b.norm1 = declare_norm(d, d->f->norm1);
    b.qkv = declare_qkv(d);
    b.proj = declare_linear(d, d->f->proj, (int64_t)m->heads * m->head_dim, m->dim, residual_std);
    b.norm2 = declare_norm(d, d->f->norm2);
    b.up = declare_up(d);
    b.down = declare_linear(d, d->f->down, m->ffn_dim, m->dim, residual_std);
    return b;
}

static void declare_final_norm(struct decoder *d)
{
    struct weights n = declare_norm(d, d->f->final_norm);

    d->final_norm_w = n.w;
    d->final_norm_b = n.b;
}

static void declare_embed(struct decoder *d)
{
    const struct sh_model *m = d->m;

    sh_emit_unit(&d->e, "embed");
    d->wte = declare(d, d->f->wte, "weight", 2, DIMS(m->vocab, m->dim), SH_INIT_NORMAL, m->init_std);
    d->wpe = SH_NONE;
    if (d->f->learned_positions)
        d->wpe = declare(d, d->f->wpe, "weight", 2, DIMS(m->max_seq_len, m->dim), SH_INIT_NORMAL, m->init_std);
    d->head = d->wte;
    if (m->tied)
        declare_final_norm(d);
}

static void declare_head(struct decoder *d)
{
    if (d->m->tied)
        return;
    sh_emit_unit(&d->e, "head");
    declare_final_norm(d);
    d->head = declare(d, d->f->head, "weight", 2, DIMS(d->m->vocab, d->m->dim), SH_INIT_NORMAL, d->m->init_std);
}

static int norm(struct decoder *d, int x, struct weights n)
{
    return sh_emit_norm(&d->e, x, n.w, n.b, d->f->rms, d->m->norm_eps);
}

static int linear(struct decoder *d, int x, struct weights l)
{
    return sh_emit_linear(&d->e, x, l.w, l.b, d->f->w_in_out);
}

static int attention(struct decoder *d, int x, const struct block *b) /* [N,C] -> [N,C] */
{
    int qkv = linear(d, norm(d, x, b->norm1), b->qkv); /* [N,(H+2K)D] */

    if (!d->f->learned_positions)
        qkv = sh_emit_rope(&d->e, qkv, d->rope, &d->heads);
    return linear(d, sh_emit_attention(&d->e, qkv, &d->heads), b->proj);
}

static int feed_forward(struct decoder *d, int x, const struct block *b) /* [N,C] -> [N,C] */
{
    int up = linear(d, norm(d, x, b->norm2), b->up); /* [N,F] or gate and up [N,2F] */

    return linear(d, sh_emit_pointwise(&d->e, d->f->swiglu ? SH_OP_SWIGLU : SH_OP_GELU, up), b->down);
}

static void emit_rope_table(struct decoder *d)
{
    const struct sh_model *m = d->m;

    if (!d->f->learned_positions)
        d->rope = sh_emit_rope_table(&d->e, m->head_dim,
                                     &(struct sh_emit_rope){m->rope_theta, m->rope_factor, m->rope_low_freq,
                                                            m->rope_high_freq, m->rope_original_len});
}

/* Equal parts of the rows: each part reads the output matrix, and reads and writes its gradient, once more. Logits of
 * the compute type take at most 50 MiB; but 256 rows, of which that costs little, may take 128 MiB. With a vocabulary
 * of 50,000 words in bf16 that is 512 rows: 10 % faster than 352, 20 % faster than 256 (doc/performance.md). */
static int64_t auto_chunk_rows(const struct sh_model *m, const struct sh_model_batch *b, enum sh_dtype act)
{
    enum { WHOLE = 32, LEAST = 64, ENOUGH = 256, ROOM = 50 << 20, MOST_ROOM = 128 << 20 };
    int64_t row_bytes = sh_dtype_bytes(act) * m->vocab, all = (int64_t)b->batch * b->seq, parts, rows;
    int64_t enough = MOST_ROOM / row_bytes < ENOUGH ? MOST_ROOM / row_bytes : ENOUGH, most = ROOM / row_bytes;

    most = most < enough ? enough : most;
    most = most < LEAST ? LEAST : most / WHOLE * WHOLE;
    parts = (all + most - 1) / most;
    rows = (all + parts * WHOLE - 1) / (parts * WHOLE) * WHOLE;
    return rows < all ? rows : all;
}

void sh_model_emit(const struct sh_model *m, const struct sh_model_batch *b, struct sh_program *p)
{
    struct decoder d = {.e = {.p = p, .batch = b->batch, .seq = b->seq, .block = SH_NONE},
                        .m = m,
                        .f = &families[m->family],
                        .heads = {.heads = m->heads, .kv_heads = m->kv_heads, .head_dim = m->head_dim}};
    int x;

    sh_emit_inputs(&d.e, b->out == SH_MODEL_LOSS, b->docs);
    declare_embed(&d);
    emit_rope_table(&d);
    x = sh_emit_embed(&d.e, d.wte, d.wpe);
    for (d.e.block = 0; d.e.block < m->layers; d.e.block++) {
        struct block block = declare_block(&d);

        x = sh_emit_add(&d.e, x, attention(&d, x, &block));
        x = sh_emit_add(&d.e, x, feed_forward(&d, x, &block));
    }
    d.e.block = SH_NONE;
    declare_head(&d);
    x = norm(&d, x, (struct weights){d.final_norm_w, d.final_norm_b});
    if (b->out == SH_MODEL_LOGITS)
        sh_emit_logits(&d.e, x, d.head);
    else
        sh_emit_head_loss(&d.e, x, d.head, b->chunk_rows ? b->chunk_rows : auto_chunk_rows(m, b, p->act));
}
