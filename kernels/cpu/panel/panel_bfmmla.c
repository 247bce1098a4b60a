/* Products of quads of bf16 by BFMMLA: 2 x 2 sums += 2 x 4 by 4 x 2 elements an instruction. The processor flushes
 * denormals to zero and rounds to odd, as the instruction says, so bits differ from those of the other units. No Arm
 * processor has been measured. */
#include "sherd_config.h"

#include "kernels/cpu/panel/panel.h"

#ifdef SH_QUADS

#include "src/base/isa.h"

#include <arm_neon.h>

#define SH_BFMMLA __attribute__((target("arch=armv8.2-a+bf16")))

/* PART x PART sums are 16 of the 32 registers, and what they are multiplied with are 8. */
enum { SIDE = SH_PANEL_SIDE, QUAD = 4, QUADS = SIDE / QUAD, PART = 8, PAIRS = PART / 2 };

static bool usable(void)
{
    return sh_isa_has(SH_ISA_BFMMLA);
}

/* Two sides of a quad. */
static SH_BFMMLA inline bfloat16x8_t load(const sh_bf16 *sides)
{
    return vreinterpretq_bf16_u16(vld1q_u16(sides));
}

/* PART x PART sums from two rows of PAIRS registers. */
static SH_BFMMLA void multiply_part(const sh_bf16 *rows, const sh_bf16 *cols, float *sums, int64_t quads, bool add)
{
    float32x4_t s[PAIRS][PAIRS];

    _Pragma("GCC unroll 4") for (int i = 0; i < PAIRS; i++) _Pragma("GCC unroll 4") for (int j = 0; j < PAIRS; j++)
    {
        const float *at = sums + 2 * i * SIDE + 2 * j;
        s[i][j] = add ? vcombine_f32(vld1_f32(at), vld1_f32(at + SIDE)) : vdupq_n_f32(0);
    }
    for (; quads > 0; quads--, rows += QUAD * SIDE, cols += QUAD * SIDE) {
        bfloat16x8_t c[PAIRS];
        _Pragma("GCC unroll 4") for (int j = 0; j < PAIRS; j++) c[j] = load(cols + 2 * j * QUAD);
        _Pragma("GCC unroll 4") for (int i = 0; i < PAIRS; i++)
        {
            bfloat16x8_t r = load(rows + 2 * i * QUAD);
            _Pragma("GCC unroll 4") for (int j = 0; j < PAIRS; j++) s[i][j] = vbfmmlaq_f32(s[i][j], r, c[j]);
        }
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < PAIRS; i++) _Pragma("GCC unroll 4") for (int j = 0; j < PAIRS; j++)
    {
        float *at = sums + 2 * i * SIDE + 2 * j;
        vst1_f32(at, vget_low_f32(s[i][j]));
        vst1_f32(at + SIDE, vget_high_f32(s[i][j]));
    }
}

static void multiply(const void *rows, const void *cols, float *sums, int64_t steps, bool add, int64_t live)
{
    for (int64_t i = 0; i < live; i += PART)
        for (int64_t j = 0; j < SIDE; j += PART)
            multiply_part((const sh_bf16 *)rows + i * QUAD, (const sh_bf16 *)cols + j * QUAD, sums + i * SIDE + j,
                          steps * QUADS, add);
}

/* For 1 MiB of L2 as on Neoverse V1, as with AVX-512's products of pairs. */
const struct sh_panel_unit sh_panel_bfmmla = {.name = "BFMMLA", .usable = usable, .multiply = multiply, .slice = 4};

#endif
