#include "src/program/program.h"

static void print_tensor(const struct sh_program *p, int t, FILE *out)
{
    fprintf(out, " %s[", p->tensors[t].name);
    for (int i = 0; i < p->tensors[t].ndim; i++)
        fprintf(out, "%s%lld", i ? "," : "", (long long)p->tensors[t].dim[i]);
    fprintf(out, "]%s", sh_dtype_name(p->tensors[t].dtype));
}

/* One line: number in the section, stream, phase, operation, outputs, inputs. "+=" marks an output that is added to,
 * and "after N" a dependency that no tensor shows. */
static void print_op(const struct sh_program *p, const struct sh_op *op, int index, FILE *out)
{
    fprintf(out, "%6d  %-9s %-9s %-14s", index, sh_stream_name(op->stream), sh_phase_name(op->phase),
            sh_op_info(op->kind)->name);
    if (op->kind == SH_OP_WAIT)
        fprintf(out, " for %d", op->attr.waits_for);
    for (int k = 0; k < SH_OP_MAX_OUT; k++)
        if (op->out[k] != SH_NONE) {
            print_tensor(p, op->out[k], out);
            fputs(op->attr.accumulate >> k & 1u ? " +=" : "", out);
        }
    fputs(op->in[0] != SH_NONE ? "  <- " : "", out);
    for (int k = 0; k < SH_OP_MAX_IN; k++)
        if (op->in[k] != SH_NONE)
            print_tensor(p, op->in[k], out);
    if (op->attr.after != SH_NONE)
        fprintf(out, "  after %d", op->attr.after);
    if (op->kind == SH_OP_ATTENTION_BWD && op->attr.any_order)
        fputs("  in any order", out);
    fputc('\n', out);
}

/* Numbers count from the section's beginning, as waits_for and after do, so that a line can be found by the number. */
void sh_program_print(const struct sh_program *p, FILE *out)
{
    for (int s = 0; s < p->n_sections; s++) {
        const struct sh_section *section = &p->sections[s];

        fprintf(out, "section %s", sh_section_name(section->kind));
        if (section->repeat)
            fprintf(out, " x %d", section->repeat);
        fprintf(out, ": %d operations\n", section->n_ops);
        for (int i = 0; i < section->n_ops; i++)
            print_op(p, &p->ops[section->first_op + i], i, out);
    }
}
