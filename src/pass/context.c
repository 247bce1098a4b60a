/* Sequences on several ranks. The model has emitted what a rank does with its part of each sequence, n = T / c of T rows;
 * all of it looks at one row at a time, but for attention. Around it, ranks exchange rows for heads, so that each has all
 * rows of a part of the heads:
 *
 *     qkv [B,n,(H+2K)D] -> SPLIT_HEADS [B,c,n,W] -> ALL_TO_ALL of each sequence [B,c,n,W], which is [B,T,W]
 *         -> ROPE -> ATTENTION [B,T,(H/c)D], which is [B,c,n,(H/c)D] -> ALL_TO_ALL -> JOIN_HEADS [B,n,HD]
 *
 * Scores of rows that the host reads are gathered at the end, so that the host of each rank has those of whole sequences.
 *
 * Positions are turned after the exchange, where a row's place is its position; so windows, documents and rotations need
 * nothing. Heads do not depend on each other, so each has the bits that it has on one rank. Jacobs et al., DeepSpeed
 * Ulysses, arXiv:2309.14509.
 *
 * If ranks cannot share the heads, they keep their rows and gather keys and values, rotated by the positions of the port
 * `at`. A rank has two runs of h = n / 2 rows of each sequence, one of either half, so that all see as many keys; runs
 * are like sequences, the first ones of all before the second ones:
 *
 *     qkv [2B,h,(H+2K)D] -> ROPE -> SPLIT_KV q, kv -> ALL_GATHER kv [c,2B,h,2KD] -> FROM_PIECES [B,T,2KD]
 *         -> ATTENTION_ROWS [2B,h,HD] */
#include "src/base/mem.h"
#include "src/pass/build.h"

#include <stdlib.h>
#include <string.h>

struct context {
    struct sh_program *p;
    const struct sh_mesh_shape *mesh;
    sh_group group;
    int ranks, stream;
    /* [n_tensors] by storage root, of what ROPE has made: whole sequences of a part of the heads; SH_NONE */
    int *rotated;
};

/* Another operation of the same place. */
static struct sh_op like(const struct sh_op *of, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    op.phase = of->phase;
    op.block = of->block;
    return op;
}

static int view(struct context *c, int t, int ndim, const int64_t *dim)
{
    struct sh_tensor v = c->p->tensors[t];

    v.base = t;
    v.base_elems = 0;
    v.ndim = ndim;
    memcpy(v.dim, dim, (size_t)ndim * sizeof *dim);
    return sh_program_add_tensor(c->p, &v);
}

static int activation(struct context *c, const struct sh_op *of, int ndim, const int64_t *dim, const char *what)
{
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, c->p->act, ndim, dim, "layers.%d.%s", of->block, what);

    return sh_program_add_tensor(c->p, &t);
}

/* Append an operation with one operand and one result; return that. */
static int append(struct context *c, struct sh_op op, int in, int ndim, const int64_t *dim, const char *what)
{
    op.in[0] = in;
    op.out[0] = activation(c, &op, ndim, dim, what);
    sh_program_add_op(c->p, &op);
    return op.out[0];
}

/* Each rank's part of the heads and its part of the rows change places: [B,c,n,w]. */
static int exchange(struct context *c, const struct sh_op *of, int t, const char *what)
{
    struct sh_op op = like(of, SH_OP_ALL_TO_ALL);
    int64_t dim[SH_MAX_DIMS];

    memcpy(dim, c->p->tensors[t].dim, sizeof dim);
    op.stream = c->stream;
    op.attr.group = c->group;
    op.attr.exchange.sequences = (int)dim[0];
    return append(c, op, t, 4, dim, what);
}

static int on_one(const struct context *c, int kv_heads)
{
    return kv_heads > c->ranks ? kv_heads / c->ranks : 1;
}

/* SPLIT_HEADS or JOIN_HEADS of rows whose heads are those of `of`, with or without keys and values. */
static struct sh_op heads_op(const struct context *c, const struct sh_op *of, enum sh_op_kind kind, bool kv)
{
    struct sh_op op = like(of, kind);

    op.attr.split.ranks = c->ranks;
    op.attr.split.heads = of->attr.attn.heads / c->ranks;
    op.attr.split.kv_here = kv ? on_one(c, of->attr.attn.kv_heads) : 0;
    op.attr.split.kv_heads = kv ? of->attr.attn.kv_heads : 0;
    op.attr.split.head_dim = of->attr.attn.head_dim;
    return op;
}

