#include "src/tools/study/coords.h"

#include "src/base/mem.h"
#include "src/run/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MOST = 512 }; /* of which logits are computed, spread over all words */

/* ---- what is measured ---- */

/* Gathered parameters have the names of what is saved. */
static enum sh_param_role role_of(const struct sh_program *p, int tensor)
{
    for (int i = 0; i < p->n_saved && tensor != SH_NONE; i++)
        if (!strcmp(p->saved[i].name, p->tensors[tensor].name))
            return p->saved[i].role;
    return SH_PARAM_ROLES;
}

/* The kind of branch that an operation makes the result of; SH_COORD_KINDS: it does not. */
static enum sh_coord_kind kind_of(const struct sh_program *p, const struct sh_op *op)
{
    bool product = op->kind == SH_OP_LINEAR && op->phase == SH_PHASE_FORWARD;
    enum sh_param_role role = product ? role_of(p, op->in[1]) : SH_PARAM_ROLES;

    return role == SH_PARAM_O || role == SH_PARAM_DELTA_O ? SH_COORD_ATTENTION
           : role == SH_PARAM_DOWN                        ? SH_COORD_FFN
                                                          : SH_COORD_KINDS;
}

/* ---- numbers ---- */

/* An operand as floats; freed with free(). */
static float *floats_of(struct sh_run *r, const struct sh_operand *o)
{
    int64_t n = sh_operand_elems(o), bytes = n * sh_dtype_bytes(o->dtype);
    struct sh_operand here = *o;
    float *out = sh_calloc((size_t)n, sizeof *out);

    here.data = sh_calloc((size_t)bytes, 1);
    sh_exec_get_at(r->exec, here.data, o->data, bytes);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)sh_operand_get(&here, i);
    free(here.data);
    return out;
}

/* The logits of all rows and some words, which no operation makes as a whole: x [N,C] times w [V,C]. */
static float *logits_of(struct sh_run *r, const struct sh_op_call *head, int64_t *elems)
{
    int64_t rows = head->in[0].dim[0], width = head->in[0].dim[1], words = head->in[1].dim[0];
    int64_t apart = (words + WORDS_MOST - 1) / WORDS_MOST, n = (words + apart - 1) / apart;
    float *x = floats_of(r, &head->in[0]), *w = floats_of(r, &head->in[1]);
    float *out = sh_calloc((size_t)(rows * n), sizeof *out);

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;

            for (int64_t k = 0; k < width; k++)
                sum += (double)x[i * width + k] * (double)w[j * apart * width + k];
            out[i * n + j] = (float)sum;
        }
    free(x);
    free(w);
    *elems = rows * n;
    return out;
}

static struct sh_coord *find_row(struct sh_coords *c, enum sh_coord_kind kind, int block)
{
    for (int i = 0; i < c->n; i++)
        if (c->row[i].kind == kind && c->row[i].block == block)
            return &c->row[i];
    c->row = sh_grow(c->row, c->n, &c->most, sizeof *c->row);
    c->row[c->n] = (struct sh_coord){.kind = kind, .block = block};
    return &c->row[c->n++];
}

/* x: owned by the row from now on. */
static void take(struct sh_coords *c, struct sh_coord *row, float *x, int64_t elems)
{
    int64_t updates = c->r->step;
    double sum = 0;

    if (updates == 0) {
        row->first = x;
        row->elems = elems;
        return;
    }
    for (int64_t i = 0; i < elems; i++)
        sum += ((double)x[i] - (double)row->first[i]) * ((double)x[i] - (double)row->first[i]);
    row->change[updates - 1] = sqrt(sum / (double)elems);
    free(x);
}

/* ---- the executor ---- */

/* Called around each operation. The rows of the output matrix are read before it, since it may write where they are. */
static void look(void *arg, int op, bool done)
{
    struct sh_coords *c = arg;
    const struct sh_op *o = &c->r->p->ops[op];
    const struct sh_op_call *call = sh_exec_call(c->r->exec, op);
    enum sh_coord_kind kind = done ? kind_of(c->r->p, o) : SH_COORD_KINDS;

    if (!done && o->kind == SH_OP_HEAD_LOSS_GRAD) {
        int64_t elems;
        float *x = logits_of(c->r, call, &elems);

        take(c, find_row(c, SH_COORD_LOGITS, SH_NONE), x, elems);
    }
    if (kind < SH_COORD_KINDS)
        take(c, find_row(c, kind, o->block), floats_of(c->r, &call->out[0]), sh_operand_elems(&call->out[0]));
}

void sh_coords_begin(struct sh_coords *c, struct sh_run *r)
{
    *c = (struct sh_coords){.r = r};
    sh_exec_set_look(r->exec, SH_LOOKS, look, c);
}

void sh_coords_end(struct sh_coords *c)
{
    sh_exec_set_look(c->r->exec, SH_LOOKS, NULL, NULL);
    c->r = NULL;
}

void sh_coords_free(struct sh_coords *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->row[i].first);
    free(c->row);
    *c = (struct sh_coords){0};
}
