/* Collectives whose cost is the number of messages: MPI's own all-gather and all-to-all, and sums that every rank makes
 * for itself in one tree over the ranks, so that all have the same bits. Also the collectives that need no message at
 * all, and those that were launched on a GPU and only need to be watched. */
#include "src/comm/mpi/channel.h"
#include "src/comm/parts.h"
#include "src/comm/sum.h"

static int64_t part_bytes(const struct sh_coll *coll)
{
    return coll->count * sh_dtype_bytes(coll->dtype);
}

/* Its collective was launched on the GPU; an event says when it is done. */
static bool device_fits(const struct sh_channel *ch, const struct sh_coll *coll)
{
    (void)coll;
    return ch->done != NULL;
}

static sh_rc device_begin(struct sh_channel *ch)
{
    (void)ch;
    return SH_OK;
}

static sh_rc device_step(struct sh_channel *ch, bool *moved, bool *done)
{
    *done = ch->c->opt.device->event_is_done(ch->done);
    *moved = *moved || *done;
    return SH_OK;
}

const struct sh_algo sh_algo_device = {
    .name = "device",
    .fits = device_fits,
    .begin = device_begin,
    .step = device_step,
};

/* One rank, or nothing to move: at most a copy. So an exchange of counted rows costs nothing if no rank has any. */
static bool alone_fits(const struct sh_channel *ch, const struct sh_coll *coll)
{
    return ch->size == 1 || sh_part_none(coll, ch->size);
}

static sh_rc alone_begin(struct sh_channel *ch)
{
    return sh_comm_run_alone(ch->c, &ch->coll, NULL);
}

static sh_rc alone_step(struct sh_channel *ch, bool *moved, bool *done)
{
    (void)ch;
    *moved = *done = true;
    return SH_OK;
}

const struct sh_algo sh_algo_alone = {
    .name = "alone",
    .fits = alone_fits,
    .begin = alone_begin,
    .step = alone_step,
};

/* For an all_reduce every rank gathers all values into staging and adds them up itself: one exchange instead of two. */
static bool small_fits(const struct sh_channel *ch, const struct sh_coll *coll)
{
    if (coll->kind == SH_OP_REDUCE_SCATTER || coll->parts || part_bytes(coll) > SH_COMM_SMALL_BYTES)
        return false;
    return coll->kind != SH_OP_ALL_REDUCE || part_bytes(coll) * ch->size <= ch->staging_bytes;
}

static sh_rc exchange_small(struct sh_channel *ch)
{
    const struct sh_coll *coll = &ch->coll;
    int bytes = (int)part_bytes(coll);
    if (ch->c->blocks)
        SH_MPI(MPI_Alltoall(coll->send, bytes, MPI_BYTE, coll->recv, bytes, MPI_BYTE, ch->comm));
    else
        SH_MPI(MPI_Ialltoall(coll->send, bytes, MPI_BYTE, coll->recv, bytes, MPI_BYTE, ch->comm, &ch->request[0]));
    return SH_OK;
}

static sh_rc small_begin(struct sh_channel *ch)
{
    const struct sh_coll *coll = &ch->coll;
    int bytes = (int)part_bytes(coll);
    ch->request[0] = MPI_REQUEST_NULL;
    if (coll->kind == SH_OP_ALL_TO_ALL)
        return exchange_small(ch);
    bool reduce = coll->kind == SH_OP_ALL_REDUCE;
    char *all = reduce ? ch->staging : coll->recv;
    const void *mine = reduce ? coll->recv : coll->send;
    if (mine == all + (int64_t)ch->rank * bytes)
        mine = MPI_IN_PLACE;
    if (ch->c->blocks)
        SH_MPI(MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, ch->comm));
    else
        SH_MPI(MPI_Iallgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, ch->comm, &ch->request[0]));
    return SH_OK;
}

static sh_rc small_step(struct sh_channel *ch, bool *moved, bool *done)
{
    const struct sh_coll *coll = &ch->coll;
    int arrived;
    SH_TRY(sh_channel_look(ch, &ch->request[0], &arrived));
    if (!arrived)
        return SH_OK;
    *moved = *done = true;
    if (coll->kind != SH_OP_ALL_REDUCE)
        return SH_OK;
    for (int r = 0; r < ch->size; r++)
        ch->source[r] = ch->staging + r * part_bytes(coll);
    sh_comm_sum(coll->dtype, coll->recv, ch->source, ch->size, coll->count);
    return SH_OK;
}

const struct sh_algo sh_algo_small = {
    .name = "small",
    .fits = small_fits,
    .begin = small_begin,
    .step = small_step,
};
