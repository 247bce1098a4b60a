/* Ranks are numbered with the first axis fastest. While tensor, context, expert and pipeline are 1, that is rank = inner
 * + outer * |inner| + replicate * |inner| * |outer|. So a shard group is a block of neighbouring ranks, which launchers
 * put on one node, and replicas are far apart. Example: 8 ranks, shard 4, inner 2: ranks 0 to 3 hold one copy of the
 * model, 0 and 1 are an inner group, 0 and 4 are replicas of each other. */
#include "src/mesh/shape.h"

#include "src/base/string/str.h"

#include <stdbool.h>
#include <stdio.h>

/* The largest shard size that divides the job and does not exceed the one asked for: such a mesh always works. */
static int nearest_divisor(int world, int wanted)
{
    int d = wanted < world ? wanted : world;
    while (d > 1 && world % d != 0)
        d--;
    return d > 1 ? d : 1;
}

/* The largest degree that divides both: what is cut into as many parts as was asked for can be cut into these too, whereas
 * a degree that only divides the ranks may divide no heads. */
static int common_divisor(int ranks, int degree)
{
    return ranks % degree ? common_divisor(degree, ranks % degree) : degree;
}

static int tensor_of(const struct sh_mesh_request *req)
{
    return req->tensor > 1 ? req->tensor : 1;
}

static int pipeline_of(const struct sh_mesh_request *req)
{
    return req->pipeline > 1 ? req->pipeline : 1;
}

/* What the axes other than tensor and pipeline count. */
static const char *noun_of(const struct sh_mesh_request *req)
{
    return tensor_of(req) > 1 ? "tensor group" : pipeline_of(req) > 1 ? "stage rank" : "rank";
}

static sh_rc does_not_divide(const struct sh_mesh_request *req, const char *key, int value, int world)
{
    char ranks[SH_STR_SHORT];
    int fits = nearest_divisor(world, value);

    return sh_fail(
        SH_E_USAGE, "mesh: %s=%d does not divide the job's %s; choose %s=%d (or start a multiple of %d ranks)", key,
        value, sh_str_plural(world, noun_of(req), ranks), key, fits, value * tensor_of(req) * pipeline_of(req));
}

/* Errors that do not depend on the number of ranks; other checks need the chosen shard size. */
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

/* `all` means all ranks that replication leaves. */
static sh_rc choose_shard(const struct sh_mesh_request *req, int world, int *shard)
{
    if (req->shard == SH_MESH_ALL) {
        int replicate = req->replicate == SH_MESH_AUTO ? 1 : req->replicate;
        if (world % replicate != 0)
            return does_not_divide(req, "mesh.replicate", replicate, world);
        *shard = world / replicate;
        return SH_OK;
    }
    *shard = req->shard == SH_MESH_NODE ? req->ranks_per_node / tensor_of(req) : req->shard;
    if (*shard == 0)
        return sh_fail(SH_E_USAGE,
                       "mesh: mesh.shard=node with parallelism.tensor_parallel_degree=%d, but a node has %d ranks; "
                       "choose a number for mesh.shard",
                       tensor_of(req), req->ranks_per_node);
    if (world % *shard == 0)
        return SH_OK;
    if (req->shard == SH_MESH_NODE)
        return sh_fail(SH_E_USAGE,
                       "mesh: mesh.shard=node is %d ranks, which does not divide the job's %d ranks; "
                       "start the same number of ranks on each node or choose mesh.shard=%d",
                       *shard, world, nearest_divisor(world, *shard));
    return does_not_divide(req, "mesh.shard", *shard, world);
}

