/* Matrices on several ranks. The model has emitted all N rows of a micro-step, and of each block the matrices, heads and
 * widths of one place. Here the rows outside of the products are cut too, n = N / t for each of t ranks:
 *
 *     x [n,C] -> norm [n,C] -> ALL_GATHER [N,C] -> qkv [N,(H+2K)D/t] -> attention [N,HD/t]
 *             -> o [N,C], a part of a sum -> REDUCE_SCATTER [n,C] -> bias -> + x
 *
 * and so for the feed-forward part. A product that is cut along its outputs needs all rows, one that is cut along its
 * inputs makes a part of each; whatever lies between the two sees all rows of a part of the heads or widths, and
 * whatever lies outside sees its own rows. So are the words of the embedding: the ranks' rows are summed, of which one has
 * each row. Shoeybi et al., Megatron-LM, arXiv:1909.08053; Korthikanti et al.,
 * arXiv:2205.05198.
 *
 * A parameter that is read outside is whole, and each rank has the gradient of its own rows: a part of the gradient, as
 * with other sequences. So its unit is cut over the ranks of tensor as it is over those of shard; its gradient is summed
 * over both at once, and each element has one owner that counts it in the norm and updates it. Blocks have few of them,
 * norms, biases and halves of adapters: they are one unit for all blocks, which stays gathered. Each rank's gradient of
 * such a half, of all rows and of its part of the product, is a part of the sum too.
 *
 * Routers and experts are outside of the products: each rank has them whole, or those of its place on the expert axis, and
 * they see its rows, as if it had other sequences.
 *
 * A program that continues texts has few rows, one of each text after its prompt. Its ranks all have all of them outside of
 * the products too: parts are summed in place, ALL_REDUCE, and nothing is gathered. So are logits, which are 0 for the
 * words of other ranks. */
#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/program/saved.h"

#include <stdlib.h>
#include <string.h>

struct tensor_pass {
    struct sh_program *p;
    const struct sh_mesh_shape *mesh;
    int ranks, place, stream;
    bool whole;    /* each rank has all rows everywhere */
    int n_tensors; /* of the model */
    bool *own;     /* [n_tensors] by storage root: it has the rank's rows only */
    int *gathered; /* [n_tensors] all rows of it, SH_NONE */
};

static struct sh_op like(const struct sh_op *of, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    op.phase = of->phase;
    op.block = of->block;
    return op;
}

/* Another activation like t, which has all rows. */
static int activation(struct tensor_pass *c, const struct sh_op *of, int t, const char *what)
{
    const struct sh_tensor *all = &c->p->tensors[t];
    struct sh_tensor a = sh_tensor_make(SH_MEM_ACT, all->dtype, all->ndim, all->dim, "%s", what);

    if (of->block != SH_NONE)
        snprintf(a.name, sizeof a.name, "layers.%d.%s", of->block, what);
    return sh_program_add_tensor(c->p, &a);
}

static void exchange(struct tensor_pass *c, const struct sh_op *of, enum sh_op_kind kind, int in, int out)
{
    struct sh_op op = like(of, kind);

    op.stream = c->stream;
    op.attr.group = c->mesh->tensor;
    op.in[0] = in;
    op.out[0] = out;
    sh_program_add_op(c->p, &op);
}

/* All rows of t. What several products read is gathered once. */
static int gather(struct tensor_pass *c, const struct sh_op *of, int t)
{
    if (c->whole)
        return t;
    if (c->gathered[t] == SH_NONE) {
        c->gathered[t] = activation(c, of, t, "gathered");
        exchange(c, of, SH_OP_ALL_GATHER, t, c->gathered[t]);
    }
    return c->gathered[t];
}

/* Leave a tensor of all rows, one of the model's, the rows of this rank: its dims before the last become these. */
static void cut_rows(const struct tensor_pass *c, struct sh_tensor *t)
{
    if (t->ndim == 3) {
        t->dim[1] = t->dim[0] * t->dim[1] / c->ranks;
        t->dim[0] = 1;
    } else {
        t->dim[0] /= c->ranks;
    }
}

