/* The distributed checkpoint: one HDF5 file for all ranks, independent of the mesh that wrote it.
 *
 * /model/<name>, and /optimizer/<state>/<name> for each state of the optimizer: per tensor one contiguous little-endian
 * f32 dataset of its global shape, under its Hugging Face name; /meta: step, tokens, sampler position, resolved
 * configuration; /digest: sums per block of each dataset that do not depend on the mesh. doc/checkpoint-format.md
 * describes all of it.
 *
 * The caller describes which tensors exist (the same on all ranks) and which pieces of them it holds; saving and
 * loading use the same description in two directions. Functions marked collective are collective over all ranks of the
 * job. */
#ifndef IO_CHECKPOINT_CHECKPOINT_H
#define IO_CHECKPOINT_CHECKPOINT_H

#include "src/base/number/floats.h"
#include "src/base/err.h"
#include "src/config/role.h"
#include "src/config/words.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The states of each tensor: state 0 is the parameter, the others are the optimizer's, which the caller names. */
enum { SH_CKPT_MODEL = 0, SH_CKPT_STATES_MAX = 5, SH_CKPT_STATE_NAME = 32 };
struct sh_ckpt_states {
    int n;
    char name[SH_CKPT_STATES_MAX][SH_CKPT_STATE_NAME]; /* groups of the file: "model", "optimizer/exp_avg" */
    bool masked;                                       /* of an index: not all tensors have all of them */
};

/* "model", and "optimizer/" before each of n names, which are short and far fewer than SH_CKPT_STATES_MAX. Local. */
struct sh_ckpt_states sh_ckpt_states_of(const char *const *names, int n);

/* Index of the group `name`, or of the optimizer's state `name`; -1: there is none. Local. */
int sh_ckpt_states_find(const struct sh_ckpt_states *states, const char *name);

/* Their names without the group, as commands take them: "model, exp_avg". Local. */
enum { SH_CKPT_STATES_TEXT = SH_CKPT_STATES_MAX * SH_CKPT_STATE_NAME };
const char *sh_ckpt_states_text(const struct sh_ckpt_states *states, char text[SH_CKPT_STATES_TEXT]);

/* The states of format 1, which are AdamW's; files with other states have format 2. */
extern const struct sh_ckpt_states sh_ckpt_states_1;

struct sh_ckpt_tensor {
    const char *name; /* Hugging Face name, without '/' */
    int ndim;         /* 1..4 */
    int64_t dim[4];
    int64_t elems;
    enum sh_param_role role; /* not in the file */
    unsigned states;         /* bit s: it has state s of the set; 0: all of them */
};

/* Elements [begin, begin + elems) of a tensor in row-major order that this rank holds. Pieces of one rank do not
 * overlap. Saving: pieces of all ranks together cover each element exactly once (replicas divide what they all hold).
 * Loading: whatever this rank wants; ranks may want the same. data[s] none: that state is not wanted (loading only), or the
 * tensor does not have it.
 * Floats in halves are joined and split in the pieces that are moved anyway.
 *
 * Saving a copy of the state: early[s] has the sums of the state itself, computed while it was copied. The save
 * compares the data that it writes to the disk with them, and fails if the copy has changed since. NULL: data is the
 * state itself. */
struct sh_ckpt_piece {
    int tensor;
    int64_t begin, elems;
    struct sh_floats data[SH_CKPT_STATES_MAX]; /* one for each of the set's states */
    uint64_t *early[SH_CKPT_STATES_MAX]; /* [sh_ckpt_piece_blocks()], the piece's sum in each block of the tensor */
    bool far[SH_CKPT_STATES_MAX];        /* state s is not in memory: the set's `far` has it, and data[s] is none */
};

/* Brings states that are not in memory, and puts them back: elements [at, at + n) of a piece in state s, in any order
 * and from any thread, at most a block of the tensor. Errors: their own; they end the save or the load. */
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
    char *notes;     /* how the file was made, a line "name: value" per fact, or ""; NULL: ""; load: freed with free().
                               The save adds how it was read back: checkpoint.verify */
    char *base;      /* the base of the tensors, as text, if they are not all of a model, or ""; NULL: ""; load:
                               freed with free() */
};

struct sh_ckpt_set {
    struct sh_ckpt_states states;  /* loading: the file may have more */
    bool may_lack;                 /* loading: the last state is left as it is if the file lacks it */
    bool zero[SH_CKPT_STATES_MAX]; /* saving: all of that state is 0, as a new file is, and is not written; not with
                                       MPI-IO */
    const struct sh_ckpt_tensor *tensors;
    int n_tensors;
    const struct sh_ckpt_piece *pieces;
    int n_pieces;
    const struct sh_ckpt_far
        *far; /* NULL: all states are in memory. Not with sh_ckpt_load_options.share, nor while saving
                                      asynchronously */
    const bool
        *packed; /* [n_tensors] loading: into blocks of four bits per element (src/base/number/nf4.h); NULL: none */
};

