/* The mesh as arithmetic: named axes, groups of ranks along them, and a rank's place in each. No MPI; used by the
 * planner for any number of ranks.
 *
 * A rank of the job is the sum of its places on the axes, each times the stride of the axis. Axes are listed fastest
 * first: tensor, context, expert, inner, outer, replicate, pipeline. A group is a set of axes: the ranks that differ
 * only in their places on these axes.
 *
 *   shard      context, expert, inner and outer: neighbouring ranks (on one node if their number is chosen so); if
 *              nothing is sharded, context is among the replicas
 *   tensor     neighbours with different parts of each matrix; they have the same sequences, and share the work on them
 *   context    neighbours with different rows of the same sequences, which exchange heads for rows during attention
 *   expert     neighbours within a shard group that have different experts, and have them all together
 *   inner      neighbours within a shard group, in groups of N, for reshard_after_forward: N
 *   replicate  ranks with the same shard
 *   data       expert, inner, outer and replicate: each rank has different sequences
 *   rows       data, context and tensor: each rank has the loss of different tokens
 *   pipeline   ranks with the same rows and different layers
 *   world      all axes: all ranks
 *
 * Ranks that differ on tensor only have the same sequences and layers, and different parts of each matrix.
 *
 * An axis of size 1 is an ordinary axis, and a group of one rank is an ordinary group. */
#ifndef SH_MESH_SHAPE_H
#define SH_MESH_SHAPE_H

#include "src/base/err.h"
#include "src/config/words.h"

enum { SH_AXES_MAX = 8, SH_GROUPS = 1 << SH_AXES_MAX, SH_GROUP_NAME = 64 };
enum {
    SH_AXIS_TENSOR,
    SH_AXIS_CONTEXT,
    SH_AXIS_EXPERT,
    SH_AXIS_INNER,
    SH_AXIS_OUTER,
    SH_AXIS_REPLICATE,
    SH_AXIS_PIPELINE,
    SH_AXES
};

struct sh_axis {
    char name[16];
    int size, stride; /* ranks along it; distance, in ranks of the job, between neighbours on it */
};

typedef unsigned sh_group; /* bit i: axis i of the shape */

struct sh_mesh_shape {
    int n, rank;                      /* number of axes; this rank of the job */
    struct sh_axis axis[SH_AXES_MAX]; /* fastest first */

    /* Groups by purpose. */
    sh_group shard;     /* units and their gradients are cut over it */
    sh_group tensor;    /* each of its ranks has other parts of each matrix, and the same sequences */
    sh_group context;   /* each of its ranks has other rows of the same sequences */
    sh_group expert;    /* each of its ranks has other experts; part of shard */
    sh_group inner;     /* parameters kept from the forward to the backward are cut over it */
    sh_group replicate; /* its ranks hold the same shards */
    sh_group data;      /* the batch is cut over it: each of its ranks has different sequences */
    sh_group rows;      /* and so are the tokens of a sequence: each of its ranks has the loss of different tokens;
                           ranks of tensor divide them too (src/pass/tensor/) */
    sh_group pipeline;  /* the layers are cut over it: one of its ranks has the loss, the others have zero */
};

/* The mesh that the configuration asks for. */
struct sh_mesh_request {
    int shard;          /* SH_MESH_ALL, SH_MESH_NODE or a number of ranks */
    int replicate;      /* SH_MESH_AUTO or a number */
    int inner;          /* reshard_after_forward: N; 1 when unused */
    int tensor;         /* ranks over which each matrix is cut; 0 and 1: each has whole ones. The numbers above are
                           those of the ranks with one place among them */
    int context;        /* ranks over which a sequence is cut; 0 and 1: each has whole sequences */
    int expert;         /* ranks over which experts are spread; 0 and 1: each has all */
    int pipeline;       /* stages, each with other layers; 0 and 1: one. The numbers above are those of the ranks of one
                           stage */
    int ranks_per_node; /* ranks of the smallest node; used by SH_MESH_NODE */
};

/* Local. Errors: SH_E_USAGE naming the numbers that do not fit and numbers that would. */
sh_rc sh_mesh_shape_make(const struct sh_mesh_request *req, int world, int rank, struct sh_mesh_shape *out);

/* The mesh with these axes, fastest first. Local. */
struct sh_mesh_shape sh_mesh_shape_of(const int size[SH_AXES], int rank);

/* All axes; and the axes that a group lacks, which join the ranks with the same place in it. */
sh_group sh_group_world(const struct sh_mesh_shape *shape);
sh_group sh_group_others(const struct sh_mesh_shape *shape, sh_group group);

/* The group with all axes of size 1: the same ranks. Sums over the same ranks are then sums over the same group, and
 * share a communicator. Local. */
sh_group sh_group_widened(const struct sh_mesh_shape *shape, sh_group group);

/* Whether this rank speaks for its data: of the ranks with the same sequences only one does, so that a sum over all
 * ranks counts each sequence once. Local. */
bool sh_mesh_speaks(const struct sh_mesh_shape *shape);

/* The number of ranks in this rank's group, and its place among them; members are in the order of their ranks if
 * strides grow with the axes. A group of no axes is the rank alone. Local. */
int sh_group_size(const struct sh_mesh_shape *shape, sh_group group);
int sh_group_index(const struct sh_mesh_shape *shape, sh_group group);

/* Rank in the job of the member `index` of this rank's group, 0 <= index < sh_group_size(). Local. */
int sh_group_member(const struct sh_mesh_shape *shape, sh_group group, int index);

/* How many consecutive members of a group always lie on one node, if each node has `ranks_per_node` neighbouring ranks:
 * the largest power of two that divides all runs of members on one node, so that each such block is a branch of the
 * tree that sums over the group (src/comm/sum.h). Local. */
int sh_group_block(const struct sh_mesh_shape *shape, sh_group group, int ranks_per_node);

/* Ranks of the job. */
int sh_mesh_ranks(const struct sh_mesh_shape *shape);

/* "1 rank", "2 x 4 ranks (replicate x shard), experts over 2", "2 stages x 8 tensor x 2 context x 4 data (1 x 8 ranks,
 * replicate x shard)": axes whose product is the job; replicate x shard counts ranks that share a sequence too. Returns text. */
enum { SH_MESH_TEXT = 128 };
const char *sh_mesh_text(const struct sh_mesh_shape *shape, char text[SH_MESH_TEXT]);

/* "shard", "replicate", "world", ...; a group without its own name is called by its axes, "inner+outer". Returns
 * text. */
const char *sh_group_name(const struct sh_mesh_shape *shape, sh_group group, char text[SH_GROUP_NAME]);

#endif
