/* The mesh as arithmetic: named axes and a rank's coordinates. No MPI; used by the planner for any number of ranks.
 *
 * World rank = replicate index * shard size + shard index: the shard axis is the fastest, so a shard group is made of
 * neighbouring ranks (of one node when its size says so). `inner` is a part of the shard axis: neighbours in groups of
 * N, for reshard_after_forward: N. `world` is both axes together. An axis of size 1 is an ordinary axis. */
#ifndef SH_MESH_SHAPE_H
#define SH_MESH_SHAPE_H

#include "src/base/err.h"
#include "src/config/words.h"

enum sh_axis { SH_AXIS_SHARD, SH_AXIS_REPLICATE, SH_AXIS_INNER, SH_AXIS_WORLD, SH_AXES };

struct sh_mesh_shape {
    int size[SH_AXES];  /* ranks along each axis; size[WORLD] = size[SHARD] * size[REPLICATE] */
    int index[SH_AXES]; /* this rank's place along each axis */
};

/* What the configuration says of the mesh. */
struct sh_mesh_request {
    int shard;          /* SH_MESH_ALL, SH_MESH_NODE or a number of ranks */
    int replicate;      /* SH_MESH_AUTO or a number */
    int inner;          /* reshard_after_forward: N; 1 when unused */
    int ranks_per_node; /* ranks of the smallest node; used by SH_MESH_NODE */
};

/* Local. Errors: SH_E_USAGE naming the numbers that do not fit and what would. */
sh_rc sh_mesh_shape_make(const struct sh_mesh_request *req, int world, int rank, struct sh_mesh_shape *out);

/* World rank of the member `index` of this rank's group along an axis, 0 <= index < size[axis]. Local. */
int sh_mesh_axis_member(const struct sh_mesh_shape *shape, enum sh_axis axis, int index);

/* "shard", "replicate", ... */
const char *sh_axis_name(enum sh_axis axis);

#endif
