/* Large collectives over many ranks in two levels: the ranks of one node first combine what they have for another node,
 * so that a node receives everything once. A block is `ranks` neighbouring ranks on a node, a power of two (levels.h);
 * rank p of a block communicates only with rank p of the other blocks.
 *
 *   scatter  each rank leaves in shared memory what the others of its block will sum; rank p sums the parts of the p-th
 *            ranks of all blocks, over its block, and sends each its sum; a rank that has those of all blocks sums them
 *   gather   rank p receives the parts of the p-th ranks of all blocks, and leaves them in shared memory for its block
 *
 * reduce_scatter is a scatter, all_gather a gather, all_reduce both. With n ranks in k blocks this takes n (k - 1)
 * messages instead of n (n - 1) for a part of each rank, and k/n of the bytes; bf16 travels between blocks as f32, so
 * that it is rounded once. A block is a branch of the tree over all ranks, and so are the blocks together: the bits are
 * those of the direct algorithm.
 *
 * Each round of a phase is k steps, one for each block at distance 0, 1, ...: a slot of shared memory holds one step,
 * which keeps stages large when there are many blocks. All ranks of a block go through the same steps in the same
 * order: a rank gives (writes) a step when the slot is free, and takes (reads) it when all others have given it. A step
 * waits only for steps that come before it in this order on all ranks of all blocks, so there is always a rank that can
 * continue. A scatter comes two rounds before its gather, so that messages travel while the next round is summed: S0 -
 * S1 G0 S2 G1 ... - Gn.
 *
 * Both sides post the messages of a tag in the order of rounds. Nothing waits inside MPI, even if channels block: a
 * rank that did could not give its neighbours what they wait for in memory. */
#include "src/comm/mpi/levels.h"
#include "src/comm/parts.h"
#include "src/comm/sum.h"

#include <string.h>

/* As in algo_direct.c: with larger parts the progress thread falls asleep. */
enum { GATHER_PART_BYTES = 256 << 10 };

enum { TAG_SCATTER, TAG_GATHER };

struct step {
    bool gather, empty;
    int64_t round;
    int distance;
};

static bool scatters(const struct sh_channel *ch)
{
    return ch->coll.kind != SH_OP_ALL_GATHER;
}

static bool gathers(const struct sh_channel *ch)
{
    return ch->coll.kind != SH_OP_REDUCE_SCATTER;
}

/* An all_reduce alternates between the phases; the first and the last pair have only one. */
static struct step step_at(const struct sh_channel *ch, int64_t index)
{
    const struct sh_levels *l = ch->levels;
    int64_t phase = index / l->blocks;
    struct step s = {.gather = gathers(ch), .round = phase, .distance = (int)(index % l->blocks)};

    if (ch->coll.kind == SH_OP_ALL_REDUCE) {
        s.gather = phase % 2;
        s.round = s.gather ? (phase - 3) / 2 : phase / 2;
        s.empty = phase == 1 || s.round >= l->rounds;
    }
    return s;
}

/* The number of steps up to the end of a phase. */
static int64_t end_of(const struct sh_channel *ch, bool gather, int64_t round)
{
    int64_t phase = round;

    if (ch->coll.kind == SH_OP_ALL_REDUCE)
        phase = gather ? 2 * round + 3 : 2 * round;
    return (phase + 1) * ch->levels->blocks;
}

static struct sh_part part_of(const struct sh_channel *ch, int64_t round, int rank)
{
    return sh_part_of(&ch->coll, ch->size, ch->levels->part_elems, round, rank);
}

static size_t bytes_of(const struct sh_channel *ch, struct sh_part p)
{
    return (size_t)(p.elems * sh_dtype_bytes(ch->coll.dtype));
}

/* The rank at a place of a block. Scatters go to the block `distance` ahead, gathers come from the block as far behind,
 * so that not all ranks talk to one block at a time. */
static int ahead(const struct sh_levels *l, int distance, int place)
{
    return (l->block + distance) % l->blocks * l->ranks + place;
}

static int behind(const struct sh_levels *l, int distance, int place)
{
    return (l->block - distance + l->blocks) % l->blocks * l->ranks + place;
}

