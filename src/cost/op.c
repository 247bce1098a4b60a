/* The price of an operation:
 *
 *     launch + max(operations / (peak e), bytes / (memory m)) x correction
 *
 * e of a product is g d / (d + h), where d is the smallest of rows, inputs and outputs: small products fill neither the
 * tiles nor all multiprocessors. e of attention is a share of its causal operations, by the kernel that computes them:
 * cuDNN's in any order or in one, which also moves a [T,T], or Sherd's own. The head also writes, reads and
 * overwrites the logits of its chunks: 10 bytes each (float32 twice, and the gradient in 16 bits). */
#include "src/cost/price.h"

#include "kernels/cuda/gemm/work_product.h"
#include "kernels/cuda/work.h"
#include "src/cost/nearby.h"

#include <math.h>
#include <string.h>

/* 4 written, 4 read, 2 overwritten: the gradient replaces the logits. */
static const double logit_bytes = 10;

const struct sh_cost_faster sh_cost_as_is = {
    .products = 1, .attention = 1, .memory = 1, .latency = 1, .network = 1, .slowdown = 1, .host = 1, .spread = 1};

const char *sh_cost_class_name(enum sh_cost_class c)
{
    static const char *const names[SH_COST_CLASSES] = {[SH_COST_PRODUCTS] = "products",
                                                       [SH_COST_ATTENTION] = "attention",
                                                       [SH_COST_OTHER] = "other",
                                                       [SH_COST_ALL_GATHER] = "all_gather",
                                                       [SH_COST_REDUCE_SCATTER] = "reduce_scatter",
                                                       [SH_COST_ALL_REDUCE] = "all_reduce",
                                                       [SH_COST_ALL_TO_ALL] = "all_to_all",
                                                       [SH_COST_MESSAGES] = "messages",
                                                       [SH_COST_MOVES] = "moves"};
    return names[c];
}

/* The classes that the tables distinguish. Newton-Schulz steps of Muon are products. The products of adapters are thin and
 * memory-bound, so they are "other". */
enum sh_cost_class sh_cost_class_of(enum sh_op_kind kind)
{
    switch (kind) {
    case SH_OP_LINEAR:
    case SH_OP_LINEAR_BWD_X:
    case SH_OP_LINEAR_BWD_W:
    case SH_OP_EXPERT_LINEAR:
    case SH_OP_EXPERT_LINEAR_BWD_X:
    case SH_OP_EXPERT_LINEAR_BWD_W:
    case SH_OP_HEAD_LOSS:
    case SH_OP_HEAD_LOSS_GRAD:
    case SH_OP_LOGITS:
    case SH_OP_ORTHO: return SH_COST_PRODUCTS;
    case SH_OP_ATTENTION:
    case SH_OP_ATTENTION_BWD:
    case SH_OP_ATTENTION_ROWS:
    case SH_OP_ATTENTION_ROWS_BWD: return SH_COST_ATTENTION;
    case SH_OP_ALL_GATHER: return SH_COST_ALL_GATHER;
    case SH_OP_REDUCE_SCATTER: return SH_COST_REDUCE_SCATTER;
    case SH_OP_ALL_REDUCE: return SH_COST_ALL_REDUCE;
    case SH_OP_ALL_TO_ALL: return SH_COST_ALL_TO_ALL;
    case SH_OP_SEND:
    case SH_OP_RECEIVE: return SH_COST_MESSAGES;
    case SH_OP_FETCH:
    case SH_OP_EVICT: return SH_COST_MOVES;
    default: return SH_COST_OTHER;
    }
}

/* 0 for an absent operand; a scalar has one dimension of 1. */
static double elems(const struct sh_operand *t)
{
    double n = t->ndim > 0;

    for (int i = 0; i < t->ndim; i++)
        n *= (double)t->dim[i];
    return n;
}

/* The number of features in a row. */
static double last_dim(const struct sh_operand *t)
{
    return (double)t->dim[t->ndim - 1];
}

