/* Sum leaves that come one by one in the order of one binary tree: leaves 0 and 1, 2 and 3, ... are added, then pairs
 * of those, and so on. A place past the last leaf counts as 0, so the bits depend neither on how many leaves of 0
 * follow, nor on whether 2^k neighbours were added elsewhere before. Local. Starts as {0}. */
#ifndef SH_RUN_TREE_H
#define SH_RUN_TREE_H

#include <stdint.h>

enum { SH_TREE_LEVELS = 64 };

struct sh_tree {
    int64_t leaves;
    double open[SH_TREE_LEVELS + 1]; /* one for each bit of `leaves`, the largest branch first */
};

static inline void sh_tree_add(struct sh_tree *t, double leaf)
{
    int level = __builtin_popcountll((uint64_t)t->leaves);

    t->open[level] = leaf;
    for (int64_t pairs = t->leaves++; pairs & 1; pairs >>= 1, level--)
        t->open[level - 1] += t->open[level];
}

static inline double sh_tree_total(const struct sh_tree *t)
{
    int level = __builtin_popcountll((uint64_t)t->leaves);
    double total = 0;

    while (level-- > 0)
        total = t->open[level] + total;
    return total;
}

#endif
