/* The distributed checkpoint: one HDF5 file for all ranks with no trace of the mesh that wrote it.
 *
 * /model/<name>, and /optimizer/<state>/<name> for each state of the optimizer: one contiguous little-endian f32 dataset
 * of global shape a tensor, with its Hugging Face name; /meta: step, tokens, sampler position, resolved configuration;
 * /digest: sums per block of each dataset that do not depend on the mesh. doc/checkpoint-format.md has all of it.
 *
 * The caller says which tensors exist (the same on all ranks) and which pieces of them it holds; saving and loading are
 * the same description in two directions. Functions marked collective are so over all ranks of the job. */
#ifndef IO_CHECKPOINT_CHECKPOINT_H
#define IO_CHECKPOINT_CHECKPOINT_H

#include "src/base/floats.h"
#include "src/base/err.h"
#include "src/config/role.h"
#include "src/config/words.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* What there is of each tensor: state 0 is the parameter, the others are the optimizer's, which the caller names. */
enum { SH_CKPT_MODEL = 0, SH_CKPT_STATES_MAX = 4, SH_CKPT_STATE_NAME = 32 };
struct sh_ckpt_states {
    int n;
    char name[SH_CKPT_STATES_MAX][SH_CKPT_STATE_NAME]; /* groups of the file: "model", "optimizer/exp_avg" */
};

/* "model", and "optimizer/" before each of n names, which are short and many fewer than SH_CKPT_STATES_MAX. Local. */
struct sh_ckpt_states sh_ckpt_states_of(const char *const *names, int n);

/* Place of the group `name`, or of the optimizer's state `name`; -1: there is none. Local. */
int sh_ckpt_states_find(const struct sh_ckpt_states *states, const char *name);

/* Those of format 1, which are AdamW's; files with other ones are of format 2. */
extern const struct sh_ckpt_states sh_ckpt_states_1;

struct sh_ckpt_tensor {
    const char *name; /* Hugging Face name; '/' is not allowed in it */
    int ndim;         /* 1..4 */
    int64_t dim[4];
    int64_t elems;
    enum sh_param_role role; /* not in the file */
};

/* Elements [begin, begin + elems) of a tensor in row-major order that this rank holds. Pieces of one rank do not
 * overlap. Saving: pieces of all ranks together cover each element exactly once (replicas split what they all hold).
 * Loading: whatever this rank wants; ranks may want the same. data[s] none: that state is not wanted (loading only).
 * Floats in halves are joined and split in the pieces that are moved anyway.
 *
 * Saving a copy of the state: early[s] has the sums of the state itself, made while it was copied. The save compares what
 * it gives to the disk with them, and fails where the copy has changed since. NULL: data is the state itself. */
struct sh_ckpt_piece {
    int tensor;
    int64_t begin, elems;
    struct sh_floats data[SH_CKPT_STATES_MAX]; /* of the set's states */
    uint64_t
        *early[SH_CKPT_STATES_MAX]; /* [sh_ckpt_piece_blocks()], the sum of what lies in each block of the tensor */
    bool far[SH_CKPT_STATES_MAX]; /* of the set's states: not in memory, the set's `far` has it; data[s] is none then */
};

/* Who brings states that are not in memory, and puts them back: elements [at, at + n) of a piece in state s, in no order and
 * by any thread, at most a block of the tensor. Errors: their own; they end the save or the load. */
struct sh_ckpt_far {
    sh_rc (*get)(void *arg, int piece, int s, int64_t at, int64_t n, float *to);
    sh_rc (*put)(void *arg, int piece, int s, int64_t at, int64_t n, const float *from);
    void *arg;
};

struct sh_ckpt_meta {
    int64_t step;    /* training steps done */
    int64_t samples; /* the sampler's position: sequences of the run used so far */
    int64_t tokens;  /* target tokens seen */
    int64_t updates; /* optimizer updates done (steps minus skipped ones) */
    char *config;    /* resolved configuration, YAML; load: freed with free() */
    char *guard;     /* state of the guard and the like, YAML or ""; load: freed with free() */
    char *notes;     /* how the file was made, a line "name: value" for each thing worth telling, or ""; NULL: ""; load:
                               freed with free(). The save adds what was read back: checkpoint.verify */
    char *base;      /* what the tensors go upon, where they are not all of a model, as text, or ""; NULL: ""; load:
                               freed with free() */
};

