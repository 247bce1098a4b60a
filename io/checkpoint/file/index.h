/* The index of a checkpoint file: meta data, tensors with their offsets in the file, digests. Built from the caller's
 * set when saving, read from the file when loading; after that the data is only accessed by offset. */
#ifndef IO_CHECKPOINT_INDEX_H
#define IO_CHECKPOINT_INDEX_H

#include "io/checkpoint/checkpoint.h"
#include "src/base/hash.h"

#define SH_CKPT_FORMAT "sherd-checkpoint"
/* The newest format. A file's major version follows from its states, the minor one also from whether it has a base. */
enum { SH_CKPT_MAJOR = 3, SH_CKPT_MINOR = 2, SH_CKPT_MINOR_WHOLE = 1 };

/* Far above every model, and small enough that a hostile file cannot exhaust the reader's memory or time. */
#define SH_CKPT_COUNT_MAX (INT64_C(1) << 53) /* of steps, samples, ...: a double holds them, and sums do not overflow */
enum { SH_CKPT_NAME_MAX = 255, SH_CKPT_DIMS_MAX = 4, SH_CKPT_TENSORS_MAX = 100000, SH_CKPT_TEXT_MAX = 16 << 20 };

struct sh_ckpt_entry {
    char name[SH_CKPT_NAME_MAX + 1];
    int32_t ndim;
    int64_t dim[SH_CKPT_DIMS_MAX];
    int64_t elems;
    int64_t first_block;                /* this tensor's first in the arrays of digests */
    int64_t offset[SH_CKPT_STATES_MAX]; /* bytes; set when read from a file; 0 in a state that it does not have */
    unsigned states;                    /* bit s: it has state s. Its blocks in the others have the sum 0 */
};

static inline bool sh_ckpt_has(const struct sh_ckpt_entry *e, int state)
{
    return e->states >> state & 1u;
}

/* Elements in all states together. */
static inline int64_t sh_ckpt_all_elems(const struct sh_ckpt_entry *e)
{
    return e->elems * __builtin_popcount(e->states);
}

struct sh_ckpt_index {
    struct sh_ckpt_meta meta;
    struct sh_ckpt_states states;
    struct sh_ckpt_entry *entry;
    int64_t n, n_blocks;
    uint64_t *digest[SH_CKPT_STATES_MAX]; /* [n_blocks] each */
    uint64_t sum;                         /* sh_ckpt_index_digest() as in a complete file */
    int32_t minor;                        /* of the format */
    int64_t structure_bytes;              /* HDF5's structures with texts and digests: all before the first tensor */
    struct sh_hash128 structure;          /* digest of these bytes */
    int64_t file_bytes;                   /* set when laid out or read from a file */
};

/* The format of a file with these states. Local. */
int sh_ckpt_major(const struct sh_ckpt_states *states);

/* The number of tensors of the model, which come first: the others are only states of an optimizer. Local. */
int64_t sh_ckpt_index_models(const struct sh_ckpt_index *index);

/* Build an index from a set and its meta data; digests are zero. Local. Errors: SH_E_BUG: a name or shape that a file
 * cannot have. */
sh_rc sh_ckpt_index_make(const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, struct sh_ckpt_index *out);
void sh_ckpt_index_free(struct sh_ckpt_index *index);

/* Allocate n tensors; then, with states and elems set, number the blocks and allocate their digests. Local. */
void sh_ckpt_index_alloc(struct sh_ckpt_index *index, int64_t n);
void sh_ckpt_index_number_blocks(struct sh_ckpt_index *index);

/* A digest of the meta data, names, shapes and digests: the part of the file that HDF5's own checksums do not cover.
 * Local. */
uint64_t sh_ckpt_index_digest(const struct sh_ckpt_index *index);

/* Check step, samples, tokens and updates as read from a file. Local. Errors: SH_E_DATA: negative or impossibly large. */
sh_rc sh_ckpt_counts_check(const char *path, const struct sh_ckpt_meta *m);

/* Position of tensor `name`, or -1. `hint`: the likely position. Local. */
int64_t sh_ckpt_index_find(const struct sh_ckpt_index *index, const char *name, int64_t hint);

/* Send rank 0's index of the file `path` to all ranks, overwriting theirs. Collective. Errors: SH_E_COMM; SH_E_DATA: it
 * arrives damaged. */
sh_rc sh_ckpt_index_share(struct sh_ckpt_index *index, const char *path, int rank);

/* Read the index of a file, trusting nothing, and compare HDF5's structures with their digest. HDF5 is not used. Local.
 * Errors: SH_E_DATA: not a checkpoint, damaged, of a newer version, with anything that refers outside the file, or of
 * another step than a name like step-00001000.h5 says. SH_E_MEMORY: no memory for the index. */
sh_rc sh_ckpt_index_read(const char *path, struct sh_ckpt_index *out);

/* The number of a state in the index; NULL: the parameters'. Local. Errors: SH_E_USAGE: the file has no such state. */
sh_rc sh_ckpt_index_state(const struct sh_ckpt_index *index, const char *path, const char *name, int *state);

/* Compare share `part` of `parts` of all data with the digests. Local. Errors: SH_E_DATA naming tensor and block. */
sh_rc sh_ckpt_index_verify(const struct sh_ckpt_index *index, int fd, const char *path, int part, int parts,
                           bool from_disk);

/* Read one block of a tensor into buffer [SH_CKPT_BLOCK_ELEMS] and compare it with its digest; *elems is set to its
 * length. Local. Errors: SH_E_DATA naming tensor and block. */
sh_rc sh_ckpt_index_read_block(const struct sh_ckpt_index *index, int fd, const char *path, int state,
                               const struct sh_ckpt_entry *e, int64_t block, float *buffer, int64_t *elems);

/* Read elements [at, at + n) of a tensor, and compare all blocks that they touch with their digests. Local. */
sh_rc sh_ckpt_index_read_range(const struct sh_ckpt_index *index, int fd, const char *path, int state,
                               const struct sh_ckpt_entry *e, int64_t at, int64_t n, float *out);

/* Fail for a block that does not match its digest. Local. */
sh_rc sh_ckpt_index_damaged(const struct sh_ckpt_index *index, const char *path, int state,
                            const struct sh_ckpt_entry *e, int64_t block);

/* Open a file whose index is known. Errors: SH_E_DATA: it cannot be opened, or is not the file of the index. */
sh_rc sh_ckpt_index_open_data(const struct sh_ckpt_index *index, const char *path, int *fd);

#endif
