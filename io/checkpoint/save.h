/* A save in progress. Its stages are one table, for saves in the foreground and in the background. */
#ifndef IO_CHECKPOINT_SAVE_H
#define IO_CHECKPOINT_SAVE_H

#include "io/checkpoint/file/extents.h"
#include "io/move/stages.h"
#include "io/move/writers.h"

enum { SH_CKPT_PATH_BYTES = 4096 };

struct sh_ckpt_saving {
    const char *folder;              /* lent */
    const struct sh_ckpt_meta *meta; /* lent to the first stage */
    struct sh_ckpt_set set;          /* its arrays and memory lent */
    struct sh_ckpt_options options;
    int rank, world;
    enum sh_cfg_io io_method;                                /* SH_IO_MPIIO or SH_IO_DIRECT, the same on all ranks */
    char path[SH_CKPT_PATH_BYTES], temp[SH_CKPT_PATH_BYTES]; /* temp "": no file created yet */
    int fd;                       /* of temp, open from before the first write: see the sync stage */
    int memory;                   /* on rank 0: HDF5's structures of temp, see sh_ckpt_create(); -1: not laid out yet */
    struct sh_ckpt_index index;   /* as asked for, with all digests, and with places once laid out */
    struct sh_ckpt_index written; /* as found in the file */
    struct sh_ckpt_extents extents; /* of the set, in `index` */
    struct sh_move_writers writers; /* with direct I/O */
    int64_t bytes;
    struct sh_ckpt_times times;
    struct sh_move_stages stages;
};

extern const struct sh_move_stage sh_ckpt_stages[];
extern const int sh_ckpt_n_stages;

#endif
