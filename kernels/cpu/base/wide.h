/* Hand-written vectors of 16 floats, for loops over bf16 that are bound by arithmetic rather than memory and that a
 * compiler makes twice as slow (it rounds to bf16 in ten instructions where processors have one, and guards against
 * cases that scalef handles itself). Elsewhere plain loops with the functions of math.h do the same. All local, no
 * state. */
#ifndef SH_KERNELS_CPU_WIDE_H
#define SH_KERNELS_CPU_WIDE_H

#include "kernels/cpu/base/map.h"
#include "kernels/op.h"
#include "src/base/number/dtype.h"

#include <stdint.h>

/* act_wide.c: loops of activations; NULL if this CPU lacks AVX-512 or the instructions that round to bf16. */
sh_cpu_map_bf16_fn sh_wide_gelu(void);
sh_cpu_map_bf16_fn sh_wide_gelu_bwd(void);
sh_cpu_map_bf16_fn sh_wide_swiglu(void); /* of gate and up */
typedef void (*sh_wide_swiglu_bwd_fn)(sh_bf16 *dgate, sh_bf16 *dup, const sh_bf16 *dh, const sh_bf16 *gate,
                                      const sh_bf16 *up, int64_t n);
sh_wide_swiglu_bwd_fn sh_wide_swiglu_bwd(void);
/* Of a row of an expert, times its weight; the backward returns the weight's gradient. */
typedef void (*sh_wide_swiglu_row_fn)(sh_bf16 *h, const sh_bf16 *gate, const sh_bf16 *up, float weight, int64_t n);
typedef float (*sh_wide_swiglu_row_bwd_fn)(sh_bf16 *dgate, sh_bf16 *dup, const sh_bf16 *dh, const sh_bf16 *gate,
                                           const sh_bf16 *up, float weight, int64_t n);
sh_wide_swiglu_row_fn sh_wide_swiglu_row(void);
sh_wide_swiglu_row_bwd_fn sh_wide_swiglu_row_bwd(void);

/* unpack_wide.c: blocks of src/base/number/nf4.h to a type of activations; NULL if this CPU lacks AVX-512. */
typedef void (*sh_wide_unpack_fn)(const unsigned char *block, int64_t blocks, void *to);
sh_wide_unpack_fn sh_wide_unpack(enum sh_dtype to);

/* lora_wide.c: low-rank adapters of bf16, without the copy of y's other columns to z; NULL if this CPU lacks the
 * instructions that round to bf16, or multiplies bf16 by panels. Scratch of either direction. */
sh_kernel sh_wide_lora(void);
sh_kernel sh_wide_lora_bwd(void);
int64_t sh_wide_lora_work_bytes(const struct sh_op_call *call, int threads);

/* A compiler that knows the tile unit also knows these. */
#if defined(__x86_64__) && defined(HAVE_AMX)
#define SH_WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

#include <immintrin.h>

enum { SH_WIDE_LANES = 16 };

/* The mask of the lanes that exist if n are left. */
static SH_WIDE inline __mmask16 sh_wide_first(int64_t n)
{
    return (__mmask16)(n >= SH_WIDE_LANES ? 0xffffu : (1u << n) - 1);
}

static SH_WIDE inline __m512 sh_wide_load(const sh_bf16 *src, __mmask16 lanes)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, src));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static SH_WIDE inline void sh_wide_store(sh_bf16 *dst, __m512 x, __mmask16 lanes)
{
    _mm256_mask_storeu_epi16(dst, lanes, (__m256i)_mm512_cvtneps_pbh(x));
}

/* 2^n 2^r for a whole n and |r| <= 1/2, where x is not below `least`, otherwise 0; NaN gives NaN. 2^r is a polynomial of
 * degree 5 (minimax, relative error 8e-8). */
static SH_WIDE inline __m512 sh_wide_power(__m512 n, __m512 r, __m512 x, float least)
{
    __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(0.0013276471f), _mm512_set1_ps(0.0096755419f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.055507131f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24022120f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69314694f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0000001f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_NLT_UQ), p, n);
}

/* e^x within 1e-6 of its value for |x| <= 20, 3e-6 up to 87; 0 below -87, Inf from 89 on; NaN gives NaN. e^x = 2^n
 * 2^r with r = x log2(e) - n rounded once. */
static SH_WIDE inline __m512 sh_wide_exp(__m512 x)
{
    const __m512 log2_e = _mm512_set1_ps(1.44269504f);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2_e), 0);
    return sh_wide_power(n, _mm512_fmsub_ps(x, log2_e, n), x, -87.0f);
}

/* 2^x within 1e-7 of its value; 0 below -125, Inf from 128 on; NaN gives NaN. x - n is exact. */
static SH_WIDE inline __m512 sh_wide_exp2(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(x, 0);
    return sh_wide_power(n, _mm512_sub_ps(x, n), x, -125.0f);
}

/* 1 / (1 + e^-x) within 1e-6; 0 below -69. The reciprocal has 14 bits, and one Newton step doubles them. */
static SH_WIDE inline __m512 sh_wide_sigmoid(__m512 x)
{
    __m512 d = _mm512_add_ps(_mm512_set1_ps(1.0f), sh_wide_exp(_mm512_sub_ps(_mm512_setzero_ps(), x)));
    __m512 r = _mm512_rcp14_ps(d), step = _mm512_fnmadd_ps(d, r, _mm512_set1_ps(2.0f));
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-69.0f), _CMP_NLT_UQ), r, step);
}

#endif

#endif
