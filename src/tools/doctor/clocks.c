/* Compares the clocks of the nodes with that of the first, by ping-pong. Programs do not need equal clocks, but logs,
 * traces and the end of a job's time are read as if they were equal. */
#include "src/tools/doctor/doctor.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 5, TAG = 78 };
/* With less skew, logs are still in order for a reader. */
#define SKEW_SECONDS 1.0

/* Not the monotonic clock: the time of day is what is compared. */
static double wall_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* On rank 0: measures how far the clock of `peer` is ahead, from the fastest of several round trips, half of which is
 * the way back. */
static sh_rc ask(int peer, double *ahead)
{
    double best = INFINITY;

    for (int i = 0; i < ROUNDS; i++) {
        double begin = wall_clock(), theirs, end;

        SH_MPI(MPI_Send(&begin, 1, MPI_DOUBLE, peer, TAG, MPI_COMM_WORLD));
        SH_MPI(MPI_Recv(&theirs, 1, MPI_DOUBLE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        end = wall_clock();
        if (end - begin < best) {
            best = end - begin;
            *ahead = theirs - (begin + end) / 2;
        }
    }
    return SH_OK;
}

/* On the first rank of another node: sends its clock back at once. */
static sh_rc answer(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        double theirs, mine;

        SH_MPI(MPI_Recv(&theirs, 1, MPI_DOUBLE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        mine = wall_clock();
        SH_MPI(MPI_Send(&mine, 1, MPI_DOUBLE, 0, TAG, MPI_COMM_WORLD));
    }
    return SH_OK;
}

/* One node after the other, so that no answer waits in a queue. Ranks that do not lead a node do nothing. */
static sh_rc measure(const struct sh_doctor *d, double *ahead)
{
    if (d->mesh->rank != 0)
        return sh_doctor_leads(d) ? answer() : SH_OK;
    for (int i = 1; i < d->mesh->n_nodes; i++)
        SH_TRY(ask(d->leader[i], &ahead[i]));
    return SH_OK;
}

/* Collective. ahead [n_nodes] in seconds; at most a note, since training does not depend on clocks. */
sh_rc sh_doctor_clocks(const struct sh_doctor *d, struct sh_doctor_row *row)
{
    double *ahead = sh_calloc((size_t)d->mesh->n_nodes, sizeof *ahead);
    int worst = 0;
    sh_rc rc;

    SH_TRY_OUT(measure(d, ahead));
    SH_TRY_OUT(sh_mesh_bcast(ahead, d->mesh->n_nodes * (long)sizeof *ahead, 0));
    for (int i = 1; i < d->mesh->n_nodes; i++)
        worst = fabs(ahead[i]) > fabs(ahead[worst]) ? i : worst;
    if (fabs(ahead[worst]) > SKEW_SECONDS)
        sh_doctor_note(row, "the clock of %s is %.1f s %s that of %s", sh_doctor_host(d, worst), fabs(ahead[worst]),
                       ahead[worst] > 0 ? "ahead of" : "behind", sh_doctor_host(d, 0));
    else if (d->mesh->n_nodes == 1)
        sh_doctor_good(row, "one node");
    else
        sh_doctor_good(row, "within %.1g ms of the first node's", fabs(ahead[worst]) * 1e3);
out:
    free(ahead);
    return rc;
}
