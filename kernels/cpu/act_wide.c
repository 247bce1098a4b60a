/* GELU and SwiGLU of bf16 in vectors of 16; act.c explains what is computed and why. Floor: 4 bytes per element of
 * GELU forward, 6 backward; 6 and 10 of SwiGLU. Measured for GELU at [1024,3072] on a core of a Xeon with AMX: 12 and
 * 14 GB/s; two thirds of the time is arithmetic. */
#include "sherd_config.h"

#include "kernels/cpu/base/wide.h"
#include "src/base/isa.h"

#include <stddef.h>

#ifdef SH_WIDE

/* AHEAD: 1024 elements are 2 KiB, half a page: far enough for memory to answer, and near enough to stay in the L1
 * cache. */
enum { LANES = SH_WIDE_LANES, AHEAD = 1024 };

/* x (1 + c x^2) 2 sqrt(2/pi); its sigmoid is (1 + tanh) / 2. */
static SH_WIDE inline __m512 bend(__m512 x, __m512 square)
{
    const __m512 linear = _mm512_set1_ps(1.5957691216f), cubic = _mm512_set1_ps(1.5957691216f * 0.044715f);
    return _mm512_mul_ps(x, _mm512_fmadd_ps(square, cubic, linear));
}

/* The last vector is masked, so no loop is needed for the remainder. Prefetches past the end do no harm: they never
 * fault. */
static SH_WIDE void gelu(sh_bf16 *y, const sh_bf16 *a, const sh_bf16 *none, int64_t n)
{
    (void)none;
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 lanes = sh_wide_first(n - i);
        __m512 x = sh_wide_load(a + i, lanes);
        sh_wide_store(y + i, _mm512_mul_ps(x, sh_wide_sigmoid(bend(x, _mm512_mul_ps(x, x)))), lanes);
        __builtin_prefetch(a + i + AHEAD);
        __builtin_prefetch(y + i + AHEAD, 1);
    }
}

/* dx = dy (s + x s (1 - s) du). For x beyond 20 the sigmoid is 0 or 1, and du stays finite. */
static SH_WIDE void gelu_bwd(sh_bf16 *dx, const sh_bf16 *dy, const sh_bf16 *a, int64_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f), most = _mm512_set1_ps(400.0f);
    const __m512 linear = _mm512_set1_ps(1.5957691216f), cubic = _mm512_set1_ps(3 * 1.5957691216f * 0.044715f);
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 lanes = sh_wide_first(n - i);
        __m512 x = sh_wide_load(a + i, lanes), square = _mm512_mul_ps(x, x);
        __m512 s = sh_wide_sigmoid(bend(x, square));
        __m512 du = _mm512_fmadd_ps(_mm512_min_ps(most, square), cubic, linear);
        __m512 slope = _mm512_mul_ps(_mm512_mul_ps(x, s), _mm512_mul_ps(_mm512_sub_ps(one, s), du));
        sh_wide_store(dx + i, _mm512_mul_ps(sh_wide_load(dy + i, lanes), _mm512_add_ps(s, slope)), lanes);
        __builtin_prefetch(a + i + AHEAD);
        __builtin_prefetch(dy + i + AHEAD);
        __builtin_prefetch(dx + i + AHEAD, 1);
    }
}

/* h = gate s(gate) up, with s the sigmoid. */
static SH_WIDE void swiglu(sh_bf16 *h, const sh_bf16 *gate, const sh_bf16 *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 lanes = sh_wide_first(n - i);
        __m512 g = sh_wide_load(gate + i, lanes), u = sh_wide_load(up + i, lanes);
        sh_wide_store(h + i, _mm512_mul_ps(_mm512_mul_ps(g, sh_wide_sigmoid(g)), u), lanes);
        __builtin_prefetch(gate + i + AHEAD);
        __builtin_prefetch(up + i + AHEAD);
        __builtin_prefetch(h + i + AHEAD, 1);
    }
}

/* dgate = dh s up (1 + gate (1 - s)), dup = dh s gate; both use dh s. One pass writes both, so that gate is read
 * once. */
