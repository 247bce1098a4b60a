/* Rows in parts. A sum over the rows of a micro-step becomes a chain of blocks (kernels/rows.h). */
#include "kernels/rows.h"
#include "src/pass/build.h"

/* Sums of one block stay as they are. */
static void set_row_block(const struct sh_program *p, int64_t block, struct sh_op *op)
{
    struct sh_op_call call;

    if (!sh_rows_are_local(op->kind))
        return;
    op->attr.row_block = block;
    sh_program_call(p, op, NULL, &call);
    if (!sh_rows_to_divide(&call))
        op->attr.row_block = 0;
}

sh_rc sh_pass_tile(const struct sh_build *b, struct sh_program *micro)
{
    int64_t block = b->row_block ? b->row_block : SH_ROW_BLOCK;

    for (int i = 0; i < micro->n_ops; i++)
        set_row_block(micro, block, &micro->ops[i]);
    return SH_OK;
}
