/* Float32 numbers in memory: in one array, in two halves of which the upper one is bf16, packed in four bits per
 * element (nf4.h), or coded in eight (code8.h). Packed and coded floats are accessed in whole blocks only: every offset
 * is a multiple of a block, and so is every count but that of the last coded ones. If
 * a master parameter is in halves, the upper half is the one that the run computes with.
 *
 *     high = the number rounded to bf16, ties away from zero = (bits + 0x8000) >> 16
 *     low  = its last 16 bits, as a signed number             bits = (high << 16) + low
 *
 * Every float32 is restored bit for bit, infinities and denormals too, since each high stands for 2^16 neighbours. With
 * ties to even, every other high would stand for 2^16 + 1, more than 16 bits can tell apart. Only NaNs change: all
 * become 0x7fc00000, since some would be rounded to -0.
 *
 * Local, no failure. Valid C, C++ and CUDA. */
#ifndef SH_BASE_FLOATS_H
#define SH_BASE_FLOATS_H

#include "include/sherd/op.h"
#include "src/base/number/code8.h"
#include "src/base/number/nf4.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define SH_FLOATS static inline __host__ __device__
#else
#define SH_FLOATS static inline
#endif

/* Set are `whole`, or `high` and `low`, or `high` alone (bf16, to which numbers are rounded as above), or `packed`, or
 * `coded` by a law. The others are NULL. All NULL: no floats. */
struct sh_floats {
    float *whole;
    sh_bf16 *high;
    int16_t *low;
    unsigned char *packed, *coded;
    enum sh_code8_law law;
};

SH_FLOATS void sh_floats_split(float x, sh_bf16 *high, int16_t *low)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
    *high = (sh_bf16)((bits + 0x8000u) >> 16);
    *low = (int16_t)(uint16_t)bits;
}

SH_FLOATS float sh_floats_join(sh_bf16 high, int16_t low)
{
    uint32_t bits = ((uint32_t)high << 16) + (uint32_t)(int32_t)low;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* The floats from element n on; no floats stay no floats. */
SH_FLOATS struct sh_floats sh_floats_at(struct sh_floats f, int64_t n)
{
    f.whole = f.whole ? f.whole + n : f.whole;
    f.high = f.high ? f.high + n : f.high;
    f.low = f.low ? f.low + n : f.low;
    f.packed = f.packed ? f.packed + n / SH_NF4_ELEMS * SH_NF4_BLOCK_BYTES : f.packed;
    f.coded = f.coded ? f.coded + n / SH_CODE8_ELEMS * SH_CODE8_BLOCK_BYTES : f.coded;
    return f;
}

static inline bool sh_floats_none(struct sh_floats f)
{
    return !f.whole && !f.high && !f.packed && !f.coded;
}

/* The arrays that hold the floats, for copies that need not know which they are: array i, NULL if there are fewer, and
 * the bytes of n elements in each. */
enum { SH_FLOATS_ARRAYS = 2 };

static inline void *sh_floats_array(struct sh_floats f, int i)
{
    void *first = f.whole ? (void *)f.whole : f.high ? (void *)f.high : (void *)f.packed;
    return i ? (void *)f.low : f.coded ? (void *)f.coded : first;
}

static inline int64_t sh_floats_bytes(struct sh_floats f, int64_t n)
{
    return f.packed ? sh_nf4_bytes(n) : f.coded ? sh_code8_bytes(n) : f.whole ? 4 * n : 2 * n;
}

/* Place n floats in the 4 n bytes from `at` on; of halves, the upper ones come before the lower ones. */
static inline struct sh_floats sh_floats_in(void *at, int64_t n, bool halves)
{
    struct sh_floats one = {(float *)at, NULL, NULL, NULL, NULL, SH_CODE8_LINEAR};
    struct sh_floats two = {NULL, (sh_bf16 *)at, (int16_t *)at + n, NULL, NULL, SH_CODE8_LINEAR};
    return halves ? two : one;
}

/* Copy n floats, in host memory, to one array and from it; packing and coding round them (src/base/number/floats.c). */
void sh_floats_get(struct sh_floats from, int64_t n, float *to);
void sh_floats_put(struct sh_floats to, int64_t n, const float *from);

#ifdef __cplusplus
}
#endif

#endif
