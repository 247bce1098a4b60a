#include "src/base/number/mixsum.h"

#include "src/base/clones.h"
#include "src/base/isa.h"
#include "src/base/mem.h"

/* Number of elements that are copied and then summed from the nearest cache. */
enum { STEP_ELEMS = 1024 };

/* `place` advances with the loop instead of being multiplied out: one addition per element. */
SH_CLONES static uint64_t sum_whole(const float *data, int64_t n, uint64_t place)
{
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum) linear(place : SH_MIXSUM_STEP)
    for (int64_t i = 0; i < n; i++) {
        sum += sh_mixsum_elem(sh_f32_to_bits(data[i]), place);
        place += SH_MIXSUM_STEP;
    }
    return sum;
}

SH_CLONES static uint64_t sum_halves(const sh_bf16 *high, const int16_t *low, int64_t n, uint64_t place)
{
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum) linear(place : SH_MIXSUM_STEP)
    for (int64_t i = 0; i < n; i++) {
        sum += sh_mixsum_elem(sh_f32_to_bits(sh_floats_join(high[i], low[i])), place);
        place += SH_MIXSUM_STEP;
    }
    return sum;
}

SH_CLONES static uint64_t sum_upper(const sh_bf16 *high, int64_t n, uint64_t place)
{
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum) linear(place : SH_MIXSUM_STEP)
    for (int64_t i = 0; i < n; i++) {
        sum += sh_mixsum_elem((uint32_t)high[i] << 16, place);
        place += SH_MIXSUM_STEP;
    }
    return sum;
}

/* One loop for each form of storage; all give the same sum. */
uint64_t sh_mixsum(struct sh_floats data, int64_t n, uint64_t place)
{
    if (data.whole)
        return sum_whole(data.whole, n, place);
    return data.low ? sum_halves(data.high, data.low, n, place) : sum_upper(data.high, n, place);
}

/* Any n, at any address. */
static uint64_t copy_plain(struct sh_floats to, struct sh_floats from, int64_t n, uint64_t place)
{
    uint64_t sum = 0;

    for (int64_t at = 0; at < n; at += STEP_ELEMS) {
        int64_t here = n - at < STEP_ELEMS ? n - at : STEP_ELEMS;
        struct sh_floats piece = sh_floats_at(from, at), copy = sh_floats_at(to, at);

        for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(piece, i); i++)
            sh_mem_stream(sh_floats_array(copy, i), sh_floats_array(piece, i), (size_t)sh_floats_bytes(piece, here));
        sum += sh_mixsum(piece, here, place + (uint64_t)at * SH_MIXSUM_STEP);
    }
    return sum;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* By hand: a compiler keeps either the copy or the sum in vectors of full width, not both. Early prefetch is decisive:
 * without AHEAD the loop waits for memory, then computes, and takes 1.8 times as long as a memcpy. */
enum { LINE = 64, AHEAD = 2048 };

#define WIDE __attribute__((target("avx512f,avx512dq")))

/* Eight lanes of a sum, and the places of their next elements. */
struct lanes {
    __m512i sum, place;
};

/* Lane k starts at element k; each iteration moves all lanes by 16 elements, two sets of eight. */
static WIDE inline struct lanes begin(uint64_t place)
{
    __m512i lane =
        _mm512_mullo_epi64(_mm512_set1_epi64((long long)SH_MIXSUM_STEP), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    return (struct lanes){_mm512_setzero_si512(), _mm512_add_epi64(_mm512_set1_epi64((long long)place), lane)};
}

static WIDE inline __m512i mix_by(__m512i x, int shift, uint64_t by)
{
    return _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, (unsigned)shift)),
                              _mm512_set1_epi64((long long)by));
}

/* sh_mixsum_elem() of eight of the sixteen elements of an iteration. */
static WIDE inline void add(struct lanes *l, __m256i bits)
{
    __m512i x = _mm512_xor_si512(_mm512_cvtepu32_epi64(bits), l->place);
    x = mix_by(mix_by(x, 30, 0xbf58476d1ce4e5b9u), 27, 0x94d049bb133111ebu);
    l->sum = _mm512_add_epi64(l->sum, _mm512_xor_si512(x, _mm512_srli_epi64(x, 31)));
    l->place = _mm512_add_epi64(l->place, _mm512_set1_epi64((long long)(16 * SH_MIXSUM_STEP)));
}

