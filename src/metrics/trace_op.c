/* Events of a trace from operations of a program, for runs and for predictions alike. Rows of a rank, from the top:
 *
 *     steps                      a step, and in it its sections: micro-step 1, micro-step 2, ...
 *     streams                    one row each: computation, and the collectives of each stream
 *     exposed communication      waits, as long as computation stood still
 *     exposed offload            the same for moves between tiers, if the program has any */
#include "src/metrics/trace_op.h"

#include <stdio.h>

void sh_trace_program(struct sh_trace *t, const struct sh_program *p)
{
    for (int i = 0; i < p->n_streams; i++)
        sh_trace_row(t, i, p->streams[i].name);
    sh_trace_row(t, p->n_streams, "exposed communication");
    if (sh_program_moves(p))
        sh_trace_row(t, p->n_streams + 1, "exposed offload");
    sh_trace_row(t, SH_TRACE_STEPS, "steps");
}

/* The four kinds differ in what is done before and after the micro-step, not in what it is. */
static bool is_micro_step(enum sh_section_kind k)
{
    return k == SH_SECTION_FIRST || k == SH_SECTION_MIDDLE || k == SH_SECTION_LAST || k == SH_SECTION_ONLY;
}

/* The micro-steps of a step follow each other; what comes between is not one of them. */
void sh_trace_enter(struct sh_trace_place *at, const struct sh_section *section)
{
    at->section = section;
    at->micro_step = is_micro_step(section->kind) ? at->micro_step + 1 : 0;
}

/* The first output that exists: the gradient of an embedding may have only its second. */
static const char *name_result(const struct sh_program *p, const struct sh_op *op)
{
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE)
            return p->tensors[op->out[k]].name;
    return "";
}

/* "?": a group that the program does not name, as a test's program may have. */
static const char *group_name(const struct sh_program *p, sh_group group)
{
    int i = sh_program_find_group(p->groups, p->n_groups, group);

    return i == SH_NONE ? "?" : p->groups[i].name;
}

/* The kind decides what is written: collectives have a ticket, which ties them to their wait, and an axis; moves have
 * bytes; markers take no time and are left out. */
void sh_trace_op(struct sh_trace *t, const struct sh_trace_place *at, const struct sh_trace_timed *timed)
{
    const struct sh_program *p = at->p;
    const struct sh_op *op = &p->ops[timed->op];
    const struct sh_op_info *info = sh_op_info(op->kind);
    const struct sh_op *waited = op->kind == SH_OP_WAIT ? &p->ops[at->section->first_op + op->attr.waits_for] : NULL;
    const bool moves = sh_op_info(waited ? waited->kind : op->kind)->moves;
    char label[SH_OP_LABEL], of[SH_OP_LABEL];
    struct sh_trace_event e = {.row = op->stream,
                               .name = label,
                               .what = name_result(p, op),
                               .cat = sh_phase_name(op->phase),
                               .begin_ns = timed->begin_ns,
                               .end_ns = timed->end_ns,
                               .flops = timed->flops,
                               .bytes = timed->bytes};

    sh_program_label(p, op, label);
    if (info->async || moves || waited) {
        e.cat = moves ? "offload" : "comm";
        e.flops = -1;
        e.ticket = moves ? 0 : timed->ticket;
    }
    if (info->async) {
        e.axis = group_name(p, op->attr.group);
        e.ranks = sh_group_size(sh_trace_mesh(t), op->attr.group);
    } else if (waited) {
        /* Waits have separate rows below the streams: a wait shows how much of a collective or move the computation did
         * not hide. */
        sh_program_label(p, waited, of);
        e.row = p->n_streams + moves;
        e.name = "wait";
        e.what = of;
        e.bytes = -1;
    } else if (info->marker) {
        return;
    }
    sh_trace_add(t, &e);
}

/* The time of a section is known only when it ends, like that of all events. */
void sh_trace_section(struct sh_trace *t, const struct sh_trace_place *at, int64_t begin_ns, int64_t end_ns)
{
    const char *kind = sh_section_name(at->section->kind);
    char name[32];

    snprintf(name, sizeof name, "micro-step %d", at->micro_step);
    sh_trace_add(t, &(struct sh_trace_event){.row = SH_TRACE_STEPS,
                                             .name = at->micro_step ? name : kind,
                                             .what = kind,
                                             .cat = "step",
                                             .begin_ns = begin_ns,
                                             .end_ns = end_ns,
                                             .flops = -1,
                                             .bytes = -1});
}