/* The masks are in the order of axis[]: bit i of a group stands for axis i. */
struct sh_mesh_shape sh_mesh_shape_of(const int size[SH_AXES], int rank)
{
    static const char *const names[SH_AXES] = {"tensor", "context",   "expert",  "inner",
                                               "outer",  "replicate", "pipeline"};
    enum {
        TENSOR = 1 << SH_AXIS_TENSOR,
        CONTEXT = 1 << SH_AXIS_CONTEXT,
        EXPERT = 1 << SH_AXIS_EXPERT,
        INNER = 1 << SH_AXIS_INNER,
        OUTER = 1 << SH_AXIS_OUTER,
        REPLICATE = 1 << SH_AXIS_REPLICATE,
    };
    struct sh_mesh_shape shape = {.n = SH_AXES,
                                  .rank = rank,
                                  .shard = CONTEXT | EXPERT | INNER | OUTER,
                                  .tensor = TENSOR,
                                  .context = CONTEXT,
                                  .expert = EXPERT,
                                  .inner = INNER,
                                  .replicate = REPLICATE,
                                  .data = EXPERT | INNER | OUTER | REPLICATE,
                                  .rows = TENSOR | CONTEXT | EXPERT | INNER | OUTER | REPLICATE,
                                  .pipeline = 1 << SH_AXIS_PIPELINE};
    int stride = 1;

    for (int i = 0; i < SH_AXES; stride *= size[i++]) {
        shape.axis[i] = (struct sh_axis){.size = size[i], .stride = stride};
        snprintf(shape.axis[i].name, sizeof shape.axis[i].name, "%s", names[i]);
    }
    return shape;
}

/* An axis inside of the shard or replicate axis and, if there are any, of its inner groups. */
static sh_rc place_inside(const char *key, int size, const char *axis, int ranks, const struct sh_mesh_request *req)
{
    int fits = common_divisor(ranks, size);

    if (req->inner > 1)
        fits = common_divisor(req->inner, fits);
    if (ranks % size != 0)
        return sh_fail(SH_E_USAGE, "mesh: %s=%d does not divide the %s axis of %d; choose %d", key, size, axis, ranks,
                       fits);
    if (fits < size)
        return sh_fail(SH_E_USAGE, "mesh: %s=%d does not divide reshard_after_forward over %d ranks; choose %d", key,
                       size, req->inner, fits);
    return SH_OK;
}

/* Ranks with different rows of a sequence are neighbours, and ranks with different experts are neighbours of these. If
 * nothing is sharded, ranks with different rows are replicas. */
static sh_rc place_axes(const struct sh_mesh_request *req, int world, int shard, int size[SH_AXES])
{
    int context = req->context > 1 ? req->context : 1, expert = req->expert > 1 ? req->expert : 1;
    int outer = shard, replicate = world / shard;
    bool replicas = shard == 1 && world > 1;
    int *around = replicas ? &replicate : &outer;

    SH_TRY(
        place_inside("parallelism.context_parallel_degree", context, replicas ? "replicate" : "shard", *around, req));
    *around /= context;
    SH_TRY(place_inside("parallelism.expert_parallel_degree", expert, "shard", outer, req));
    if (req->inner > 1 && req->inner % (context * expert) != 0)
        return sh_fail(SH_E_USAGE,
                       "mesh: parallelism.context_parallel_degree=%d times expert_parallel_degree=%d does not divide "
                       "reshard_after_forward over %d ranks; choose a multiple of %d",
                       context, expert, req->inner, context * expert);
    size[SH_AXIS_CONTEXT] = context;
    size[SH_AXIS_EXPERT] = expert;
    size[SH_AXIS_INNER] = req->inner > 1 ? req->inner / (context * expert) : 1;
    size[SH_AXIS_OUTER] = outer / (expert * size[SH_AXIS_INNER]);
    size[SH_AXIS_REPLICATE] = replicate;
    return SH_OK;
}

/* The axes of the ranks with one place on the tensor axis, of which there are `world`. */
static sh_rc make_others(const struct sh_mesh_request *req, int world, int *ranks_of_shard, int size[SH_AXES])
{
    /* Both are given: a message about their product is better than one about a remainder. */
    if (req->shard >= 1 && req->replicate >= 1 && (long)req->shard * req->replicate != world) {
        int fits = nearest_divisor(world, req->shard);
        return sh_fail(
            SH_E_USAGE,
            "mesh: replicate %d x shard %d = %ld %ss, but the job has %d; choose mesh.shard=%d mesh.replicate=%d",
            req->replicate, req->shard, (long)req->shard * req->replicate, noun_of(req), world, fits, world / fits);
    }
    int shard = 1;
    SH_TRY(choose_shard(req, world, &shard));
    int replicate = world / shard;
    if (req->replicate != SH_MESH_AUTO && req->replicate != replicate)
        return sh_fail(SH_E_USAGE,
                       "mesh: replicate %d x shard %d = %ld %ss, but the job has %d; choose mesh.replicate=%d or auto",
                       req->replicate, shard, (long)req->replicate * shard, noun_of(req), world, replicate);
    if (shard % req->inner != 0)
        return sh_fail(SH_E_USAGE,
                       "mesh: reshard_after_forward over %d ranks does not divide the shard axis of %d; choose %d",
                       req->inner, shard, nearest_divisor(shard, req->inner));
    *ranks_of_shard = shard;
    return place_axes(req, world, shard, size);
}

