/* The data of a checkpoint as a row of extents: stretches of one block of one tensor in one state, which is what a digest
 * is of. Saving, loading and verifying are the same row in different directions. Local. */
#ifndef IO_CHECKPOINT_EXTENTS_H
#define IO_CHECKPOINT_EXTENTS_H

#include "io/checkpoint/index.h"

#include "io/file/direct.h"
#include "io/move/ranges.h"

struct sh_ckpt_extent {
    const struct sh_ckpt_entry *entry;
    const char *group; /* of the state, for words */
    int state;
    int64_t block, at, elems;      /* elements [at, at + elems) of a block of the tensor */
    uint64_t seed;                 /* sh_ckpt_digest_seed() */
    struct sh_floats data;         /* none: to be checked only */
    uint64_t sum;                  /* set by summing, writing and reading; 0 before */
    const struct sh_ckpt_far *far; /* has the data instead; NULL: it is in `data` */
    int piece, piece_state;        /* of the set: what `far` is asked for */
    int64_t piece_at;              /* where in the piece the extent begins */
    const uint64_t *early;         /* saving: what it must be, made before `data` was copied; NULL: not made */
};

struct sh_ckpt_extents {
    struct sh_ckpt_extent *extent;
    int n, cap;
};

/* Add the pieces of a set, state by state as they lie in the file: a rank's pieces of a unit are then one range.
 *   place  in  [tensors of the set] each one's place in the index; NULL: the same
 * The index stays where it is as long as the extents are used. Errors: SH_E_BUG: a piece outside its tensor. */
sh_rc sh_ckpt_extents_of_set(struct sh_ckpt_extents *extents, const struct sh_ckpt_set *set,
                             const struct sh_ckpt_index *index, const int64_t *place);

/* Add share `part` of `parts` of all blocks of a file: equal cuts of its elements, a block belongs to the cut in which
 * it begins. Without data. */
void sh_ckpt_extents_of_share(struct sh_ckpt_extents *extents, const struct sh_ckpt_index *index, int part, int parts);
void sh_ckpt_extents_free(struct sh_ckpt_extents *extents);

/* Sort the extents by their place in the file and list the ranges that they make: each as long as can be, in order.
 *   *ranges  out  [returned]; freed with free() */
int sh_ckpt_extents_ranges(struct sh_ckpt_extents *extents, struct sh_move_range **ranges);

/* The place of an extent in the file. */
int64_t sh_ckpt_extent_at(const struct sh_ckpt_extent *s);

/* Elements [at, at + n) of an extent that is far. Errors: those of `far`. */
sh_rc sh_ckpt_extent_get(const struct sh_ckpt_extent *s, int64_t at, int64_t n, float *to);
sh_rc sh_ckpt_extent_put(const struct sh_ckpt_extent *s, int64_t at, int64_t n, const float *from);

/* Sum an extent from its data, and when it is a whole block compare it with its digest. Errors: SH_E_DATA. */
sh_rc sh_ckpt_extent_check(struct sh_ckpt_extent *s, const struct sh_ckpt_index *index, const char *path);

/* Sums of the data, by `threads` threads. Cost: each byte read once. Errors: of what is far. */
sh_rc sh_ckpt_extents_sum(struct sh_ckpt_extents *extents, int threads);

/* Compare the sums with the early ones, where there are some. Errors: SH_E_DATA: a copy of the state has changed since
 * it was made, by name and block. */
sh_rc sh_ckpt_extents_compare(const struct sh_ckpt_extents *extents);

/* Between memory and file. Neighbours in the file are moved together, 8 MiB at a time, several at once; writes end at
 * multiples of that. Needs 4 buffers of 8 MiB beside the data, or when `writers` has a ring, that instead; reading
 * through the page cache needs 4 of 128 KiB.
 * Both sum what they move; reading compares blocks that are read whole with their digests. Writing sums the data in
 * memory where that is the state itself; of a copy, which has early sums, it sums what is given to the disk.
 * Writing: extents sorted as by sh_ckpt_extents_ranges(). With a ring all ranks of the group are to call this at about the
 * same time, each in any thread; one of them writes. When it fails on one, it comes back with SH_OK on the others.
 * Errors: SH_E_DATA: I/O; a block that does not match its digest, by name. */
struct sh_move_writers;
sh_rc sh_ckpt_extents_write(struct sh_ckpt_extents *extents, const struct sh_move_writers *writers,
                            const struct sh_file_direct *file);
sh_rc sh_ckpt_extents_read(struct sh_ckpt_extents *extents, const struct sh_file_direct *file,
                           const struct sh_ckpt_index *index);

#endif
