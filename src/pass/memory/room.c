/* A segment tree over the operations. Each node has two sets of ranges of offsets:
 *
 *   some   taken in some of the node's operations
 *   all    taken in all of them, by a life that was cut so that this node is one of its parts
 *
 * A life is cut into the fewest nodes that cover it exactly. The ranges taken within a node are its own `some`, and the
 * `all` of the nodes above it; whatever else those hold is taken at other times. */
#include "src/pass/memory/room.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct range {
    int64_t begin, end;
};

/* Sorted; no two of them touch. */
struct set {
    struct range *range;
    int n, cap;
};

struct node {
    struct set some, all;
};

struct sh_room {
    int leaves;                /* a power of two; node 1 is the root, operation i is leaf leaves + i */
    struct node *nodes;        /* [2 * leaves] */
    const struct set **looked; /* sets that the current search looks at */
    int n_looked;
};

enum { MOST_LOOKED = 4 * 32 }; /* two nodes per level, and those above them */

struct sh_room *sh_room_create(int n_ops)
{
    struct sh_room *r = sh_calloc(1, sizeof *r);

    for (r->leaves = 1; r->leaves < n_ops; r->leaves *= 2)
        ;
    r->nodes = sh_calloc(2 * (size_t)r->leaves, sizeof *r->nodes);
    r->looked = sh_calloc(MOST_LOOKED, sizeof(struct set *));
    return r;
}

void sh_room_destroy(struct sh_room *r)
{
    for (int i = 0; i < 2 * r->leaves; i++) {
        free(r->nodes[i].some.range);
        free(r->nodes[i].all.range);
    }
    free(r->nodes);
    free(r->looked);
    free(r);
}

/* The first range that ends at `at` or later; n if there is none. */
static int first_from(const struct set *s, int64_t at)
{
    int low = 0, high = s->n;

    while (low < high) {
        int middle = low + (high - low) / 2;

        if (s->range[middle].end < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Ranges that touch the new one are joined with it, so that the set stays sorted and small. */
static void add(struct set *s, struct range add)
{
    int first = first_from(s, add.begin), end = first;

    for (; end < s->n && s->range[end].begin <= add.end; end++) {
        add.begin = s->range[end].begin < add.begin ? s->range[end].begin : add.begin;
        add.end = s->range[end].end > add.end ? s->range[end].end : add.end;
    }
    if (first == end)
        s->range = sh_grow(s->range, s->n, &s->cap, sizeof *s->range);
    memmove(&s->range[first + 1], &s->range[end], (size_t)(s->n - end) * sizeof *s->range);
    s->n += 1 - (end - first);
    s->range[first] = add;
}

/* The lowest offset, from `at` on, at which the set leaves `bytes` free. */
static int64_t clear_of(const struct set *s, int64_t at, int64_t bytes)
{
    for (int i = first_from(s, at); i < s->n && s->range[i].begin < at + bytes; i++)
        at = s->range[i].end > at ? s->range[i].end : at;
    return at;
}

/* Empty sets need no search. */
static void look(struct sh_room *r, const struct set *s)
{
    if (s->n)
        r->looked[r->n_looked++] = s;
}

/* The nodes above any part of a life are above its first or its last operation. */
static void find_sets(struct sh_room *r, struct sh_life life)
{
    int left = r->leaves + life.first, right = r->leaves + life.last + 1;

    r->n_looked = 0;
    for (int a = left / 2, b = (right - 1) / 2; a > 0; a /= 2, b /= 2) {
        look(r, &r->nodes[a].all);
        if (a != b)
            look(r, &r->nodes[b].all);
    }
    for (; left < right; left /= 2, right /= 2) {
        if (left & 1)
            look(r, &r->nodes[left++].some);
        if (right & 1)
            look(r, &r->nodes[--right].some);
    }
}

/* Each set moves `at` up to where it leaves room. When all agree in a row, it is the lowest such offset: `at` only
 * grows, and no set would allow less. A set does not agree yet when its room begins below the aligned offset, where it
 * may have another range. */
int64_t sh_room_lowest(struct sh_room *r, struct sh_life life, int64_t bytes, int64_t align)
{
    int64_t at = 0;
    int agree = 0; /* sets in a row that leave the range free */

    find_sets(r, life);
    for (int i = 0; agree < r->n_looked; i = (i + 1) % r->n_looked) {
        int64_t clear = clear_of(r->looked[i], at, bytes), next = (clear + align - 1) / align * align;

        agree = next == at ? agree + 1 : next == clear;
        at = next;
    }
    return at;
}

/* The node is a part of the cut: taken in all of its operations, hence also in some. */
static void take_node(struct sh_room *r, int node, struct range range)
{
    add(&r->nodes[node].some, range);
    add(&r->nodes[node].all, range);
}

/* The same walk as find_sets(), writing: nodes above get the range as `some`, the cut's own nodes as both. */
void sh_room_take(struct sh_room *r, struct sh_life life, int64_t offset, int64_t bytes)
{
    int left = r->leaves + life.first, right = r->leaves + life.last + 1;
    struct range range = {offset, offset + bytes};

    if (!bytes)
        return;
    for (int a = left / 2, b = (right - 1) / 2; a > 0; a /= 2, b /= 2) {
        add(&r->nodes[a].some, range);
        if (a != b)
            add(&r->nodes[b].some, range);
    }
    for (; left < right; left /= 2, right /= 2) {
        if (left & 1)
            take_node(r, left++, range);
        if (right & 1)
            take_node(r, --right, range);
    }
}
