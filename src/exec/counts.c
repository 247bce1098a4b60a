#include "src/exec/counts.h"

#include "src/base/mem.h"

#include <stdlib.h>

struct wave {
    int64_t at; /* where its counts are, in numbers from the first one's */
    int64_t ranks;
    int place;
    bool queued;    /* the host has not looked yet */
    bool nobody;    /* no rank has rows */
    bool none_here; /* none come here */
};

struct sh_counts {
    const struct sh_program *p;
    const struct sh_device *device;
    void *queue, *made; /* event: the newest counts are there */
    char *memory;       /* of all waves */
    int64_t bytes;
    struct wave *waves;
    int n_waves;
    int *of;   /* [tensors] the wave whose counts or groups are in this storage; SH_NONE */
    int *wave; /* [ops] the wave of an operation that can have nothing to do, or that counts; SH_NONE */
};

static bool counts(const struct sh_op *op)
{
    return op->kind == SH_OP_ROUTE_WAVE;
}

static int32_t *rows_of(const struct sh_counts *c, const struct wave *w)
{
    return (int32_t *)(void *)c->memory + w->at;
}

static int find(const struct sh_counts *c, int tensor)
{
    return tensor == SH_NONE ? SH_NONE : c->of[sh_tensor_root(c->p, tensor)];
}

/* The sections of micro-steps may have the same tensors. */
static void add_wave(struct sh_counts *c, const struct sh_op *op)
{
    const struct sh_tensor *parts = &c->p->tensors[op->out[0]];
    int *wave = &c->of[sh_tensor_root(c->p, op->out[0])];

    if (*wave == SH_NONE) {
        *wave = c->n_waves++;
        c->waves[*wave] = (struct wave){
            .at = c->bytes / (int64_t)sizeof(int32_t), .ranks = parts->dim[1], .place = op->attr.wave.place};
        c->bytes += sh_tensor_bytes(parts);
    }
    c->of[sh_tensor_root(c->p, op->out[1])] = *wave;
}

/* An operation over rows, unless it has to write zeros where there are none. */
static bool may_skip(const struct sh_op *op)
{
    const struct sh_op_info *info = sh_op_info(op->kind);

    return sh_op_has_rows(op->kind) && !(info->add_out & ~op->attr.accumulate);
}

/* The wave of an operation that makes counts, moves rows, or computes with them. */
static int wave_of(const struct sh_counts *c, const struct sh_section *s, const struct sh_op *op)
{
    int wave = SH_NONE;

    if (op->kind == SH_OP_WAIT)
        op = &c->p->ops[s->first_op + op->attr.waits_for];
    if (counts(op))
        return find(c, op->out[0]);
    if (sh_program_counts_rows(op))
        return find(c, op->in[1]);
    for (int k = 0; k < SH_OP_MAX_IN && wave == SH_NONE && may_skip(op); k++)
        wave = find(c, op->in[k]);
    return wave;
}

static sh_rc look_at_section(struct sh_counts *c, const struct sh_section *s, struct sh_op_call *calls)
{
    for (int i = s->first_op; i < s->first_op + s->n_ops; i++) {
        const struct sh_op *op = &c->p->ops[i];

        c->wave[i] = wave_of(c, s, op);
        SH_REQUIRE(c->wave[i] != SH_NONE || !sh_program_counts_rows(op));
        if (counts(op))
            calls[i].out[0].data = rows_of(c, &c->waves[c->wave[i]]);
        else if (sh_program_counts_rows(op))
            calls[i].in[1].data = rows_of(c, &c->waves[c->wave[i]]);
    }
    return SH_OK;
}

static void look_at_program(struct sh_counts *c)
{
    for (int t = 0; t < c->p->n_tensors; t++)
        c->of[t] = SH_NONE;
    for (int i = 0; i < c->p->n_ops; i++)
        if (counts(&c->p->ops[i]))
            add_wave(c, &c->p->ops[i]);
}

/* On failure nothing is left behind. */
sh_rc sh_counts_open(const struct sh_program *p, const struct sh_device *device, void *queue, struct sh_op_call *calls,
                     struct sh_counts **out)
{
    struct sh_counts *c;
    sh_rc rc = SH_OK;

    if (!device->gpu)
        return SH_OK;
    c = sh_calloc(1, sizeof *c);
    *c = (struct sh_counts){.p = p, .device = device, .queue = queue, .made = device->event_create(false)};
    c->waves = sh_calloc((size_t)p->n_ops + 1, sizeof *c->waves);
    c->wave = sh_calloc((size_t)p->n_ops + 1, sizeof *c->wave);
    c->of = sh_calloc((size_t)p->n_tensors + 1, sizeof *c->of);
    look_at_program(c);
    if (c->n_waves)
        rc = device->host_create(c->bytes, &c->memory);
    for (int i = 0; i < p->n_sections && c->memory && rc == SH_OK; i++)
        rc = look_at_section(c, &p->sections[i], calls);
    if (c->memory && rc == SH_OK)
        *out = c;
    else
        sh_counts_close(c);
    return rc;
}

void sh_counts_close(struct sh_counts *c)
{
    if (!c)
        return;
    if (c->memory)
        c->device->host_destroy(c->memory, c->bytes);
    c->device->event_destroy(c->made);
    free(c->of);
    free(c->waves);
    free(c->wave);
    free(c);
}

void sh_counts_note(struct sh_counts *c, int op)
{
    if (!c || !counts(&c->p->ops[op]))
        return;
    c->device->event_mark(c->made, c->queue);
    c->waves[c->wave[op]].queued = true;
}

static void look(const struct sh_counts *c, struct wave *w)
{
    const int32_t *rows = rows_of(c, w);

    w->queued = false;
    w->nobody = w->none_here = true;
    for (int64_t i = 0; i < w->ranks * w->ranks; i++) {
        w->nobody &= rows[i] == 0;
        w->none_here &= rows[i] == 0 || i % w->ranks != w->place;
    }
}

/* The event is that of the newest wave, and so of all. */
bool sh_counts_idle(struct sh_counts *c, int op)
{
    const struct sh_op *what = c ? &c->p->ops[op] : NULL;
    const struct wave *w;

    if (!c || c->wave[op] == SH_NONE || counts(what))
        return false;
    w = &c->waves[c->wave[op]];
    if (w->queued) {
        c->device->event_wait(c->made);
        for (int i = 0; i < c->n_waves; i++)
            if (c->waves[i].queued)
                look(c, &c->waves[i]);
    }
    return sh_program_counts_rows(what) || what->kind == SH_OP_WAIT ? w->nobody : w->none_here;
}
