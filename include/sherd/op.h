/* What a kernel is given: element types, operands, a call. Plug-ins include it by plugin.h, and Sherd's own kernels use
 * the same operands. Valid C and C++; nothing to link.
 *
 * All tensors are row-major and dense. "act" in the text of an operation's shape is the compute type, f32, bf16 or f16,
 * and f64 when the operation is checked. Kernels compute in f32 or better and round once, when they store. */
#ifndef SHERD_OP_H
#define SHERD_OP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

enum { SH_OP_MAX_IN = 7, SH_OP_MAX_OUT = 4, SH_MAX_DIMS = 4 };

struct sh_operand {
    void *data; /* NULL: absent */
    enum sh_dtype dtype;
    int ndim;
    int64_t dim[SH_MAX_DIMS];
};

static inline int64_t sh_operand_elems(const struct sh_operand *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

/* Element i, in any type, as reference kernels read and write it. */
static inline double sh_operand_get(const struct sh_operand *t, int64_t i)
{
    switch (t->dtype) {
    case SH_BF16: return (double)sh_bf16_to_f32(((const sh_bf16 *)t->data)[i]);
    case SH_F16: return (double)sh_f16_to_f32(((const sh_f16 *)t->data)[i]);
    case SH_F64: return ((const double *)t->data)[i];
    case SH_I32: return ((const int32_t *)t->data)[i];
    case SH_I64: return (double)((const int64_t *)t->data)[i];
    case SH_U8: return ((const uint8_t *)t->data)[i];
    default: return (double)((const float *)t->data)[i];
    }
}

static inline void sh_operand_set(const struct sh_operand *t, int64_t i, double value)
{
    switch (t->dtype) {
    case SH_BF16: ((sh_bf16 *)t->data)[i] = sh_f32_to_bf16((float)value); break;
    case SH_F16: ((sh_f16 *)t->data)[i] = sh_f32_to_f16((float)value); break;
    case SH_F64: ((double *)t->data)[i] = value; break;
    case SH_I32: ((int32_t *)t->data)[i] = (int32_t)value; break;
    case SH_I64: ((int64_t *)t->data)[i] = (int64_t)value; break;
    case SH_U8: ((uint8_t *)t->data)[i] = (uint8_t)value; break;
    default: ((float *)t->data)[i] = (float)value;
    }
}

/* One call of a plug-in's kernel. */
struct sherd_call {
    struct sh_operand in[SH_OP_MAX_IN], out[SH_OP_MAX_OUT]; /* in the order of the shape's text */
    const double *number; /* in the order of the operation's row */
    void *work;           /* work_bytes bytes, 64-byte aligned; contents undefined */
    int64_t work_bytes;
    void *queue; /* on a GPU the CUDA stream that the kernel is put into; on a CPU NULL */
};

#endif
