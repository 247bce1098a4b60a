/* Ids of pieces that were met before: 0.92 to 0.98 of all pieces of running text are there. When it is full it
 * begins anew, for a text may change its language. It belongs to one thread. What it holds never changes an id. */
#ifndef IO_TOKEN_CACHE_H
#define IO_TOKEN_CACHE_H

#include "io/token/ids.h"

#include <stdbool.h>

enum { SH_CACHE_PIECE = 255 }; /* longest piece that is kept, bytes */

struct sh_cache;

struct sh_cache *sh_cache_create(void);
void sh_cache_destroy(struct sh_cache *c); /* NULL is fine */

/* Memory accesses of later calls of sh_cache_get() with these hashes, begun ahead of them, since the table is larger
 * than the processor's own caches: of `later` the row, of `soon`, which was `later` before, the text and the ids. */
void sh_cache_fetch(const struct sh_cache *c, uint64_t later, uint64_t soon);

/* Append the ids of a piece whose sh_words_hash() is `hash`. False: it is not there. */
bool sh_cache_get(const struct sh_cache *c, uint64_t hash, const unsigned char *piece, size_t bytes,
                  struct sh_ids *out);

/* Keep the ids of a piece of 1 to SH_CACHE_PIECE bytes that is not there. n in [0, bytes + 1]. */
void sh_cache_put(struct sh_cache *c, uint64_t hash, const unsigned char *piece, size_t bytes, const uint32_t *ids,
                  size_t n);

#endif