static SH_WIDE void swiglu_bwd(sh_bf16 *dgate, sh_bf16 *dup, const sh_bf16 *dh, const sh_bf16 *gate, const sh_bf16 *up,
                               int64_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 lanes = sh_wide_first(n - i);
        __m512 g = sh_wide_load(gate + i, lanes), u = sh_wide_load(up + i, lanes), s = sh_wide_sigmoid(g);
        __m512 by = _mm512_mul_ps(sh_wide_load(dh + i, lanes), s);
        __m512 slope = _mm512_fmadd_ps(g, _mm512_sub_ps(one, s), one);
        sh_wide_store(dgate + i, _mm512_mul_ps(_mm512_mul_ps(by, u), slope), lanes);
        sh_wide_store(dup + i, _mm512_mul_ps(by, g), lanes);
        __builtin_prefetch(gate + i + AHEAD);
        __builtin_prefetch(up + i + AHEAD);
        __builtin_prefetch(dh + i + AHEAD);
        __builtin_prefetch(dgate + i + AHEAD, 1);
        __builtin_prefetch(dup + i + AHEAD, 1);
    }
}

static SH_WIDE void swiglu_row(sh_bf16 *h, const sh_bf16 *gate, const sh_bf16 *up, float weight, int64_t n)
{
    const __m512 w = _mm512_set1_ps(weight);
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 lanes = sh_wide_first(n - i);
        __m512 g = sh_wide_load(gate + i, lanes), u = sh_wide_load(up + i, lanes);
        sh_wide_store(h + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(g, sh_wide_sigmoid(g)), u), w), lanes);
        __builtin_prefetch(gate + i + AHEAD);
        __builtin_prefetch(up + i + AHEAD);
        __builtin_prefetch(h + i + AHEAD, 1);
    }
}

/* As swiglu_bwd() of dh times the weight; the weight's gradient is the sum of dh s gate up. */
static SH_WIDE float swiglu_row_bwd(sh_bf16 *dgate, sh_bf16 *dup, const sh_bf16 *dh, const sh_bf16 *gate,
                                    const sh_bf16 *up, float weight, int64_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f), w = _mm512_set1_ps(weight);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 lanes = sh_wide_first(n - i);
        __m512 g = sh_wide_load(gate + i, lanes), u = sh_wide_load(up + i, lanes), s = sh_wide_sigmoid(g);
        __m512 by = _mm512_mul_ps(sh_wide_load(dh + i, lanes), s);
        __m512 slope = _mm512_fmadd_ps(g, _mm512_sub_ps(one, s), one);
        sum = _mm512_fmadd_ps(_mm512_mul_ps(by, g), u, sum);
        by = _mm512_mul_ps(by, w);
        sh_wide_store(dgate + i, _mm512_mul_ps(_mm512_mul_ps(by, u), slope), lanes);
        sh_wide_store(dup + i, _mm512_mul_ps(by, g), lanes);
        __builtin_prefetch(gate + i + AHEAD);
        __builtin_prefetch(up + i + AHEAD);
        __builtin_prefetch(dh + i + AHEAD);
        __builtin_prefetch(dgate + i + AHEAD, 1);
        __builtin_prefetch(dup + i + AHEAD, 1);
    }
    return _mm512_reduce_add_ps(sum);
}

/* The store rounds with an instruction of avx512_bf16; without it the f32 loops are used. */
static bool usable(void)
{
    return sh_isa_has(SH_ISA_AVX512_BF16);
}

/* NULL if the processor lacks an instruction: the caller then uses the loops in f32. */
sh_cpu_map_bf16_fn sh_wide_gelu(void)
{
    return usable() ? gelu : NULL;
}

sh_cpu_map_bf16_fn sh_wide_gelu_bwd(void)
{
    return usable() ? gelu_bwd : NULL;
}

sh_cpu_map_bf16_fn sh_wide_swiglu(void)
{
    return usable() ? swiglu : NULL;
}

sh_wide_swiglu_bwd_fn sh_wide_swiglu_bwd(void)
{
    return usable() ? swiglu_bwd : NULL;
}

sh_wide_swiglu_row_fn sh_wide_swiglu_row(void)
{
    return usable() ? swiglu_row : NULL;
}

sh_wide_swiglu_row_bwd_fn sh_wide_swiglu_row_bwd(void)
{
    return usable() ? swiglu_row_bwd : NULL;
}

#else

sh_cpu_map_bf16_fn sh_wide_gelu(void)
{
    return NULL;
}

sh_cpu_map_bf16_fn sh_wide_gelu_bwd(void)
{
    return NULL;
}

sh_cpu_map_bf16_fn sh_wide_swiglu(void)
{
    return NULL;
}

sh_wide_swiglu_bwd_fn sh_wide_swiglu_bwd(void)
{
    return NULL;
}

sh_wide_swiglu_row_fn sh_wide_swiglu_row(void)
{
    return NULL;
}

sh_wide_swiglu_row_bwd_fn sh_wide_swiglu_row_bwd(void)
{
    return NULL;
}

#endif
