/* Products and sums of sizes that somebody gives: what does not fit stays at INT64_MAX, to be refused by a comparison with
 * the most that is allowed. For numbers >= 0. Local. */
#ifndef SH_BASE_SIZE_H
#define SH_BASE_SIZE_H

#include <stdint.h>

static inline int64_t sh_size_mul(int64_t a, int64_t b)
{
    int64_t product;

    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static inline int64_t sh_size_add(int64_t a, int64_t b)
{
    int64_t sum;

    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

#endif
