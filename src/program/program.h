/* The program: one training step of one rank as an array of operations on named tensors.
 *
 * A program is made of sections that run one after the other: the first, middle and last micro-step, the gradient norm,
 * the update. Passes (src/pass) build it; then it is only read: by the executor, the printer, the planner.
 *
 * Order of calls: sh_program_create, model emits (emit.h), passes, read, sh_program_destroy. Everything is local. */
#ifndef SH_PROGRAM_PROGRAM_H
#define SH_PROGRAM_PROGRAM_H

#include "kernels/op.h"
#include "src/base/number/dtype.h"
#include "src/base/err.h"
#include "src/config/role.h"
#include "src/mesh/shape.h"
#include "src/program/port.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* What a tensor's memory is for: the rows of the planner's table. */
enum sh_mem {
    SH_MEM_PARAM,     /* parameters in the compute type, kept between steps: this rank's shard (or all of them) */
    SH_MEM_FROZEN,    /* parameters that are not trained, in the compute type: kept like SH_MEM_PARAM */
    SH_MEM_REMAINDER, /* the low 16 bits of the f32 masters; the high 16 are the bf16 copy */
    SH_MEM_MASTER,    /* f32 master parameters of this rank's shard, next to those in f16 */
    SH_MEM_GRAD,      /* f32 gradients kept between micro-steps: shard or full */
    SH_MEM_OPTIM,     /* states of the optimizer */
    SH_MEM_SNAPSHOT,  /* copy of what is saved, while a checkpoint is written in the background */
    SH_MEM_GATHERED,  /* gathered units */
    SH_MEM_UNPACKED,  /* weights of packed units, unpacked while a product reads them */
    SH_MEM_GRAD_FULL, /* unreduced f32 gradients of units in the backward */
    SH_MEM_ACT,       /* activations */
    SH_MEM_ACT_GRAD,  /* their gradients */
    SH_MEM_WORK,      /* scratch of kernels */
    SH_MEM_DATA,      /* tokens, targets */
    SH_MEM_CONST,     /* tables and scalars */
    SH_MEM_KV,        /* keys and values of the tokens read and generated so far, or the states that they left */
    SH_MEM_FETCHED,   /* slices of optimizer states from a lower tier, while they are on the device */
    SH_MEM_KINDS
};
const char *sh_program_mem_name(enum sh_mem kind);

/* Where a tensor's storage is. The ranks of a node may have a segment: memory that they share. */
enum sh_space {
    SH_SPACE_OWN,   /* this rank's own memory */
    SH_SPACE_PEERS, /* this rank's part of the segment, which the others read and write during collectives */
    SH_SPACE_GROUP, /* in the segment, once per shard group: each rank writes its own chunk only */
    SH_SPACES
};

/* Where tensors live. Row 0 is the device's memory, in which kernels compute and collectives work. A file has no
 * addresses, so its tensors are operands of moves only. */
enum { SH_TIERS_MAX = 4 };
struct sh_tier {
    char name[16]; /* "device", "host", "file" */
    enum { SH_TIER_DEVICE, SH_TIER_HOST, SH_TIER_FILE } kind;
    int64_t bytes; /* of this rank; for the device, its own part of the arena. Set by place */
};

enum { SH_NAME_MAX = 80, SH_NONE = -1 };
enum { SH_GRAD_LEVELS = 10 }; /* levels of the tree over micro-steps: at most 2^10 micro-steps */

struct sh_tensor {
    char name[SH_NAME_MAX];
    enum sh_dtype dtype;
    int ndim;
    int64_t dim[SH_MAX_DIMS];
    enum sh_mem mem;
    int tier;            /* row of `tiers`; valid for the root. Except on the device, for persistent tensors only */
    enum sh_space space; /* valid for the root; views have no storage. GROUP: persistent tensors only */
    bool persistent;     /* lives across sections; else from its first write to its last use in a section */
    int base;            /* the tensor whose storage this one is a view of; SH_NONE: it has its own */
    int64_t base_elems;  /* where the view starts, in elements of its own dtype */
    int param;           /* the parameter that this is, or the first of the neighbours that it spans; else SH_NONE */
    int grad_of;         /* the same for a gradient of parameters; else SH_NONE */
    int leaf; /* of a gradient: the sum that it belongs to, from 0 to the leaves, or row leaves, of its unit */
    int64_t offset_bytes; /* in the arena; set by place; for a view, where the view itself starts */
};

