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
