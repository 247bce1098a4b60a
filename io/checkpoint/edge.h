/* Digests of blocks that no single rank reads whole. Each rank sums the parts it reads; the parts of a block meet at
 * one rank, which adds them up and compares. So a file is read once, by whoever wants it, and is still checked to the
 * last element that is used. */
#ifndef IO_CHECKPOINT_EDGE_H
#define IO_CHECKPOINT_EDGE_H

#include "io/checkpoint/index.h"

struct sh_ckpt_part {
    int64_t block;      /* state * n_blocks + number of the block */
    int32_t begin, end; /* elements inside the block */
    uint64_t sum;
};

struct sh_ckpt_parts {
    struct sh_ckpt_part *part;
    int n, cap;
};

/* Bring the parts of all ranks together and compare. Replicas may read the same part: it counts once, and their sums
 * must agree. A block of which some element was read by no rank, or whose parts overlap otherwise, is read whole.
 * Collective; the result is local: agree on it. Errors: SH_E_DATA naming tensor and block. */
sh_rc sh_ckpt_edge_check(const struct sh_ckpt_parts *mine, const struct sh_ckpt_index *index, int fd, const char *path,
                         int world);

#endif
