#include "src/comm/comm.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/comm/backend.h"
#include "src/comm/parts.h"

#include "sherd_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RING_MIN = 2 * SH_COMM_ON_DEVICE }; /* tickets that may be open at once, whatever the history */

static const struct sh_comm_ops *const backends[] = {
    &sh_comm_mpi,
#if defined HAVE_CUDA && defined HAVE_NCCL
    &sh_comm_nccl,
#endif
};

static const struct sh_comm_ops *find(const char *name)
{
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (!strcmp(backends[i]->name, name))
            return backends[i];
    return NULL;
}

/* SH_E_USAGE if it is not available: choose_auto() then takes MPI. */
static sh_rc want_nccl(const struct sh_comm_options *opt, const struct sh_comm_ops *nccl)
{
    if (!opt->device || !opt->device->gpu)
        return sh_fail(SH_E_USAGE, "comm.backend=nccl is for GPUs, but training.device is cpu; leave it out");
    if (!nccl)
        return sh_fail(SH_E_USAGE, "comm.backend=nccl, but this sherd was built without NCCL's headers");
    return nccl->available();
}

/* NCCL if there are GPUs and all ranks find the library; a library that does not work is an error. */
static sh_rc choose_auto(const struct sh_comm_options *opt, const struct sh_comm_ops **ops)
{
    const struct sh_comm_ops *nccl = find("nccl");
    sh_rc rc;

    *ops = &sh_comm_mpi;
    if (!opt->device || !opt->device->gpu)
        return SH_OK;
    rc = sh_agree(want_nccl(opt, nccl));
    if (rc == SH_OK)
        *ops = nccl;
    if (rc != SH_E_USAGE)
        return rc;
    if (sh_error_text()[0])
        sh_log_info("GPUs talk through MPI and host memory: %s", sh_error_text());
    sh_error_clear();
    return SH_OK;
}

/* Collective: all ranks choose alike. */
static sh_rc choose(const struct sh_mesh *mesh, const struct sh_comm_options *opt, const struct sh_comm_ops **ops)
{
    const char *name = opt->backend ? opt->backend : "auto";

    if (!strcmp(name, "nccl"))
        SH_TRY(sh_agree(want_nccl(opt, find(name))));
    if (mesh->world > 1 && !strcmp(name, "auto"))
        return choose_auto(opt, ops);
    *ops = mesh->world == 1 ? &sh_comm_self : find(name);
    SH_REQUIRE(*ops);
    return SH_OK;
}

/* Collectives between GPUs are launched in queues and watched by a thread; between CPUs somebody has to call MPI. */
static sh_rc check_progress(const struct sh_mesh *mesh, const struct sh_comm_options *opt)
{
    SH_REQUIRE(!opt->inline_progress || !opt->device || !opt->device->gpu);
    if (!opt->inline_progress && mesh->world > 1 && !sh_mesh_threads_may_call())
        return sh_fail(SH_E_COMM, "this MPI library lets only one thread call it; set comm.progress=inline");
    return SH_OK;
}

static void init_locks(struct sh_comm *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* the wall clock may jump */
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, &attr);
    pthread_cond_init(&c->done, &attr);
    pthread_condattr_destroy(&attr);
}

static void free_all(struct sh_comm *c)
{
    sh_comm_device_close(c);
    pthread_cond_destroy(&c->done);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->lock);
    free(c->ring);
    free(c);
}

/* Collective. Everything that `opt` points to must stay as it is. On failure nothing is left behind. */
sh_rc sh_comm_create(const struct sh_mesh *mesh, const struct sh_comm_options *opt, struct sh_comm **out)
{
    const struct sh_comm_ops *ops;
    SH_REQUIRE(opt->timeout_seconds >= 0 && opt->history >= 0);
    SH_TRY(check_progress(mesh, opt));
    SH_TRY(choose(mesh, opt, &ops));
    struct sh_comm *c = sh_calloc(1, sizeof *c);
    c->ops = ops;
    c->mesh = mesh;
    c->opt = *opt;
    c->blocks = opt->inline_progress && opt->timeout_seconds == 0;
    c->capacity = opt->history > RING_MIN ? opt->history : RING_MIN;
    c->ring = sh_calloc((size_t)c->capacity, sizeof *c->ring);
    c->oldest_open = 1;
    atomic_init(&c->doing, "starting");
    init_locks(c);
    if (c->blocks)
        sh_mesh_wait_in_mpi(true);
    sh_comm_device_open(c);
    sh_rc rc = c->ops->create(c);
    if (rc != SH_OK) {
        free_all(c);
        return rc;
    }
    *out = c;
    return SH_OK;
}

/* Waits for everything that was started: buffers of collectives belong to the caller, who frees them next. */
void sh_comm_destroy(struct sh_comm *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    while (c->oldest_open <= c->newest)
        sh_comm_wait_locked(c, c->oldest_open);
    pthread_mutex_unlock(&c->lock);
    c->ops->destroy(c);
    free_all(c);
}

const char *sh_comm_name(const struct sh_comm *c)
{
    return c->ops->name;
}

const char *sh_comm_describe(const struct sh_comm *c, char text[SH_COMM_TEXT])
{
    snprintf(text, SH_COMM_TEXT, "%s", c->ops->name);
    if (c->ops->describe)
        c->ops->describe(text);
    return text;
}

