#include "io/data/permute.h"

#include "src/base/hash.h"

/* Four rounds are enough to be indistinguishable from random if the halves are long (Luby and Rackoff, 1988). Here a
 * half may be one bit, and small data sets are common, so there are more rounds; a round costs a nanosecond. */
enum { ROUNDS = 8 };

/* Return the least number of bits with 4^bits >= n, so both halves of the network are equally long. */
static int half_bits(int64_t n)
{
    int bits = 1;
    while ((int64_t)1 << (2 * bits) < n)
        bits++;
    return bits;
}

/* A bijection on 2 * bits bits whatever the round function is: each round can be undone. */
static uint64_t feistel(uint64_t x, int bits, uint64_t key)
{
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    uint64_t left = x >> bits, right = x & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t next = left ^ (sh_mix64(key + (round << 56) + right) & mask);
        left = right;
        right = next;
    }
    return left << bits | right;
}

/* The network permutes 0 .. 4^bits - 1, at most four times n. Values at or above n are sent through again: because they
 * are on the same cycle as i, the walk comes back below n, and the mapping stays one to one. */
int64_t sh_data_permute(int64_t i, int64_t n, uint64_t seed, uint64_t epoch)
{
    int bits = half_bits(n);
    uint64_t key = sh_mix64(sh_mix64(seed) ^ epoch);
    uint64_t x = (uint64_t)i;
    do
        x = feistel(x, bits, key);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}