/* An axis beside the others: the ranks that are left for them. */
static sh_rc take_axis(const char *key, int size, int all, int *world)
{
    char ranks[SH_STR_SHORT], over[32] = "";

    if (*world < all)
        snprintf(over, sizeof over, " over %d", all / *world);
    if (*world % size != 0)
        return sh_fail(
            SH_E_USAGE, "mesh: %s=%d does not divide the job's %s%s; choose %d (or start a multiple of %d ranks)", key,
            size, sh_str_plural(all, "rank", ranks), over, common_divisor(*world, size), size * (all / *world));
    *world /= size;
    return SH_OK;
}

/* Ranks with other parts of the same matrices are next to each other, those of other stages are furthest apart, and the
 * other axes are as they are without them. */
sh_rc sh_mesh_shape_make(const struct sh_mesh_request *req, int world, int rank, struct sh_mesh_shape *out)
{
    int size[SH_AXES] = {1, 1, 1, 1, 1, 1, 1}, shard = 1, all = world;

    SH_TRY(check_numbers(req, world, rank));
    size[SH_AXIS_TENSOR] = tensor_of(req);
    size[SH_AXIS_PIPELINE] = pipeline_of(req);
    SH_TRY(take_axis("parallelism.tensor_parallel_degree", size[SH_AXIS_TENSOR], all, &world));
    SH_TRY(take_axis("parallelism.pipeline_parallel_degree", size[SH_AXIS_PIPELINE], all, &world));
    SH_TRY(make_others(req, world, &shard, size));
    *out = sh_mesh_shape_of(size, rank);
    if (req->inner > 1)
        out->inner |= out->expert | out->context;
    if (shard == 1 && req->context > 1) {
        out->shard &= ~out->context;
        out->replicate |= out->context;
    }
    return SH_OK;
}

sh_group sh_group_world(const struct sh_mesh_shape *shape)
{
    return (1u << shape->n) - 1;
}

sh_group sh_group_others(const struct sh_mesh_shape *shape, sh_group group)
{
    return sh_group_world(shape) & ~group;
}

sh_group sh_group_widened(const struct sh_mesh_shape *shape, sh_group group)
{
    for (int i = 0; i < shape->n; i++)
        group |= (shape->axis[i].size == 1 ? 1u : 0) << i;
    return group;
}

/* Whether the group reaches along this axis. */
static bool has(sh_group group, int axis)
{
    return group >> axis & 1;
}

int sh_group_size(const struct sh_mesh_shape *shape, sh_group group)
{
    int size = 1;

    for (int i = 0; i < shape->n; i++)
        size *= has(group, i) ? shape->axis[i].size : 1;
    return size;
}

/* This rank's coordinate on axis i. */
static int place_on(const struct sh_mesh_shape *shape, int i)
{
    return shape->rank / shape->axis[i].stride % shape->axis[i].size;
}

/* The place in the group counts its axes in the order of the table, the first one fastest. It is the rank in the
 * group's communicator, and the index of this rank's chunk. */
int sh_group_index(const struct sh_mesh_shape *shape, sh_group group)
{
    int index = 0, before = 1; /* number of places on the axes so far */

    for (int i = 0; i < shape->n; i++)
        if (has(group, i)) {
            index += place_on(shape, i) * before;
            before *= shape->axis[i].size;
        }
    return index;
}

bool sh_mesh_speaks(const struct sh_mesh_shape *shape)
{
    return sh_group_index(shape, sh_group_others(shape, shape->data)) == 0;
}

