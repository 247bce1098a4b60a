/* Each rank feeds numbers made of its world rank, and each axis must give back what arithmetic says: an axis that
 * quietly has the wrong members (replicas that never meet, shards in another order) cannot pass. */
#include "src/mesh/mesh.h"

#include "src/base/mem.h"

#include <stdlib.h>

static sh_rc check_members(const struct sh_mesh *mesh, enum sh_axis axis, int *found)
{
    SH_MPI(MPI_Allgather(&mesh->rank, 1, MPI_INT, found, 1, MPI_INT, mesh->comm[axis]));
    for (int i = 0; i < mesh->shape.size[axis]; i++) {
        int expected = sh_mesh_axis_member(&mesh->shape, axis, i);
        if (found[i] != expected)
            return sh_fail(SH_E_COMM, "self-test of mesh axis %s: place %d holds rank %d, expected rank %d",
                           sh_axis_name(axis), i, found[i], expected);
    }
    return SH_OK;
}

static sh_rc check_sum(const struct sh_mesh *mesh, enum sh_axis axis)
{
    double gradient = mesh->rank + 1, found = 0, expected = 0;
    SH_MPI(MPI_Allreduce(&gradient, &found, 1, MPI_DOUBLE, MPI_SUM, mesh->comm[axis]));
    for (int i = 0; i < mesh->shape.size[axis]; i++)
        expected += sh_mesh_axis_member(&mesh->shape, axis, i) + 1;
    if (found != expected) /* whole numbers: exact in any order */
        return sh_fail(SH_E_COMM, "self-test of mesh axis %s: sum %.17g, expected %.17g", sh_axis_name(axis), found,
                       expected);
    return SH_OK;
}

static sh_rc check_axes(const struct sh_mesh *mesh, int *found)
{
    /* All axes are gone through even after a failure: peers of another axis wait. */
    sh_rc rc = SH_OK;
    for (int axis = 0; axis < SH_AXES; axis++) {
        sh_rc members = check_members(mesh, (enum sh_axis)axis, found);
        sh_rc sum = check_sum(mesh, (enum sh_axis)axis);
        if (rc == SH_OK)
            rc = members != SH_OK ? members : sum;
    }
    return rc;
}

sh_rc sh_mesh_self_test(const struct sh_mesh *mesh)
{
    sh_mesh_own_mpi();
    int *found = sh_calloc((size_t)mesh->world, sizeof *found);
    sh_rc rc = check_axes(mesh, found);
    free(found);
    return sh_agree(rc);
}
