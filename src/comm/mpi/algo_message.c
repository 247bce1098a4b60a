/* A message from one rank of a group to another, in pieces: so the progress thread sees something move (algo_direct.c),
 * and no piece is too long for MPI. Two pieces are under way at a time. */
#include "src/comm/mpi/channel.h"

enum { PIECE_BYTES = 256 << 10, UNDER_WAY = 2 };
_Static_assert((int)UNDER_WAY <= (int)SH_DIRECT_ROUNDS, "a channel has that many requests for each peer");

static bool message_fits(const struct sh_channel *ch, const struct sh_coll *coll)
{
    (void)ch;
    return coll->kind == SH_OP_SEND || coll->kind == SH_OP_RECEIVE;
}

static int64_t message_bytes(const struct sh_coll *coll)
{
    return coll->count * sh_dtype_bytes(coll->dtype);
}

/* Piece i, if there is one. Pieces of one pair of ranks arrive in the order of their starts. */
static sh_rc post(struct sh_channel *ch, int64_t i)
{
    const struct sh_coll *coll = &ch->coll;
    int64_t at = i * PIECE_BYTES, left = message_bytes(coll) - at;
    int bytes = (int)(left < PIECE_BYTES ? left : PIECE_BYTES);
    MPI_Request *request = &ch->request[i % UNDER_WAY];
    if (i >= ch->direct.rounds)
        return SH_OK;
    if (coll->kind == SH_OP_SEND)
        SH_MPI(MPI_Isend((const char *)coll->send + at, bytes, MPI_BYTE, coll->peer, 0, ch->comm, request));
    else
        SH_MPI(MPI_Irecv((char *)coll->recv + at, bytes, MPI_BYTE, coll->peer, 0, ch->comm, request));
    return SH_OK;
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

const struct sh_algo sh_algo_message = {
    .name = "message",
    .fits = message_fits,
    .begin = message_begin,
    .step = message_step,
};
