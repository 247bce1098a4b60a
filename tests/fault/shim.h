/* Storage that fails on request: the process's own open, write, fsync, ... replace those of the C library, count the
 * calls on files below one folder, and make one of them go wrong. Linked into a test program (with -rdynamic, so that
 * MPI and HDF5 use it too), or as shim.so in LD_PRELOAD, where shim_env.c takes the plan from the
 * environment. Local. */
#ifndef TESTS_FAULT_SHIM_H
#define TESTS_FAULT_SHIM_H

#include <stdbool.h>

/* clang-format off */
enum shim_call {
    SHIM_OPEN, SHIM_MKDIR, SHIM_WRITE, SHIM_READ, SHIM_SYNC, SHIM_RESIZE, SHIM_RESERVE, SHIM_RENAME, SHIM_UNLINK,
    SHIM_CLOSE,
    SHIM_CALLS,
    SHIM_ANY = SHIM_CALLS /* in a plan: the n-th of all calls together */
};
/* clang-format on */

enum shim_fault {
    SHIM_NOTHING,
    SHIM_FAIL,  /* with `error`, and nothing is done; but a close that fails has closed the file, as on Linux */
    SHIM_SHORT, /* a read or write moves half of what was asked for */
    SHIM_LOSE,  /* a write that reports success and writes nothing */
    SHIM_FLIP,  /* a read or write with one bit changed on the way */
    SHIM_DELAY, /* a fifth of a second late */
    SHIM_KILL,  /* SIGKILL in place of the call */
    SHIM_HANG,  /* the call never returns; a read before it asks the run to stop (SIGUSR1), and takes its time */
    SHIM_ASK,   /* the call itself does that */
    SHIM_FAULTS
};

struct shim_plan {
    enum shim_call call;
    long number;           /* 1: the first call of that kind */
    enum shim_fault fault; /* SHIM_NOTHING: only count */
    int error;             /* errno of SHIM_FAIL */
    bool lasting;          /* all later calls of that kind too */
};

/* "open", "write", ..., and "any". */
extern const char *const shim_call_name[SHIM_CALLS + 1];

/* Start to count from 0; calls on files that are open already are not seen. `folder` is the prefix of paths, as the
 * program itself writes them; `after` (NULL: nothing) is part of a path that must occur before anything counts. Both
 * are copied. */
void shim_start(const char *folder, const char *after, struct shim_plan plan);
void shim_stop(void);

/* The rank of this process before MPI is initialized: each launcher passes it in its own way; without a launcher it is
 * 0. */
int shim_rank(void);

/* The number of calls of a kind (SHIM_ANY: of all kinds) since shim_start; whether the planned one was among them. Also
 * valid after shim_stop. */
long shim_count(enum shim_call call);
bool shim_met(void);

/* The kind of the i-th call, from 0, for the first SHIM_ORDER calls. */
enum { SHIM_ORDER = 4096 };
enum shim_call shim_order(long i);

#endif
