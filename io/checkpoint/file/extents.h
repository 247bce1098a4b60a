/* The data of a checkpoint as a sequence of extents: stretches of one block of one tensor in one state, the unit of
 * digests. Saving, loading and verifying use the same sequence in different directions. Local. */
#ifndef IO_CHECKPOINT_EXTENTS_H
#define IO_CHECKPOINT_EXTENTS_H

#include "io/checkpoint/file/index.h"

#include "io/file/direct.h"
#include "io/move/ranges.h"

struct sh_ckpt_extent {
    const struct sh_ckpt_entry *entry;
    const char *group; /* of the state, for messages */
    int state;
    int64_t block, at, elems;      /* elements [at, at + elems) of a block of the tensor */
    uint64_t seed;                 /* sh_ckpt_digest_seed() */
    struct sh_floats data;         /* none: only checked */
    uint64_t sum;                  /* set by summing, writing and reading; 0 before */
    bool zero;                     /* saving: the data is 0 and is not written */
    const struct sh_ckpt_far *far; /* provides the data; NULL: it is in `data` */
    int piece, piece_state;        /* of the set: the arguments for `far` */
    int64_t piece_at;              /* where the extent starts in the piece */
    const uint64_t *early;         /* saving: the expected sum, from before `data` was copied; NULL: none */
};

struct sh_ckpt_extents {
    struct sh_ckpt_extent *extent;
    int n, cap;
    bool stops; /* reading them ends when a signal asks for it (sh_job_go_on) */
};

/* Add the pieces of a set, state by state as they lie in the file, so that a rank's pieces of a unit form one range.
 *   place  in  [tensors of the set] each one's position in the index; NULL: the same
 * The index must stay in place while the extents are used. Errors: SH_E_BUG: a piece outside its tensor. */
sh_rc sh_ckpt_extents_of_set(struct sh_ckpt_extents *extents, const struct sh_ckpt_set *set,
                             const struct sh_ckpt_index *index, const int64_t *place);

/* Add share `part` of `parts` of all blocks of a file: the elements are cut equally, and a block belongs to the share
 * in which it starts. Without data. */
void sh_ckpt_extents_of_share(struct sh_ckpt_extents *extents, const struct sh_ckpt_index *index, int part, int parts);
void sh_ckpt_extents_free(struct sh_ckpt_extents *extents);

/* Sort the extents by their offset in the file and list the ranges that they form, without those that are zero: each
 * as long as possible, in order.
 *   *ranges  out  [returned]; freed with free() */
int sh_ckpt_extents_ranges(struct sh_ckpt_extents *extents, struct sh_move_range **ranges);

/* The offset of an extent in the file. */
int64_t sh_ckpt_extent_at(const struct sh_ckpt_extent *s);

/* Get or put elements [at, at + n) of an extent that is far. Errors: those of `far`. */
sh_rc sh_ckpt_extent_get(const struct sh_ckpt_extent *s, int64_t at, int64_t n, float *to);
sh_rc sh_ckpt_extent_put(const struct sh_ckpt_extent *s, int64_t at, int64_t n, const float *from);

/* Sum an extent from its data and, if it is a whole block, compare the sum with its digest. Errors: SH_E_DATA. */
sh_rc sh_ckpt_extent_check(struct sh_ckpt_extent *s, const struct sh_ckpt_index *index, const char *path);

/* Sum the data, or only what is zero, with `threads` threads. Cost: each byte read once. Errors: those of far data. */
sh_rc sh_ckpt_extents_sum(struct sh_ckpt_extents *extents, bool only_zero, int threads);

/* Compare the sums with the early ones, if there are any. Errors: SH_E_DATA: a copy of the state has changed since it
 * was made, with name and block. */
sh_rc sh_ckpt_extents_compare(const struct sh_ckpt_extents *extents);

/* Move extents between memory and file. Neighbours in the file are moved together, 8 MiB at a time, several at once;
 * writes end at multiples of 8 MiB. Needs 4 buffers of 8 MiB in addition to the data, or the ring if `writers` has one;
 * reading through the page cache needs 4 of 128 KiB.
 * Both sum what they move; reading compares blocks that are read whole with their digests. Writing sums the data in
 * memory if it is the state itself; for a copy, which has early sums, it sums the bytes given to the disk.
 * Writing: extents sorted as by sh_ckpt_extents_ranges(). With a ring all ranks of the group must call this at about
 * the same time, each in any thread; one of them writes. If it fails on one rank, it returns SH_OK on the others.
 * Errors: SH_E_DATA: I/O; a block that does not match its digest, with its name. */
struct sh_move_writers;
sh_rc sh_ckpt_extents_write(struct sh_ckpt_extents *extents, const struct sh_move_writers *writers,
                            const struct sh_file_direct *file);
sh_rc sh_ckpt_extents_read(struct sh_ckpt_extents *extents, const struct sh_file_direct *file,
                           const struct sh_ckpt_index *index);

#endif
