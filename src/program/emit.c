/* Each sh_emit_ function adds one operation and returns its output, so that a model family reads as arithmetic. B is
 * the batch of one rank, T the sequence length, H the hidden size. Operations on rows see [B*T,H]; those that need the
 * sequence see [B,T,H] of the same memory through a view. Nothing here knows ranks or memory: passes fill those in
 * later. */
#include "src/program/emit.h"

#include "kernels/scan.h"

#include "kernels/plug.h"
#include "kernels/shape.h"

#include <math.h>

/* clang-format off */
#define DIMS(...) (const int64_t[]){__VA_ARGS__}
/* clang-format on */

static const struct sh_tensor *tensor(const struct sh_emit *e, int t)
{
    return &e->p->tensors[t];
}

/* The name that `sherd plan` prints: with the block in front, unless the operation belongs to no block. */
static int add_tensor(struct sh_emit *e, enum sh_mem mem, enum sh_dtype dtype, int ndim, const int64_t *dim,
                      const char *what)
{
    struct sh_tensor t = e->block == SH_NONE ? sh_tensor_make(mem, dtype, ndim, dim, "%s", what)
                                             : sh_tensor_make(mem, dtype, ndim, dim, "layers.%d.%s", e->block, what);

    return sh_program_add_tensor(e->p, &t);
}

/* Activations have the compute type (bf16 or f32); statistics such as rstd are f32 and are not made here. */
static int activation(struct sh_emit *e, int ndim, const int64_t *dim, const char *what)
{
    return add_tensor(e, SH_MEM_ACT, e->p->act, ndim, dim, what);
}

/* Everything emitted here is forward; the gradient pass derives the backward operations from it. */
static struct sh_op make_op(const struct sh_emit *e, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    op.phase = SH_PHASE_FORWARD;
    op.block = e->block;
    return op;
}

void sh_emit_unit(struct sh_emit *e, const char *name)
{
    if (!e->elsewhere)
        sh_program_add_unit(e->p, name);
}

void sh_emit_unit_beside(struct sh_emit *e, const char *name)
{
    int unit, of;

    if (e->elsewhere)
        return;
    unit = sh_program_add_unit(e->p, name);
    of = unit - 1;
    while (e->p->units[of].beside != SH_NONE)
        of--;
    e->p->units[unit].beside = of;
}

void sh_emit_unit_of_biases(struct sh_emit *e, const char *name)
{
    int unit;

    if (e->elsewhere)
        return;
    unit = sh_program_add_unit(e->p, name); /* moves the list */
    e->p->units[unit].balances = true;
}

/* Append a whole saved tensor as a parameter of the unit that was opened last. unit_elems is its offset there: the
 * parameters of a unit lie one after another in one flat buffer, which is gathered and reduced as a whole. */
int sh_emit_param(struct sh_emit *e, enum sh_param_role role, const char *name, int ndim, const int64_t *dim,
                  enum sh_init init, float std)
{
    struct sh_unit *unit = e->elsewhere ? NULL : &e->p->units[e->p->n_units - 1];
    struct sh_saved saved = {
        .role = role, .ndim = ndim, .elems = 1, .init = init, .init_std = std, .trainable = !unit || unit->trainable};
    struct sh_param param = {.saved = e->p->n_saved, .ndim = ndim, .unit = e->p->n_units - 1};
    struct sh_tensor t;

    snprintf(saved.name, sizeof saved.name, "%s", name);
    for (int i = 0; i < ndim; i++) {
        param.dim[i] = saved.dim[i] = dim[i];
        saved.elems *= dim[i];
    }
    sh_program_add_saved(e->p, &saved);
    if (!unit)
        return SH_NONE;
    param.elems = saved.elems;
    param.trainable = unit->trainable;
    param.unit_elems = unit->elems;
    t = sh_tensor_make(SH_MEM_GATHERED, unit->balances ? SH_F32 : e->p->act, ndim, dim, "%s", name);
    unit->n_params++;
    unit->elems += param.elems;
    t.param = sh_program_add_param(e->p, &param);
    return sh_program_add_tensor(e->p, &t);
}

void sh_emit_hold(struct sh_emit *e, int t, int cut, int n, const struct sh_band *band)
{
    struct sh_param *param = t == SH_NONE ? NULL : &e->p->params[e->p->n_params - 1];
    int64_t held = 0, elems;

    if (!param) /* of another stage */
        return;
    for (int i = 0; i < n; i++) {
        param->band[i] = band[i];
        held += band[i].n;
    }
    elems = param->elems / param->dim[cut] * held;
    e->p->units[param->unit].elems += elems - param->elems;
    param->cut = cut;
    param->n_bands = n;
    param->elems = elems;
    param->dim[cut] = e->p->tensors[t].dim[cut] = held;
}

/* Several matrices [r_i,C] as one [sum r_i,C], without a copy: parameters of a unit are adjacent, so q, k and v, or
 * gate and up, are one product instead of three or two. The caller emits them one after the other. */
int sh_emit_stack(struct sh_emit *e, int first, int n)
{
    int param = first == SH_NONE ? SH_NONE : tensor(e, first)->param;
    int64_t rows = 0;
    struct sh_tensor t;

    if (first == SH_NONE)
        return SH_NONE;
    for (int i = 0; i < n; i++)
        rows += e->p->params[param + i].dim[0];
    t = sh_tensor_make(SH_MEM_GATHERED, e->p->act, e->p->params[param].ndim, DIMS(rows, e->p->params[param].dim[1]),
                       "%s+%d", tensor(e, first)->name, n - 1);
    t.param = param;
    return sh_program_add_tensor(e->p, &t);
}

