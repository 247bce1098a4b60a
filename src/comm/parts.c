#include "src/comm/parts.h"

/* Limits on the scratch for reductions. */
enum {
    STAGING_MAX_BYTES = 8 << 20, /* of a channel, whatever it reduces */
    STAGE_MAX_BYTES = 256 << 10, /* of one source in a round: larger stages fall out of the second-level cache */
    STAGE_ALIGN = 64,
};

int64_t sh_part_stage_bytes(int64_t sources)
{
    int64_t stage = STAGING_MAX_BYTES / sources / STAGE_ALIGN * STAGE_ALIGN;
    if (stage > STAGE_MAX_BYTES)
        stage = STAGE_MAX_BYTES;
    if (stage < STAGE_ALIGN) /* more than 65536 ranks */
        stage = STAGE_ALIGN;
    return stage;
}

static int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

int64_t sh_part_elems(const struct sh_coll *coll, int size, int64_t most, int64_t *rounds)
{
    int64_t part = coll->kind == SH_OP_ALL_REDUCE ? div_up(coll->count, size) : coll->count;

    *rounds = div_up(part, most);
    return div_up(part, *rounds);
}

struct sh_part sh_part_of(const struct sh_coll *coll, int size, int64_t part_elems, int64_t round, int rank)
{
    int64_t begin = round * part_elems, end = coll->count, base = rank * coll->count;
    const char *all = coll->kind == SH_OP_REDUCE_SCATTER ? coll->send : coll->recv;
    int64_t left;

    if (coll->kind == SH_OP_ALL_REDUCE) {
        begin = (round * size + rank) * part_elems;
        base = 0;
    }
    left = end > begin ? end - begin : 0;
    return (struct sh_part){
        .at = (char *)(uintptr_t)all + (base + begin) * sh_dtype_bytes(coll->dtype),
        .elems = left < part_elems ? left : part_elems,
    };
}

static const char *label(const struct sh_coll *coll)
{
    return coll->label ? coll->label : "";
}

/* The elements of the array that are in the chunk of one rank and between the cuts of another. */
static struct sh_part_extent common(const struct sh_coll *coll, int chunk, int owner)
{
    int64_t begin = chunk * coll->count, end = begin + coll->count;
    const int64_t *cuts = coll->parts->cuts;

    begin = cuts[owner] > begin ? cuts[owner] : begin;
    end = cuts[owner + 1] < end ? cuts[owner + 1] : end;
    return (struct sh_part_extent){begin, end > begin ? end - begin : 0};
}

/* What the rank at a place has made and its run of ranks gets; where it lies in the operand. */
static struct sh_part_extent shared(const struct sh_coll_parts *p, int place)
{
    const int64_t *cut = p->cuts + place % p->sharers;

    return (struct sh_part_extent){cut[0], cut[1] - cut[0]};
}

/* Elements that the rank at place `from` sends to the one at place `to`. */
static int64_t elems_between(const struct sh_coll *coll, int size, int from, int to)
{
    const struct sh_coll_parts *p = coll->parts;

    if (!p)
        return coll->count;
    if (p->sharers)
        return from != to && from / p->sharers == to / p->sharers ? shared(p, from).n : 0;
    if (p->cuts)
        return p->back ? common(coll, to, from).n : common(coll, from, to).n;
    return p->rows[p->back ? (int64_t)to * size + from : (int64_t)from * size + to] * p->row_elems;
}

int64_t sh_part_received(const struct sh_coll *coll, int size, int rank)
{
    int64_t elems = 0;

    for (int i = 0; i < size; i++)
        elems += i != rank ? elems_between(coll, size, i, rank) : 0;
    return elems;
}

/* An operand of one rank, whose parts are found one after the other. */
struct walk {
    const struct sh_coll *coll;
    int size, rank;
    bool sends;  /* its send, else its recv */
    int64_t end; /* of the parts so far */
};

static int64_t room_of(const struct walk *w)
{
    const struct sh_coll_parts *p = w->coll->parts;

    if (!p)
        return w->size * w->coll->count;
    return w->sends ? p->send_room : p->recv_room;
}

/* Parts lie end to end, except that some have a place at home. */
static int64_t begin_of(const struct walk *w, int peer)
{
    const struct sh_coll_parts *p = w->coll->parts;

    if (p && p->sharers)
        return shared(p, w->sends ? w->rank : peer).begin;
    if (!p || w->sends == p->back || (!p->at && !p->cuts))
        return w->end;
    if (p->cuts)
        return common(w->coll, w->rank, peer).begin - w->rank * w->coll->count;
    return p->at[(int64_t)w->rank * w->size + peer] * p->row_elems;
}

/* The next part: for the peer, or from it. Counted rows come from a computation, so a wrong number ends the job before
 * it moves anything. */
static sh_rc next_part(struct walk *w, int peer, struct sh_part_extent *part)
{
    int from = w->sends ? w->rank : peer, to = w->sends ? peer : w->rank;
    int64_t n = elems_between(w->coll, w->size, from, to), begin = n ? begin_of(w, peer) : w->end;
    bool again = w->coll->parts && w->coll->parts->sharers && w->sends; /* all get the same */

    if (n < 0 || n > w->coll->count)
        return sh_fail(SH_E_BUG, "all_to_all %s: place %d has %lld elements for place %d; a part has 0 to %lld",
                       label(w->coll), from, (long long)n, to, (long long)w->coll->count);
    if (begin < w->end && !again)
        return sh_fail(SH_E_BUG,
                       "all_to_all %s: at place %d, the part %s place %d begins at element %lld; the one before it "
                       "ends at %lld",
                       label(w->coll), w->rank, w->sends ? "for" : "from", peer, (long long)begin, (long long)w->end);
    w->end = begin + n;
    if (w->end > room_of(w))
        return sh_fail(SH_E_BUG, "all_to_all %s: place %d %s %lld elements, but there is room for %lld", label(w->coll),
                       w->rank, w->sends ? "sends" : "receives", (long long)w->end, (long long)room_of(w));
    *part = (struct sh_part_extent){begin, w->coll->parts && w->coll->parts->others && from == to ? 0 : n};
    return SH_OK;
}

sh_rc sh_part_find(const struct sh_coll *coll, int size, int rank, struct sh_part_extent *to,
                   struct sh_part_extent *from)
{
    struct walk send = {.coll = coll, .size = size, .rank = rank, .sends = true}, recv = send;

    recv.sends = false;
    for (int i = 0; i < size; i++) {
        SH_TRY(next_part(&send, i, &to[i]));
        SH_TRY(next_part(&recv, i, &from[i]));
    }
    return SH_OK;
}

sh_rc sh_part_find_at(const struct sh_coll *coll, int size, int rank, int peer, struct sh_part_extent *part)
{
    struct walk send = {.coll = coll, .size = size, .rank = peer, .sends = true};

    for (int i = 0; i <= rank; i++)
        SH_TRY(next_part(&send, i, part));
    return SH_OK;
}

bool sh_part_none(const struct sh_coll *coll, int size)
{
    const struct sh_coll_parts *p = coll->parts;

    if (!p)
        return coll->count == 0;
    if (p->cuts)
        return p->cuts[0] == p->cuts[p->sharers ? p->sharers : size];
    for (int64_t i = 0; i < (int64_t)size * size; i++)
        if (p->rows[i])
            return false;
    return true;
}
