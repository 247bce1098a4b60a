/* Exchanges of rows beside products, if matrices are on several ranks (tensor.c). A gather stands before the product that
 * needs it, and a sum behind the product that makes its parts, so nothing runs alongside them. If asked for, each is made
 * in K tiles of rows, and so is the product, for K = 2:
 *
 *   before   G  w  qkv                    o  S  w
 *   after    G0 G1 w0 qkv0 w1 qkv1        o0 S0 o1 S1 w0 w1
 *
 * so that G1 runs alongside qkv0, and S0 alongside o1. What is gathered must lie in the order of the sequences, since
 * attention needs them whole; and what is summed comes in that order. So it is a rank's own rows that are others: of each
 * tile of N/K rows it has one stripe of N/(tK), its own. A tile's gather then fills one range of rows, and no row is moved.
 *
 *   rows      0 1 2 3 4 5 6 7      t = 2, K = 2
 *   of rank   0 0 1 1 0 0 1 1      K = 1: 0 0 0 0 1 1 1 1
 *
 * Nothing outside of the products asks which rows it has, but for positions that are looked up. All exchanges have stripes,
 * whether a product is beside them or not.
 *
 * A row has the bits that it has without tiles, and so has the gradient of a matrix, which stays one product of all rows. The
 * gradient of what a rank has whole is a sum over other rows first, so its last bits change. */
#include "kernels/rows.h"
#include "src/base/mem.h"
#include "src/pass/build.h"
#include "src/pass/memory/lifetime.h"

#include <stdlib.h>
#include <string.h>

struct stripes {
    struct sh_program *p;
    sh_group group;
    int ranks, place, tiles;
    int64_t width;     /* of the model */
    struct sh_op *old; /* the operations so far */
    int n_old;
    struct sh_life *life; /* [tensors] by storage root, in old operations */
    bool *in_part;        /* [tensors] by storage root: some operand is a part of it */
    bool *arrives;        /* [tensors] by storage root: a gather in tiles makes it */
    bool *done;           /* [n_old] made already, beside a product */
    int run;              /* number of the newest product or exchange in tiles */
};

static int root_of(const struct stripes *s, int t)
{
    return sh_tensor_root(s->p, t);
}

static const struct sh_tensor *tensor_of(const struct stripes *s, int t)
{
    return &s->p->tensors[t];
}

/* Tile k of a tensor of `rows` rows. */
static int tile_of(struct stripes *s, int t, int64_t rows, int k)
{
    struct sh_tensor tile = *tensor_of(s, t);
    int64_t elems = sh_tensor_elems(&tile), n = rows / s->tiles;

    if (tile.dim[0] != rows) {
        tile.ndim = 2;
        tile.dim[1] = elems / rows;
    }
    tile.dim[0] = n;
    tile.base = t;
    tile.base_elems = k * (elems / s->tiles);
    return sh_program_add_tensor(s->p, &tile);
}

/* ---- exchanges ---- */

static bool is_gather(const struct sh_op *op)
{
    return op->kind == SH_OP_ALL_GATHER;
}

/* The rows of one rank, and those of all. */
static int own_of(const struct sh_op *op)
{
    return is_gather(op) ? op->in[0] : op->out[0];
}

static int all_of(const struct sh_op *op)
{
    return is_gather(op) ? op->out[0] : op->in[0];
}

/* Numbers of a row that all ranks need, as of a norm of all heads together, are narrower. */
static bool exchanges(const struct stripes *s, const struct sh_op *op)
{
    const struct sh_tensor *own;

    if ((!is_gather(op) && op->kind != SH_OP_REDUCE_SCATTER) || op->unit != SH_NONE || op->attr.group != s->group)
        return false;
    own = tensor_of(s, own_of(op));
    return own->ndim > 1 && own->dim[own->ndim - 1] == s->width; /* not of a word for each of so many rows */
}

/* All rows of an exchange. */
static int64_t rows_of(const struct stripes *s, const struct sh_op *op)
{
    return sh_tensor_elems(tensor_of(s, all_of(op))) / s->width;
}

static void exchange_tile(struct stripes *s, struct sh_op op, int k)
{
    int64_t rows = rows_of(s, &op);
    int own = tile_of(s, own_of(&op), rows / s->ranks, k), all = tile_of(s, all_of(&op), rows, k);

    op.in[0] = is_gather(&op) ? own : all;
    op.out[0] = is_gather(&op) ? all : own;
    op.tiles = s->run;
    sh_program_add_op(s->p, &op);
}

