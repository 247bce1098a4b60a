/* Preloaded into the ranks of one machine: to MPI and Sherd they are on nodes of SHERD_TEST_NODE ranks each, with keepers of
 * their own. SHERD_TEST_SHIFT=N: the first is node N. */
#include "tests/fault/shim.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int node(void)
{
    const char *ranks = getenv("SHERD_TEST_NODE");

    const char *first = getenv("SHERD_TEST_SHIFT");

    return ranks ? shim_rank() / atoi(ranks) + (first ? atoi(first) : 0) : 0;
}

__attribute__((constructor)) static void name_node(void)
{
    char name[32];

    if (!getenv("SHERD_TEST_NODE"))
        return;
    snprintf(name, sizeof name, "node%d", node());
    setenv("SLURMD_NODENAME", name, 1);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out)
{
    if (!getenv("SHERD_TEST_NODE") || type != MPI_COMM_TYPE_SHARED)
        return PMPI_Comm_split_type(comm, type, key, info, out);
    return PMPI_Comm_split(comm, node(), key, out);
}
