/* Eight elements per instruction: memory is the limit. */
#include "src/base/number/half.h"

#include "src/base/isa.h"

void sh_half_widen_plain(float *to, const sh_f16 *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = sh_f16_to_f32(from[i]);
}

void sh_half_narrow_plain(sh_f16 *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = sh_f32_to_f16(from[i]);
}

#ifdef __x86_64__
#include <immintrin.h>

#define F16C __attribute__((target("avx,f16c")))
enum { LANES = 8 };

F16C static void widen(float *to, const sh_f16 *from, int64_t n)
{
    int64_t i = 0;

    for (; n - i >= LANES; i += LANES)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
    for (; i < n; i++)
        to[i] = _cvtsh_ss(from[i]);
}

F16C static void narrow(sh_f16 *to, const float *from, int64_t n)
{
    int64_t i = 0;

    for (; n - i >= LANES; i += LANES)
        _mm_storeu_si128((void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}
#else
#define widen sh_half_widen_plain
#define narrow sh_half_narrow_plain
#endif

void sh_half_widen(float *to, const sh_f16 *from, int64_t n)
{
    (sh_isa_has(SH_ISA_F16C) ? widen : sh_half_widen_plain)(to, from, n);
}

void sh_half_narrow(sh_f16 *to, const float *from, int64_t n)
{
    (sh_isa_has(SH_ISA_F16C) ? narrow : sh_half_narrow_plain)(to, from, n);
}
