/* The output matrix on several ranks. Up to here the loss of a micro-step, or its scores, are one operation over x, which
 * has all rows, and over the words of this rank. A rank that has a part of the words makes logits of these; the largest, the sum of
 * exponentials and the target's logit of each row go to the other ranks, 12 bytes a row; then each has what its part of
 * the gradient needs:
 *
 *     x [r,C], w [V/t,C] -> LINEAR -> z [r,V/t] -> LOSS_PART [r,3] -> ALL_GATHER [t,r,3]
 *             -> LOSS_REST -> dz [r,V/t] -> LINEAR_BWD_X dx [r,C], a part of a sum, and LINEAR_BWD_W dw [V/t,C]
 *
 * or, of scores, ALL_GATHER of the likeliest words too, and SCORE_REST,
 *
 * for r rows at a time, so that logits never exist as a whole. The rank with the first word adds the
 * losses of all rows, in their order: other ranks add 0, and whatever sums over ranks has no other order to choose. */
#include "src/base/mem.h"
#include "src/pass/build.h"

#include <stdlib.h>
#include <string.h>

struct words {
    struct sh_program *p;
    const struct sh_mesh_shape *mesh;
    int stream;
    struct sh_op loss; /* the operation that is replaced */
    int64_t first, n;  /* rows of the chunk */
};

static int view_rows(struct words *c, int t)
{
    struct sh_tensor view = c->p->tensors[t];
    int64_t row = sh_tensor_elems(&view) / view.dim[0];

    view.base = t;
    view.base_elems = c->first * row;
    view.dim[0] = c->n;
    return sh_program_add_tensor(c->p, &view);
}

static int make(struct words *c, enum sh_mem mem, enum sh_dtype type, int ndim, const int64_t *dim, const char *name)
{
    struct sh_tensor t = sh_tensor_make(mem, type, ndim, dim, "%s", name);

    return sh_program_add_tensor(c->p, &t);
}

static struct sh_op like(const struct words *c, enum sh_op_kind kind)
{
    struct sh_op op = sh_program_op(kind);

    op.phase = c->loss.phase;
    op.block = c->loss.block;
    return op;
}

static int logits(struct words *c, int x)
{
    struct sh_op op = like(c, SH_OP_LINEAR);
    int w = c->loss.in[1];

    op.in[0] = x;
    op.in[1] = w;
    op.out[0] = make(c, SH_MEM_ACT, c->p->act, 2, DIMS(c->n, c->p->tensors[w].dim[0]), "logits");
    sh_program_add_op(c->p, &op);
    return op.out[0];
}

/* Those of all ranks, [t,...]. */
static int gather(struct words *c, int part, const char *name)
{
    struct sh_op op = like(c, SH_OP_ALL_GATHER);
    struct sh_tensor all = c->p->tensors[part];

    memmove(all.dim + 1, all.dim, (size_t)all.ndim++ * sizeof *all.dim);
    all.dim[0] = sh_group_size(c->mesh, c->mesh->tensor);
    op.stream = c->stream;
    op.attr.group = c->mesh->tensor;
    op.in[0] = part;
    op.out[0] = make(c, SH_MEM_ACT, all.dtype, all.ndim, all.dim, name);
    sh_program_add_op(c->p, &op);
    return op.out[0];
}

/* What this rank says of the rows: [r,3]; and their likeliest words [r] for scores. */
static struct sh_op part_of(struct words *c, int z, int targets, int64_t first)
{
    struct sh_op part = like(c, SH_OP_LOSS_PART);

    part.attr.part.first = first;
    part.attr.part.cap = c->loss.attr.head.cap;
    part.in[0] = z;
    part.in[1] = targets;
    part.out[0] = make(c, SH_MEM_ACT, SH_F32, 2, DIMS(c->n, 3), "part of loss");
    if (c->loss.kind == SH_OP_HEAD_SCORE)
        part.out[1] = make(c, SH_MEM_ACT, SH_I32, 1, DIMS(c->n), "likeliest of part");
    sh_program_add_op(c->p, &part);
    return part;
}