/* Check that the pieces of all ranks together are each element exactly once, each within its tensor. Collective, not
 * agreed. Errors: SH_E_BUG with the tensor's name. */
sh_rc sh_ckpt_set_covers(const struct sh_ckpt_set *set);

/* Give the set one piece for each whole tensor, none of it in memory; freed with free(). Local. */
struct sh_ckpt_piece *sh_ckpt_pieces_far(struct sh_ckpt_set *set);

/* The early sums of a piece, which start at 0 and are added to; local, parts of a piece by any threads at once.
 * sh_ckpt_piece_blocks: the number of blocks that the piece touches.
 * sh_ckpt_piece_cut: cut the part [at, at + elems) at the next end of a block. *block: the index of its sum among the
 *   piece's; *place: of the sum (src/base/number/mixsum.h), in the checkpoint of `step`. Returns elements.
 * sh_ckpt_piece_copy: copy that part of `from`, which is the piece's state s, to data[s], and add its sums, in one
 * pass. */
int64_t sh_ckpt_piece_blocks(const struct sh_ckpt_piece *p);
int64_t sh_ckpt_piece_cut(const struct sh_ckpt_piece *p, const char *name, int64_t step, int s, int64_t at,
                          int64_t elems, int64_t *block, uint64_t *place);
void sh_ckpt_piece_copy(const struct sh_ckpt_piece *p, const char *name, int64_t step, int s, int64_t at, int64_t elems,
                        struct sh_floats from);

/* The checkpoints to keep: the newest `latest` (0: all of them), which are ephemeral, and those whose step is a
 * multiple of `every` (0: none), which are permanent. */
struct sh_ckpt_keep {
    int latest;
    int64_t every;
};

/* Where the time of a save goes. For an asynchronous save, a phase's seconds are those of its thread alone, without the
 * time from the end of a stage to the step after which the ranks learn of it. */
enum sh_ckpt_phase {
    SH_CKPT_LAYOUT, /* rank 0 lays out the file */
    SH_CKPT_SUMS,   /* sums of the blocks, unless they are computed while writing; written into the file */
    SH_CKPT_WRITE,  /* the data, on its way to the disk; with direct I/O also the sums of the written data */
    SH_CKPT_SYNC,   /* fsync: whatever was still in flight */
    SH_CKPT_VERIFY, /* index and data read back */
    SH_CKPT_COMMIT, /* rename, fsync of the folder, deletion of old checkpoints */
    SH_CKPT_PHASES
};
struct sh_ckpt_times {
    double seconds[SH_CKPT_PHASES]; /* of this rank */
};

/* How a save is done. */
struct sh_ckpt_lock;

struct sh_ckpt_options {
    enum sh_cfg_io io_method;  /* through MPI-IO, or by plain writes, both at the offsets that HDF5 laid out;
                               the bytes are the same. AUTO: direct if the ranks are on one node or the file system
                               shows all nodes the same file (Lustre, GPFS, CephFS); otherwise, or with hints, MPI-IO */
    const char *hints;         /* for MPI-IO: "name=value,name=value"; "" for none */
    int writers_per_node;      /* with direct I/O: the other ranks pass their parts to the writers through memory.
                               AUTO: each rank writes if its ranges in the file are long, otherwise 2 per node; at least
                               the ranks of a node: each rank writes */
    int ranks_per_node;        /* 0: nodes as MPI reports them; N: ranks of a node, not checked (tests) */
    enum sh_cfg_verify verify; /* source of the data that is compared with the sums from memory before a file gets its
                               name. From the disk: written and read past the page cache. From the cache: through it,
                               so that ranks of one node see what the kernel holds. Always: the index is read back */
    double timeout_seconds;    /* a stage that takes longer stops the job, naming the stage; 0: no limit */
    int threads;               /* may sum blocks while training waits; an asynchronous save uses one */
    struct sh_ckpt_keep keep;  /* applied once the new checkpoint is committed */
    const struct sh_ckpt_lock
        *lock;                   /* (optional) rank 0's, lent: a save whose lock was taken over does not get its name */
    struct sh_ckpt_times *times; /* (optional) set if the save succeeds; lent until then */
};

/* Write <folder>/step-%08lld.h5 through a temporary name, fsync, rename, fsync of the folder; creates the folder.
 * *bytes is set to the file's size. Collective. Agreed: all ranks succeed or none; on failure nothing new is left
 * behind and earlier checkpoints are untouched. Errors: SH_E_DATA with path, rank and reason (a full disk, no
 * permission). */