/* This rank's rows of an input, [B,T] or [N], as [1,n] or [n]. */
static int rows_of(struct tensor_pass *c, int t)
{
    struct sh_tensor view = c->p->tensors[t];
    int64_t n = sh_tensor_elems(&view) / c->ranks;

    view.base = t;
    view.base_elems = n * c->place;
    view.dim[view.ndim - 1] = n;
    if (view.ndim == 2)
        view.dim[0] = 1;
    return sh_program_add_tensor(c->p, &view);
}

static const struct sh_param *param_of(const struct tensor_pass *c, int t)
{
    return &c->p->params[c->p->tensors[sh_tensor_root(c->p, t)].param];
}

/* Where a rank's part of y is before it is summed. */
static int part_of(struct tensor_pass *c, const struct sh_op *of, int y, const char *what)
{
    return c->whole ? y : activation(c, of, y, what);
}

static void sum_into(struct tensor_pass *c, const struct sh_op *of, int part, int y)
{
    exchange(c, of, c->whole ? SH_OP_ALL_REDUCE : SH_OP_REDUCE_SCATTER, c->whole ? SH_NONE : part, y);
}

/* A tensor like y, which has all rows, for the rows of a sum. */
static int sum_like(struct tensor_pass *c, const struct sh_op *of, int y)
{
    int sum = activation(c, of, y, "sum");

    if (!c->whole)
        cut_rows(c, &c->p->tensors[sum]);
    return sum;
}

/* The sum of all ranks' parts, of which each gets its rows; then the bias, which is added once. An adapter adds to the
 * part of its rank, for it is linear too. */
static void sum_parts(struct tensor_pass *c, struct sh_op op, const struct sh_op *adapter)
{
    int bias = op.in[2], y = adapter ? adapter->out[0] : op.out[0];
    int sum = bias != SH_NONE && c->whole ? sum_like(c, &op, y) : y;
    struct sh_op add = like(&op, SH_OP_BIAS), adapt;

    op.in[2] = SH_NONE;
    op.out[0] = adapter ? activation(c, &op, y, "part") : part_of(c, &op, sum, "part");
    sh_program_add_op(c->p, &op);
    if (adapter) {
        adapt = *adapter;
        adapt.in[0] = op.out[0];
        op.out[0] = adapt.out[0] = part_of(c, &op, sum, "adapted part");
        sh_program_add_op(c->p, &adapt);
    }
    c->own[y] = !c->whole;
    if (bias != SH_NONE && !c->whole)
        sum = sum_like(c, &op, y);
    sum_into(c, &op, op.out[0], sum);
    if (bias == SH_NONE)
        return;
    add.in[0] = sum;
    add.in[1] = bias;
    add.out[0] = y;
    sh_program_add_op(c->p, &add);
}

static bool is_cut_by_inputs(const struct tensor_pass *c, const struct sh_op *op)
{
    return op->kind == SH_OP_LINEAR && param_of(c, op->in[1])->n_bands &&
           param_of(c, op->in[1])->cut == (op->attr.linear.w_in_out ? 0 : 1);
}

/* A product that is cut along its outputs, its adapter, or the loss or scores need all rows. */
static void from_all_rows(struct tensor_pass *c, struct sh_op op)
{
    int x = op.kind == SH_OP_LORA ? 1 : 0;

    op.in[x] = gather(c, &op, op.in[x]);
    sh_program_add_op(c->p, &op);
}

/* Not the products of a matrix that all ranks have whole, as beside experts. */
static bool needs_all_rows(const struct tensor_pass *c, const struct sh_op *op)
{
    if (op->kind == SH_OP_LINEAR)
        return param_of(c, op->in[1])->n_bands > 0;
    if (op->kind == SH_OP_LORA)
        return param_of(c, op->in[2])->n_bands > 0 || param_of(c, op->in[3])->n_bands > 0;
    return op->kind == SH_OP_HEAD_LOSS || op->kind == SH_OP_HEAD_SCORE;
}

static bool is_own(const struct tensor_pass *c, int t)
{
    int root = t == SH_NONE ? SH_NONE : sh_tensor_root(c->p, t);

    return root != SH_NONE && root < c->n_tensors && c->own[root];
}

