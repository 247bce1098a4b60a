/* Hashes for comparisons, never for secrets. Local, no state; equal on all machines of the same byte order. */
#ifndef SH_BASE_HASH_H
#define SH_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* XXH3 with 64 bits (seed 0), the checksum of checkpoints and programs. It runs at the speed of memory. */
uint64_t sh_hash64(const void *data, size_t bytes);

/* The same with 128 bits, for comparisons that nothing else backs up. */
struct sh_hash128 {
    uint64_t low, high;
};
struct sh_hash128 sh_hash128(const void *data, size_t bytes);

/* A bijection (0 stays 0) in which each bit of x changes about half of the bits of the result.
 * Chains as sh_mix64(h ^ next).
 * Source: the finisher of SplitMix64, Steele, Lea and Flood, OOPSLA 2014. */
uint64_t sh_mix64(uint64_t x);

#endif
