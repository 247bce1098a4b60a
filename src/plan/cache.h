/* What a run that generates is asked for besides its configuration. Plain data. */
#ifndef SH_PLAN_CACHE_H
#define SH_PLAN_CACHE_H

#include <stdbool.h>

/* Where the parameters of a run that generates are: gathered once, for all of its tokens; or a unit at a time for each step,
 * as the strategy has them in training. auto: gathered where the memory allows. */
enum sh_parallel { SH_PARALLEL_AUTO, SH_PARALLEL_RESIDENT, SH_PARALLEL_SHARD };

/* The cache of such a run. */
struct sh_request_cache {
    int rows;      /* texts at a time on a rank */
    int positions; /* of a text */
    int piece;     /* tokens of a prompt that a row reads at a time, at most `positions` */
    enum sh_parallel parallel;
};

/* The texts of a run that scores. */
struct sh_request_score {
    int rows;  /* at a time on a rank */
    int seq;   /* tokens of a row */
    bool docs; /* a row may have several texts */
};

#endif
