/* A random-looking order of 0 .. n-1 without a table: a Feistel network with cycle walking. Local, no state. */
#ifndef IO_DATA_PERMUTE_H
#define IO_DATA_PERMUTE_H

#include <stdint.h>

/* Return the position of index i (0 <= i < n, n < 2^62) in the order of (seed, epoch); one to one for each key. */
int64_t sh_data_permute(int64_t i, int64_t n, uint64_t seed, uint64_t epoch);

#endif
