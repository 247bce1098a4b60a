/* Collectives inside a segment: the ranks share their memory, so a collective is a barrier, the sum of this rank's part
 * straight from its sources, and a barrier.
 *
 *   all_gather      of a unit that exists once for its group: the chunks are there already; one barrier
 *   reduce_scatter  each rank sums its part from all ranks' gradients where they lie
 *   all_reduce      each rank sums a slice and writes it into every rank's buffer: nobody else reads or writes there
 *   all_to_all      each rank copies its parts from where the others have them; if no rank has any, nobody comes here
 *
 * Bytes moved: (size + 1) * count elements for a reduce_scatter, twice count for each rank of an all_reduce, and each
 * part once: the minimum. Sums are those of sum.h over the ranks in their order, as without a segment: the same bits. */
#include "src/comm/mpi/channel.h"
#include "src/comm/parts.h"
#include "src/comm/sum.h"

#include <stdatomic.h>
#include <string.h>

/* One step of the progress thread: long enough to be worth it, short enough to keep answering others, and within the
 * second-level cache for what an all_reduce writes out again. */
enum { PIECE_BYTES = 256 << 10, LINE_ELEMS = 32 };

/* A smaller result may still be in the second-level cache when it is used. */
enum { AWAY_BYTES = 1 << 20 };

enum { ENTER, SUM, LEAVE };

/* The phases of a channel; see segment_step(). */
static bool in_own_part(const struct sh_comm_segment *w, const void *p)
{
    const char *own = w->peers + w->rank * w->peer_bytes;

    return (const char *)p >= own && (const char *)p < own + w->peer_bytes;
}

static bool in_group(const struct sh_comm_segment *w, const void *p)
{
    return (const char *)p >= w->base && (const char *)p < w->peers;
}

/* All ranks must choose alike, so only what is equal on all of them counts: the same tensor lies at the same offset of
 * every rank's part. */
static bool segment_fits(const struct sh_channel *ch, const struct sh_coll *coll)
{
    if (!ch->segment)
        return false;
    if (coll->kind == SH_OP_ALL_GATHER)
        return ch->group == ch->c->mesh->shape.shard && in_group(ch->segment, coll->recv);
    return in_own_part(ch->segment, coll->kind == SH_OP_ALL_REDUCE ? coll->recv : coll->send);
}

/* Writes before a barrier are visible to every rank that comes out of it. */
static sh_rc barrier(struct sh_channel *ch, int phase)
{
    atomic_thread_fence(memory_order_seq_cst);
    ch->segment_phase = phase;
    SH_MPI(MPI_Ibarrier(ch->comm, &ch->request[0]));
    return SH_OK;
}

/* Nothing is sent: what this rank reads from the others takes the place of what it has for them. */
static sh_rc find_sources(struct sh_channel *ch)
{
    SH_TRY(sh_channel_find_parts(ch));
    for (int i = 0; i < ch->size; i++)
        SH_TRY(sh_part_find_at(&ch->coll, ch->size, ch->rank, i, &ch->to[i]));
    return SH_OK;
}

static sh_rc segment_begin(struct sh_channel *ch)
{
    if (ch->coll.kind == SH_OP_ALL_TO_ALL)
        SH_TRY(find_sources(ch));
    return barrier(ch, ENTER);
}

/* From a place to the same place in another rank's part: all parts have the same size and order. */
static int64_t to_peer(const struct sh_channel *ch, int rank)
{
    const struct sh_comm_segment *w = ch->segment;

    return (ch->place[rank] - w->rank) * w->peer_bytes;
}

/* Slices end at whole cache lines, so that no two ranks write to the same line. */
static int64_t line_of(const struct sh_coll *coll, int64_t rank, int64_t size)
{
    int64_t at = (coll->count * rank / size + LINE_ELEMS - 1) / LINE_ELEMS * LINE_ELEMS;

    return at < coll->count ? at : coll->count;
}

/* The elements that this rank sums: [*begin, *end) of every rank's buffer. */
static void my_part(const struct sh_channel *ch, int64_t *begin, int64_t *end)
{
    const struct sh_coll *coll = &ch->coll;

    if (coll->kind == SH_OP_REDUCE_SCATTER) {
        *begin = ch->rank * coll->count;
        *end = *begin + coll->count;
    } else {
        *begin = line_of(coll, ch->rank, ch->size);
        *end = ch->rank + 1 == ch->size ? coll->count : line_of(coll, ch->rank + 1, ch->size);
    }
}