/* Empty parts are not sent; the receiver knows that they are empty. Parts are a few 100 KiB, so int is enough. */
static sh_rc send_to(const struct sh_channel *ch, const void *at, size_t bytes, int peer, int tag, MPI_Request *r)
{
    if (bytes > 0)
        SH_MPI(MPI_Isend(at, (int)bytes, MPI_BYTE, peer, tag, ch->comm, r));
    return SH_OK;
}

static sh_rc receive_from(const struct sh_channel *ch, void *at, size_t bytes, int peer, int tag, MPI_Request *r)
{
    if (bytes > 0)
        SH_MPI(MPI_Irecv(at, (int)bytes, MPI_BYTE, peer, tag, ch->comm, r));
    return SH_OK;
}

static sh_rc are_complete(MPI_Request *request, int n, bool *all)
{
    int complete = 1;

    for (int i = 0; i < n && complete; i++)
        SH_MPI(MPI_Test(&request[i], &complete, MPI_STATUS_IGNORE));
    *all = complete;
    return SH_OK;
}

/* Bytes of a sum, in the type of the additions. */
static size_t sum_bytes(const struct sh_channel *ch, struct sh_part p)
{
    return (size_t)(p.elems * sh_dtype_bytes(sh_comm_sum_type(ch->coll.dtype)));
}

/* Post receives for the other blocks' sums of this rank's part. */
static sh_rc expect_sums(struct sh_channel *ch, int64_t round)
{
    struct sh_levels *l = ch->levels;
    int slot = (int)(round % SH_DIRECT_ROUNDS);

    if (round >= l->rounds)
        return SH_OK;
    for (int d = 1; d < l->blocks; d++)
        SH_TRY(receive_from(ch, l->in[slot] + (d - 1) * l->stage_bytes, sum_bytes(ch, part_of(ch, round, ch->rank)),
                            behind(l, d, l->place), TAG_SCATTER, &l->scatter_in[slot][d - 1]));
    return SH_OK;
}

/* Send this rank's own part to all blocks, and receive theirs straight into their final place. */
static sh_rc exchange_parts(struct sh_channel *ch, int64_t round)
{
    struct sh_levels *l = ch->levels;
    int slot = (int)(round % SH_DIRECT_ROUNDS);
    struct sh_part mine = part_of(ch, round, ch->rank);

    for (int d = 1; d < l->blocks; d++) {
        int peer = behind(l, d, l->place);
        struct sh_part p = part_of(ch, round, peer);

        SH_TRY(receive_from(ch, p.at, bytes_of(ch, p), peer, TAG_GATHER, &l->gather_in[slot][d - 1]));
    }
    for (int d = 1; d < l->blocks; d++)
        SH_TRY(
            send_to(ch, mine.at, bytes_of(ch, mine), ahead(l, d, l->place), TAG_GATHER, &l->gather_out[slot][d - 1]));
    return SH_OK;
}

/* Give each other rank of the block the shares that it sums for the block `distance` ahead. */
static void give_shares(struct sh_channel *ch, struct step s, int64_t index)
{
    const struct sh_levels *l = ch->levels;

    for (int i = 0; i < l->ranks; i++) {
        struct sh_part p = part_of(ch, s.round, ahead(l, s.distance, i));

        if (i != l->place && p.elems > 0)
            memcpy(sh_levels_stage(l, index, l->place, i), p.at, bytes_of(ch, p));
    }
}

/* Give this rank's own part, or the part that came from its counterpart in another block. All ranks read the same
 * bytes. */
static void give_part(struct sh_channel *ch, struct step s, int64_t index)
{
    const struct sh_levels *l = ch->levels;
    struct sh_part p = part_of(ch, s.round, behind(l, s.distance, l->place));

    if (p.elems > 0)
        memcpy(sh_levels_stage(l, index, l->place, l->place ? 0 : 1), p.at, bytes_of(ch, p));
}

/* Whether this rank already has what it gives in the step. */
static sh_rc has(struct sh_channel *ch, struct step s, bool *there)
{
    struct sh_levels *l = ch->levels;

    *there = !s.gather || l->ready > s.round;
    if (s.gather && *there && s.distance > 0)
        return are_complete(&l->gather_in[s.round % SH_DIRECT_ROUNDS][s.distance - 1], 1, there);
    return SH_OK;
}

