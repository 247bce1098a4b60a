#include "io/move/writers.h"

#include "src/base/mem.h"
#include "src/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

enum { LONG_RANGE_BYTES = 4 << 20, AUTO_PER_NODE = 2 };

/* Sums over all ranks. */
struct totals {
    long long bytes, ranges;
};

/* Adds up bytes and ranges over all ranks: their quotient is the mean length of a write. Collective. */
static sh_rc add_up(const struct sh_move_range *range, int n, struct totals *out)
{
    long long sums[2] = {0, n};
    for (int i = 0; i < n; i++)
        sums[0] += range[i].bytes;
    SH_TRY(sh_mesh_sum_i64(sums, 2));
    *out = (struct totals){.bytes = sums[0], .ranges = sums[1]};
    return SH_OK;
}

/* Splits off the ranks that share memory. ranks_per_node lets tests divide one machine into several nodes. */
static sh_rc split_nodes(int ranks_per_node, MPI_Comm *node)
{
    int rank, world;
    sh_mesh_world(&rank, &world);
    if (ranks_per_node > 0)
        SH_MPI(MPI_Comm_split(MPI_COMM_WORLD, rank / ranks_per_node, 0, node));
    else
        SH_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, node));
    return SH_OK;
}

/* Groups neighbours of a node, as evenly as possible: their ranges are neighbours in the file. */
static sh_rc split_groups(int per_node, int ranks_per_node, MPI_Comm *group)
{
    MPI_Comm node;
    int rank, size;
    sh_mesh_own_mpi();
    SH_TRY(split_nodes(ranks_per_node, &node));
    SH_MPI(MPI_Comm_rank(node, &rank));
    SH_MPI(MPI_Comm_size(node, &size));
    int writers = per_node < size ? per_node : size;
    int mpi_rc = MPI_Comm_split(node, (int)((int64_t)rank * writers / size), 0, group);
    MPI_Comm_free(&node);
    SH_MPI(mpi_rc);
    return SH_OK;
}

/* Replaces this rank's ranges by those of all ranks of the group, in rank order. */
static sh_rc gather(struct sh_move_writers *w, MPI_Comm group)
{
    int rank, size, total = 0, own = 2 * w->n_ranges;
    SH_MPI(MPI_Comm_rank(group, &rank));
    SH_MPI(MPI_Comm_size(group, &size));
    int *count = sh_calloc((size_t)size, sizeof *count), *at = sh_calloc((size_t)size, sizeof *at);
    int mpi_rc = MPI_Allgather(&own, 1, MPI_INT, count, 1, MPI_INT, group);
    for (int i = 0; i < size; i++) {
        at[i] = total;
        total += count[i];
    }
    struct sh_move_range *all = sh_calloc((size_t)total / 2 + 1, sizeof *all);
    if (mpi_rc == MPI_SUCCESS)
        mpi_rc = MPI_Allgatherv(w->range, own, MPI_INT64_T, all, count, at, MPI_INT64_T, group);
    free(count);
    free(at);
    free(w->range);
    w->range = all;
    w->n_ranges = total / 2;
    w->writes = rank == 0;
    SH_MPI(mpi_rc);
    return SH_OK;
}

/* Ranges that touch become one; an overlap means that two ranks hold the same elements. */
static sh_rc join(struct sh_move_writers *w)
{
    int n = sh_move_ranges_join(w->range, w->n_ranges);
    if (n < 0)
        return sh_fail(SH_E_BUG, "checkpoint: ranks of a node hold the same elements");
    w->n_ranges = n;
    return SH_OK;
}

/* A group of one rank needs no ring. */
static sh_rc open_ring(struct sh_move_writers *w, MPI_Comm group)
{
    int size;
    SH_MPI(MPI_Comm_size(group, &size));
    return size == 1 ? SH_OK : sh_move_ring_create(group, &w->ring);
}

/* Collective. Failures are counted, not agreed: a save can still continue without a ring. */
static sh_rc any_failed(sh_rc rc, bool *any)
{
    long long failed = rc != SH_OK;
    SH_TRY(sh_mesh_sum_i64(&failed, 1));
    *any = failed > 0;
    return SH_OK;
}

/* The starting point and the fallback: each rank writes its own ranges. */
static void go_alone(struct sh_move_writers *w, const struct sh_move_range *own, int n)
{
    sh_move_writers_free(w);
    w->range = sh_calloc((size_t)n + 1, sizeof *w->range);
    for (int i = 0; i < n; i++)
        w->range[i] = own[i];
    w->n_ranges = n;
    w->writes = true;
}

/* *worth, the same on all ranks: whether to continue with groups, because the user asked for them or because the ranges
 * get at least twice as long. */
static sh_rc form_group(struct sh_move_writers *w, MPI_Comm group, const struct totals *alone, bool must, bool *worth)
{
    struct totals together;
    bool failed;
    SH_TRY(gather(w, group));
    sh_rc rc = join(w);
    SH_TRY(any_failed(rc, &failed));
    if (failed)
        return rc;
    SH_TRY(add_up(w->range, w->writes ? w->n_ranges : 0, &together));
    *worth = must || 2 * together.ranges <= alone->ranges;
    return SH_OK;
}

/* Failing to create a ring is an error only if the user asked for groups. */
static sh_rc connect_group(struct sh_move_writers *w, MPI_Comm group, bool must, bool *connected)
{
    bool failed;
    sh_rc rc = open_ring(w, group);
    SH_TRY(any_failed(rc, &failed));
    *connected = !failed;
    if (rc == SH_OK)
        return SH_OK;
    if (must)
        return sh_fail_prefix(rc, "checkpoint.writers_per_node: ");
    sh_error_clear();
    return SH_OK;
}

/* *done stays false if groups gain nothing. */
static sh_rc group_up(struct sh_move_writers *w, MPI_Comm group, const struct totals *alone, bool must, bool *done)
{
    bool worth = false;
    SH_TRY(form_group(w, group, alone, must, &worth));
    return worth ? connect_group(w, group, must, done) : SH_OK;
}

/* Collective. Small models have small tensors: with 64 ranks each holds a few hundred KB of each, and short writes are
 * slow. In that case the ranks of a node pass their parts to a few writers, whose ranges join. A mean range of
 * LONG_RANGE_BYTES or more is left alone. */
sh_rc sh_move_writers_choose(struct sh_move_writers *w, const struct sh_move_range *own, int n, int per_node,
                             int ranks_per_node)
{
    struct totals alone;
    MPI_Comm group;
    bool grouped = false;
    int rank, world;
    go_alone(w, own, n);
    sh_mesh_world(&rank, &world);
    if (world == 1)
        return SH_OK;
    SH_TRY(add_up(w->range, w->n_ranges, &alone));
    if (per_node == 0 && alone.bytes >= alone.ranges * LONG_RANGE_BYTES)
        return SH_OK;
    SH_TRY(split_groups(per_node ? per_node : AUTO_PER_NODE, ranks_per_node, &group));
    sh_rc rc = group_up(w, group, &alone, per_node != 0, &grouped);
    MPI_Comm_free(&group);
    if (rc == SH_OK && !grouped)
        go_alone(w, own, n);
    return rc;
}

/* Wakes the other ranks of the group, which wait for parts that this rank will not deliver. */
void sh_move_writers_give_up(struct sh_move_writers *w)
{
    if (w->ring)
        sh_move_ring_give_up(w->ring);
}

void sh_move_writers_free(struct sh_move_writers *w)
{
    sh_move_ring_destroy(w->ring);
    free(w->range);
    *w = (struct sh_move_writers){0};
}
