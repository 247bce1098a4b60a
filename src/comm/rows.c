/* A reduce_scatter of which only some rows are summed: those that a token of any rank names, and one range besides. Each
 * rank notes the rows in a table of one byte a row, so that one that many tokens name is summed once. */
#include "src/base/mem.h"
#include "src/comm/channel.h"

#include <stdlib.h>

/* A step of the progress thread: rows, or elements of the range. */
enum { ROWS = 64, ELEMS = 64 << 10 };

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

/* Of elements [begin, end) those that are this rank's. */
static void sum_own(struct sh_channel *ch, int64_t begin, int64_t end)
{
    int64_t first = ch->rank * ch->coll.count, last = first + ch->coll.count;

    begin = begin > first ? begin : first;
    end = end < last ? end : last;
    if (begin < end)
        sh_segment_sum(ch, begin, end - begin);
}

static void sum_rows(struct sh_channel *ch)
{
    const struct sh_op_rows *rows = &ch->coll.rows;

    for (int n = 0; n < ROWS && ch->segment_done < rows->count; ch->segment_done++)
        if (ch->touched[ch->segment_done]) {
            int64_t at = rows->first + ch->segment_done * rows->elems;

            sum_own(ch, at, at + rows->elems);
            n++;
        }
}

bool sh_rows_some(struct sh_channel *ch)
{
    const struct sh_op_rows *rows = &ch->coll.rows;
    int64_t at = rows->begin + ch->segment_done - rows->count;

    if (ch->segment_done < rows->count) {
        sum_rows(ch);
        return true;
    }
    if (at >= rows->end) {
        free(ch->touched);
        ch->touched = NULL;
        return false;
    }
    sum_own(ch, at, at + ELEMS < rows->end ? at + ELEMS : rows->end);
    ch->segment_done += ELEMS;
    return true;
}
