/* Moves elements between files and masters in memory, at given offsets, whatever the file format. Neighbours in a file
 * are moved together, 8 MiB at a time, four transfers at once, each through its thread's buffer: 33 MiB in addition to
 * the data.
 *
 * Call make, then read; or make, write, compare; then free. Local, except for read_together. */
#ifndef IO_MOVE_PARTS_H
#define IO_MOVE_PARTS_H

#include "io/file/direct.h"
#include "io/move/replicas.h"
#include "io/move/types.h"

/* Writing: brings elements [first, first + n) of part number `part` that are not in memory, from any thread: a stretch
 * of SH_MOVE_FAR_ELEMS or the last one, each once. Errors: its own. */
enum { SH_MOVE_FAR_ELEMS = 1 << 20 };
struct sh_move_far {
    sh_rc (*get)(void *arg, int part, int64_t first, int64_t n, float *to);
    void *arg;
};

/* [at, at + elems * bytes of the type) of a file. `name` and `first` are for messages: the part starts at element
 * `first` of the tensor of that name. */
struct sh_move_part {
    const char *name; /* lent */
    enum sh_move_type type;
    int file;
    int64_t at, elems, first;
    struct sh_floats data;
    const struct sh_move_nested *nested; /* for the type NESTED; lent */
    const struct sh_move_far *far;       /* lent; NULL: it is in `data` */
    int number;                          /* for `far` */
};

/* Neighbouring parts of one file, in order, and a hash of the bytes that were written. */
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

/* Cut `part` [n] into pieces, sort them and join them into chunks. Errors: SH_E_BUG: two parts overlap. */
sh_rc sh_move_parts_make(const struct sh_move_part *part, int n, struct sh_move_parts *out);
void sh_move_parts_free(struct sh_move_parts *p);

/* `files`: indexed by file number; entries without a part may be anything.
 * read: fill the data. Errors: SH_E_DATA: I/O; a number that is not finite, with its tensor's name.
 * read_together: the same for ranks `r` that want the same parts in the same order: each reads some chunks and hands
 *   them to the others. Not for packed weights. Collective over `r`, not agreed: a rank does not know that another one
 *   failed.
 * write: to reserved space. Errors: SH_E_DATA: I/O; SH_E_NUMERIC: a number that float16 cannot represent, with its
 *   tensor's name.
 * compare: read back what was written. Errors: SH_E_DATA: other bytes, with the tensor's name. */
sh_rc sh_move_parts_read(struct sh_move_parts *p, const struct sh_file_direct *files);
sh_rc sh_move_parts_read_together(struct sh_move_parts *p, const struct sh_file_direct *files,
                                  const struct sh_move_replicas *r);
sh_rc sh_move_parts_write(struct sh_move_parts *p, const struct sh_file_direct *files);
sh_rc sh_move_parts_compare(struct sh_move_parts *p, const struct sh_file_direct *files);

/* A hash of the parts that this rank wants, equal on ranks that want the same. */
uint64_t sh_move_parts_wish(const struct sh_move_parts *p);

#endif
