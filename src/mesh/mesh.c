/* Ranks, nodes and groups of a job. Each group of ranks has one communicator, made when it is first asked for and kept
 * until the end. */
#include "src/mesh/mesh.h"

#include "src/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct nodes {
    int rank, size, smallest; /* place on this node, ranks on this node, ranks on the smallest node */
    int index, count;         /* which node, of how many; ordered by their lowest ranks */
};

/* sizes [world]: the size of the node whose first rank this is, else 0. */
static void number_nodes(const int *sizes, int world, int first, struct nodes *n)
{
    n->smallest = n->size;
    for (int rank = 0; rank < world; rank++) {
        if (sizes[rank] == 0)
            continue;
        n->index += rank < first;
        n->count++;
        n->smallest = sizes[rank] < n->smallest ? sizes[rank] : n->smallest;
    }
}

/* Collective over the job. Nodes are numbered by their first ranks, so all ranks agree on the order without a table of
 * host names. Gathers an int of each rank instead of a prefix sum: some libraries make that from n (n - 1) / 2
 * messages. */
static sh_rc find_nodes_in(MPI_Comm node, struct nodes *out)
{
    struct nodes n = {0};
    int rank, world, first;
    sh_mesh_world(&rank, &world);
    SH_MPI(MPI_Comm_rank(node, &n.rank));
    SH_MPI(MPI_Comm_size(node, &n.size));
    first = rank; /* the node's first rank */
    SH_MPI(MPI_Bcast(&first, 1, MPI_INT, 0, node));
    int mine = n.rank == 0 ? n.size : 0, *sizes = sh_calloc((size_t)world, sizeof *sizes);
    int mpi_rc = MPI_Allgather(&mine, 1, MPI_INT, sizes, 1, MPI_INT, MPI_COMM_WORLD);
    number_nodes(sizes, world, first, &n);
    free(sizes);
    SH_MPI(mpi_rc);
    *out = n;
    return SH_OK;
}

/* MPI's shared-memory split is what "node" means here: the ranks that can share a segment. */
static sh_rc find_nodes(struct nodes *out)
{
    MPI_Comm node;
    sh_mesh_own_mpi();
    SH_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    sh_rc rc = find_nodes_in(node, out);
    MPI_Comm_free(&node);
    return rc;
}

/* Works without a mesh: what must be known before one can be made, such as the number of ranks that share a node. */
sh_rc sh_mesh_nodes(int *node_rank, int *node_size, int *smallest)
{
    struct nodes n;
    SH_TRY(find_nodes(&n));
    *node_rank = n.rank;
    *node_size = n.size;
    *smallest = n.smallest;
    return SH_OK;
}

/* all [size] of the node. MPI's error is checked after the memory is freed. */
static sh_rc count_alike(MPI_Comm node, unsigned long long value, int *alike)
{
    int size;
    SH_MPI(MPI_Comm_size(node, &size));
    unsigned long long *all = sh_calloc((size_t)size, sizeof *all);
    int mpi_rc = MPI_Allgather(&value, 1, MPI_UNSIGNED_LONG_LONG, all, 1, MPI_UNSIGNED_LONG_LONG, node);
    *alike = 0;
    for (int i = 0; i < size; i++)
        *alike += all[i] == value;
    free(all);
    SH_MPI(mpi_rc);
    return SH_OK;
}

/* The node's communicator serves this question only, so that nothing is left open before there is a mesh. */
sh_rc sh_mesh_alike_on_node(unsigned long long value, int *alike)
{
    MPI_Comm node;
    sh_mesh_own_mpi();
    SH_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    sh_rc rc = count_alike(node, value, alike);
    MPI_Comm_free(&node);
    return rc;
}

/* The words are sets of cores: their union is the cores that the ranks of the node have together. */
sh_rc sh_mesh_or_on_node(uint64_t *words, int n)
{
    MPI_Comm node;
    sh_mesh_own_mpi();
    SH_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    int mpi_rc = MPI_Allreduce(MPI_IN_PLACE, words, n, MPI_UINT64_T, MPI_BOR, node);
    MPI_Comm_free(&node);
    SH_MPI(mpi_rc);
    return SH_OK;
}

/* The tag is the group's mask, so that creations of different groups are not confused. */
static sh_rc comm_of_group(MPI_Group world, const int *ranks, int n, int tag, MPI_Comm *out)
{
    MPI_Group group;
    SH_MPI(MPI_Group_incl(world, n, ranks, &group));
    int mpi_rc = MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, out);
    MPI_Group_free(&group);
    SH_MPI(mpi_rc);
    return sh_mesh_return_errors(*out);
}

