/* Cores of a node's ranks: enough of them, and separate ones for each rank. Ranks that are not bound wander and lose
 * their caches; ranks bound to the same cores (mpirun's default for many, srun --cpu-bind=none) take turns. */
#include "src/tools/doctor/doctor.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/device/device.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>

struct binding {
    int ranks, cores; /* on this node */
    bool shared;      /* some core belongs to two ranks */
};

/* Collective over the node. The caller frees *out, also after a failure. */
static sh_rc gather_sets(MPI_Comm node, cpu_set_t **out, int *n)
{
    cpu_set_t mine;
    int mpi_rc;

    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        CPU_SET(0, &mine);
    SH_MPI(MPI_Comm_size(node, n));
    *out = sh_calloc((size_t)*n, sizeof **out);
    mpi_rc = MPI_Allgather(&mine, sizeof mine, MPI_BYTE, *out, sizeof mine, MPI_BYTE, node);
    SH_MPI(mpi_rc);
    return SH_OK;
}

/* A core that is in the union before a rank is added belongs to two ranks. */
static sh_rc find_binding(struct binding *out)
{
    cpu_set_t *sets, all, both;
    MPI_Comm node;
    sh_rc rc;

    SH_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    rc = gather_sets(node, &sets, &out->ranks);
    MPI_Comm_free(&node);
    SH_TRY(rc);
    CPU_ZERO(&all);
    out->shared = false;
    for (int i = 0; i < out->ranks; i++) {
        /* The intersection of this rank with the union so far. */
        CPU_AND(&both, &all, &sets[i]);
        out->shared = out->shared || CPU_COUNT(&both) > 0;
        CPU_OR(&all, &all, &sets[i]);
    }
    out->cores = CPU_COUNT(&all);
    free(sets);
    return SH_OK;
}

/* Collective. Fewer cores than ranks is reported first: sharing is then certain. */
sh_rc sh_doctor_cores(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    int nodes = d->mesh->n_nodes, poorest = 0, shared = -1;
    double *rest = sh_calloc((size_t)nodes, sizeof *rest), *sharing = sh_calloc((size_t)nodes, sizeof *sharing);
    char cores[SH_STR_SHORT], ranks[SH_STR_SHORT];
    struct binding b;
    sh_rc rc;

    SH_TRY_OUT(find_binding(&b));
    /* Cores left over; negative if ranks must share. */
    SH_TRY_OUT(sh_doctor_of_nodes(d, b.cores - b.ranks, rest));
    SH_TRY_OUT(sh_doctor_of_nodes(d, b.shared, sharing));
    for (int i = 0; i < nodes; i++) {
        poorest = rest[i] < rest[poorest] ? i : poorest;
        shared = shared < 0 && sharing[i] > 0 ? i : shared;
    }
    if (rest[poorest] < 0)
        sh_doctor_note(row,
                       "%s has %g core%s fewer than ranks: they take turns; give each task cores (--cpus-per-task)",
                       sh_doctor_host(d, poorest), -rest[poorest], rest[poorest] < -1 ? "s" : "");
    else if (shared >= 0)
        sh_doctor_note(
            row, "ranks on %s may run on the same cores; bind them (srun --cpu-bind=cores, mpirun --bind-to core)",
            sh_doctor_host(d, shared));
    else
        sh_doctor_good(row, "each rank has its own cores; the first node has %s for %s",
                       sh_str_plural(b.cores, "core", cores), sh_str_plural(b.ranks, "rank", ranks));
out:
    free(rest);
    free(sharing);
    return rc;
}
