/* Sums that do not depend on their order: an integer accumulator wide enough for any sum of squares of floats.
 *
 * A vector is divided into blocks of SH_EXACT_BLOCK elements, counted from its start. The squares of a block are summed
 * in f64 in one fixed order; block sums are added without any rounding. So it does not matter which rank or thread has
 * which blocks, as long as no block is cut in two. The result is rounded once, at the end.
 *
 * Outside a kernel the accumulator is SH_EXACT_ELEMS doubles, which collectives can sum. Digit i counts units of 2^(32
 * i - 352) and is a whole number below 2^32, so that 2^20 of them add up exactly; the last element is the sum of all
 * block sums that are not finite, or 0. Nothing is lost at either end: squares of floats are multiples of 2^-298, so
 * the last of the 53 bits of a block sum stands for 2^-350 or more; and the squares of 2^46 floats sum to less than
 * 2^302, while the digits reach to 2^320. Carries are propagated at the end of each operation.
 * Source: Kulisch, Computer Arithmetic and Validity, de Gruyter 2008. All local, no failure. */
#ifndef SH_BASE_EXACT_H
#define SH_BASE_EXACT_H

#include <stdint.h>

enum { SH_EXACT_BLOCK = 64, SH_EXACT_DIGITS = 21, SH_EXACT_ELEMS = SH_EXACT_DIGITS + 1 };

struct sh_exact {
    uint64_t digit[SH_EXACT_DIGITS + 2]; /* two more for the overhang of a value near the top */
    double not_finite;
};

/* Add the squares of n floats, the first of which starts a block; at most 2^36 floats between two calls of
 * sh_exact_put(). */
void sh_exact_add_squares(struct sh_exact *sum, const float *a, int64_t n);

/* sum += more; the carries of both may still be pending. */
void sh_exact_add(struct sh_exact *sum, const struct sh_exact *more);

/* Convert from and to SH_EXACT_ELEMS doubles; put propagates carries. */
void sh_exact_get(struct sh_exact *sum, const double *elems);
void sh_exact_put(struct sh_exact *sum, double *elems);

/* The nearest double, ties to even; Inf or NaN if a block was not finite. Propagates carries. */
double sh_exact_round(struct sh_exact *sum);

#endif
