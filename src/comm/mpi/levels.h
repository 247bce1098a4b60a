/* Internal to the mpi backend: memory that neighbouring ranks of a channel, a *block* on one node, use to communicate
 * with other blocks as one (algo_levels.c). Each rank has a region, which it alone writes and the others of its block
 * read:
 *
 *   counters  steps that this rank has written (given) and has read of all others (taken), since the channel was opened
 *   slots     SH_DIRECT_ROUNDS of them, for a step each: a stage for each other rank of the block
 *
 * All ranks of a block go through the same steps in the same order, so two counters per rank are all that they have to
 * exchange: a step may be read once its writer has given it, and its slot may be written again once all have taken
 * it. */
#ifndef SH_COMM_LEVELS_H
#define SH_COMM_LEVELS_H

#include "src/comm/mpi/channel.h"

#include <stdatomic.h>

struct sh_levels {
    int ranks, place;  /* ranks of a block, at least 2; this rank's place in it */
    int blocks, block; /* blocks of the channel; this rank's block */
    int64_t stage_bytes, slot_bytes, region_bytes;
    char *memory; /* [ranks][region_bytes], shared */

    char *in[SH_DIRECT_ROUNDS];  /* [blocks - 1][stage_bytes] what other blocks send, by distance; private */
    char *out[SH_DIRECT_ROUNDS]; /* [blocks][stage_bytes] the sums of this block, by distance; private */
    MPI_Request *request;        /* all of them; MPI_REQUEST_NULL when complete */
    int n_requests;
    /* [blocks - 1] by distance: */
    MPI_Request *scatter_in[SH_DIRECT_ROUNDS], *scatter_out[SH_DIRECT_ROUNDS];
    MPI_Request *gather_in[SH_DIRECT_ROUNDS], *gather_out[SH_DIRECT_ROUNDS];

    int64_t before; /* steps of the channel's collectives before the running one */
    /* Of the running one: */
    int64_t part_elems, rounds;
    int64_t steps, given, taken;
    int64_t ready; /* rounds whose own part is ready: summed, or copied from the own shard */
};

/* Open the levels of a channel of many ranks, some of them neighbours on a node that can share memory
 * (options.ranks_per_node); for other channels ch->levels stays NULL. The requests are the channel's. Collective over
 * the group, not agreed: after one rank fails, no rank may use the channel. Errors: SH_E_COMM, SH_E_MEMORY: the ranks
 * of a node cannot share memory after all, for instance because each has its own container. */
sh_rc sh_levels_open(struct sh_channel *ch);
void sh_levels_close(struct sh_channel *ch);

/* How many stages of private staging it needs; and dealing out that staging and the requests. */
int64_t sh_levels_stages(const struct sh_levels *l);
void sh_levels_share_out(struct sh_channel *ch);

/* Steps are counted within the running collective. */
bool sh_levels_may_give(const struct sh_levels *l, int64_t step); /* its slot is free */
void sh_levels_set_given(struct sh_levels *l, int64_t step);
bool sh_levels_may_take(const struct sh_levels *l, int64_t step); /* all others have given it */
void sh_levels_set_taken(struct sh_levels *l, int64_t step);

/* Where the rank at place `from` of the block leaves what the rank at `to` reads in a step; the stages of one writer
 * lie side by side. */
char *sh_levels_stage(const struct sh_levels *l, int64_t step, int from, int to);

#endif
