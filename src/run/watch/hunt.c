#include "src/run/watch/hunt.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/run/run.h"
#include "src/run/watch/fingerprint_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The micro-step of an operation, and its first sequence. */
static int micro_of(const struct sh_hunt *h, const struct sh_op *op)
{
    return h->r->p->unrolled > 1 ? op->micro : h->micro_step;
}

static int64_t first_of(const struct sh_hunt *h, const struct sh_op *op)
{
    return h->first - (int64_t)(h->micro_step - micro_of(h, op)) * h->r->cfg.training.local_batch_size;
}

/* One number of a tensor in the host's memory. */
static double number(const void *data, enum sh_dtype dtype, int64_t i)
{
    switch ((int)dtype) {
    case SH_F64: return ((const double *)data)[i];
    case SH_F32: return (double)((const float *)data)[i];
    case SH_BF16: return (double)sh_bf16_to_f32(((const sh_bf16 *)data)[i]);
    case SH_F16: return (double)sh_f16_to_f32(((const sh_f16 *)data)[i]);
    default: return 0;
    }
}

/* Whether an element of what an operation of a unit reads or makes, n in all, is behind the unit's end: nobody writes that. */
static bool is_padding(const struct sh_run *r, const struct sh_op *op, int64_t n, int64_t i)
{
    const struct sh_unit *u = op->unit == SH_NONE ? NULL : &r->p->units[op->unit];
    int64_t whole = u ? u->chunk * sh_group_size(&r->mesh->shape, u->shard) : 0;

    if (u && n % whole == 0)
        return i % whole >= u->room;
    return u && n == u->chunk && sh_group_index(&r->mesh->shape, u->shard) * n + i >= u->room;
}

/* The first number that is not finite: its place, or -1; and the largest magnitude of those before it. */
static int64_t find_bad(const struct sh_hunt *h, const struct sh_op *op, int tensor, double *largest, double *bad)
{
    const struct sh_run *r = h->r;
    const struct sh_tensor *t = &r->p->tensors[tensor];
    int64_t n = sh_tensor_elems(t), at = -1;
    struct sh_walk_part part[2];
    const void *data = sh_exec_data(r->exec, tensor);
    void *copy = NULL;

    if (r->device->gpu) {
        copy = sh_calloc((size_t)sh_tensor_bytes(t) + 1, 1);
        sh_exec_get_at(r->exec, copy, data, sh_tensor_bytes(t));
        data = copy;
    }
    sh_walk_rows_parts(&h->rows, op, tensor, part);
    for (int64_t i = part[0].begin, end = part[1].end > 0 ? part[1].end : part[0].end; i < end && at < 0; i++) {
        double x;

        if (i == part[0].end)
            i = part[1].begin;
        x = i < end ? number(data, t->dtype, i) : 0;
        if (!isfinite(x) && !is_padding(r, op, n, i)) {
            at = i;
            *bad = x;
        } else if (isfinite(x) && fabs(x) > *largest)
            *largest = fabs(x);
    }
    free(copy);
    return at;
}

/* Where element `at` of a tensor belongs: to a sequence of the run, if it has rows of tokens. */
static void print_place(const struct sh_hunt *h, const struct sh_op *op, int tensor, int64_t at, FILE *out)
{
    const struct sh_run *r = h->r;
    struct sh_print_batch batch = sh_print_batch_of(&r->build, r->cfg.training.seq_len);
    struct sh_print_cut c;
    int64_t sequence, row;

    if (!sh_print_sorts_rows(op->kind) && sh_print_cut(&r->p->tensors[tensor], &batch, &c)) {
        sh_print_place(&c, &batch, at / c.width, &sequence, &row);
        fprintf(out, "element %lld of sequence %lld", (long long)(row * c.width + at % c.width),
                (long long)(first_of(h, op) + sequence));
    } else
        fprintf(out, "element %lld", (long long)at);
}

/* An input in the storage of an output is overwritten. */
static bool is_kept(const struct sh_program *p, const struct sh_op *op, int tensor)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE && sh_tensor_root(p, op->out[k]) == sh_tensor_root(p, tensor))
            return false;
    return true;
}

