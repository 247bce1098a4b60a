/* Arrays of float16 (IEEE 754 binary16) as float32 and back, by the processor's instructions where it has them (F16C: each
 * x86-64-v3), else in plain C with the same bits. Local, no failure. */
#ifndef SH_BASE_HALF_H
#define SH_BASE_HALF_H

#include "src/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* to [n] = from [n]: exact, and rounded to the nearest, ties to even. The arrays do not overlap. */
void sh_half_widen(float *to, const sh_f16 *from, int64_t n);
void sh_half_narrow(sh_f16 *to, const float *from, int64_t n);

/* The same in plain C, for tests. */
void sh_half_widen_plain(float *to, const sh_f16 *from, int64_t n);
void sh_half_narrow_plain(sh_f16 *to, const float *from, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
