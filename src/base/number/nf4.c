/* A core packs 0.5 G elements/s or more with AVX-512, at 2 bytes per element from memory: negligible next to reading
 * files. A step unpacks with kernels; the loop here is for export and for tests. */
#include "src/base/number/nf4.h"

#include "src/base/clones.h"
#include "src/base/number/dtype.h"

#include <string.h>

static const float numbers[16] = SH_NF4_NUMBERS;

/* Below this a reciprocal would be infinite. For a block of zeros the reciprocal has no effect. */
static const float least_scale = 1e-38f;

/* Magnitudes have the same order as their bits. */
SH_CLONES static float largest(const float *x)
{
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int i = 0; i < SH_NF4_ELEMS; i++) {
        uint32_t bits = sh_f32_to_bits(x[i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return sh_bits_to_f32(most);
}

/* Counts midpoints instead of searching for the nearest number: no branches, and a tie goes to the lower code. */
SH_CLONES static void find_codes(const float *x, float reciprocal, const float midpoint[15], int32_t code[SH_NF4_ELEMS])
{
#pragma omp simd
    for (int i = 0; i < SH_NF4_ELEMS; i++) {
        float scaled = x[i] * reciprocal;
        int32_t n = 0;
        for (int m = 0; m < 15; m++)
            n += scaled > midpoint[m];
        code[i] = n;
    }
}

void sh_nf4_pack(const float *from, int64_t blocks, void *packed)
{
    float midpoint[15];
    unsigned char *to = packed;

    for (int m = 0; m < 15; m++)
        midpoint[m] = (numbers[m] + numbers[m + 1]) / 2;
    for (int64_t b = 0; b < blocks; b++, from += SH_NF4_ELEMS, to += SH_NF4_BLOCK_BYTES) {
        int32_t code[SH_NF4_ELEMS];
        float scale = largest(from);

        find_codes(from, 1.0f / (scale > least_scale ? scale : least_scale), midpoint, code);
        for (int i = 0; i < SH_NF4_CODE_BYTES; i++)
            to[i] = (unsigned char)(code[2 * i] << 4 | code[2 * i + 1]);
        memcpy(to + SH_NF4_CODE_BYTES, &scale, sizeof scale);
    }
}

void sh_nf4_unpack(const void *packed, int64_t blocks, float *to)
{
    const unsigned char *from = packed;

    for (int64_t b = 0; b < blocks; b++, from += SH_NF4_BLOCK_BYTES, to += SH_NF4_ELEMS) {
        float scale;

        memcpy(&scale, from + SH_NF4_CODE_BYTES, sizeof scale);
        for (int i = 0; i < SH_NF4_CODE_BYTES; i++) {
            to[2 * i] = numbers[from[i] >> 4] * scale;
            to[2 * i + 1] = numbers[from[i] & 15] * scale;
        }
    }
}

void sh_nf4_join(const void *codes, const float *scales, int64_t blocks, void *packed)
{
    unsigned char *to = packed;

    for (int64_t b = 0; b < blocks; b++, to += SH_NF4_BLOCK_BYTES) {
        if (codes)
            memcpy(to, (const char *)codes + b * SH_NF4_CODE_BYTES, SH_NF4_CODE_BYTES);
        if (scales)
            memcpy(to + SH_NF4_CODE_BYTES, scales + b, sizeof *scales);
    }
}