static bool is_experts(enum sh_op_kind kind)
{
    return kind == SH_OP_EXPERT_LINEAR || kind == SH_OP_EXPERT_LINEAR_BWD_X || kind == SH_OP_EXPERT_LINEAR_BWD_W;
}

/* Rows of one group if all have the same, inputs, outputs, groups: as many as experts, or several for each. */
static int experts_dims(const struct sh_op_call *c, double dims[SH_POINT_DIMS])
{
    bool bwd_w = c->kind == SH_OP_EXPERT_LINEAR_BWD_W;
    const struct sh_operand *w = bwd_w ? &c->out[0] : &c->in[2];
    double M = (double)c->in[0].dim[0], expected = (double)c->attr->rows.expected;

    dims[3] = elems(&c->in[bwd_w ? 2 : 1]) - 1;
    dims[0] = (expected > 0 ? fmin(expected, M) : M) / dims[3];
    dims[1] = (double)w->dim[c->attr->rows.w_in_out ? 1 : 2];
    dims[2] = (double)w->dim[c->attr->rows.w_in_out ? 2 : 1];
    return 4;
}

/* Rows, inputs, outputs; for the head also the rows of a chunk. The operands of the three products of a layer differ in
 * which two of the dimensions they have. */
static int product_dims(const struct sh_op_call *c, double dims[SH_POINT_DIMS])
{
    const struct sh_operand *x = &c->in[0];
    double wide = last_dim(x);

    dims[0] = elems(x) / wide;
    dims[1] = wide;
    if (c->kind == SH_OP_LINEAR_BWD_X || c->kind == SH_OP_LINEAR_BWD_W) {
        dims[1] = last_dim(c->kind == SH_OP_LINEAR_BWD_X ? &c->out[0] : &c->in[1]);
        dims[2] = wide;
        return 3;
    }
    dims[2] = c->kind == SH_OP_LINEAR ? last_dim(&c->out[0]) : (double)c->in[1].dim[0];
    if (c->kind == SH_OP_LINEAR || c->kind == SH_OP_LOGITS)
        return 3;
    dims[3] = c->attr->head.chunk_rows > 0 ? fmin(dims[0], (double)c->attr->head.chunk_rows) : dims[0];
    return 4;
}

static bool is_forward(enum sh_op_kind kind)
{
    return kind == SH_OP_ATTENTION || kind == SH_OP_ATTENTION_ROWS;
}

/* The keys and values of runs of queries; NULL: queries, keys and values are one tensor. */
static const struct sh_operand *keys_apart(const struct sh_op_call *c)
{
    return c->kind == SH_OP_ATTENTION_ROWS ? &c->in[1] : c->kind == SH_OP_ATTENTION_ROWS_BWD ? &c->in[2] : NULL;
}

/* Batch, sequence, heads, key-value heads, width of a head. Runs of queries are a part of their sequences. */
static int attention_dims(const struct sh_op_call *c, double dims[SH_POINT_DIMS])
{
    const struct sh_operand *kv = keys_apart(c);

    dims[0] = (double)c->in[0].dim[0];
    dims[1] = (double)c->in[0].dim[1];
    if (kv) {
        dims[0] *= dims[1] / (double)kv->dim[1];
        dims[1] = (double)kv->dim[1];
    }
    dims[2] = c->attr->attn.heads;
    dims[3] = c->attr->attn.kv_heads;
    dims[4] = c->attr->attn.head_dim;
    return 5;
}

/* Pointwise operations differ only by their bytes, at least 1: distances use logarithms. So do sets of matrices, which have
 * many sides. */
int sh_price_dims(const struct sh_op_call *call, double dims[SH_POINT_DIMS])
{
    switch (call->kind == SH_OP_ORTHO ? SH_COST_OTHER : sh_cost_class_of(call->kind)) {
    case SH_COST_PRODUCTS: return (is_experts(call->kind) ? experts_dims : product_dims)(call, dims);
    case SH_COST_ATTENTION: return attention_dims(call, dims);
    default: dims[0] = fmax(1, sh_op_cost(call).bytes); return 1;
    }
}

