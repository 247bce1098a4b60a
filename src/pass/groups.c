/* The groups of ranks that a program talks to: one row each, so that a job connects those and no others. */
#include "src/pass/pass.h"

void sh_pass_groups(const struct sh_pass_options *opt, struct sh_program *p)
{
    for (int i = 0; i < p->n_ops; i++)
        if (sh_op_info(p->ops[i].kind)->comm)
            sh_program_use_group(p, &opt->mesh, p->ops[i].attr.group, p->ops[i].stream);
    if (p->loss != SH_NONE)
        sh_program_use_group(p, &opt->mesh, opt->mesh.data, SH_STREAM_REPLICATE);
}