struct sh_ckpt_set {
    struct sh_ckpt_states states; /* loading: the file may have others besides */
    const struct sh_ckpt_tensor *tensors;
    int n_tensors;
    const struct sh_ckpt_piece *pieces;
    int n_pieces;
    const struct sh_ckpt_far
        *far;           /* NULL: all states are in memory. Not with sh_ckpt_load_options.share, nor while saving
                                      asynchronously */
    const bool *packed; /* [n_tensors] loading: into blocks of four bits an element (src/base/nf4.h); NULL: none */
};

/* The early sums of a piece, which begin at 0 and get added to; local, parts of a piece by any threads at once.
 * sh_ckpt_piece_blocks: blocks that the piece lies in.
 * sh_ckpt_piece_cut: its part [at, at + elems) up to the next end of a block. *block: which of the piece's sums belongs to
 *   it; *place: of the sum (src/base/mixsum.h), in the checkpoint of `step`. Returns elements.
 * sh_ckpt_piece_copy: copy that part of `from`, which is the piece's state s, to data[s], and add its sums, in one pass. */
int64_t sh_ckpt_piece_blocks(const struct sh_ckpt_piece *p);
int64_t sh_ckpt_piece_cut(const struct sh_ckpt_piece *p, const char *name, int64_t step, int s, int64_t at,
                          int64_t elems, int64_t *block, uint64_t *place);
void sh_ckpt_piece_copy(const struct sh_ckpt_piece *p, const char *name, int64_t step, int s, int64_t at, int64_t elems,
                        struct sh_floats from);

/* Write <folder>/step-%08lld.h5 through a temporary name, fsync, rename, fsync of the folder; creates the folder.
 * *bytes gets the file's size. Collective. Agreed: all ranks succeed or none; on failure nothing new is left behind and
 * earlier checkpoints are untouched. Errors: SH_E_DATA with path, rank and reason (a full disk, no permission). */
sh_rc sh_ckpt_save(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta, int64_t *bytes);

/* Which checkpoints stay: the newest `latest` (0: all of them), which are ephemeral, and those whose step is a multiple
 * of `every` (0: none), which are permanent. */
struct sh_ckpt_keep {
    int latest;
    int64_t every;
};

/* Where the time of a save goes. Of an asynchronous save, a phase's seconds are those of its thread alone, without what
 * lies between the end of a stage and the step after which the ranks learn of it. */
enum sh_ckpt_phase {
    SH_CKPT_LAYOUT, /* of the file by rank 0 */
    SH_CKPT_SUMS,   /* of the blocks, where they are not made while writing; into the file */
    SH_CKPT_WRITE,  /* the data, and its way to the disk; with direct I/O also the sums of what is written */
    SH_CKPT_SYNC,   /* fsync: what was still under way */
    SH_CKPT_VERIFY, /* index and data read back */
    SH_CKPT_COMMIT, /* rename, fsync of the folder, deleting old ones */
    SH_CKPT_PHASES
};
struct sh_ckpt_times {
    double seconds[SH_CKPT_PHASES]; /* of this rank */
};

/* How a save is done. */
struct sh_ckpt_options {
    enum sh_cfg_io io_method; /* through MPI-IO, or by plain writes, both at the places that HDF5 laid out;
                               the bytes are the same. AUTO: direct when the ranks are on one node or the file system
                               shows all nodes the same file (Lustre, GPFS, CephFS), else, and with hints, MPI-IO */
    const char *hints;        /* of MPI-IO: "name=value,name=value"; "" for none */
    int writers_per_node;     /* with direct I/O, which the others pass their parts to through memory; AUTO: each rank
                               writes where its ranges in the file are long, else 2 a node; at least a node's ranks: each
                               writes */
    int ranks_per_node;       /* 0: nodes as MPI finds them; N: ranks of a node, taken as given (tests) */
    enum sh_cfg_verify
        verify;               /* where the data comes from that is compared with the sums from memory before a file gets
                               its name. From the disk: written and read past the page cache. From the cache: through it,
                               so that ranks of one node see what the kernel holds. Of any: the index is read back */
    double timeout_seconds;   /* a stage that takes longer stops the job, naming it; 0: no limit */
    int threads;              /* that may sum blocks while training waits; an asynchronous save uses one */
    struct sh_ckpt_keep keep; /* applied once the new one is committed */
    struct sh_ckpt_times *times; /* (optional) set when the save succeeds; lent until then */
};
sh_rc sh_ckpt_save_as(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                      const struct sh_ckpt_options *options, int64_t *bytes);

