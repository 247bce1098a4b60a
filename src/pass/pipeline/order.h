/* What a stage of the pipeline does in which order, and which blocks it has. Local, pure: functions of a few numbers, so
 * that every rank knows the work of all stages.
 *
 * 1F1B: a stage starts as many forwards as there are stages after it; then it alternates forward and backward, so that it
 * keeps the activations of at most that many micro-steps and one; the backwards that are left come last. Backwards ascend
 * in micro-steps, and so do the sums of gradients. Narayanan et al., PipeDream, SOSP 2019. */
#ifndef SH_PASS_PIPELINE_ORDER_H
#define SH_PASS_PIPELINE_ORDER_H

#include <stdbool.h>

struct sh_pipe_item {
    bool backward;
    int micro;
};

/*   items  out  [2 micro_steps] */
void sh_pipe_items(int stages, int place, int micro_steps, struct sh_pipe_item *items);

/* Blocks [first, last) of a stage. The first and the last stage have so many less than an equal share would give them, to
 * make up for the embedding and the head; what does not divide goes to the first stages. */
struct sh_pipe_blocks {
    int first, last;
};
struct sh_pipe_blocks sh_pipe_blocks(int layers, int stages, int place, int first_less, int last_less);

/* Whether each stage then has a block. */
bool sh_pipe_divides(int layers, int stages, int first_less, int last_less);

/* The share of a step in which a stage waits for others, if a forward takes one unit of time, a backward two, and a
 * message none: idle time over busy time. */
double sh_pipe_bubble(int stages, int micro_steps);

#endif
