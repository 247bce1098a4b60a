/* Agreement and small values among all ranks, between program runs. */
#include "src/mesh/mesh.h"

#include "src/base/log.h"

#include <limits.h>
#include <stdio.h>

/* A failed agreement cannot be agreed on, so this rank takes the job down. */
static void stop_when_failed(sh_rc rc)
{
    if (rc != SH_OK)
        sh_stop(rc);
}

/* A command that is no job does not start MPI. */
static bool is_alone(void)
{
    int rank, world;
    sh_mesh_world(&rank, &world);
    return world == 1;
}

/* Non-blocking, so that the wait has a limit: a blocking all-reduce could not say which rank is missing. */
static sh_rc reduce_world(void *values, int n, MPI_Datatype type, MPI_Op op)
{
    MPI_Request request;

    sh_mesh_own_mpi();
    if (is_alone())
        return SH_OK;
    if (sh_mesh_waits_in_mpi()) {
        SH_MPI(MPI_Allreduce(MPI_IN_PLACE, values, n, type, op, MPI_COMM_WORLD));
        return SH_OK;
    }
    SH_MPI(MPI_Iallreduce(MPI_IN_PLACE, values, n, type, op, MPI_COMM_WORLD, &request));
    return sh_mesh_wait(&request);
}

sh_rc sh_agree(sh_rc rc)
{
    enum { CLASS_RANGE = 256 };
    int rank, world;
    /* The least value is the lowest failing rank's; its class travels with it. After a failure that was already agreed
     * on, only one rank has the text, and it takes precedence over those that have none. */
    long long vote[2] = {LLONG_MAX, rc != SH_OK};
    sh_mesh_world(&rank, &world);
    if (rc != SH_OK)
        vote[0] = (rank + (sh_error_text()[0] != '\0' ? 0LL : world)) * CLASS_RANGE + (long long)rc;
    stop_when_failed(reduce_world(vote, 2, MPI_LONG_LONG, MPI_MIN));
    if (vote[0] == LLONG_MAX)
        return SH_OK;
    bool all_failed = vote[1] == 1;
    int speaker = (int)(vote[0] / CLASS_RANGE) % world;
    if (rank != speaker)
        sh_error_clear();
    else if (!all_failed)
        return sh_fail_prefix(rc, "rank %d: ", speaker);
    return (sh_rc)(vote[0] % CLASS_RANGE);
}

int sh_mesh_report(sh_rc rc)
{
    if (sh_error_locate(rc) == SH_OK) {
        sh_mesh_end_waits(SH_OK);
        return 0;
    }
    fflush(stdout); /* the error comes last, even if both streams go into one file */
    if (sh_error_text()[0] != '\0')
        sh_log_end(sh_error_text());
    /* A launcher ends the job at the first rank that leaves with a status; the line must be out by then. */
    sh_mesh_end_waits(rc);
    sh_mesh_barrier();
    return (int)rc;
}

sh_rc sh_mesh_bcast(void *data, long bytes, int root)
{
    enum { PIECE_BYTES = 1 << 30 }; /* counts in MPI are int */
    sh_mesh_own_mpi();
    for (long done = is_alone() ? bytes : 0; done < bytes; done += PIECE_BYTES) {
        long left = bytes - done;
        int n = left < PIECE_BYTES ? (int)left : PIECE_BYTES;
        SH_MPI(MPI_Bcast((char *)data + done, n, MPI_BYTE, root, MPI_COMM_WORLD));
    }
    return SH_OK;
}

/* Collective; in place. Minima are maxima of negatives. */
sh_rc sh_mesh_max(double *values, int n)
{
    return reduce_world(values, n, MPI_DOUBLE, MPI_MAX);
}

sh_rc sh_mesh_sum_i64(long long *values, int n)
{
    return reduce_world(values, n, MPI_LONG_LONG, MPI_SUM);
}

/* Collective. all [world * bytes] is written on rank 0 only. */
sh_rc sh_mesh_gather(const void *mine, int bytes, void *all)
{
    MPI_Request request;

    sh_mesh_own_mpi();
    if (sh_mesh_waits_in_mpi()) {
        SH_MPI(MPI_Gather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, 0, MPI_COMM_WORLD));
        return SH_OK;
    }
    SH_MPI(MPI_Igather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, 0, MPI_COMM_WORLD, &request));
    return sh_mesh_wait(&request);
}

bool sh_mesh_same(unsigned long long hash)
{
    /* All values are equal if the least and the greatest are: the greatest is the complement of the least
     * complement. */
    unsigned long long ends[2] = {hash, ~hash};
    stop_when_failed(reduce_world(ends, 2, MPI_UNSIGNED_LONG_LONG, MPI_MIN));
    return ends[0] == ~ends[1];
}

static sh_rc barrier(void)
{
    sh_mesh_own_mpi();
    if (!is_alone())
        SH_MPI(MPI_Barrier(MPI_COMM_WORLD));
    return SH_OK;
}

/* Without a time limit of its own: called only where all ranks arrive soon, or where something else watches. */
void sh_mesh_barrier(void)
{
    stop_when_failed(barrier());
}
