/* Calls of MPI: their errors, and the two numbers that everybody asks for. */
#include "src/mesh/mesh.h"

#include "sherd_config.h"

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

void sh_mesh_library(char text[SH_MESH_LIBRARY])
{
    char all[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int len, n = 0;

    MPI_Get_library_version(all, &len);
    for (const char *c = all; *c && *c != '\n' && *c != ',' && n < SH_MESH_LIBRARY - 1; c++)
        if (!isspace((unsigned char)*c) || (n && text[n - 1] != ' '))
            text[n++] = isspace((unsigned char)*c) ? ' ' : *c;
    text[n] = '\0';
}

#ifdef SHERD_MPI_ABI
static void leave_to_caller(MPI_Comm *comm, int *error, ...)
{
    (void)comm;
    (void)error;
}

/* Intel MPI 2021.19's library of the ABI takes MPI_ERRORS_RETURN of MPICH's header for MPI_ERRORS_ABORT. A handler of our own
 * that does nothing has the right effect there; after one MPICH returns MPI_SUCCESS. */
static sh_rc choose_handler(MPI_Errhandler *handler)
{
    char library[SH_MESH_LIBRARY];

    sh_mesh_library(library);
    if (!strncmp(library, "Intel", strlen("Intel")))
        SH_MPI(MPI_Comm_create_errhandler(leave_to_caller, handler));
    return SH_OK;
}
#else
static sh_rc choose_handler(MPI_Errhandler *handler)
{
    (void)handler;
    return SH_OK;
}
#endif

sh_rc sh_mesh_return_errors(MPI_Comm comm)
{
    MPI_Errhandler handler = MPI_ERRORS_RETURN;
    int set;

    SH_TRY(choose_handler(&handler));
    set = MPI_Comm_set_errhandler(comm, handler);
    if (handler != MPI_ERRORS_RETURN)
        MPI_Errhandler_free(&handler);
    SH_MPI(set);
    return SH_OK;
}
