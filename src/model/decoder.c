/* Decoders of all families as one emitter. A block, with N = batch x seq rows; steps in brackets depend on the family:
 *
 *     x [N,C] -> (norm1) -> qkv [N,(H+2K)D] -> (qk norm) -> (rope) -> attention [N,HD] -> proj [N,C] -> (norm) -> + x
 *             -> (norm2) -> up [N,F], or gate and up [N,2F] -> activation [N,F] -> down [N,C] -> (norm) -> + x
 *
 * Each of the two branches is a row of parts[], the first one that fits the family and the block.
 *
 * Parameters are declared first, unit by unit in the order of the forward; a unit is what is gathered at once. */
#include "src/model/part.h"

#include "kernels/plug.h"
#include "src/config/family.h"
#include "src/config/layers.h"
#include "src/config/words.h"
#include "src/model/adapt.h"
#include "src/model/block.h"
#include "src/model/delta.h"
#include "src/model/objective.h"
#include "src/model/rope.h"

#include <math.h>

/* w [C], b [C]; SH_NONE if the family does not have them. */
static struct weights declare_norm(struct decoder *d, const char *module)
{
    int64_t dim = d->m->dim;
    struct weights n = {.w = SH_NONE, .b = SH_NONE};

    if (module)
        n.w = sh_model_declare(d, SH_PARAM_NORM, module, 1, &dim);
    if (module && d->f->layer_norm && !d->f->norm_no_bias)
        n.b = sh_model_declare(d, SH_PARAM_BIAS, module, 1, &dim);
    return n;
}

/* The stretches of a product's outputs that are cut one by one, since each is cut into heads, or into widths of the
 * feed-forward part: a matrix may hold queries, keys and values, or gate and up. Returns their number. */
static int stretches_of(const struct decoder *d, enum sh_param_role role, int64_t out, int64_t n[SH_BANDS_MAX])
{
    int64_t kv = (int64_t)d->m->n_kv_heads * d->m->head_dim, ffn = d->m->ffn_dim;

    if (role == SH_PARAM_Q && !d->f->k && !d->f->qkv_by_head) {
        n[0] = out - 2 * kv;
        n[1] = n[2] = kv;
        return 3;
    }
    if (role == SH_PARAM_UP && out == 2 * ffn) {
        n[0] = n[1] = ffn;
        return 2;
    }
    n[0] = out;
    return 1;
}

/* The parts of a product that this rank has: of its outputs, or of its inputs if it writes into the residual stream. */
static void cut(const struct decoder *d, struct sh_adapt *s, int i)
{
    int64_t n[SH_BANDS_MAX] = {s->in}, first = 0;

    s->by_inputs = sh_param_info(s->which[i])->residual;
    s->n_bands[i] = s->by_inputs ? 1 : stretches_of(d, s->which[i], s->out[i], n);
    for (int k = 0; k < s->n_bands[i]; first += n[k++])
        s->band[i][k] = (struct sh_band){first + n[k] / d->tensor.ranks * d->tensor.place, n[k] / d->tensor.ranks};
}

/* Those of a stack that the family has. */
static struct sh_adapt products_of(const struct decoder *d, struct stack stack)
{
    struct sh_adapt s = {.family = d->f};
    int here = d->m->n_experts / d->spread.ranks;

    for (int i = stack.first; i < (int)stack.first + stack.n; i++) {
        s.which[s.n] = i;
        s.module[s.n] = sh_family_linear_name(d->f, i);
        s.experts = sh_param_info(i)->experts ? d->m->n_experts : 0;
        if (s.experts && d->spread.ranks > 1)
            s.held = (struct sh_band){(int64_t)here * d->spread.place, here};
        if (!s.module[s.n] || (i == SH_PARAM_V && d->m->keys_as_values))
            continue;
        sh_family_linear_dims(d->m, i, &s.in, &s.out[s.n]);
        if (d->tensor.ranks > 1 && i < SH_PARAM_LINEARS)
            cut(d, &s, s.n);
        s.n++;
    }
    return s;
}

