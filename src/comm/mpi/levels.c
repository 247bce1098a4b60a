#include "src/comm/mpi/levels.h"

#include "src/base/mem.h"
#include "src/comm/parts.h"
#include "src/mesh/segment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LINE = SH_CACHE_LINE, PAGE = 4096 };

/* At the start of a region, a cache line each. The first line of the first region held the mark of segment.c. */
struct counters {
    char mark[LINE];
    _Alignas(LINE) _Atomic int64_t given;
    _Alignas(LINE) _Atomic int64_t taken;
};

static struct counters *counters_of(const struct sh_levels *l, int place)
{
    return (struct counters *)(void *)(l->memory + place * l->region_bytes);
}

/* Ranks per block; 1: no levels. A block that is the whole group needs no messages at all. */
static int block_of(const struct sh_channel *ch)
{
    const struct sh_comm_options *opt = &ch->c->opt;
    int above = opt->levels_above ? opt->levels_above : SH_COMM_LEVELS_ABOVE;

    if (!opt->ranks_per_node || ch->size <= above || (opt->device && opt->device->gpu))
        return 1;
    return sh_group_block(&ch->c->mesh->shape, ch->group, opt->ranks_per_node);
}

/* All staging of a rank together is as much as without levels: for each round in flight, what it gives to the others of
 * its block, the sums for each block, and what comes from each other block. */
static void size_memory(struct sh_levels *l)
{
    int64_t given = l->ranks - 1, sums = l->blocks, others = l->blocks - 1;

    l->stage_bytes = sh_part_stage_bytes(SH_DIRECT_ROUNDS * (given + sums + others));
    l->slot_bytes = given * l->stage_bytes;
    l->region_bytes = ((int64_t)sizeof(struct counters) + SH_DIRECT_ROUNDS * l->slot_bytes + PAGE - 1) / PAGE * PAGE;
}

static sh_rc map(struct sh_levels *l, MPI_Comm block)
{
    int64_t bytes = l->ranks * l->region_bytes;
    int fd;
    sh_rc rc = sh_segment_share(block, bytes, &fd);
    char *memory;

    if (rc != SH_OK || fd < 0)
        return rc;
    memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        rc = sh_fail(SH_E_MEMORY, "cannot map %lld bytes shared by the ranks of a node: %s", (long long)bytes,
                     strerror(errno));
    else
        l->memory = memory;
    close(fd);
    return rc;
}

static void unmap(struct sh_levels *l)
{
    if (l->memory)
        munmap(l->memory, (size_t)(l->ranks * l->region_bytes));
    l->memory = NULL;
}

/* Not a split: only the members communicate. */
static sh_rc comm_of_block(const struct sh_channel *ch, const struct sh_levels *l, MPI_Comm *out)
{
    MPI_Group all, block = MPI_GROUP_NULL;
    int mpi_rc, range[1][3] = {{l->block * l->ranks, (l->block + 1) * l->ranks - 1, 1}};

    SH_MPI(MPI_Comm_group(ch->comm, &all));
    mpi_rc = MPI_Group_range_incl(all, 1, range, &block);
    if (mpi_rc == MPI_SUCCESS)
        mpi_rc = MPI_Comm_create_group(ch->comm, block, 0, out);
    MPI_Group_free(&all);
    if (block != MPI_GROUP_NULL)
        MPI_Group_free(&block);
    SH_MPI(mpi_rc);
    return SH_OK;
}

/* A plan that counts on two levels is not given up quietly if a node cannot have them: users who want messages instead
 * must say so. If the first rank of a block has failed, it says why, and the others have no memory either. */
static sh_rc share(struct sh_channel *ch, struct sh_levels *l)
{
    MPI_Comm block = MPI_COMM_NULL;
    char name[SH_GROUP_NAME];
    sh_rc rc;

    SH_TRY(comm_of_block(ch, l, &block));
    rc = map(l, block);
    MPI_Comm_free(&block);
    if (rc == SH_OK)
        return SH_OK;
    return sh_fail_prefix(rc, "axis %s of %d ranks, in two levels; comm.shared_memory=off trains without this: ",
                          sh_group_name(&ch->c->mesh->shape, ch->group, name), ch->size);
}

sh_rc sh_levels_open(struct sh_channel *ch)
{
    int ranks = block_of(ch);
    struct sh_levels l = {
        .ranks = ranks, .place = ch->rank % ranks, .blocks = ch->size / ranks, .block = ch->rank / ranks};

    if (ranks == 1)
        return SH_OK;
    size_memory(&l);
    SH_TRY(share(ch, &l));
    ch->levels = sh_calloc(1, sizeof *ch->levels);
    *ch->levels = l;
    return SH_OK;
}

/* The memory itself is freed with its last user. */
void sh_levels_close(struct sh_channel *ch)
{
    if (!ch->levels)
        return;
    unmap(ch->levels);
    free(ch->levels);
    ch->levels = NULL;
}

int64_t sh_levels_stages(const struct sh_levels *l)
{
    return SH_DIRECT_ROUNDS * (2 * (int64_t)l->blocks - 1);
}

/* Four kinds of requests to or from each other block: blocks - 1 are less than half of the channel's size - 1, and the
 * channel has two requests for each of those. */
void sh_levels_share_out(struct sh_channel *ch)
{
    struct sh_levels *l = ch->levels;
    MPI_Request *r = ch->request;
    int others = l->blocks - 1;

    l->request = r;
    l->n_requests = SH_DIRECT_ROUNDS * 4 * others;
    for (int i = 0; i < l->n_requests; i++)
        r[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < SH_DIRECT_ROUNDS; i++) {
        l->in[i] = ch->staging + i * (2 * l->blocks - 1) * l->stage_bytes;
        l->out[i] = l->in[i] + others * l->stage_bytes;
        l->scatter_in[i] = r + (ptrdiff_t)(4 * i + 0) * others;
        l->scatter_out[i] = r + (ptrdiff_t)(4 * i + 1) * others;
        l->gather_in[i] = r + (ptrdiff_t)(4 * i + 2) * others;
        l->gather_out[i] = r + (ptrdiff_t)(4 * i + 3) * others;
    }
}

/* Acquire: a writer reuses the slot only after it was read. */
bool sh_levels_may_give(const struct sh_levels *l, int64_t step)
{
    for (int i = 0; i < l->ranks; i++)
        if (i != l->place && atomic_load_explicit(&counters_of(l, i)->taken, memory_order_acquire) <=
                                 l->before + step - SH_DIRECT_ROUNDS)
            return false;
    return true;
}

void sh_levels_set_given(struct sh_levels *l, int64_t step)
{
    atomic_store_explicit(&counters_of(l, l->place)->given, l->before + step + 1, memory_order_release);
}

bool sh_levels_may_take(const struct sh_levels *l, int64_t step)
{
    for (int i = 0; i < l->ranks; i++)
        if (i != l->place && atomic_load_explicit(&counters_of(l, i)->given, memory_order_acquire) <= l->before + step)
            return false;
    return true;
}

void sh_levels_set_taken(struct sh_levels *l, int64_t step)
{
    atomic_store_explicit(&counters_of(l, l->place)->taken, l->before + step + 1, memory_order_release);
}

char *sh_levels_stage(const struct sh_levels *l, int64_t step, int from, int to)
{
    int64_t slot = (l->before + step) % SH_DIRECT_ROUNDS;
    char *at = l->memory + from * l->region_bytes + (int64_t)sizeof(struct counters) + slot * l->slot_bytes;

    return at + (to < from ? to : to - 1) * l->stage_bytes;
}