/* qkv [B,n,(H+2K)D] of rank's rows -> [B,T,(H'+2K')D] of its heads. */
static int gather_rows(struct context *c, const struct sh_op *of, int qkv)
{
    struct sh_op split = heads_op(c, of, SH_OP_SPLIT_HEADS, true);
    int64_t B = c->p->tensors[qkv].dim[0], n = c->p->tensors[qkv].dim[1];
    int64_t width =
        ((int64_t)split.attr.split.heads + 2 * (int64_t)split.attr.split.kv_here) * split.attr.split.head_dim;
    int t = append(c, split, qkv, 4, DIMS(B, c->ranks, n, width), "split");

    return view(c, exchange(c, of, t, "exchanged"), 3, DIMS(B, c->ranks * n, width));
}

/* [B,T,H'D] of a rank's heads -> o [B,n,HD] of its rows. */
static void scatter_rows(struct context *c, const struct sh_op *of, int t, int o)
{
    struct sh_op join = heads_op(c, of, SH_OP_JOIN_HEADS, false);
    int64_t B = c->p->tensors[o].dim[0], n = c->p->tensors[o].dim[1], width = c->p->tensors[t].dim[2];

    join.in[0] = exchange(c, of, view(c, t, 4, DIMS(B, c->ranks, n, width)), "attention exchanged");
    join.out[0] = o;
    sh_program_add_op(c->p, &join);
}

/* The operation on whole sequences and a part of the heads. */
static struct sh_op over_heads(const struct context *c, const struct sh_op *old)
{
    struct sh_op op = *old;

    op.attr.attn.heads = old->attr.attn.heads / c->ranks;
    op.attr.attn.kv_heads = on_one(c, old->attr.attn.kv_heads);
    return op;
}

static void rope(struct context *c, const struct sh_op *old)
{
    struct sh_op op = over_heads(c, old);

    op.in[0] = gather_rows(c, old, old->in[0]);
    op.out[0] = activation(c, old, 3, c->p->tensors[op.in[0]].dim, "rotated");
    sh_program_add_op(c->p, &op);
    c->rotated[sh_tensor_root(c->p, old->out[0])] = op.out[0];
}

static void attention(struct context *c, const struct sh_op *old)
{
    struct sh_op op = over_heads(c, old);
    int rotated = c->rotated[sh_tensor_root(c->p, old->in[0])];
    int64_t B = c->p->tensors[old->in[0]].dim[0], T = c->ranks * c->p->tensors[old->in[0]].dim[1];
    struct sh_tensor lse =
        sh_tensor_make(SH_MEM_ACT, SH_F32, 3, DIMS(B, op.attr.attn.heads, T), "layers.%d.lse", old->block);

    op.in[0] = rotated == SH_NONE ? gather_rows(c, old, old->in[0]) : rotated;
    op.out[0] = activation(c, old, 3, DIMS(B, T, (int64_t)op.attr.attn.heads * op.attr.attn.head_dim), "attention");
    op.out[1] = sh_program_add_tensor(c->p, &lse);
    sh_program_add_op(c->p, &op);
    scatter_rows(c, old, op.out[0], old->out[0]);
}

static bool is_port(const struct context *c, int tensor)
{
    for (int port = 0; port < SH_PORTS && tensor != SH_NONE; port++)
        if (c->p->port[port] == tensor)
            return true;
    return false;
}

/* HEAD_SCORE of a rank's rows, and what it makes for the host gathered from all: [c B n, ...], each in its port. */
static void score(struct context *c, const struct sh_op *old)
{
    struct sh_op op = *old;

    for (int k = 0; k < SH_OP_MAX_OUT; k++) {
        struct sh_tensor here;

        if (!is_port(c, old->out[k]))
            continue;
        here = c->p->tensors[old->out[k]];
        here = sh_tensor_make(SH_MEM_ACT, here.dtype, here.ndim, here.dim, "%s of rows", here.name);
        op.out[k] = sh_program_add_tensor(c->p, &here);
    }
    sh_program_add_op(c->p, &op);
    for (int k = 0; k < SH_OP_MAX_OUT; k++) {
        struct sh_op gather = like(old, SH_OP_ALL_GATHER);

        if (op.out[k] == old->out[k])
            continue;
        c->p->tensors[old->out[k]].dim[0] *= c->ranks;
        gather.stream = c->stream;
        gather.attr.group = c->group;
        gather.in[0] = op.out[k];
        gather.out[0] = old->out[k];
        sh_program_add_op(c->p, &gather);
    }
}

