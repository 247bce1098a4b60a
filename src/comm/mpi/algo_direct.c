/* Large collectives by direct exchange: every rank sends each other rank exactly what it needs, in rounds of bounded
 * size.
 *
 *   scatter  each rank gets everyone's share of its own part into staging, and sums in a tree over the ranks (sum.h)
 *   gather   each rank receives every other part straight into its place
 *
 * reduce_scatter is a scatter, all_gather a gather, all_reduce both, round by round. all_to_all is like a gather, but
 * sends each rank another part; as parts may differ in length, so does the number of rounds between ranks, and two ranks
 * exchange messages only in the rounds that their parts have. A rank sends (size-1)/size of the
 * whole in bytes, the least possible; for all_reduce twice that. A ring moves as much, but each of its size-1 steps
 * waits for a neighbour's thread to wake up, and ranks that share cores are slow at that. MPI_Ireduce_scatter is not
 * used: it takes memory as large as the message and sums in an order of its own choice.
 *
 * Round i always runs in slot i % SH_DIRECT_ROUNDS, after round i - SH_DIRECT_ROUNDS, and the tag names slot and phase.
 * So all messages of one tag are posted in the order of their rounds on every rank, whichever slot is faster there, and
 * messages of two rounds cannot be confused. */
#include "src/comm/mpi/channel.h"
#include "src/comm/parts.h"
#include "src/comm/sum.h"

#include <string.h>

/* A gather needs no staging, but with larger parts the progress thread sees nothing move, and goes to sleep: Open MPI
 * moves 4 MiB through shared memory at 0.3 GB/s in one part, and at 14 GB/s in parts of 256 KiB. */
enum { GATHER_PART_BYTES = 256 << 10 };

static bool scatters(const struct sh_coll *coll)
{
    return coll->kind == SH_OP_REDUCE_SCATTER || coll->kind == SH_OP_ALL_REDUCE;
}

static struct sh_part part_of(const struct sh_channel *ch, int64_t round, int rank)
{
    return sh_part_of(&ch->coll, ch->size, ch->direct.part_elems, round, rank);
}

/* Slot and phase: messages of one tag are posted in the order of their rounds on every rank. */
static int tag_of(const struct sh_direct_round *r)
{
    return (int)(r->index % SH_DIRECT_ROUNDS) * 2 + (r->phase == SH_ROUND_GATHER);
}

/* Empty parts are not sent, and the receiver knows that they are empty. A part is at most a stage of 256 KiB, so int is
 * enough. */
static sh_rc send_to(const struct sh_channel *ch, struct sh_direct_round *r, struct sh_part p, int peer)
{
    if (p.elems == 0)
        return SH_OK;
    int bytes = (int)(p.elems * sh_dtype_bytes(ch->coll.dtype));
    SH_MPI(MPI_Isend(p.at, bytes, MPI_BYTE, peer, tag_of(r), ch->comm, &r->request[r->n_requests]));
    r->n_requests++;
    return SH_OK;
}

static sh_rc receive_from(const struct sh_channel *ch, struct sh_direct_round *r, struct sh_part p, int peer)
{
    if (p.elems == 0)
        return SH_OK;
    int bytes = (int)(p.elems * sh_dtype_bytes(ch->coll.dtype));
    SH_MPI(MPI_Irecv(p.at, bytes, MPI_BYTE, peer, tag_of(r), ch->comm, &r->request[r->n_requests]));
    r->n_requests++;
    return SH_OK;
}

/* Where the share of the peer `distance` places before this rank lies. */
static char *stage(const struct sh_channel *ch, const struct sh_direct_round *r, int distance)
{
    return r->staging + (distance - 1) * ch->stage_bytes;
}

/* Peers are visited by their distance, so that not all ranks send to rank 0 first. */
static int behind(const struct sh_channel *ch, int distance)
{
    return (ch->rank - distance + ch->size) % ch->size;
}

static int ahead(const struct sh_channel *ch, int distance)
{
    return (ch->rank + distance) % ch->size;
}