static sh_rc give(struct sh_channel *ch, bool *moved)
{
    struct sh_levels *l = ch->levels;
    struct step s = step_at(ch, l->given);
    bool there = true;

    if (!s.empty) {
        if (!sh_levels_may_give(l, l->given))
            return SH_OK;
        SH_TRY(has(ch, s, &there));
        if (!there)
            return SH_OK;
        if (s.gather)
            give_part(ch, s, l->given);
        else
            give_shares(ch, s, l->given);
    }
    *moved = true;
    sh_levels_set_given(l, l->given++);
    return SH_OK;
}

/* Whether the buffer for this block's sum is free: what lay there two rounds ago has been sent or used. */
static sh_rc has_left(struct sh_channel *ch, struct step s, bool *left)
{
    struct sh_levels *l = ch->levels;

    *left = s.round < SH_DIRECT_ROUNDS || l->ready > s.round - SH_DIRECT_ROUNDS;
    if (s.distance > 0)
        return are_complete(&l->scatter_out[s.round % SH_DIRECT_ROUNDS][s.distance - 1], 1, left);
    return SH_OK;
}

/* Sum over the block the part of this rank's counterpart `distance` ahead. */
static sh_rc take_shares(struct sh_channel *ch, struct step s, int64_t index)
{
    struct sh_levels *l = ch->levels;
    int slot = (int)(s.round % SH_DIRECT_ROUNDS), peer = ahead(l, s.distance, l->place);
    char *out = l->out[slot] + s.distance * l->stage_bytes;
    struct sh_part p = part_of(ch, s.round, peer);

    for (int i = 0; i < l->ranks; i++)
        ch->source[i] = i == l->place ? p.at : sh_levels_stage(l, index, i, l->place);
    sh_comm_sum_open(ch->coll.dtype, out, ch->source, l->ranks, p.elems);
    if (s.distance == 0)
        return SH_OK;
    return send_to(ch, out, sum_bytes(ch, p), peer, TAG_SCATTER, &l->scatter_out[slot][s.distance - 1]);
}

static void take_parts(struct sh_channel *ch, struct step s, int64_t index)
{
    const struct sh_levels *l = ch->levels;

    for (int i = 0; i < l->ranks; i++) {
        struct sh_part p = part_of(ch, s.round, behind(l, s.distance, i));

        if (i != l->place && p.elems > 0)
            memcpy(p.at, sh_levels_stage(l, index, i, i ? 0 : 1), bytes_of(ch, p));
    }
}

static sh_rc take(struct sh_channel *ch, bool *moved)
{
    struct sh_levels *l = ch->levels;
    struct step s = step_at(ch, l->taken);
    bool left = true;

    if (!s.empty) {
        if (!sh_levels_may_take(l, l->taken))
            return SH_OK;
        if (s.gather) {
            take_parts(ch, s, l->taken);
        } else {
            SH_TRY(has_left(ch, s, &left));
            if (!left)
                return SH_OK;
            SH_TRY(take_shares(ch, s, l->taken));
        }
    }
    *moved = true;
    sh_levels_set_taken(l, l->taken++);
    return SH_OK;
}

/* Add the blocks in their order; they are the branches of the tree. */
static void sum_blocks(struct sh_channel *ch, int64_t round)
{
    struct sh_levels *l = ch->levels;
    const struct sh_coll *coll = &ch->coll;
    int slot = (int)(round % SH_DIRECT_ROUNDS);
    struct sh_part mine = part_of(ch, round, ch->rank);
    char *to = mine.at;

    if (coll->kind == SH_OP_REDUCE_SCATTER)
        to = (char *)coll->recv + round * l->part_elems * sh_dtype_bytes(coll->dtype);
    ch->source[l->block] = l->out[slot];
    for (int d = 1; d < l->blocks; d++)
        ch->source[(l->block - d + l->blocks) % l->blocks] = l->in[slot] + (d - 1) * l->stage_bytes;
    sh_comm_sum_close(coll->dtype, to, ch->source, l->blocks, mine.elems);
}