/* Sum elements [at, at + n) from all ranks. For an all_reduce the result is also copied to the others' buffers: this
 * slice belongs to nobody else. */
static void sum(struct sh_channel *ch, int64_t at, int64_t n)
{
    const struct sh_coll *coll = &ch->coll;
    bool reduce = coll->kind == SH_OP_ALL_REDUCE;
    int64_t size = sh_dtype_bytes(coll->dtype), begin, end;
    const char *all = reduce ? coll->recv : coll->send;

    my_part(ch, &begin, &end);
    for (int r = 0; r < ch->size; r++)
        ch->source[r] = all + at * size + to_peer(ch, r);
    char *out = (char *)coll->recv + (reduce ? at : at - begin) * size;
    if (!reduce && coll->count * size >= AWAY_BYTES)
        sh_comm_sum_away(coll->dtype, out, ch->source, ch->size, n);
    else
        sh_comm_sum(coll->dtype, out, ch->source, ch->size, n);
    for (int r = 0; r < ch->size && reduce; r++)
        if (r != ch->rank)
            memcpy(out + to_peer(ch, r), out, (size_t)(n * size));
}

/* One piece per call, so that the progress thread can look after other channels in between. */
static sh_rc sum_some(struct sh_channel *ch)
{
    int64_t begin, end, n = PIECE_BYTES / sh_dtype_bytes(ch->coll.dtype);

    my_part(ch, &begin, &end);
    if (begin + ch->segment_done >= end)
        return barrier(ch, LEAVE);
    if (n > end - begin - ch->segment_done)
        n = end - begin - ch->segment_done;
    sum(ch, begin + ch->segment_done, n);
    ch->segment_done += n;
    return SH_OK;
}

/* The next piece of what this rank receives, from its own place on, so that not all ranks read from the first one. */
static sh_rc copy_some(struct sh_channel *ch)
{
    const struct sh_coll *coll = &ch->coll;
    int64_t size = sh_dtype_bytes(coll->dtype), done = ch->segment_done, left;
    int peer = ch->rank, passed = 0;

    for (; passed < ch->size && done >= ch->from[peer].n; passed++) {
        done -= ch->from[peer].n;
        peer = (peer + 1) % ch->size;
    }
    if (passed == ch->size)
        return barrier(ch, LEAVE);
    left = ch->from[peer].n - done;
    left = left < PIECE_BYTES / size ? left : PIECE_BYTES / size;
    memcpy((char *)coll->recv + (ch->from[peer].begin + done) * size,
           (const char *)coll->send + to_peer(ch, peer) + (ch->to[peer].begin + done) * size, (size_t)(left * size));
    ch->segment_done += left;
    return SH_OK;
}

/* Continue after a barrier. After LEAVE, or the only barrier of a gather, the collective is complete. */
static sh_rc pass(struct sh_channel *ch, bool *done)
{
    atomic_thread_fence(memory_order_seq_cst);
    *done = ch->segment_phase == LEAVE || ch->coll.kind == SH_OP_ALL_GATHER;
    ch->segment_phase = SUM;
    ch->segment_done = 0;
    return SH_OK;
}

/* ENTER --barrier--> SUM, a piece per call --part summed--> LEAVE --barrier--> done; an all_gather is done after ENTER.
 *
 * ENTER: every rank has written what the others read. LEAVE: every rank has read it, so it may be written again. */
static sh_rc segment_step(struct sh_channel *ch, bool *moved, bool *done)
{
    int arrived;

    if (ch->segment_phase == SUM) {
        *moved = true;
        return ch->coll.kind == SH_OP_ALL_TO_ALL ? copy_some(ch) : sum_some(ch);
    }
    SH_TRY(sh_channel_look(ch, &ch->request[0], &arrived));
    if (!arrived)
        return SH_OK;
    *moved = true;
    return pass(ch, done);
}

const struct sh_algo sh_algo_segment = {
    .name = "segment",
    .fits = segment_fits,
    .begin = segment_begin,
    .step = segment_step,
};