/* Shares the memory of t from its start; the product of the dimensions must be the same. */
int sh_emit_view(struct sh_emit *e, int t, int ndim, const int64_t *dim)
{
    struct sh_tensor view = *tensor(e, t);

    view.base = t;
    view.base_elems = 0;
    view.ndim = ndim;
    for (int i = 0; i < ndim; i++)
        view.dim[i] = dim[i];
    return sh_program_add_tensor(e->p, &view);
}

/* [B,T,C] as [B*T,C]. */
static int view2(struct sh_emit *e, int t)
{
    int64_t last = tensor(e, t)->dim[tensor(e, t)->ndim - 1];

    return sh_emit_view(e, t, 2, DIMS((int64_t)e->batch * e->seq, last));
}

/* [B*T,C] as [B,T,C]. */
static int view3(struct sh_emit *e, int t)
{
    return sh_emit_view(e, t, 3, DIMS(e->batch, e->seq, tensor(e, t)->dim[1]));
}

static int add_port(struct sh_emit *e, enum sh_port port)
{
    return sh_program_add_port(e->p, port, e->batch, e->seq, 0);
}

/* Tokens of a whole sequence. */
static int whole(const struct sh_emit *e)
{
    return e->seq * (e->parts > 1 ? e->parts : 1);
}

/* Tokens, targets and document starts, each [B,T] i32; documents are those of whole sequences, as attention sees them, or of the runs that a rank has. Without targets there is no loss (generation); without docs,
 * attention sees the whole sequence. */
void sh_emit_inputs(struct sh_emit *e, bool tokens, bool targets, bool docs)
{
    if (tokens)
        add_port(e, SH_PORT_TOKENS);
    if (targets)
        add_port(e, SH_PORT_TARGETS);
    if (docs)
        sh_program_add_port(e->p, SH_PORT_DOCS, e->batch, e->runs > 1 ? e->seq : whole(e), 0);
    if (e->cache || e->runs > 1)
        add_port(e, SH_PORT_AT);
    if (e->cache)
        add_port(e, SH_PORT_COUNT);
}

/* Rows of `table` by ids [B,T], plus rows of wpe by position; out [B*T,H]. */
static int look_up(struct sh_emit *e, int ids, int table, int wpe, const char *what)
{
    struct sh_op op = make_op(e, SH_OP_EMBED);

    op.in[0] = ids;
    op.in[1] = table;
    op.in[2] = wpe;
    op.in[3] = e->anew && wpe != SH_NONE ? e->p->port[SH_PORT_DOCS] : SH_NONE;
    op.out[0] = activation(e, 3, DIMS(e->batch, e->seq, tensor(e, table)->dim[1]), what);
    sh_program_add_op(e->p, &op);
    return view2(e, op.out[0]);
}

/* wte [V,H], wpe [T,H] or SH_NONE if positions enter by rotation; out [B*T,H]. With a cache, rows on several ranks or
 * leaves, rows of wpe are looked up by their positions and added: the same numbers, since only the sum is rounded. */
int sh_emit_embed(struct sh_emit *e, int wte, int wpe)
{
    bool apart = wpe != SH_NONE && (e->cache || e->apart);
    int x = look_up(e, e->p->port[SH_PORT_TOKENS], wte, apart ? SH_NONE : wpe, "embedded");

    if (apart && e->p->port[SH_PORT_AT] == SH_NONE)
        add_port(e, SH_PORT_AT);
    if (apart)
        x = sh_emit_add(e, x, look_up(e, e->p->port[SH_PORT_AT], wpe, SH_NONE, "positions"));
    return x;
}

/* x [B*T,H] to the same shape. rstd and mean [B*T] are outputs too: the backward pass reads them instead of computing
 * the statistics again. */
