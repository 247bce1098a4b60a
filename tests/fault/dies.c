/* Linked into sherd_dies, which is `sherd` with one rank that ends when it enters a given stage of a save or a load, or
 * a given operation of a step: the linker redirects here the calls by which each stage tells the deadline, and each
 * operation the watch, that it begins. From the environment:
 *
 *   DIES_RANK=1 DIES_AT="reading the index back" DIES_SAVE=2 DIES_HOW=kill|exit|stop|"time limit"|hang|late
 *
 * means: rank 1, the second time that it is there, by SIGKILL, by _exit(1) as a library may do, by SIGSTOP like a node
 * that hangs, or by SIGXCPU, which Sherd sees (UCX takes SIGHUP, to be debugged); or the thread does not come back, or
 * only after DIES_SECONDS. Near checkpoints have stages of their own: "filling", "sending", "kept" (a generation is there), "loading"
 * and "loaded" (before one of this start is). The file `died` in the working folder is created at that moment. With DIES_AT=MPI_Finalize
 * that call does not return on any rank. */
#include "io/move/deadline.h"
#include "src/comm/comm.h"
#include "src/mesh/mesh.h"
#include "src/near/slot.h"
#include "src/run/kept/kept.h"
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
    while (strcmp(how, "hang") == 0)
        pause();
    if (strcmp(how, "late") == 0) {
        usleep((useconds_t)(1e6 * atof(getenv("DIES_SECONDS"))));
        return;
    }
    raise(strcmp(how, "stop") == 0 ? SIGSTOP : strcmp(how, "time limit") == 0 ? SIGXCPU : SIGKILL);
}

static void reach(const char *stage)
{
    static int times;
    const char *at = getenv("DIES_AT");

    if (at && strcmp(stage, at) == 0 && ++times == atoi(getenv("DIES_SAVE")) &&
        shim_rank() == atoi(getenv("DIES_RANK")))
        die(getenv("DIES_HOW"));
}

void __wrap_sh_move_deadline_enter(struct sh_move_deadline *d, const char *stage)
{
    __real_sh_move_deadline_enter(d, stage);
    reach(stage);
}

void __real_sh_comm_note(struct sh_comm *c, int64_t step, const char *doing);
void __wrap_sh_comm_note(struct sh_comm *c, int64_t step, const char *doing);

void __wrap_sh_comm_note(struct sh_comm *c, int64_t step, const char *doing)
{
    __real_sh_comm_note(c, step, doing);
    reach(doing);
}

void __real_sh_near_begin(const struct sh_near_slot *s);
void __wrap_sh_near_begin(const struct sh_near_slot *s);

void __wrap_sh_near_begin(const struct sh_near_slot *s)
{
    __real_sh_near_begin(s);
    reach("filling");
}

sh_rc __real_sh_mesh_shift(const void *out, int64_t out_bytes, int to, void *in, int64_t in_bytes, int from);
sh_rc __wrap_sh_mesh_shift(const void *out, int64_t out_bytes, int to, void *in, int64_t in_bytes, int from);

sh_rc __wrap_sh_mesh_shift(const void *out, int64_t out_bytes, int to, void *in, int64_t in_bytes, int from)
{
    sh_rc rc;

    reach("sending"); /* twice a generation: all but the head, then the head */
    rc = __real_sh_mesh_shift(out, out_bytes, to, in, in_bytes, from);
    if (out_bytes == SH_NEAR_PAGE)
        reach("kept");
    return rc;
}

sh_rc __real_sh_mesh_trade(const struct sh_mesh_trade *t);
sh_rc __wrap_sh_mesh_trade(const struct sh_mesh_trade *t);

sh_rc __wrap_sh_mesh_trade(const struct sh_mesh_trade *t)
{
    reach("loading");
    return __real_sh_mesh_trade(t);
}

sh_rc __real_sh_kept_take(struct sh_run *r);
sh_rc __wrap_sh_kept_take(struct sh_run *r);

sh_rc __wrap_sh_kept_take(struct sh_run *r)
{
    sh_rc rc = __real_sh_kept_take(r);

    reach("loaded");
    return rc;
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
