/* Stretches of a file, joined before they are moved, so that the tasks of a move are few and long. For
 * example {8,4} {0,4} {4,4} become the one stretch {0,12}; {0,4} {2,4} overlap and are refused. */
#include "io/move/ranges.h"

#include <stdlib.h>

static int by_begin(const void *a, const void *b)
{
    const struct sh_move_range *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

int sh_move_ranges_join(struct sh_move_range *ranges, int n)
{
    int last = -1;
    qsort(ranges, (size_t)n, sizeof *ranges, by_begin);
    for (int i = 0; i < n; i++) {
        int64_t end = last < 0 ? -1 : ranges[last].at + ranges[last].bytes;
        /* An overlap would be written twice, with whichever bytes come last. */
        if (ranges[i].at < end)
            return -1;
        if (ranges[i].at == end)
            ranges[last].bytes += ranges[i].bytes;
        else
            ranges[++last] = ranges[i];
    }
    return last + 1;
}
