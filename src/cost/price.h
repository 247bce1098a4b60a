/* What operations and collectives cost on a machine: formula x correction. The formulas are lower bounds, scaled by the
 * share of its peaks that a machine reaches; the correction comes from nearby measured points. Local, pure. */
#ifndef SH_COST_PRICE_H
#define SH_COST_PRICE_H

#include "src/cost/machine.h"
#include "src/mesh/shape.h"
#include "src/program/program.h"

/* Classes into which the time of a step is split. */
enum sh_cost_class {
    SH_COST_PRODUCTS, /* matrix products, including those of the head and of orthogonal matrices */
    SH_COST_ATTENTION,
    SH_COST_OTHER, /* memory-bound operations */
    SH_COST_ALL_GATHER,
    SH_COST_REDUCE_SCATTER,
    SH_COST_ALL_REDUCE,
    SH_COST_ALL_TO_ALL,
    SH_COST_MESSAGES, /* between stages */
    SH_COST_MOVES,    /* between memory and a file */
    SH_COST_CLASSES
};
const char *sh_cost_class_name(enum sh_cost_class c);
enum sh_cost_class sh_cost_class_of(enum sh_op_kind kind);

/* How many times as fast each part is as on the machine itself, to ask what a faster part would gain. sh_cost_as_is:
 * all 1. */
struct sh_cost_faster {
    double products, attention, memory, latency, network, slowdown, host, spread;
};
extern const struct sh_cost_faster sh_cost_as_is;

/* The price of one operation or one collective. For a collective, `seconds` is the sum of latency and transfer, when it
 * runs alone. */
struct sh_price {
    double seconds;
    double flops, bytes;
    double latency, transfer; /* of collectives and moves, in seconds */
    int link;                 /* of collectives and moves: the link that they share; an enum sh_cost_link */
};
/* HOST_IN and HOST_OUT: between a device and its host; that link carries both directions at once. */
enum sh_cost_link {
    SH_LINK_INSIDE,
    SH_LINK_NETWORK,
    SH_LINK_MEMORY,
    SH_LINK_FILE,
    SH_LINK_HOST_IN,
    SH_LINK_HOST_OUT,
    SH_LINKS
};

/* The price of an operation of the compute stream, from the formula of its row and the shapes of its operands. Only
 * sh_op_cost() counts the operations and bytes of a call.
 *   act  compute type of the program */
struct sh_price sh_price_op(const struct sh_machine *m, const struct sh_cost_faster *f, const struct sh_op_call *call,
                            enum sh_dtype act);

/* The type of the products of a call of a program that computes in act, which is that of its points in machine files: ORTHO has
 * its own. */
enum sh_dtype sh_price_act(const struct sh_op_call *call, enum sh_dtype act);

/* "bfloat16", "float16" or "float32", as in points. */
const char *sh_price_type(enum sh_dtype act);

/* The dimensions in which the distance between points of a kind is measured. Products: rows, inputs, outputs; the head:
 * rows, inputs, vocabulary; attention: sequences, tokens, heads, key-value heads, elements; others: bytes. Returns
 * their number. */
int sh_price_dims(const struct sh_op_call *call, double dims[SH_POINT_DIMS]);

/* Where the ranks of a collective are located. */
struct sh_coll_place {
    int ranks, nodes; /* ranks of the group; nodes that it spans */
    int rings;        /* number of such groups that share the network of a node */
    bool segment;     /* the ranks share memory (src/pass/pass.h segment_ranks) */
    bool levels; /* if many, some ranks communicate between nodes for neighbours too (src/comm/mpi/algo_levels.c) */
    bool half;   /* bfloat16; with levels, its sums travel in float32 */
    bool others; /* rows of a rank for itself are not copied */
};
/* For a mesh whose neighbouring ranks fill nodes of ranks_per_node. */
struct sh_coll_place sh_coll_place(const struct sh_mesh_shape *mesh, sh_group group, int ranks_per_node);
/* The same for the run of `n` neighbours in the group that has this rank. */
struct sh_coll_place sh_coll_place_of_run(const struct sh_mesh_shape *mesh, sh_group group, int n, int ranks_per_node);
/* For a message between the rank of the mesh and that rank of the stage `peer` places on. All ranks of a stage send at
 * once. */
struct sh_coll_place sh_message_place(const struct sh_mesh_shape *mesh, int peer, int ranks_per_node);

/* The price of a collective. kind: one of the four collectives, or a message; bytes: of the whole. */
struct sh_price sh_price_coll(const struct sh_machine *m, const struct sh_cost_faster *f, enum sh_op_kind kind,
                              const struct sh_coll_place *at, double bytes);

/* The price of a FETCH or EVICT of `bytes` bytes, by one of `sharing` ranks that use the disk at once. */
struct sh_price sh_price_move(const struct sh_machine *m, enum sh_op_kind kind, int sharing, double bytes);

/* The same between a device with separate memory and its host. */
struct sh_price sh_price_host_move(const struct sh_machine *m, enum sh_op_kind kind, double bytes);

/* The bytes that a rank receives in a collective over `ranks` ranks: (n-1)/n of the whole, twice that for an
 * all_reduce. */
double sh_coll_received(enum sh_op_kind kind, int ranks, double whole_bytes);
/* The bytes of the whole of a collective in a program, which its price is of: of counted rows, those that a rank is expected to
 * send; of unequal parts, as if all ranks had as many as the busiest. */
double sh_coll_whole(const struct sh_program *p, const struct sh_op *op);
/* The bytes that the rank of the mesh receives in a collective of its program: of unequal parts, its own. */
double sh_coll_received_by(const struct sh_program *p, const struct sh_mesh_shape *mesh, const struct sh_op *op);

#endif
