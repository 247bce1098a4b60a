/* The distributed checkpoint: one HDF5 file for all ranks with no trace of the mesh that wrote it.
 *
 * /model/<name>, /optimizer/exp_avg/<name>, /optimizer/exp_avg_sq/<name>: one contiguous little-endian f32 dataset of
 * global shape a tensor, with its Hugging Face name; /meta: step, tokens, sampler position, resolved configuration;
 * /digest: sums per block of each dataset that do not depend on the mesh. doc/checkpoint-format.md has all of it.
 *
 * The caller says which tensors exist (the same on all ranks) and which pieces of them it holds; saving and loading are
 * the same description in two directions. Functions marked collective are so over all ranks of the job. */
#ifndef IO_CHECKPOINT_CHECKPOINT_H
#define IO_CHECKPOINT_CHECKPOINT_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum sh_ckpt_state { SH_CKPT_MODEL, SH_CKPT_EXP_AVG, SH_CKPT_EXP_AVG_SQ, SH_CKPT_STATES };

struct sh_ckpt_tensor {
    const char *name;       /* Hugging Face name; '/' is not allowed in it */
    int ndim;               /* 1..4 */
    int64_t dim[4];
    int64_t elems;
};

/* Elements [begin, begin + elems) of a tensor in row-major order that this rank holds. Pieces of one rank do not overlap.
 * Saving: pieces of all ranks together cover each element exactly once (replicas split what they all hold).
 * Loading: whatever this rank wants; ranks may want the same. data[s] NULL: that state is not wanted (loading only). */
struct sh_ckpt_piece {
    int tensor;
    int64_t begin, elems;
    float *data[SH_CKPT_STATES];
};

struct sh_ckpt_meta {
    int64_t step;           /* training steps done */
    int64_t samples;        /* the sampler's position: sequences of the run used so far */
    int64_t tokens;         /* target tokens seen */
    int64_t updates;        /* optimizer updates done (steps minus skipped ones) */
    char *config;           /* resolved configuration, YAML; load: freed with free() */
    char *guard;            /* state of the guard and the like, YAML or ""; load: freed with free() */
};

struct sh_ckpt_set {
    const struct sh_ckpt_tensor *tensors; int n_tensors;
    const struct sh_ckpt_piece *pieces; int n_pieces;
    double stage_seconds;   /* of saving and loading: a stage that takes longer stops the job with SH_E_COMM, since HDF5 and
                               MPI-IO may wait for ever for a rank that met an error; 0: no limit */
};

/* Write <folder>/step-%08lld.h5 through a temporary name, fsync, rename, fsync of the folder; creates the folder.
 * *bytes gets the file's size. Collective. Agreed: all ranks succeed or none; on failure nothing new is left behind and
 * earlier checkpoints are untouched. Errors: SH_E_DATA with path, rank and reason (a full disk, no permission). */
sh_rc sh_ckpt_save(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, int64_t *bytes);

/* Fill the pieces and the meta data from a file. The tensors of the file and of the set must be the same: missing, extra,
 * of other shape: SH_E_DATA naming them with both shapes. Collective, agreed. */
sh_rc sh_ckpt_load(const char *path, const struct sh_ckpt_set *set, struct sh_ckpt_meta *meta);

/* Only the meta data; local, serial (eval, generate, info before a mesh exists). */
sh_rc sh_ckpt_read_meta(const char *path, struct sh_ckpt_meta *meta);
void sh_ckpt_meta_free(struct sh_ckpt_meta *meta);

/* The newest checkpoint of a folder by the step in its name; *path freed with free(), NULL when there is none. Local. */
sh_rc sh_ckpt_newest(const char *folder, char **path);

/* The newest one of a step before `step`: what to try next when a checkpoint turns out to be damaged. As above. */
sh_rc sh_ckpt_newest_before(const char *folder, int64_t step, char **path);

/* Step, tokens, tensors, shapes, sizes, configuration; local, serial. */
sh_rc sh_ckpt_info(const char *path, FILE *out);

/* Read everything and compare with the digests; local, serial. SH_E_DATA naming tensor and block when they differ. */
sh_rc sh_ckpt_verify(const char *path, FILE *out);

#endif
