/* Element types of tensors, the bits of f32, and bf16 and f16 in plain C. Local, no state. */
#ifndef SH_BASE_DTYPE_H
#define SH_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SH_DTYPE static inline __host__ __device__
#else
#define SH_DTYPE static inline
#endif

enum sh_dtype { SH_F32, SH_BF16, SH_F64, SH_I32, SH_I64, SH_I16, SH_U8, SH_F16, SH_DTYPES };

typedef uint16_t sh_bf16;
typedef uint16_t sh_f16;

static inline int sh_dtype_bytes(enum sh_dtype t)
{
    static const int bytes[SH_DTYPES] = {4, 2, 8, 4, 8, 2, 1, 2}; /* by position, because C++ compiles this too */
    return bytes[t];
}

static inline const char *sh_dtype_name(enum sh_dtype t)
{
    static const char *const name[SH_DTYPES] = {"f32", "bf16", "f64", "i32", "i64", "i16", "u8", "f16"};
    return name[t];
}

static inline float sh_bits_to_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t sh_f32_to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float sh_bf16_to_f32(sh_bf16 h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest even; NaN stays NaN (its quiet bit is set so that truncation cannot make it an infinity). */
static inline sh_bf16 sh_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (sh_bf16)((u >> 16) | 0x40u);
    return (sh_bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Round stochastically to one of the two neighbours in bf16. The probability of rounding away from 0 is the fraction of
 * the distance between them that bf16 cuts off; it is exact if the last 16 bits of `random` are uniformly distributed,
 * and the other bits are not used. So the mean over `random` is the number itself. Numbers of bf16 are unchanged, Inf
 * included; NaN stays NaN. Finite numbers stay finite, so those beyond the largest number of bf16 are rounded down. */
SH_DTYPE sh_bf16 sh_f32_to_bf16_stochastic(float f, uint32_t random)
{
    uint32_t u, size, rounded;
    memcpy(&u, &f, 4);
    size = u & 0x7fffffffu;
    rounded = size > 0x7f7f0000u ? u : u + (random & 0xffffu);
    return (sh_bf16)((size > 0x7f800000u ? rounded | 0x400000u : rounded) >> 16);
}

/* IEEE 754 binary16: a sign, 5 bits of exponent with bias 15, 10 bits of fraction; a subnormal is its fraction times
 * 2^-24. Every binary16 is exact in float32; NaN stays NaN, becomes quiet and keeps its payload. The processor's own
 * instructions give the same bits (half.h). */
static inline float sh_f16_to_f32(sh_f16 h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, size = h & 0x7fffu;
    if (size > 0x7c00u)
        return sh_bits_to_f32(sign | 0x7fc00000u | size << 13);
    if (size == 0x7c00u)
        return sh_bits_to_f32(sign | 0x7f800000u);
    if (size < 0x400u)
        return (float)size / (sign ? -16777216.0f : 16777216.0f);
    return sh_bits_to_f32(sign | ((size << 13) + (112u << 23)));
}

/* Round to nearest, ties to the even fraction; 65,520 and beyond become infinite. */
static inline sh_f16 sh_f32_to_f16(float f)
{
    uint32_t u = sh_f32_to_bits(f), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu, cut;
    if (size > 0x7f800000u)
        return (sh_f16)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 143u << 23)
        return (sh_f16)(sign | 0x7c00u);
    if (size < 102u << 23) /* below half of the smallest subnormal */
        return (sh_f16)sign;
    /* Number of bits to drop: 13, and for a subnormal one more for each power of two below 2^-14. */
    cut = size < 113u << 23 ? 126u - (size >> 23) : 13u;
    size = size < 113u << 23 ? (size & 0x7fffffu) | 0x800000u : size - (112u << 23);
    size += (1u << (cut - 1)) - 1 + (size >> cut & 1u);
    return (sh_f16)(sign | size >> cut);
}

#endif
