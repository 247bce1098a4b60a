/* The passes that turn a model into the program of a training step. All are pure and local: the same request gives the
 * same program on every rank, except for the places of a rank's own elements. SH_PASS_LIST has their order: the passes
 * up to pipeline make one micro-step on logical tensors, shard makes the program of micro-steps, the others work on that
 * program.
 *
 * Right after `shard` every collective is waited for on the spot; `schedule` only moves operations. So each pass can be
 * left out or tested alone, and the results of a run do not depend on the schedule. */
#ifndef SH_PASS_PASS_H
#define SH_PASS_PASS_H

#include "kernels/op.h"
#include "src/config/read/batches.h"
#include "src/mesh/shape.h"
#include "src/optim/optim.h"
#include "src/program/program.h"

#include <limits.h>

struct sh_build; /* build.h: what is asked for */

/* PASS(name, training): in this order; a pass with `training` runs only on micro-steps that train. */
#define SH_PASS_LIST(PASS)                                                                                             \
    PASS(model, false)    /* emits the forward operations of one micro-step */                                         \
    PASS(tensor, false)   /* if matrices are cut over ranks: these gather rows before products, and sum after them */  \
    PASS(context, false)  /* if sequences are cut over ranks: these exchange rows for heads around attention */        \
    PASS(pack, false)     /* if asked for: frozen weights in four bits an element */                                   \
    PASS(grad, true)      /* appends their backward: one rule per kind; gradients of parameters get grad_of */         \
    PASS(recompute, true) /* drops activations; emits their operations again where the backward needs them */          \
    PASS(fuse, false)     /* merges two neighbours if the table of kernels has a fused kind (kernels/op.h) */          \
    PASS(dispatch, false) /* if experts are spread over ranks: rows travel to them and back, in waves */               \
    PASS(words, false)    /* if matrices are cut over ranks: the loss from logits of parts of the words */             \
    PASS(tile, false)     /* sums over many rows are chains of blocks; if asked for: feed-forward parts by rows */     \
    PASS(stripes, false)  /* if asked for: exchanges of rows with the ranks of matrices, in tiles beside products */   \
    PASS(pipeline, false) /* if layers are cut over ranks: a stage's micro-steps in one list, and their messages */    \
    PASS(shard, false)    /* units, their persistent tensors, and sections with gathers, releases and reductions */    \
    PASS(offload, false)  /* if asked for: optimizer states to a lower tier, updated in slices */                      \
    PASS(spill, false)    /* if asked for: activations of the first blocks to a lower tier until their backward */     \
    PASS(carry, false)    /* if asked for: the update into the first micro-step of the next step */                    \
    PASS(groups, false)   /* names the groups and streams of all collectives, and of the host's sums over the batch */ \
    PASS(schedule, false) /* starts gathers ahead of their use, waits for reductions after the next gradients */       \
    PASS(host, false)     /* if asked for: gradients and parameters to a lower tier, between their uses */             \
    PASS(place, false)    /* scratch of kernels, lifetimes, offsets in the arena */                                    \
    PASS(check, false)    /* refuses a program that is wrong */

/* Errors: SH_E_BUG; from pack SH_E_USAGE if a matrix cannot be packed; from place SH_E_MEMORY if the segment of a node
 * is beyond 64 bits. */
typedef sh_rc sh_pass(const struct sh_build *b, struct sh_program *p);
#define SH_PASS_DECLARE(name, training) sh_pass sh_pass_##name;
SH_PASS_LIST(SH_PASS_DECLARE)
#undef SH_PASS_DECLARE

/* check: what must hold in any program. Operands have the shapes and types of their row in kernels/op.c; each read has
 * a write before it; each collective has one wait, and until then nothing touches its result or changes what it sends;
 * each gathered unit has a release; no two living tensors share memory; views lie inside their base. An error names
 * section and operation; check uses nothing of b. */

/* Whether a kind has a backward rule. Kinds that models emit for training, `forward` in the table of operations, must
 * have one. */
bool sh_pass_grad_knows(enum sh_op_kind kind);

/* Which activations are kept for the backward; it recomputes all others when it needs them. Each block has one of these
 * choices, the first that applies:
 *   full       only activations that cross the borders of the block are kept
 *   selective  results of matrix products, attention and residual sums are kept; norms, rotations, activations are
 *              recomputed
 *   none       all are kept
 * {0} is none everywhere; SH_ALL_BLOCKS stands for the number of blocks. */
struct sh_recompute {
    int full, every_k; /* full: blocks before this one, but only every every_k-th of them; 0 and 1: all */
    int selective;     /* blocks before this one */
};
enum { SH_ALL_BLOCKS = INT_MAX };

/* The request in words: "selective", "selective in 9, full in 3 of 12 blocks". */
enum { SH_RECOMPUTE_TEXT = 80 };
const char *sh_recompute_text(const struct sh_recompute *request, int blocks, char text[SH_RECOMPUTE_TEXT]);

