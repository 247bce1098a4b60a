/* What a stage of the pipeline does in which order. Local, pure: functions of a few numbers, so
 * that every rank knows the work of all stages.
 *
 * 1F1B: a stage starts as many forwards as there are stages after it; then it alternates forward and backward, so that it
 * keeps the activations of at most that many micro-steps and one; the backwards that are left come last. Narayanan et al.,
 * PipeDream, SOSP 2019.
 *
 * ZBH1: a backward makes the gradients of rows only, so that the stage before goes on sooner. Those of weights come later:
 * stage r, from 0, owes at most r of them, so that all stages keep the activations of at most `stages` micro-steps. Qi et
 * al., Zero Bubble Pipeline Parallelism, ICLR 2024.
 *
 * Interleaved: a stage has several chunks of blocks, each of which is followed by a chunk of the next stage, and the last
 * stage's by one of the first. Micro-steps go in groups of as many as there are stages, each group through all chunks; so
 * stages wait for each other as long as for a chunk. Narayanan et al., SC 2021.
 *
 * All parts ascend in micro-steps, and so do the sums of gradients. */
#ifndef SH_PASS_PIPELINE_ORDER_H
#define SH_PASS_PIPELINE_ORDER_H

#include <stdbool.h>

enum sh_pipe_part { SH_PIPE_FORWARD, SH_PIPE_BACKWARD, SH_PIPE_WEIGHTS, SH_PIPE_PARTS };

struct sh_pipe_item {
    enum sh_pipe_part part;
    int micro, chunk; /* of this stage's */
};

struct sh_pipe {
    int stages, micro_steps;
    int chunks;         /* of a stage; if there are several, micro_steps is a multiple of stages */
    bool weights_apart; /* ZBH1, with one chunk; else the backward has the gradients of weights too */
};

/*   items  out  [SH_PIPE_PARTS micro_steps chunks]
 * Returns their number. */
int sh_pipe_items(const struct sh_pipe *pipe, int place, struct sh_pipe_item *items);

/* The share of a step in which a stage waits for others, if a forward, the gradients of rows and those of weights take one
 * unit of time each, and a message none: idle time over busy time. */
double sh_pipe_bubble(const struct sh_pipe *pipe);

#endif
