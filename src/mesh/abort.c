/* The end of a job that failed: MPI_Abort, after the line that says why has been read, and within seconds. */
#include "src/mesh/mesh.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ABORT_SECONDS = 5, SPEAK_SECONDS = 2 };

/* MPICH's launcher ends the job as soon as it hears of the abort, and drops what it has not yet read from the ranks'
 * pipes: the line that says why must have been read by then. */
static void wait_for_reader(int fd)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    struct stat kind;
    int unread;

    if (fstat(fd, &kind) != 0 || !S_ISFIFO(kind.st_mode))
        return;
    for (int i = 0; i < SPEAK_SECONDS * 1000 && ioctl(fd, FIONREAD, &unread) == 0 && unread > 0; i++)
        nanosleep(&nap, NULL);
}

static volatile bool up; /* between MPI_Init and MPI_Finalize */
static volatile sig_atomic_t abort_status;

static void leave(int number)
{
    (void)number;
    _exit(abort_status);
}

/* Another thread may be inside MPI now, and an abort that waits for it would never end: the alarm then ends this
 * process, and the launcher ends the others. The thread that calls this takes the alarm, since it may be the only one
 * that runs at all. */
void sh_mesh_abort(int exit_status)
{
    sigset_t alarm_only;

    if (!up)
        return;
    wait_for_reader(STDERR_FILENO);
    abort_status = exit_status;
    signal(SIGALRM, leave);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
    alarm(ABORT_SECONDS);
    MPI_Abort(MPI_COMM_WORLD, exit_status);
}

void sh_mesh_abort_by_mpi(bool is_up)
{
    up = is_up;
}
