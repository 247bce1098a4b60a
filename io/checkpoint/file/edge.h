/* Digests of blocks that no single rank reads whole. Each rank sums the parts it reads; the parts of a block meet on
 * one rank, which adds them up and compares. In this way a file is read once, by whoever wants it, and is still checked
 * to the last element that is used. */
#ifndef IO_CHECKPOINT_EDGE_H
#define IO_CHECKPOINT_EDGE_H

#include "io/checkpoint/file/index.h"

struct sh_ckpt_part {
    int64_t block;      /* state * n_blocks + number of the block */
    int32_t begin, end; /* range of elements in the block */
    uint64_t sum;
};

struct sh_ckpt_parts {
    struct sh_ckpt_part *part;
    int n, cap;
};

/* Bring the parts of all ranks together and compare. Replicas may read the same part: it counts once, and their sums
 * must agree. A block is read whole if no rank has read some element of it, or if its parts overlap in any other way.
 * Collective; the result is local, so agree on it. Errors: SH_E_DATA naming tensor and block. */
sh_rc sh_ckpt_edge_check(const struct sh_ckpt_parts *mine, const struct sh_ckpt_index *index, int fd, const char *path,
                         int world);

#endif
