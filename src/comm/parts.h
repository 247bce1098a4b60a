/* How a collective is cut into rounds, and a round into one part per rank; where the parts of an ALL_TO_ALL lie. Local,
 * pure. */
#ifndef SH_COMM_PARTS_H
#define SH_COMM_PARTS_H

#include "src/comm/comm.h"

/* A stretch of the operand that holds all ranks' elements. */
struct sh_part {
    char *at;
    int64_t elems;
};

/* Elements of one rank in one round, at most `most`, in as few rounds as possible, all of the same size except for a
 * remainder. size: ranks; coll->count > 0. */
int64_t sh_part_elems(const struct sh_coll *coll, int size, int64_t most, int64_t *rounds);

/* The part of `rank` in a round, in the operand with the elements of all ranks: send of a reduce_scatter, else recv.
 * Parts may be empty. In an all_reduce the parts of a round lie side by side; in the others each rank has a part of
 * `count` elements, of which a round takes a stretch. */
struct sh_part sh_part_of(const struct sh_coll *coll, int size, int64_t part_elems, int64_t round, int rank);

/* A part of an ALL_TO_ALL, in elements of the operand in which it lies. */
struct sh_part_extent {
    int64_t begin, n;
};

/* An ALL_TO_ALL of a group of `size`: the parts of the rank at place `rank`, [size] in send (`to`) and in recv (`from`).
 * Errors: SH_E_BUG, naming the collective and the numbers: parts that do not fit. */
sh_rc sh_part_find(const struct sh_coll *coll, int size, int rank, struct sh_part_extent *to,
                   struct sh_part_extent *from);

/* The same: the part for `rank` in the send of the rank at place `peer`. */
sh_rc sh_part_find_at(const struct sh_coll *coll, int size, int rank, int peer, struct sh_part_extent *part);

/* Elements that the rank at a place gets from the others; what it keeps does not count. coll: count and parts are looked at,
 * and the rooms of parts are not. */
int64_t sh_part_received(const struct sh_coll *coll, int size, int rank);

/* Whether no rank has anything for any other, nor for itself: no rank sends or waits. */
bool sh_part_none(const struct sh_coll *coll, int size);

/* Bytes of staging for each source, when a channel's staging is divided among this many sources. */
int64_t sh_part_stage_bytes(int64_t sources);

#endif
