/* A block of a decoder, with N = batch x seq rows; steps in brackets depend on the family:
 *
 *     x [N,C] -> (norm1) -> qkv [N,(H+2K)D] -> (qk norm) -> (rope) -> attention [N,HD] -> proj [N,C] -> (norm) -> + x
 *             -> (norm2) -> up [N,F], or gate and up [N,2F] -> activation [N,F] -> down [N,C] -> (norm) -> + x
 *             -> (what the block makes of an input of its own, inputs.c -> norm -> + x)
 *
 * Each of the branches is a row of parts[], the first one that fits the family and the block. */
#include "src/model/part.h"

#include "kernels/plug.h"
#include "src/model/block.h"

/* A plug-in that is not open, as in tools that only count, has the shapes of the family's activation; a request to the
 * passes is refused (src/plugin). */
static int feed_forward(struct decoder *d, int x, const struct branch *b)
{
    enum sh_op_kind own = sh_plug_find(d->m->ffn_op);
    enum sh_op_kind kind = own != SH_OP_ROOM ? own : sh_model_activation(d);
    int up = sh_model_linear(d, x, b->stack[IN]); /* [N,F] or gate and up [N,2F] */

    return sh_model_linear(d, sh_emit_pointwise(&d->e, kind, up), b->stack[OUT]);
}

static bool has_own(const struct decoder *d)
{
    return d->m->ffn[0] != '\0';
}

static int own_feed_forward(struct decoder *d, int x, const struct branch *b)
{
    return sh_ffn_emit(&d->e, d->m, &b->own, sh_model_norm_kind(d), x);
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

static bool has_no_input(const struct decoder *d)
{
    return !sh_model_has_inputs(d);
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
              .emit = sh_model_latent_attention},
             {.fits = is_latent,
              .stack = {{SH_PARAM_Q, 1}, {SH_PARAM_O, 1}, {0}, {SH_PARAM_KV_A, 1}, {SH_PARAM_KV_B, 1}},
              .emit = sh_model_latent_attention},
             {.stack = {{SH_PARAM_Q, 3}, {SH_PARAM_O, 1}}, .emit = sh_model_attention}},
        [FEED_FORWARD] = {{.fits = has_no_ffn},
                          {.fits = has_shared, .stack = {EXPERTS, SHARED}, .emit = sh_model_experts},
                          {.fits = has_experts, .stack = {EXPERTS}, .emit = sh_model_experts},
                          {.fits = has_own, .emit = own_feed_forward},
                          {.stack = {{SH_PARAM_GATE, 2}, {SH_PARAM_DOWN, 1}}, .emit = feed_forward}},
        [INPUT] = {{.fits = has_no_input},
                   {.stack = {{SH_PARAM_PER_LAYER_GATE, 1}, {SH_PARAM_PER_LAYER_OUT, 1}}, .emit = sh_model_gate_input}},
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
            b->stack[i] = sh_model_declare_stack(d, b->part->stack[i]);
}

/* The order of declaration is the order in the unit, and therefore in its shards. */
static struct branch declare_branch(struct decoder *d, int which)
{
    const struct part *part = part_of(d, which);
    struct branch b = {.part = part, .norm = sh_model_declare_norm(d, part->emit ? d->f->norm[which] : NULL)};

    if (d->tensor.ranks > 1 && which == FEED_FORWARD && has_experts(d)) /* whose matrices ranks have whole */
        open_beside(d, "moe");
    for (int i = 0; i < STACKS; i++) {
        if (!has_matrices_of_experts(&b, i))
            b.stack[i] = sh_model_declare_stack(d, b.part->stack[i]);
        if (b.part->stack[i].n && b.part->stack[i].first == SH_PARAM_Q && !d->f->kv_a)
            sh_model_declare_qk_norm(d, &b);
    }
    if (b.part->emit == own_feed_forward)
        sh_ffn_declare(&d->e, d->m, &b.own);
    if (which == ATTENTION && sh_model_has_delta(d))
        sh_model_delta_declare(d, &b);
    else if (which == ATTENTION)
        sh_model_declare_heads(d, &b);
    b.after = sh_model_declare_norm(d, part->emit ? d->f->after[which] : NULL);
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
        struct sh_adapt products = sh_model_products(d, b->part->stack[i % STACKS]);

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
    return sh_model_norm(d, x, both);
}

/* A branch has a norm before its part, after it, or both; the only one is `norm`. A shared one has been emitted. [N,C] ->
 * [N,C] */
static int emit_branch(struct decoder *d, int x, const struct branch *b)
{
    bool before = !d->f->norm_after && b->norm.w != SH_NONE;
    int y = b->part->emit(d, before ? sh_model_norm(d, x, b->norm) : x, b);

    if (b->after.w != SH_NONE)
        y = sh_model_norm(d, y, b->after);
    else if (d->f->norm_after)
        y = sh_model_norm(d, y, b->norm);
    return sh_model_scaled(d, y, d->m->residual_multiplier);
}

/* Blocks may differ in their heads. */
static void enter_block(struct decoder *d)
{
    d->m = sh_model_of_block(d->whole, d->e.block, &d->of_block);
    d->heads.kv_heads = d->m->n_kv_heads / d->tensor.ranks;
    d->heads.head_dim = d->m->head_dim;
}

/* Blocks of other stages are only listed. */
int sh_model_emit_block(struct decoder *d, int x)
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
