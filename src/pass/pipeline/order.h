/* What a stage of the pipeline does in which order, and which blocks it has. Local, pure: functions of a few numbers, so
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
 * All parts ascend in micro-steps, and so do the sums of gradients. */
#ifndef SH_PASS_PIPELINE_ORDER_H
#define SH_PASS_PIPELINE_ORDER_H

#include <stdbool.h>

enum sh_pipe_part { SH_PIPE_FORWARD, SH_PIPE_BACKWARD, SH_PIPE_WEIGHTS, SH_PIPE_PARTS };

struct sh_pipe_item {
    enum sh_pipe_part part;
    int micro;
};

struct sh_pipe {
    int stages, micro_steps;
    bool weights_apart; /* ZBH1; else 1F1B, whose backward has the gradients of weights too */
};

/*   items  out  [SH_PIPE_PARTS micro_steps]
 * Returns their number. */
int sh_pipe_items(const struct sh_pipe *pipe, int place, struct sh_pipe_item *items);

/* Blocks [first, last) of a stage. The first and the last stage have so many less than an equal share would give them, to
 * make up for the embedding and the head; what does not divide goes to the first stages. */
struct sh_pipe_blocks {
    int first, last;
};
struct sh_pipe_blocks sh_pipe_blocks(int layers, int stages, int place, int first_less, int last_less);

/* Whether each stage then has a block. */
bool sh_pipe_divides(int layers, int stages, int first_less, int last_less);

/* The share of a step in which a stage waits for others, if a forward, the gradients of rows and those of weights take one
 * unit of time each, and a message none: idle time over busy time. */
double sh_pipe_bubble(const struct sh_pipe *pipe);

#endif
