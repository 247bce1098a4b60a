/* Rows in parts: kernels/rows.h says which kinds can work on a part of their rows.
 *
 * A sum over many rows becomes a chain of blocks of rows.
 *
 * Tiles: if asked for, operations in a row that each work row by row are made once for each tile of rows, one tile
 * after the other. What they hand on to each other, the *interior*, then has the rows of one tile only; a feed-forward
 * part of width F no longer takes memory for all rows. Only runs with an interior wider than the model are cut. A block
 * that keeps activations for its backward keeps what tiles would avoid, so training cuts only blocks that recompute all
 * of theirs; forward and backward are cut apart, and what is recomputed belongs to the backward.
 *
 *   before   u = up x   h = act u   y = down h                            all rows
 *   after    u = up x0  h = act u   y0 = down h    u = up x1  h = act u   y1 = down h   ...
 *
 * Tensors from outside of a run become views of their rows, and gradients of parameters are added to from the second
 * tile on. If tiles are whole blocks of rows, no bit changes. Tiled feed-forward parts: Liger Kernel's TiledMLP and
 * Arctic Long Sequence Training, arXiv:2506.13996.
 *
 * Leaves: for sums that do not depend on how many ranks share a sequence, an operation that sums over rows is made once
 * for each leaf of each sequence. Its sums go to the leaf's own gradient and loss, to which later sequences are added. */
#include "kernels/rows.h"
#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/pass/memory/lifetime.h"

#include <stdlib.h>
#include <string.h>

struct tile {
    const struct sh_build *b;
    struct sh_program *p;
    struct sh_op *old; /* the operations so far */
    int n_old;
    bool trains;          /* the micro-step has a backward */
    struct sh_life *life; /* [tensors] by storage root, in old operations; none: outside of the micro-step too */
    bool *in_part;        /* [tensors] by storage root: some operand is a part of it */
    int *now;             /* [tensors] what stands for a tensor in the tile that is being made; SH_NONE */
    int runs;
    int64_t leaf_rows; /* rows of a leaf of one sequence; 0: sums are whole */
    int leaves;        /* of this rank's part of a sequence */
};

/* Operations [first, end) of the old ones, all on `rows` rows. */
struct run {
    int first, end;
    int64_t rows;
};

static int root_of(const struct tile *t, int tensor)
{
    return sh_tensor_root(t->p, tensor);
}

static const struct sh_tensor *tensor_of(const struct tile *t, int tensor)
{
    return &t->p->tensors[tensor];
}

/* ---- leaves ---- */

/* EMBED_BWD has sequences and their tokens in place of rows. */
static bool has_rows(enum sh_op_kind kind, const struct sh_operand_row *row)
{
    return kind == SH_OP_EMBED_BWD ? sh_formula_letter(&row->dim[0]) == 'B' : sh_rows_in(row);
}

/* Whether an output is a sum over rows: a gradient of parameters, or the loss. */
static bool is_sum(const struct tile *t, int out)
{
    return out != SH_NONE && (tensor_of(t, out)->grad_of != SH_NONE || root_of(t, out) == t->p->port[SH_PORT_LOSS]);
}

/* All rows of an operation that sums over them; 0: it does not. */
static int64_t summed_rows(const struct tile *t, const struct sh_op *op)
{
    const struct sh_op_shape *shape = sh_op_shape(op->kind);
    bool sums = false;

    for (int k = 0; k < shape->n_out; k++)
        sums |= is_sum(t, op->out[k]);
    for (int k = 0; k < shape->n_in && sums; k++)
        if (op->in[k] != SH_NONE && has_rows(op->kind, &shape->in[k]))
            return tensor_of(t, op->in[k])->dim[0] *
                   (op->kind == SH_OP_EMBED_BWD ? tensor_of(t, op->in[k])->dim[1] : 1);
    return 0;
}

/* Rows [at, at + n) of an operand with `rows`; of sequences, as one of them. */
static int rows_of_operand(struct tile *t, int tensor, int64_t rows, int64_t at, int64_t n)
{
    struct sh_tensor part = *tensor_of(t, tensor);
    int d = part.dim[0] == rows ? 0 : 1;

    part.base = tensor;
    part.base_elems = at * (sh_tensor_elems(&part) / rows);
    part.dim[0] = 1;
    part.dim[d] = n;
    return sh_program_add_tensor(t->p, &part);
}