int sh_emit_norm(struct sh_emit *e, int x, int w, int b, struct sh_emit_norm how)
{
    struct sh_op op = make_op(e, SH_OP_NORM);
    int64_t rows = tensor(e, x)->dim[0];

    op.attr.norm.rms = how.rms;
    op.attr.norm.plus_one = how.plus_one;
    op.attr.norm.eps = how.eps;
    op.in[0] = x;
    op.in[1] = w;
    op.in[2] = b;
    op.out[0] = activation(e, 2, tensor(e, x)->dim, "norm");
    op.out[1] = add_tensor(e, SH_MEM_ACT, SH_F32, 1, DIMS(rows), "rstd");
    if (!how.rms)
        op.out[2] = add_tensor(e, SH_MEM_ACT, SH_F32, 1, DIMS(rows), "mean");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

/* x [B*T,in] to [B*T,out]. w is [out,in] as in PyTorch, or [in,out] as in GPT-2's Conv1D (w_in_out). */
int sh_emit_linear(struct sh_emit *e, int x, int w, int b, bool w_in_out)
{
    struct sh_op op = make_op(e, SH_OP_LINEAR);
    int64_t out = tensor(e, w)->dim[w_in_out ? 1 : 0];

    op.attr.linear.w_in_out = w_in_out;
    op.in[0] = x;
    op.in[1] = w;
    op.in[2] = b;
    op.out[0] = activation(e, 2, DIMS(tensor(e, x)->dim[0], out), "linear");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

/* How many input columns make one output column: 2 if the kind's row says [N,2F] -> [N,F]. */
int64_t sh_emit_columns(enum sh_op_kind kind)
{
    const struct sh_operand_row *in = &sh_op_shape(kind)->in[0];

    return in->dim[in->ndim - 1].term[0].factor;
}

int sh_emit_pointwise(struct sh_emit *e, enum sh_op_kind kind, int x)
{
    struct sh_op op = make_op(e, kind);
    int64_t columns = tensor(e, x)->dim[1] / sh_emit_columns(kind);

    sh_plug_numbers(kind, &op.attr);
    op.in[0] = x;
    op.out[0] = activation(e, 2, DIMS(tensor(e, x)->dim[0], columns), sh_op_info(kind)->name);
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_add(struct sh_emit *e, int a, int b)
{
    struct sh_op op = make_op(e, SH_OP_ADD);

    op.in[0] = a;
    op.in[1] = b;
    op.out[0] = activation(e, 2, tensor(e, a)->dim, "residual");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_scale(struct sh_emit *e, int x, float by)
{
    struct sh_op op = make_op(e, SH_OP_SCALE);

    op.attr.scale.by = by;
    op.in[0] = x;
    op.out[0] = activation(e, 2, tensor(e, x)->dim, "scaled");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_regroup(struct sh_emit *e, int qkv, const struct sh_emit_heads *h)
{
    struct sh_op op = make_op(e, SH_OP_REGROUP);

    op.attr.regroup.heads = h->heads;
    op.attr.regroup.head_dim = h->head_dim;
    op.in[0] = qkv;
    op.out[0] = activation(e, 2, tensor(e, qkv)->dim, "regrouped");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

/* As queries of one element each, and half as many keys and values. */
void sh_emit_split(struct sh_emit *e, int x, int64_t left, int out[2])
{
    struct sh_op op = make_op(e, SH_OP_SPLIT_KV);
    int64_t rows = tensor(e, x)->dim[0], right = tensor(e, x)->dim[1] - left;

    op.attr.attn.heads = (int)left;
    op.attr.attn.kv_heads = (int)right / 2;
    op.attr.attn.head_dim = 1;
    op.in[0] = x;
    out[0] = op.out[0] = activation(e, 2, DIMS(rows, left), "latent");
    out[1] = op.out[1] = activation(e, 2, DIMS(rows, right), "key of all heads");
    sh_program_add_op(e->p, &op);
}

static struct sh_op latent_op(struct sh_emit *e, enum sh_op_kind kind, const struct sh_emit_latent *l)
{
    struct sh_op op = make_op(e, kind);

    op.attr.latent.heads = l->heads;
    op.attr.latent.plain = l->plain;
    op.attr.latent.turned = l->turned;
    op.attr.latent.value = l->value;
    return op;
}

int sh_emit_latent_heads(struct sh_emit *e, int q, int kv, int turned, const struct sh_emit_latent *l)
{
    struct sh_op op = latent_op(e, SH_OP_LATENT_HEADS, l);

    op.in[0] = q;
    op.in[1] = kv;
    op.in[2] = turned;
    op.out[0] = activation(e, 2, DIMS(tensor(e, q)->dim[0], 3 * tensor(e, q)->dim[1]), "heads");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_latent_values(struct sh_emit *e, int o, const struct sh_emit_latent *l)
{
    struct sh_op op = latent_op(e, SH_OP_LATENT_VALUES, l);

    op.in[0] = o;
    op.out[0] = activation(e, 2, DIMS(tensor(e, o)->dim[0], (int64_t)l->heads * l->value), "values");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_scale_by(struct sh_emit *e, int x, int s)
{
    struct sh_op op = make_op(e, SH_OP_SCALE_BY);

    op.in[0] = x;
    op.in[1] = s;
    op.out[0] = activation(e, 2, tensor(e, x)->dim, "scaled");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_value_norm(struct sh_emit *e, int x, const struct sh_emit_heads *h, float eps)
{
    struct sh_op op = make_op(e, SH_OP_VALUE_NORM);
    int64_t rows = tensor(e, x)->dim[0], D = h->head_dim, width = ((int64_t)h->heads + 2 * (int64_t)h->kv_heads) * D;

    op.attr.values.heads = h->heads;
    op.attr.values.kv_heads = h->kv_heads;
    op.attr.values.head_dim = h->head_dim;
    op.attr.values.kv_in = (int)(tensor(e, x)->dim[1] / D) - h->heads;
    op.attr.values.eps = eps;
    op.in[0] = x;
    op.out[0] = activation(e, 2, DIMS(rows, width), "value_norm");
    op.out[1] = add_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(rows, h->kv_heads), "rstd");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

/* rstd [B*T,G] of the G groups of a row is kept for the backward, like a norm's. */
int sh_emit_qk_norm(struct sh_emit *e, int qkv, int wq, int wk, const struct sh_emit_heads *h, struct sh_emit_norm how)
{
    struct sh_op op = make_op(e, SH_OP_QK_NORM);
    int64_t q_width = tensor(e, wq)->dim[0], k_width = tensor(e, wk)->dim[0];
    int64_t groups = (int64_t)h->heads * h->head_dim / q_width + (int64_t)h->kv_heads * h->head_dim / k_width;

    op.attr.qk.heads = h->heads;
    op.attr.qk.kv_heads = h->kv_heads;
    op.attr.qk.head_dim = h->head_dim;
    op.attr.qk.q_width = (int)q_width;
    op.attr.qk.k_width = (int)k_width;
    op.attr.qk.groups = (int)groups;
    op.attr.qk.eps = how.eps;
    op.attr.qk.plus_one = how.plus_one;
    op.in[0] = qkv;
    op.in[1] = wq;
    op.in[2] = wk;
    op.out[0] = activation(e, 2, tensor(e, qkv)->dim, "qk_norm");
    op.out[1] = add_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(tensor(e, qkv)->dim[0], groups), "rstd");
    sh_program_add_op(e->p, &op);
    return op.out[0];
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
    struct sh_op op = make_op(e, SH_OP_ROPE_TABLE);

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
    op.out[0] = add_tensor(e, SH_MEM_CONST, SH_F32, 2, DIMS(e->cache ? e->cache : whole(e), rotary_dim), name);
    e->p->tensors[op.out[0]].persistent = true;
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

/* qkv [B*T,(heads + 2 kv_heads) head_dim] to the same shape: queries and keys are rotated, values stay as they are. */
int sh_emit_rope(struct sh_emit *e, int qkv, int table, const struct sh_emit_heads *h)
{
    struct sh_op op = make_op(e, SH_OP_ROPE);

    set_heads(&op, h);
    op.attr.attn.rotary_dim = (int)tensor(e, table)->dim[1];
    op.attr.attn.pairs = h->pairs;
    op.in[0] = view3(e, qkv);
    op.in[1] = table;
    op.in[2] = e->anew && e->runs <= 1 ? e->p->port[SH_PORT_DOCS] : SH_NONE;
    op.in[3] = e->p->port[SH_PORT_AT];
    op.out[0] = activation(e, 3, tensor(e, op.in[0])->dim, "rotated");
    sh_program_add_op(e->p, &op);
    return view2(e, op.out[0]);
}

/* Give attention's results [B,T,heads*head_dim] and lse [B,heads,T] to the sink, if there is one. [N,heads*head_dim] */
static int through_sink(struct sh_emit *e, const struct sh_op *attention, const struct sh_emit_heads *h)
{
    struct sh_op op = make_op(e, SH_OP_SINK);

    if (h->sink == SH_NONE)
        return view2(e, attention->out[0]);
    op.attr.attn.heads = h->heads;
    op.attr.attn.head_dim = h->head_dim;
    op.in[0] = attention->out[0];
    op.in[1] = attention->out[1];
    op.in[2] = h->sink;
    op.out[0] = activation(e, 3, tensor(e, op.in[0])->dim, "sink");
    op.out[1] = add_tensor(e, SH_MEM_ACT, SH_F32, 3, tensor(e, op.in[1])->dim, "lse with sink");
    sh_program_add_op(e->p, &op);
    return view2(e, op.out[0]);
}

/* Out [B,T,heads*head_dim], and lse [B,heads,T]: the logarithm of each softmax's sum, from which the backward pass
 * rebuilds the weights instead of storing [B,heads,T,T]. */
int sh_emit_attention(struct sh_emit *e, int qkv, const struct sh_emit_heads *h)
{
    struct sh_op op = make_op(e, SH_OP_ATTENTION);

    set_heads(&op, h);
    op.attr.attn.any_order = h->any_order;
    op.attr.attn.document_tokens = h->document_tokens;
    /* A window that hides nothing counts as none, so that kernels without windows can run it. */
    op.attr.attn.window = h->window < whole(e) ? h->window : 0;
    op.in[0] = view3(e, qkv);
    op.in[1] = e->p->port[SH_PORT_DOCS];
    op.out[0] = activation(e, 3, DIMS(e->batch, e->seq, (int64_t)h->heads * h->head_dim), "attention");
    op.out[1] = add_tensor(e, SH_MEM_ACT, SH_F32, 3, DIMS(e->batch, h->heads, e->seq), "lse");
    sh_program_add_op(e->p, &op);
    return through_sink(e, &op, h);
}

int sh_emit_split_gate(struct sh_emit *e, int x, const struct sh_emit_heads *h, int *gate)
{
    struct sh_op op = make_op(e, SH_OP_SPLIT_GATE);
    int64_t rows = tensor(e, x)->dim[0], queries = (int64_t)h->heads * h->head_dim;

    set_heads(&op, h);
    op.in[0] = x;
    op.out[0] = activation(e, 2, DIMS(rows, tensor(e, x)->dim[1] - queries), "qkv");
    op.out[1] = *gate = activation(e, 2, DIMS(rows, queries), "gate");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_gate(struct sh_emit *e, int x, int z)
{
    struct sh_op op = make_op(e, SH_OP_GATE);

    op.in[0] = x;
    op.in[1] = z;
    op.out[0] = activation(e, 2, tensor(e, x)->dim, "gated");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

/* What a sequence leaves to its next tokens. */
static int keep(struct sh_emit *e, enum sh_dtype dtype, int ndim, const int64_t *dim, const char *what)
{
    int t = add_tensor(e, SH_MEM_KV, dtype, ndim, dim, what);

    e->p->tensors[t].persistent = true;
    return t;
}

int sh_emit_short_conv(struct sh_emit *e, int x, const struct sh_emit_delta *d)
{
    struct sh_op op = make_op(e, e->cache ? SH_OP_SHORT_CONV_CACHE : SH_OP_SHORT_CONV);
    int64_t before = tensor(e, d->conv)->dim[2] - 1;

    op.in[0] = view3(e, x);
    op.in[1] = d->conv;
    op.in[2] = e->p->port[e->cache ? SH_PORT_AT : SH_PORT_DOCS];
    op.in[3] = d->conv_bias > 0 ? d->conv_bias : SH_NONE;
    if (e->cache)
        op.in[4] = e->p->port[SH_PORT_COUNT];
    if (e->cache && before)
        op.out[1] = keep(e, e->p->act, 3, DIMS(e->batch, before, tensor(e, x)->dim[1]), "tail");
    op.out[0] = activation(e, 3, tensor(e, op.in[0])->dim, "conv");
    sh_program_add_op(e->p, &op);
    return view2(e, op.out[0]);
}

static void set_delta(struct sh_op *op, const struct sh_emit_delta *d)
{
    op->attr.delta.key_heads = d->key_heads;
    op->attr.delta.heads = d->heads;
    op->attr.delta.key_dim = d->key_dim;
    op->attr.delta.value_dim = d->value_dim;
    op->attr.delta.eps = d->eps;
}

/* Of `elems` numbers in f32: those with which chunks begin, since the backward makes the others again from them; with a cache
 * the last one. */
static int states_of(struct sh_emit *e, int64_t elems, int chunk)
{
    if (e->cache)
        return keep(e, SH_F32, 2, DIMS(e->batch, elems), "state");
    return add_tensor(e, SH_MEM_ACT, SH_F32, 3, DIMS(e->batch, (e->seq + chunk - 1) / chunk, elems), "states");
}

int sh_emit_gated_delta(struct sh_emit *e, int x, int ba, const struct sh_emit_delta *d)
{
    struct sh_op op = make_op(e, e->cache ? SH_OP_GATED_DELTA_CACHE : SH_OP_GATED_DELTA);

    set_delta(&op, d);
    op.in[0] = view3(e, x);
    op.in[1] = view3(e, ba);
    op.in[2] = d->a_log;
    op.in[3] = d->dt;
    op.in[4] = e->p->port[e->cache ? SH_PORT_AT : SH_PORT_DOCS];
    if (e->cache)
        op.in[5] = e->p->port[SH_PORT_COUNT];
    op.out[0] = activation(e, 3, DIMS(e->batch, e->seq, (int64_t)d->heads * d->value_dim), "delta");
    op.out[1] = states_of(e, (int64_t)d->heads * d->key_dim * d->value_dim, SH_DELTA_CHUNK);
    sh_program_add_op(e->p, &op);
    return view2(e, op.out[0]);
}

int sh_emit_gated_norm(struct sh_emit *e, int x, int z, const struct sh_emit_delta *d)
{
    struct sh_op op = make_op(e, SH_OP_GATED_NORM);

    set_delta(&op, d);
    op.in[0] = x;
    op.in[1] = z;
    op.in[2] = d->norm;
    op.out[0] = activation(e, 2, tensor(e, x)->dim, "gated norm");
    op.out[1] = add_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(tensor(e, x)->dim[0], d->heads), "rstd");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_scan(struct sh_emit *e, int x, int dt, const struct sh_emit_scan *s)
{
    struct sh_op op = make_op(e, e->cache ? SH_OP_SCAN_CACHE : SH_OP_SCAN);
    int64_t width = (int64_t)s->heads * s->value_dim;

    op.attr.delta.key_heads = s->groups;
    op.attr.delta.heads = s->heads;
    op.attr.delta.key_dim = s->key_dim;
    op.attr.delta.value_dim = s->value_dim;
    op.attr.delta.least = s->least;
    op.in[0] = view3(e, x);
    op.in[1] = view3(e, dt);
    op.in[2] = s->per_head;
    op.in[3] = e->p->port[e->cache ? SH_PORT_AT : SH_PORT_DOCS];
    if (e->cache)
        op.in[4] = e->p->port[SH_PORT_COUNT];
    op.out[0] = activation(e, 3, DIMS(e->batch, e->seq, width), "scan");
    op.out[1] = states_of(e, width * s->key_dim, SH_SCAN_CHUNK);
    sh_program_add_op(e->p, &op);
    return view2(e, op.out[0]);
}

int sh_emit_gate_norm(struct sh_emit *e, int x, int z, const struct sh_emit_scan *s)
{
    struct sh_op op = make_op(e, SH_OP_GATE_NORM);

    op.attr.delta.heads = s->groups;
    op.attr.delta.value_dim = (int)(tensor(e, x)->dim[1] / s->groups);
    op.attr.delta.eps = s->eps;
    op.in[0] = x;
    op.in[1] = z;
    op.in[2] = s->norm;
    op.out[0] = activation(e, 2, tensor(e, x)->dim, "gated norm");
    op.out[1] = add_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(tensor(e, x)->dim[0], s->groups), "rstd");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

/* Write the keys and values of the new tokens into the cache; return the cache, [B,S,2KD]. */
static int put_into_cache(struct sh_emit *e, int qkv, const struct sh_emit_heads *h)
{
    struct sh_op op = make_op(e, SH_OP_KV_PUT);

    set_heads(&op, h);
    op.in[0] = qkv;
    op.in[1] = e->p->port[SH_PORT_AT];
    op.in[2] = e->p->port[SH_PORT_COUNT];
    op.out[0] = keep(e, e->p->act, 3, DIMS(e->batch, e->cache, 2 * (int64_t)h->kv_heads * h->head_dim), "kv");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_attention_cache(struct sh_emit *e, int qkv, const struct sh_emit_heads *h)
{
    struct sh_op op = make_op(e, SH_OP_ATTENTION_CACHE);

    set_heads(&op, h);
    op.attr.attn.window = h->window < e->cache ? h->window : 0;
    op.in[0] = view3(e, qkv);
    op.in[1] = put_into_cache(e, op.in[0], h);
    op.in[2] = e->p->port[SH_PORT_AT];
    op.in[3] = e->p->port[SH_PORT_COUNT];
    op.out[0] = activation(e, 3, DIMS(e->batch, e->seq, (int64_t)h->heads * h->head_dim), "attention");
    if (h->sink != SH_NONE)
        op.out[1] = add_tensor(e, SH_MEM_ACT, SH_F32, 3, DIMS(e->batch, h->heads, e->seq), "lse");
    sh_program_add_op(e->p, &op);
    return through_sink(e, &op, h);
}

/* Only the last rows need a norm and logits. */
int sh_emit_pick(struct sh_emit *e, int x)
{
    struct sh_op op = make_op(e, SH_OP_PICK);

    op.in[0] = view3(e, x);
    op.in[1] = e->p->port[SH_PORT_COUNT];
    op.out[0] = activation(e, 2, DIMS(e->batch, tensor(e, x)->dim[1]), "last");
    sh_program_add_op(e->p, &op);
    e->seq = 1;
    return op.out[0];
}

/* u [N,parts R] is kept for the backward, like lse: a thin matrix. */
int sh_emit_lora(struct sh_emit *e, int y, int x, const struct sh_emit_lora *l)
{
    struct sh_op op = make_op(e, SH_OP_LORA);

    if (!l->parts)
        return y;
    op.attr.lora.parts = l->parts;
    op.attr.lora.scale = l->scale;
    for (int p = 0; p < l->parts; p++) {
        op.attr.lora.first[p] = l->first[p];
        op.attr.lora.width[p] = l->width[p];
    }
    op.in[0] = y;
    op.in[1] = x;
    op.in[2] = l->a;
    op.in[3] = l->b;
    op.out[0] = activation(e, 2, tensor(e, y)->dim, "adapted");
    op.out[1] = activation(e, 2, DIMS(tensor(e, x)->dim[0], tensor(e, l->a)->dim[0]), "low rank");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

/* The choice [N,k] as a plan: the rows by expert, where each token's rows are, where each expert's begin. */
static void plan_rows(struct sh_emit *e, int expert, const struct sh_emit_route *how, struct sh_emit_routed *to)
{
    struct sh_op op = make_op(e, SH_OP_ROUTE_PLAN);
    int64_t rows = tensor(e, expert)->dim[0], k = how->chosen;

    op.attr.route.experts = how->experts;
    op.attr.route.chosen = how->chosen;
    op.in[0] = expert;
    op.out[0] = to->order = add_tensor(e, SH_MEM_ACT, SH_I32, 1, DIMS(rows * k), "order");
    op.out[1] = to->place = add_tensor(e, SH_MEM_ACT, SH_I32, 2, DIMS(rows, k), "place");
    op.out[2] = to->first = add_tensor(e, SH_MEM_ACT, SH_I32, 1, DIMS(how->experts + 1), "first");
    sh_program_add_op(e->p, &op);
}

static void set_route(struct sh_op *op, const struct sh_emit_route *how)
{
    op->attr.route.experts = how->experts;
    op->attr.route.chosen = how->chosen;
    op->attr.route.sigmoid = how->sigmoid;
    op->attr.route.norm = how->norm;
    op->attr.route.scale = how->scale;
    op->attr.route.groups = how->groups;
    op->attr.route.top_groups = how->top_groups;
    op->attr.route.aux = how->aux;
    op->attr.route.z = how->z;
    op->attr.route.forced = how->forced;
}

/* weight [N,k] f32, expert [N,k], and the scores [N,E] f32 of all experts, which the backward reads; lse [N] f32 only
 * for the loss that reads it. */
struct sh_emit_routed sh_emit_route(struct sh_emit *e, int x, int w, int b, int bias, const struct sh_emit_route *how)
{
    struct sh_op op = make_op(e, SH_OP_ROUTE);
    int64_t rows = tensor(e, x)->dim[0];
    struct sh_emit_routed to = {.lse = SH_NONE};

    set_route(&op, how);
    op.in[0] = x;
    op.in[1] = w;
    op.in[2] = bias;
    op.in[3] = b;
    op.out[0] = to.weight = add_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(rows, how->chosen), "weight");
    op.out[1] = add_tensor(e, SH_MEM_ACT, SH_I32, 2, DIMS(rows, how->chosen), "expert");
    op.out[2] = to.score = add_tensor(e, SH_MEM_ACT, SH_F32, 2, DIMS(rows, how->experts), "score");
    if (how->z != 0)
        op.out[3] = to.lse = add_tensor(e, SH_MEM_ACT, SH_F32, 1, DIMS(rows), "lse");
    sh_program_add_op(e->p, &op);
    plan_rows(e, op.out[1], how, &to);
    return to;
}

void sh_emit_reports(struct sh_emit *e, int blocks, int experts)
{
    sh_program_add_port(e->p, SH_PORT_ROUTERS, 0, 0, SH_ROUTER_LOSSES + (int64_t)blocks * experts);
}

/* [n] of the reports, from element `first` on. A constant's name tells it from others. */
static int report_view(struct sh_emit *e, int64_t first, int64_t n)
{
    int v = sh_emit_view(e, e->p->port[SH_PORT_ROUTERS], 1, DIMS(n));

    e->p->tensors[v].base_elems = first;
    snprintf(e->p->tensors[v].name, SH_NAME_MAX, first ? "layers.%d.load" : "routers.losses", e->block);
    return v;
}

/* The losses of all blocks are added up. */
void sh_emit_report(struct sh_emit *e, const struct sh_emit_routed *to, const struct sh_emit_route *how, int block,
                    int first)
{
    struct sh_op load = make_op(e, SH_OP_ROUTE_LOAD), loss = make_op(e, SH_OP_ROUTE_LOSS);

    load.in[0] = to->first;
    load.out[0] = report_view(e, SH_ROUTER_LOSSES + (int64_t)block * how->experts, how->experts);
    sh_program_add_op(e->p, &load);
    if (how->aux == 0 && how->z == 0)
        return;
    set_route(&loss, how);
    loss.in[0] = to->score;
    loss.in[1] = to->first;
    loss.in[2] = to->lse;
    loss.out[0] = report_view(e, 0, SH_ROUTER_LOSSES);
    loss.attr.accumulate = block > first;
    sh_program_add_op(e->p, &loss);
}

int sh_emit_row_gather(struct sh_emit *e, int x, const struct sh_emit_routed *to)
{
    struct sh_op op = make_op(e, SH_OP_ROW_GATHER);

    op.in[0] = x;
    op.in[1] = to->order;
    op.out[0] = activation(e, 2, DIMS(tensor(e, to->order)->dim[0], tensor(e, x)->dim[1]), "rows");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_expert_linear(struct sh_emit *e, int x, int w, bool w_in_out, const struct sh_emit_routed *to)
{
    struct sh_op op = make_op(e, SH_OP_EXPERT_LINEAR);

    op.attr.rows.w_in_out = w_in_out;
    op.attr.rows.choose = e->choose;
    op.in[0] = x;
    op.in[1] = to->first;
    op.in[2] = w;
    op.out[0] = activation(e, 2, DIMS(tensor(e, x)->dim[0], tensor(e, w)->dim[w_in_out ? 2 : 1]), "expert linear");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_expert_bias(struct sh_emit *e, int x, int b, bool weighed, const struct sh_emit_routed *to)
{
    struct sh_op op = make_op(e, SH_OP_EXPERT_BIAS);

    op.in[0] = x;
    op.in[1] = to->first;
    op.in[2] = b;
    op.in[3] = weighed ? to->weight : SH_NONE;
    op.in[4] = weighed ? to->order : SH_NONE;
    op.out[0] = activation(e, 2, tensor(e, x)->dim, "biased");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

/* Of the products' results only u [M,R] is kept for the backward, like that of sh_emit_lora(). */
int sh_emit_expert_lora(struct sh_emit *e, int y, int x, const struct sh_emit_lora *l, const struct sh_emit_routed *to)
{
    int u;

    if (!l->parts)
        return y;
    u = sh_emit_scale(e, sh_emit_expert_linear(e, x, l->a, false, to), l->scale);
    return sh_emit_add(e, y, sh_emit_expert_linear(e, u, l->b, false, to));
}

int sh_emit_swiglu_rows(struct sh_emit *e, int x, float limit, float alpha, const struct sh_emit_routed *to)
{
    struct sh_op op = make_op(e, SH_OP_SWIGLU_ROWS);

    op.attr.rows.limit = limit;
    op.attr.rows.alpha = alpha;
    op.in[0] = x;
    op.in[1] = to->weight;
    op.in[2] = to->order;
    op.out[0] = activation(e, 2, DIMS(tensor(e, x)->dim[0], tensor(e, x)->dim[1] / 2), "swiglu");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_row_sum(struct sh_emit *e, int x, int addend, const struct sh_emit_routed *to)
{
    struct sh_op op = make_op(e, SH_OP_ROW_SUM);

    op.in[0] = x;
    op.in[1] = to->place;
    op.in[2] = addend;
    op.out[0] = activation(e, 2, DIMS(tensor(e, to->place)->dim[0], tensor(e, x)->dim[1]), "experts");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

static void learn_from(struct sh_emit *e, struct sh_op *loss, const struct sh_teacher_numbers *teacher)
{
    loss->attr.head.temperature = teacher->temperature;
    loss->attr.head.alpha = teacher->alpha;
    loss->in[4] = sh_program_add_port(e->p, SH_PORT_TEACHER_WORDS, e->batch, e->seq, teacher->top_k);
    loss->in[5] = sh_program_add_port(e->p, SH_PORT_TEACHER_LOGP, e->batch, e->seq, teacher->top_k);
}

/* Logits, softmax and loss in one operation, chunk_rows rows at a time: logits [B*T,V] would be the largest tensor of
 * the step (8 x 4096 x 128256 f32 are 16.8 GB), so they never exist as a whole. */
void sh_emit_head_loss(struct sh_emit *e, int x, int w, int weight, int64_t chunk_rows,
                       const struct sh_teacher_numbers *teacher)
{
    struct sh_op op = make_op(e, SH_OP_HEAD_LOSS);

    op.attr.head.chunk_rows = chunk_rows;
    op.attr.head.raw = e->raw;
    op.attr.head.cap = e->cap;
    op.in[0] = x;
    op.in[1] = w;
    op.in[2] = sh_emit_view(e, e->p->port[SH_PORT_TARGETS], 1, DIMS((int64_t)e->batch * e->seq));
    op.in[3] = weight;
    if (teacher)
        learn_from(e, &op, teacher);
    if (e->p->port[SH_PORT_LOSS] != SH_NONE) /* the objective has made it */
        op.out[0] = add_tensor(e, SH_MEM_ACT, SH_F64, 1, DIMS(1), "weighed");
    else
        op.out[0] = sh_program_add_port(e->p, SH_PORT_LOSS, 0, 0, e->leaves > 1 ? e->leaves : 1);
    if (e->leaves > 1)
        op.out[0] = sh_emit_view(e, op.out[0], 1, DIMS(1));
    sh_program_add_op(e->p, &op);
}

void sh_emit_head_score(struct sh_emit *e, int x, int w, int64_t chunk_rows)
{
    struct sh_op op = make_op(e, SH_OP_HEAD_SCORE);

    op.attr.head.chunk_rows = chunk_rows;
    op.attr.head.raw = e->raw;
    op.attr.head.cap = e->cap;
    op.in[0] = x;
    op.in[1] = w;
    op.in[2] = sh_emit_view(e, e->p->port[SH_PORT_TARGETS], 1, DIMS((int64_t)e->batch * e->seq));
    op.out[0] = add_port(e, SH_PORT_LOGPROB);
    op.out[1] = add_port(e, SH_PORT_LIKELIEST);
    sh_program_add_op(e->p, &op);
}

/* HEAD_SCORE into tensors that only operations read. */
static struct sh_op score_of(struct sh_emit *e, int x, int w, int64_t chunk_rows)
{
    struct sh_op score = make_op(e, SH_OP_HEAD_SCORE);
    const int64_t *flat = DIMS((int64_t)e->batch * e->seq);

    score.attr.head.chunk_rows = chunk_rows;
    score.attr.head.raw = e->raw;
    score.attr.head.cap = e->cap;
    score.in[0] = x;
    score.in[1] = w;
    score.in[2] = sh_emit_view(e, e->p->port[SH_PORT_TARGETS], 1, flat);
    score.out[0] = add_tensor(e, SH_MEM_ACT, SH_F32, 1, flat, "logprob");
    score.out[1] = add_tensor(e, SH_MEM_ACT, SH_I32, 1, flat, "likeliest");
    return score;
}

void sh_emit_top_words(struct sh_emit *e, int x, int w, int top_k, int64_t chunk_rows)
{
    struct sh_op score = score_of(e, x, w, chunk_rows);

    score.out[2] = sh_program_add_port(e->p, SH_PORT_TOP_WORDS, e->batch, e->seq, top_k);
    score.out[3] = sh_program_add_port(e->p, SH_PORT_TOP_LOGP, e->batch, e->seq, top_k);
    sh_program_add_op(e->p, &score);
}

/* For a loss that is made of the log-probabilities of targets: [N] f32. */
static int emit_logprob(struct sh_emit *e, int x, int w, int64_t chunk_rows)
{
    struct sh_op score = score_of(e, x, w, chunk_rows);

    sh_program_add_op(e->p, &score);
    return score.out[0];
}

int sh_emit_target_loss(struct sh_emit *e, int x, int w, int64_t chunk_rows, int kind)
{
    struct sh_op op = make_op(e, (enum sh_op_kind)kind);
    const int64_t *flat = DIMS((int64_t)e->batch * e->seq);

    sh_plug_numbers(op.kind, &op.attr);
    op.in[0] = emit_logprob(e, x, w, chunk_rows);
    op.in[1] = sh_emit_view(e, e->p->port[SH_PORT_TARGETS], 1, flat);
    op.out[0] = add_tensor(e, SH_MEM_ACT, SH_F32, 1, flat, "weights");
    op.out[1] = sh_program_add_port(e->p, SH_PORT_LOSS, 0, 0, 1);
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

int sh_emit_pair_numbers(const struct sh_op_pair *how)
{
    return sh_cfg_loss_takes(how->loss) & SH_TAKES_MISMATCHED ? SH_PAIR_ALL : SH_PAIR_NUMBERS;
}

int sh_emit_pair_loss(struct sh_emit *e, int x, int w, int64_t chunk_rows, const struct sh_op_pair *how)
{
    bool own = how->loss == SH_PREFER_PLUGIN;
    struct sh_op op = make_op(e, own ? (enum sh_op_kind)how->own : SH_OP_PAIR_LOSS);
    const int64_t *row = DIMS(e->batch, e->seq), *flat = DIMS((int64_t)e->batch * e->seq);
    int takes = sh_cfg_loss_takes(how->loss);

    if (own) {
        sh_plug_numbers(op.kind, &op.attr);
        op.attr.plug.reward = how->beta;
    } else {
        op.attr.pair = *how;
    }
    op.in[0] = sh_emit_view(e, emit_logprob(e, x, w, chunk_rows), 2, row);
    op.in[1] = e->p->port[SH_PORT_TARGETS];
    op.in[2] = e->p->port[SH_PORT_DOCS];
    op.in[3] = takes & (SH_TAKES_REFERENCE | SH_TAKES_NUMBERS) ? add_port(e, SH_PORT_REFERENCE) : SH_NONE;
    op.in[4] = takes & SH_TAKES_LABELS ? add_port(e, SH_PORT_LABELS) : SH_NONE;
    op.out[0] = add_tensor(e, SH_MEM_ACT, SH_F32, 2, row, "weights");
    op.out[1] = add_port(e, SH_PORT_SUMS);
    op.out[2] = sh_program_add_port(e->p, SH_PORT_LOSS, e->batch, e->seq, sh_emit_pair_numbers(how));
    sh_program_add_op(e->p, &op);
    return sh_emit_view(e, op.out[0], 1, flat);
}

/* The group and the stream are the pipeline pass's to set. */
int sh_emit_receive(struct sh_emit *e, int64_t width, int border, int peer)
{
    struct sh_op op = make_op(e, SH_OP_RECEIVE);

    op.attr.link.peer = peer;
    op.attr.link.border = border;
    op.out[0] = activation(e, 2, DIMS((int64_t)e->batch * e->seq, width), "received");
    sh_program_add_op(e->p, &op);
    return op.out[0];
}

void sh_emit_send(struct sh_emit *e, int x, int border, int peer)
{
    struct sh_op op = make_op(e, SH_OP_SEND);

    op.attr.link.peer = peer;
    op.attr.link.border = border;
    op.in[0] = x;
    sh_program_add_op(e->p, &op);
}

void sh_emit_no_loss(struct sh_emit *e, int numbers)
{
    sh_program_add_port(e->p, SH_PORT_LOSS, 0, 0, numbers);
}

/* For generation: logits [B,V] of one position, of all words, of which w may have a part. */
void sh_emit_logits(struct sh_emit *e, int x, int w, int words)
{
    struct sh_op op = make_op(e, SH_OP_LOGITS);

    op.attr.part.cap = e->cap;
    op.in[0] = view3(e, x);
    op.in[1] = w;
    op.out[0] = sh_program_add_port(e->p, SH_PORT_LOGITS, e->batch, e->seq, words);
    sh_program_add_op(e->p, &op);
}
