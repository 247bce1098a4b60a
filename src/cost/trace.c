/* Writes the predicted step as the trace of a run. */
#include "src/cost/prices.h"
#include "src/metrics/trace_op.h"
#include "src/pass/pass.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

struct sh_cost_trace {
    struct sh_trace *out;
    struct sh_trace_place at;
    int64_t *in_use; /* [operations of the program] bytes */
    int64_t tickets; /* of the earlier sections */
    double begin;    /* of the current section, in seconds */
};

/* A predicted step starts at 0, so no clock is needed. */
static int64_t ns(double seconds)
{
    return llround(seconds * 1e9);
}

/* NULL without a trace. All functions here accept NULL, so the simulation need not check. */
struct sh_cost_trace *sh_cost_trace_begin(const struct sh_cost_request *r)
{
    struct sh_cost_trace *t;

    if (!r->trace)
        return NULL;
    t = sh_calloc(1, sizeof *t);
    *t = (struct sh_cost_trace){
        .out = r->trace, .at = {.p = r->p}, .in_use = sh_calloc((size_t)r->p->n_ops + 1, sizeof *t->in_use)};
    for (int i = 0; i < r->p->n_sections; i++)
        sh_pass_in_use(r->p, &r->p->sections[i], t->in_use + r->p->sections[i].first_op);
    sh_trace_program(t->out, r->p);
    return t;
}

void sh_cost_trace_section(struct sh_cost_trace *t, const struct sh_section *s, double now)
{
    if (!t)
        return;
    sh_trace_enter(&t->at, s);
    t->begin = now;
}

/* Each run of a section has its own tickets: its operations continue the count. */
void sh_cost_trace_section_end(struct sh_cost_trace *t, double now)
{
    if (!t)
        return;
    sh_trace_section(t->out, &t->at, ns(t->begin), ns(now));
    t->tickets += t->at.section->n_ops;
}

/* Tickets tie a wait to its collective, as in a run: the operations of earlier sections plus the position in this one,
 * from 1 on, since 0 means none. */
void sh_cost_trace_op(struct sh_cost_trace *t, int i, double begin, double end, const struct sh_price *price)
{
    const struct sh_section *s;
    const struct sh_op *op;
    struct sh_trace_timed timed;

    if (!t)
        return;
    s = t->at.section;
    op = &t->at.p->ops[s->first_op + i];
    timed = (struct sh_trace_timed){
        .op = s->first_op + i, .begin_ns = ns(begin), .end_ns = ns(end), .flops = price->flops, .bytes = price->bytes};
    if (op->kind == SH_OP_WAIT)
        timed.ticket = t->tickets + op->attr.waits_for + 1;
    else if (sh_op_info(op->kind)->async)
        timed.ticket = t->tickets + i + 1;
    /* Concurrent operations are reported when they end; the memory in use at their start was reported before. */
    if (!sh_op_starts(sh_op_info(op->kind)))
        sh_trace_arena(t->out, timed.begin_ns, t->in_use[timed.op]);
    sh_trace_op(t->out, &t->at, &timed);
}

void sh_cost_trace_end(struct sh_cost_trace *t, double now)
{
    if (!t)
        return;
    sh_trace_step(t->out, 1, 0, ns(now));
    free(t->in_use);
    free(t);
}
