/* Cache of the ids of pieces seen before: it holds 0.92 to 0.98 of all pieces of running text. A full cache is emptied
 * and starts again, because a text may change its language. A cache belongs to one thread. Its contents never change an
 * id. */
#ifndef IO_TOKEN_CACHE_H
#define IO_TOKEN_CACHE_H

#include "src/text/base/ids.h"

#include <stdbool.h>

enum { SH_CACHE_PIECE = 255 }; /* longest piece that is cached, in bytes */

struct sh_cache;

struct sh_cache *sh_cache_create(void);
void sh_cache_destroy(struct sh_cache *c); /* NULL is fine */

/* Prefetch memory for later calls of sh_cache_get() with these hashes, because the table is larger than the processor's
 * own caches: the row of `later`; the text and the ids of `soon`, which was `later` in an earlier call. */
void sh_cache_fetch(const struct sh_cache *c, uint64_t later, uint64_t soon);

/* Append the ids of a piece whose sh_words_hash() is `hash`. Returns false if the piece is not in the cache. */
bool sh_cache_get(const struct sh_cache *c, uint64_t hash, const unsigned char *piece, size_t bytes,
                  struct sh_ids *out);

/* Add the ids of a piece of 1 to SH_CACHE_PIECE bytes that is not in the cache. n in [0, bytes + 1]. */
void sh_cache_put(struct sh_cache *c, uint64_t hash, const unsigned char *piece, size_t bytes, const uint32_t *ids,
                  size_t n);

#endif