/* As many of them as this rank has. */
static int hold_experts(struct decoder *d, const struct sh_adapt *s, int t)
{
    if (s->held.n)
        sh_emit_hold(&d->e, t, 0, 1, &s->held);
    return t;
}

/* [E,O,I], or [E,I,O]. */
static int declare_experts(struct decoder *d, const struct sh_adapt *s, int i)
{
    const int64_t *dim = d->f->experts_in_out ? DIMS(s->experts, s->in, s->out[i]) : DIMS(s->experts, s->out[i], s->in);

    return hold_experts(d, s, sh_model_declare(d, s->which[i], s->module[i], 3, dim));
}

/* [O,I], or [I,O] as GPT-2 stores it, or [E,O,I]. */
static int declare_matrix(struct decoder *d, const struct sh_adapt *s, int i)
{
    const int64_t *dim = d->f->w_in_out ? DIMS(s->in, s->out[i]) : DIMS(s->out[i], s->in);

    int w;

    if (s->experts)
        return declare_experts(d, s, i);
    w = sh_model_declare(d, s->which[i], s->module[i], 2, dim);
    if (s->n_bands[i])
        sh_emit_hold(&d->e, w, d->f->w_in_out != s->by_inputs, s->n_bands[i], s->band[i]);
    return w;
}

/* [O], or [E,O]. What is added to a sum over ranks is whole on each of them. */
static int declare_bias(struct decoder *d, const struct sh_adapt *s, int i)
{
    int b;

    if (s->experts)
        return hold_experts(d, s,
                            sh_model_declare(d, SH_PARAM_EXPERT_BIAS, s->module[i], 2, DIMS(s->experts, s->out[i])));
    b = sh_model_declare(d, SH_PARAM_BIAS, s->module[i], 1, &s->out[i]);
    if (s->n_bands[i] && !s->by_inputs)
        sh_emit_hold(&d->e, b, 0, s->n_bands[i], s->band[i]);
    return b;
}

/* The matrices are neighbours, followed by their biases, also neighbours. w [sum of O,I] or [E,O,I], b [sum of O] or
 * SH_NONE. */
static struct weights declare_stack(struct decoder *d, struct stack stack)
{
    struct weights l = {.w = SH_NONE, .b = SH_NONE};
    struct sh_adapt s = products_of(d, stack);

    for (int i = 0; i < s.n; i++) {
        int w = declare_matrix(d, &s, i);

        l.w = i ? l.w : w;
    }
    for (int i = 0; sh_family_linear_bias(d->m, stack.first) && i < s.n; i++) {
        int b = declare_bias(d, &s, i);

        l.b = i ? l.b : b;
    }
    if (s.n <= 1)
        return l;
    l.w = sh_emit_stack(&d->e, l.w, s.n);
    if (l.b != SH_NONE)
        l.b = sh_emit_stack(&d->e, l.b, s.n);
    return l;
}

/* Of all heads together a rank has the part of its heads. */
static int declare_norm_of_heads(struct decoder *d, const char *module, int64_t width)
{
    struct sh_band here = {width / d->tensor.ranks * d->tensor.place, width / d->tensor.ranks};
    int w = sh_model_declare(d, SH_PARAM_NORM, module, 1, &width);

    if (d->tensor.ranks > 1 && d->f->wide_qk_norm)
        sh_emit_hold(&d->e, w, 0, 1, &here);
    return w;
}

