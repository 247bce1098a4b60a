/* Calls of MPI: their errors, and the two numbers that everybody asks for. */
#include "src/mesh/mesh.h"

#include <ctype.h>
#include <string.h>

void sh_mesh_world(int *rank, int *world)
{
    int started;
    *rank = 0;
    *world = 1;
    if (MPI_Initialized(&started) == MPI_SUCCESS && !started)
        return;
    /* Nobody can go on without these. */
    if (MPI_Comm_rank(MPI_COMM_WORLD, rank) != MPI_SUCCESS || MPI_Comm_size(MPI_COMM_WORLD, world) != MPI_SUCCESS)
        sh_stop(sh_fail(SH_E_COMM, "MPI does not say which rank this process is"));
}

sh_rc sh_mesh_mpi_check(const char *file, int line, const char *call, int mpi_rc)
{
    if (mpi_rc == MPI_SUCCESS)
        return SH_OK;
    char why[MPI_MAX_ERROR_STRING] = "unknown error";
    int len;
    MPI_Error_string(mpi_rc, why, &len);
    for (char *c = why; *c != '\0'; c++) /* MPICH answers with several lines; a message is one line */
        if (isspace((unsigned char)*c))
            *c = ' ';
    /* The name of the call is enough; its arguments are our variables. */
    return sh_fail_at(file, line, SH_E_COMM, "%.*s: %s", (int)strcspn(call, "("), call, why);
}
