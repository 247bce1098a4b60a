#include "src/base/hash.h"

#include <xxhash.h>

uint64_t sh_hash64(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

uint64_t sh_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
