/* `sherd plan --check`: the programs of all ranks, compared with each other. */
#include "src/tools/predict/command.h"

#include "src/base/string/str.h"
#include "src/plan/ranks.h"

/* The memory of a node, if a machine is given; 0 for GPUs, which have their own memory. */
static int64_t node_bytes(const struct sh_predict *l)
{
    const struct sh_machine *m = &l->machine;

    return l->priced && !l->at.gpu ? (int64_t)(m->device.memory_bytes - m->device.reserved_bytes) : 0;
}

/* The lesser of the device's memory and memory.limit_bytes; 0: neither is known, and nothing is compared. */
static int64_t rank_bytes(const struct sh_predict *l)
{
    const struct sh_machine *m = &l->machine;
    int64_t device = l->priced && l->at.gpu ? (int64_t)(m->device.memory_bytes - m->device.reserved_bytes) : 0;
    int64_t limit = l->cfg.memory.limit_bytes;

    return limit && (!device || limit < device) ? limit : device;
}

/* Says in numbers what was compared, since "agree" alone could mean that nothing was checked. */
static void say(const struct sh_predict *l, const struct sh_ranks_found *found)
{
    char most[SH_STR_SHORT], node[SH_STR_SHORT], least[SH_STR_SHORT], part[SH_STR_SHORT];

    putchar('\n');
    sh_str_say(stdout, "check",
               "%d ranks agree: %d collectives per step with sizes, types and groups, each element updated and squared "
               "once, each sequence read once",
               l->at.world, found->collectives);
    printf("             rank %d takes most memory, %s", found->largest_rank, sh_str_bytes(found->most_bytes, most));
    if (l->at.ranks_per_node)
        printf("; node %d, %s", found->fullest_node, sh_str_bytes(found->node_bytes, node));
    putchar('\n');
    printf("             a rank has %s to %s parameters of a checkpoint\n", sh_str_count(found->state_least, least),
           sh_str_count(found->state_most, part));
}

/* The programs of other ranks are built from the same request; if ranks per node are not given, all ranks are on one
 * node. */
sh_rc sh_predict_check(const struct sh_predict *l)
{
    struct sh_ranks ranks = {.world = l->at.world,
                             .runs = l->build.options.gather ? 2 : 1,
                             .ranks_per_node = l->at.ranks_per_node ? l->at.ranks_per_node : l->at.world,
                             .rank_bytes = rank_bytes(l),
                             .node_bytes = node_bytes(l),
                             .sequences = sh_request_global_batch(&l->cfg, sh_group_size(&l->mesh, l->mesh.data)),
                             .batch = l->cfg.training.local_batch_size,
                             .get = sh_ranks_get};
    struct sh_ranks_built *built;
    struct sh_ranks_found found;
    sh_rc rc;

    SH_TRY(sh_ranks_build(&l->build, &built));
    ranks.from = built;
    rc = sh_ranks_check(&ranks, &found);
    sh_ranks_free(built);
    if (rc == SH_OK)
        say(l, &found);
    return rc;
}