/* Members in the order of the group, which is the order of their ranks in it. */
static sh_rc create(const struct sh_mesh *mesh, sh_group group, MPI_Comm *out)
{
    int n = sh_group_size(&mesh->shape, group);
    int *ranks = sh_calloc((size_t)n, sizeof *ranks);
    MPI_Group world = MPI_GROUP_NULL;
    sh_rc rc = sh_mesh_mpi_check(__FILE__, __LINE__, "MPI_Comm_group", MPI_Comm_group(MPI_COMM_WORLD, &world));
    for (int i = 0; i < n; i++)
        ranks[i] = sh_group_member(&mesh->shape, group, i);
    if (rc == SH_OK)
        rc = comm_of_group(world, ranks, n, (int)group, out);
    if (world != MPI_GROUP_NULL)
        MPI_Group_free(&world);
    free(ranks);
    return rc;
}

/* A job has a handful of groups, so a linear search is enough. */
MPI_Comm sh_mesh_comm(const struct sh_mesh *mesh, sh_group group)
{
    for (int i = 0; i < mesh->n_groups; i++)
        if (mesh->groups[i].axes == group)
            return mesh->groups[i].comm;
    return MPI_COMM_NULL;
}

/* MPI_Comm_create_group and not MPI_Comm_split: only the members talk, so that it stays cheap at any job size. */
sh_rc sh_mesh_open(struct sh_mesh *mesh, sh_group group)
{
    struct sh_mesh_group g = {.axes = group, .comm = MPI_COMM_NULL};
    if (sh_mesh_comm(mesh, group) != MPI_COMM_NULL)
        return SH_OK;
    sh_mesh_own_mpi();
    SH_TRY(create(mesh, group, &g.comm));
    mesh->groups = sh_grow(mesh->groups, mesh->n_groups, &mesh->cap_groups, sizeof *mesh->groups);
    mesh->groups[mesh->n_groups++] = g;
    return SH_OK;
}

/* Shard groups are neighbours in rank; whether those share a node is up to the launcher. */
static sh_rc check_within_nodes(struct sh_mesh *mesh)
{
    int ends[2] = {mesh->node, -mesh->node};
    SH_TRY(sh_mesh_open(mesh, mesh->shape.shard));
    SH_MPI(MPI_Allreduce(MPI_IN_PLACE, ends, 2, MPI_INT, MPI_MIN, sh_mesh_comm(mesh, mesh->shape.shard)));
    if (ends[0] == -ends[1])
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "mesh.shard=node, but this shard group has ranks on nodes %d and %d; place ranks in blocks (srun -m "
                   "block, mpirun --map-by core), the same number on each node",
                   ends[0], -ends[1]);
}

/* Agreement follows each step that may fail on a single rank: a rank that left early would hang the next collective. */
static sh_rc fill(struct sh_mesh *mesh, const struct sh_mesh_request *req)
{
    struct nodes n;
    struct sh_mesh_request full = *req;
    SH_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &mesh->rank));
    SH_MPI(MPI_Comm_size(MPI_COMM_WORLD, &mesh->world));
    SH_TRY(find_nodes(&n));
    mesh->node = n.index;
    mesh->n_nodes = n.count;
    mesh->node_rank = n.rank;
    mesh->node_size = n.size;
    if (gethostname(mesh->host, sizeof mesh->host - 1) != 0)
        snprintf(mesh->host, sizeof mesh->host, "unknown");
    if (full.ranks_per_node == 0)
        full.ranks_per_node = n.smallest;
    SH_TRY(sh_agree(sh_mesh_shape_make(&full, mesh->world, mesh->rank, &mesh->shape)));
    return req->shard == SH_MESH_NODE ? sh_agree(check_within_nodes(mesh)) : SH_OK;
}

/* A partly filled mesh is destroyed here: the caller has nothing to close after a failure. */
sh_rc sh_mesh_create(const struct sh_mesh_request *req, struct sh_mesh **out)
{
    struct sh_mesh *mesh = sh_calloc(1, sizeof *mesh);
    sh_rc rc = fill(mesh, req);
    if (rc != SH_OK) {
        sh_mesh_destroy(mesh);
        return rc;
    }
    *out = mesh;
    return SH_OK;
}

/* NULL is fine. Collective, since freeing a communicator is. */
void sh_mesh_destroy(struct sh_mesh *mesh)
{
    if (mesh == NULL)
        return;
    sh_mesh_own_mpi();
    for (int i = 0; i < mesh->n_groups; i++)
        MPI_Comm_free(&mesh->groups[i].comm);
    free(mesh->groups);
    free(mesh);
}
