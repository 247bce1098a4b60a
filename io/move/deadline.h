/* A limit for each stage of a save or a load. A dead disk or a peer that is gone leaves ranks waiting in calls that
 * never return: a thread of its own then stops the job, naming the stage. Local. */
#ifndef IO_MOVE_DEADLINE_H
#define IO_MOVE_DEADLINE_H

#include <stdbool.h>

struct sh_move_deadline;

/* `what` begins the line and is copied: "loading out/step-8.h5". `rank`: of the job; where all are stuck, 0 speaks
 * first. seconds 0: no limit, and NULL, which the other functions take as well. */
struct sh_move_deadline *sh_move_deadline_start(const char *what, double seconds, int rank);

/* This rank works on a stage from now on; its time begins anew. `stage` is lent. */
void sh_move_deadline_enter(struct sh_move_deadline *d, const char *stage);

/* It waits for the others, or works with them. It gives the one that is late some seconds more to say so itself. */
void sh_move_deadline_wait(struct sh_move_deadline *d);

/* It has done its part and does something else; no limit until the next stage. */
void sh_move_deadline_rest(struct sh_move_deadline *d);

/* Beside the stage, which a thread of a background save may work on or rest from: the ranks meet between two steps, and
 * one of them may not come. */
void sh_move_deadline_meet(struct sh_move_deadline *d, bool on);

void sh_move_deadline_stop(struct sh_move_deadline *d);

#endif
