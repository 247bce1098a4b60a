/* Pack rows and columns of matrices into the tiles that products read. */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#ifdef SH_WIDE

#include <immintrin.h>

enum { HALF = SH_PANEL_SIDE / 2, TILE = SH_PANEL_STEP / 2 };

/* Masks of the first n lanes; n may be negative or too large at the edges of a matrix. */
static SH_WIDE __mmask32 first_32(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1;
}

static SH_WIDE __mmask16 first_16(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : n <= 0 ? 0 : (1u << n) - 1);
}

/* Transpose 16 x 16 pairs. */
static SH_WIDE inline void transpose(__m512i r[16])
{
    __m512i t[16];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)
    {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < 4; i++)
    {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < 4; i++)
    {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Load one tile of stored rows i, each of 32 inner elements from k on. */
static SH_WIDE inline void load_rows(const struct sh_panel_source *s, int64_t i, int64_t k, __m512i r[16])
{
    __mmask32 mask = first_32(s->depth - k);
    _Pragma("GCC unroll 16") for (int64_t j = 0; j < HALF; j++)
        r[j] = _mm512_maskz_loadu_epi16(i + j < s->sides ? mask : 0, s->data + (i + j) * s->step + k);
}

/* Load one tile of stored rows k: two neighbours are interleaved into pairs, for 16 sides from i on. */
static SH_WIDE inline void load_pairs(const struct sh_panel_source *s, int64_t i, int64_t k, __m512i r[16])
{
    __mmask16 mask = first_16(s->sides - i);
    _Pragma("GCC unroll 16") for (int64_t j = 0; j < HALF; j++)
    {
        const sh_bf16 *even = s->data + (k + 2 * j) * s->step + i;
        __m256i lo = _mm256_maskz_loadu_epi16(k + 2 * j < s->depth ? mask : 0, even);
        __m256i hi = _mm256_maskz_loadu_epi16(k + 2 * j + 1 < s->depth ? mask : 0, even + s->step);
        r[j] = _mm512_or_si512(_mm512_cvtepu16_epi32(lo), _mm512_slli_epi32(_mm512_cvtepu16_epi32(hi), 16));
    }
}

/* A tile is 16 cache lines. */
static SH_WIDE inline void store(const __m512i r[16], sh_bf16 *tile)
{
    _Pragma("GCC unroll 16") for (int j = 0; j < HALF; j++) _mm512_store_si512(tile + j * SH_PANEL_SIDE, r[j]);
}

/* The same in f32: each pair of 16 sides is 16 numbers of two inner elements. */
static SH_WIDE inline void store_wide(const __m512i r[16], float *tile)
{
    _Pragma("GCC unroll 16") for (int j = 0; j < HALF; j++)
    {
        _mm512_store_si512(tile + 2 * j * SH_PANEL_SIDE, _mm512_slli_epi32(r[j], 16));
        _mm512_store_si512(tile + (2 * j + 1) * SH_PANEL_SIDE,
                           _mm512_and_si512(r[j], _mm512_set1_epi32((int)0xffff0000u)));
    }
}

/* The n-th step in reading order: along the stored rows, as lines are in memory. */
struct place {
    int64_t panel, k;
};

/* Steps go along the stored rows: the next step starts where the last one ended. */
static inline struct place place_of(const struct sh_panel_source *s, int64_t n)
{
    int64_t panels = sh_panels(s->sides), steps = sh_panels(s->depth);

    if (s->inner_rows)
        return (struct place){n % panels, n / panels * SH_PANEL_SIDE};
    return (struct place){n / steps, n % steps * SH_PANEL_SIDE};
}

/* Prefetch a step: a line of each of its 32 stored rows. Hardware does not foresee these, as they are often in as
 * many pages. Addresses past the end of a matrix do no harm. */
SH_PANEL_ASKS void prefetch(const struct sh_panel_source *s, struct place p)
{
    int64_t side = p.panel * SH_PANEL_SIDE;
    const sh_bf16 *next = s->data + (s->inner_rows ? p.k * s->step + side : side * s->step + p.k);

    for (int64_t r = 0; r < SH_PANEL_SIDE; r++)
        __builtin_prefetch(next + r * s->step);
}

enum format { AS_ROWS, AS_COLS, AS_WIDE };

/* Pairs of two stored rows for all 32 sides: a whole line of each is read once. Unpacking works within quarters of a
 * vector: each of its two results has pairs from both halves of the sides. */
static SH_WIDE inline void put_pairs(__m512i even, __m512i odd, sh_bf16 *tiles)
{
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    __m512i lo = _mm512_unpacklo_epi16(even, odd), hi = _mm512_unpackhi_epi16(even, odd);

    _mm512_store_si512(tiles, _mm512_permutex2var_epi64(lo, first, hi));
    _mm512_store_si512(tiles + TILE, _mm512_permutex2var_epi64(lo, second, hi));
}

/* Both tiles of a step, in place: pairs of columns become those of rows. */
static SH_WIDE void turn_tiles(sh_bf16 *tiles)
{
    for (int h = 0; h < 2; h++, tiles += TILE) {
        __m512i r[16];
        _Pragma("GCC unroll 16") for (int j = 0; j < HALF; j++) r[j] = _mm512_load_si512(tiles + j * SH_PANEL_SIDE);
        transpose(r);
        store(r, tiles);
    }
}

/* A step of pairs, where rows are a multiple of 4 KiB apart: a line that is read in two halves has left the L1 cache
 * before the second one. */
static SH_WIDE void pack_pairs(const struct sh_panel_source *s, struct place p, sh_bf16 *tiles)
{
    int64_t side = p.panel * SH_PANEL_SIDE;
    const sh_bf16 *from = s->data + p.k * s->step + side;
    __mmask32 mask = first_32(s->sides - side);

    _Pragma("GCC unroll 4") for (int64_t j = 0; j < SH_PANEL_SIDE; j += 2)
    {
        __m512i even = _mm512_maskz_loadu_epi16(p.k + j < s->depth ? mask : 0, from + j * s->step);
        __m512i odd = _mm512_maskz_loadu_epi16(p.k + j + 1 < s->depth ? mask : 0, from + (j + 1) * s->step);
        put_pairs(even, odd, tiles + j / 2 * SH_PANEL_SIDE);
    }
}

/* Stored rows are tiles of rows unchanged; pairs are tiles of columns, or are widened. The other cases are transposed. */
static SH_WIDE void pack_step(const struct sh_panel_source *s, struct place p, enum format as, void *tiles)
{
    __m512i r[16];

    if (s->inner_rows && as != AS_WIDE) {
        pack_pairs(s, p, tiles);
        if (as == AS_ROWS)
            turn_tiles(tiles);
        return;
    }
    for (int h = 0; h < 2; h++) {
        if (s->inner_rows)
            load_pairs(s, p.panel * SH_PANEL_SIDE + h * HALF, p.k, r);
        else
            load_rows(s, p.panel * SH_PANEL_SIDE + h * HALF, p.k, r);
        if (s->inner_rows == (as == AS_ROWS))
            transpose(r);
        if (as == AS_WIDE)
            store_wide(r, (float *)tiles + h * HALF);
        else
            store(r, (sh_bf16 *)tiles + h * TILE);
    }
}

/* All steps in the order of memory, prefetching the one after the next. */
static void pack(const struct sh_panel_source *s, enum format as, void *panels, int64_t stride)
{
    enum { AHEAD = 2 };
    int64_t bytes = as == AS_WIDE ? sizeof(float) : sizeof(sh_bf16);

    for (int64_t n = 0; n < sh_panels(s->sides) * sh_panels(s->depth); n++) {
        struct place p = place_of(s, n);
        prefetch(s, place_of(s, n + AHEAD));
        pack_step(s, p, as, (char *)panels + (p.panel * stride + p.k * SH_PANEL_SIDE) * bytes);
    }
}

SH_WIDE void sh_panel_turn(const float *src, int64_t lds, float *dst, int64_t ldd)
{
    __m512i r[16];

    _Pragma("GCC unroll 16") for (int64_t i = 0; i < HALF; i++) r[i] = _mm512_loadu_si512(src + i * lds);
    transpose(r);
    _Pragma("GCC unroll 16") for (int64_t i = 0; i < HALF; i++) _mm512_storeu_si512(dst + i * ldd, r[i]);
}

void sh_panel_pack_rows(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride)
{
    pack(s, AS_ROWS, panels, stride);
}

void sh_panel_pack_cols(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride)
{
    pack(s, AS_COLS, panels, stride);
}

/* Two stored rows of all panels; even: the first one. */
static SH_WIDE void pack_two_rows(const struct sh_panel_source *s, int64_t even, sh_bf16 *pairs, int64_t stride)
{
    const sh_bf16 *from = s->data + even * s->step;

    for (int64_t side = 0; side < s->sides; side += SH_PANEL_SIDE, pairs += stride) {
        __mmask32 mask = first_32(s->sides - side);
        const sh_bf16 *at = from + side, *next = at + 2 * s->step;
        __builtin_prefetch(next, 0, 2);
        __builtin_prefetch(next + s->step, 0, 2);
        put_pairs(_mm512_maskz_loadu_epi16(even < s->depth ? mask : 0, at),
                  _mm512_maskz_loadu_epi16(even + 1 < s->depth ? mask : 0, at + s->step), pairs);
    }
}

void sh_panel_pack_pairs(const struct sh_panel_source *s, sh_bf16 *panels, int64_t stride)
{
    for (int64_t k = 0; k < sh_panels(s->depth) * SH_PANEL_SIDE; k += 2)
        pack_two_rows(s, k, panels + k / SH_PANEL_SIDE * SH_PANEL_STEP + k % SH_PANEL_SIDE / 2 * SH_PANEL_SIDE, stride);
}

SH_WIDE void sh_panel_widen(const sh_bf16 *panel, float *wide, int64_t steps)
{
    for (int64_t n = 0; n < 2 * steps; n++, panel += TILE) {
        __m512i r[16];
        _Pragma("GCC unroll 16") for (int j = 0; j < HALF; j++) r[j] = _mm512_load_si512(panel + j * SH_PANEL_SIDE);
        store_wide(r, wide + n / 2 * SH_PANEL_STEP + n % 2 * HALF);
    }
}

void sh_panel_pack_wide(const struct sh_panel_source *s, float *panels, int64_t stride)
{
    pack(s, AS_WIDE, panels, stride);
}

#endif
