/* What can happen to a run from outside, as one rank sees it: signals, the end of the job's time, damaged memory, slow
 * nodes. Judgements only: what follows from them is src/run's, where all ranks take it together. Local. */
#ifndef SH_JOB_JOB_H
#define SH_JOB_JOB_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* signal.c: requests to stop. From sh_job_listen() on, for the rest of the process, these signals only leave a note:
 * SIGUSR1 (what `#SBATCH --signal=USR1@N` sends), SIGTERM (preemption, scancel, the time limit) and SIGINT (Ctrl-C). A
 * second SIGINT ends the process as usual, and one that the parent has set to be ignored stays so. The caller and the
 * threads that it starts later have them blocked; a thread of their own gets them. So call it first in main, before MPI
 * and before threads that compute are started: no signal is lost then. Processes that are forked have the mask and the
 * actions of before. Errors: SH_E_MEMORY: no thread. */
enum sh_job_signal { SH_JOB_USR1, SH_JOB_TERM, SH_JOB_INT, SH_JOB_SIGNALS };
sh_rc sh_job_listen(void);
bool sh_job_heard(enum sh_job_signal s); /* since then */
const char *sh_job_signal_name(enum sh_job_signal s);

/* limit.c: when to stop so that a checkpoint is committed before the job's end. All in seconds. */
enum { SH_JOB_STEPS_SEEN = 128 };
struct sh_job_limit {
    double end;       /* since 1970; 0: no end is known */
    double spare;     /* wanted on top of what is measured */
    double save;      /* of the longer of the last two saves; a guess until one was measured */
    double last_save; /* < 0: none was measured */
    double step[2];   /* longest of this stretch of SH_JOB_STEPS_SEEN steps, and of the one before */
    int seen;         /* steps in this stretch */
};

/* The end from the environment: SHERD_END_TIME, else SLURM_JOB_END_TIME, in seconds since 1970; neither, or 0: no end.
 * Errors: SH_E_USAGE: something else stands there. */
sh_rc sh_job_limit_read(double spare, double save_guess, struct sh_job_limit *out);
void sh_job_limit_step(struct sh_job_limit *l, double seconds); /* from one step to the next, without saves */
void sh_job_limit_save(struct sh_job_limit *l, double seconds);

/* What must be left when another step begins: spare + 1.5 x (longest step + save); `saves` is 2 while
 * another checkpoint is still being written, else 1. */
double sh_job_limit_margin(const struct sh_job_limit *l, int saves);
bool sh_job_limit_near(const struct sh_job_limit *l, double now, int saves);

/* record.c: <dump_folder>/progress.json, for the script that starts the run again (doc/faults.md lists the fields).
 * Replaced in one step each time. */
struct sh_job_record {
    int64_t steps;       /* wanted: training.steps */
    int64_t first_step;  /* steps done when this start began */
    int64_t step;        /* steps done at its end; first_step while it runs */
    int64_t saved_step;  /* of the newest checkpoint known to this start; -1: none */
    int64_t starts;      /* without a new checkpoint so far, this one included */
    double save_seconds; /* the longest of the last saves, < 0: not measured */
    int status;          /* exit status; < 0: it runs, or was killed */
    char reason[512];    /* why it ended, a line; "" while it runs */
    /* Who writes it, filled in by sh_job_record_write: */
    char host[64];
    int64_t pid, pid_space; /* pid_space: tells process numbers of a container from those of its host */
};
sh_rc sh_job_record_write(const char *path, struct sh_job_record *r);
/* What the start before left: `starts`, `save_seconds`, `status`, `reason` and who wrote it. *found false: no file, or one
 * that cannot be used, and *r is as it was. */
void sh_job_record_read(const char *path, struct sh_job_record *r, bool *found);
/* The process that wrote it ran here and does not any more; false also where nobody here can tell. Local. */
bool sh_job_is_gone(const struct sh_job_record *r);

/* outliers.c: of n hashes that should be equal, outlier[i] says which are not what more than half of them are; where there is no
 * such majority (two that differ), all are. Returns how many are outliers. Cost: O(n). */
int sh_job_outliers(int n, const uint64_t *hash, bool *outlier);

/* pace.c: how evenly the ranks work. One struct over the life of a run; feed it each rank's own seconds a step (without
 * waiting), as a mean over `steps` steps. */
#define SH_JOB_SLOW 1.5          /* times the median: a straggler */
#define SH_JOB_LOST 1.0          /* seconds that it must have cost before it is said */
enum { SH_JOB_SLOW_STEPS = 30 }; /* and for that long */
struct sh_job_pace {
    double least, median, most;
    int slowest;        /* rank */
    int64_t slow_steps; /* for which it has been a straggler */
    double lost;        /* seconds that all ranks would have saved in them, had it been like the median */
    bool report;        /* say so now: once, until the ranks are even again or another one is slow */
    bool reported;
};
void sh_job_pace_add(struct sh_job_pace *p, int64_t steps, int n, const double *seconds);

#endif
