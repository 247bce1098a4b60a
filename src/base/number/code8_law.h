/* The laws of code8.h, number by number: no branch, so that compilers vectorise loops over them. Local, no failure. Valid
 * C, C++ and CUDA. */
#ifndef SH_BASE_CODE8_LAW_H
#define SH_BASE_CODE8_LAW_H

#include "src/base/number/code8.h"
#include "src/base/number/dtype.h"

/* sh_f32_to_bits() and back, on GPUs too. */
SH_DTYPE uint32_t sh_code8_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

SH_DTYPE float sh_code8_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

SH_DTYPE float sh_code8_linear(unsigned char code, float scale)
{
    return scale * ((float)(signed char)code * (1.0f / 127.0f));
}

SH_DTYPE float sh_code8_fourth(unsigned char code, float scale)
{
    float z = (float)code * (1.0f / 255.0f), square = z * z;
    return scale * (square * square);
}

/* 127 / scale and 1 / scale, by which the numbers of a block are multiplied; the former is a little more, so that the
 * product with the largest number is not below 127. */
SH_DTYPE float sh_code8_per_linear(float scale)
{
    return 127.00002f / scale;
}

SH_DTYPE float sh_code8_per_fourth(float scale)
{
    return 1.0f / scale;
}

/* |y| up to `most`, which a NaN becomes too: no int32_t holds it. By bits, whose least is one instruction; a choice between
 * floats would keep compilers from vectorising. */
SH_DTYPE float sh_code8_at_most(float y, float most)
{
    int32_t bits = (int32_t)(sh_code8_bits(y) & 0x7fffffffu), bound = (int32_t)sh_code8_bits(most);

    return sh_code8_float((uint32_t)(bits < bound ? bits : bound));
}

/* The code of x, |x| <= scale, and scale > 0. Of a block with an infinity or a NaN, these have the last code. */
SH_DTYPE unsigned char sh_code8_to_linear(float x, float per_linear, uint32_t bits)
{
    int32_t sign = (int32_t)sh_code8_bits(x) >> 31;
    float size = sh_code8_float(sh_code8_bits(x) & 0x7fffffffu);
    int32_t code = (int32_t)sh_code8_at_most(size * per_linear + (float)(int32_t)bits * SH_CODE8_STEP, 127);

    return (unsigned char)((code ^ sign) - sign);
}

/* 255 r^(1/4) for 0 <= r <= 1, within 2e-5 of its size for normal r: w is r^(-1/4), guessed by the exponent, r w^4 is between
 * 0.75 and 0.95, and a polynomial is its power of -3/4. */
SH_DTYPE float sh_code8_root(float r)
{
    float w = sh_code8_float(0x4f500000u - (sh_code8_bits(r) >> 2)), cube = r * w * (w * w), p = cube * w;

    return cube * (871.335423f + p * (-1325.28313f + p * (995.381459f + p * -286.515458f)));
}

/* The code below or at r = x per_fourth, for 0 <= x <= scale. */
SH_DTYPE int32_t sh_code8_below_fourth(float r)
{
    return (int32_t)sh_code8_at_most(sh_code8_root(r), 255);
}

/* The code of x, given the one below. The two neighbours are c^4 and (c + 1)^4 of 255^4. Of a whole root either neighbour
 * will do: the other one then has no share. */
SH_DTYPE unsigned char sh_code8_round_fourth(float x, float r, int32_t code, uint32_t bits)
{
    int32_t some = (int32_t)sh_code8_bits(x);
    float c = (float)code, square = c * c, share;
    float gap = SH_CODE8_STEP + c * (4 * SH_CODE8_STEP + c * (6 * SH_CODE8_STEP + c * (4 * SH_CODE8_STEP)));

    /* gap: (c + 1)^4 - c^4, times the step of bits */
    share = (float)(int32_t)bits * gap - (r * SH_CODE8_FOURTHS - square * square);
    code += (int32_t)(sh_code8_bits(share) >> 31); /* below 0: the upper one */
    some = some > 1 ? 1 : some;
    code = code < some ? some : code;
    return (unsigned char)(code > 255 ? 255 : code);
}

SH_DTYPE unsigned char sh_code8_to_fourth(float x, float per_fourth, uint32_t bits)
{
    float r = x * per_fourth;

    return sh_code8_round_fourth(x, r, sh_code8_below_fourth(r), bits);
}

#endif