enum sh_dtype sh_price_act(const struct sh_op_call *call, enum sh_dtype act)
{
    if (call->kind != SH_OP_ORTHO)
        return act;
    return call->attr->ortho.narrow ? SH_BF16 : SH_F32;
}

/* A call or a measured point, reduced to what the formula needs. */
struct work {
    enum sh_op_kind kind;
    enum sh_dtype act;
    int n;
    double dims[SH_POINT_DIMS], flops, bytes;
    double launches;  /* of kernels, on a device that has launch_seconds */
    double narrowest; /* ORTHO: the largest of the matrices' shorter sides */
    double copied;    /* ORTHO: operations that CPUs leave out, since results are symmetric */
    /* Of attention: the share of pairs of a query and an earlier key that a window or documents leave, and its kernel */
    double seen;
    bool own, any_order, plain; /* Sherd's own; sums in any order; on a GPU, without tensor cores */
};

/* Only these two have logits in chunks; the others of the class have none. */
static bool is_head(enum sh_op_kind kind)
{
    return kind == SH_OP_HEAD_LOSS || kind == SH_OP_HEAD_LOSS_GRAD;
}

static void add_logits(struct work *w)
{
    if (is_head(w->kind))
        w->bytes += logit_bytes * w->dims[0] * w->dims[2];
}

/* The share of T(T+1)/2 pairs within documents. Kernels work in tiles, of which a query wastes one. */
static double in_documents(double mean, double T)
{
    const double tile = 64;

    return fmin(1, (sh_op_pairs_in_documents(mean, T) + tile * T) / (T * (T + 1) / 2));
}

/* Computed from the operation counts with the window and without it, so that the rule of the window is in one place
 * only (kernels/cost.c). */
static double in_window(const struct sh_op_call *call, double flops)
{
    struct sh_op_attr attr = *call->attr;
    struct sh_op_call all = *call;

    if (!attr.attn.window)
        return 1;
    attr.attn.window = 0;
    all.attr = &attr;
    return flops / sh_op_cost(&all).flops;
}

/* Documents of unknown length may each fill a sequence. */
static void look_at_attention(const struct sh_op_call *call, struct work *w)
{
    const struct sh_operand *docs = &call->in[(is_forward(call->kind) ? 1 : 4) + (keys_apart(call) != NULL)];
    double mean = call->attr->attn.document_tokens, window = in_window(call, w->flops);

    w->seen = docs->ndim && mean >= 1 ? fmin(window, in_documents(mean, w->dims[1])) : window;
    w->flops *= w->seen / window;
    w->own = keys_apart(call) || sh_cuda_cudnn_work(call).batch == 0;
    w->any_order = call->attr->attn.any_order;
    w->plain = w->own && (call->attr->attn.cap != 0 || !sh_cuda_attention_tiles(call->attr->attn.head_dim));
}

/* Matrix by matrix: three products and a sum in each step, and its norm before and its scale after them. */
static void look_at_matrices(const struct sh_op_call *call, struct work *w)
{
    const struct sh_op_attr *a = call->attr;

    w->narrowest = (double)a->ortho.most_short;
    w->copied = sh_op_copied(call);
    w->launches = 0;
    for (int i = 0; i < a->ortho.count; i++)
        w->launches += (double)call->matrices[i].repeat * (4 * a->ortho.steps + 4);
}

static struct work work_of(const struct sh_op_call *call, enum sh_dtype act)
{
    struct sh_op_cost cost = sh_op_cost(call);
    struct work w = {.kind = call->kind,
                     .act = sh_price_act(call, act),
                     .flops = fmax(0, cost.flops),
                     .bytes = cost.bytes,
                     .launches = 1};