/* Adds the 16 floats of a line: the lower eight to one set of lanes, the upper eight to the other. */
static WIDE inline void add_both(struct lanes *l, __m512i bits)
{
    add(&l[0], _mm512_castsi512_si256(bits));
    add(&l[1], _mm512_extracti64x4_epi64(bits, 1));
}

/* Loads 64 bytes, stores them around the caches, and returns them for the sum. */
static WIDE inline __m512i pass_line(void *to, const void *from)
{
    __m512i line = _mm512_loadu_si512(from);
    __builtin_prefetch((const char *)from + AHEAD);
    _mm512_stream_si512(to, line);
    return line;
}

/* Not with _mm512_reduce_add_epi64, which adds signed numbers and must not overflow. */
static WIDE inline uint64_t total(const struct lanes *l)
{
    uint64_t lane[8], sum = 0;
    _mm512_storeu_si512(lane, _mm512_add_epi64(l[0].sum, l[1].sum));
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    return sum;
}

/* n is a multiple of a line. */
static WIDE uint64_t copy_whole(float *to, const float *from, int64_t n, uint64_t place)
{
    struct lanes l[2] = {begin(place), begin(place + 8 * SH_MIXSUM_STEP)};
    for (int64_t i = 0; i < n; i += 16)
        add_both(l, pass_line(to + i, from + i));
    return total(l);
}

/* Like sh_floats_join(). */
static WIDE inline __m512i join(__m256i high, __m256i low)
{
    return _mm512_add_epi32(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16), _mm512_cvtepi16_epi32(low));
}

static WIDE uint64_t copy_halves(struct sh_floats to, struct sh_floats from, int64_t n, uint64_t place)
{
    struct lanes l[2] = {begin(place), begin(place + 8 * SH_MIXSUM_STEP)};
    for (int64_t i = 0; i < n; i += 32) {
        __m512i high = pass_line(to.high + i, from.high + i), low = pass_line(to.low + i, from.low + i);
        add_both(l, join(_mm512_castsi512_si256(high), _mm512_castsi512_si256(low)));
        add_both(l, join(_mm512_extracti64x4_epi64(high, 1), _mm512_extracti64x4_epi64(low, 1)));
    }
    return total(l);
}

/* Number of elements before the first that starts a line in every array; n: there is no such element. */
static int64_t before_line(struct sh_floats to, int64_t n)
{
    int64_t bytes = sh_floats_bytes(to, 1), off = (int64_t)((uintptr_t)sh_floats_array(to, 0) % LINE);
    bool alike = to.whole || (uintptr_t)to.low % LINE == (uintptr_t)to.high % LINE;
    int64_t head = (LINE - off) % LINE / bytes;
    return alike && off % bytes == 0 && head < n ? head : n;
}

uint64_t sh_mixsum_copy(struct sh_floats to, struct sh_floats from, int64_t n, uint64_t place)
{
    bool by_hand = sh_isa_has(SH_ISA_AVX512) && (to.whole || to.low);
    int64_t head = by_hand ? before_line(to, n) : n, turn = to.whole ? 16 : 32, lines = (n - head) / turn * turn;
    struct sh_floats lines_to = sh_floats_at(to, head), lines_from = sh_floats_at(from, head);
    uint64_t at = place + (uint64_t)head * SH_MIXSUM_STEP, sum = copy_plain(to, from, head, place);
    if (lines > 0)
        sum += to.whole ? copy_whole(lines_to.whole, lines_from.whole, lines, at)
                        : copy_halves(lines_to, lines_from, lines, at);
    sum += copy_plain(sh_floats_at(lines_to, lines), sh_floats_at(lines_from, lines), n - head - lines,
                      at + (uint64_t)lines * SH_MIXSUM_STEP);
    sh_mem_stream_end();
    return sum;
}
/* Another architecture, without AVX-512: the same sum by plain loops. */
#else
uint64_t sh_mixsum_copy(struct sh_floats to, struct sh_floats from, int64_t n, uint64_t place)
{
    uint64_t sum = copy_plain(to, from, n, place);
    sh_mem_stream_end();
    return sum;
}
#endif
