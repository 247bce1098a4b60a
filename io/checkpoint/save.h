/* A save in progress: its stages are one table, so that the same stages run one after the other, synchronously or,
 * if they are local, in a thread during training. */
#ifndef IO_CHECKPOINT_SAVE_H
#define IO_CHECKPOINT_SAVE_H

#include "io/checkpoint/extents.h"
#include "io/move/writers.h"
#include "io/move/deadline.h"

enum { SH_CKPT_PATH_BYTES = 4096 };

struct sh_ckpt_saving {
    const char *folder;     /* lent */
    struct sh_ckpt_set set; /* its arrays and memory lent */
    struct sh_ckpt_options options;
    int rank, world;
    enum sh_cfg_io io_method;                                /* SH_IO_MPIIO or SH_IO_DIRECT, the same on all ranks */
    char path[SH_CKPT_PATH_BYTES], temp[SH_CKPT_PATH_BYTES]; /* temp "": no file created yet */
    int fd;                       /* of temp, open from before the first write: see the sync stage */
    int memory;                   /* on rank 0: HDF5's structures of temp, see sh_ckpt_create(); -1: not laid out yet */
    long long *covered;           /* [tensors] elements that the ranks hold together */
    struct sh_ckpt_index index;   /* as asked for, with all digests, and with places once laid out */
    struct sh_ckpt_index written; /* as found in the file */
    struct sh_ckpt_extents extents; /* of the set, in `index` */
    struct sh_move_writers writers; /* with direct I/O */
    int64_t bytes;
    struct sh_ckpt_times times;
    struct sh_move_deadline *deadline;
};

/* A stage gives a result of this rank alone and meets the same collectives whatever that result is; the next stage
 * starts when all ranks have passed. */
struct sh_ckpt_stage {
    const char *name;
    enum sh_ckpt_phase phase;
    bool local; /* memory, files and HDF5, but no MPI: may run in a thread, one at a time */
    sh_rc (*run)(struct sh_ckpt_saving *s);
};
extern const struct sh_ckpt_stage sh_ckpt_stages[];
extern const int sh_ckpt_n_stages;

/* Collective, agreed; always call close. If not committed, close deletes the unfinished file, and the ranks wait for
 * that. */
sh_rc sh_ckpt_saving_open(struct sh_ckpt_saving *s, const char *folder, const struct sh_ckpt_set *set,
                          const struct sh_ckpt_meta *meta, const struct sh_ckpt_options *options);
sh_rc sh_ckpt_saving_run(struct sh_ckpt_saving *s, int stage);

/* Do the work of `stage` on this rank alone, timed. Local if the stage is. */
sh_rc sh_ckpt_saving_run_alone(struct sh_ckpt_saving *s, int stage);
void sh_ckpt_saving_close(struct sh_ckpt_saving *s, bool committed);

#endif
