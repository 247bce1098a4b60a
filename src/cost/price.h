/* What operations and collectives cost on a machine: formula x correction. The formulas are floors with the shares that a
 * machine reaches of its peaks; the correction is that of measured points nearby. Local, pure. */
#ifndef SH_COST_PRICE_H
#define SH_COST_PRICE_H

#include "src/cost/machine.h"
#include "src/mesh/shape.h"
#include "src/program/program.h"

/* What the time of a step is split by. */
enum sh_cost_class {
    SH_COST_PRODUCTS, /* matrix products, those of the head included */
    SH_COST_ATTENTION,
    SH_COST_OTHER, /* bound by memory */
    SH_COST_ALL_GATHER,
    SH_COST_REDUCE_SCATTER,
    SH_COST_ALL_REDUCE,
    SH_COST_MOVES, /* between memory and a file */
    SH_COST_CLASSES
};
const char *sh_cost_class_name(enum sh_cost_class c);
enum sh_cost_class sh_cost_class_of(enum sh_op_kind kind);

/* How many times as fast a part is as on the machine itself; what a faster part would bring. SH_COST_AS_IS: all 1. */
struct sh_cost_faster {
    double products, attention, memory, latency, network, slowdown, host, spread;
};
extern const struct sh_cost_faster sh_cost_as_is;

/* One operation, or one collective. Of a collective `seconds` is the sum of latency and transfer, when it is alone. */
struct sh_price {
    double seconds;
    double flops, bytes;
    double latency, transfer; /* of collectives and moves, in seconds */
    int link;                 /* of collectives and moves: who else uses it; an enum sh_cost_link */
};
/* HOST_IN and HOST_OUT: between a device and its host, which carries both ways at once. */
enum sh_cost_link {
    SH_LINK_INSIDE,
    SH_LINK_NETWORK,
    SH_LINK_MEMORY,
    SH_LINK_FILE,
    SH_LINK_HOST_IN,
    SH_LINK_HOST_OUT,
    SH_LINKS
};

/* An operation of the compute stream, from its row's formula and the shapes of its operands: the one place for operations
 * and bytes of a call, of which sh_op_cost() has the counts.
 *   act  compute type of the program */
struct sh_price sh_price_op(const struct sh_machine *m, const struct sh_cost_faster *f, const struct sh_op_call *call,
                            enum sh_dtype act);

/* "bfloat16", "float16" or "float32": of points. */
const char *sh_price_type(enum sh_dtype act);

/* The dimensions by which points of a kind are near each other. Products: rows, inputs, outputs; the head: rows, inputs,
 * vocabulary; attention: sequences, tokens, heads, key-value heads, elements; others: bytes. Returns how many. */
int sh_price_dims(const struct sh_op_call *call, double dims[SH_POINT_DIMS]);

/* Where the ranks of a collective are. */
struct sh_coll_place {
    int ranks, nodes; /* of the group; nodes that it spans */
    int rings;        /* of groups like it that share a node's network */
    bool segment;     /* they see each other's memory (src/pass/pass.h segment_ranks) */
    bool levels;      /* many of them say what goes between nodes for their neighbours too (src/comm/algo_levels.c) */
    bool half;        /* bfloat16, whose sums travel in float32 then */
};
/* In a mesh whose neighbouring ranks fill nodes of ranks_per_node. */
struct sh_coll_place sh_coll_place(const struct sh_mesh_shape *mesh, sh_group group, int ranks_per_node);

/* kind: one of the three collectives; bytes: of the whole. */
struct sh_price sh_price_coll(const struct sh_machine *m, const struct sh_cost_faster *f, enum sh_op_kind kind,
                              const struct sh_coll_place *at, double bytes);

/* FETCH or EVICT of so many bytes, by one of `sharing` ranks that use the disk at once. */
struct sh_price sh_price_move(const struct sh_machine *m, enum sh_op_kind kind, int sharing, double bytes);

/* The same between a device with memory of its own and its host. */
struct sh_price sh_price_host_move(const struct sh_machine *m, enum sh_op_kind kind, double bytes);

/* What a rank receives of a collective over `ranks` ranks: (n-1)/n of the whole, twice that of an all_reduce. */
double sh_coll_received(enum sh_op_kind kind, int ranks, double whole_bytes);
/* Bytes of the whole of a collective of a program. */
double sh_coll_whole(const struct sh_program *p, const struct sh_op *op);

#endif