/* Operations of one stream run one after the other, alongside those of other streams. Every program's table starts with
 * these rows, and a pass may add its own. */
struct sh_stream {
    char name[16]; /* "compute", "gather" */
    enum { SH_RUNS_KERNELS, SH_RUNS_COLLECTIVES, SH_RUNS_MOVES } runs;
};
enum { SH_STREAM_COMPUTE, SH_STREAM_GATHER, SH_STREAM_REDUCE, SH_STREAM_REPLICATE, SH_STREAMS, SH_STREAMS_MAX = 16 };
extern const struct sh_stream sh_streams[SH_STREAMS];

/* A group of ranks over which collectives run, and the streams that carry them. */
struct sh_group_use {
    char name[SH_GROUP_NAME]; /* "shard", "world" */
    sh_group axes;
    unsigned streams; /* bit s: stream s */
};

enum sh_phase { SH_PHASE_INIT, SH_PHASE_FORWARD, SH_PHASE_RECOMPUTE, SH_PHASE_BACKWARD, SH_PHASE_UPDATE };
const char *sh_phase_name(enum sh_phase p);

/* clang-format off */
struct sh_op {
    enum sh_op_kind kind;
    struct sh_op_attr attr;
    int in[SH_OP_MAX_IN];   /* tensor index or SH_NONE */
    int out[SH_OP_MAX_OUT];
    int work;               /* scratch tensor or SH_NONE */
    int stream;
    enum sh_phase phase;
    int block;              /* transformer block the operation belongs to; SH_NONE: outside of all */
    int unit;               /* collectives, release, adamw: the unit; else SH_NONE */
    int tiles;              /* in tiles of rows: the number of the run that it belongs to, from 1 on; else 0 */
    int micro;              /* in a section of several micro-steps: the one that it belongs to */
};

/* Initial value of a tensor. Random values come from (seed, name, element index): the same on every mesh. */
enum sh_init { SH_INIT_ZERO, SH_INIT_ONE, SH_INIT_NORMAL, SH_INIT_UNIFORM };

/* A tensor as files and seeds know it, whoever holds what of it. All ranks list all of the model, in one order. */
struct sh_saved {
    char name[SH_NAME_MAX];  /* Hugging Face name: "model.layers.0.self_attn.q_proj.weight" */
    enum sh_param_role role; /* what it is for; also whether weight decay applies */
    int ndim;
    int64_t dim[SH_MAX_DIMS];
    int64_t elems;
    enum sh_init init;
    float init_std;          /* for UNIFORM, the bound */
    bool trainable;          /* if false, it is not saved */
    int group;               /* row of the numbers of groups, from 1 on; 0: none */
};

/* What a rank holds of a saved tensor: all of it, or bands of one of its dimensions, row-major, with the bands end to
 * end. So the part of a rank of queries, keys and values that are fused, or of experts, is one matrix (saved.h). */
enum { SH_BANDS_MAX = 3 };
struct sh_band {
    int64_t first, n;
};
struct sh_param {
    int saved;               /* row of the saved tensors */
    int cut, n_bands;        /* the dimension with bands; without bands all is held */
    struct sh_band band[SH_BANDS_MAX]; /* in order */
    int ndim;
    int64_t dim[SH_MAX_DIMS]; /* of what is held */
    int64_t elems;
    bool trainable;          /* the same for its whole unit; if false, no gradient, no state, not saved */
    int unit;
    int64_t unit_elems;      /* where it starts in its unit */
};

/* A state that the optimizer keeps for each parameter and that is saved with it, by this name. */
#define SH_STATE_EMA "ema"
enum { SH_KEPT_MAX = SH_STATES_MAX + 1 }; /* states of a program: those of the optimizer, and the mean of the parameters */
struct sh_state {
    char name[SH_NAME_MAX]; /* from the optimizer's row, or SH_STATE_EMA */
    enum sh_dtype dtype;
};

