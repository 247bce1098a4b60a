/* The predicted step as the trace of a run: the same rows and names in the same order. */
#include "src/cost/prices.h"
#include "src/metrics/metrics.h"

#include <math.h>
#include <stdio.h>

void sh_cost_trace_rows(struct sh_trace *t, const struct sh_program *p)
{
    for (int i = 0; i < p->n_streams; i++)
        sh_trace_row(t, i, p->streams[i].name);
    sh_trace_row(t, p->n_streams, "exposed communication");
    if (sh_program_file_tier(p) != SH_NONE)
        sh_trace_row(t, p->n_streams + 1, "exposed offload");
}

/* The first output, as of a real one. */
static const char *name_result(const struct sh_program *p, const struct sh_op *op)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE)
            return p->tensors[op->out[k]].name;
    return "";
}

static int section_begin(const struct sh_program *p, int op)
{
    int begin = 0;

    for (int s = 0; s < p->n_sections; s++)
        if (p->sections[s].first_op <= op)
            begin = p->sections[s].first_op;
    return begin;
}

static void describe_collective(const struct sh_program *p, const struct sh_op *op, char text[SH_OP_LABEL])
{
    int group = sh_program_find_group(p->groups, p->n_groups, op->attr.group);

    snprintf(text, SH_OP_LABEL, "%.20s axis, %.0f bytes in all", group == SH_NONE ? "" : p->groups[group].name,
             sh_coll_whole(p, op));
}

void sh_cost_trace_op(struct sh_trace *t, const struct sh_program *p, int i, int row, double begin, double end,
                      const struct sh_price *price)
{
    const struct sh_op *op = &p->ops[i];
    char label[SH_OP_LABEL], detail[SH_OP_LABEL];
    int64_t begin_ns = llround(begin * 1e9), end_ns = llround(end * 1e9);

    sh_program_label(p, op, label);
    if (op->kind == SH_OP_WAIT) {
        sh_program_label(p, &p->ops[section_begin(p, i) + op->attr.waits_for], detail);
        sh_trace_event(t, row, "wait", detail, begin_ns, end_ns);
    } else if (sh_op_info(op->kind)->moves) {
        snprintf(detail, sizeof detail, "%.0f bytes", price->bytes);
        sh_trace_event(t, row, label, detail, begin_ns, end_ns);
    } else if (sh_op_info(op->kind)->async) {
        describe_collective(p, op, detail);
        sh_trace_event(t, row, label, detail, begin_ns, end_ns);
    } else {
        sh_trace_event(t, row, label, name_result(p, op), begin_ns, end_ns);
        sh_trace_cost(t, price->flops, price->bytes);
    }
}