/* Copy this rank's own shard of an all_gather, unless it is there already. */
static void place_own(struct sh_channel *ch, int64_t round)
{
    struct sh_part mine = part_of(ch, round, ch->rank);
    const char *from = (const char *)ch->coll.send + round * ch->levels->part_elems * sh_dtype_bytes(ch->coll.dtype);

    if (from != mine.at)
        memcpy(mine.at, from, bytes_of(ch, mine));
}

/* Whether the requests of a gather are free for this round: everything of two rounds ago was received, given to the
 * block, and sent. */
static sh_rc may_exchange(struct sh_channel *ch, int64_t round, bool *may)
{
    struct sh_levels *l = ch->levels;

    *may = round < SH_DIRECT_ROUNDS || l->given >= end_of(ch, true, round - SH_DIRECT_ROUNDS);
    if (*may)
        return are_complete(l->gather_out[round % SH_DIRECT_ROUNDS], l->blocks - 1, may);
    return SH_OK;
}

static sh_rc may_sum(struct sh_channel *ch, int64_t round, bool *may)
{
    struct sh_levels *l = ch->levels;

    *may = l->taken >= end_of(ch, false, round);
    if (*may)
        return are_complete(l->scatter_in[round % SH_DIRECT_ROUNDS], l->blocks - 1, may);
    return SH_OK;
}

/* Make the next round's own part ready: sum it, or take the own shard. It is the result, or is sent to all. */
static sh_rc make_ready(struct sh_channel *ch, bool *moved)
{
    struct sh_levels *l = ch->levels;
    int64_t round = l->ready;
    bool may = true;

    if (gathers(ch))
        SH_TRY(may_exchange(ch, round, &may));
    if (may && scatters(ch))
        SH_TRY(may_sum(ch, round, &may));
    if (!may)
        return SH_OK;
    *moved = true;
    if (scatters(ch)) {
        sum_blocks(ch, round);
        SH_TRY(expect_sums(ch, round + SH_DIRECT_ROUNDS));
    } else {
        place_own(ch, round);
    }
    l->ready++;
    return gathers(ch) ? exchange_parts(ch, round) : SH_OK;
}

static bool levels_fits(const struct sh_channel *ch, const struct sh_coll *coll)
{
    return ch->levels != NULL && coll->kind != SH_OP_ALL_TO_ALL; /* nothing is shared between its parts */
}

/* A gather uses only one stage of its slot, which may take the whole slot. */
static sh_rc levels_begin(struct sh_channel *ch)
{
    struct sh_levels *l = ch->levels;
    const struct sh_coll *coll = &ch->coll;
    int64_t whole = l->slot_bytes < GATHER_PART_BYTES ? l->slot_bytes : GATHER_PART_BYTES;
    int64_t most = scatters(ch) ? l->stage_bytes / sh_dtype_bytes(sh_comm_sum_type(coll->dtype))
                                : whole / sh_dtype_bytes(coll->dtype);

    l->before += l->steps; /* of the previous collective */
    l->part_elems = sh_part_elems(coll, ch->size, most, &l->rounds);
    l->steps = end_of(ch, gathers(ch), l->rounds - 1);
    l->given = l->taken = l->ready = 0;
    for (int64_t round = 0; scatters(ch) && round < SH_DIRECT_ROUNDS; round++)
        SH_TRY(expect_sums(ch, round));
    return SH_OK;
}

/* At most one piece of work of each kind, so that the progress thread can look after other channels in between. All
 * requests are tested each time: that drives MPI while this rank waits only for memory, and sends may still be under
 * way when everything else is done. */
static sh_rc levels_step(struct sh_channel *ch, bool *moved, bool *done)
{
    struct sh_levels *l = ch->levels;

    if (l->given < l->steps)
        SH_TRY(give(ch, moved));
    if (l->taken < l->steps)
        SH_TRY(take(ch, moved));
    if (l->ready < l->rounds)
        SH_TRY(make_ready(ch, moved));
    SH_TRY(are_complete(l->request, l->n_requests, done));
    *done = *done && l->given == l->steps && l->taken == l->steps && l->ready == l->rounds;
    return SH_OK;
}

const struct sh_algo sh_algo_levels = {
    .name = "levels",
    .fits = levels_fits,
    .begin = levels_begin,
    .step = levels_step,
};
