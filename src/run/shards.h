/* What of the parameters and optimizer state this rank holds, in the words of io/checkpoint: the same description for
 * all directions. Local. */
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
    SH_SHARDS_LOAD,     /* all that the rank holds of what is trained */
    SH_SHARDS_BASE,     /* the frozen parameters that it holds; they are loaded, and not saved */
    SH_SHARDS_SAVE,     /* replicas, who all hold the same, share the writing */
    SH_SHARDS_SNAPSHOT, /* the same as SAVE, of the copy in the units' snapshots */
};

enum { SH_SHARDS_TEXT = 1024 };

/* Stays where it is while its set is in use. */
struct sh_shards {
    const struct sh_run *r;
    struct sh_ckpt_set set;
    struct sh_ckpt_far
        far; /* the set's: states whose home is a file, or of a GPU that takes or gives them piece by piece */
    struct sh_ckpt_tensor *tensors;
    struct sh_ckpt_piece *pieces;
    enum sh_shards_way way;
    int *param;         /* [set.n_tensors] which parameter of the program a tensor is */
    bool *packed;       /* [set.n_tensors] */
    int16_t *lows;      /* borrowed: low halves of the masters that lie in a file; else NULL */
    float *params;      /* borrowed: of a GPU, all parameters of `way`; else NULL */
    float *loaded;      /* on a GPU, LOAD and BASE: what was read, before it goes to the device; else NULL */
    uint64_t *sums;     /* SNAPSHOT: the early sums of the pieces */
    uint64_t *parts;    /* on a GPU, SNAPSHOT: sums of parts of them, in pinned memory that the executor lends */
    uint64_t **part_of; /* [n_parts] the sum that each is a part of */
    int64_t n_parts;
    sh_rc failed; /* of `far` */
    char failed_text[SH_SHARDS_TEXT];
};

void sh_shards_make(const struct sh_run *r, enum sh_shards_way way, struct sh_shards *out);
void sh_shards_free(struct sh_shards *p);

/* Why a home gave or took no state, where that is so on any rank. A load or a save that failed asks: it is no fault of the
 * checkpoint then. Collective; agreed. Errors: SH_E_DATA of the scratch file. */
sh_rc sh_shards_failed(const struct sh_shards *p);

/* Copy what SAVE describes to where `p`, new pieces of SNAPSHOT, finds it, and sum it on the way for its early sums: on
 * CPUs by all threads of the rank in one pass; from a GPU beside the training, which sums its own memory before that
 * travels, so that the sums cover the way too. sh_shards_wait() waits for it. */
void sh_shards_copy(const struct sh_run *r, struct sh_shards *p);
void sh_shards_wait(const struct sh_run *r, const struct sh_shards *p);

/* After a file was read into the pieces of LOAD or BASE: bring them to the device, where that is not their place already. */
void sh_shards_put(const struct sh_run *r, const struct sh_shards *p);

/* Whether a save goes through the snapshots in host memory, as that of a GPU does where they are planned: copy, wait, and
 * SNAPSHOT. Else the state itself is saved. */
bool sh_shards_copied(const struct sh_run *r);

/* Of LOAD and SAVE, for who reads or writes parameters in memory only: let no parameter be far. Takes 2 bytes for each whose low
 * half lies in a file, 4 for each of a GPU's, until free; sh_shards_put() brings what was loaded there. Local. Errors: SH_E_DATA of the file. */
sh_rc sh_shards_borrow(const struct sh_run *r, struct sh_shards *p);

/* Have the pages of the copy before it is made: finding them while training waits takes longer than the copy. */
void sh_shards_touch(const struct sh_run *r);

/* What is saved of each unit: state 0 is its parameters, then come those of the optimizer. */
int sh_shards_states(const struct sh_run *r);
const char *sh_shards_state_name(const struct sh_run *r, int k);

/* The tensor that the masters of a unit are in, where they are whole floats. */
int sh_shards_whole(const struct sh_unit *u);

/* Whether state k of a unit has its home, or a part of it, in a lower tier: then visit.h has its numbers. */
bool sh_shards_far(const struct sh_run *r, const struct sh_unit *u, int k);

/* State k of this rank's chunk of a unit, at device addresses; a frozen one has its parameters only. Not one that is far. */
struct sh_floats sh_shards_state(const struct sh_run *r, const struct sh_unit *u, int k);

/* Elements of a unit: those of this rank, and those of a parameter. */
struct sh_range sh_shards_owned(const struct sh_run *r, const struct sh_unit *u);
struct sh_range sh_shards_range(const struct sh_param *param);

#endif
