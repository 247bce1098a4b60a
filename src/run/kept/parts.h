/* What a rank knows of near checkpoints, for the files of this folder. */
#ifndef SH_KEPT_PARTS_H
#define SH_KEPT_PARTS_H

#include "src/near/keep.h"
#include "src/near/slot.h"
#include "src/run/kept/kept.h"

#include <pthread.h>
#include <stdatomic.h>

struct sh_kept {
    int presence, socket; /* connections to the keeper: one that is kept, one for asking */
    int rank, world;      /* as the launcher counts */
    uint64_t layout, start;
    struct sh_near_slot slot[SH_NEAR_SLOTS]; /* NULL heads: not taken yet */
    struct sh_near_slot copy[SH_NEAR_SLOTS]; /* of another rank; only their heads count */
    int64_t copy_bytes;
    int to, from;   /* whom this rank sends its slots to, and whose copies it holds; SH_NONE: nobody */
    int *unit;      /* [units of the program] of the slots; SH_NONE: frozen */
    int64_t bytes;  /* of a slot */
    int64_t loaded; /* step of the generation that this process began with; -1: none */
    uint64_t loaded_layout, loaded_start;
    int64_t safe, done; /* steps of the newest generations: that all ranks have, that this rank has; -1: none */
    int safe_slot, done_slot;
    bool alone;     /* the keeper holds parts of this start only */
    bool described; /* meta is there */
    struct sh_ckpt_meta meta;
    atomic_bool gone;        /* the keeper */
    bool said_gone, refused; /* refused: the one that came after it had no memory */
    bool said_why;           /* the one that came after it does not let this rank in */
    int64_t again_ns;        /* before then no keeper is asked */
    double patience; /* seconds for a keeper's answer while the run trains: ten times what makes a node a lost one;
                                0: it does not train yet */
    pthread_t listener;
    double seconds;
    double down; /* from the end of the loaded generation to the load */
};

/* parts.c: parts of the keeper of this node, dealt out over the node's ranks, mapped. Freed with sh_kept_unmap(). Local.
 * Errors: SH_E_COMM, SH_E_MEMORY. */
struct sh_kept_part {
    struct sh_near_slot slot;
    int number; /* of the slot */
    int64_t bytes;
};
struct sh_kept_parts {
    struct sh_kept_part *part;
    int n;
};
sh_rc sh_kept_map(const struct sh_run *r, struct sh_kept_parts *out);
void sh_kept_unmap(struct sh_kept_parts *p);

/* Have the own parts, and those for copies. Local. */
sh_rc sh_kept_take_slots(struct sh_run *r);

/* presence.c: whether this rank's copies are worth anything, since what a keeper held is gone with it. Joins a keeper that is
 * there again; then all slots are EMPTY. Local. */
bool sh_kept_has_keeper(struct sh_run *r);

/* partner.c. Find: who holds whose copies (checkpoint.near_copies). Exchange: send the slot, and receive a copy.
 * Collective; errors of find, which are agreed on by the caller: SH_E_USAGE: nodes with different numbers of ranks. */
sh_rc sh_kept_find_partner(struct sh_run *r);
sh_rc sh_kept_exchange(struct sh_run *r, int slot);

#endif