/* The same asynchronously: begin, then poll between steps until it is done, then end; end also after a failure or to
 * give up. The set with its memory and `folder` are lent until the end, and the memory must not change. With direct I/O
 * only. All collective, begin and poll agreed with the errors of sh_ckpt_save.
 *   wait   in   come back only when done
 *   *done  out  committed: the file is there, *bytes is its size; 0 before
 * Cost between steps: one sum of an int while a stage runs; in between, once a save each, the sums of the blocks are added
 * up and the index is sent to all. A thread of rank 0 uses HDF5: until the end nobody else may. */
struct sh_ckpt_async;
sh_rc sh_ckpt_async_begin(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                          const struct sh_ckpt_options *options, struct sh_ckpt_async **out);
sh_rc sh_ckpt_async_poll(struct sh_ckpt_async *b, bool wait, bool *done, int64_t *bytes);
void sh_ckpt_async_end(struct sh_ckpt_async *b); /* NULL: nothing */

/* Whether that is possible in an existing folder, to be asked before a run begins. Collective, agreed. Errors:
 * SH_E_USAGE: a file system that needs MPI-IO. */
sh_rc sh_ckpt_async_check(const char *folder, const struct sh_ckpt_options *options);

/* Fill the pieces and the meta data from a file. The tensors of the file and of the set must be the same: missing,
 * extra, of other shape: SH_E_DATA naming them with both shapes; a state of the set that the file lacks: SH_E_DATA naming
 * it. Collective, agreed. */
sh_rc sh_ckpt_load(const char *path, const struct sh_ckpt_set *set, struct sh_ckpt_meta *meta);

/* Whether a file may be loaded, asked before anything of it is read. ANY: each may. OWNER: file and folder belong to this
 * user or to root, and neither others nor a group may write them; the group of the owner alone, with his name and no other
 * members, may, and so may all a folder that is sticky. A link is judged by what it leads to. Of a folder: whether its
 * files may. Local. Errors: SH_E_DATA: who could have written it, and the cure. What cannot be looked at is left to its opening. */
sh_rc sh_ckpt_trusted(const char *path, enum sh_cfg_trust trust);

struct sh_ckpt_load_options {
    enum sh_cfg_trust trust;
    double timeout_seconds; /* of each stage, as when saving */
    bool share; /* ranks that want the same read a part each and hand it on: the file is read once. Pays when
                               they are on several nodes; on one, the page cache does the same. The same on all ranks */
};

/* The same with options, telling what happened, whatever the result. */
struct sh_ckpt_load_report {
    bool damaged; /* failed, and not because the file is of another model or not trusted: an earlier one may do */
};
sh_rc sh_ckpt_load_as(const char *path, const struct sh_ckpt_set *set, const struct sh_ckpt_load_options *options,
                      struct sh_ckpt_meta *meta, struct sh_ckpt_load_report *report);

/* A base in words, as meta.base has it, freed with free(); and what such words say, *path freed with free(). `of`: the
 * checkpoint, in messages. Local. Errors: SH_E_DATA: they are none. */
char *sh_ckpt_base_text(uint64_t sum, const char *path);
sh_rc sh_ckpt_base_read(const char *of, const char *text, uint64_t *sum, char **path);

/* The `place` (src/base/mixsum.h) of element `at` of a tensor of the base, whose sum is over all its tensors. Local. */
uint64_t sh_ckpt_base_place(const char *name, int64_t at);

/* Only the meta data; local, serial (eval, generate, info before a mesh exists). */
sh_rc sh_ckpt_read_meta(const char *path, struct sh_ckpt_meta *meta);
void sh_ckpt_meta_free(struct sh_ckpt_meta *meta);

/* What its notes say of how much of a file was read back before it got its name: "disk", "cache", "off" as
 * checkpoint.verify has them; NULL: nothing. Local. */