/* The sum of one leaf. */
static int leaf_of(struct tile *t, int out, int leaf)
{
    struct sh_tensor sum = *tensor_of(t, out);

    if (t->leaves == 1)
        return out;
    sum.leaf = leaf;
    if (sum.grad_of == SH_NONE) {
        sum.base = root_of(t, out);
        sum.base_elems = leaf * sh_tensor_elems(&sum);
    }
    return sh_program_add_tensor(t->p, &sum);
}

/* The part of an operation on rows [at, at + n) of its `rows`, the first of which is row `first` of the micro-step. */
static void add_part(struct tile *t, struct sh_op op, int64_t rows, int64_t first, int64_t at, int64_t n)
{
    const struct sh_op_shape *shape = sh_op_shape(op.kind);
    int64_t row = first + at, leaf = row / t->leaf_rows;

    for (int k = 0; k < shape->n_in && n < rows; k++)
        if (op.in[k] != SH_NONE && has_rows(op.kind, &shape->in[k]))
            op.in[k] = rows_of_operand(t, op.in[k], rows, at, n);
    for (int k = 0; k < shape->n_out; k++) {
        if (is_sum(t, op.out[k])) {
            op.out[k] = leaf_of(t, op.out[k], (int)(leaf % t->leaves));
            op.attr.accumulate |= (unsigned)(leaf >= t->leaves || row % t->leaf_rows) << k;
        } else if (op.out[k] != SH_NONE && n < rows) {
            op.out[k] = rows_of_operand(t, op.out[k], rows, at, n);
        }
    }
    sh_program_add_op(t->p, &op);
}

/* Append an operation whose first row is row `first` of the micro-step; if it sums over rows, cut between leaves. */
static void add(struct tile *t, const struct sh_op *op, int64_t first)
{
    int64_t rows = t->leaf_rows ? summed_rows(t, op) : 0, end;

    if (!rows)
        sh_program_add_op(t->p, op);
    for (int64_t at = 0; at < rows; at = end) {
        end = ((first + at) / t->leaf_rows + 1) * t->leaf_rows - first;
        end = end < rows ? end : rows;
        add_part(t, *op, rows, first, at, end - at);
    }
}

/* ---- tiles ---- */

/* The rows of an operation's first operand that counts them; 0: its kind counts elements. */
static int64_t rows_of(const struct tile *t, const struct sh_op *op)
{
    const struct sh_op_shape *shape = sh_op_shape(op->kind);

    for (int i = 0; i < shape->n_in; i++)
        if (op->in[i] != SH_NONE && sh_rows_in(&shape->in[i]) && !shape->in[i].any_shape)
            return tensor_of(t, op->in[i])->dim[0];
    return 0;
}

/* Operands without rows must be parameters and their gradients: any other holds something of all rows. */
static bool is_local(const struct tile *t, const struct sh_op *op)
{
    const struct sh_op_shape *shape = sh_op_shape(op->kind);

    if (!sh_rows_are_local(op->kind))
        return false;
    for (int i = 0; i < shape->n_in; i++)
        if (op->in[i] != SH_NONE && !sh_rows_in(&shape->in[i]) && tensor_of(t, root_of(t, op->in[i]))->param == SH_NONE)
            return false;
    for (int i = 0; i < shape->n_out; i++)
        if (op->out[i] != SH_NONE && !sh_rows_in(&shape->out[i]) && tensor_of(t, op->out[i])->grad_of == SH_NONE)
            return false;
    return true;
}

static bool is_forward(const struct sh_op *op)
{
    return op->phase == SH_PHASE_FORWARD;
}

/* Whether op may be part of a run that starts with `head`. */
static bool goes_with(const struct tile *t, const struct sh_op *head, const struct sh_op *op, int64_t rows)
{
    int64_t n = rows_of(t, op);

    return op->block == head->block && is_forward(op) == is_forward(head) && is_local(t, op) &&
           (!n || !rows || n == rows);
}

/* The longest run from an operation on; without operations if that one is in no run. */
static struct run run_from(const struct tile *t, int first)
{
    const struct sh_op *head = &t->old[first];
    struct run r = {.first = first, .end = first};
    bool cut = t->b->tile_rows && head->block != SH_NONE && head->phase != SH_PHASE_INIT &&
               (!t->trains || sh_pass_recomputes_all(&t->b->recompute, head->block));

