/* Parameters in codes of eight bits, as ranks gather them: block by block, by the law of code8.h. */
#include "kernels/ref/ref.h"
#include "src/base/number/code8_law.h"

#include <string.h>

enum { ELEMS = SH_CODE8_ELEMS, BYTES = SH_CODE8_BLOCK_BYTES };

static void encode_block(const struct sh_operand *a, int64_t at, unsigned char *block)
{
    uint32_t largest = 0;
    float scale;

    for (int i = 0; i < ELEMS; i++) {
        uint32_t size = sh_f32_to_bits((float)sh_ref_get(a, at + i)) & 0x7fffffffu; /* of a NaN: the largest */

        largest = size > largest ? size : largest;
    }
    memset(block, 0, BYTES);
    scale = sh_bits_to_f32(largest);
    if (scale < SH_CODE8_LEAST)
        return;
    for (int i = 0; i < ELEMS; i++)
        block[i] = sh_code8_to_linear((float)sh_ref_get(a, at + i), sh_code8_per_linear(scale), SH_CODE8_NEAREST);
    memcpy(block + ELEMS, &scale, sizeof scale);
}

sh_rc sh_ref_encode(const struct sh_op_call *call)
{
    for (int64_t b = 0; b < call->out[0].dim[0]; b++)
        encode_block(&call->in[0], b * ELEMS, (unsigned char *)call->out[0].data + b * BYTES);
    return SH_OK;
}

sh_rc sh_ref_decode(const struct sh_op_call *call)
{
    for (int64_t i = 0; i < sh_ref_elems(&call->out[0]); i++) {
        const unsigned char *block = (const unsigned char *)call->in[0].data + i / ELEMS * BYTES;
        float scale;

        memcpy(&scale, block + ELEMS, sizeof scale);
        sh_ref_set(&call->out[0], i, (double)sh_code8_linear(block[i % ELEMS], scale));
    }
    return SH_OK;
}