/* Whether a block keeps nothing but its borders. */
bool sh_pass_recomputes_all(const struct sh_recompute *request, int block);

/* A sharding strategy, described by what it keeps. The mesh says over how many ranks. */
struct sh_strategy {
    bool params_resident;    /* gathered parameters live from update to update (no_shard, shard_optim) */
    bool keep_after_forward; /* gathered once per micro-step, kept for the backward (ZeRO-2) */
    bool sync_last_only;     /* gradients stay unreduced until the last micro-step */
};

struct sh_pass_options {
    struct sh_strategy strategy;
    struct sh_mesh_shape mesh;
    /* The segment of this rank's node; its ranks are neighbours. A shard group lies within it, so that a gathered unit
     * exists once for all of its ranks, at all times, and a gather moves nothing. segment_ranks == 0: none */
    int segment_ranks, segment_rank;
    int micro_steps;                    /* per training step; the most, if steps differ */
    int fewer[SH_BATCHES_MAX], n_fewer; /* the other numbers of micro-steps that steps have */
    int first_less, last_less;       /* blocks that the first and the last stage have less than others; SH_LESS_AUTO */
    int chunks;                      /* of blocks that a stage has; more than 1: stages are interleaved */
    bool weights_apart;              /* gradients of weights after those of rows, where a stage would wait: ZBH1 */
    bool training;                   /* gradients and optimizer state exist */
    const struct sh_optim *optim;    /* when training */
    char groups[SH_CONFIG_PATH_MAX]; /* optimizer.groups */
    struct sh_mup mup;               /* widths that want the same rates */
    struct sh_ortho ortho;           /* how it makes matrices orthogonal, if it does */
    enum sh_dtype state_dtype;       /* of the optimizer's states: f32, or bf16, rounded stochastically */
    bool gather_coded;               /* parameters are gathered in codes of eight bits */
    double ema_decay;                /* of the mean of the masters over steps, a state; 0: there is none */
    bool states_away;                /* some states live in a lower tier; set by the shard pass */
    bool snapshot;                   /* room for a copy of the state that is saved while training continues */
    bool reproducible; /* the same bits on every mesh of 2^k ranks: gradients are summed in one binary tree over
                                  the global batch. Needs sync_last_only, and 2^k micro-steps, k <= SH_GRAD_LEVELS */
    bool gather;       /* ranks of `context` gather keys and values, instead of exchanging rows for heads (context.c) */
    int row_leaves; /* reproducible: equal parts of each sequence, whose sums of gradients are leaves of that tree, below
                             its micro-step; a multiple of the ranks of `context`. 0 and 1: the whole */
    enum sh_dtype reduce; /* type in which gradients are sent, f32 or bf16; micro-steps are added in f32. Not bf16 if
                             reproducible */
    bool decay_all;       /* weight decay on vectors too (src/config/role.h) */
    int forward_prefetch, backward_prefetch; /* units ahead */
    int resident_units; /* that many first units have a full copy, gathered again after each update */
    bool fetched;       /* units without such a copy are gathered even over one rank: parameters live below the device
                          (src/pass/host.c) */
    int gathers_alive;  /* limit on prefetched units, the one in use included; 0: none. Does not apply to what
                          keep_after_forward holds anyway */
};

/* A number that is equal on all ranks if they run the same collectives in the same order. */
uint64_t sh_pass_hash(const struct sh_program *p);

/* Turn a program into that of another rank of the same job: opt is what it was built with, except for mesh.rank and
 * segment_rank. Only views of a rank's own elements, the runs of weight decay and the place in the segment are set
 * again; what the places in the groups `inner` and `tensor` decide is not, so these must be the same. Costs a
 * thousandth of building the program. */
void sh_pass_rank(const struct sh_pass_options *opt, struct sh_program *p);

/* Where the runs of queries begin of this rank of those that gather keys and values, each of `rows` (context.c). */
void sh_pass_place_runs(const struct sh_mesh_shape *mesh, int64_t rows, struct sh_op_attr *attr);

/* Live bytes per kind of memory at the peak of the whole program, persistent ones included; on the device only. Returns
 * where the peak is. */
struct sh_pass_peak {
    const struct sh_section *section; /* NULL: there is none */
    int op;                           /* of the program */
};
struct sh_pass_peak sh_pass_memory(const struct sh_program *p, int64_t bytes[SH_MEM_KINDS]);

/* The total of live bytes at each operation of a section.
 *   bytes  out  [s->n_ops] */
void sh_pass_in_use(const struct sh_program *p, const struct sh_section *s, int64_t *bytes);

/* Bytes that lie in a lower tier, by kind of memory. */
void sh_pass_pinned(const struct sh_program *p, int tier, int64_t bytes[SH_MEM_KINDS]);

#endif
