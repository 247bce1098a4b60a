/* What is known of many floats in a few numbers, whose parts add up: the sketch of an array is the sum of those of its
 * pieces, whoever has which of them and in whatever order they are added. So tensors of two runs are compared without
 * their elements, over any meshes.
 *
 * An array has logical indices. Elements form *rows*: neighbours that no cut divides. Within a row f64 sums are made in
 * one order; what is added over rows are integers. Element i has eight signs from a hash of (seed, i); the sums of
 * signed elements of two arrays differ by about the norm of the arrays' difference, which they estimate: the mean of
 * eight squared differences is right to a factor of 0.2 to 2.6 in 98 of 100 cases, and exact if one element differs.
 * Source: Alon, Matias, Szegedy, The space complexity of approximating the frequency moments, STOC 1996.
 *
 * NaN and Inf count in `sum` and `bad` only. Local, no failure. */
#ifndef SH_BASE_SKETCH_H
#define SH_BASE_SKETCH_H

#include <stdint.h>

enum { SH_SKETCH_SIGNS = 8, SH_SKETCH_DIGITS = 4, SH_SKETCH_WORDS = 3 + (1 + SH_SKETCH_SIGNS) * SH_SKETCH_DIGITS };

/* A sum of doubles without rounding: digit i counts units of 2^(32 i - 96), and carries wait for the end. Terms are below
 * 2^62 and lose what is below 2^-96; up to 2^31 of them add up. */
struct sh_sketch_sum {
    int64_t digit[SH_SKETCH_DIGITS];
};

struct sh_sketch {
    uint64_t sum;     /* of src/base/number/mixsum.h: changes if any bit of any element does */
    int64_t bad;      /* NaN and Inf, and rows whose sums are too large for a sum */
    uint32_t largest; /* of the magnitudes of the others, as bits */
    struct sh_sketch_sum sums[1 + SH_SKETCH_SIGNS]; /* of squares, then of elements with each set of signs */
};

/* Add rows of `width` elements each, end to end, the first of which has logical index `first`. Any number of threads:
 * the same bits. */
void sh_sketch_add(struct sh_sketch *s, const float *x, int64_t rows, int64_t width, uint64_t seed, int64_t first);

double sh_sketch_norm(const struct sh_sketch *s);
double sh_sketch_sign(const struct sh_sketch *s, int i);

/* Convert from and to words that add up as integers; `largest` is not one of them. */
void sh_sketch_put(const struct sh_sketch *s, int64_t words[SH_SKETCH_WORDS]);
void sh_sketch_get(struct sh_sketch *s, const int64_t words[SH_SKETCH_WORDS]);

#endif
