/* UNPACK by permutes: one instruction looks up 32 codes in the 16 numbers of a block, rounded to bf16, or 16 codes in
 * f32. Floor: 2.56 and 4.56 bytes per element. */
#include "sherd_config.h"

#include "kernels/cpu/base/wide.h"
#include "src/base/isa.h"
#include "src/base/number/nf4.h"

#include <stddef.h>

#if defined(__x86_64__) && defined(HAVE_AMX)
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl")))

/* The 16 numbers of a block. */
static WIDE inline __m512 scaled_numbers(const unsigned char *block)
{
    static const float numbers[16] = SH_NF4_NUMBERS;
    return _mm512_mul_ps(
        _mm512_loadu_ps(numbers),
        _mm512_set1_ps(_mm_cvtss_f32(_mm_load_ss((const float *)(const void *)(block + SH_NF4_CODE_BYTES)))));
}

/* Round to nearest, ties to even. Not by the instruction of avx512_bf16, which flushes subnormal numbers to zero. */
static WIDE inline __m256i rounded(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

/* 16 bytes at a time: upper and lower half of each byte as two lanes of 16 bits. */
static WIDE void unpack_bf16(const unsigned char *block, int64_t blocks, void *to)
{
    const __m512i low = _mm512_set1_epi32(15);
    sh_bf16 *w = to;
    for (; blocks > 0; blocks--, block += SH_NF4_BLOCK_BYTES, w += SH_NF4_ELEMS) {
        __m512i table = _mm512_castsi256_si512(rounded(scaled_numbers(block)));
        for (int half = 0; half < 2; half++) {
            __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(block + 16 * half)));
            __m512i first = _mm512_srli_epi32(pairs, 4), second = _mm512_slli_epi32(_mm512_and_si512(pairs, low), 16);
            _mm512_storeu_si512(w + 32 * half, _mm512_permutexvar_epi16(_mm512_or_si512(first, second), table));
        }
    }
}

/* 8 bytes at a time, as two lanes of 32 bits. */
static WIDE void unpack_f32(const unsigned char *block, int64_t blocks, void *to)
{
    const __m512i low = _mm512_set1_epi64(15);
    float *w = to;
    for (; blocks > 0; blocks--, block += SH_NF4_BLOCK_BYTES, w += SH_NF4_ELEMS) {
        __m512 table = scaled_numbers(block);
        for (int part = 0; part < 4; part++) {
            __m512i pairs = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(block + 8 * part)));
            __m512i first = _mm512_srli_epi64(pairs, 4), second = _mm512_slli_epi64(_mm512_and_si512(pairs, low), 32);
            _mm512_storeu_ps(w + 16 * part, _mm512_permutexvar_ps(_mm512_or_si512(first, second), table));
        }
    }
}

sh_wide_unpack_fn sh_wide_unpack(enum sh_dtype to)
{
    return !sh_isa_has(SH_ISA_AVX512) ? NULL : to == SH_BF16 ? unpack_bf16 : unpack_f32;
}

#else

sh_wide_unpack_fn sh_wide_unpack(enum sh_dtype to)
{
    (void)to;
    return NULL;
}

#endif
