#include "src/base/number/sketch.h"

#include "src/base/clones.h"
#include "src/base/hash.h"
#include "src/base/number/mixsum.h"

#include <math.h>

static const double UNIT = 4294967296.0; /* of a digit over the one below it */

__extension__ typedef __int128 wide;

enum { LANES = 8, MANTISSA = 53, LOWEST = 96 }; /* 2^-96 is the unit of the lowest digit */

/* The mantissa is shifted to its place among the digits, and cut below the lowest. */
static void add_digits(struct sh_sketch_sum *s, double v)
{
    int exponent, at;
    int64_t whole = (int64_t)ldexp(frexp(v, &exponent), MANTISSA);

    at = exponent - MANTISSA + LOWEST;
    if (at < 0) {
        whole = at > -63 ? whole >> -at : whole >> 63;
        at = 0;
    }
    wide placed = (wide)whole * ((int64_t)1 << at % 32);

    for (int i = at / 32; i < SH_SKETCH_DIGITS - 1 && i < at / 32 + 2; i++) {
        s->digit[i] += (int64_t)(uint32_t)placed;
        placed >>= 32;
    }
    s->digit[at / 32 + 2 < SH_SKETCH_DIGITS ? at / 32 + 2 : SH_SKETCH_DIGITS - 1] += (int64_t)placed;
}

static double value(const struct sh_sketch_sum *s)
{
    double v = 0;

    for (int i = 0; i < SH_SKETCH_DIGITS; i++)
        v = v / UNIT + (double)s->digit[i];
    return v;
}

/* What a row adds: in lanes, so that a processor adds several elements at once and all add in the same order. */
struct row {
    uint64_t sum[LANES];
    int64_t bad[LANES];
    uint32_t largest[LANES];
    double of[1 + SH_SKETCH_SIGNS][LANES]; /* squares; with signs */
};

/* The signs of an element are eight bits of one hash of its index. Products of two floats are exact. */
static inline void add_lanes(struct row *r, const float *x, int n, uint64_t place)
{
    uint64_t signs[LANES] = {0};
    double v[LANES] = {0};

#pragma omp simd
    for (int j = 0; j < n; j++) {
        uint32_t bits = sh_f32_to_bits(x[j]), magnitude = bits & 0x7fffffffU;
        uint64_t here = place + (uint64_t)j * SH_MIXSUM_STEP;
        bool bad = magnitude >= 0x7f800000U;

        r->sum[j] += sh_mixsum_elem(bits, here);
        signs[j] = sh_mixsum_elem(0, here);
        v[j] = bad ? 0 : (double)x[j];
        r->bad[j] += bad;
        r->largest[j] = !bad && magnitude > r->largest[j] ? magnitude : r->largest[j];
    }
#pragma omp simd
    for (int j = 0; j < LANES; j++)
        r->of[0][j] += v[j] * v[j];
    for (int k = 0; k < SH_SKETCH_SIGNS; k++)
#pragma omp simd
        for (int j = 0; j < LANES; j++)
            r->of[1 + k][j] += signs[j] >> k & 1U ? -v[j] : v[j];
}

SH_CLONES static void add_row(struct row *r, const float *x, int64_t n, uint64_t place)
{
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        add_lanes(r, x + i, LANES, place + (uint64_t)i * SH_MIXSUM_STEP);
    if (i < n)
        add_lanes(r, x + i, (int)(n - i), place + (uint64_t)i * SH_MIXSUM_STEP);
}

static double total(const double lane[LANES])
{
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

static void end_row(struct sh_sketch *s, const struct row *r)
{
    const double most = 0x1p62;
    double sums[1 + SH_SKETCH_SIGNS];
    bool fits = true;

    for (int k = 0; k <= SH_SKETCH_SIGNS; k++) {
        sums[k] = total(r->of[k]);
        fits = fits && fabs(sums[k]) < most;
    }
    for (int j = 0; j < LANES; j++) {
        s->sum += r->sum[j];
        s->bad += r->bad[j];
        s->largest = r->largest[j] > s->largest ? r->largest[j] : s->largest;
    }
    s->bad += !fits;
    for (int k = 0; fits && k <= SH_SKETCH_SIGNS; k++)
        add_digits(&s->sums[k], sums[k]);
}

static void add(struct sh_sketch *to, const struct sh_sketch *more)
{
    to->sum += more->sum;
    to->bad += more->bad;
    to->largest = more->largest > to->largest ? more->largest : to->largest;
    for (int k = 0; k <= SH_SKETCH_SIGNS; k++)
        for (int i = 0; i < SH_SKETCH_DIGITS; i++)
            to->sums[k].digit[i] += more->sums[k].digit[i];
}

void sh_sketch_add(struct sh_sketch *s, const float *x, int64_t rows, int64_t width, uint64_t seed, int64_t first)
{
#pragma omp parallel
    {
        struct sh_sketch own = {0};

#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            struct row r = {0};

            add_row(&r, x + i * width, width, seed + (uint64_t)(first + i * width) * SH_MIXSUM_STEP);
            end_row(&own, &r);
        }
#pragma omp critical(sketch)
        add(s, &own);
    }
}

double sh_sketch_norm(const struct sh_sketch *s)
{
    return sqrt(value(&s->sums[0]));
}

double sh_sketch_sign(const struct sh_sketch *s, int i)
{
    return value(&s->sums[1 + i]);
}

/* The sum wraps around, so its halves travel apart. */
void sh_sketch_put(const struct sh_sketch *s, int64_t words[SH_SKETCH_WORDS])
{
    words[0] = (int64_t)(s->sum >> 32);
    words[1] = (int64_t)(s->sum & UINT32_MAX);
    words[2] = s->bad;
    for (int i = 0; i < (1 + SH_SKETCH_SIGNS) * SH_SKETCH_DIGITS; i++)
        words[3 + i] = s->sums[i / SH_SKETCH_DIGITS].digit[i % SH_SKETCH_DIGITS];
}

void sh_sketch_get(struct sh_sketch *s, const int64_t words[SH_SKETCH_WORDS])
{
    s->sum = ((uint64_t)words[0] << 32) + (uint64_t)words[1];
    s->bad = words[2];
    for (int i = 0; i < (1 + SH_SKETCH_SIGNS) * SH_SKETCH_DIGITS; i++)
        s->sums[i / SH_SKETCH_DIGITS].digit[i % SH_SKETCH_DIGITS] = words[3 + i];
}
