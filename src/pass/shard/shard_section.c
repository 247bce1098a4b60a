/* Sharding a micro-step: where the logical step names a parameter, the section reads a gathered unit; where it makes a
 * gradient, the section writes into the unit's flat gradient, and reduces that when its last part is in. */
#include "src/pass/shard/sharding.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* The part of a flat unit tensor that corresponds to the micro-step's tensor t (a parameter or its gradient). */
static int part(struct sh_sharding *s, int unit_tensor, int param, int t)
{
    const struct sh_tensor *m = &s->micro->tensors[t];
    const struct sh_param *of = &s->micro->params[param];

    return sh_shard_view(s->out, unit_tensor, of->unit_elems + m->leaf * sh_sharding_padded(s, of->unit), m->ndim,
                         m->dim, m->name);
}

/* The section's tensor for a tensor of the micro-step:
 *  parameter   a view of the gathered or resident unit, which changes with each interval
 *  gradient    a view of the unit's flat gradient
 *  others      a copy, made once */
static int translate(struct sh_sharding *s, int t)
{
    const struct sh_tensor *m;
    struct sh_tensor copy;
    int unit;

    if (t == SH_NONE)
        return SH_NONE;
    m = &s->micro->tensors[t];
    unit = sh_sharding_unit_of(s, t);
    if (unit != SH_NONE)
        return part(s, s->full[unit] != SH_NONE ? s->full[unit] : s->out->units[unit].full, m->param, t);
    if (m->grad_of != SH_NONE)
        return part(s, sh_sharding_unit_grad(s, s->micro->params[m->grad_of].unit), m->grad_of, t);
    if (s->map[t] == SH_NONE) {
        copy = *m;
        if (copy.base != SH_NONE)
            copy.base = translate(s, copy.base);
        s->map[t] = sh_program_add_tensor(s->out, &copy);
    }
    return s->map[t];
}

/* Later micro-steps add to what is kept: the loss, what routers report, and gradients that are not reduced in between.
 * Loads and rows are whole numbers, whose sum needs no tree. */
static void accumulate(const struct sh_sharding *s, const struct sh_op *micro_op, struct sh_op *op)
{
    bool counts = op->kind == SH_OP_ROUTE_LOAD || op->kind == SH_OP_ROUTE_WAVE, first = counts ? s->begins : s->first;

    for (int k = 0; k < SH_OP_MAX_OUT && !first; k++) {
        int t = micro_op->out[k];

        if (t == SH_NONE)
            continue;
        if (t == s->micro->port[SH_PORT_LOSS] || sh_sharding_micro_root(s, t) == s->micro->port[SH_PORT_ROUTERS] ||
            (s->micro->tensors[t].grad_of != SH_NONE && s->out->tensors[op->out[k]].persistent))
            op->attr.accumulate |= 1u << k;
    }
}

static int translate_input(struct sh_sharding *s, const struct sh_op *m, int t)
{
    int unit = sh_sharding_unit_of(s, t), full, rows;

    if (unit == SH_NONE || !(s->out->units[unit].packed || s->out->units[unit].coded))
        return translate(s, t);
    full = s->full[unit] != SH_NONE ? s->full[unit] : s->out->units[unit].full;
    rows = sh_op_has_rows(m->kind) ? translate(s, m->in[1]) : SH_NONE;
    return sh_shard_unpacked(&s->unpacked, m, t, full, rows);
}

/* Whether an operand is a port that sections of this kind do not use: an evaluation counts no loads, and has no teacher. */
static bool is_for_others(const struct sh_sharding *s, int operand)
{
    int t = operand == SH_NONE ? SH_NONE : sh_sharding_micro_root(s, operand);

    for (int port = 0; port < SH_PORTS && t != SH_NONE; port++)
        if (s->micro->port[port] == t)
            return !(sh_port_row(port)->sections >> s->kind & 1);
    return false;
}

/* The likeliest words are there for sections that have ports for them. */
static bool scores_for_others(const struct sh_sharding *s, const struct sh_op *m)
{
    return m->kind == SH_OP_HEAD_SCORE && is_for_others(s, m->out[2]);
}

/* The loss of weighed targets is there for its gradient, which an evaluation does not have: its number is made before. */
static bool weighs_for_nothing(const struct sh_sharding *s, const struct sh_op *m)
{
    return m->kind == SH_OP_HEAD_LOSS && m->in[3] != SH_NONE &&
           sh_sharding_micro_root(s, m->out[0]) != s->micro->port[SH_PORT_LOSS];
}

static void emit(struct sh_sharding *s, int index)
{
    const struct sh_op *m = &s->micro->ops[index];
    struct sh_op op = *m;

    if (is_for_others(s, m->out[0]) || scores_for_others(s, m) || weighs_for_nothing(s, m))
        return;
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        op.in[k] = is_for_others(s, m->in[k]) ? SH_NONE : translate_input(s, m, m->in[k]);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        op.out[k] = is_for_others(s, m->out[k]) ? SH_NONE : translate(s, m->out[k]);
    accumulate(s, m, &op);
    /* The ranks of a node fetch their parts from there. */
    if (op.kind == SH_OP_ALL_TO_ALL && s->opt->segment_ranks)
        s->out->tensors[sh_tensor_root(s->out, op.in[0])].space = SH_SPACE_PEERS;
    if (op.kind == SH_OP_WAIT)
        op.attr.waits_for = s->placed[op.attr.waits_for];
    s->placed[index] = s->out->sections[s->out->n_sections - 1].n_ops;
    if (sh_op_info(op.kind)->async && !sh_program_is_message(&op)) /* those have waits where they can be met */
        sh_program_append_waited(s->out, op);
    else
        sh_program_append(s->out, op);
}

