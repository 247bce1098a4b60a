/* Where the first number of a step that is not finite comes from: debug.find_nan. A step whose loss or norm is not
 * finite changes nothing, and its data is a function of its number; so its micro-steps are run again, and the outputs of
 * each operation are looked at. Steps that are good cost nothing.
 *
 *     sh_hunt_begin(&h, r);
 *     sh_hunt_micro_step(&h, m, first);  run micro-step m, whose first sequence is `first`;  ...
 *     sh_hunt_end(&h);                   rank 0 says what was found, on whichever rank
 */
#ifndef SH_WATCH_HUNT_H
#define SH_WATCH_HUNT_H

#include "src/base/err.h"
#include "src/run/measure/walk.h"

struct sh_run;

enum { SH_HUNT_TEXT = 400 };

struct sh_hunt {
    struct sh_run *r;
    struct sh_walk_rows rows;
    int micro_step; /* of the step, and its first sequence; of a list of micro-steps the last one */
    int64_t first;
    int64_t found;           /* the place of the operation in a step of one stage; -1: none yet */
    char text[SH_HUNT_TEXT]; /* what it is */
};

void sh_hunt_begin(struct sh_hunt *h, struct sh_run *r);                   /* local */
void sh_hunt_micro_step(struct sh_hunt *h, int micro_step, int64_t first); /* local */
sh_rc sh_hunt_end(struct sh_hunt *h);                                      /* collective */

#endif