static void exchange(struct stripes *s, const struct sh_op *op)
{
    s->run++;
    s->arrives[root_of(s, op->out[0])] |= is_gather(op);
    for (int k = 0; k < s->tiles; k++)
        exchange_tile(s, *op, k);
}

/* ---- products beside them ---- */

static bool touches(const struct stripes *s, const struct sh_op *op, int root)
{
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE && root_of(s, op->in[k]) == root)
            return true;
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE && root_of(s, op->out[k]) == root)
            return true;
    return false;
}

/* The sum of the parts that operation i makes, which may be made right behind it; SH_NONE: there is none. */
static int sum_behind(const struct stripes *s, int i)
{
    int made = s->old[i].out[0] == SH_NONE ? SH_NONE : root_of(s, s->old[i].out[0]), j = i + 1;

    if (made == SH_NONE)
        return SH_NONE;
    while (j < s->n_old && s->old[j].block == s->old[i].block && !touches(s, &s->old[j], made))
        j++;
    if (j == s->n_old || is_gather(&s->old[j]) || !exchanges(s, &s->old[j]) || s->old[j].in[0] != s->old[i].out[0])
        return SH_NONE;
    return s->life[root_of(s, s->old[j].out[0])].first == j ? j : SH_NONE;
}

/* All rows of an operation that works row by row on as many as an exchange has, and sums none; else 0. */
static int64_t rows_to_cut(const struct stripes *s, const struct sh_op *op)
{
    const struct sh_op_shape *shape = sh_op_shape(op->kind);
    int64_t rows = 0;

    if (op->tiles || !sh_rows_are_local(op->kind))
        return 0;
    for (int k = 0; k < shape->n_out; k++)
        if (op->out[k] != SH_NONE && !sh_rows_in(&shape->out[k]))
            return 0;
    for (int k = 0; k < shape->n_in && !rows; k++)
        if (op->in[k] != SH_NONE && sh_rows_in(&shape->in[k]) && !shape->in[k].any_shape)
            rows = tensor_of(s, op->in[k])->dim[0];
    return rows % s->tiles ? 0 : rows;
}

/* Whether it reads what is gathered in tiles, all of it. */
static bool reads_arriving(const struct stripes *s, const struct sh_op *op)
{
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE && s->arrives[root_of(s, op->in[k])] &&
            sh_tensor_elems(tensor_of(s, op->in[k])) == sh_tensor_elems(tensor_of(s, root_of(s, op->in[k]))))
            return true;
    return false;
}

/* A result that would take the place of an input does so in tiles too. False: it would, but others see parts of it. */
static bool write_over(struct stripes *s, int i)
{
    const struct sh_section all = {.n_ops = s->n_old};
    struct sh_program old = *s->p;
    int in, out;

    old.ops = s->old;
    if (!sh_lifetime_inplace(&old, &all, s->life, i, &in, &out))
        return true;
    if (s->in_part[in] || s->in_part[out] || tensor_of(s, in)->mem != tensor_of(s, out)->mem)
        return false;
    s->p->tensors[out].base = in;
    s->p->tensors[out].base_elems = 0;
    s->life[in].last = s->life[out].last;
    return true;
}

static void product_tile(struct stripes *s, struct sh_op op, int64_t rows, int k)
{
    const struct sh_op_shape *shape = sh_op_shape(op.kind);

    for (int i = 0; i < shape->n_in; i++)
        if (op.in[i] != SH_NONE && sh_rows_in(&shape->in[i]))
            op.in[i] = tile_of(s, op.in[i], rows, k);
    for (int i = 0; i < shape->n_out; i++)
        if (op.out[i] != SH_NONE)
            op.out[i] = tile_of(s, op.out[i], rows, k);
    op.tiles = s->run;
    sh_program_add_op(s->p, &op);
}

/* False: it is none. */
static bool product(struct stripes *s, int i)
{
    int64_t rows = rows_to_cut(s, &s->old[i]);
    int sum = rows ? sum_behind(s, i) : SH_NONE;

    if (!rows || (sum == SH_NONE && !reads_arriving(s, &s->old[i])) || !write_over(s, i))
        return false;
    s->run++;
    for (int k = 0; k < s->tiles; k++) {
        product_tile(s, s->old[i], rows, k);
        if (sum != SH_NONE)
            exchange_tile(s, s->old[sum], k);
    }
    if (sum != SH_NONE)
        s->done[sum] = true;
    return true;
}

/* ---- positions ---- */

