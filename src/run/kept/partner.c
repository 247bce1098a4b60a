/* Copies on other nodes: each rank sends its slot to the rank with the same place on a node half of the job away, or as
 * far as checkpoint.near_distance says, and holds what another one sends. A copy describes itself as the slot does, so that a start finds it as any other part. */
#include "src/base/mem.h"
#include "src/base/log.h"
#include "src/run/kept/parts.h"
#include "src/run/run.h"

#include <stdlib.h>
#include <string.h>

/* What ranks know of each other. */
struct place {
    int32_t node, node_rank, node_size;
    int64_t bytes; /* of a slot */
};

static int find_rank(const struct place *all, int world, int node, int node_rank)
{
    int rank = 0;

    while (rank < world && (all[rank].node != node || all[rank].node_rank != node_rank))
        rank++;
    return rank;
}

static sh_rc gather_places(const struct sh_run *r, struct place *all)
{
    const struct sh_mesh *m = r->mesh;
    struct place mine = {
        .node = m->node, .node_rank = m->node_rank, .node_size = m->node_size, .bytes = r->kept->bytes};

    SH_TRY(sh_mesh_gather(&mine, (int)sizeof mine, all));
    return sh_mesh_bcast(all, (long)sizeof mine * m->world, 0);
}

static sh_rc check_places(const struct place *all, int world)
{
    for (int i = 1; i < world; i++)
        if (all[i].node_size != all[0].node_size)
            return sh_fail(SH_E_USAGE,
                           "checkpoint.near_copies=2 needs the same number of ranks on each node, but there are nodes "
                           "with %d and with %d",
                           all[0].node_size, all[i].node_size);
    return SH_OK;
}

sh_rc sh_kept_find_partner(struct sh_run *r)
{
    const struct sh_mesh *m = r->mesh;
    struct sh_kept *k = r->kept;
    struct place *all;
    int wanted = r->cfg.checkpoint.near_distance, far = sh_near_distance(wanted, m->n_nodes);
    sh_rc rc = SH_OK;

    k->to = k->from = SH_NONE;
    if (r->cfg.checkpoint.near_copies < 2)
        return SH_OK;
    if (m->n_nodes < 2) {
        if (m->rank == 0)
            sh_log_warn(
                "checkpoint.near_copies=2, but all ranks are on %s: a lost node costs the steps since the newest "
                "file",
                m->host);
        return SH_OK;
    }
    if (wanted && wanted % m->n_nodes == 0 && m->rank == 0)
        sh_log_warn(
            "checkpoint.near_distance=%d is a multiple of the %d nodes and leads back to the same one; copies go %d further",
            wanted, m->n_nodes, far);
    all = sh_calloc((size_t)m->world, sizeof *all);
    SH_TRY_OUT(gather_places(r, all));
    SH_TRY_OUT(check_places(all, m->world));
    k->to = find_rank(all, m->world, (m->node + far) % m->n_nodes, m->node_rank);
    k->from = find_rank(all, m->world, (m->node + m->n_nodes - far) % m->n_nodes, m->node_rank);
    k->copy_bytes = all[k->from].bytes;
out:
    free(all);
    return rc;
}

/* The head comes last, and its state after all else: a copy that is cut off is never DONE. */
sh_rc sh_kept_exchange(struct sh_run *r, int slot)
{
    struct sh_kept *k = r->kept;
    struct sh_near_slot *mine = &k->slot[slot], *copy = &k->copy[slot];
    union {
        struct sh_near_head head;
        char bytes[SH_NEAR_PAGE];
    } * page;
    size_t first = SH_NEAR_PAGE;
    sh_rc rc;

    if (k->to == SH_NONE)
        return SH_OK;
    page = sh_calloc(1, sizeof *page);
    atomic_store(&copy->head->state, SH_NEAR_FILLING);
    rc = sh_mesh_shift((char *)mine->head + first, k->bytes - (int64_t)first, k->to, (char *)copy->head + first,
                       k->copy_bytes - (int64_t)first, k->from);
    if (rc == SH_OK)
        rc = sh_mesh_shift(mine->head, (int64_t)first, k->to, page, (int64_t)first, k->from);
    if (rc == SH_OK) {
        uint32_t state = atomic_load(&page->head.state);

        atomic_store(&page->head.state, SH_NEAR_FILLING);
        memcpy(copy->head, page, first);
        atomic_store(&copy->head->state, state);
    }
    free(page);
    return rc;
}
