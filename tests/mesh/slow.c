/* Preloaded into ranks: each message between two of them is late by up to SLOW_US microseconds, by turns of a number that
 * differs from rank to rank. */
#include <mpi.h>
#include <stdlib.h>
#include <time.h>

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    static unsigned long long state;
    const char *most = getenv("SLOW_US"), *rank = getenv("OMPI_COMM_WORLD_RANK");

    if (!rank)
        rank = getenv("PMI_RANK");
    if (!state)
        state = 88172645463325252ULL + (unsigned long long)(rank ? atoi(rank) : 0) * 7919;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    if (most)
        nanosleep(&(struct timespec){.tv_nsec = (long)(state % (unsigned long long)atoi(most)) * 1000}, NULL);
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}
