/* What can happen to a run from outside, as one rank sees it: signals, the end of the job's time, damaged memory, slow
 * nodes. Judgements only: src/run acts on them, on all ranks together. Local. */
#ifndef SH_JOB_JOB_H
#define SH_JOB_JOB_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* signal.c: requests to stop. From sh_job_listen() on, for the rest of the process, these signals only leave a note:
 * SIGUSR1 (what `#SBATCH --signal=USR1@N` sends), SIGTERM (preemption, scancel, the time limit) and SIGINT (Ctrl-C). A
 * line on rank 0 says at once what the run does about it. A SIGINT after that line ends the process as usual, and a
 * SIGINT that the parent has set to be ignored stays ignored. SIGPIPE is ignored. The signals are blocked in the caller
 * and in the threads that it starts later; a dedicated thread gets them. So call it first in main, before MPI and
 * before threads that compute are started: no signal is lost then. Forked processes get the former mask and actions
 * back. Errors: SH_E_MEMORY: no thread. */
enum sh_job_signal { SH_JOB_USR1, SH_JOB_TERM, SH_JOB_INT, SH_JOB_SIGNALS };
sh_rc sh_job_listen(void);
bool sh_job_heard(enum sh_job_signal s); /* since sh_job_listen() */
const char *sh_job_signal_name(enum sh_job_signal s);

/* For work of minutes, between its pieces, from any thread: whether to go on. Errors: SH_REQUEUE: a signal was heard;
 * `path` is what the work is on. */
sh_rc sh_job_go_on(const char *path);

/* Block the signals even before main, until sh_job_listen() takes them over, or sh_job_release(): those that have come
 * then act as usual. Safe before the libraries are initialized. */
void sh_job_hold(void);
void sh_job_release(void);

/* What the line about a signal says, at any time: `what` is lent, and has a place %lld for the step, or none. */
void sh_job_doing(const char *what, int64_t step);

/* phases.c: where the time from the launch to the first step goes, each second in one phase. The launch begins at
 * SHERD_LAUNCHED, seconds since 1970, which job scripts set; without it, with this process. */
enum sh_job_phase {
    SH_PHASE_LAUNCH,
    SH_PHASE_MPI,    /* MPI_Init */
    SH_PHASE_PLAN,   /* device, keeper, program */
    SH_PHASE_MESH,   /* groups and channels */
    SH_PHASE_MEMORY, /* arena */
    SH_PHASE_DATA,
    SH_PHASE_LOAD, /* of the state */
    SH_PHASE_STEP, /* the first one, and what is left */
    SH_PHASES
};
enum { SH_JOB_START = 192 };
void sh_job_reached(enum sh_job_phase phase); /* its end, and the beginning of the next; by the main thread */
const double *sh_job_start_seconds(void);     /* [SH_PHASES] so far */
/* "4.2 s from the launch to the first step: launch 0.1, MPI 0.6, ..." */
const char *sh_job_start_text(const double seconds[SH_PHASES], char out[SH_JOB_START]);

/* limit.c: when to stop so that a checkpoint is committed before the job's end. All in seconds. */
enum { SH_JOB_STEPS_SEEN = 128 };
struct sh_job_limit {
    double end;        /* since 1970; 0: no end is known */
    double spare;      /* wanted on top of what is measured */
    double save;       /* of the longer of the last two saves; a guess until one was measured */
    double last_save;  /* < 0: none was measured */
    double validation; /* the last one; 0: none was measured */
    double step[2];    /* longest of this stretch of SH_JOB_STEPS_SEEN steps, and of the one before */
    int seen;          /* steps in this stretch */
};

/* The end from the environment: SHERD_END_TIME, else SLURM_JOB_END_TIME, in seconds since 1970; neither, or 0: no end.
 * Errors: SH_E_USAGE: the variable is not such a time. */
sh_rc sh_job_limit_read(double spare, double save_guess, struct sh_job_limit *out);
void sh_job_limit_step(struct sh_job_limit *l, double seconds); /* from one step to the next, without saves */
void sh_job_limit_save(struct sh_job_limit *l, double seconds);

/* Seconds that must be left when another step begins: spare + 1.5 x (longest step + save); the save counts `saves`
 * times, 2 while another checkpoint is still being written, else 1. */
double sh_job_limit_margin(const struct sh_job_limit *l, int saves);
bool sh_job_limit_near(const struct sh_job_limit *l, double now, int saves);

/* Whether a validation would not be over by then. */
bool sh_job_limit_no_validation(const struct sh_job_limit *l, double now, int saves);

