#include "kernels/ref/ref.h"
#include "src/base/number/nf4.h"

/* packed [b,36]: the codes, upper half of each byte first, then the scale. The product of two floats is exact in
 * double. */
/* Whether expert e of E has rows. */
static bool has_rows(const struct sh_operand *first, int64_t e, int64_t E)
{
    bool any = !first->data;

    for (int64_t g = e; !any && g < sh_ref_elems(first) - 1; g += E)
        any = sh_ref_get(first, g) < sh_ref_get(first, g + 1);
    return any;
}

sh_rc sh_ref_unpack(const struct sh_op_call *call)
{
    static const float numbers[16] = SH_NF4_NUMBERS;
    const unsigned char *packed = call->in[0].data;
    int64_t n = sh_ref_elems(&call->out[0]), E = call->out[0].dim[0];
    for (int64_t i = 0; i < n; i++) {
        if (!has_rows(&call->in[1], i / (n / E), E))
            continue;
        const unsigned char *block = packed + i / SH_NF4_ELEMS * SH_NF4_BLOCK_BYTES;
        int pair = block[i % SH_NF4_ELEMS / 2], code = i % 2 ? pair & 15 : pair >> 4;
        float scale;
        memcpy(&scale, block + SH_NF4_CODE_BYTES, sizeof scale);
        sh_ref_set(&call->out[0], i, (double)numbers[code] * scale);
    }
    return SH_OK;
}
