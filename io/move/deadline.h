/* A time limit for each stage of a save or a load. A dead disk or a lost peer leaves ranks waiting in calls that
 * never return: a watchdog thread then stops the job and names the stage. Local. */
#ifndef IO_MOVE_DEADLINE_H
#define IO_MOVE_DEADLINE_H

#include <stdbool.h>

struct sh_move_deadline;

/* `what` is copied and starts the message: "loading out/step-8.h5". `rank`: in the job; if all ranks are stuck, rank 0
 * reports first. seconds 0: no limit; returns NULL, which the other functions accept as well. */
struct sh_move_deadline *sh_move_deadline_start(const char *what, double seconds, int rank);

/* This rank works on a stage from now on; the time limit starts again. `stage` is lent. */
void sh_move_deadline_enter(struct sh_move_deadline *d, const char *stage);

/* This rank waits for the others, or works with them. A rank that is late gets some extra seconds to report itself. */
void sh_move_deadline_wait(struct sh_move_deadline *d);

/* This rank has done its part and does something else; no limit until the next stage. */
void sh_move_deadline_rest(struct sh_move_deadline *d);

/* A limit in addition to that of the stage, which a thread of a background save may be working on or resting from: the
 * ranks meet between two steps, and one of them may not arrive. */
void sh_move_deadline_meet(struct sh_move_deadline *d, bool on);

void sh_move_deadline_stop(struct sh_move_deadline *d);

#endif
