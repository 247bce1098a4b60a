/* Products and sums of untrusted sizes: a result that does not fit saturates at INT64_MAX, and then fails the
 * comparison with the allowed maximum. For numbers >= 0. Local. */
#ifndef SH_BASE_SIZE_H
#define SH_BASE_SIZE_H

#include <stdbool.h>
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

static inline bool sh_size_is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

#endif
