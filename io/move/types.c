/* Conversion between the types of files and of memory, a piece at a time: to floats (widen) and back (narrow). Each
 * conversion also reports the first number that is not finite, since a separate search would read all data once more.
 * */
#include "io/move/types.h"

#include <math.h>

enum { PIECE = 4096 }; /* elements at a time, so that the intermediate floats stay in L1 */

/* Bytes of one element; for packed weights, of one block's codes or scale. */
int sh_move_type_bytes(enum sh_move_type t)
{
    static const int bytes[SH_MOVE_ALL_TYPES] = {
        [SH_MOVE_F32] = 4,    [SH_MOVE_F16] = 2,   [SH_MOVE_BF16] = 2, [SH_MOVE_CODES] = SH_NF4_CODE_BYTES,
        [SH_MOVE_SCALES] = 4, [SH_MOVE_NESTED] = 1};
    return bytes[t];
}

/* All access is through memcpy, since values in a file need not be aligned. Blocks have a fixed length, which compilers
 * turn into vector instructions. */
enum { BLOCK = 32 };

static void widen_bf16(const char *from, int64_t n, float *to)
{
    uint16_t h[BLOCK];
    int64_t i = 0;
    for (; n - i >= BLOCK; i += BLOCK) {
        uint32_t bits[BLOCK];
        memcpy(h, from + 2 * i, sizeof h);
        for (int k = 0; k < BLOCK; k++)
            bits[k] = (uint32_t)h[k] << 16;
        memcpy(to + i, bits, sizeof bits);
    }
    for (; i < n; i++) {
        memcpy(h, from + 2 * i, 2);
        to[i] = sh_bf16_to_f32(h[0]);
    }
}

static void widen_piece(enum sh_move_type t, const char *from, int64_t n, float *to)
{
    uint16_t h;
    if (t == SH_MOVE_F32)
        memcpy(to, from, (size_t)n * 4);
    if (t == SH_MOVE_BF16)
        widen_bf16(from, n, to);
    for (int64_t i = 0; t == SH_MOVE_F16 && i < n; i++) {
        memcpy(&h, from + 2 * i, 2);
        to[i] = sh_f16_to_f32(h);
    }
}

/* Tests for an exponent of all ones, without a branch per element. */
static bool all_finite(const float *x, int64_t n)
{
    uint32_t bits[BLOCK], bad[BLOCK] = {0};
    int64_t i = 0;
    for (; n - i >= BLOCK; i += BLOCK) {
        memcpy(bits, &x[i], sizeof bits);
        for (int k = 0; k < BLOCK; k++)
            bad[k] |= (bits[k] & 0x7f800000u) == 0x7f800000u;
    }
    for (; i < n; i++)
        bad[0] |= !isfinite(x[i]);
    for (int k = 1; k < BLOCK; k++)
        bad[0] |= bad[k];
    return !bad[0];
}

/* Called only if all_finite() has found that there is one. */
static int64_t first_not_finite(const float *x, int64_t n)
{
    int64_t i = 0;
    while (i < n && isfinite(x[i]))
        i++;
    return i;
}

/* The upper half is the number, the lower half is zero. Returns whether all are finite. */
static bool widen_halves(const char *from, int64_t n, struct sh_floats to)
{
    uint16_t h[BLOCK], bad[BLOCK] = {0};
    int64_t i = 0;
    memcpy(to.high, from, (size_t)n * 2);
    if (to.low)
        memset(to.low, 0, (size_t)n * 2);
    for (; n - i >= BLOCK; i += BLOCK) {
        memcpy(h, to.high + i, sizeof h);
        for (int k = 0; k < BLOCK; k++)
            bad[k] |= (h[k] & 0x7f80u) == 0x7f80u;
    }
    for (; i < n; i++)
        bad[0] |= (to.high[i] & 0x7f80u) == 0x7f80u;
    for (int k = 1; k < BLOCK; k++)
        bad[0] |= bad[k];
    return !bad[0];
}

