/* The stages of a save or a load. Each gives a result of this rank alone, and the next one begins when all ranks have
 * passed, so all of them leave the list at the same place; a deadline watches each. Every stage can be run by the
 * caller. Those that are local can also be run in a thread, one at a time, while the caller does something else; the
 * others and the agreements are then left to the caller's polls, since only one thread may call MPI.
 *
 * Order: open, then run or poll, then close. */
#ifndef IO_MOVE_STAGES_H
#define IO_MOVE_STAGES_H

#include "io/move/deadline.h"
#include "src/base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct sh_move_stage {
    const char *name; /* for the message of the deadline */
    bool local;       /* memory, files and HDF5, but no MPI */
    bool rank0;       /* rank 0 does it for all */
    sh_rc (*run)(void *arg);
    int phase; /* of seconds[] below */
};

enum { SH_MOVE_TEXT_BYTES = 2048 };
struct sh_move_stages {
    const struct sh_move_stage *stage;
    int n;
    void *arg;
    double *seconds;            /* (optional) [phases] += the time of the stages themselves */
    void (*give_up)(void *arg); /* (optional) a stage's thread cannot start: release ranks that wait for its data */
    /* The rest is set by the functions. */
    int next; /* the next stage, or the one in the thread; after a failure the one after the failed stage */
    int rank;
    struct sh_move_deadline *deadline;
    bool started, joinable; /* the next stage is in a thread, or has failed to be; the thread is not joined yet */
    pthread_t thread;
    atomic_bool done;              /* set last by the thread; then rc and text may be read */
    sh_rc rc;                      /* of the stage in the thread */
    char text[SH_MOVE_TEXT_BYTES]; /* errors are kept per thread */
};

/* Start the deadline: seconds for each stage, 0: no limit. `what` begins its message and is freed here. */
void sh_move_stages_open(struct sh_move_stages *s, char *what, double timeout_seconds);

/* Run all stages. Collective, agreed. */
sh_rc sh_move_stages_run(struct sh_move_stages *s);

/* Run stages until a local one is under way in the thread, or with `wait` until none is left. *done: none is left, on
 * all ranks. Collective, agreed. */
sh_rc sh_move_stages_poll(struct sh_move_stages *s, bool wait, bool *done);

/* Wait for the thread; no other stage is begun. Local. */
void sh_move_stages_join(struct sh_move_stages *s);
void sh_move_stages_close(struct sh_move_stages *s); /* local; after join, if there were polls */

#endif
