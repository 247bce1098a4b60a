/* A message from one rank of a group to another, in pieces: so the progress thread sees something move (algo_direct.c),
 * and no piece is too long for MPI. Two pieces are under way at a time. */
#include "src/base/mem.h"
#include "src/base/time.h"
#include "src/comm/mpi/channel.h"

#include <stdlib.h>

enum { PIECE_BYTES = 256 << 10, UNDER_WAY = 2 };
enum { LARGE_BYTES = 1 << 30 }; /* pieces of one that is under way as a whole */
_Static_assert((int)UNDER_WAY <= (int)SH_DIRECT_ROUNDS, "a channel has that many requests for each peer");

struct sh_message {
    int pieces;
    MPI_Request request[];
};

bool sh_channel_is_message(const struct sh_coll *coll)
{
    return coll->kind == SH_OP_SEND || coll->kind == SH_OP_RECEIVE;
}

static bool message_fits(const struct sh_channel *ch, const struct sh_coll *coll)
{
    (void)ch;
    return sh_channel_is_message(coll);
}

static int64_t message_bytes(const struct sh_coll *coll)
{
    return coll->count * sh_dtype_bytes(coll->dtype);
}

/* Pieces of one pair of ranks arrive in the order of their starts. */
static sh_rc post_piece(const struct sh_channel *ch, const struct sh_coll *coll, int64_t at, int64_t most,
                        MPI_Request *request)
{
    int64_t left = message_bytes(coll) - at;
    int bytes = (int)(left < most ? left : most);
    if (coll->kind == SH_OP_SEND)
        SH_MPI(MPI_Isend((const char *)coll->send + at, bytes, MPI_BYTE, coll->peer, 0, ch->comm, request));
    else
        SH_MPI(MPI_Irecv((char *)coll->recv + at, bytes, MPI_BYTE, coll->peer, 0, ch->comm, request));
    return SH_OK;
}

/* Piece i, if there is one. */
static sh_rc post(struct sh_channel *ch, int64_t i)
{
    if (i >= ch->direct.rounds)
        return SH_OK;
    return post_piece(ch, &ch->coll, i * PIECE_BYTES, PIECE_BYTES, &ch->request[i % UNDER_WAY]);
}

/* `rounds` of the channel are the pieces of the message, part_elems the number of those that are complete. */
static sh_rc message_begin(struct sh_channel *ch)
{
    ch->direct.rounds = (message_bytes(&ch->coll) + PIECE_BYTES - 1) / PIECE_BYTES;
    ch->direct.part_elems = 0;
    for (int64_t i = 0; i < UNDER_WAY; i++)
        SH_TRY(post(ch, i));
    return SH_OK;
}

static sh_rc message_step(struct sh_channel *ch, bool *moved, bool *done)
{
    int arrived = 1;
    while (arrived && ch->direct.part_elems < ch->direct.rounds) {
        SH_TRY(sh_channel_look(ch, &ch->request[ch->direct.part_elems % UNDER_WAY], &arrived));
        if (arrived) {
            SH_TRY(post(ch, ch->direct.part_elems + UNDER_WAY));
            ch->direct.part_elems++;
            *moved = true;
        }
    }
    *done = ch->direct.part_elems == ch->direct.rounds;
    return SH_OK;
}

sh_rc sh_channel_start_message(const struct sh_channel *ch, struct sh_comm_item *item)
{
    int pieces = (int)((message_bytes(&item->coll) + LARGE_BYTES - 1) / LARGE_BYTES);
    struct sh_message *m = sh_calloc(1, sizeof *m + (size_t)pieces * sizeof *m->request);
    item->message = m;
    item->record.start_ns = sh_now_ns();
    for (; m->pieces < pieces; m->pieces++)
        SH_TRY(post_piece(ch, &item->coll, (int64_t)m->pieces * LARGE_BYTES, LARGE_BYTES, &m->request[m->pieces]));
    return SH_OK;
}

sh_rc sh_channel_wait_message(struct sh_comm *c, int64_t ticket)
{
    struct sh_message *m = sh_comm_item(c, ticket)->message;
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < m->pieces; i++)
        SH_MPI(MPI_Wait(&m->request[i], MPI_STATUS_IGNORE));
    pthread_mutex_lock(&c->lock);
    free(m);
    sh_comm_item(c, ticket)->message = NULL;
    sh_comm_set_complete(c, ticket);
    return SH_OK;
}

const struct sh_algo sh_algo_message = {
    .name = "message",
    .fits = message_fits,
    .begin = message_begin,
    .step = message_step,
};
