/* Which blocks each stage of a pipeline has. Local, pure: functions of the model, the length of its sequences and the degrees,
 * so that every rank, every plan and every start deals the same, whatever the machine. */
#ifndef SH_PASS_PIPELINE_DEAL_H
#define SH_PASS_PIPELINE_DEAL_H

#include <stdbool.h>
#include <stdint.h>

struct sh_build;

/* What is dealt: blocks to `stages` stages, each of which has `chunks` chunks. Chunks follow each other as in a ring: stage s
 * has chunks s, s + stages, ... The last one comes with the head. */
struct sh_pipe_deal {
    int layers, stages, chunks;
    int first_less,
        last_less;       /* blocks that the first and the last chunk have less than an equal share would give them;
                                  SH_LESS_AUTO: chosen here */
    const int64_t *sums; /* [layers + 2] the work of the blocks before each, of all, and of all with the head; the
                                  last is about SH_PIPE_WORK */
};
enum { SH_PIPE_WORK = 1 << 30, SH_PIPE_GAIN = 50 }; /* a gain below a fiftieth is none: operations are not seconds */

/* Whether each chunk then has a block; `sums` is not read. */
bool sh_pipe_divides(const struct sh_pipe_deal *d);

/* Deal, if it divides. Equal shares give what does not divide to the first chunks. With both numbers chosen, blocks are dealt by
 * their work, so that the stage with the most has as little as possible, unless it has hardly more with equal shares. Of several
 * such ways, that with the least sum of squares is taken, and of these that with the least on the first stages, which keep the
 * activations of the most micro-steps. With several chunks it is the best that moves of one block at a time find from equal
 * shares. With one number chosen, it is the smallest of the best.
 *   begin  out  [stages chunks + 1] chunk c has blocks [begin[c], begin[c + 1]) */
void sh_pipe_deal(const struct sh_pipe_deal *d, int *begin);

/* The most that a stage has. */
int64_t sh_pipe_most(const struct sh_pipe_deal *d, const int *begin);

/* The deal of a build. Work: the operations of products and of attention, forward, backward and recomputed; what a budget
 * recomputes does not count, since each stage finds that for the blocks that it was dealt. Shares stay equal if
 * otherwise a stage would lack what some builds ask of each: a block with experts. The caller frees both arrays.
 *   begin  out  [stages chunks + 1]; without stages 1 of each */
struct sh_pipe_deal sh_pipe_deal_of(const struct sh_build *b, int **begin);
void sh_pipe_deal_free(struct sh_pipe_deal *d, int *begin);

#endif
