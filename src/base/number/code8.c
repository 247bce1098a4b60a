/* Whole blocks at a time, so that compilers vectorise loops of 64. Products are in the order of the header: in another,
 * the largest number would not come back to the bit. */
#include "src/base/number/code8_law.h"

#include "src/base/clones.h"

#include <string.h>

enum { ELEMS = SH_CODE8_ELEMS };

SH_CLONES static void widen(const unsigned char *code, float scale, enum sh_code8_law law, float *to)
{
    if (law == SH_CODE8_LINEAR)
        for (int i = 0; i < ELEMS; i++)
            to[i] = sh_code8_linear(code[i], scale);
    else
        for (int i = 0; i < ELEMS; i++)
            to[i] = sh_code8_fourth(code[i], scale);
}

/* A NaN is larger than all numbers, and becomes the scale. */
SH_CLONES static float narrow(const float *from, enum sh_code8_law law, unsigned char *code)
{
    int32_t largest = 0;
    float scale, per;

    for (int i = 0; i < ELEMS; i++) {
        int32_t size = (int32_t)(sh_f32_to_bits(from[i]) & 0x7fffffffu);

        largest = size > largest ? size : largest;
    }
    scale = sh_bits_to_f32((uint32_t)largest);
    if (scale < SH_CODE8_LEAST) {
        memset(code, 0, ELEMS);
        return 0;
    }
    per = law == SH_CODE8_LINEAR ? sh_code8_per_linear(scale) : sh_code8_per_fourth(scale);
    if (law == SH_CODE8_LINEAR)
        for (int i = 0; i < ELEMS; i++)
            code[i] = sh_code8_to_linear(from[i], per, SH_CODE8_NEAREST);
    else
        for (int i = 0; i < ELEMS; i++)
            code[i] = sh_code8_to_fourth(from[i], per, SH_CODE8_NEAREST);
    return scale;
}

void sh_code8_get(const void *codes, enum sh_code8_law law, int64_t n, float *to)
{
    const unsigned char *block = (const unsigned char *)codes;

    for (int64_t i = 0; i < n; i += ELEMS, block += SH_CODE8_BLOCK_BYTES) {
        float scale, room[ELEMS];

        memcpy(&scale, block + ELEMS, sizeof scale);
        widen(block, scale, law, n - i < ELEMS ? room : to + i);
        if (n - i < ELEMS)
            memcpy(to + i, room, (size_t)(n - i) * sizeof *to);
    }
}

void sh_code8_put(void *codes, enum sh_code8_law law, int64_t n, const float *from)
{
    unsigned char *block = (unsigned char *)codes;

    for (int64_t i = 0; i < n; i += ELEMS, block += SH_CODE8_BLOCK_BYTES) {
        float scale, room[ELEMS] = {0};

        if (n - i < ELEMS)
            memcpy(room, from + i, (size_t)(n - i) * sizeof *from);
        scale = narrow(n - i < ELEMS ? room : from + i, law, block);
        memcpy(block + ELEMS, &scale, sizeof scale);
    }
}
