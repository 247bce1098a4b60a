/* Conversion of arrays between float16 (IEEE 754 binary16) and float32, with the processor's instructions if it has
 * them (F16C, in every x86-64-v3), else in plain C with the same bits. Local, no failure. */
#ifndef SH_BASE_HALF_H
#define SH_BASE_HALF_H

#include "src/base/number/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* to [n] = from [n]. Widening is exact; narrowing rounds to nearest, ties to even. The arrays do not overlap. */
void sh_half_widen(float *to, const sh_f16 *from, int64_t n);
void sh_half_narrow(sh_f16 *to, const float *from, int64_t n);

/* The same in plain C, for tests. */
void sh_half_widen_plain(float *to, const sh_f16 *from, int64_t n);
void sh_half_narrow_plain(sh_f16 *to, const float *from, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
