/* Inside src/tools/study: how much the results of a model's branches, and its logits, change in the first updates of a run
 * on one batch. A program of one rank, whose micro-step runs once a step, with the same tokens in each. */
#ifndef SH_STUDY_COORDS_H
#define SH_STUDY_COORDS_H

#include <stdint.h>

struct sh_run;

enum { SH_COORDS_UPDATES = 3 };
enum sh_coord_kind { SH_COORD_ATTENTION, SH_COORD_FFN, SH_COORD_LOGITS, SH_COORD_KINDS };

struct sh_coord {
    enum sh_coord_kind kind;
    int block;    /* SH_NONE: logits */
    float *first; /* [elems] before the first update */
    int64_t elems;
    double change[SH_COORDS_UPDATES]; /* after update 1, 2, ...: root of the mean square of the difference from it */
};

struct sh_coords {
    struct sh_run *r;
    struct sh_coord *row; /* in the order in which a forward makes them */
    int n, most;
};

/* Watch the executor from now on, for SH_COORDS_UPDATES + 1 steps of training. End before the run is closed: what was found
 * stays until it is freed. Local. */
void sh_coords_begin(struct sh_coords *c, struct sh_run *r);
void sh_coords_end(struct sh_coords *c);
void sh_coords_free(struct sh_coords *c);

#endif