    w.n = sh_price_dims(call, w.dims);
    if (call->kind == SH_OP_ORTHO)
        look_at_matrices(call, &w);
    if (sh_cost_class_of(call->kind) == SH_COST_ATTENTION)
        look_at_attention(call, &w);
    add_logits(&w);
    return w;
}

/* Matrices of the same sides, as many as have these bytes. */
static struct work matrices_like(const struct work *like, double bytes)
{
    double times = bytes / like->dims[0];
    struct work w = *like;

    w.dims[0] = bytes;
    w.flops *= times, w.copied *= times, w.bytes *= times, w.launches *= times;
    return w;
}

/* A point has only dimensions; the counts are those of sh_op_cost() without biases and residual inputs. The kernel of
 * attention is taken for that of the call `like`, and so are the sides of matrices. */
static struct work work_of_point(const struct work *like, const double *dims)
{
    enum sh_op_kind kind = like->kind;
    struct work w = {.kind = kind, .act = like->act, .n = like->n, .seen = 1, .launches = 1};
    double size = sh_dtype_bytes(w.act), *d = w.dims;

    if (kind == SH_OP_ORTHO && like->bytes > 0)
        return matrices_like(like, dims[0]);
    w.own = like->own, w.any_order = like->any_order, w.plain = like->plain;
    memcpy(d, dims, (size_t)w.n * sizeof *dims);
    switch (sh_cost_class_of(kind)) {
    case SH_COST_PRODUCTS:
        w.flops = (kind == SH_OP_HEAD_LOSS_GRAD ? 6 : 2) * d[0] * d[1] * d[2];
        w.bytes = size * (d[0] * d[1] + d[1] * d[2] + (is_head(kind) ? 0 : d[0] * d[2]));
        w.bytes += kind == SH_OP_LINEAR_BWD_W || kind == SH_OP_EXPERT_LINEAR_BWD_W ? (4 - size) * d[1] * d[2] : 0;
        w.flops *= is_experts(kind) ? d[3] : 1;
        w.bytes *= is_experts(kind) ? d[3] : 1;
        add_logits(&w);
        break;
    case SH_COST_ATTENTION:
        w.bytes = (is_forward(kind) ? 1 : 2) * size * d[0] * d[1] * d[4] * (2 * d[2] + 2 * d[3]);
        break;
    default: w.bytes = d[0];
    }
    return w;
}

/* The smallest dimension, which fills tiles least. */
static double least(const double *dims, int n)
{
    double d = dims[0];

    for (int i = 1; i < n; i++)
        d = fmin(d, dims[i]);
    return d;
}

/* Causal: half of 4 N T H D in the forward, or what a window leaves of that; 2.5 times that in the backward. */
static double attention_flops(const struct work *w)
{
    double forward = w->seen * 2 * w->dims[0] * w->dims[1] * w->dims[1] * w->dims[2] * w->dims[4];

    return is_forward(w->kind) ? forward : 2.5 * forward;
}

/* In one order, cuDNN's backward takes a second pass over the [T,T] of each head. */
static double attention_seconds(const struct sh_machine *m, const struct sh_cost_faster *f, const struct work *w,
                                double peak)
{
    bool forward = is_forward(w->kind), ordered = !forward && !w->own && !w->any_order;
    double share = forward ? m->attention.forward : m->attention.backward;
    const double *d = w->dims;
    double square = ordered ? m->attention.ordered_bytes * d[0] * d[1] * d[1] * d[2] : 0;

    share *= w->own ? m->attention.own : ordered ? m->attention.ordered : 1;
    return attention_flops(w) / (peak * share) / f->attention +
           square / (m->memory.bytes_per_second * m->memory.share * f->memory);
}

static bool has_state(enum sh_op_kind kind)
{
    return kind == SH_OP_GATED_DELTA || kind == SH_OP_GATED_DELTA_BWD || kind == SH_OP_SCAN || kind == SH_OP_SCAN_BWD;
}

