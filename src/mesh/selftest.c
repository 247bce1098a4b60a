/* Each rank contributes numbers derived from its world rank, and each group must return what arithmetic says: a group
 * that quietly has the wrong members (replicas that never meet, shards in another order) cannot pass. */
#include "src/mesh/mesh.h"

#include "src/base/mem.h"

#include <stdlib.h>

/* Collective over the group. found: room for [world] ranks. */
static sh_rc check_members(const struct sh_mesh *mesh, const struct sh_mesh_group *g, int *found)
{
    char name[SH_GROUP_NAME];
    SH_MPI(MPI_Allgather(&mesh->rank, 1, MPI_INT, found, 1, MPI_INT, g->comm));
    for (int i = 0; i < sh_group_size(&mesh->shape, g->axes); i++) {
        int expected = sh_group_member(&mesh->shape, g->axes, i);
        if (found[i] != expected)
            return sh_fail(SH_E_COMM, "self-test of mesh axis %s: place %d holds rank %d, expected rank %d",
                           sh_group_name(&mesh->shape, g->axes, name), i, found[i], expected);
    }
    return SH_OK;
}

/* A sum over ranks + 1, so that rank 0 counts as well; this exposes the right members meeting in the wrong
 * communicator. */
static sh_rc check_sum(const struct sh_mesh *mesh, const struct sh_mesh_group *g)
{
    char name[SH_GROUP_NAME];
    double gradient = mesh->rank + 1, found = 0, expected = 0;
    SH_MPI(MPI_Allreduce(&gradient, &found, 1, MPI_DOUBLE, MPI_SUM, g->comm));
    for (int i = 0; i < sh_group_size(&mesh->shape, g->axes); i++)
        expected += sh_group_member(&mesh->shape, g->axes, i) + 1;
    if (found != expected) /* whole numbers: exact in any order */
        return sh_fail(SH_E_COMM, "self-test of mesh axis %s: sum %.17g, expected %.17g",
                       sh_group_name(&mesh->shape, g->axes, name), found, expected);
    return SH_OK;
}

static sh_rc check_groups(const struct sh_mesh *mesh, int *found)
{
    /* All groups are tested even after a failure: peers of another group wait. */
    sh_rc rc = SH_OK;
    for (int i = 0; i < mesh->n_groups; i++) {
        sh_rc members = check_members(mesh, &mesh->groups[i], found);
        sh_rc sum = check_sum(mesh, &mesh->groups[i]);
        if (rc == SH_OK)
            rc = members != SH_OK ? members : sum;
    }
    return rc;
}

/* Collective over the job. The agreement at the end makes one wrong group end all ranks with one line. */
sh_rc sh_mesh_self_test(const struct sh_mesh *mesh)
{
    sh_mesh_own_mpi();
    int *found = sh_calloc((size_t)mesh->world, sizeof *found);
    sh_rc rc = check_groups(mesh, found);
    free(found);
    return sh_agree(rc);
}
