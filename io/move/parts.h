/* Elements of files to and from masters in memory, at offsets, whatever the format that gave the offsets. Neighbours in a
 * file are moved together, 8 MiB at a time, four at once, each through a buffer of its thread: 33 MiB beside the data.
 *
 * make, then read; or make, write, compare; then free. Local, but for read_together. */
#ifndef IO_MOVE_PARTS_H
#define IO_MOVE_PARTS_H

#include "io/file/direct.h"
#include "io/move/replicas.h"
#include "io/move/types.h"

/* [at, at + elems * bytes of the type) of a file. `name` and `first` are for words: these are elements `first` and on of
 * what has that name. */
struct sh_move_part {
    const char *name; /* lent */
    enum sh_move_type type;
    int file;
    int64_t at, elems, first;
    struct sh_floats data;
    const struct sh_move_nested *nested; /* of the type NESTED; lent */
};

/* Neighbours of one file, in order, and what of their bytes was written. */
struct sh_move_chunk {
    int file, first, n; /* parts */
    int64_t at, bytes;
    uint64_t sum;
};

struct sh_move_parts {
    struct sh_move_part *part;
    struct sh_move_chunk *chunk;
    int n, n_chunks;
};

/* Sort `part` [n], cut it into pieces and these into chunks. Errors: SH_E_BUG: two parts overlap. */
sh_rc sh_move_parts_make(const struct sh_move_part *part, int n, struct sh_move_parts *out);
void sh_move_parts_free(struct sh_move_parts *p);

/* `files`: by their number; those that have no part may be anything.
 * read: fill the data. Errors: SH_E_DATA: I/O; a number that is not finite, by name.
 * read_together: not of packed weights; the same where `r` want the same, in the same order: each reads a part and hands it to the others.
 *   Collective over them, not agreed: a rank does not know that another one failed.
 * write: to places that were reserved. Errors: SH_E_DATA: I/O; SH_E_NUMERIC: a number that float16 does not have, by name.
 * compare: read back what was written. Errors: SH_E_DATA: other bytes, by name. */
sh_rc sh_move_parts_read(struct sh_move_parts *p, const struct sh_file_direct *files);
sh_rc sh_move_parts_read_together(struct sh_move_parts *p, const struct sh_file_direct *files,
                                  const struct sh_move_replicas *r);
sh_rc sh_move_parts_write(struct sh_move_parts *p, const struct sh_file_direct *files);
sh_rc sh_move_parts_compare(struct sh_move_parts *p, const struct sh_file_direct *files);

/* A hash of what is wanted, the same for ranks that want the same. */
uint64_t sh_move_parts_wish(const struct sh_move_parts *p);

#endif