/* The operations that are done. */
static double done(const struct sh_machine *m, const struct work *w)
{
    return w->flops - (sh_machine_is_gpu(m) ? 0 : w->copied);
}

/* The seconds of the arithmetic. */
static double arithmetic(const struct sh_machine *m, const struct sh_cost_faster *f, const struct work *w)
{
    bool experts = is_experts(w->kind);
    bool narrow = w->act == SH_BF16 && !(w->plain && sh_machine_is_gpu(m));
    double peak = narrow ? m->peak.bfloat16 : m->peak.float32, d = least(w->dims, experts ? 3 : w->n);
    double share = m->product.share * (experts ? m->product.experts : 1);

    if (w->kind == SH_OP_ORTHO)
        return done(m, w) / (peak * share * w->narrowest / (w->narrowest + m->product.half)) / f->products;
    if (has_state(w->kind)) /* in float32 whatever act is */
        return w->flops / (m->peak.float32 * share) / f->products;
    switch (sh_cost_class_of(w->kind)) {
    case SH_COST_PRODUCTS: return w->flops / (peak * share * d / (d + m->product.half)) / f->products;
    case SH_COST_ATTENTION: return attention_seconds(m, f, w, peak);
    default: return 0;
    }
}

/* Arithmetic and memory accesses overlap, so the longer of the two counts. */
static double formula(const struct sh_machine *m, const struct sh_cost_faster *f, const struct work *w)
{
    double memory = w->bytes / (m->memory.bytes_per_second * m->memory.share * f->memory);

    return w->launches * m->device.launch_seconds + fmax(arithmetic(m, f, w), memory);
}

/* The words of machine files are those of the configuration. */
const char *sh_price_type(enum sh_dtype act)
{
    return act == SH_BF16 ? "bfloat16" : act == SH_F16 ? "float16" : "float32";
}

/* The ratio of measured to formula, from nearby points. */
static double correction(const struct sh_machine *m, const struct work *w)
{
    const char *kind = sh_op_info(w->kind)->name;
    struct sh_nearby near = {0};

    for (int i = 0; i < m->n_points; i++) {
        const struct sh_machine_point *p = &m->points[i];
        struct work at;

        if (p->what != SH_POINT_OP || p->n_dims != w->n || strcmp(p->kind, kind) ||
            strcmp(p->type, sh_price_type(w->act)))
            continue;
        at = work_of_point(w, p->dims);
        sh_nearby_add(&near, sh_nearby_distance(w->dims, p->dims, w->n), p->seconds / formula(m, &sh_cost_as_is, &at));
    }
    return sh_nearby_ratio(&near);
}

struct sh_price sh_price_op(const struct sh_machine *m, const struct sh_cost_faster *f, const struct sh_op_call *call,
                            enum sh_dtype act)
{
    struct work w = work_of(call, act);

    return (struct sh_price){
        .seconds = formula(m, f, &w) * correction(m, &w) * m->fit.computation, .flops = done(m, &w), .bytes = w.bytes};
}

/* Each GPU has its own link, which carries both directions at once. */
struct sh_price sh_price_host_move(const struct sh_machine *m, enum sh_op_kind kind, double bytes)
{
    double seconds = bytes / (kind == SH_OP_FETCH ? m->host.read : m->host.write);

    return (struct sh_price){.seconds = seconds,
                             .transfer = seconds,
                             .bytes = bytes,
                             .link = kind == SH_OP_FETCH ? SH_LINK_HOST_IN : SH_LINK_HOST_OUT};
}

/* Bytes over the rate of the disk; requests are so large that nothing else matters. */
struct sh_price sh_price_move(const struct sh_machine *m, enum sh_op_kind kind, int sharing, double bytes)
{
    double seconds = bytes * sharing / (kind == SH_OP_FETCH ? m->scratch.read : m->scratch.write);

    return (struct sh_price){.seconds = seconds, .transfer = seconds, .bytes = bytes, .link = SH_LINK_FILE};
}