/* As wide as one head, or as all heads together. */
static void declare_qk_norm(struct decoder *d, struct branch *b)
{
    const struct sh_model *m = d->m;
    int64_t q = (d->f->wide_qk_norm ? m->n_heads : 1) * (int64_t)m->head_dim;
    int64_t k = (d->f->wide_qk_norm ? m->n_kv_heads : 1) * (int64_t)m->head_dim;

    if (!d->f->q_norm)
        return;
    b->q_norm = declare_norm_of_heads(d, d->f->q_norm, q);
    b->k_norm = declare_norm_of_heads(d, d->f->k_norm, k);
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

/* The final norm is in the last unit that the forward gathers, the head's. */
static void declare_final_norm(struct decoder *d)
{
    struct weights n = declare_norm(d, d->f->final_norm);

    d->final_norm_w = n.w;
    d->final_norm_b = n.b;
}

/* This rank's words: as many as those of another, or one less. */
static struct sh_band words_of(const struct decoder *d)
{
    int64_t V = d->m->vocab_size, first = V * d->tensor.place / d->tensor.ranks;

    return (struct sh_band){first, V * (d->tensor.place + 1) / d->tensor.ranks - first};
}

/* [V,C], or this rank's words of it. */
static int declare_words(struct decoder *d, enum sh_param_role role, const char *module)
{
    struct sh_band words = words_of(d);
    int w = sh_model_declare(d, role, module, 2, DIMS(d->m->vocab_size, d->m->dim));

    if (d->tensor.ranks > 1)
        sh_emit_hold(&d->e, w, 0, 1, &words);
    return w;
}

/* Labels have a matrix of their own, also if words would share the embedding. */
static bool has_tied_head(const struct sh_model *m)
{
    return m->tie_word_embeddings && !m->num_labels;
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
    if (has_tied_head(m))
        declare_final_norm(d);
}

/* head [V,C], its own unit when it is not tied; of labels [labels,C]. */
static void declare_head(struct decoder *d)
{
    if (has_tied_head(d->m))
        return;
    sh_emit_unit(&d->e, "head");
    declare_final_norm(d);
    if (d->m->num_labels && d->adapters->rank) /* trained, and the norm is not */
        sh_emit_unit_beside(&d->e, "head.score");
    if (d->m->num_labels)
        d->head = sh_model_declare(d, SH_PARAM_HEAD, "score", 2, DIMS(d->m->num_labels, d->m->dim));
    else
        d->head = declare_words(d, SH_PARAM_HEAD, d->f->head);
}

static struct sh_emit_norm norm_kind(const struct decoder *d)
{
    return (struct sh_emit_norm){
        .rms = !d->f->layer_norm, .plus_one = d->f->norm_plus_one, .eps = (float)d->m->norm_eps};
}

static int norm(struct decoder *d, int x, struct weights n)
{
    return sh_emit_norm(&d->e, x, n.w, n.b, norm_kind(d));
}

/* Multipliers of 0 are off. */
static int scaled(struct decoder *d, int x, double by)
{
    return by == 0 || by == 1 ? x : sh_emit_scale(&d->e, x, (float)by);
}

static bool has_rope(const struct decoder *d)
{
    return !d->f->learned_positions && !(sh_layers_kind(d->m, d->e.block) & SH_LAYER_NOPE);
}

int sh_model_window(const struct sh_model *m, int block)
{
    return sh_layers_kind(m, block) & SH_LAYER_SLIDING ? m->attention_window : 0;
}

/* [N,(H+2K)D] -> [N,HD] */
static int attend(struct decoder *d, int qkv, const struct branch *b)
{
    struct sh_emit_heads heads = d->heads;

    heads.window = sh_model_window(d->m, d->e.block);
    heads.sink = b->sink;
    if (has_rope(d))
        qkv = sh_emit_rope(&d->e, qkv, heads.window ? d->rope_local : d->rope, &d->heads);
    return d->e.cache ? sh_emit_attention_cache(&d->e, qkv, &heads) : sh_emit_attention(&d->e, qkv, &heads);
}

static int attention(struct decoder *d, int x, const struct branch *b)
{
    int qkv = sh_model_linear(d, x, b->stack[IN]), gate = SH_NONE; /* [N,(H+2K)D] */

    if (d->f->attention_gate)
        qkv = sh_emit_split_gate(&d->e, qkv, &d->heads, &gate);
    if (d->f->qkv_by_head)
        qkv = sh_emit_regroup(&d->e, qkv, &d->heads);
    if (d->f->value_norm)
        qkv = sh_emit_value_norm(&d->e, qkv, &d->heads, norm_kind(d).eps);
    if (d->f->q_norm)
        qkv = sh_emit_qk_norm(&d->e, qkv, b->q_norm, b->k_norm, &d->heads, norm_kind(d));
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

static int latent_attention(struct decoder *d, int x, const struct branch *b)
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

/* A plug-in that is not open, as in tools that only count, has the shapes of the family's activation; a request to the
 * passes is refused (src/plugin). */
static int feed_forward(struct decoder *d, int x, const struct branch *b)
{
    enum sh_op_kind own = sh_plug_find(d->m->ffn_op);
    enum sh_op_kind kind = own != SH_OP_ROOM ? own
                           : d->f->relu2     ? SH_OP_SQUARED_RELU
                           : d->f->gelu_erf  ? SH_OP_GELU_ERF
                           : d->f->gelu      ? SH_OP_GELU
                           : d->f->geglu     ? SH_OP_GEGLU
                                             : SH_OP_SWIGLU;
    int up = sh_model_linear(d, x, b->stack[IN]); /* [N,F] or gate and up [N,2F] */

    return sh_model_linear(d, sh_emit_pointwise(&d->e, kind, up), b->stack[OUT]);
}

static bool has_own(const struct decoder *d)
{
    return d->m->ffn[0] != '\0';
}

static int own_feed_forward(struct decoder *d, int x, const struct branch *b)
{
    return sh_ffn_emit(&d->e, d->m, &b->own, norm_kind(d), x);
}

/* The expert that every token has: a feed-forward layer or, if something weighs it, the only one of its router, so that
 * its weight is its score. [N,C] -> [N,C] */
static int shared_expert(struct decoder *d, int x, const struct branch *b)
{
    const struct sh_emit_route one = {.experts = 1, .chosen = 1, .sigmoid = true, .scale = 1};
    struct sh_emit_routed to;

    if (b->stack[SHARED_UP].w == SH_NONE)
        return SH_NONE;
    if (!d->f->shared_weight)
        return sh_model_linear(d, sh_emit_pointwise(&d->e, SH_OP_SWIGLU, sh_model_linear(d, x, b->stack[SHARED_UP])),
                               b->stack[SHARED_DOWN]);
    to = sh_emit_route(&d->e, x, b->stack[SHARED_WEIGHT].w, SH_NONE, SH_NONE, &one);
    return sh_model_linear(d, sh_emit_swiglu_rows(&d->e, sh_model_linear(d, x, b->stack[SHARED_UP]), 0, 0, &to),
                           b->stack[SHARED_DOWN]);
}

/* As linear(), for the rows of experts. weighed: x has been multiplied by the rows' weights. */
static int expert_linear(struct decoder *d, int x, struct weights l, bool weighed, const struct sh_emit_routed *to)
{
    int y = sh_emit_expert_linear(&d->e, x, l.w, d->f->experts_in_out, to);

    if (l.b != SH_NONE)
        y = sh_emit_expert_bias(&d->e, y, l.b, weighed, to);
    return sh_emit_expert_lora(&d->e, y, x, &l.lora, to);
}

static struct sh_emit_routed route(struct decoder *d, int x, const struct branch *b)
{
    struct sh_emit_routed to =
        sh_emit_route(&d->e, x, b->stack[ROUTER].w, b->stack[ROUTER].b, d->router_bias, &d->route);

    if (d->reports) {
        if (d->first_report == SH_NONE)
            d->first_report = sh_family_blocks_with_experts(d->m, d->e.block);
        sh_emit_report(&d->e, &to, &d->route, sh_family_blocks_with_experts(d->m, d->e.block), d->first_report);
    }
    return to;
}

/* M = N k rows: each token as often as it has experts, sorted by expert. The shared expert computes while rows travel to
 * experts on other ranks. */
static int experts(struct decoder *d, int x, const struct branch *b)
{
    struct sh_emit_routed to = route(d, x, b);
    int rows = sh_emit_row_gather(&d->e, x, &to), shared = shared_expert(d, x, b);
    int up = expert_linear(d, rows, b->stack[EXPERT_UP], false, &to);              /* [M,2F] */
    int h = sh_emit_swiglu_rows(&d->e, up, d->f->glu_limit, d->f->glu_alpha, &to); /* [M,F] */
    int y = expert_linear(d, h, b->stack[EXPERT_DOWN], true, &to);                 /* [M,C] */

    return sh_emit_row_sum(&d->e, y, shared, &to);
}

static bool has_experts(const struct decoder *d)
{
    return sh_family_has_experts(d->m, d->e.block);
}

static bool has_shared(const struct decoder *d)
{
    return d->m->shared_ffn_dim && has_experts(d);
}

static bool has_latent_queries(const struct decoder *d)
{
    return d->m->q_lora_rank;
}

static bool is_latent(const struct decoder *d)
{
    return d->f->kv_a;
}

/* The branch is not in the block. */
static bool has_no_mixer(const struct decoder *d)
{
    return !sh_family_has_mixer(d->m, d->e.block);
}

static bool has_no_ffn(const struct decoder *d)
{
    return !sh_family_has_ffn(d->m, d->e.block);
}

#define EXPERTS                                    \
    {SH_PARAM_ROUTER, 1}, {SH_PARAM_EXPERT_UP, 1}, \
    {                                              \
        SH_PARAM_EXPERT_DOWN, 1                    \
    }
#define SHARED                                            \
    {SH_PARAM_SHARED_GATE, 2}, {SH_PARAM_SHARED_DOWN, 1}, \
    {                                                     \
        SH_PARAM_SHARED_WEIGHT, 1                         \
    }

static const struct part *part_of(const struct decoder *d, int branch)
{
    static const struct part parts[BRANCHES][6] = {
        [ATTENTION] =
            {{.fits = has_no_mixer},
             {.fits = sh_model_has_scan,
              .stack = {{SH_PARAM_DELTA_QKV, 1}, {SH_PARAM_DELTA_O, 1}},
              .emit = sh_model_scan},
             {.fits = sh_model_has_delta,
              .stack = {{SH_PARAM_DELTA_QKV, 1}, {SH_PARAM_DELTA_Z, 1}, {SH_PARAM_DELTA_B, 2}, {SH_PARAM_DELTA_O, 1}},
              .emit = sh_model_delta},
             {.fits = has_latent_queries,
              .stack = {{SH_PARAM_Q_B, 1}, {SH_PARAM_O, 1}, {SH_PARAM_Q_A, 1}, {SH_PARAM_KV_A, 1}, {SH_PARAM_KV_B, 1}},
              .emit = latent_attention},
             {.fits = is_latent,
              .stack = {{SH_PARAM_Q, 1}, {SH_PARAM_O, 1}, {0}, {SH_PARAM_KV_A, 1}, {SH_PARAM_KV_B, 1}},
              .emit = latent_attention},
             {.stack = {{SH_PARAM_Q, 3}, {SH_PARAM_O, 1}}, .emit = attention}},
        [FEED_FORWARD] = {{.fits = has_no_ffn},
                          {.fits = has_shared, .stack = {EXPERTS, SHARED}, .emit = experts},
                          {.fits = has_experts, .stack = {EXPERTS}, .emit = experts},
                          {.fits = has_own, .emit = own_feed_forward},
                          {.stack = {{SH_PARAM_GATE, 2}, {SH_PARAM_DOWN, 1}}, .emit = feed_forward}},
    };
    const struct part *p = parts[branch];

    while (p->fits && !p->fits(d))
        p++;
    return p;
}

static bool has_matrices_of_experts(const struct branch *b, int stack)
{
    return b->part->stack[stack].n && sh_param_info(b->part->stack[stack].first)->experts;
}

/* In a unit beside the block's, since its elements are on other ranks. */
static void open_beside(struct decoder *d, const char *what)
{
    char unit[SH_NAME_MAX];

    snprintf(unit, sizeof unit, "layers.%d.%s", d->e.block, what);
    sh_emit_unit_beside(&d->e, unit);
}

/* The experts of a block come last, so that they are a unit of their own if they are spread over ranks. */
static void declare_matrices_of_experts(struct decoder *d, struct branch *b)
{
    if (d->spread.ranks > 1 && has_experts(d))
        open_beside(d, "experts");
    for (int i = 0; i < STACKS; i++)
        if (has_matrices_of_experts(b, i))
            b->stack[i] = declare_stack(d, b->part->stack[i]);
}

/* The order of declaration is the order in the unit, and therefore in its shards. */
static struct branch declare_branch(struct decoder *d, int which)
{
    const struct part *part = part_of(d, which);
    struct branch b = {.part = part, .norm = declare_norm(d, part->emit ? d->f->norm[which] : NULL)};

    if (d->tensor.ranks > 1 && which == FEED_FORWARD && has_experts(d)) /* whose matrices ranks have whole */
        open_beside(d, "moe");
    for (int i = 0; i < STACKS; i++) {
        if (!has_matrices_of_experts(&b, i))
            b.stack[i] = declare_stack(d, b.part->stack[i]);
        if (b.part->stack[i].n && b.part->stack[i].first == SH_PARAM_Q && !d->f->kv_a)
            declare_qk_norm(d, &b);
    }
    if (b.part->emit == own_feed_forward)
        sh_ffn_declare(&d->e, d->m, &b.own);
    if (which == ATTENTION && d->f->kv_a)
        declare_latent_norms(d, &b);
    if (which == ATTENTION && sh_model_has_delta(d))
        sh_model_delta_declare(d, &b);
    else if (which == ATTENTION)
        declare_sink(d, &b);
    b.after = declare_norm(d, d->f->after[which]);
    return b;
}

/* Numbers that no gradient changes, in their own unit, since the shards of the block's are of the compute type. */
static int declare_apart(struct decoder *d, const char *what, enum sh_param_role role, const char *module, int64_t n)
{
    char unit[SH_NAME_MAX];

    snprintf(unit, sizeof unit, "layers.%d.%s", d->e.block, what);
    sh_emit_unit_of_biases(&d->e, unit);
    return sh_model_declare(d, role, module, 1, &n);
}

static void declare_untrained(struct decoder *d)
{
    d->router_bias = d->layer_scale = SH_NONE;
    if (d->m->router_bias && has_experts(d))
        d->router_bias = declare_apart(d, "router", SH_PARAM_ROUTER_BIAS, d->f->router, d->m->n_experts);
    if (d->f->layer_scale)
        d->layer_scale = declare_apart(d, "scale", SH_PARAM_LAYER_SCALE, "", 1);
}

/* The adapters of the products of experts, or of all others, in the newest unit or in one of their own. Returns whether
 * there are any. */
static bool declare_adapters(struct decoder *d, struct branch block[BRANCHES], bool experts, const char *own)
{
    bool any = false;

    for (int i = 0; i < BRANCHES * STACKS; i++) {
        struct branch *b = &block[i / STACKS];
        struct sh_adapt products = products_of(d, b->part->stack[i % STACKS]);

        if ((products.experts > 0) != experts || !sh_adapt_any(d->adapters, &products))
            continue;
        if (own && !any)
            open_beside(d, own);
        any = true;
        b->stack[i % STACKS].lora = sh_adapt_stack(&d->e, d->adapters, &products);
    }
    return any;
}

/* Adapters get their own units beside the block's: the block is frozen, its adapters are trained. Those of experts come
 * last, as experts do, and are where these are. */
static void declare_block(struct decoder *d, struct branch block[BRANCHES])
{
    char unit[SH_NAME_MAX];
    bool has_others;

    snprintf(unit, sizeof unit, "layers.%d", d->e.block);
    sh_emit_unit(&d->e, unit);
    for (int i = 0; i < BRANCHES; i++)
        block[i] = declare_branch(d, i);
    declare_matrices_of_experts(d, &block[FEED_FORWARD]);
    if (!d->adapters->rank)
        return;
    has_others = declare_adapters(d, block, false, "lora");
    declare_adapters(d, block, true,
                     d->spread.ranks > 1 || d->tensor.ranks > 1 ? "experts.lora"
                     : has_others                               ? NULL
                                                                : "lora");
}

/* What branches side by side take: the block's input, or its norm if they share one. [N,C] -> [N,C] */
static int emit_shared_norm(struct decoder *d, int x, struct branch block[BRANCHES])
{
    struct weights both = block[ATTENTION].norm;

    if (d->f->norm[FEED_FORWARD])
        return x;
    block[ATTENTION].norm.w = SH_NONE;
    return norm(d, x, both);
}

/* A branch has a norm before its part, after it, or both; the only one is `norm`. A shared one has been emitted. [N,C] ->
 * [N,C] */
static int emit_branch(struct decoder *d, int x, const struct branch *b)
{
    bool before = !d->f->norm_after && b->norm.w != SH_NONE;
    int y = b->part->emit(d, before ? norm(d, x, b->norm) : x, b);

    if (b->after.w != SH_NONE)
        y = norm(d, y, b->after);
    else if (d->f->norm_after)
        y = norm(d, y, b->norm);
    return scaled(d, y, d->m->residual_multiplier);
}

/* One table for all blocks, or a second one for blocks with a window: cos and sin [T,R]. */
static void emit_rope_tables(struct decoder *d)
{
    int length = d->e.cache ? d->e.cache : d->e.seq * d->e.parts;
    struct sh_emit_rope rope = sh_model_rope(d->m, length), local = sh_model_rope_local(d->m);

    if (d->f->learned_positions || d->f->single)
        return;
    d->rope_local = d->rope = sh_emit_rope_table(&d->e, "rope", sh_model_rotary_dim(d->m), &rope);
    if (d->m->rope_local_base_freq != 0 || d->f->global_heads)
        d->rope_local = sh_emit_rope_table(&d->e, "rope_local", sh_model_rotary_dim_local(d->m), &local);
}

static int parts_of(const struct sh_model_batch *b)
{
    return b->parts > 1 ? b->parts : 1;
}

static int runs_of(const struct sh_model_batch *b)
{
    return b->runs > 1 ? b->runs : 1;
}

static int leaves_of(const struct sh_model_batch *b)
{
    return b->leaves > 1 ? b->leaves : 1;
}

static int ranks_of(const struct sh_model_batch *b)
{
    return b->tensor.ranks > 1 ? b->tensor.ranks : 1;
}

/* Cut the rows, or those of a leaf, into equal parts: each part reads the output matrix, and reads and writes its gradient, once more.
 * Logits of the compute type take at most 50 MiB; but a part of 256 rows, at which that cost is small, may take 128
 * MiB. With a vocabulary of 50,000 words in bf16 that is 512 rows: 10 % faster than 352, 20 % faster than 256
 * (doc/notebook/kernels.md). */
static int64_t auto_chunk_rows(const struct sh_model *m, const struct sh_model_batch *b, enum sh_dtype act)
{
    enum { WHOLE = 32, LEAST = 64, ENOUGH = 256, ROOM = 50 << 20, MOST_ROOM = 128 << 20 };
    int64_t words = m->num_labels ? m->num_labels : (m->vocab_size + ranks_of(b) - 1) / ranks_of(b);
    int64_t row_bytes = sh_dtype_bytes(act) * words, parts, rows;
    int64_t all = leaves_of(b) > 1 ? b->seq / b->leaves : (int64_t)b->batch * b->seq / parts_of(b);
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
                            .batch = b->batch * runs_of(b),
                            .seq = b->seq / (parts_of(b) * runs_of(b)),
                            .parts = parts_of(b) * runs_of(b),
                            .runs = runs_of(b),
                            .leaves = leaves_of(b) / parts_of(b),
                            .apart = parts_of(b) > 1 || leaves_of(b) > 1 || ranks_of(b) > 1,
                            .cache = b->cache,
                            .block = SH_NONE,
                            .anew = b->anew,
                            .choose = b->choose,
                            /* Labels have none. */
                            .cap = m->num_labels ? 0 : (float)m->logits_softcap,
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
    return scaled(d, x, d->m->embedding_multiplier);
}

/* Blocks may differ in their heads. */
static void enter_block(struct decoder *d)
{
    d->m = sh_model_of_block(d->whole, d->e.block, &d->of_block);
    d->heads.kv_heads = d->m->n_kv_heads / d->tensor.ranks;
    d->heads.head_dim = d->m->head_dim;
}

/* Blocks of other stages are only listed. */
static int emit_block(struct decoder *d, int x)
{
    struct branch block[BRANCHES];
    int in;

    enter_block(d);
    declare_block(d, block);
    declare_untrained(d);
    in = d->e.elsewhere ? x : emit_shared_norm(d, x, block);
    for (int i = 0; i < BRANCHES && !d->e.elsewhere; i++)
        if (block[i].part->emit)
            x = sh_emit_add(&d->e, x, emit_branch(d, d->f->parallel ? in : x, &block[i]));
    if (d->layer_scale != SH_NONE && !d->e.elsewhere)
        x = sh_emit_scale_by(&d->e, x, d->layer_scale);
    d->m = d->whole;
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
            x = emit_block(d, x);
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
    x = norm(d, x, (struct weights){.w = d->final_norm_w, .b = d->final_norm_b});
    x = scaled(d, x, m->logits_scaling == 0 ? 0 : 1 / m->logits_scaling);
    if (b->out == SH_MODEL_LOGITS)
        sh_emit_logits(&d->e, x, d->head, m->vocab_size);
    else if (b->out == SH_MODEL_SCORE)
        sh_emit_head_score(&d->e, x, d->head, chunk_rows);
    else
        sh_objective_of(b->objective)->emit(&d->e, x, d->head, chunk_rows, b);
    if (b->top_k)
        sh_emit_top_words(&d->e, x, d->head, b->top_k, chunk_rows);
}

void sh_model_emit(const struct sh_model *m, const struct sh_model_batch *b, struct sh_program *p)
{
    const int all[] = {0, m->n_layers};
    struct decoder d = {.e = position(m, b, p),
                        .m = m,
                        .whole = m,
                        .f = sh_family_of(m->family),
                        .adapters = &b->adapters,
                        .spread = {b->spread.ranks > 1 ? b->spread.ranks : 1, b->spread.place, 0},
                        .tensor = {ranks_of(b), b->tensor.place},
                        .stage = stage_of(b, all),
                        .reports = b->reports && sh_family_of(m->family)->router,
                        .first_report = SH_NONE,
                        .heads = {.heads = m->n_heads / ranks_of(b),
                                  .kv_heads = m->n_kv_heads / ranks_of(b),
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
        sh_emit_no_loss(
            &d.e, sh_objective_of(b->objective)->counts == SH_COUNTS_ANSWERS ? sh_emit_pair_numbers(&b->pairs) : 1);
    if (b->adapters.rank)
        sh_adapt_freeze(p, m->num_labels > 0);
}
