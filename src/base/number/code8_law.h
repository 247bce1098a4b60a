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

/* By which the numbers of a block are multiplied: so that its largest becomes 127, in steps of `bits`, or 255^4. The former is
 * a little more, since the product is not to be below. */
SH_DTYPE float sh_code8_per_linear(float scale)
{
    return 127.00002f / SH_CODE8_STEP / scale;
}

SH_DTYPE float sh_code8_per_fourth(float scale)
{
    return SH_CODE8_FOURTHS / scale;
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
    int32_t code = ((int32_t)sh_code8_at_most(x * per_linear, 127 / SH_CODE8_STEP) + (int32_t)bits) >> 16;

    return (unsigned char)((code ^ sign) - sign);
}

/* r^(1/4) for r >= 0, within 2e-5 of its size for normal r: w is r^(-1/4), guessed by the exponent, r w^4 is between
 * 0.75 and 0.95, and a polynomial is its power of -3/4. */
SH_DTYPE float sh_code8_root(float r)
{
    float w = sh_code8_float(0x4f500000u - (sh_code8_bits(r) >> 2)), cube = r * w * (w * w), p = cube * w;

    return cube * (3.41700166f + p * (-5.19718874f + p * (3.90345670f + p * -1.12359007f)));
}

/* The code below or at r = x per_fourth, for 0 <= x <= scale. */
SH_DTYPE int32_t sh_code8_below_fourth(float r)
{
    return (int32_t)sh_code8_at_most(sh_code8_root(r), 255);
}

/* The code of x, given the one below, c. A quarter of what is between the fourth powers of c and c + 1 is
 * (c + 1/2) (c^2 + c + 1/2). Of a whole root either neighbour will do: the other one then has no share. */
SH_DTYPE unsigned char sh_code8_round_fourth(float x, float r, int32_t code, uint32_t bits)
{
    int32_t some = (int32_t)sh_code8_bits(x);
    float c = (float)code, square = c * c, middle = c + 0.5f;
    float share = (float)(int32_t)bits * (4 * SH_CODE8_STEP) * (middle * (square + middle)) - (r - square * square);

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
