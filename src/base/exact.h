/* Sums that do not depend on their order: an accumulator of whole numbers wide enough for any sum of squares of floats.
 *
 * A vector is cut in blocks of SH_EXACT_BLOCK elements, counted from its start. The squares of a block are summed in
 * f64 in one fixed order; block sums are added without any rounding, so that it does not matter which rank or thread
 * has which blocks, as long as none is cut in two. The result is rounded once, at the end.
 *
 * Outside of a kernel the accumulator is SH_EXACT_ELEMS doubles, for collectives to sum: digit i counts units of
 * 2^(32 i - 352), and is a whole number below 2^32, so that 2^20 of them add up exactly; the last element is the sum
 * of all block sums that are not finite, or 0. Nothing is lost at either end: squares of floats are multiples of
 * 2^-298, so the last of the 53 bits of a block sum stands for 2^-350 or more; and the squares of 2^46 floats come to
 * less than 2^302, while the digits reach to 2^320. Carries are taken on at the end of each operation.
 * Source: Kulisch, Computer Arithmetic and Validity, de Gruyter 2008. All local, no failure. */
#ifndef SH_BASE_EXACT_H
#define SH_BASE_EXACT_H

#include <stdint.h>

enum { SH_EXACT_BLOCK = 64, SH_EXACT_DIGITS = 21, SH_EXACT_ELEMS = SH_EXACT_DIGITS + 1 };

struct sh_exact {
    uint64_t digit[SH_EXACT_DIGITS + 2]; /* room for what a value near the top reaches over */
    double not_finite;
};

/* Add the squares of n floats, of which the first starts a block; at most 2^36 floats between two sh_exact_put(). */
void sh_exact_add_squares(struct sh_exact *sum, const float *a, int64_t n);

/* sum += more; both may hold digits without their carries taken on. */
void sh_exact_add(struct sh_exact *sum, const struct sh_exact *more);

/* From and to SH_EXACT_ELEMS doubles; put takes on carries. */
void sh_exact_get(struct sh_exact *sum, const double *elems);
void sh_exact_put(struct sh_exact *sum, double *elems);

/* The nearest double, ties to even; Inf or NaN when a block was not finite. Takes on carries. */
double sh_exact_round(struct sh_exact *sum);

#endif
