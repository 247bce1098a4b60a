/* The part of parameters and optimizer state that this rank holds, in the terms of io/checkpoint: one description for
 * loading and saving. Local. */
#ifndef SH_RUN_SHARDS_H
#define SH_RUN_SHARDS_H

#include "src/layout/layout.h"
#include "io/checkpoint/checkpoint.h"
#include "src/base/floats.h"
#include <stdint.h>

struct sh_run;
struct sh_unit;
struct sh_param;

enum sh_shards_way {
    SH_SHARDS_LOAD,     /* everything trained that the rank holds */
    SH_SHARDS_BASE,     /* the frozen parameters that it holds; they are loaded, never saved */
    SH_SHARDS_SAVE,     /* replicas, which all hold the same, share the writing */
    SH_SHARDS_SNAPSHOT, /* like SAVE, but from the copy in the units' snapshots */
};

enum { SH_SHARDS_TEXT = 1024 };

/* Must not move while its set is in use. */
struct sh_shards {
    const struct sh_run *r;
    struct sh_ckpt_set set;
    struct sh_ckpt_far
        far; /* for the set: states whose home is a file, and those that a GPU takes or gives piece by piece */
    struct sh_ckpt_tensor *tensors;
    struct sh_ckpt_piece *pieces;
    enum sh_shards_way way;
    int *param;         /* [set.n_tensors] which parameter of the program a tensor is */
    bool *packed;       /* [set.n_tensors] */
    int16_t *lows;      /* borrowed: low halves of the masters that lie in a file; else NULL */
    float *params;      /* borrowed: all parameters of `way` from a GPU; else NULL */
    float *loaded;      /* on a GPU, LOAD and BASE: data read, before it goes to the device; else NULL */
    uint64_t *sums;     /* SNAPSHOT: the early sums of the pieces */
    uint64_t *parts;    /* on a GPU, SNAPSHOT: sums of parts of pieces, in pinned memory that the executor lends */
    uint64_t **part_of; /* [n_parts] the sum that each is a part of */
    int64_t n_parts;
    sh_rc failed; /* the first failure of `far` */
    char failed_text[SH_SHARDS_TEXT];
};

void sh_shards_make(const struct sh_run *r, enum sh_shards_way way, struct sh_shards *out);
void sh_shards_free(struct sh_shards *p);

/* After a failed load or save: the failure of a home to give or take state, if there was one on any rank; then the
 * checkpoint is not at fault. Collective, agreed. Errors: SH_E_DATA of the scratch file. */
sh_rc sh_shards_failed(const struct sh_shards *p);

/* Copy what SAVE describes into the snapshot that `p`, newly made with SNAPSHOT, describes, and compute its early sums
 * on the way. On CPUs all threads of the rank do both in one pass. On a GPU the copy runs alongside training, and the
 * GPU sums its own memory before the data travels, so the sums also cover the transfer. sh_shards_wait() waits for
 * it. */
void sh_shards_copy(const struct sh_run *r, struct sh_shards *p);
void sh_shards_wait(const struct sh_run *r, const struct sh_shards *p);

/* After a file was read into the pieces of LOAD or BASE: copy them to the device, unless the pieces are there
 * already. */
void sh_shards_put(const struct sh_run *r, const struct sh_shards *p);

/* Whether a save goes through snapshots in host memory, as on a GPU with planned snapshots: copy, wait, and SNAPSHOT.
 * Else the state itself is saved. */
bool sh_shards_copied(const struct sh_run *r);

/* For LOAD and SAVE, if the caller reads or writes parameters only in memory: make sure that no parameter is far. Until
 * free this takes 2 bytes for each parameter whose low half lies in a file, and 4 for each parameter of a GPU;
 * sh_shards_put() moves loaded parameters to their homes. Local. Errors: SH_E_DATA of the file. */
sh_rc sh_shards_borrow(const struct sh_run *r, struct sh_shards *p);

/* Touch the pages of the snapshot before the first copy: page faults while training waits would take longer than the
 * copy. */
void sh_shards_touch(const struct sh_run *r);

/* The states that are saved for each unit: state 0 is its parameters, then come those of the optimizer. */
int sh_shards_states(const struct sh_run *r);
const char *sh_shards_state_name(const struct sh_run *r, int k);

/* The tensor that holds the masters of a unit, if they are whole floats. */
int sh_shards_whole(const struct sh_unit *u);

/* Whether state k of a unit lives, wholly or in part, in a lower tier; visit.h then gives access to its numbers. */
bool sh_shards_far(const struct sh_run *r, const struct sh_unit *u, int k);

/* State k of this rank's chunk of a unit, at device addresses; a frozen unit has only parameters. Not for a state that
 * is far. */
struct sh_floats sh_shards_state(const struct sh_run *r, const struct sh_unit *u, int k);

/* Ranges of a unit's elements: those that this rank owns, and those of a parameter. */
struct sh_range sh_shards_owned(const struct sh_run *r, const struct sh_unit *u);
struct sh_range sh_shards_range(const struct sh_param *param);

#endif
