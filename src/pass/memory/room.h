/* Free room in a section's memory: which offsets are taken, and through which operations. Order of calls: create;
 * lowest and take, for one block after the other; destroy. Local.
 *
 * Cost: each block looks at about log2(operations) sets of ranges. Ranges that touch are merged, and blocks are placed
 * without gaps where possible, so a set is a handful of ranges and n blocks take about n log n. */
#ifndef SH_PASS_ROOM_H
#define SH_PASS_ROOM_H

#include "src/pass/memory/lifetime.h"

struct sh_room *sh_room_create(int n_ops);
void sh_room_destroy(struct sh_room *r);

/* The lowest multiple of `align` from which `bytes` are free through all operations of the life. */
int64_t sh_room_lowest(struct sh_room *r, struct sh_life life, int64_t bytes, int64_t align);

/* Mark the bytes as taken; parts of them may be taken already. */
void sh_room_take(struct sh_room *r, struct sh_life life, int64_t offset, int64_t bytes);

#endif
