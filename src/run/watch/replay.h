/* Silent faults of a processor: fault.replay_every. After every so many steps each rank computes the first micro-step of
 * that step again, and then that of another rank, on another node if there is one: data are a function of their number
 * and all parameters are there, so nothing else is needed. The bits of everything that forward and backward make must be
 * equal, up to the gradients as they are before any rank's are added. If two ranks differ, a third computes the same and
 * both repeat; who disagrees with itself, or with the two others, is named with its node, and the run ends before it
 * saves. What the sections leave behind is written anew by the next step.
 *
 * Ranks that make a micro-step together (axes of tensors, contexts, experts and stages) compute that of other such ranks,
 * each at its place, and then only the first operation that differs decides, since the fault of one goes into what all of
 * them make. Stages work on several micro-steps at once, so theirs are all of the step.
 *
 * A fault that does not come back passes, and so does one of a collective's sum, which replicas.h finds between replicas.
 * Only ranks with the same processor, or GPU, are compared.
 *
 * Cost: two micro-steps of forward and backward, with stages two steps, and one read of all that they make, on a GPU through its host; sent: 8
 * bytes for each rank. Memory: 40 bytes for each operation of a section. */
#ifndef SH_WATCH_REPLAY_H
#define SH_WATCH_REPLAY_H

#include "src/base/err.h"
#include "src/job/job.h"
#include "src/run/measure/walk.h"

#include <stdbool.h>
#include <stdint.h>

struct sh_run;
struct sh_section;

/* Read the first micro-step of `rank` in the step just done, or all that its section has, and run the section. */
typedef void sh_replay_run(void *arg, int rank, const struct sh_section *section);

struct sh_replay {
    struct sh_run *r;
    struct sh_job_ring ring;          /* whose micro-steps each rank computes besides its own */
    bool *counts;                     /* [ops][SH_OP_MAX_OUT] outputs that do not depend on who computes them */
    const struct sh_section *section; /* the one that is replayed */
    struct sh_walk_rows rows;
    long long *ops, *now; /* [SH_JOB_ROUNDS][most] sums of outputs; now: the round that is being made */
    int most, together;   /* operations of the longest section; ranks that make a micro-step with each other */
    char *copy;           /* of an output on a GPU; else NULL */
    int64_t good;         /* the step up to which replays were equal, or with which this process began */
    int64_t began;        /* when the steps since then began; 0: that is known already */
};

/* Pair the ranks. Does nothing if there is nothing to replay. Collective, agreed. Errors: SH_E_USAGE: there is no other
 * rank with such a processor; the bits of a micro-step may change from run to run. */
sh_rc sh_replay_open(struct sh_replay *s, struct sh_run *r);
void sh_replay_close(struct sh_replay *s);

/* Whether there is one after the step that makes `step`. Local, the same on all ranks. */
bool sh_replay_due(const struct sh_run *r, int64_t step);

/* Compare after the step just done; no update is pending. section: of its first micro-step. Collective, agreed. Errors:
 * SH_E_REPLICA with rank, node and the first operation that differs. */
sh_rc sh_replay_step(struct sh_replay *s, const struct sh_section *section, sh_replay_run *run, void *arg);

#endif