    for (; cut && r.end < t->n_old && goes_with(t, head, &t->old[r.end], r.rows); r.end++)
        r.rows = r.rows ? r.rows : rows_of(t, &t->old[r.end]);
    return r;
}

/* Whether a storage holds what the run hands on within a tile: the run makes it, and nothing else uses it. */
static bool is_interior(const struct tile *t, const struct run *r, int root)
{
    const struct sh_life *life = &t->life[root];

    return life->first >= r->first && life->last < r->end && !t->in_part[root];
}

static bool is_worth_it(const struct tile *t, const struct run *r)
{
    if (!r->rows || r->rows <= t->b->tile_rows)
        return false;
    for (int i = r->first; i < r->end; i++)
        for (int k = 0; k < SH_OP_MAX_OUT; k++) {
            int root = t->old[i].out[k] == SH_NONE ? SH_NONE : root_of(t, t->old[i].out[k]);

            if (root != SH_NONE && is_interior(t, r, root) &&
                sh_tensor_elems(tensor_of(t, root)) > r->rows * t->b->model.dim)
                return true;
        }
    return false;
}

/* A tensor with n rows instead of r->rows; kinds of elements take any shape. */
static struct sh_tensor cut(const struct sh_tensor *of, const struct run *r, int64_t n)
{
    struct sh_tensor c = *of;
    int64_t width = sh_tensor_elems(of) / r->rows;

    if (c.dim[0] != r->rows) {
        c.ndim = 2;
        c.dim[1] = width;
    }
    c.dim[0] = n;
    return c;
}

/* What stands for a tensor in the tile of rows [first, first + n): a storage of the tile, a view of that, or a view of
 * its rows. */
static int part_of(struct tile *t, const struct run *r, int64_t first, int64_t n, int tensor)
{
    struct sh_tensor part = cut(tensor_of(t, tensor), r, n);
    int root = root_of(t, tensor);

    if (t->now[tensor] != SH_NONE)
        return t->now[tensor];
    if (!is_interior(t, r, root)) {
        part.base = tensor;
        part.base_elems = first * (sh_tensor_elems(&part) / n);
    } else if (tensor != root) {
        part.base = part_of(t, r, first, n, root);
        part.base_elems = 0;
    }
    return t->now[tensor] = sh_program_add_tensor(t->p, &part);
}

/* Forget what stood for the tensors of a run. */
static void begin_tile(struct tile *t, const struct run *r)
{
    for (int i = r->first; i < r->end; i++) {
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            if (t->old[i].in[k] != SH_NONE)
                t->now[t->old[i].in[k]] = t->now[root_of(t, t->old[i].in[k])] = SH_NONE;
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            if (t->old[i].out[k] != SH_NONE)
                t->now[t->old[i].out[k]] = t->now[root_of(t, t->old[i].out[k])] = SH_NONE;
    }
}

/* One operation on the rows of a tile. */
static void emit(struct tile *t, const struct run *r, int64_t first, int64_t n, struct sh_op op)
{
    const struct sh_op_shape *shape = sh_op_shape(op.kind);

    for (int k = 0; k < shape->n_in; k++)
        if (op.in[k] != SH_NONE && sh_rows_in(&shape->in[k]))
            op.in[k] = part_of(t, r, first, n, op.in[k]);
    for (int k = 0; k < shape->n_out; k++)
        if (op.out[k] != SH_NONE && sh_rows_in(&shape->out[k]))
            op.out[k] = part_of(t, r, first, n, op.out[k]);
        else if (op.out[k] != SH_NONE && first && !t->leaf_rows)
            op.attr.accumulate |= 1u << k;
    op.tiles = t->runs;
    add(t, &op, first);
}

/* A gradient that takes the place of another one with the rest of its rows: where the untiled operation would have
 * written over its input, tiles do too. Nothing reads the input's rows of a tile after that, in this tile or later. */
