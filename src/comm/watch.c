/* Questions and answers between the progress threads, on their own communicator. Nothing is posted in advance: each
 * rank looks for messages now and then, so there is nothing to cancel at the end. */
#include "src/base/mem.h"
#include "src/comm/mpi/progress.h"

#include <stdio.h>
#include <stdlib.h>

enum { TAG_ASK = 1, TAG_ANSWER = 2 };

/* Collective. Host names are gathered at the start, since a rank that hangs can no longer send its own. */
sh_rc sh_watch_open(struct sh_mpi *m)
{
    struct sh_watch *w = &m->watch;
    size_t world = (size_t)m->c->mesh->world;
    SH_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &w->comm));
    SH_TRY(sh_mesh_return_errors(w->comm));
    w->host = sh_calloc(world, sizeof *w->host);
    w->answer = sh_calloc(world, sizeof *w->answer);
    w->asked = sh_calloc(world, sizeof *w->asked);
    w->asking = sh_calloc(world, sizeof(MPI_Request));
    for (size_t i = 0; i < world; i++)
        w->asking[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < SH_WATCH_ANSWERS; i++)
        w->answering[i] = MPI_REQUEST_NULL;
    char mine[SH_WATCH_HOST_MAX] = "";
    snprintf(mine, sizeof mine, "%.*s", SH_WATCH_HOST_MAX - 1, m->c->mesh->host);
    SH_MPI(MPI_Allgather(mine, SH_WATCH_HOST_MAX, MPI_CHAR, w->host, SH_WATCH_HOST_MAX, MPI_CHAR, w->comm));
    return SH_OK;
}

void sh_watch_close(struct sh_mpi *m)
{
    struct sh_watch *w = &m->watch;
    /* Failures no longer matter: the collectives that were asked about are complete. */
    for (int i = 0; i < m->c->mesh->world; i++)
        MPI_Wait(&w->asking[i], MPI_STATUS_IGNORE);
    for (int i = 0; i < SH_WATCH_ANSWERS; i++)
        MPI_Wait(&w->answering[i], MPI_STATUS_IGNORE);
    MPI_Comm_free(&w->comm);
    free(w->asking);
    free(w->asked);
    free(w->answer);
    free(w->host);
}

/* At most one question to each rank is in flight, so that they do not pile up at a dead rank. */
sh_rc sh_watch_send_ask(struct sh_mpi *m, int world_rank)
{
    struct sh_watch *w = &m->watch;
    int sent = 1;
    SH_MPI(MPI_Test(&w->asking[world_rank], &sent, MPI_STATUS_IGNORE));
    if (!sent) /* it has not even received the last question */
        return SH_OK;
    w->asked[world_rank] = w->ask;
    SH_MPI(MPI_Isend(&w->asked[world_rank], (int)sizeof w->ask, MPI_BYTE, world_rank, TAG_ASK, w->comm,
                     &w->asking[world_rank]));
    return SH_OK;
}

/* -1: all answers are still in flight. */
static sh_rc find_slot(struct sh_watch *w, int *slot)
{
    *slot = -1;
    for (int i = 0; i < SH_WATCH_ANSWERS && *slot < 0; i++) {
        int sent = 1;
        SH_MPI(MPI_Test(&w->answering[i], &sent, MPI_STATUS_IGNORE));
        if (sent)
            *slot = i;
    }
    return SH_OK;
}

/* What this rank is doing: waiting in another collective, or what the caller noted last. */
static void describe_self(struct sh_mpi *m, struct sh_watch_answer *a)
{
    const struct sh_channel *in = sh_channel_oldest(m->channel, m->n_channels);
    a->step = atomic_load_explicit(&m->c->step, memory_order_relaxed);
    a->waits = in != NULL && a->entered < a->ask.sequence;
    if (a->waits)
        snprintf(a->doing, sizeof a->doing, "waiting in %s %s of axis %s", sh_op_info(in->coll.kind)->name,
                 in->coll.label != NULL ? in->coll.label : "", sh_comm_group_name(m->c, in->group));
    else
        snprintf(a->doing, sizeof a->doing, "%s", atomic_load_explicit(&m->c->doing, memory_order_acquire));
}

static sh_rc answer(struct sh_mpi *m, const struct sh_watch_ask *ask, int to, int slot)
{
    struct sh_watch *w = &m->watch;
    struct sh_watch_answer *a = &w->answered[slot];
    a->ask = *ask;
    a->entered = m->channel[ask->channel].entered;
    describe_self(m, a);
    SH_MPI(MPI_Isend(a, (int)sizeof *a, MPI_BYTE, to, TAG_ANSWER, w->comm, &w->answering[slot]));
    return SH_OK;
}

/* *taken false: there is no room for the answer now, and the question stays in MPI's queue. */
static sh_rc take_ask(struct sh_mpi *m, int from, sh_watch_asked *asked, bool *taken)
{
    int slot;
    SH_TRY(find_slot(&m->watch, &slot));
    *taken = slot >= 0; /* else the question stays where it is until an answer has left */
    if (!*taken)
        return SH_OK;
    struct sh_watch_ask ask;
    SH_MPI(MPI_Recv(&ask, (int)sizeof ask, MPI_BYTE, from, TAG_ASK, m->watch.comm, MPI_STATUS_IGNORE));
    SH_TRY(answer(m, &ask, from, slot));
    return asked(m, &ask, from);
}

static bool is_about(const struct sh_watch_ask *a, const struct sh_watch_ask *b)
{
    return a->channel == b->channel && a->sequence == b->sequence;
}

/* An answer to an old question, about a collective that completed after all, is read and dropped. */
static sh_rc take_answer(struct sh_mpi *m, int from)
{
    struct sh_watch *w = &m->watch;
    struct sh_watch_answer a;
    SH_MPI(MPI_Recv(&a, (int)sizeof a, MPI_BYTE, from, TAG_ANSWER, w->comm, MPI_STATUS_IGNORE));
    if (w->channel != NULL && is_about(&a.ask, &w->ask))
        w->answer[from] = a;
    return SH_OK;
}

/* Handle all messages that have arrived; never waits. */
sh_rc sh_watch_read(struct sh_mpi *m, sh_watch_asked *asked)
{
    for (;;) {
        int there = 0;
        bool taken = true;
        MPI_Status status;
        SH_MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, m->watch.comm, &there, &status));
        if (!there)
            return SH_OK;
        if (status.MPI_TAG == TAG_ASK)
            SH_TRY(take_ask(m, status.MPI_SOURCE, asked, &taken));
        else
            SH_TRY(take_answer(m, status.MPI_SOURCE));
        if (!taken)
            return SH_OK;
    }
}
