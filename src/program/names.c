/* Names of the enumerations, for `sherd plan`, traces and messages. Scripts read the tables of a plan, so a name does
 * not change without a reason. A kind without a name would print as (null): tables have a size, so that the compiler
 * fills all rows. */
#include "src/program/program.h"

const char *sh_program_mem_name(enum sh_mem kind)
{
    static const char *const name[SH_MEM_KINDS] = {
        [SH_MEM_PARAM] = "parameters",
        [SH_MEM_FROZEN] = "parameters, frozen",
        [SH_MEM_REMAINDER] = "parameters (lower halves)",
        [SH_MEM_MASTER] = "parameters (masters, f32)",
        [SH_MEM_UNPACKED] = "parameters, unpacked",
        [SH_MEM_GRAD] = "gradients",
        [SH_MEM_OPTIM] = "optimizer state",
        [SH_MEM_SNAPSHOT] = "checkpoint snapshot",
        [SH_MEM_GATHERED] = "gathered units",
        [SH_MEM_GRAD_FULL] = "unreduced gradients",
        [SH_MEM_ACT] = "activations",
        [SH_MEM_ACT_GRAD] = "activation gradients",
        [SH_MEM_WORK] = "kernel scratch",
        [SH_MEM_DATA] = "tokens",
        [SH_MEM_CONST] = "tables and scalars",
        [SH_MEM_KV] = "keys, values, states",
        [SH_MEM_FETCHED] = "fetched slices of states",
    };
    return name[kind];
}

const struct sh_stream sh_streams[SH_STREAMS] = {
    [SH_STREAM_COMPUTE] = {"compute", SH_RUNS_KERNELS},
    [SH_STREAM_GATHER] = {"gather", SH_RUNS_COLLECTIVES},
    [SH_STREAM_REDUCE] = {"reduce", SH_RUNS_COLLECTIVES},
    [SH_STREAM_REPLICATE] = {"replicate", SH_RUNS_COLLECTIVES},
};

const char *sh_phase_name(enum sh_phase p)
{
    static const char *const name[] = {
        [SH_PHASE_INIT] = "init",         [SH_PHASE_FORWARD] = "forward", [SH_PHASE_RECOMPUTE] = "recompute",
        [SH_PHASE_BACKWARD] = "backward", [SH_PHASE_UPDATE] = "update",
    };
    return name[p];
}

const char *sh_section_name(enum sh_section_kind k)
{
    static const char *const name[SH_SECTION_KINDS] = {
        [SH_SECTION_INIT] = "init",
        [SH_SECTION_FIRST] = "first micro-step",
        [SH_SECTION_MIDDLE] = "middle micro-step",
        [SH_SECTION_LAST] = "last micro-step",
        [SH_SECTION_ONLY] = "micro-step",
        [SH_SECTION_LOSS] = "loss",
        [SH_SECTION_NORM] = "norm",
        [SH_SECTION_UPDATE] = "update",
        [SH_SECTION_EVAL] = "eval",
        [SH_SECTION_LOGITS] = "logits",
        [SH_SECTION_PREFILL] = "prefill",
        [SH_SECTION_DECODE] = "decode",
        [SH_SECTION_SCORE] = "score",
    };
    return name[k];
}

/* What a move carries, by what its home holds: an update fetches both states and gradients of a unit. */
static const char *what_moves(const struct sh_program *p, const struct sh_op *op)
{
    static const char *const held[SH_MEM_KINDS] = {[SH_MEM_PARAM] = " parameters",
                                                   [SH_MEM_FROZEN] = " parameters",
                                                   [SH_MEM_GRAD] = " gradients",
                                                   [SH_MEM_OPTIM] = " optimizer states",
                                                   [SH_MEM_ACT] = " activations"};
    int home = op->kind == SH_OP_FETCH ? op->in[0] : op->out[0];
    const char *name = sh_op_info(op->kind)->moves ? held[p->tensors[sh_tensor_root(p, home)].mem] : NULL;

    return name ? name : "";
}

/* Only rows that travel in waves are counted. */
static int wave_of(const struct sh_op *op)
{
    if (op->kind == SH_OP_ROUTE_WAVE)
        return op->attr.wave.wave;
    return sh_program_counts_rows(op) ? op->attr.exchange.wave : SH_NONE;
}

/* ", micro-step 3": of an operation of the model, if a section has several. */
static const char *micro_step_of(const struct sh_program *p, const struct sh_op *op, char text[24])
{
    bool any = p->unrolled > 1 && op->unit == SH_NONE && op->phase != SH_PHASE_INIT && op->phase != SH_PHASE_UPDATE;

    text[0] = '\0';
    if (any)
        snprintf(text, 24, ", micro-step %d", op->micro);
    return text;
}

void sh_program_label(const struct sh_program *p, const struct sh_op *op, char label[SH_OP_LABEL])
{
    const char *kind = sh_op_info(op->kind)->name, *phase = sh_phase_name(op->phase), *what = what_moves(p, op);
    char wave[24] = "", micro[24];

    if (wave_of(op) != SH_NONE) {
        snprintf(wave, sizeof wave, " wave %d", wave_of(op));
        what = wave;
    }
    micro_step_of(p, op, micro);
    if (op->unit != SH_NONE)
        snprintf(label, SH_OP_LABEL, "%s %.30s %s%s", phase, p->units[op->unit].name, kind, what);
    else if (op->block != SH_NONE)
        snprintf(label, SH_OP_LABEL, "%s layers.%d %s%s%s", phase, op->block, kind, what, micro);
    else
        snprintf(label, SH_OP_LABEL, "%s %s%s%s", phase, kind, what, micro);
}