/* record.c: <dump_folder>/progress.json, for the script that starts the run again (doc/faults.md lists the fields).
 * Each write replaces the file atomically. */
struct sh_job_record {
    int64_t steps;             /* wanted: training.steps */
    int64_t first_step;        /* steps done when this start began */
    int64_t step;              /* steps done at its end; first_step while it runs */
    int64_t saved_step;        /* of the newest checkpoint known to this start; -1: none */
    int64_t starts;            /* starts without a new checkpoint so far, this one included */
    int64_t validated_step;    /* up to which no validation that was due is missing; -1: there are none */
    double save_seconds;       /* the longest of the last saves, < 0: not measured */
    double validation_seconds; /* of the last one, < 0: not measured */
    int status;                /* exit status; < 0: it runs, or was killed */
    char reason[512];          /* why it ended, a line; "" while it runs */
    /* Who writes it, filled in by sh_job_record_write: */
    char host[64];
    int64_t pid, pid_space; /* pid_space: tells process numbers of a container from those of its host */
};
sh_rc sh_job_record_write(const char *path, struct sh_job_record *r);
/* Before a signal ends the process, from any thread: the newest record gets a reason, if the run had not ended. */
void sh_job_record_give_up(void);
/* Read what the previous start left: `starts`, `validated_step` (unchanged if it is missing), the seconds, `status`,
 * `reason` and who wrote it. *found false: there
 * is no file that can be used, and *r is unchanged. */
void sh_job_record_read(const char *path, struct sh_job_record *r, bool *found);
/* Whether the process that wrote the record ran here and no longer runs; false also if nobody here can tell. Local. */
bool sh_job_is_gone(const struct sh_job_record *r);

/* outliers.c: of n hashes that should be equal, outlier[i] marks those that differ from what more than half of them
 * are; if there is no such majority (two that differ), all are outliers. Returns the number of outliers. Cost: O(n). */
int sh_job_outliers(int n, const uint64_t *hash, bool *outlier);

/* replay.c: ranks compute each other's data again (src/run/watch/replay.h). next[i] is the rank whose data rank i computes
 * besides its own: one with the same kind, on another node if that can be; -1: no other has this kind. third[i] is yet
 * another one's, or rank i's own if only two have this kind. All ranks of a kind are the next, and the third, of exactly one.
 * Local. */
struct sh_job_ring {
    int n, *next, *third; /* [n] */
};
void sh_job_ring_make(int n, const long long *kind, const long long *node, struct sh_job_ring *ring);
/* As ring_make, where `each` ranks work together: rank[n / each][each] has those of a group in the order of their places.
 * They have another group, whose ranks are alike at each place, as their next and third, place by place; a group is on the
 * node of its first rank. */
void sh_job_ring_of_groups(int n, int each, const int *rank, const long long *kind, const long long *node,
                           struct sh_job_ring *ring);
void sh_job_ring_free(struct sh_job_ring *ring);

/* What a rank computes in each round: its own data, that of the next and of the third, and the first two again. */
enum sh_job_round { SH_JOB_OWN, SH_JOB_NEXT, SH_JOB_THIRD, SH_JOB_OWN_AGAIN, SH_JOB_NEXT_AGAIN, SH_JOB_ROUNDS };

/* sums: [SH_JOB_ROUNDS][n] of what each rank found. No next[i] is -1. differs: whether any two disagree in the first two
 * rounds. blame, with all rounds: marks who is to blame and returns how many: ranks that disagree with themselves
 * (*unstable), else those that disagree with two others, else both of a pair. Local. */
bool sh_job_replay_differs(const struct sh_job_ring *ring, const long long *sums);
int sh_job_replay_blame(const struct sh_job_ring *ring, const long long *sums, bool *blamed, bool *unstable);

/* pace.c: how evenly the ranks work. One struct over the life of a run; feed it each rank's own seconds per step
 * (without waiting), as a mean over `steps` steps. */
#define SH_JOB_SLOW 1.5          /* times the median: a straggler */
#define SH_JOB_LOST 1.0          /* seconds that it must have cost before it is reported */
enum { SH_JOB_SLOW_STEPS = 30 }; /* steps that it must have lasted */
struct sh_job_pace {
    double least, median, most;
    int slowest;        /* rank */
    int64_t slow_steps; /* for which it has been a straggler */
    double lost;        /* seconds that all ranks would have saved in them, had it been as fast as the median */
    bool report;        /* report it now: once, until the ranks are even again or another one is slow */
    bool reported;
};
void sh_job_pace_add(struct sh_job_pace *p, int64_t steps, int n, const double *seconds);

#endif
