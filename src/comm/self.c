/* One rank: a collective is at most a copy, done where it is started: on a GPU, in the very queue of its operands. */
#include "src/base/time.h"
#include "src/comm/backend.h"
#include "src/comm/parts.h"

#include <string.h>

sh_rc sh_comm_run_alone(const struct sh_comm *c, const struct sh_coll *coll, void *queue)
{
    struct sh_part_extent to = {0, coll->count}, from = to;
    int64_t elem = sh_dtype_bytes(coll->dtype);
    char *recv = coll->recv;
    const char *send = coll->send;

    if (coll->kind == SH_OP_ALL_REDUCE || sh_group_size(&c->mesh->shape, coll->group) > 1)
        return SH_OK;
    if (coll->kind == SH_OP_ALL_TO_ALL)
        SH_TRY(sh_part_find(coll, 1, 0, &to, &from));
    if (to.n == 0 || send == recv)
        return SH_OK;
    if (queue != NULL)
        c->opt.device->copy(queue, recv + from.begin * elem, send + to.begin * elem, to.n * elem);
    else
        memmove(recv + from.begin * elem, send + to.begin * elem, (size_t)(to.n * elem));
    return SH_OK;
}

static sh_rc create(struct sh_comm *c)
{
    (void)c;
    return SH_OK;
}

static void destroy(struct sh_comm *c)
{
    (void)c;
}

/* Everything is complete when it returns, also on a GPU: the copy is in the queue of the operands. Counted rows
 * that do not fit end the job. */
static void start(struct sh_comm *c, int64_t ticket)
{
    struct sh_comm_item *item = sh_comm_item(c, ticket);
    item->record.start_ns = sh_now_ns();
    sh_rc rc = sh_comm_run_alone(c, &item->coll, item->coll.queue);
    if (rc != SH_OK)
        sh_stop(rc);
    sh_comm_set_complete(c, ticket);
}

const struct sh_comm_ops sh_comm_self = {
    .name = "self",
    .create = create,
    .destroy = destroy,
    .start = start,
};