void sh_comm_set_segment(struct sh_comm *c, const struct sh_comm_segment *w)
{
    c->segment = *w;
    if (c->ops->set_segment)
        c->ops->set_segment(c);
}

int sh_comm_block(const struct sh_comm *c, sh_group group)
{
    return c->ops->block ? c->ops->block(c, group) : 1;
}

static bool is_named(const struct sh_comm *c, const struct sh_coll *coll)
{
    int row = sh_program_find_group(c->opt.groups, c->opt.n_groups, coll->group);
    return row != SH_NONE && c->opt.groups[row].streams >> coll->stream & 1;
}

/* Counted rows in host memory may still be the result of another collective; what moves them looks at them then. */
static sh_rc check_parts(const struct sh_comm *c, const struct sh_coll *coll)
{
    const struct sh_coll_parts *p = coll->parts;
    int size = sh_group_size(&c->mesh->shape, coll->group), rank = sh_group_index(&c->mesh->shape, coll->group);
    struct sh_part_extent *part;
    sh_rc rc;

    SH_REQUIRE(coll->kind == SH_OP_ALL_TO_ALL && p->send_room >= 0 && p->recv_room >= 0);
    SH_REQUIRE(p->cuts || (p->rows && p->row_elems > 0));
    SH_REQUIRE(!p->sharers || (p->cuts && size % p->sharers == 0));
    if (!coll->queue)
        return SH_OK;
    part = sh_calloc((size_t)size, 2 * sizeof *part);
    rc = sh_part_find(coll, size, rank, part, part + size);
    free(part);
    return rc;
}

/* Mistakes of a caller: bugs, not conditions of the run. */
static sh_rc check(const struct sh_comm *c, const struct sh_coll *coll)
{
    bool message = coll->kind == SH_OP_SEND || coll->kind == SH_OP_RECEIVE;
    bool moves = coll->kind == SH_OP_ALL_GATHER || coll->kind == SH_OP_ALL_TO_ALL || message;

    SH_REQUIRE(moves || coll->kind == SH_OP_REDUCE_SCATTER || coll->kind == SH_OP_ALL_REDUCE);
    SH_REQUIRE((unsigned)coll->stream < (unsigned)c->opt.n_streams && is_named(c, coll));
    SH_REQUIRE((unsigned)coll->dtype < SH_DTYPES && coll->count >= 0);
    SH_REQUIRE(moves || coll->dtype == SH_F32 || coll->dtype == SH_F64 || coll->dtype == SH_BF16);
    SH_REQUIRE(!message || c->ops != &sh_comm_self);
    SH_REQUIRE(!message || coll->peer != sh_group_index(&c->mesh->shape, coll->group));
    SH_REQUIRE(!message || (coll->peer >= 0 && coll->peer < sh_group_size(&c->mesh->shape, coll->group)));
    SH_REQUIRE(coll->after >= 0 && coll->after <= c->newest);
    SH_REQUIRE(!coll->queue || c->events);
    SH_REQUIRE(coll->kind != SH_OP_ALL_TO_ALL || coll->count == 0 ||
               (coll->send == coll->recv) == (coll->parts && coll->parts->sharers));
    return coll->parts ? check_parts(c, coll) : SH_OK;
}

/* The lock is not held while the GPU's library works, since that may block. */
static sh_rc launch(struct sh_comm *c, struct sh_comm_item *item)
{
    sh_rc rc = SH_OK;

    item->events = &c->events[item->record.ticket % SH_COMM_ON_DEVICE];
    pthread_mutex_unlock(&c->lock);
    if (c->ops->launch)
        rc = c->ops->launch(c, item);
    pthread_mutex_lock(&c->lock);
    return rc;
}

/* Asynchronous. The item takes the place of an old ticket, which must be complete; so a start may wait if more
 * collectives are under way than the ring has places. */
sh_rc sh_comm_start(struct sh_comm *c, const struct sh_coll *coll, int64_t *ticket)
{
    SH_TRY(check(c, coll));
    pthread_mutex_lock(&c->lock);
    /* the ticket whose place the new one takes */
    sh_comm_wait_locked(c, c->newest + 1 - (coll->queue ? SH_COMM_ON_DEVICE : c->capacity));
    int64_t new = sh_comm_push(c, coll);
    sh_rc rc = coll->queue ? launch(c, sh_comm_item(c, new)) : SH_OK;
    if (rc == SH_OK) {
        c->ops->start(c, new);
        *ticket = new;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* The queue waits, not the host. On a backend without queues everything is already complete. */
sh_rc sh_comm_join(struct sh_comm *c, int64_t ticket, void *queue)
{
    SH_REQUIRE(ticket > 0 && ticket <= c->newest && queue);
    return c->ops->join ? c->ops->join(c, ticket, queue) : SH_OK;
}

/* False: the ticket was never given, or its record has been overwritten. */
bool sh_comm_record(struct sh_comm *c, int64_t ticket, struct sh_coll_record *out)
{
    pthread_mutex_lock(&c->lock);
    bool known = ticket > 0 && ticket <= c->newest && ticket > c->newest - c->opt.history;
    if (known)
        *out = sh_comm_item(c, ticket)->record;
    pthread_mutex_unlock(&c->lock);
    return known;
}

void sh_comm_note(struct sh_comm *c, int64_t step, const char *doing)
{
    atomic_store_explicit(&c->step, step, memory_order_relaxed);
    atomic_store_explicit(&c->doing, doing, memory_order_release); /* the text it points to comes first */
}