/* Parameters gathered together. The shard pass fills in the indices of persistent tensors. */
struct sh_unit {
    char name[SH_NAME_MAX];  /* "embed", "layers.3", "head" */
    int first_param, n_params; /* neighbours in params */
    bool trainable;          /* else frozen: it has only `compute` and maybe `full` */
    int beside;              /* the unit between whose uses this one is used (for adapters, their block's); SH_NONE:
                                none. Both stay gathered through the uses of both */
    bool balances;           /* biases of a router: f32 whatever the compute type, and whole on each rank. ROUTE_BIAS moves
                                them by loads instead of gradients; they are saved like what is trained, with states of
                                the optimizer that stay 0 */
    int moments;             /* the unit with a mean of squares for each row of its matrices; SH_NONE: none */
    bool of_rows;            /* is such a unit: f32, one parameter for each matrix that the optimizer has whole, moved by
                                ORTHO_ROWS. It is a state of the optimizer, not a part of the model; saved, without states */
    int first_cut;           /* of such a unit: rank i of `shard` owns what lies between numbers i and i + 1 of the program's
                                cuts from here on, as it owns the matrices; SH_NONE: the ranks own equal chunks */
    bool packed;             /* frozen weights in four bits an element: `compute`, `full` and gathered copies are blocks
                                [elems/64,36] u8 (src/base/number/nf4.h); a weight is unpacked before each use */
    bool coded;              /* what is gathered is in codes of eight bits (src/base/number/code8.h), from `codes`: `full` and
                                gathered copies are blocks [elems/64,68] u8; a weight is decoded before each use */
    bool resident;           /* gathered once, and again after each update, whatever the strategy */
    sh_group shard;          /* cut over these ranks, in equal chunks; shard, replicate and split together are the same
                                ranks for each unit */
    sh_group replicate;      /* the ranks that hold the same chunk */
    sh_group split;          /* the ranks whose units of this name have other elements: their experts */
    int leaves;              /* sums of gradients that are kept apart until the unit is reduced, one for each rank from
                                which rows come: leaves of the tree (shard_grad.c); else 1 */
    int row_leaves;          /* sums of gradients of a micro-step's parts of rows, which become one at its end; else 1 */
    int64_t elems;           /* without padding */
    int64_t room;            /* elements by which it is cut, the most that a rank of split has; 0: elems */
    int64_t chunk;           /* elements of one rank's shard with padding */
    int64_t others;          /* elements of the unit before which all parameters lie that have all states; the others, from
                                there on, lack those that state[k] is short of. Else `elems` */
    int64_t held;            /* elements of the chunk, from the first on, whose remainder and states are on the device;
                                the others have slices. `remainder` and `state` are [held], and SH_NONE if that is 0;
                                `master` is complete */
    int first_slice, n_slices; /* rows of the program's table, in order from element `held` on */
    int compute;             /* [chunk] act: the source of gathers, unless coded; in f32 the masters, in bf16 their high
                                halves, in f16 the masters rounded */
    int codes;               /* [chunk/64,68] u8: `compute` in codes, the source of gathers; SH_NONE: not coded */
    int remainder;           /* [held] i16: the low halves (src/base/number/floats.h); SH_NONE in f32 and f16, and for frozen
                                units */
    int master;              /* [chunk] f32, from which `compute` is cast; f16 only, else SH_NONE */
    int state[SH_KEPT_MAX];  /* [held] the program's states, or as many as a rank can have before `others`; SH_NONE: the
                                 unit is not trained */
    int64_t wide;            /* if states are in codes: elements of the unit, from the first on, whose states are f32, in whole
                                blocks; vectors come first. Else 0 */
    int wide_state[SH_KEPT_MAX]; /* [the most of them that a rank has] f32, on the device; SH_NONE: none. `state` is
                                      [held/64,68] u8 then */
    int full;                /* persistent full copy [size*chunk] act, packed or coded, or SH_NONE */
    int snapshot;            /* this replica's part of the masters (if split, one half after the other) and of each
                                state, counted in f32 elements; or SH_NONE */
    int grad_shard;          /* [chunk] f32 */
    int grad_full;           /* persistent unreduced gradients [leaves*size*chunk] f32, or SH_NONE */
    int grad_level[SH_GRAD_LEVELS]; /* the same for later micro-steps, whose sum with earlier ones waits for its place
                                       in the tree (shard_grad.c); SH_NONE: no such level */
};

/* A stretch of a unit's chunk whose remainder and optimizer states live in another tier: one extent there, which is
 * fetched and put back as a whole, or the remainder or the first state of it alone. */
enum { SH_SLICE_MULTIPLE = 2048, SH_FILE_PAGE = 4096 }; /* elements; so each array of a slice fills whole pages of a
                                                           file */
struct sh_slice {
    int unit;
    int64_t first, n;         /* elements of the chunk */
    int64_t room;             /* n rounded up to a multiple of SH_SLICE_MULTIPLE; elements beyond n are zero and stay
                                 zero */
    int home;                 /* [bytes] u8, persistent: the remainder [room] i16 if there is one, then each state
                                 [room] */
    int copy;                 /* the slice on the device, while it is there */
    int remainder;            /* [n] i16, a view of the copy; SH_NONE in f32 and f16 */
    int state[SH_KEPT_MAX];   /* [n], or [n/64,68], views of the copy */
};