/* Each rank has the rows of its words, and 0 for the others: parts of a sum too. */
static void embed_words(struct tensor_pass *c, struct sh_op op)
{
    const struct sh_param *table = param_of(c, op.in[1]);
    int x = op.out[0];

    op.attr.part.first = table->band[0].first;
    op.attr.part.all = sh_saved_of(c->p, table)->dim[0];
    op.out[0] = part_of(c, &op, x, "embedded part");
    sh_program_add_op(c->p, &op);
    sum_into(c, &op, op.out[0], x);
    c->own[x] = !c->whole;
}

static int means(struct tensor_pass *c, int64_t rows)
{
    const int64_t dim[] = {rows, 2};
    struct sh_tensor t = sh_tensor_make(SH_MEM_ACT, SH_F32, 2, dim, "means");

    return sh_program_add_tensor(c->p, &t);
}

/* A norm of all heads together, of which each rank has some: from the mean of all ranks' squares. */
static void norm_all_heads(struct tensor_pass *c, struct sh_op op)
{
    struct sh_op mean = like(&op, SH_OP_QK_MEANS);
    int64_t rows = c->p->tensors[op.in[0]].dim[0];
    int part = c->whole ? SH_NONE : means(c, rows / c->ranks);

    mean.attr.qk = op.attr.qk;
    mean.attr.qk.ranks = c->ranks;
    mean.in[0] = mean.in[1] = op.in[0];
    mean.out[0] = op.in[3] = means(c, rows);
    sh_program_add_op(c->p, &mean);
    if (c->whole) {
        exchange(c, &op, SH_OP_ALL_REDUCE, SH_NONE, op.in[3]);
    } else {
        exchange(c, &op, SH_OP_REDUCE_SCATTER, op.in[3], part);
        op.in[3] = means(c, rows);
        exchange(c, &op, SH_OP_ALL_GATHER, part, op.in[3]);
    }
    sh_program_add_op(c->p, &op);
}

/* A rank has the logits of its words. */
static void logits_of_words(struct tensor_pass *c, struct sh_op op)
{
    const struct sh_param *head = param_of(c, op.in[1]);

    op.attr.part.first = head->band[0].first;
    op.attr.part.all = sh_saved_of(c->p, head)->dim[0];
    sh_program_add_op(c->p, &op);
    sum_into(c, &op, op.out[0], op.out[0]);
}

/* Numbers of experts, whatever rows they are of. */
static bool is_of_experts(enum sh_op_kind kind, int out)
{
    return kind == SH_OP_ROUTE_LOAD || kind == SH_OP_ROUTE_LOSS || (kind == SH_OP_ROUTE_PLAN && out == 2);
}

/* An operation between products, or outside of them: its results have the rows that its operands have. Positions are
 * looked up outside, and stages send their own rows. */
static void other(struct tensor_pass *c, struct sh_op op)
{
    bool outside = !c->whole && (op.kind == SH_OP_EMBED || op.kind == SH_OP_RECEIVE);

    for (int k = 0; k < SH_OP_MAX_IN; k++)
        outside = outside || is_own(c, op.in[k]);
    if (op.kind == SH_OP_EMBED && outside)
        op.in[0] = rows_of(c, op.in[0]);
    for (int k = 0; k < SH_OP_MAX_OUT && outside; k++)
        if (op.out[k] != SH_NONE && !is_of_experts(op.kind, k))
            c->own[sh_tensor_root(c->p, op.out[k])] = true;
    sh_program_add_op(c->p, &op);
}

static void rewrite(struct tensor_pass *c)
{
    struct sh_op *old = c->p->ops;
    int n = c->p->n_ops;

    c->p->ops = NULL;
    c->p->n_ops = c->p->cap_ops = 0;
    for (int i = 0; i < n; i++)
        if (is_cut_by_inputs(c, &old[i])) {
            bool adapted = i + 1 < n && old[i + 1].kind == SH_OP_LORA && old[i + 1].in[0] == old[i].out[0];

            sum_parts(c, old[i], adapted ? &old[i + 1] : NULL);
            i += adapted;
        } else if (needs_all_rows(c, &old[i])) {
            from_all_rows(c, old[i]);
        } else if (old[i].kind == SH_OP_EMBED && param_of(c, old[i].in[1])->n_bands) {
            embed_words(c, old[i]);
        } else if (old[i].kind == SH_OP_QK_NORM && param_of(c, old[i].in[1])->n_bands) {
            norm_all_heads(c, old[i]);
        } else if (old[i].kind == SH_OP_LOGITS) {
            logits_of_words(c, old[i]);
        } else {
            other(c, old[i]);
        }
    free(old);
    for (int t = 0; t < c->n_tensors; t++)
        if (is_own(c, t))
            cut_rows(c, &c->p->tensors[t]);
}

