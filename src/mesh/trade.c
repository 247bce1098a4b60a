/* Pieces of data between any two ranks, in an order that no rank knows beforehand. */
#include "src/mesh/mesh.h"

#include "src/base/mem.h"
#include "src/base/time.h"

#include <stdlib.h>
#include <time.h>

enum { UNDER_WAY = 8, TAG_ASK = 1, TAG_DATA = 2, SILENT_SECONDS = 300 };

/* What travels when a rank asks; the data come back with the tag of the lane. */
struct letter {
    int64_t what[3], bytes, lane;
};

/* An own ask under way. */
struct lane {
    struct letter letter;
    MPI_Request sent, data;
    int64_t ask; /* -1: the lane is free */
    char *buffer;
};

/* Data on its way to another rank. */
struct reply {
    MPI_Request sent;
    char *buffer;
};

struct market {
    const struct sh_mesh_trade *t;
    MPI_Comm comm;
    int rank;
    int64_t next; /* ask */
    struct lane lane[UNDER_WAY];
    struct reply reply[UNDER_WAY];
    bool moved; /* in this turn */
};

static void trade_with_oneself(struct market *m, int64_t ask, char *buffer)
{
    const struct sh_mesh_ask *a = &m->t->ask[ask];

    m->t->give(m->t->arg, a->what, a->bytes, buffer);
    m->t->take(m->t->arg, ask, buffer);
}

static sh_rc send_ask(struct market *m, struct lane *l, int number)
{
    const struct sh_mesh_ask *a = &m->t->ask[m->next];

    l->ask = m->next++;
    m->moved = true;
    if (a->rank == m->rank) {
        trade_with_oneself(m, l->ask, l->buffer);
        l->ask = -1;
        return SH_OK;
    }
    l->letter = (struct letter){.what = {a->what[0], a->what[1], a->what[2]}, .bytes = a->bytes, .lane = number};
    SH_MPI(MPI_Irecv(l->buffer, (int)a->bytes, MPI_BYTE, a->rank, TAG_DATA + number, m->comm, &l->data));
    SH_MPI(MPI_Isend(&l->letter, sizeof l->letter, MPI_BYTE, a->rank, TAG_ASK, m->comm, &l->sent));
    return SH_OK;
}

/* *open: whether this rank still wants something. */
static sh_rc advance_asks(struct market *m, bool *open)
{
    *open = false;
    for (int i = 0; i < UNDER_WAY; i++) {
        struct lane *l = &m->lane[i];
        int done = 0;

        if (l->ask >= 0) {
            SH_MPI(MPI_Test(&l->data, &done, MPI_STATUS_IGNORE));
            if (done) {
                SH_MPI(MPI_Wait(&l->sent, MPI_STATUS_IGNORE));
                m->t->take(m->t->arg, l->ask, l->buffer);
                l->ask = -1;
                m->moved = true;
            }
        }
        if (l->ask < 0 && m->next < m->t->n)
            SH_TRY(send_ask(m, l, i));
        *open = *open || l->ask >= 0 || m->next < m->t->n;
    }
    return SH_OK;
}

static sh_rc send_reply(struct market *m, struct reply *r, int to, const struct letter *letter)
{
    if (letter->bytes < 0 || letter->bytes > SH_MESH_TRADE_BYTES)
        return sh_fail(SH_E_COMM, "rank %d asks for %lld bytes at once", to, (long long)letter->bytes);
    m->t->give(m->t->arg, letter->what, letter->bytes, r->buffer);
    SH_MPI(MPI_Isend(r->buffer, (int)letter->bytes, MPI_BYTE, to, TAG_DATA + (int)letter->lane, m->comm, &r->sent));
    m->moved = true;
    return SH_OK;
}

/* One ask of others for each reply that is free. */
static sh_rc advance_replies(struct market *m)
{
    for (int i = 0; i < UNDER_WAY; i++) {
        struct reply *r = &m->reply[i];
        struct letter letter;
        MPI_Status from;
        int done, there;

        SH_MPI(MPI_Test(&r->sent, &done, MPI_STATUS_IGNORE));
        if (!done)
            continue;
        SH_MPI(MPI_Iprobe(MPI_ANY_SOURCE, TAG_ASK, m->comm, &there, &from));
        if (!there)
            break;
        SH_MPI(MPI_Recv(&letter, sizeof letter, MPI_BYTE, from.MPI_SOURCE, TAG_ASK, m->comm, MPI_STATUS_IGNORE));
        SH_TRY(send_reply(m, r, from.MPI_SOURCE, &letter));
    }
    return SH_OK;
}

/* A rank that has everything goes on serving until all have: nobody knows before whether more asks come. */
static sh_rc turn(struct market *m)
{
    MPI_Request all = MPI_REQUEST_NULL;
    int64_t moved = sh_now_ns();
    bool open = true;
    int over = 0;

    while (!over) {
        m->moved = false;
        if (open) {
            SH_TRY(advance_asks(m, &open));
            if (!open)
                SH_MPI(MPI_Ibarrier(m->comm, &all));
        }
        SH_TRY(advance_replies(m));
        if (!open)
            SH_MPI(MPI_Test(&all, &over, MPI_STATUS_IGNORE));
        if (m->moved)
            moved = sh_now_ns();
        else if (open && sh_seconds_since(moved) > SILENT_SECONDS)
            return sh_fail(SH_E_COMM, "nothing of what this rank has asked others for has come for %d s",
                           SILENT_SECONDS);
        else
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL); /* ranks may share a core */
    }
    for (int i = 0; i < UNDER_WAY; i++)
        SH_MPI(MPI_Wait(&m->reply[i].sent, MPI_STATUS_IGNORE));
    return SH_OK;
}

sh_rc sh_mesh_trade(const struct sh_mesh_trade *t)
{
    struct market m = {.t = t};
    sh_rc rc;

    sh_mesh_own_mpi();
    SH_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &m.comm));
    SH_MPI(MPI_Comm_rank(m.comm, &m.rank));
    for (int i = 0; i < UNDER_WAY; i++) {
        m.lane[i] = (struct lane){.ask = -1, .buffer = sh_calloc(SH_MESH_TRADE_BYTES, 1)};
        m.reply[i] = (struct reply){.sent = MPI_REQUEST_NULL, .buffer = sh_calloc(SH_MESH_TRADE_BYTES, 1)};
    }
    rc = turn(&m);
    for (int i = 0; i < UNDER_WAY; i++) {
        free(m.lane[i].buffer);
        free(m.reply[i].buffer);
    }
    /* A failure leaves requests behind, and peers that wait. */
    if (rc != SH_OK)
        sh_stop(rc);
    SH_MPI(MPI_Comm_free(&m.comm));
    return SH_OK;
}