enum sh_section_kind {
    SH_SECTION_INIT,   /* once: constant tables, the first gather of full copies */
    SH_SECTION_FIRST,  /* first micro-step; if it is also the last, SH_SECTION_ONLY replaces both */
    SH_SECTION_MIDDLE,
    SH_SECTION_LAST,
    SH_SECTION_ONLY,
    SH_SECTION_LOSS,   /* sums the loss over all ranks */
    SH_SECTION_NORM,   /* squared gradient norm of all owned elements */
    SH_SECTION_UPDATE,
    SH_SECTION_EVAL,   /* forward only: loss */
    SH_SECTION_LOGITS, /* forward only: logits of one position, without a cache */
    SH_SECTION_PREFILL, /* forward only, into the cache of keys and values: the next tokens of each sequence, and the
                           logits after the last of them */
    SH_SECTION_DECODE, /* the same with one token per sequence */
    SH_SECTION_SCORE,  /* forward only: log-probability of each target, and the likeliest word */
    SH_SECTION_KINDS
};
const char *sh_section_name(enum sh_section_kind k);

struct sh_section {
    enum sh_section_kind kind;
    int first_op, n_ops;
    int repeat;            /* how often a training step runs it; 0: not part of a training step, or only of one with fewer
                              micro-steps */
    int micro_step;        /* the first micro-step that runs it; with tree_sums the others that run it are not
                              consecutive */
    int64_t peak_bytes;    /* transient bytes; set by place */
};

struct sh_program {
    struct sh_tensor *tensors; int n_tensors, cap_tensors;
    struct sh_op *ops; int n_ops, cap_ops;
    struct sh_saved *saved; int n_saved, cap_saved;
    struct sh_param *params; int n_params, cap_params;
    struct sh_unit *units; int n_units, cap_units;
    struct sh_slice *slices; int n_slices, cap_slices; /* in the order of the units */
    struct sh_section *sections; int n_sections, cap_sections;
    struct sh_decay_run *runs; int n_runs, cap_runs;
    double *divisors; int n_divisors, cap_divisors; /* of rotary frequencies */
    struct sh_group_numbers *numbers; int n_numbers, cap_numbers; /* of groups of parameters */
    struct sh_matrix *matrices; int n_matrices, cap_matrices; /* that ORTHO makes orthogonal; places are those of units */
    int64_t *cuts; int n_cuts, cap_cuts; /* of exchanges between equal chunks and other parts (kernels/op.h) */
    struct sh_group_use *groups; int n_groups, cap_groups; /* all that the program needs, in the order of first use */
    struct sh_state state[SH_KEPT_MAX]; int n_states; /* none if nothing is trained */
    int n_optim_states;    /* the first of them, which the optimizer's operations have; the one after them, f32, is the mean
                              of the parameters (SH_OP_EMA) */
    char row_state[SH_NAME_MAX]; /* the name of the state that units `of_rows` are; "": there are none */
    enum sh_dtype act;     /* compute type */
    bool tree_sums;        /* micro-steps are summed in a binary tree; each writes its own loss */
    int unrolled;          /* micro-steps of a training step that are one section, ONLY: the host fills the inputs of all,
                              one after the other, before it runs. 1: each is a section of its own */

    int port[SH_PORTS];    /* tensors that the host fills or reads; SH_NONE if the program has no such tensor */

    struct sh_tier tiers[SH_TIERS_MAX]; int n_tiers;
    struct sh_stream streams[SH_STREAMS_MAX]; int n_streams;

    /* Set by place. The arena of the device is one range of addresses: this rank's own_bytes, then the segment of its
     * node, in which the groups' tensors come first and then each rank's part. */
    int64_t persistent_bytes; /* at the front of the own part */
    int64_t own_bytes;
    struct sh_segment {
        int ranks, rank;      /* ranks of the node that share it, and this rank's place among them; ranks == 0: no
                                 segment */
        int group_ranks;      /* ranks of a shard group */
        int64_t group_bytes, peer_bytes; /* per group, per rank; whole pages */
    } segment;
    int64_t arena_bytes;      /* memory that this rank takes: its own part, its part of the segment, its share of its
                                 group's */
};

