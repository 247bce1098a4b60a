/* The pieces that were written to a scratch file, each with its checksum. A piece lies between two multiples of
 * SH_TIER_PART_BYTES of the file. Memory: 24 bytes per piece, and 16 per SH_TIER_PART_BYTES of the file. Local; the
 * caller locks. */
#ifndef SH_TIER_SUMS_H
#define SH_TIER_SUMS_H

#include <stdbool.h>
#include <stdint.h>

struct sh_tier_sums;

struct sh_tier_piece {
    int64_t at, end; /* bytes [at, end) of the file */
    uint64_t sum;
};

/* For a file of `bytes` bytes, none of which is written yet. Freed with sh_tier_sums_destroy; NULL is fine. */
struct sh_tier_sums *sh_tier_sums_create(int64_t bytes);
void sh_tier_sums_destroy(struct sh_tier_sums *s);

/* Forget every piece that [at, end) touches. */
void sh_tier_sums_drop(struct sh_tier_sums *s, int64_t at, int64_t end);

/* Record a piece, of which nothing may be recorded yet. */
void sh_tier_sums_put(struct sh_tier_sums *s, struct sh_tier_piece piece);

/* The piece that begins at byte `at`, in *out; false: there is none. */
bool sh_tier_sums_find(const struct sh_tier_sums *s, int64_t at, struct sh_tier_piece *out);

/* Follow pieces that lie end to end, from `at` on. Returns the first byte of [at, end) at which no piece begins that
 * ends within the range; `end`: pieces fill it. */
int64_t sh_tier_sums_cover(const struct sh_tier_sums *s, int64_t at, int64_t end);

#endif