/* What has to be done after each operation of the micro-step. */
struct agenda {
    int *first; /* [operations] the first thing, SH_NONE */
    int *next;  /* [things] the one after it, SH_NONE */
};

static struct agenda agenda_for(const struct sh_sharding *s, int things)
{
    return (struct agenda){.first = sh_program_nones(s->micro->n_ops), .next = sh_program_nones(things)};
}

static void free_agenda(struct agenda *a)
{
    free(a->first);
    free(a->next);
}

/* Insert in front: things are put in from the last to the first. */
static void put_in(struct agenda *a, int op, int thing)
{
    if (op == SH_NONE)
        return;
    a->next[thing] = a->first[op];
    a->first[op] = thing;
}

static void close_intervals(struct sh_sharding *s, const struct agenda *closing, int op)
{
    for (int v = closing->first[op]; v != SH_NONE; v = closing->next[v])
        sh_sharding_close_interval(s, &s->intervals[v]);
}

static void reduce_units(struct sh_sharding *s, const struct agenda *reducing, int op)
{
    for (int thing = reducing->first[op]; thing != SH_NONE; thing = reducing->next[thing])
        sh_sharding_reduce(s, thing % s->micro->n_units, s->micro->ops[op].phase);
}

static void walk(struct sh_sharding *s)
{
    int opened = 0, things = s->steps * s->micro->n_units;
    struct agenda closing = agenda_for(s, s->n_intervals), reducing = agenda_for(s, things);

    for (int v = s->n_intervals - 1; v >= 0; v--)
        put_in(&closing, s->intervals[v].last, v);
    for (int thing = things - 1; thing >= 0; thing--)
        put_in(&reducing, s->last_grad[thing], thing);
    for (int i = 0; i < s->micro->n_ops; i++) {
        if (s->micro->ops[i].phase == SH_PHASE_INIT)
            continue;
        sh_sharding_begin_operation(s, i);
        for (; opened < s->n_intervals && s->intervals[opened].first == i; opened++)
            sh_sharding_open_interval(s, &s->intervals[opened]);
        emit(s, i);
        close_intervals(s, &closing, i);
        reduce_units(s, &reducing, i);
    }
    free_agenda(&closing);
    free_agenda(&reducing);
}

/* Storage of these kinds of memory is identified by its name. */
static bool by_name(const struct sh_tensor *t)
{
    return t->base == SH_NONE && (t->mem == SH_MEM_CONST || t->mem == SH_MEM_KV);
}

/* Tensors that outlive the section are those of the program. */
static void bind(struct sh_sharding *s, enum sh_section_kind kind)
{
    for (int port = 0; port < SH_PORTS; port++) {
        enum sh_port next = kind == SH_SECTION_DECODE ? sh_port_row(port)->decode : 0;

        if (s->micro->port[port] != SH_NONE)
            s->map[s->micro->port[port]] = s->out->port[next ? next : (enum sh_port)port];
    }
    for (int t = 0; t < s->micro->n_tensors; t++)
        for (int o = 0; o < s->out->n_tensors && by_name(&s->micro->tensors[t]) && s->map[t] == SH_NONE; o++)
            if (s->out->tensors[o].persistent && s->out->tensors[o].mem == s->micro->tensors[t].mem &&
                !strcmp(s->out->tensors[o].name, s->micro->tensors[t].name))
                s->map[t] = o;
}

static bool is_micro_step(enum sh_section_kind kind)
{
    return kind == SH_SECTION_ONLY || kind == SH_SECTION_FIRST || kind == SH_SECTION_MIDDLE || kind == SH_SECTION_LAST;
}

void sh_shard_section(const struct sh_program *micro, const struct sh_pass_options *opt, enum sh_section_kind kind,
                      int micro_step, int repeat, struct sh_program *out)
{
    int steps = opt->reproducible && kind == SH_SECTION_ONLY ? micro->unrolled : 1;
    struct sh_sharding s = {.micro = micro,
                            .opt = opt,
                            .out = out,
                            .kind = kind,
                            .micro_step = opt->reproducible ? micro_step : 0,
                            .steps = steps,
                            .begins = kind == SH_SECTION_FIRST || kind == SH_SECTION_ONLY,
                            .first = opt->reproducible || (kind != SH_SECTION_MIDDLE && kind != SH_SECTION_LAST),
                            .last = kind == SH_SECTION_LAST || kind == SH_SECTION_ONLY,
                            .trains = is_micro_step(kind),
                            .place = SH_NONE,
                            .map = sh_program_nones(micro->n_tensors),
                            .full = sh_program_nones(micro->n_units),
                            .unpacked = {.micro = micro, .out = out, .weight = sh_program_nones(micro->n_tensors)},
                            .secondary = sh_program_nones(micro->n_units),
                            .grad = sh_program_nones(steps * micro->n_units),
                            .placed = sh_program_nones(micro->n_ops),
                            .last_grad = sh_program_nones(steps * micro->n_units),
                            .newest = sh_program_nones(micro->n_units)};

    sh_program_add_section(out, kind, repeat);
    out->sections[out->n_sections - 1].micro_step = micro_step;
    bind(&s, kind);
    sh_sharding_find_intervals(&s);
    sh_sharding_find_last_grads(&s);
    walk(&s);
    free(s.intervals);
    free(s.map);
    free(s.full);
    free(s.unpacked.weight);
    free(s.secondary);
    free(s.grad);
    free(s.placed);
    free(s.last_grad);
    free(s.newest);
}