sh_rc sh_ckpt_save(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                   const struct sh_ckpt_options *options, int64_t *bytes);

/* The same asynchronously: begin, then poll between steps until it is done, then end; call end also after a failure, or
 * to give up. The set with its memory and `folder` are lent until the end, and the memory must not change. With direct
 * I/O only. All collective; begin and poll agreed, with the errors of sh_ckpt_save.
 *   wait   in   return only when done
 *   *done  out  committed: the file exists, *bytes is its size; 0 before
 * Cost between steps: one sum of an int while a stage runs; in between, once per save each, the sums of the blocks are
 * added up and the index is sent to all. A thread of rank 0 uses HDF5: until the end nobody else may. */
struct sh_ckpt_async;
sh_rc sh_ckpt_async_begin(const char *folder, const struct sh_ckpt_set *set, const struct sh_ckpt_meta *meta,
                          const struct sh_ckpt_options *options, struct sh_ckpt_async **out);
sh_rc sh_ckpt_async_poll(struct sh_ckpt_async *b, bool wait, bool *done, int64_t *bytes);
void sh_ckpt_async_end(struct sh_ckpt_async *b); /* NULL: nothing */

/* Whether an asynchronous save is possible in an existing folder; call it before a run starts. Collective, agreed.
 * Errors: SH_E_USAGE: a file system that needs MPI-IO. */
sh_rc sh_ckpt_async_check(const char *folder, const struct sh_ckpt_options *options);

/* Whether a file may be loaded; call it before reading anything of it. ANY: each file may. OWNER: file and folder
 * belong to this user or to root, and neither others nor a group may write them. Exceptions: the owner's own group, if
 * it has the owner's name and no other members, and a sticky folder, which all may write. A link is judged by its
 * target. For a folder: whether its files may be loaded. Local. Errors: SH_E_DATA: who could have written it, and the
 * cure. A path that cannot be examined is left to the code that opens it. */
sh_rc sh_ckpt_trusted(const char *path, enum sh_cfg_trust trust);

struct sh_ckpt_load_options {
    enum sh_cfg_trust trust;
    double timeout_seconds; /* of each stage, as for saving */
    bool share; /* ranks that want the same data read a part each and hand it on: the file is read once. Pays if they
                               are on several nodes; on one, the page cache does the same. The same on all ranks */
};

struct sh_ckpt_load_report {
    bool damaged; /* failed, but not because of another model or missing trust: try an earlier one */
    bool lacks;   /* set.may_lack: the file has no such state */
};

/* Fill the pieces and the meta data from a file. The tensors of the file and of the set must be the same: missing or
 * extra ones and other shapes give SH_E_DATA, naming them with both shapes; a state of the set that the file lacks
 * gives SH_E_DATA, naming it. *report tells what happened, whatever the result. Collective, agreed. */
sh_rc sh_ckpt_load(const char *path, const struct sh_ckpt_set *set, const struct sh_ckpt_load_options *options,
                   struct sh_ckpt_meta *meta, struct sh_ckpt_load_report *report);

/* Convert a base to text, as in meta.base, freed with free(), and such text back; *path freed with free(). `of`: the
 * checkpoint, for messages. Local. Errors: SH_E_DATA: the text does not describe a base. */
char *sh_ckpt_base_text(uint64_t sum, const char *path);
sh_rc sh_ckpt_base_read(const char *of, const char *text, uint64_t *sum, char **path);

/* The `place` (src/base/number/mixsum.h) of element `at` of a tensor of the base; the base's sum is over all its tensors.
 * Local. */
uint64_t sh_ckpt_base_place(const char *name, int64_t at);

/* Read only the meta data; local, serial (eval, generate, info before a mesh exists). */
sh_rc sh_ckpt_read_meta(const char *path, struct sh_ckpt_meta *meta);
void sh_ckpt_meta_free(struct sh_ckpt_meta *meta);

/* Read a checkpoint's digest: equal for files of the same state, whatever their notes say. Reads the index only; local.
 */
sh_rc sh_ckpt_digest(const char *path, uint64_t *digest);

/* What the notes say about how a file was read back before it got its name: "disk", "cache", "off" as for
 * checkpoint.verify; NULL: nothing. Local. */
const char *sh_ckpt_verified(const struct sh_ckpt_meta *meta);
extern const char *const sh_ckpt_verify_name[]; /* [enum sh_cfg_verify] */

/* The value of the line "name: value" of the notes, freed with free(); NULL: there is none. Local. */
char *sh_ckpt_note(const struct sh_ckpt_meta *meta, const char *name);

/* Find the newest checkpoint of a folder by the step in its name, which its reader compares with the step inside; *path
 * is freed with free(), NULL if there is none. Local. */
sh_rc sh_ckpt_newest(const char *folder, char **path);

