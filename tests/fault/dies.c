/* Linked into sherd_dies, which is `sherd` with one rank that ends when it enters a given stage of a save or a load:
 * the linker redirects here the call by which each stage tells the deadline that it begins. From the environment:
 *
 *   DIES_RANK=1 DIES_AT="reading the index back" DIES_SAVE=2 DIES_HOW=kill|exit|stop|"time limit"
 *
 * means: rank 1, at that stage of the second save, by SIGKILL, by _exit(1) as a library may do, by SIGSTOP like a
 * node that hangs, or by SIGXCPU, which Sherd sees (UCX takes SIGHUP, to be debugged). The file `died` in the working
 * folder is created at that moment. With DIES_AT=MPI_Finalize that call does not return on any rank. */
#include "io/move/deadline.h"
#include "tests/fault/shim.h"

#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void __real_sh_move_deadline_enter(struct sh_move_deadline *d, const char *stage);
void __wrap_sh_move_deadline_enter(struct sh_move_deadline *d, const char *stage);

static void die(const char *how)
{
    int fd = open("died", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, "\n", 1) != 1)
        abort();
    if (strcmp(how, "exit") == 0)
        _exit(1);
    raise(strcmp(how, "stop") == 0 ? SIGSTOP : strcmp(how, "time limit") == 0 ? SIGXCPU : SIGKILL);
}

void __wrap_sh_move_deadline_enter(struct sh_move_deadline *d, const char *stage)
{
    static int saves;
    const char *at = getenv("DIES_AT");
    __real_sh_move_deadline_enter(d, stage);
    if (at && strcmp(stage, at) == 0 && ++saves == atoi(getenv("DIES_SAVE")) &&
        shim_rank() == atoi(getenv("DIES_RANK")))
        die(getenv("DIES_HOW"));
}

int __real_MPI_Finalize(void);
int __wrap_MPI_Finalize(void);

int __wrap_MPI_Finalize(void)
{
    const char *at = getenv("DIES_AT");
    while (at && strcmp(at, "MPI_Finalize") == 0)
        pause();
    return __real_MPI_Finalize();
}