const char *sh_ckpt_verified(const struct sh_ckpt_meta *meta);
extern const char *const sh_ckpt_verify_name[]; /* [enum sh_cfg_verify] */

/* The value of the line "name: value" of the notes, freed with free(); NULL: there is none. Local. */
char *sh_ckpt_note(const struct sh_ckpt_meta *meta, const char *name);

/* The newest checkpoint of a folder by the step in its name, which its reader compares with the one inside; *path freed
 * with free(), NULL when there is none. Local. */
sh_rc sh_ckpt_newest(const char *folder, char **path);

/* The newest one of a step before `step`: what to try next when a checkpoint turns out to be damaged. As above. */
sh_rc sh_ckpt_newest_before(const char *folder, int64_t step, char **path);

/* The step in a checkpoint's name, -1 when it is no such name. Local. */
int64_t sh_ckpt_step_of(const char *path);

/* A few lines: step, tokens, states, sizes; and with `what` each tensor's name and shape, or the notes, configuration and state of
 * the guard. Local, serial. */
enum { SH_CKPT_INFO_TENSORS = 1, SH_CKPT_INFO_CONFIG = 2 };
sh_rc sh_ckpt_info(const char *path, unsigned what, FILE *out);

/* Read everything and compare with the digests; local, serial. SH_E_DATA naming tensor and block when they differ. */
sh_rc sh_ckpt_verify(const char *path, FILE *out);

/* The same without words for the good case. quick: structure, length and meta data only, not the tensors' data. */
sh_rc sh_ckpt_check(const char *path, bool quick);

/* A line for each checkpoint of a folder, newest first: valid (quick: whole), damaged with the reason, or partial;
 * step, bytes, name. Local, serial. */
sh_rc sh_ckpt_list(const char *folder, bool quick, FILE *out);

/* What differs between two checkpoints: meta data, configuration, tensors, and for each tensor and state the largest
 * difference, absolute and relative to the larger of both, the largest first; at most `most` of those lines, 0: all. Reads both
 * once, in pieces of 4 MiB; local, serial. SH_OK when nothing differs, SH_E_DATA when something does. */
sh_rc sh_ckpt_diff(const char *a, const char *b, int64_t most, FILE *out);

/* One state of one tensor as a .npy file, compared with the digests on the way. Local, serial. Errors: SH_E_USAGE: the
 * file has no such state. */
sh_rc sh_ckpt_extract(const char *path, const char *name, const char *state, const char *out_path);

/* Whether the rule keeps the checkpoint of `step`: `good` is the step of the newest one known to be valid, `newer` how
 * many there are from it down to this one. The good one and older ones always stay. Local, no state. */
bool sh_ckpt_keeps(const struct sh_ckpt_keep *keep, int64_t step, int64_t good, int newer);

/* Delete what the rule does not keep, after the checkpoint of step `good` was committed. A file that holds another step
 * than its name says neither counts nor is deleted. Local: rank 0, holding the lock. */
sh_rc sh_ckpt_retain(const char *folder, const struct sh_ckpt_keep *keep, int64_t good);

/* The same by hand: verifies the newest one first, deletes unfinished files too. only_say: print, delete nothing.
 * Takes the lock, so it is refused while a job writes into the folder. Local, serial. */
sh_rc sh_ckpt_prune(const char *folder, const struct sh_ckpt_keep *keep, bool only_say, FILE *out);

/* One job at a time may write into a folder: lock its file .lock, creating the folder. Local: rank 0 holds it for its
 * job. Errors: SH_E_DATA: another job holds it (says which), no folder, or one in which no file can be made. A file
 * system without locks: a warning, and the lock is not held. */
struct sh_ckpt_lock;
sh_rc sh_ckpt_lock(const char *folder, struct sh_ckpt_lock **out);
bool sh_ckpt_lock_held(const struct sh_ckpt_lock *lock);
void sh_ckpt_unlock(struct sh_ckpt_lock *lock); /* NULL: nothing */

/* Delete what dead jobs left unfinished; *n gets the number of files. Local; the caller holds the lock of the folder:
 * with it, whoever wrote them is gone. */
sh_rc sh_ckpt_sweep(const char *folder, int *n);

#endif
