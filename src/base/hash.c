#include "src/base/hash.h"

#include <xxhash.h>

/* XXH3: fast, not cryptographic. It detects damage and tells files apart; it does not stop an attacker. */
uint64_t sh_hash64(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

struct sh_hash128 sh_hash128(const void *data, size_t bytes)
{
    XXH128_hash_t h = XXH3_128bits(data, bytes);
    return (struct sh_hash128){h.low64, h.high64};
}

/* The finisher of SplitMix64, a bijection: different inputs never collide. Constants: Stafford's variant 13. */
uint64_t sh_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