/* Returns the first that is not finite, or n. Converts directly into the destination if possible. */
static int64_t widen_to(enum sh_move_type t, const char *from, int64_t n, struct sh_floats to)
{
    float piece[PIECE], *floats = to.whole ? to.whole : piece;
    if (t == SH_MOVE_BF16 && to.high && widen_halves(from, n, to))
        return n;
    widen_piece(t, from, n, floats);
    if (!to.whole)
        sh_floats_put(to, n, floats);
    return all_finite(floats, n) ? n : first_not_finite(floats, n);
}

/* Converts a file's type to floats or halves; returns the first element that is not finite, or n. Always converts all
 * n. */
int64_t sh_move_widen(enum sh_move_type t, const void *from, int64_t n, struct sh_floats to)
{
    int64_t bad = n;
    for (int64_t at = 0, m; at < n; at += m) {
        m = n - at < PIECE ? n - at : PIECE;
        int64_t first = widen_to(t, (const char *)from + at * sh_move_type_bytes(t), m, sh_floats_at(to, at));
        if (first < m && bad == n)
            bad = at + first;
    }
    return bad;
}

/* The product of two floats is exact in double, so no compiler can merge the two roundings into one. */
static float nested_scale(const struct sh_move_nested *table, int code, int64_t block)
{
    float product = (float)((double)table->map[code] * (double)table->scale[block / SH_MOVE_NESTED_SCALES]);
    return product + table->offset;
}

/* Returns a block's scale: the scales of a packed folder are floats, or codes of a second level. */
static float scale_of(enum sh_move_type t, const void *from, int64_t i, int64_t first,
                      const struct sh_move_nested *nested)
{
    float scale;
    if (t == SH_MOVE_NESTED)
        return nested_scale(nested, ((const unsigned char *)from)[i], first + i);
    memcpy(&scale, (const char *)from + 4 * i, 4);
    return scale;
}

/* Codes are always valid; for scales the first that is not finite is returned. */
int64_t sh_move_join(enum sh_move_type t, const void *from, int64_t first, int64_t n,
                     const struct sh_move_nested *nested, struct sh_floats to)
{
    int64_t bad = n;
    if (t == SH_MOVE_CODES) {
        sh_nf4_join(from, NULL, n, to.packed);
        return n;
    }
    for (int64_t i = 0; i < n; i++) {
        float scale = scale_of(t, from, i, first, nested);
        sh_nf4_join(NULL, &scale, 1, to.packed + i * SH_NF4_BLOCK_BYTES);
        if (!isfinite(scale) && bad == n)
            bad = i;
    }
    return bad;
}

/* The upper half of the split is the float, rounded to nearest. */
static void narrow_bf16(const float *from, int64_t n, char *to)
{
    for (int64_t i = 0; i < n; i++) {
        sh_bf16 high;
        int16_t low;
        sh_floats_split(from[i], &high, &low);
        memcpy(to + 2 * i, &high, 2);
    }
}

/* Returns the first element that became infinite. */
static int64_t narrow_to_f16(const float *from, int64_t n, char *to)
{
    int64_t bad = n;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = sh_f32_to_f16(from[i]);
        if ((h & 0x7fffu) == 0x7c00u && bad == n && isfinite(from[i]))
            bad = i;
        memcpy(to + 2 * i, &h, 2);
    }
    return bad;
}

/* A number within 2^-9 of the largest float32 rounds to an infinite bfloat16, which a run would compute with, too. */
static int64_t narrow_piece(enum sh_move_type t, const float *from, int64_t n, char *to)
{
    if (t == SH_MOVE_F16)
        return narrow_to_f16(from, n, to);
    if (t == SH_MOVE_BF16)
        narrow_bf16(from, n, to);
    else
        memcpy(to, from, (size_t)n * 4);
    return n;
}

/* Converts to a file's type; returns the first element that has no finite value in it, or n. */
int64_t sh_move_narrow(enum sh_move_type t, struct sh_floats from, int64_t n, void *to)
{
    float piece[PIECE];
    int64_t bad = n;
    for (int64_t at = 0, m; at < n; at += m) {
        m = n - at < PIECE ? n - at : PIECE;
        sh_floats_get(sh_floats_at(from, at), m, piece);
        int64_t first = narrow_piece(t, piece, m, (char *)to + at * sh_move_type_bytes(t));
        if (first < m && bad == n)
            bad = at + first;
    }
    return bad;
}
