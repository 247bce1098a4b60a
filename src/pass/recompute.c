/* Activation checkpointing: an activation that is not kept is recomputed, by the same operation on the same inputs and
 * so with the same bits, right before the backward operation that needs it. What the backward never needs is never
 * repeated, nor is the choice of experts. Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174. */
#include "src/base/mem.h"
#include "src/pass/build.h"

#include <stdlib.h>
#include <string.h>

struct recompute {
    struct sh_program *p;
    const struct sh_recompute *request;
    struct sh_op *old; /* the original operations */
    int n_old;
    int n_tensors; /* before any copy was made */
    int *producer; /* [n_tensors] by storage root: forward operation that writes it, SH_NONE */
    bool *crosses; /* [n_tensors] by storage root: read by the forward of another block */
    int *copy;     /* [n_tensors] the recomputed copy, SH_NONE */
};

static bool is_forward(const struct sh_op *op)
{
    return op->phase == SH_PHASE_FORWARD;
}

/* By storage, since writing a view writes its root. */
static void find_producers(struct recompute *r)
{
    for (int i = 0; i < r->n_old; i++)
        for (int k = 0; k < SH_OP_MAX_OUT && is_forward(&r->old[i]); k++)
            if (r->old[i].out[k] != SH_NONE)
                r->producer[sh_tensor_root(r->p, r->old[i].out[k])] = i;
}

/* Tensors that the forward of another block reads must stay: they are the borders between blocks. So must those that
 * operations outside of blocks read, such as the head. */
static void find_crossings(struct recompute *r)
{
    for (int i = 0; i < r->n_old; i++) {
        for (int k = 0; k < SH_OP_MAX_IN; k++) {
            int t = r->old[i].in[k], root = t == SH_NONE ? SH_NONE : sh_tensor_root(r->p, t);

            if (root != SH_NONE && r->producer[root] != SH_NONE &&
                (is_forward(&r->old[i]) || r->old[i].block == SH_NONE) &&
                r->old[r->producer[root]].block != r->old[i].block)
                r->crosses[root] = true;
        }
    }
}

enum keep { KEEP_ALL, KEEP_COSTLY, KEEP_BORDERS };

/* What a block keeps. With every_k = 2, full recomputation is done in blocks 0, 2, 4, ... */
static enum keep keep_of(const struct sh_recompute *request, int block)
{
    if (block < request->full && (request->every_k <= 1 || block % request->every_k == 0))
        return KEEP_BORDERS;
    return block < request->selective ? KEEP_COSTLY : KEEP_ALL;
}

bool sh_pass_recomputes_all(const struct sh_recompute *request, int block)
{
    return keep_of(request, block) == KEEP_BORDERS;
}

/* Tensors made by this pass (index from n_tensors on) are copies themselves and never dropped. */
static bool dropped(const struct recompute *r, int root)
{
    const struct sh_op *op;

    if (root >= r->n_tensors || r->producer[root] == SH_NONE || r->crosses[root])
        return false;
    op = &r->old[r->producer[root]];
    if (op->block == SH_NONE || sh_op_info(op->kind)->chooses)
        return false;
    switch (keep_of(r->request, op->block)) {
    case KEEP_ALL: return false;
    case KEEP_COSTLY: return !sh_op_info(op->kind)->costly;
    case KEEP_BORDERS: return true;
    }
    return false;
}

/* A view is copied along with its base, so that it shows the recomputed values. */
static int copy_tensor(struct recompute *r, int t)
{
    struct sh_tensor c = r->p->tensors[t];

    if (c.base != SH_NONE)
        c.base = copy_tensor(r, c.base);
    else if (r->copy[t] != SH_NONE)
        return r->copy[t];
    return sh_program_add_tensor(r->p, &c);
}

/* The tensor to read for t in the backward: t itself if it was kept, else its copy, computed first if necessary. */
static int available(struct recompute *r, int t)
{
    int root = sh_tensor_root(r->p, t);
    struct sh_op again;

    if (!dropped(r, root))
        return t;
    /* Inputs first, by recursion: they may have been dropped too. The depth is bounded by the operations of one
     * block. */
    if (r->copy[root] == SH_NONE) {
        again = r->old[r->producer[root]];
        again.phase = SH_PHASE_RECOMPUTE;
        for (int k = 0; k < SH_OP_MAX_IN; k++)
            if (again.in[k] != SH_NONE)
                again.in[k] = available(r, again.in[k]);
        for (int k = 0; k < SH_OP_MAX_OUT; k++)
            if (again.out[k] != SH_NONE)
                again.out[k] = r->copy[again.out[k]] = copy_tensor(r, again.out[k]);
        sh_program_add_op(r->p, &again);
    }
    return copy_tensor(r, t);
}

/* Forward operations stay where they are; each backward operation is preceded by the recomputation that it needs. */
static void rewrite(struct recompute *r)
{
    r->p->n_ops = 0;
    for (int i = 0; i < r->n_old; i++) {
        struct sh_op op = r->old[i];

        for (int k = 0; k < SH_OP_MAX_IN && op.phase == SH_PHASE_BACKWARD; k++)
            if (op.in[k] != SH_NONE)
                op.in[k] = available(r, op.in[k]);
        sh_program_add_op(r->p, &op);
    }
}

sh_rc sh_pass_recompute(const struct sh_build *b, struct sh_program *micro)
{
    const struct sh_recompute *request = &b->recompute;
    size_t n = (size_t)micro->n_tensors;
    struct recompute r = {.p = micro, .request = request, .n_old = micro->n_ops, .n_tensors = micro->n_tensors};

    if (request->full <= 0 && request->selective <= 0)
        return SH_OK;
    r.old = sh_calloc((size_t)micro->n_ops, sizeof *r.old);
    memcpy(r.old, micro->ops, (size_t)micro->n_ops * sizeof *r.old);
    r.producer = sh_calloc(n, sizeof *r.producer);
    r.copy = sh_calloc(n, sizeof *r.copy);
    r.crosses = sh_calloc(n, sizeof *r.crosses);
    for (size_t i = 0; i < n; i++)
        r.producer[i] = r.copy[i] = SH_NONE;
    find_producers(&r);
    find_crossings(&r);
    rewrite(&r);
    free(r.old);
    free(r.producer);
    free(r.copy);
    free(r.crosses);
    return SH_OK;
}

/* "full in 3, selective in 5 of 8 blocks", or one word when all blocks are alike. */
const char *sh_recompute_text(const struct sh_recompute *request, int blocks, char text[SH_RECOMPUTE_TEXT])
{
    static const char *const names[] = {[KEEP_ALL] = "none", [KEEP_COSTLY] = "selective", [KEEP_BORDERS] = "full"};
    int n[] = {[KEEP_ALL] = 0, [KEEP_COSTLY] = 0, [KEEP_BORDERS] = 0}, at = 0;

    for (int b = 0; b < blocks; b++)
        n[keep_of(request, b)]++;
    for (enum keep k = KEEP_ALL; k <= KEEP_BORDERS; k++)
        if (n[k] == blocks)
            return names[k];
    for (enum keep k = KEEP_COSTLY; k <= KEEP_BORDERS; k++)
        if (n[k])
            at += snprintf(text + at, (size_t)(SH_RECOMPUTE_TEXT - at), "%s%s in %d", at ? ", " : "", names[k], n[k]);
    snprintf(text + at, (size_t)(SH_RECOMPUTE_TEXT - at), " of %d blocks", blocks);
    return text;
}
