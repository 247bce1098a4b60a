#include "src/mesh/shape.h"
#include "src/program/program.h"

static void print_tensor(const struct sh_program *p, int t, FILE *out)
{
    fprintf(out, " %s[", p->tensors[t].name);
    for (int i = 0; i < p->tensors[t].ndim; i++)
        fprintf(out, "%s%lld", i ? "," : "", (long long)p->tensors[t].dim[i]);
    fprintf(out, "]%s", sh_dtype_name(p->tensors[t].dtype));
}

/* The group of a collective, and the attributes of the operation's kind; attributes that are 0 are left out. */
static void print_attrs(const struct sh_program *p, const struct sh_op *op, FILE *out)
{
    const struct sh_op_info *info = sh_op_info(op->kind);
    int group = info->async ? sh_program_find_group(p->groups, p->n_groups, op->attr.group) : SH_NONE;

    if (group != SH_NONE)
        fprintf(out, "  over %s", p->groups[group].name);
    if (op->attr.row_block)
        fprintf(out, "  row_block %lld", (long long)op->attr.row_block);
    for (const struct sh_attr_field *f = info->attrs; f && f->name; f++) {
        double value = sh_attr_value(&op->attr, f);

        if (value != 0 && f->type == SH_ATTR_BOOL)
            fprintf(out, "  %s", f->name);
        else if (value != 0)
            fprintf(out, "  %s %.6g", f->name, value);
    }
}

/* Rows of tables that an operation refers to: where the parts of an exchange begin and the last one ends, and the matrices
 * that are made orthogonal, with their copies. */
static void print_rows(const struct sh_program *p, const struct sh_op *op, FILE *out)
{
    int n = op->kind == SH_OP_ORTHO || op->kind == SH_OP_ORTHO_ROWS ? op->attr.ortho.count : 0;

    if (sh_program_cuts(p, op)) {
        fprintf(out, "%28scut at", "");
        for (int i = 0; i < op->attr.exchange.cuts; i++)
            fprintf(out, " %lld", (long long)p->cuts[op->attr.exchange.first_cut + i]);
        fputs(op->attr.exchange.sharers ? ", given to replicas\n" : "\n", out);
    }
    for (const struct sh_matrix *x = p->matrices + op->attr.ortho.first; n > 0; n--, x++)
        fprintf(out, "%28smatrix at %lld: [%lld,%lld] x %lld\n", "", (long long)x->at, (long long)x->out,
                (long long)x->in, (long long)x->repeat);
}

static void print_op(const struct sh_program *p, const struct sh_op *op, int index, FILE *out)
{
    fprintf(out, "%6d  %-9s %-9s %-14s", index, p->streams[op->stream].name, sh_phase_name(op->phase),
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
    print_attrs(p, op, out);
    if (op->attr.after != SH_NONE)
        fprintf(out, "  after %d", op->attr.after);
    fputc('\n', out);
    print_rows(p, op, out);
}

/* Before there are sections, the program is one micro-step. */
static void print_micro_step(const struct sh_program *p, FILE *out)
{
    fprintf(out, "micro-step: %d operations\n", p->n_ops);
    for (int i = 0; i < p->n_ops; i++)
        print_op(p, &p->ops[i], i, out);
}

void sh_program_print(const struct sh_program *p, FILE *out)
{
    if (!p->n_sections)
        print_micro_step(p, out);
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
