/* Reports how the launcher has spread the ranks over nodes. sh_mesh_start() has already refused a job of N single
 * ranks. */
#include "src/tools/doctor/doctor.h"

#include <stdio.h>

/* Returns the fewest ranks on any node; *most is the maximum. */
static int fewest_on_node(const struct sh_doctor *d, int *most)
{
    int least = sh_mesh_ranks(&d->mesh->shape);

    *most = 0;
    for (int i = 0; i < d->mesh->n_nodes; i++) {
        int n = 0;

        for (int rank = 0; rank < sh_mesh_ranks(&d->mesh->shape); rank++)
            n += d->place[rank].node == i;
        least = n < least ? n : least;
        *most = n > *most ? n : *most;
    }
    return least;
}

/* Neighbouring ranks form shard groups, so placing ranks in blocks keeps the gathers inside a node. */
static bool in_blocks(const struct sh_doctor *d)
{
    for (int rank = 1; rank < sh_mesh_ranks(&d->mesh->shape); rank++)
        if (d->place[rank].node < d->place[rank - 1].node)
            return false;
    return true;
}

/* The ranks of tensor, and then of context, are neighbours on their axis, and exchange rows within each block. */
bool sh_doctor_find_apart(const struct sh_mesh_shape *shape, const struct sh_doctor_place *place,
                          struct sh_doctor_apart *out)
{
    static const int axes[] = {SH_AXIS_TENSOR, SH_AXIS_CONTEXT};

    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        const struct sh_axis *a = &shape->axis[axes[i]];
        int span = a->size * a->stride;

        for (int rank = 0; rank + a->stride < sh_mesh_ranks(shape); rank++) {
            int next = rank + a->stride;

            if (rank / span != next / span || place[rank].node == place[next].node)
                continue;
            *out = (struct sh_doctor_apart){a->name, rank, next, span};
            return true;
        }
    }
    return false;
}

/* Ranks in blocks are apart only if a node has no whole number of groups. */
static void note_apart(const struct sh_doctor *d, const struct sh_doctor_apart *a, struct sh_doctor_row *row)
{
    char cure[128] = "start with srun -m block or mpirun --map-by core";

    if (in_blocks(d))
        snprintf(cure, sizeof cure,
                 "start a multiple of %d ranks on each node, or give a smaller parallelism.%s_parallel_degree", a->span,
                 a->axis);
    sh_doctor_note(row, "%s: ranks %d and %d are on %s and %s, but exchange rows in each block; %s", a->axis, a->rank,
                   a->next, sh_doctor_host(d, d->place[a->rank].node), sh_doctor_host(d, d->place[a->next].node), cure);
}

/* Local: all ranks have the same table of places. Only notes, since such a job runs, if slower. */
sh_rc sh_doctor_ranks(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    const struct sh_mesh_shape *m = &d->mesh->shape;
    struct sh_doctor_apart apart;
    int nodes = d->mesh->n_nodes, world = sh_mesh_ranks(&d->mesh->shape), most, least = fewest_on_node(d, &most);

    if (d->gpu.hidden)
        sh_doctor_note(row, "%s", d->gpu.hidden);
    else if (sh_doctor_find_apart(m, d->place, &apart))
        note_apart(d, &apart, row);
    else if (least != most)
        sh_doctor_note(row, "%d to %d per node: nodes with fewer wait for the others", least, most);
    else if (!in_blocks(d))
        sh_doctor_note(row, "neighbours are not on one node; start with srun -m block or mpirun --map-by core");
    else
        sh_doctor_good(row, "%d on %d node%s, %d on each; mesh %d x %d (replicate x shard)", world, nodes,
                       nodes == 1 ? "" : "s", least, sh_group_size(m, m->replicate), sh_group_size(m, m->shard));
    return SH_OK;
}
