/* What this rank holds of parameters and optimizer states (map.h), in the terms of io/checkpoint: one description for
 * loading and saving. Local. */
#ifndef SH_SAVE_SHARDS_H
#define SH_SAVE_SHARDS_H

#include "io/checkpoint/checkpoint.h"
#include "src/layout/layout.h"
#include <stdint.h>

struct sh_run;
struct sh_param;

enum sh_shards_way {
    SH_SHARDS_LOAD,     /* everything trained that the rank holds */
    SH_SHARDS_BASE,     /* the frozen parameters that it holds, and a trained matrix of labels; loaded, never saved */
    SH_SHARDS_SAVE,     /* replicas, which all hold the same, share the writing */
    SH_SHARDS_SNAPSHOT, /* like SAVE, but from the copy in the units' snapshots */
};

enum { SH_SHARDS_TEXT = 1024 };

/* Where a piece is held. */
struct sh_shards_place {
    int param;     /* of the program */
    int64_t first; /* the first element, of those that the parameter holds */
};

/* Must not move while its set is in use. */
struct sh_shards {
    const struct sh_run *r;
    struct sh_ckpt_set set;
    struct sh_ckpt_far
        far; /* for the set: states whose home is a file, and those that a GPU takes or gives piece by piece */
    struct sh_ckpt_tensor *tensors;
    struct sh_ckpt_piece *pieces;
    enum sh_shards_way way;
    struct sh_shards_place *place; /* [set.n_pieces] */
    int *first_piece;              /* [units + 1] of a unit; its pieces are neighbours */
    bool *packed;                  /* [set.n_tensors] */
    char *host; /* the first n_host states, as far as they do not lie in the host's memory; or NULL */
    int n_host;
    float *staged;      /* LOAD: states in codes, in float32, until they are put; or NULL */
    uint64_t *sums;     /* SNAPSHOT: the early sums of the pieces */
    uint64_t *parts;    /* on a GPU, SNAPSHOT: sums of parts of pieces, in pinned memory that the executor lends */
    uint64_t **part_of; /* [n_parts] the sum that each is a part of */
    int64_t n_parts;
    sh_rc failed; /* the first failure of `far` */
    char failed_text[SH_SHARDS_TEXT];
};

void sh_shards_make(const struct sh_run *r, enum sh_shards_way way, struct sh_shards *out);
void sh_shards_free(struct sh_shards *p);

/* Leave out all states of the optimizer. */
void sh_shards_leave_states(struct sh_shards *p);

/* The parameter of a piece, and the name of its saved tensor; elements [at, at + n) of the piece, as a range of the
 * parameter's unit. */
const struct sh_param *sh_shards_param(const struct sh_shards *p, int piece);
const char *sh_shards_name(const struct sh_shards *p, int piece);

/* Whether a piece has state k of the set. Of a tensor without it nothing is read or written. */
bool sh_shards_has(const struct sh_shards *p, int piece, int k);
struct sh_range sh_shards_range(const struct sh_shards *p, int piece, int64_t at, int64_t n);

/* The range of a piece's unit that begins with a whole block of codes and so may be visited (map.h). */
struct sh_range sh_shards_whole(const struct sh_shards *p, int piece, struct sh_range range);

/* After a load or save that failed with `rc`: the failure of a home to give or take state, if there was one on any rank;
 * *home then says that the checkpoint is not at fault. Its text begins with `where`. Collective, agreed. Errors:
 * SH_E_DATA of the scratch file; else rc. */
sh_rc sh_shards_failed(const struct sh_shards *p, sh_rc rc, const char *where, bool *home);

/* For LOAD and SAVE, if the caller reads or writes parameters only in memory: make sure that no parameter is far. Until
 * free this takes 2 bytes for each parameter whose low half lies in a file, and 4 for each parameter of a GPU;
 * sh_shards_put() moves loaded parameters to their homes. Local. Errors: SH_E_DATA of the file. */
sh_rc sh_shards_borrow(struct sh_shards *p);

/* How files and folders are read, as the configuration says. */
struct sh_ckpt_load_options sh_shards_options(const struct sh_run *r);

/* After a file was read into the pieces of LOAD or BASE: copy what was read beside the state to its place. */
void sh_shards_put(const struct sh_shards *p);

#endif
