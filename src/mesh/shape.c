#include "src/mesh/shape.h"

static const char *const axis_names[SH_AXES] = {
    [SH_AXIS_SHARD] = "shard",
    [SH_AXIS_REPLICATE] = "replicate",
    [SH_AXIS_INNER] = "inner",
    [SH_AXIS_WORLD] = "world",
};

const char *sh_axis_name(enum sh_axis axis)
{
    return (unsigned)axis < SH_AXES ? axis_names[axis] : "unknown";
}

/* The largest shard size that divides the job and is not above the one wished for: always a mesh that works. */
static int nearest_divisor(int world, int wish)
{
    int d = wish < world ? wish : world;
    while (d > 1 && world % d != 0)
        d--;
    return d > 1 ? d : 1;
}

static sh_rc does_not_divide(const char *key, int value, int world)
{
    int fits = nearest_divisor(world, value);
    return sh_fail(SH_E_USAGE,
                   "mesh: %s=%d does not divide the job's %d ranks; choose %s=%d (or start a multiple of %d ranks)",
                   key, value, world, key, fits, value);
}

static sh_rc check_numbers(const struct sh_mesh_request *req, int world, int rank)
{
    SH_REQUIRE(world >= 1 && rank >= 0 && rank < world);
    if (req->shard < 1 && req->shard != SH_MESH_ALL && req->shard != SH_MESH_NODE)
        return sh_fail(SH_E_USAGE, "mesh: mesh.shard=%d; choose all, node or a number of ranks >= 1", req->shard);
    if (req->replicate < 1 && req->replicate != SH_MESH_AUTO)
        return sh_fail(SH_E_USAGE, "mesh: mesh.replicate=%d; choose auto or a number >= 1", req->replicate);
    if (req->inner < 1)
        return sh_fail(SH_E_USAGE, "mesh: reshard_after_forward over %d ranks; choose a number >= 1", req->inner);
    if (req->shard == SH_MESH_NODE && req->ranks_per_node < 1)
        return sh_fail(SH_E_USAGE,
                       "mesh: mesh.shard=node, but the ranks of a node are not known; set mesh.ranks_per_node");
    return SH_OK;
}

/* `all` means: all ranks that replication leaves. */
static sh_rc choose_shard(const struct sh_mesh_request *req, int world, int *shard)
{
    if (req->shard == SH_MESH_ALL) {
        int replicate = req->replicate == SH_MESH_AUTO ? 1 : req->replicate;
        if (world % replicate != 0)
            return does_not_divide("mesh.replicate", replicate, world);
        *shard = world / replicate;
        return SH_OK;
    }
    *shard = req->shard == SH_MESH_NODE ? req->ranks_per_node : req->shard;
    if (world % *shard == 0)
        return SH_OK;
    if (req->shard == SH_MESH_NODE)
        return sh_fail(SH_E_USAGE,
                       "mesh: mesh.shard=node is %d ranks, which does not divide the job's %d ranks; "
                       "start the same number of ranks on each node or choose mesh.shard=%d",
                       *shard, world, nearest_divisor(world, *shard));
    return does_not_divide("mesh.shard", *shard, world);
}

sh_rc sh_mesh_shape_make(const struct sh_mesh_request *req, int world, int rank, struct sh_mesh_shape *out)
{
    SH_TRY(check_numbers(req, world, rank));
    /* Both given: their product is the better message than a remainder. */
    if (req->shard >= 1 && req->replicate >= 1 && (long)req->shard * req->replicate != world) {
        int fits = nearest_divisor(world, req->shard);
        return sh_fail(
            SH_E_USAGE,
            "mesh: replicate %d x shard %d = %ld ranks, but the job has %d; choose mesh.shard=%d mesh.replicate=%d",
            req->replicate, req->shard, (long)req->shard * req->replicate, world, fits, world / fits);
    }
    int shard = 1;
    SH_TRY(choose_shard(req, world, &shard));
    int replicate = world / shard;
    if (req->replicate != SH_MESH_AUTO && req->replicate != replicate)
        return sh_fail(
            SH_E_USAGE,
            "mesh: replicate %d x shard %d = %ld ranks, but the job has %d; choose mesh.replicate=%d or auto",
            req->replicate, shard, (long)req->replicate * shard, world, replicate);
    if (shard % req->inner != 0)
        return sh_fail(SH_E_USAGE,
                       "mesh: reshard_after_forward over %d ranks does not divide the shard axis of %d; choose %d",
                       req->inner, shard, nearest_divisor(shard, req->inner));
    *out = (struct sh_mesh_shape){
        .size = {[SH_AXIS_SHARD] = shard,
                 [SH_AXIS_REPLICATE] = replicate,
                 [SH_AXIS_INNER] = req->inner,
                 [SH_AXIS_WORLD] = world},
        .index = {[SH_AXIS_SHARD] = rank % shard,
                  [SH_AXIS_REPLICATE] = rank / shard,
                  [SH_AXIS_INNER] = rank % shard % req->inner,
                  [SH_AXIS_WORLD] = rank},
    };
    return SH_OK;
}

int sh_mesh_axis_member(const struct sh_mesh_shape *shape, enum sh_axis axis, int index)
{
    /* Distance in world ranks between neighbours of an axis: only replicas lie apart. */
    int stride = axis == SH_AXIS_REPLICATE ? shape->size[SH_AXIS_SHARD] : 1;
    return shape->index[SH_AXIS_WORLD] + (index - shape->index[axis]) * stride;
}
