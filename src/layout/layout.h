/* Which rank holds which elements. Pure arithmetic, local, no state: the single source behind sharding and checkpoints.
 *
 * A unit is the flat run of the parameters that are gathered together, laid end to end without gaps. It is cut over
 * `size` ranks in equal chunks of whole SH_LAYOUT_ALIGN elements; the last ranks may own less than a chunk, or nothing.
 * The elements between a rank's last owned element and the end of its chunk are padding: never updated, never saved,
 * never counted in a norm. */
#ifndef SH_LAYOUT_LAYOUT_H
#define SH_LAYOUT_LAYOUT_H

#include <stdint.h>

enum { SH_LAYOUT_ALIGN = 64 }; /* elements: 256 bytes in f32, 128 in bf16 */

struct sh_range {
    int64_t begin, end; /* half-open; empty when begin == end */
};

/* Elements of one rank's chunk of a unit of `elems` over `size` ranks (>= 1): ceil(elems / size) rounded up. */
int64_t sh_layout_chunk(int64_t elems, int size);

/* The elements of the unit that rank `index` of `size` owns, as a range of the unit. */
struct sh_range sh_layout_owned(int64_t elems, int size, int index);

/* The same, if chunks are larger than that: other ranks have more elements in units of this name. */
struct sh_range sh_layout_owned_chunk(int64_t elems, int64_t chunk, int index);

/* The common part of two ranges; if it is empty, begin == end == the larger begin. */
struct sh_range sh_layout_intersect(struct sh_range a, struct sh_range b);

/* Part `index` of `parts` of a range, for replicas that share the work of writing what they all hold; parts are aligned
 * to SH_LAYOUT_ALIGN from range.begin. */
struct sh_range sh_layout_split(struct sh_range range, int parts, int index);

#endif