/* The first chunk writes what the others add to. */
static unsigned adds(const struct words *c, int out)
{
    return c->first || c->loss.attr.accumulate >> out & 1;
}

static void gradients(struct words *c, int x, int dz)
{
    struct sh_op dx = like(c, SH_OP_LINEAR_BWD_X), dw = like(c, SH_OP_LINEAR_BWD_W);

    dx.in[0] = dw.in[0] = dz;
    dx.in[1] = c->loss.in[1];
    dx.out[0] = view_rows(c, c->loss.out[1]);
    sh_program_add_op(c->p, &dx);
    dw.in[1] = x;
    dw.out[0] = c->loss.out[2];
    dw.attr.accumulate = adds(c, 2);
    if (dw.out[0] != SH_NONE)
        sh_program_add_op(c->p, &dw);
}

static void scores(struct words *c, const struct sh_op *part)
{
    struct sh_op rest = like(c, SH_OP_SCORE_REST);

    rest.in[0] = gather(c, part->out[0], "parts of loss");
    rest.in[1] = gather(c, part->out[1], "likeliest of parts");
    rest.in[2] = part->in[1];
    for (int i = 0; i < 2; i++)
        rest.out[i] = view_rows(c, c->loss.out[i]);
    sh_program_add_op(c->p, &rest);
}

static void loss(struct words *c, int x, const struct sh_op *part)
{
    struct sh_op rest = like(c, SH_OP_LOSS_REST);

    rest.attr.part.first = part->attr.part.first;
    rest.attr.part.cap = part->attr.part.cap;
    rest.attr.part.squares = c->loss.attr.head.squares;
    rest.in[0] = part->in[0];
    rest.in[1] = gather(c, part->out[0], "parts of loss");
    rest.in[2] = part->in[1];
    rest.out[0] = c->loss.out[0];
    if (c->loss.kind == SH_OP_HEAD_LOSS_GRAD)
        rest.out[1] = make(c, SH_MEM_ACT_GRAD, c->p->act, 2, c->p->tensors[rest.in[0]].dim, "d.logits");
    rest.attr.accumulate = adds(c, 0);
    sh_program_add_op(c->p, &rest);
    if (rest.out[1] != SH_NONE)
        gradients(c, x, rest.out[1]);
}

static void chunk(struct words *c)
{
    const struct sh_param *head = &c->p->params[c->p->tensors[sh_tensor_root(c->p, c->loss.in[1])].param];
    int x = view_rows(c, c->loss.in[0]), targets = view_rows(c, c->loss.in[2]);
    struct sh_op part = part_of(c, logits(c, x), targets, head->band[0].first);

    if (c->loss.kind == SH_OP_HEAD_SCORE)
        scores(c, &part);
    else
        loss(c, x, &part);
}

static bool has_parts(const struct sh_program *p, const struct sh_op *op)
{
    return (op->kind == SH_OP_HEAD_LOSS || op->kind == SH_OP_HEAD_LOSS_GRAD || op->kind == SH_OP_HEAD_SCORE) &&
           p->params[p->tensors[sh_tensor_root(p, op->in[1])].param].n_bands;
}

sh_rc sh_pass_words(const struct sh_build *b, struct sh_program *p)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    struct words c = {.p = p, .mesh = mesh};
    struct sh_op *old = p->ops;
    int n = p->n_ops;

    if (sh_group_size(mesh, mesh->tensor) == 1)
        return SH_OK;
    while (strcmp(p->streams[c.stream].name, "tensor"))
        c.stream++;
    p->ops = NULL;
    p->n_ops = p->cap_ops = 0;
    for (int i = 0; i < n; i++) {
        int64_t rows, most;

        if (!has_parts(p, &old[i])) {
            sh_program_add_op(p, &old[i]);
            continue;
        }
        c.loss = old[i];
        rows = p->tensors[c.loss.in[0]].dim[0];
        most = c.loss.attr.head.chunk_rows;
        for (c.first = 0; c.first < rows; c.first += c.n) {
            c.n = rows - c.first < most ? rows - c.first : most;
            chunk(&c);
        }
    }
    free(old);
    return SH_OK;
}