/* The inverse of sh_group_index: moves from this rank along each axis of the group to the coordinate that `index` has
 * there. Coordinates on the other axes stay, since they identify the group. */
int sh_group_member(const struct sh_mesh_shape *shape, sh_group group, int index)
{
    int rank = shape->rank;

    for (int i = 0; i < shape->n; i++)
        if (has(group, i)) {
            rank += (index % shape->axis[i].size - place_on(shape, i)) * shape->axis[i].stride;
            index /= shape->axis[i].size;
        }
    return rank;
}

/* The lengths of the runs are or-ed together: the lowest bit that any of them has is the power of two. */
int sh_group_block(const struct sh_mesh_shape *shape, sh_group group, int ranks_per_node)
{
    int n = sh_group_size(shape, group), run = 0;
    unsigned bits = 0;

    for (int i = 0; i < n; i++) {
        run++;
        if (i + 1 == n || sh_group_member(shape, group, i) / ranks_per_node !=
                              sh_group_member(shape, group, i + 1) / ranks_per_node) {
            bits |= (unsigned)run;
            run = 0;
        }
    }
    return (int)(bits & -bits);
}

/* The product of all axes. */
int sh_mesh_ranks(const struct sh_mesh_shape *shape)
{
    return sh_group_size(shape, sh_group_world(shape));
}

/* The fallback for groups without a common name: "inner+replicate". */
static void join_axes(const struct sh_mesh_shape *shape, sh_group group, char text[SH_GROUP_NAME])
{
    size_t n = 0;

    text[0] = '\0';
    for (int i = 0; i < shape->n && n < SH_GROUP_NAME; i++)
        if (has(group, i))
            n += (size_t)snprintf(text + n, SH_GROUP_NAME - n, "%s%s", n ? "+" : "", shape->axis[i].name);
}

/* The first name that fits wins: without an outer axis `shard` and `inner` are different masks, so both keep their
 * names. */
const char *sh_group_name(const struct sh_mesh_shape *shape, sh_group group, char text[SH_GROUP_NAME])
{
    const struct {
        const char *name;
        sh_group axes;
    } names[] = {{"shard", shape->shard},         {"inner", shape->inner},
                 {"replicate", shape->replicate}, {"world", sh_group_world(shape)},
                 {"data", shape->data},           {"rows", shape->rows},
                 {"expert", shape->expert},       {"expert_shard", shape->shard & ~shape->expert},
                 {"context", shape->context},     {"tensor_shard", shape->tensor | shape->shard}};

    join_axes(shape, group, text);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].axes == group) {
            snprintf(text, SH_GROUP_NAME, "%s", names[i].name);
            break;
        }
    return text;
}

/* "16 stages x 8 tensor x ": axes beside which sequences are cut over the rest. Returns its length. */
static int name_other_axes(const struct sh_mesh_shape *m, char text[SH_MESH_TEXT])
{
    const struct {
        const char *name;
        sh_group group;
    } axes[] = {{"stages", m->pipeline}, {"tensor", m->tensor}, {"context", m->context}};
    int n = 0;

    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (sh_group_size(m, axes[i].group) > 1)
            n += snprintf(text + n, (size_t)(SH_MESH_TEXT - n), "%d %s x ", sh_group_size(m, axes[i].group),
                          axes[i].name);
    return n;
}

const char *sh_mesh_text(const struct sh_mesh_shape *m, char text[SH_MESH_TEXT])
{
    int replicate = sh_group_size(m, m->replicate), shard = sh_group_size(m, m->shard), n;

    if (sh_mesh_ranks(m) == 1) {
        snprintf(text, SH_MESH_TEXT, "1 rank");
        return text;
    }
    n = name_other_axes(m, text);
    n += n ? snprintf(text + n, (size_t)(SH_MESH_TEXT - n), "%d data (%d x %d ranks, replicate x shard)",
                      sh_group_size(m, m->data), replicate, shard)
           : snprintf(text, SH_MESH_TEXT, "%d x %d ranks (replicate x shard)", replicate, shard);
    if (sh_group_size(m, m->expert) > 1)
        snprintf(text + n, (size_t)(SH_MESH_TEXT - n), ", experts over %d", sh_group_size(m, m->expert));
    return text;
}
