/* The laws of code8.h, number by number: no branch, so that compilers vectorise loops over them. Local, no failure. Valid
 * C, C++ and CUDA. */
#ifndef SH_BASE_CODE8_LAW_H
#define SH_BASE_CODE8_LAW_H

#include "src/base/number/code8.h"
#include "src/base/number/dtype.h"

SH_DTYPE float sh_code8_linear(unsigned char code, float scale)
{
    return scale * ((float)(signed char)code * (1.0f / 127.0f));
}

SH_DTYPE float sh_code8_fourth(unsigned char code, float scale)
{
    float z = (float)code * (1.0f / 255.0f), square = z * z;
    return scale * (square * square);
}

/* The code of x, |x| <= scale, and scale > 0; per_scale is 127 / scale. */
SH_DTYPE unsigned char sh_code8_to_linear(float x, float scale, float per_scale, uint32_t bits)
{
    float size = sh_bits_to_f32(sh_f32_to_bits(x) & 0x7fffffffu), y = size * per_scale;

    y = size >= scale ? 127.0f : y;
    y = y > 127.0f ? 127.0f : y;
    y += (float)(int32_t)bits * SH_CODE8_STEP; /* less than 128 */
    return (unsigned char)(int32_t)(x < 0 ? -y : y);
}

/* r^(1/4) for 2^-40 <= r <= 1, within 1e-4 of it: Newton's method from a guess by the exponent. */
SH_DTYPE float sh_code8_root(float r)
{
    float w = sh_bits_to_f32(0x4f584600u - (sh_f32_to_bits(r) >> 2)), quarter = 0.25f * r, square;

    square = w * w;
    w = w * (1.25f - quarter * (square * square));
    square = w * w;
    w = w * (1.25f - quarter * (square * square));
    return r * w * (w * w);
}

/* The same for 0 <= x <= scale; per_scale is 1 / scale. The two neighbours are c^4 and (c + 1)^4 of 255^4.
 * Adding 1.5 * 2^23 leaves a whole number; a cast would, but compilers do not vectorise it here. Of a whole root either
 * neighbour will do: the other one then has no share. */
SH_DTYPE unsigned char sh_code8_to_fourth(float x, float scale, float per_scale, uint32_t bits)
{
    float r = x * per_scale, below, gap, c, z;

    r = x >= scale ? 1.0f : r;
    r = r > 1.0f ? 1.0f : r;
    z = 255.0f * sh_code8_root(r < 0x1p-40f ? 0x1p-40f : r);
    z = z > 255.0f ? 255.0f : z;
    c = (z - 0.5f + 12582912.0f) - 12582912.0f;
    below = c * c * (c * c);
    gap = (2.0f * c + 1.0f) * (2.0f * c * (c + 1.0f) + 1.0f);
    c = (float)(int32_t)bits * SH_CODE8_STEP * gap < r * SH_CODE8_FOURTHS - below ? c + 1.0f : c;
    c = c > 255.0f ? 255.0f : c;
    z = x * 0x1p126f;
    z = z > 1.0f ? 1.0f : z;
    return (unsigned char)(int32_t)(c < z ? z : c);
}

#endif