/* Parameters that all ranks have whole, of units with bands, as a unit: adapters, or others. */
static void gather_vectors(struct sh_program *p, const bool *banded, bool adapters, const char *name)
{
    bool *moves = sh_calloc((size_t)p->n_params + 1, sizeof *moves), any = false, trainable = false;
    int unit;

    for (int i = 0; i < p->n_params; i++) {
        const struct sh_param *param = &p->params[i];

        moves[i] = banded[param->unit] && !param->n_bands &&
                   sh_param_info(sh_saved_of(p, param)->role)->adapter == adapters;
        any |= moves[i];
        trainable |= moves[i] && param->trainable;
    }
    if (any) {
        unit = sh_program_add_unit(p, name);
        sh_program_move_params(p, moves, unit);
        p->units[unit].resident = true;
        p->units[unit].trainable = trainable;
    }
    free(moves);
}

/* The most that a rank has of a unit: words may be one less on some ranks. */
static int64_t room_of(const struct tensor_pass *c, const struct sh_unit *u)
{
    int64_t room = 0;

    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct sh_param *param = &c->p->params[i];
        int64_t step = param->elems / param->dim[param->cut], all = sh_saved_of(c->p, param)->dim[param->cut];

        room += param->n_bands ? (all + c->ranks - 1) / c->ranks * step : param->elems;
    }
    return room;
}

/* Experts on other ranks are cut over these ranks too; what moves by loads is whole everywhere. */
static bool split_otherwise(const struct tensor_pass *c, struct sh_unit *u)
{
    if (u->split)
        u->shard |= c->mesh->tensor;
    else if (u->balances)
        u->replicate = c->mesh->replicate | c->mesh->shard | c->mesh->tensor;
    return u->split || u->balances;
}

static void split_units(struct tensor_pass *c)
{
    struct sh_program *p = c->p;
    bool *banded = sh_calloc((size_t)p->n_units + 2, sizeof *banded); /* of the two new ones too */

    for (int i = 0; i < p->n_params; i++)
        banded[p->params[i].unit] |= p->params[i].n_bands > 0 && !p->units[p->params[i].unit].split;
    gather_vectors(p, banded, false, "vectors");
    gather_vectors(p, banded, true, "vectors.lora");
    for (int i = 0; i < p->n_units; i++) {
        struct sh_unit *u = &p->units[i];

        if (split_otherwise(c, u))
            continue;
        u->shard = c->mesh->shard | (banded[i] ? 0 : c->mesh->tensor);
        u->replicate = c->mesh->replicate;
        u->split = banded[i] ? c->mesh->tensor : 0;
        u->room = room_of(c, u);
    }
    free(banded);
}

sh_rc sh_pass_tensor(const struct sh_build *b, struct sh_program *p)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    struct tensor_pass c = {.p = p,
                            .mesh = mesh,
                            .ranks = sh_group_size(mesh, mesh->tensor),
                            .place = sh_group_index(mesh, mesh->tensor),
                            .whole = b->logits,
                            .n_tensors = p->n_tensors};

    if (c.ranks == 1)
        return SH_OK;
    c.stream = sh_program_add_stream(p, "tensor", SH_RUNS_COLLECTIVES);
    c.own = sh_calloc((size_t)p->n_tensors, sizeof *c.own);
    c.gathered = sh_calloc((size_t)p->n_tensors, sizeof *c.gathered);
    for (int t = 0; t < p->n_tensors; t++)
        c.gathered[t] = SH_NONE;
    rewrite(&c);
    split_units(&c);
    free(c.own);
    free(c.gathered);
    return SH_OK;
}
