/* Compares the plan of the run with the memory that is free on each node now, so memory in use by other programs
 * counts. */
#include "src/tools/doctor/doctor.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/run/run.h"

#include <stdlib.h>

/* Bytes per rank. 0 if the GPU cannot say: the check then fails, as it should. */
static double room_for_rank(const struct sh_doctor *d)
{
    int64_t bytes;

    if (!d->device)
        return (double)sh_device_node_free() / d->mesh->node_size;
    if (sh_topology_gpu_room(d->cfg, &d->at, &d->gpu, &d->mesh->shape, &bytes) == SH_OK)
        return (double)bytes;
    sh_error_clear();
    return 0;
}

/* Collective. The largest plan of any rank is compared with the poorest node. */
sh_rc sh_doctor_memory(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    double *room = sh_calloc((size_t)d->mesh->n_nodes, sizeof *room), arena;
    char need[SH_STR_SHORT], have[SH_STR_SHORT];
    struct sh_doctor_need needs = {0};
    int poorest = 0;
    bool failed;
    sh_rc rc;

    SH_TRY_OUT(sh_doctor_plan(d, &needs, row, &failed));
    if (failed)
        goto out;
    arena = (double)needs.arena_bytes;
    SH_TRY_OUT(sh_mesh_max(&arena, 1));
    SH_TRY_OUT(sh_doctor_of_nodes(d, room_for_rank(d), room));
    for (int i = 1; i < d->mesh->n_nodes; i++)
        poorest = room[i] < room[poorest] ? i : poorest;
    sh_str_bytes((int64_t)arena, need);
    sh_str_bytes((int64_t)room[poorest], have);
    if (arena > room[poorest])
        sh_doctor_bad(row, SH_E_MEMORY, "the plan takes %s per rank, but %s has %s free for each of its ranks", need,
                      sh_doctor_host(d, poorest), have);
    else
        sh_doctor_good(row, "the plan takes %s per rank; free for each: at least %s", need, have);
out:
    free(room);
    return rc;
}
