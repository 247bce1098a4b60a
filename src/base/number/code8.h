/* Numbers in eight bits each, for the states of an optimizer: 64 neighbours share a scale, their largest magnitude. A
 * block is 64 codes and the scale, f32, in 68 bytes; blocks lie end to end. There are two laws:
 *
 *     LINEAR  number = scale code / 127      signed codes, for means of gradients
 *     FOURTH  number = scale (code / 255)^4  unsigned codes, for means of squares, whose sizes differ by orders of
 *                                            magnitude; a number above 0 never becomes 0, by which a step is divided
 *
 * The largest number has the code 127 or 255 and is restored to the bit, so a block that is widened and stored to
 * nearest has the same codes again. An infinity is restored too, and the numbers beside it become NaN or infinite; with
 * a NaN all become NaN. A block whose largest number is below SH_CODE8_LEAST counts as zeros; above it
 * no product is denormal.
 *
 * `bits` rounds: 0x8000 to nearest, 16 random bits stochastically, so that the expected value is the number itself.
 * Local, no failure. Valid C, C++ and CUDA; the loops are for host memory. code8_law.h has the laws. */
#ifndef SH_BASE_CODE8_H
#define SH_BASE_CODE8_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SH_CODE8_ELEMS = 64, SH_CODE8_BLOCK_BYTES = SH_CODE8_ELEMS + 4, SH_CODE8_NEAREST = 0x8000 };
enum sh_code8_law { SH_CODE8_LINEAR, SH_CODE8_FOURTH, SH_CODE8_LAWS };

#define SH_CODE8_LEAST 0x1p-90f
#define SH_CODE8_STEP 0x1p-16f         /* of `bits` */
#define SH_CODE8_FOURTHS 4228250625.0f /* 255^4 */

/* Bytes of n numbers; the last block may be incomplete. */
static inline int64_t sh_code8_bytes(int64_t n)
{
    return (n + SH_CODE8_ELEMS - 1) / SH_CODE8_ELEMS * SH_CODE8_BLOCK_BYTES;
}

/* Widen n numbers, and store them to nearest; `codes` of any alignment. If n is no multiple of 64, the last block is
 * read in part, and written with zeros behind them. */
void sh_code8_get(const void *codes, enum sh_code8_law law, int64_t n, float *to);
void sh_code8_put(void *codes, enum sh_code8_law law, int64_t n, const float *from);

#ifdef __cplusplus
}
#endif

#endif