void sh_pass_place_runs(const struct sh_mesh_shape *mesh, int64_t rows, struct sh_op_attr *attr)
{
    int64_t ranks = sh_group_size(mesh, mesh->context), place = sh_group_index(mesh, mesh->context);

    attr->attn.runs = 2;
    attr->attn.first[0] = place * rows;
    attr->attn.first[1] = (2 * ranks - 1 - place) * rows;
}

/* The queries of old's packed rows, [2B h,HD]; *kv: keys and values. */
static int split_kv(struct context *c, const struct sh_op *old, int *kv)
{
    struct sh_op op = like(old, SH_OP_SPLIT_KV);
    int64_t rows = c->p->tensors[old->in[0]].dim[0] * c->p->tensors[old->in[0]].dim[1];
    int64_t width = c->p->tensors[old->in[0]].dim[2], D = old->attr.attn.head_dim;

    op.attr.attn = old->attr.attn;
    op.in[0] = view(c, old->in[0], 2, DIMS(rows, width));
    op.out[0] = activation(c, old, 2, DIMS(rows, old->attr.attn.heads * D), "queries");
    op.out[1] = *kv = activation(c, old, 2, DIMS(rows, 2 * old->attr.attn.kv_heads * D), "kv");
    sh_program_add_op(c->p, &op);
    return op.out[0];
}

/* kv [2B h,W] of this rank -> [B,T,W] of all. */
static int gather_kv(struct context *c, const struct sh_op *old, int kv)
{
    struct sh_op gather = like(old, SH_OP_ALL_GATHER);
    int64_t runs = c->p->tensors[old->in[0]].dim[0], rows = c->p->tensors[old->in[0]].dim[1];
    int64_t width = c->p->tensors[kv].dim[1];
    int all;

    gather.stream = c->stream;
    gather.attr.group = c->group;
    all = append(c, gather, kv, 4, DIMS(c->ranks, runs, rows, width), "kv gathered");
    return append(c, like(old, SH_OP_FROM_PIECES), all, 3, DIMS(runs / 2, 2 * c->ranks * rows, width), "keys");
}

static void attention_of_rows(struct context *c, const struct sh_op *old)
{
    struct sh_op op = *old;
    int64_t runs = c->p->tensors[old->in[0]].dim[0], rows = c->p->tensors[old->in[0]].dim[1];
    int kv, q = split_kv(c, old, &kv);

    op.kind = SH_OP_ATTENTION_ROWS;
    op.in[0] = view(c, q, 3, DIMS(runs, rows, c->p->tensors[q].dim[1]));
    op.in[1] = gather_kv(c, old, kv);
    op.in[2] = old->in[1];
    sh_pass_place_runs(c->mesh, rows, &op.attr);
    sh_program_add_op(c->p, &op);
}

sh_rc sh_pass_context(const struct sh_build *b, struct sh_program *p)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    struct context c = {.p = p, .mesh = mesh, .group = mesh->context, .ranks = sh_group_size(mesh, mesh->context)};
    struct sh_op *old = p->ops;
    int n = p->n_ops, tensors = p->n_tensors;

    if (c.ranks == 1)
        return SH_OK;
    c.stream = sh_program_add_stream(p, "context", SH_RUNS_COLLECTIVES);
    c.rotated = sh_calloc((size_t)tensors, sizeof *c.rotated);
    for (int t = 0; t < tensors; t++)
        c.rotated[t] = SH_NONE;
    p->ops = NULL;
    p->n_ops = p->cap_ops = 0;
    for (int i = 0; i < n; i++)
        if (b->options.gather && old[i].kind == SH_OP_ATTENTION)
            attention_of_rows(&c, &old[i]);
        else if (!b->options.gather && old[i].kind == SH_OP_ROPE)
            rope(&c, &old[i]);
        else if (old[i].kind == SH_OP_ATTENTION)
            attention(&c, &old[i]);
        else if (old[i].kind == SH_OP_HEAD_SCORE)
            score(&c, &old[i]);
        else
            sh_program_add_op(p, &old[i]);
    free(old);
    free(c.rotated);
    return SH_OK;
}