static void print_inputs(const struct sh_hunt *h, const struct sh_op *op, FILE *out)
{
    const struct sh_program *p = h->r->p;
    double largest = 0, bad;

    for (int i = 0; i < SH_OP_MAX_IN; i++)
        if (op->in[i] != SH_NONE && is_kept(p, op, op->in[i]) && find_bad(h, op, op->in[i], &largest, &bad) >= 0) {
            fprintf(out, "; it read %g in %s", bad, p->tensors[op->in[i]].name);
            return;
        }
    fprintf(out, "; what it read is finite, and at most %.3g", largest);
}

/* Called by the executor around each operation. Of matrices of experts some are not unpacked. */
static void look(void *arg, int op, bool done)
{
    struct sh_hunt *h = arg;
    const struct sh_program *p = h->r->p;
    const struct sh_op *o = &p->ops[op];
    int64_t place = sh_walk_place(h->r, op, micro_of(h, o));

    if (done)
        sh_walk_rows_note(&h->rows, op);
    if (!done || (h->found >= 0 && place >= h->found) || p->streams[o->stream].runs != SH_RUNS_KERNELS ||
        sh_op_info(o->kind)->marker || (o->kind == SH_OP_UNPACK && o->in[1] != SH_NONE))
        return;
    for (int k = 0; k < SH_OP_MAX_OUT && h->found != place; k++) {
        double largest = 0, bad;
        int64_t at = o->out[k] == SH_NONE ? -1 : find_bad(h, o, o->out[k], &largest, &bad);
        char label[SH_OP_LABEL];
        FILE *out;

        if (at < 0)
            continue;
        h->found = place;
        sh_program_label(p, o, label);
        out = fmemopen(h->text, sizeof h->text, "w");
        if (!out)
            return;
        fprintf(out, "%s makes %g in %s, ", label, bad, p->tensors[o->out[k]].name);
        print_place(h, o, o->out[k], at, out);
        print_inputs(h, o, out);
        fprintf(out, "; rank %d on %s", h->r->mesh->rank, h->r->mesh->host);
        fclose(out);
    }
}

void sh_hunt_begin(struct sh_hunt *h, struct sh_run *r)
{
    *h = (struct sh_hunt){.r = r, .found = -1};
    sh_walk_rows_make(&h->rows, r);
    sh_exec_set_look(r->exec, SH_LOOKS, look, h);
}

void sh_hunt_micro_step(struct sh_hunt *h, int micro_step, int64_t first)
{
    h->micro_step = micro_step;
    h->first = first;
}

struct answer {
    int64_t found;
    char text[SH_HUNT_TEXT];
};

/* On rank 0. A failure that does not show again was not one of the program. */
static void say(const struct sh_hunt *h, const struct answer *all, int n)
{
    int first = -1, ranks = 0;

    for (int i = 0; i < n; i++)
        if (all[i].found >= 0) {
            ranks++;
            if (first < 0 || all[i].found < all[first].found)
                first = i;
        }
    if (first < 0)
        sh_log_warn("step %lld: run again, all numbers are finite: memory or a processor of some node has failed for a "
                    "moment",
                    (long long)h->r->step + 1);
    else
        sh_log_warn("step %lld: first not finite: %s%s", (long long)h->r->step + 1, all[first].text,
                    ranks > 1 ? "; other ranks have some, too" : "");
}

sh_rc sh_hunt_end(struct sh_hunt *h)
{
    int n = sh_mesh_ranks(&h->r->mesh->shape);
    struct answer mine = {.found = h->found}, *all = sh_calloc((size_t)n, sizeof *all);
    sh_rc rc;

    memcpy(mine.text, h->text, sizeof mine.text);
    sh_walk_rows_free(&h->rows);
    sh_exec_set_look(h->r->exec, SH_LOOKS, NULL, NULL);
    rc = sh_mesh_gather(&mine, sizeof mine, all);
    if (rc == SH_OK && h->r->mesh->rank == 0)
        say(h, all, n);
    free(all);
    return rc;
}