/* Find the newest checkpoint before `step`: the next one to try if a checkpoint turns out to be damaged. As above. */
sh_rc sh_ckpt_newest_before(const char *folder, int64_t step, char **path);

/* The step in a checkpoint's name, -1 for other names. Local. */
int64_t sh_ckpt_step_of(const char *path);

/* Print a few lines: step, tokens, states, sizes; and with `what` each tensor's name and shape, or the notes,
 * configuration and state of the guard. Local, serial. */
enum { SH_CKPT_INFO_TENSORS = 1, SH_CKPT_INFO_CONFIG = 2 };
sh_rc sh_ckpt_info(const char *path, unsigned what, FILE *out);

/* Read everything and compare with the digests; local, serial. Errors: SH_E_DATA naming tensor and block if they
 * differ. */
sh_rc sh_ckpt_verify(const char *path, FILE *out);

/* The same, silent if all is good. quick: structure, length and meta data only, not the tensors' data. */
sh_rc sh_ckpt_check(const char *path, bool quick);

/* Print a line for each checkpoint of a folder, newest first: valid (quick: whole), damaged with the reason, or
 * partial; step, bytes, name. Local, serial. */
sh_rc sh_ckpt_list(const char *folder, bool quick, FILE *out);

/* Print the differences between two checkpoints: meta data, configuration, tensors, and for each tensor and state the
 * largest difference, absolute and relative to the larger of both, the largest first; at most `most` of those lines, 0:
 * all. Reads both files once, in pieces of 4 MiB; local, serial. SH_OK if nothing differs, SH_E_DATA if something does.
 * */
sh_rc sh_ckpt_diff(const char *a, const char *b, int64_t most, FILE *out);

/* Write one state of one tensor to a .npy file, comparing it with the digests on the way. Local, serial. Errors:
 * SH_E_USAGE: the file has no such state. */
sh_rc sh_ckpt_extract(const char *path, const char *name, const char *state, const char *out_path);

/* Write the mean of the parameters of n checkpoints of one model, each times its weight, to a new checkpoint in
 * `folder`, which has no other: float32, without states of an optimizer. Sums in float64 in the order of the files, over
 * the sum of the weights, rounded once; all data is compared with its digests on the way.
 *   weights  in   [n], above 0
 *   meta     in   of the new file
 *   *path    out  that file; freed with free()
 * Local, serial. Errors: SH_E_USAGE: adapters, or a checkpoint in the folder; SH_E_DATA: tensors of another model, a
 * damaged file; those of sh_ckpt_save(). Nothing is left behind but the folder. */
sh_rc sh_ckpt_average(const char *const *files, const double *weights, int n, const struct sh_ckpt_meta *meta,
                      const char *folder, char **path);

/* Whether the rule keeps the checkpoint of `step`: `good` is the step of the newest one known to be valid, `newer` the
 * number of checkpoints from that one down to this one. The good one and older ones always stay. Local, no state. */
bool sh_ckpt_keeps(const struct sh_ckpt_keep *keep, int64_t step, int64_t good, int newer);

/* Delete what the rule does not keep, after the checkpoint of step `good` was committed. A file whose step differs from
 * its name neither counts nor is deleted. Local: rank 0, holding the lock. */
sh_rc sh_ckpt_retain(const char *folder, const struct sh_ckpt_keep *keep, int64_t good);

/* The same by hand: verifies the newest one first and also deletes unfinished files. only_say: print, delete nothing.
 * Takes the lock, so it is refused while a job writes into the folder. Local, serial. */
sh_rc sh_ckpt_prune(const char *folder, const struct sh_ckpt_keep *keep, bool only_say, FILE *out);

/* One job at a time may write into a folder: lock its file .lock, creating the folder. Local: rank 0 holds it for its
 * job. Errors: SH_E_DATA: another job holds the lock (says which), no folder, or one in which no file can be created.
 * On a file system without locks: a warning, and the lock is not held. */
sh_rc sh_ckpt_lock(const char *folder, struct sh_ckpt_lock **out);
bool sh_ckpt_lock_held(const struct sh_ckpt_lock *lock);

/* Whether the lock is still the folder's: the same batch job takes it over once its script takes the holder's node for
 * lost. NULL, or not held: SH_OK. Local. Errors: SH_E_COMM, which ends a run, where a save that fails does not. */
sh_rc sh_ckpt_lock_check(const struct sh_ckpt_lock *lock, const char *folder);
void sh_ckpt_unlock(struct sh_ckpt_lock *lock); /* NULL: nothing */

/* Delete the unfinished files of dead jobs; *n is set to their number. Local; the caller holds the folder's lock, so
 * the jobs that wrote them are gone. */
sh_rc sh_ckpt_sweep(const char *folder, int *n);

#endif