/* The operand with the ids of rows of a table; SH_NONE: it has none, or those of all rows. */
static int own_ids(const struct stripes *s, const struct sh_op *op)
{
    int k = op->kind == SH_OP_EMBED_BWD ? 1 : 0;
    const struct sh_tensor *ids;

    if (op->kind != SH_OP_EMBED && op->kind != SH_OP_EMBED_BWD)
        return SH_NONE;
    ids = tensor_of(s, op->in[k]);
    return ids->base != SH_NONE && sh_tensor_elems(ids) * s->ranks == sh_tensor_elems(tensor_of(s, ids->base))
               ? k
               : SH_NONE;
}

/* The rows of tile k of a tensor [1,n,C] of own rows. */
static int own_tile(struct stripes *s, int t, int k)
{
    struct sh_tensor tile = *tensor_of(s, t);

    tile.base = t;
    tile.base_elems = k * (sh_tensor_elems(&tile) / s->tiles);
    tile.dim[1] /= s->tiles;
    return sh_program_add_tensor(s->p, &tile);
}

/* A table is looked up for the rank's stripe of each tile. */
static void look_up(struct stripes *s, struct sh_op op, int ids)
{
    bool back = op.kind == SH_OP_EMBED_BWD;
    int of = op.in[ids], x = back ? op.in[0] : op.out[0];
    int64_t n = sh_tensor_elems(tensor_of(s, of)) / s->tiles;

    for (int k = 0; k < s->tiles; k++) {
        struct sh_tensor stripe = *tensor_of(s, of);

        stripe.dim[1] = n;
        stripe.base_elems = (k * s->ranks + s->place) * n;
        op.in[ids] = sh_program_add_tensor(s->p, &stripe);
        *(back ? &op.in[0] : &op.out[0]) = own_tile(s, x, k);
        for (int i = 0; back && k && i < SH_OP_MAX_OUT; i++)
            op.attr.accumulate |= (unsigned)(op.out[i] != SH_NONE) << i;
        sh_program_add_op(s->p, &op);
    }
}

/* ---- all of a micro-step ---- */

static void note(struct stripes *s, int t)
{
    if (t != SH_NONE && sh_tensor_elems(tensor_of(s, root_of(s, t))) != sh_tensor_elems(tensor_of(s, t)))
        s->in_part[root_of(s, t)] = true;
}

static void note_uses(struct stripes *s)
{
    const struct sh_section all = {.n_ops = s->n_old};

    sh_lifetime_of_section(s->p, &all, s->life);
    for (int i = 0; i < s->n_old; i++) {
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            note(s, s->old[i].in[k]);
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            note(s, s->old[i].out[k]);
        s->run = s->old[i].tiles > s->run ? s->old[i].tiles : s->run;
    }
}

static void cut(struct stripes *s)
{
    s->p->n_ops = 0;
    for (int i = 0; i < s->n_old; i++) {
        int ids = own_ids(s, &s->old[i]);

        if (s->done[i])
            continue;
        if (exchanges(s, &s->old[i]))
            exchange(s, &s->old[i]);
        else if (ids != SH_NONE)
            look_up(s, s->old[i], ids);
        else if (!product(s, i))
            sh_program_add_op(s->p, &s->old[i]);
    }
}

/* All exchanges have as many rows, which a configuration that asks for tiles divides. */
static bool takes_tiles(const struct stripes *s)
{
    for (int i = 0; i < s->p->n_ops; i++)
        if (exchanges(s, &s->p->ops[i]))
            return rows_of(s, &s->p->ops[i]) % ((int64_t)s->ranks * s->tiles) == 0;
    return false;
}

sh_rc sh_pass_stripes(const struct sh_build *b, struct sh_program *micro)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    size_t n = (size_t)micro->n_tensors + 1, n_ops = (size_t)micro->n_ops + 1;
    struct stripes s = {.p = micro,
                        .group = mesh->tensor,
                        .ranks = sh_group_size(mesh, mesh->tensor),
                        .place = sh_group_index(mesh, mesh->tensor),
                        .tiles = b->tensor_tiles,
                        .width = b->model.dim,
                        .n_old = micro->n_ops};

    if (s.ranks == 1 || s.tiles < 2 || !takes_tiles(&s))
        return SH_OK;
    s.old = sh_calloc(n_ops, sizeof *s.old);
    s.done = sh_calloc(n_ops, sizeof *s.done);
    s.life = sh_calloc(n, sizeof *s.life);
    s.in_part = sh_calloc(n, sizeof *s.in_part);
    s.arrives = sh_calloc(n, sizeof *s.arrives);
    memcpy(s.old, micro->ops, (size_t)micro->n_ops * sizeof *s.old);
    note_uses(&s);
    cut(&s);
    free(s.old);
    free(s.done);
    free(s.life);
    free(s.in_part);
    free(s.arrives);
    return SH_OK;
}
