/* Preloaded into ranks: an MPI library that only the main thread may call. It says so at the start, and a call by another thread
 * ends the rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void need_main_thread(const char *call)
{
    if (syscall(SYS_gettid) == getpid())
        return;
    fprintf(stderr, "single: %s by a thread that is not the main one\n", call);
    abort();
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int rc = PMPI_Init_thread(argc, argv, required, provided);

    *provided = MPI_THREAD_FUNNELED;
    return rc;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    need_main_thread("MPI_Test");
    return PMPI_Test(request, flag, status);
}

int MPI_Irecv(void *at, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
    need_main_thread("MPI_Irecv");
    return PMPI_Irecv(at, count, type, source, tag, comm, request);
}

int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status)
{
    need_main_thread("MPI_Iprobe");
    return PMPI_Iprobe(source, tag, comm, flag, status);
}

int MPI_Iallgather(const void *send, int n_send, MPI_Datatype send_type, void *recv, int n_recv, MPI_Datatype recv_type,
                   MPI_Comm comm, MPI_Request *request)
{
    need_main_thread("MPI_Iallgather");
    return PMPI_Iallgather(send, n_send, send_type, recv, n_recv, recv_type, comm, request);
}
