/* What a run is for, and what one that generates or scores is asked for besides its configuration. Plain data. */
#ifndef SH_PLAN_CACHE_H
#define SH_PLAN_CACHE_H

#include <stdbool.h>

/* TEACH: evaluates, and keeps the likeliest words of each place, objective.top_k of them; LABEL: the logits of all labels; REFER: the
 * log-probabilities of answers. */
enum sh_purpose { SH_TO_TRAIN, SH_TO_EVALUATE, SH_TO_GENERATE, SH_TO_SCORE, SH_TO_TEACH, SH_TO_LABEL, SH_TO_REFER };

/* Where the parameters of a run that generates are: gathered once for all of its tokens; or gathered one unit at a time
 * in each step, as the strategy does in training. auto: gathered once if memory allows. */
enum sh_parallel { SH_PARALLEL_AUTO, SH_PARALLEL_RESIDENT, SH_PARALLEL_SHARD };

/* The cache of such a run. */
struct sh_request_cache {
    int rows;      /* texts at a time per rank */
    int positions; /* most of a text */
    int piece;     /* tokens of a prompt that a row reads at a time, at most `positions` */
    enum sh_parallel parallel;
};

/* The rows of a run that scores. */
struct sh_request_score {
    int rows;  /* at a time per rank */
    int seq;   /* tokens of a row */
    bool docs; /* a row may have several texts */
};

#endif