static void write_over(struct tile *t, const struct run *r)
{
    const struct sh_section all = {.n_ops = t->n_old};

    for (int i = r->first; i < r->end; i++) {
        struct sh_program old = *t->p;
        int in, out;

        old.ops = t->old;
        if (!sh_lifetime_inplace(&old, &all, t->life, i, &in, &out) || is_interior(t, r, in) ||
            is_interior(t, r, out) || t->in_part[in] || t->in_part[out] || tensor_of(t, in)->mem != SH_MEM_ACT_GRAD ||
            tensor_of(t, out)->mem != SH_MEM_ACT_GRAD)
            continue;
        t->p->tensors[out].base = in;
        t->p->tensors[out].base_elems = 0;
        t->life[in].last = t->life[out].last;
    }
}

static void emit_tiles(struct tile *t, const struct run *r)
{
    int64_t tile = t->b->tile_rows;

    t->runs++;
    write_over(t, r);
    for (int64_t first = 0; first < r->rows; first += tile) {
        begin_tile(t, r);
        for (int i = r->first; i < r->end; i++)
            emit(t, r, first, r->rows - first < tile ? r->rows - first : tile, t->old[i]);
    }
}

static void note_part(struct tile *t, int tensor)
{
    int root = tensor == SH_NONE ? SH_NONE : root_of(t, tensor);

    if (root != SH_NONE && sh_tensor_elems(tensor_of(t, root)) != sh_tensor_elems(tensor_of(t, tensor)))
        t->in_part[root] = true;
}

static void note_uses(struct tile *t)
{
    const struct sh_section all = {.n_ops = t->n_old};

    sh_lifetime_of_section(t->p, &all, t->life);
    for (int i = 0; i < t->n_old; i++) {
        t->trains |= t->old[i].phase == SH_PHASE_BACKWARD;
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            note_part(t, t->old[i].in[k]);
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            note_part(t, t->old[i].out[k]);
    }
    /* What the host or another section sees has no end here. */
    for (int port = 0; port < SH_PORTS; port++)
        if (t->p->port[port] != SH_NONE)
            t->life[root_of(t, t->p->port[port])] = (struct sh_life){SH_NONE, SH_NONE};
}

static void cut_runs(struct tile *t)
{
    for (int i = 0; i < t->n_old;) {
        struct run r = run_from(t, i);

        if (is_worth_it(t, &r)) {
            emit_tiles(t, &r);
            i = r.end;
            continue;
        }
        /* A part of a run is no better than the whole. */
        do {
            if (t->leaf_rows && summed_rows(t, &t->old[i]) > t->leaf_rows)
                write_over(t, &(struct run){i, i + 1, summed_rows(t, &t->old[i])});
            add(t, &t->old[i++], 0);
        } while (i < r.end);
    }
}

static void cut_rows(const struct sh_build *b, struct sh_program *micro)
{
    size_t n = (size_t)micro->n_tensors + 1;
    int leaves = b->options.row_leaves;
    struct tile t = {.b = b, .p = micro, .n_old = micro->n_ops};

    if (leaves > 1) {
        t.leaf_rows = b->batch.seq / leaves;
        t.leaves = leaves / sh_group_size(&b->options.mesh, b->options.mesh.context);
    }
    t.old = sh_calloc((size_t)micro->n_ops + 1, sizeof *t.old);
    t.life = sh_calloc(n, sizeof *t.life);
    t.in_part = sh_calloc(n, sizeof *t.in_part);
    t.now = sh_calloc(n, sizeof *t.now);
    memcpy(t.old, micro->ops, (size_t)micro->n_ops * sizeof *t.old);
    note_uses(&t);
    micro->n_ops = 0;
    cut_runs(&t);
    free(t.old);
    free(t.life);
    free(t.in_part);
    free(t.now);
}

/* Sums of one block stay as they are. */
static void set_row_block(const struct sh_program *p, int64_t block, struct sh_op *op)
{
    struct sh_op_call call;

    if (!sh_rows_are_local(op->kind))
        return;
    op->attr.row_block = block;
    sh_program_call(p, op, NULL, &call);
    if (!sh_rows_to_divide(&call))
        op->attr.row_block = 0;
}

sh_rc sh_pass_tile(const struct sh_build *b, struct sh_program *micro)
{
    int64_t block = b->row_block ? b->row_block : SH_ROW_BLOCK;

    if (b->tile_rows || b->options.row_leaves > 1)
        cut_rows(b, micro);
    for (int i = 0; i < micro->n_ops; i++)
        set_row_block(micro, block, &micro->ops[i]);
    return SH_OK;
}
