/* A new folder of safetensors files by all ranks: one lays it out and writes headers, each writes its own ranges. It has a
 * temporary name, .NAME.<random>.tmp, until it is complete; a folder or file that exists already is refused.
 *
 * begin (all ranks), create (one rank), put, sync, compare (all), note and commit (the one), end.
 * All local: the caller lets the ranks agree in between, and sends w->temp after create. */
#ifndef IO_SAFETENSORS_WRITE_H
#define IO_SAFETENSORS_WRITE_H

#include "io/move/parts.h"
#include "io/safetensors/layout.h"

/* How much of it is read back: numbers of io/checkpoint/checkpoint.h. */
enum { SH_ST_FROM_DISK, SH_ST_FROM_CACHE, SH_ST_UNVERIFIED };

enum { SH_ST_PATH_MAX = 4096 };

struct sh_st_writing {
    struct sh_st_layout layout;
    char folder[SH_ST_PATH_MAX], temp[SH_ST_PATH_MAX]; /* temp "": none */
    int verify;
    bool created;                /* by this rank, which is to delete it when it fails */
    struct sh_file_direct *file; /* [files]; fd -1: not open */
    char **path;
    struct sh_move_parts parts; /* of this rank */
};

/* Errors: SH_E_USAGE: the folder exists; SH_E_DATA, SH_E_BUG: as sh_st_layout_make(). */
sh_rc sh_st_writing_begin(struct sh_st_writing *w, const char *folder, const struct sh_st_entry *tensor, int64_t n,
                          int64_t max_bytes, int verify);

/* The folder with all files, their space reserved and their headers written. Errors: SH_E_DATA. */
sh_rc sh_st_writing_create(struct sh_st_writing *w);

/* Open file `file` if it is not. Errors: SH_E_DATA. */
sh_rc sh_st_writing_open(struct sh_st_writing *w, int file);

/* `part` [n]: file and at as the layout has them. put, sync (fsync), compare (as `verify` says). Errors: as parts.h. */
sh_rc sh_st_writing_put(struct sh_st_writing *w, const struct sh_move_part *part, int n);
sh_rc sh_st_writing_sync(struct sh_st_writing *w);
sh_rc sh_st_writing_compare(struct sh_st_writing *w);

/* A small file beside them; and one copied from another folder, none where that has none. Errors: SH_E_DATA. */
sh_rc sh_st_writing_note(const struct sh_st_writing *w, const char *name, const char *text);
sh_rc sh_st_writing_copy(const struct sh_st_writing *w, const char *from, const char *name);

/* Write the index where there are several files, and give the folder its name. Errors: SH_E_DATA; SH_E_USAGE: there is one
 * of that name by now. */
sh_rc sh_st_writing_commit(struct sh_st_writing *w);

/* Closes all; deletes what was created and not committed. */
void sh_st_writing_end(struct sh_st_writing *w);

/* Delete from `parent` the folders that dead jobs left unfinished and that were to have names beginning with `begin`; adds
 * their number to *n. Local; the caller holds the lock of `parent`, so that they are nobody's. */
void sh_st_writing_sweep(const char *parent, const char *begin, int *n);

#endif
