/* A reduce_scatter of a part of a gradient: the rows that a token of any rank names and one range besides, or all but
 * those. Each rank notes the rows in a table of one byte a row, and goes through its own part in runs of one kind. */
#include "src/base/mem.h"
#include "src/comm/channel.h"

#include <stdlib.h>

/* A step of the progress thread sums up to so many elements, and looks at so many runs. */
enum { ELEMS = 64 << 10, RUNS = 64 };

void sh_rows_begin(struct sh_channel *ch)
{
    const struct sh_coll *coll = &ch->coll;

    ch->touched = sh_calloc((size_t)coll->rows.count, 1);
    for (int r = 0; r < ch->size; r++) {
        const int32_t *tokens = (const int32_t *)(const void *)sh_segment_peer(ch, coll->tokens, r);

        for (int64_t i = 0; i < coll->n_tokens; i++)
            ch->touched[tokens[i]] = 1;
    }
}

struct run {
    int64_t end; /* of elements of the unit */
    bool late;   /* named rows and the range */
};

/* As far as a step goes: a table may have a hundred thousand rows of one kind. */
static struct run rows_at(const struct sh_channel *ch, int64_t at)
{
    const struct sh_op_rows *rows = &ch->coll.rows;
    int64_t row = (at - rows->first) / rows->elems, most = row + ELEMS / rows->elems + 2;
    unsigned char touched = ch->touched[row];

    while (row < rows->count && row < most && ch->touched[row] == touched)
        row++;
    return (struct run){rows->first + row * rows->elems, touched != 0};
}

/* The run that element `at` is in, of which those before it are done. */
static struct run run_at(const struct sh_channel *ch, int64_t at, int64_t end)
{
    const struct sh_op_rows *rows = &ch->coll.rows;
    int64_t next = end;

    if (at >= rows->first && at < rows->first + rows->count * rows->elems)
        return rows_at(ch, at);
    if (at >= rows->begin && at < rows->end)
        return (struct run){rows->end, true};
    if (at < rows->first)
        next = rows->first;
    if (at < rows->begin && rows->begin < next)
        next = rows->begin;
    return (struct run){next, false};
}

/* Sum the run that the collective has come to, or the beginning of a long one; returns the elements summed. */
static int64_t sum_run(struct sh_channel *ch, int64_t at, int64_t end)
{
    struct run run = run_at(ch, at, end);
    int64_t n = (run.end < end ? run.end : end) - at;

    if (run.late != ch->coll.rows.late) {
        ch->segment_done += n;
        return 0;
    }
    n = n < ELEMS ? n : ELEMS;
    sh_segment_sum(ch, at, n);
    ch->segment_done += n;
    return n;
}

bool sh_rows_some(struct sh_channel *ch)
{
    int64_t begin = ch->rank * ch->coll.count, end = begin + ch->coll.count, summed = 0;

    for (int run = 0; run < RUNS && summed < ELEMS && ch->segment_done < ch->coll.count; run++)
        summed += sum_run(ch, begin + ch->segment_done, end);
    if (summed || ch->segment_done < ch->coll.count)
        return true;
    free(ch->touched);
    ch->touched = NULL;
    return false;
}
