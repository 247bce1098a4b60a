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

/* Elements that the rank at place `from` has for the one at place `to`; one of them is `rank`. */
static int64_t elems_between(const struct sh_coll *coll, int size, int rank, int from, int to)
{
    const struct sh_coll_parts *p = coll->parts;

    if (!p)
        return coll->count;
    if (p->rows)
        return p->rows[(int64_t)from * size + to] * p->row_elems;
    return from == rank ? p->to[to] : p->from[from];
}

/* Counted rows come from a computation, so a wrong number ends the job before it moves anything. */
static sh_rc append_part(const struct sh_coll *coll, int size, int rank, int from, int to, int64_t *begin)
{
    int64_t n = elems_between(coll, size, rank, from, to), room = coll->parts ? coll->parts->room : size * coll->count;

    if (n < 0 || n > coll->count)
        return sh_fail(SH_E_BUG, "all_to_all %s: place %d has %lld elements for place %d; a part has 0 to %lld",
                       label(coll), from, (long long)n, to, (long long)coll->count);
    if (begin[0] + n > room)
        return sh_fail(SH_E_BUG, "all_to_all %s: place %d %s %lld elements, but there is room for %lld", label(coll),
                       rank, from == rank ? "sends" : "receives", (long long)(begin[0] + n), (long long)room);
    begin[1] = begin[0] + n;
    return SH_OK;
}

sh_rc sh_part_begins(const struct sh_coll *coll, int size, int rank, int64_t *to, int64_t *from)
{
    to[0] = from[0] = 0;
    for (int i = 0; i < size; i++) {
        SH_TRY(append_part(coll, size, rank, rank, i, &to[i]));
        SH_TRY(append_part(coll, size, rank, i, rank, &from[i]));
    }
    if (to[rank + 1] - to[rank] != from[rank + 1] - from[rank])
        return sh_fail(SH_E_BUG, "all_to_all %s: place %d has %lld elements for itself, but expects %lld", label(coll),
                       rank, (long long)(to[rank + 1] - to[rank]), (long long)(from[rank + 1] - from[rank]));
    return SH_OK;
}

int64_t sh_part_begin_at(const struct sh_coll *coll, int size, int rank, int peer)
{
    int64_t begin = 0;

    for (int i = 0; i < rank; i++)
        begin += elems_between(coll, size, peer, peer, i);
    return begin;
}
