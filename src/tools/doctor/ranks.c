/* Reports how the launcher has spread the ranks over nodes. sh_mesh_start() has already refused a job of N single
 * ranks. */
#include "src/tools/doctor/doctor.h"

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

/* Local: all ranks have the same table of places. Only notes, since such a job runs, if slower. */
sh_rc sh_doctor_ranks(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    const struct sh_mesh_shape *m = &d->mesh->shape;
    int nodes = d->mesh->n_nodes, world = sh_mesh_ranks(&d->mesh->shape), most, least = fewest_on_node(d, &most);

    if (d->gpu.hidden)
        sh_doctor_note(row, "%s", d->gpu.hidden);
    else if (least != most)
        sh_doctor_note(row, "%d to %d per node: nodes with fewer wait for the others", least, most);
    else if (!in_blocks(d))
        sh_doctor_note(row, "neighbours are not on one node; start with srun -m block or mpirun --map-by core");
    else
        sh_doctor_good(row, "%d on %d node%s, %d on each; mesh %d x %d (replicate x shard)", world, nodes,
                       nodes == 1 ? "" : "s", least, sh_group_size(m, m->replicate), sh_group_size(m, m->shard));
    return SH_OK;
}