/* Receives are posted before sends, so that a message finds its destination and is not buffered by MPI. */
static sh_rc post_scatter(struct sh_channel *ch, struct sh_direct_round *r)
{
    r->phase = SH_ROUND_SCATTER;
    r->n_requests = 0;
    struct sh_part mine = part_of(ch, r->index, ch->rank);
    for (int d = 1; d < ch->size; d++)
        SH_TRY(receive_from(ch, r, (struct sh_part){stage(ch, r, d), mine.elems}, behind(ch, d)));
    for (int d = 1; d < ch->size; d++)
        SH_TRY(send_to(ch, r, part_of(ch, r->index, ahead(ch, d)), ahead(ch, d)));
    return SH_OK;
}

/* Parts go straight to their final place; a gather needs no staging. */
static sh_rc post_gather(struct sh_channel *ch, struct sh_direct_round *r)
{
    r->phase = SH_ROUND_GATHER;
    r->n_requests = 0;
    struct sh_part mine = part_of(ch, r->index, ch->rank);
    for (int d = 1; d < ch->size; d++)
        SH_TRY(receive_from(ch, r, part_of(ch, r->index, behind(ch, d)), behind(ch, d)));
    for (int d = 1; d < ch->size; d++)
        SH_TRY(send_to(ch, r, mine, ahead(ch, d)));
    return SH_OK;
}

/* What a round moves of an all_to_all's part for, or from, the rank at place `peer`. */
static struct sh_part stretch_of(const struct sh_channel *ch, const void *all, const struct sh_part_extent *parts,
                                 int64_t round, int peer)
{
    int64_t done = round * ch->direct.part_elems, begin = parts[peer].begin + done, left = parts[peer].n - done;

    if (left <= 0)
        return (struct sh_part){0};
    return (struct sh_part){.at = (char *)(uintptr_t)all + begin * sh_dtype_bytes(ch->coll.dtype),
                            .elems = left < ch->direct.part_elems ? left : ch->direct.part_elems};
}

static struct sh_part sent_to(const struct sh_channel *ch, int64_t round, int peer)
{
    return stretch_of(ch, ch->coll.send, ch->to, round, peer);
}

static struct sh_part received_from(const struct sh_channel *ch, int64_t round, int peer)
{
    return stretch_of(ch, ch->coll.recv, ch->from, round, peer);
}

static sh_rc post_exchange(struct sh_channel *ch, struct sh_direct_round *r)
{
    r->phase = SH_ROUND_GATHER;
    r->n_requests = 0;
    for (int d = 1; d < ch->size; d++)
        SH_TRY(receive_from(ch, r, received_from(ch, r->index, behind(ch, d)), behind(ch, d)));
    for (int d = 1; d < ch->size; d++)
        SH_TRY(send_to(ch, r, sent_to(ch, r->index, ahead(ch, d)), ahead(ch, d)));
    return SH_OK;
}

/* Copy this rank's own shard of an all_gather, unless it is there already; or its own part of an all_to_all. */
static void place_own(struct sh_channel *ch, int64_t round)
{
    int size = sh_dtype_bytes(ch->coll.dtype);
    bool exchange = ch->coll.kind == SH_OP_ALL_TO_ALL;
    struct sh_part mine = exchange ? received_from(ch, round, ch->rank) : part_of(ch, round, ch->rank);
    const char *from = (const char *)ch->coll.send + round * ch->direct.part_elems * size;
    if (exchange)
        from = sent_to(ch, round, ch->rank).at;
    if (from != mine.at)
        memcpy(mine.at, from, (size_t)(mine.elems * size));
}

/* All shares have arrived. They are added in the tree over ranks, not in the order of arrival, so that the bits are the
 * same each time. */
static void sum_part(struct sh_channel *ch, const struct sh_direct_round *r)
{
    const struct sh_coll *coll = &ch->coll;
    struct sh_part mine = part_of(ch, r->index, ch->rank);
    char *out = mine.at;
    if (coll->kind == SH_OP_REDUCE_SCATTER)
        out = (char *)coll->recv + r->index * ch->direct.part_elems * sh_dtype_bytes(coll->dtype);
    ch->source[ch->rank] = mine.at;
    for (int d = 1; d < ch->size; d++)
        ch->source[behind(ch, d)] = stage(ch, r, d);
    sh_comm_sum(coll->dtype, out, ch->source, ch->size, mine.elems);
}