/* Dimensions where an array is expected. */
#define DIMS(...) (const int64_t[]){__VA_ARGS__}
/* clang-format on */

/* Where a part of the segment begins, counted from the start of the segment; and the length of the segment. */
int64_t sh_program_segment_group_at(const struct sh_segment *w, int rank);
int64_t sh_program_segment_peer_at(const struct sh_segment *w, int rank);
int64_t sh_program_segment_bytes(const struct sh_segment *w);

struct sh_program *sh_program_create(enum sh_dtype act);
void sh_program_destroy(struct sh_program *p);

/* Add a tier or a stream; return its row. */
int sh_program_add_tier(struct sh_program *p, const char *name, int kind);
int sh_program_add_stream(struct sh_program *p, const char *name, int runs);

/* Append; returns the index. Storage of earlier rows may move: keep indices, not pointers. */
int sh_program_add_tensor(struct sh_program *p, const struct sh_tensor *t);
int sh_program_add_op(struct sh_program *p, const struct sh_op *op);

/* A list with room for n + 1 tensors, operations or the like, all SH_NONE; freed with free(). */
int *sh_program_nones(int n);
int sh_program_add_saved(struct sh_program *p, const struct sh_saved *saved);
int sh_program_add_param(struct sh_program *p, const struct sh_param *param);
int sh_program_add_run(struct sh_program *p, struct sh_decay_run run);
int sh_program_add_divisor(struct sh_program *p, double divisor);
int sh_program_add_numbers(struct sh_program *p, struct sh_group_numbers numbers);
int sh_program_add_matrix(struct sh_program *p, struct sh_matrix matrix);
int sh_program_add_cut(struct sh_program *p, int64_t elems);
int sh_program_add_unit(struct sh_program *p, const char *name); /* trainable */
int sh_program_add_slice(struct sh_program *p, const struct sh_slice *slice);

/* Make the tensor of a port; letters stand for what they do in its row; V also for R. */
int sh_program_add_port(struct sh_program *p, enum sh_port port, int64_t B, int64_t T, int64_t V);

/* Whether gradients train it. */
/* Bytes of n elements of state k, in the type in which most elements are kept. */
static inline int64_t sh_program_state_bytes(const struct sh_program *p, int k, int64_t n)
{
    return p->state[k].dtype == SH_U8 ? sh_code8_bytes(n) : n * sh_dtype_bytes(p->state[k].dtype);
}

static inline bool sh_program_descends(const struct sh_unit *u)
{
    return u->trainable && !u->balances && !u->of_rows;
}

/* The chunk that a rank sends when the unit is gathered. */
static inline int sh_program_sent(const struct sh_unit *u)
{
    return u->coded ? u->codes : u->compute;
}

/* Move the parameters with moves[i], of [params], to a unit. All keep their order; so those that lay side by side still
 * do if all of them move or stay. */
void sh_program_move_params(struct sh_program *p, const bool *moves, int unit);

/* Mark a unit, its parameters and what they hold parts of as not trained. */
void sh_program_freeze(struct sh_program *p, int unit);
int sh_program_add_section(struct sh_program *p, enum sh_section_kind kind, int repeat);

/* Replace the operations of a section by copies of these. */
void sh_program_set_ops(struct sh_program *p, int section, const struct sh_op *ops, int n);

/* Append a plain operation to the newest section. */
void sh_program_append(struct sh_program *p, struct sh_op op);

/* Append a collective and the wait for it, one after the other, to the newest section of p; returns the collective's
 * index in the section. */
int sh_program_append_waited(struct sh_program *p, struct sh_op op);

/* The same for a collective of unit `unit` over a group. `in` or `out`: SH_NONE if the kind has none. `after`: index of
 * a collective that must come before it. */
int sh_program_append_collective(struct sh_program *p, enum sh_op_kind kind, int stream, sh_group group, int unit,
                                 int in, int out, int after, enum sh_phase phase);

/* Let the program run collectives over a group on a stream; no effect if it already does. */
void sh_program_use_group(struct sh_program *p, const struct sh_mesh_shape *mesh, sh_group group, int stream);

/* The row of a group; SH_NONE: it is not used. */
int sh_program_find_group(const struct sh_group_use *groups, int n, sh_group group);

/* An operation whose operands, block and unit are all SH_NONE; a tensor of the given shape, transient, base SH_NONE. */
struct sh_op sh_program_op(enum sh_op_kind kind);
struct sh_tensor sh_tensor_make(enum sh_mem mem, enum sh_dtype dtype, int ndim, const int64_t *dim, const char *fmt,
                                ...) __attribute__((format(printf, 5, 6)));

