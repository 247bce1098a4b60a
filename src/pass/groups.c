/* The groups of ranks with which a program communicates: one row each, so that a job connects exactly those. A gather
 * over one rank becomes a fetch (host.c). The host sums over all ranks what they agree on before a step. */
#include "src/pass/build.h"
#include "src/pass/pipeline/links.h"

/* A stage may train nothing, and has no sums, but opens the channels of the others with them. */
static void use_sums(const struct sh_mesh_shape *mesh, struct sh_program *p)
{
    for (int i = 0; i < p->n_units; i++) {
        const struct sh_unit *u = &p->units[i];

        if (sh_group_size(mesh, u->shard) > 1)
            sh_program_use_group(p, mesh, u->shard, SH_STREAM_REDUCE);
        if (sh_group_size(mesh, u->replicate) > 1)
            sh_program_use_group(p, mesh, u->replicate, SH_STREAM_REPLICATE);
    }
}

sh_rc sh_pass_groups(const struct sh_build *b, struct sh_program *p)
{
    const struct sh_mesh_shape *mesh = &b->options.mesh;
    int stages = sh_group_size(mesh, mesh->pipeline);
    bool ring = b->options.chunks > 1 && stages > 1;

    /* All stages list the borders of all, whether they have messages there or not. */
    for (int border = 0; border < stages - !ring; border++)
        for (int back = 0; back < 2; back++)
            sh_program_use_group(p, mesh, mesh->pipeline, sh_links_stream(p, stages, border, back));
    if (stages > 1 && b->options.training)
        use_sums(mesh, p);
    for (int i = 0; i < p->n_ops; i++)
        if (sh_op_info(p->ops[i].kind)->async && sh_group_size(mesh, p->ops[i].attr.group) > 1)
            sh_program_use_group(p, mesh, p->ops[i].attr.group, p->ops[i].stream);
    if (p->port[SH_PORT_LOSS] != SH_NONE)
        sh_program_use_group(p, mesh, sh_group_world(mesh), SH_STREAM_REPLICATE);
    return SH_OK;
}