/* Take this slot's next round, not the next one overall: which slot is free first differs between ranks, and the tag
 * with it. */
static sh_rc open_next_round(struct sh_channel *ch, struct sh_direct_round *r)
{
    r->index += SH_DIRECT_ROUNDS;
    if (r->index >= ch->direct.rounds) {
        r->phase = SH_ROUND_IDLE;
        return SH_OK;
    }
    if (scatters(&ch->coll))
        return post_scatter(ch, r);
    place_own(ch, r->index);
    return ch->coll.kind == SH_OP_ALL_TO_ALL ? post_exchange(ch, r) : post_gather(ch, r);
}

/* After the scatter of an all_reduce the sum has to go to all ranks; the other collectives are done with the round. */
static sh_rc end_phase(struct sh_channel *ch, struct sh_direct_round *r)
{
    if (r->phase == SH_ROUND_SCATTER) {
        sum_part(ch, r);
        if (ch->coll.kind == SH_OP_ALL_REDUCE)
            return post_gather(ch, r);
    }
    return open_next_round(ch, r);
}

/* The last algorithm of the list takes every collective that the others do not. */
static bool direct_fits(const struct sh_channel *ch, const struct sh_coll *coll)
{
    (void)ch;
    (void)coll;
    return true;
}

/* Rounds of this rank's longest part, in stretches of at most `most`. */
static sh_rc cut_exchange(struct sh_channel *ch, int64_t most)
{
    int64_t longest = 0;

    SH_TRY(sh_channel_find_parts(ch));
    for (int i = 0; i < ch->size; i++) {
        int64_t to = ch->to[i].n, from = ch->from[i].n, n = to > from ? to : from;

        longest = n > longest ? n : longest;
    }
    ch->direct.part_elems = most;
    ch->direct.rounds = (longest + most - 1) / most;
    return SH_OK;
}

/* As few rounds as possible, all of the same size except for a remainder. */
static sh_rc direct_begin(struct sh_channel *ch)
{
    const struct sh_coll *coll = &ch->coll;
    struct sh_direct *direct = &ch->direct;
    int64_t most = (scatters(coll) ? ch->stage_bytes : GATHER_PART_BYTES) / sh_dtype_bytes(coll->dtype);
    if (coll->kind == SH_OP_ALL_TO_ALL)
        SH_TRY(cut_exchange(ch, most));
    else
        direct->part_elems = sh_part_elems(coll, ch->size, most, &direct->rounds);
    for (int i = 0; i < SH_DIRECT_ROUNDS; i++) {
        direct->round[i].index = i - SH_DIRECT_ROUNDS;
        SH_TRY(open_next_round(ch, &direct->round[i]));
    }
    return SH_OK;
}

/* One request is tested until it is complete, then the next: each test drives all of MPI, so this loses nothing
 * compared with testing all of them. */
static sh_rc drain(const struct sh_channel *ch, struct sh_direct_round *r, bool *moved)
{
    int arrived = 1;
    while (arrived && r->n_requests > 0) {
        SH_TRY(sh_channel_look(ch, &r->request[r->n_requests - 1], &arrived));
        if (arrived) {
            r->n_requests--;
            *moved = true;
        }
    }
    return SH_OK;
}

/* Drive all slots, so that one round's messages travel while another is summed. Done when no slot has a round. */
static sh_rc direct_step(struct sh_channel *ch, bool *moved, bool *done)
{
    *done = true;
    for (int i = 0; i < SH_DIRECT_ROUNDS; i++) {
        struct sh_direct_round *r = &ch->direct.round[i];
        if (r->phase == SH_ROUND_IDLE)
            continue;
        SH_TRY(drain(ch, r, moved));
        if (r->n_requests == 0) {
            *moved = true;
            SH_TRY(end_phase(ch, r));
        }
        *done = *done && r->phase == SH_ROUND_IDLE;
    }
    return SH_OK;
}

const struct sh_algo sh_algo_direct = {
    .name = "direct",
    .fits = direct_fits,
    .begin = direct_begin,
    .step = direct_step,
};
