/* All ranks write a new folder of safetensors files: one rank creates it and writes headers, every rank writes its own
 * ranges. The folder has a temporary name, .NAME.<random>.tmp, until it is complete; it is refused if its final name
 * exists already.
 *
 * Order: begin (all ranks), create (one rank), put, sync, compare (all), note and commit (that one), end (all).
 * All local: the caller makes the ranks agree in between, and sends w->temp after create. */
#ifndef IO_SAFETENSORS_WRITE_H
#define IO_SAFETENSORS_WRITE_H

#include "io/foreign/safetensors/layout.h"
#include "io/move/parts.h"

/* How the data is verified: the same numbers as in io/checkpoint/checkpoint.h. */
enum { SH_ST_FROM_DISK, SH_ST_FROM_CACHE, SH_ST_UNVERIFIED };

enum { SH_ST_PATH_MAX = 4096 };

struct sh_st_writing {
    struct sh_st_layout layout;
    char folder[SH_ST_PATH_MAX], temp[SH_ST_PATH_MAX]; /* temp "": not created yet */
    int verify;
    bool created;                /* by this rank, which must delete the folder if the write fails */
    int lock;                    /* of the folder, while this rank has it; else -1 */
    struct sh_file_direct *file; /* [files]; fd -1: not open */
    char **path;
    struct sh_move_parts parts; /* of this rank */
};

/* Lay out the files; creates nothing yet. Errors: SH_E_USAGE: the folder exists; others as sh_st_layout_make(). */
sh_rc sh_st_writing_begin(struct sh_st_writing *w, const char *folder, const struct sh_st_entry *tensor, int64_t n,
                          const char *const *stem, int n_stems, int64_t max_bytes, int verify);

/* Create the folder and all files, reserve their space and write their headers. Errors: SH_E_DATA. */
sh_rc sh_st_writing_create(struct sh_st_writing *w);

/* Write (put), fsync (sync) and read back (compare, as `verify` says) this rank's parts. `part` [n]: file and at are
 * those of the layout. Errors: as in parts.h. */
sh_rc sh_st_writing_put(struct sh_st_writing *w, const struct sh_move_part *part, int n);
sh_rc sh_st_writing_sync(struct sh_st_writing *w);
sh_rc sh_st_writing_compare(struct sh_st_writing *w);

/* Write a small file next to the weights; copy one from folder `from`, if that has it. Errors: SH_E_DATA. */
sh_rc sh_st_writing_note(const struct sh_st_writing *w, const char *name, const char *text);
sh_rc sh_st_writing_copy(const struct sh_st_writing *w, const char *from, const char *name);

/* Write the index if there are several files, and give the folder its name. Errors: SH_E_DATA; SH_E_USAGE: a folder of
 * that name exists by now. */
sh_rc sh_st_writing_commit(struct sh_st_writing *w);

/* Close all files; delete the folder if it was created and not committed. */
void sh_st_writing_end(struct sh_st_writing *w);

/* Delete from `parent` the unfinished folders of dead jobs whose final names would have begun with `begin`; adds their
 * number to *n. Local; the caller holds the lock of `parent`, so no live job owns these folders. */
void sh_st_writing_sweep(const char *parent, const char *begin, int *n);

#endif