/* The row of the file tier; the row of the host's memory next to a GPU's. SH_NONE: the program has none. */
int sh_program_file_tier(const struct sh_program *p);
int sh_program_host_tier(const struct sh_program *p);

/* Whether the program moves anything between tiers. */
bool sh_program_moves(const struct sh_program *p);

/* Bytes that a training step moves between tiers: by FETCH and by EVICT. */
void sh_program_moved(const struct sh_program *p, int64_t *in_bytes, int64_t *out_bytes);

int64_t sh_tensor_elems(const struct sh_tensor *t);
int64_t sh_tensor_bytes(const struct sh_tensor *t);
/* Whether it is a message between neighbours, which has one side only. */
static inline bool sh_program_is_message(const struct sh_op *op)
{
    return op->kind == SH_OP_SEND || op->kind == SH_OP_RECEIVE;
}

/* Stages are a ring: border i is between stage i and the next one. *back: gradients, from there to stage i. */
static inline int sh_program_border(const struct sh_op *op, int stage, int stages, bool *back)
{
    *back = op->phase != SH_PHASE_FORWARD;
    return (op->kind == SH_OP_SEND) != *back ? stage : (stage + stages - 1) % stages;
}

/* The operand of a collective that has as many elements as it makes, or, of a SEND, as it gives. */
static inline int sh_program_result(const struct sh_op *op)
{
    return op->kind == SH_OP_SEND ? op->in[0] : op->out[0];
}
/* Whether it is an ALL_TO_ALL of counted rows: an operation before it says how many each rank has for each. */
bool sh_program_counts_rows(const struct sh_op *op);
/* How many exchanges an ALL_TO_ALL is: one for each sequence, if it says so. 1 for others. */
int sh_program_exchanges(const struct sh_op *op);
/* The cuts of an ALL_TO_ALL between equal chunks and other parts, one more than ranks; NULL: it is another. */
const int64_t *sh_program_cuts(const struct sh_program *p, const struct sh_op *op);
/* Elements of one rank's part of a collective over `ranks` ranks: what it gives to a gather, or to each other rank, or
 * gets from a scatter. Of counted rows: the most that one rank can have for another. */
int64_t sh_program_part_elems(const struct sh_program *p, const struct sh_op *op, int ranks);
/* The tensor that owns the storage, following views. */
int sh_tensor_root(const struct sh_program *p, int tensor);

const struct sh_section *sh_program_section(const struct sh_program *p, enum sh_section_kind kind); /* NULL: none */
int sh_program_find_section(const struct sh_program *p, enum sh_section_kind kind); /* its row; SH_NONE: none */

/* Whether a training step's update is carried into the first micro-step of the next one (src/pass/carry.c), and whether
 * an operation of a section is part of such an update: it then runs only if an update is pending. */
bool sh_program_carries(const struct sh_program *p);
bool sh_program_carried(const struct sh_section *s, const struct sh_op *op);

bool sh_program_is_micro_step(const struct sh_section *s); /* of a training step */

/* The section that micro-step m of a training step runs; SH_NONE: there is none. With tree_sums it is the section with
 * the same place in the tree: as many one bits in the binary form of m, and as many of them at its end. */
int sh_program_micro_step(const struct sh_program *p, int m);
/* The same in a step of n sections of micro-steps, if steps differ (training.batch_schedule). */
int sh_program_micro_step_of(const struct sh_program *p, int m, int n);

/* The base address of each tier; NULL for a file. Spaces have no bases: they lie in the device's one arena. */
struct sh_bases {
    char *tier[SH_TIERS_MAX];
};

/* Fill in shapes, types and attributes of a call. A data pointer is the tier's base + offset_bytes, or NULL if b is
 * NULL or the tensor lives in a file. */
void sh_program_call(const struct sh_program *p, const struct sh_op *op, const struct sh_bases *b,
                     struct sh_op_call *call);

/* The name of an operation in stall reports and traces: "backward layers.3 linear_bwd_x"; for a move also what it
 * moves: "update layers.3 fetch optimizer states". */
enum { SH_OP_LABEL = 64 };
void sh_program_label(const struct sh_program *p, const struct sh_op *op, char label[SH_OP_LABEL]);

/* One line per operation: index, stream, phase, kind, outputs with shapes <- inputs, the axis of a collective,
 * attributes. */
void sh_program_print(const struct sh_program *p, FILE *out);

#endif
