/* From four bits per element to f32 or bf16: 0.56 bytes read, 4 or 2 written, and no more time than the memory takes.
 * A block has 16 different numbers, so they are scaled and rounded first, and then only looked up: in vectors if the
 * processor can permute 16-bit lanes (unpack_wide.c), otherwise a byte at a time. Blocks are independent: threads
 * change no bit. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/wide.h"
#include "src/base/clones.h"
#include "src/base/number/nf4.h"

#include <string.h>

enum { PIECE = 16 }; /* in blocks: whole cache lines, whatever the type */

static const float numbers[16] = SH_NF4_NUMBERS;

/* The 16 scaled numbers of a block. */
static inline void scale_numbers(const unsigned char *block, float scaled[16])
{
    float scale;

    memcpy(&scale, block + SH_NF4_CODE_BYTES, sizeof scale);
    for (int k = 0; k < 16; k++)
        scaled[k] = numbers[k] * scale;
}

SH_CLONES static void unpack_f32(const unsigned char *block, int64_t blocks, void *to)
{
    float *w = to;

    for (int64_t b = 0; b < blocks; b++, block += SH_NF4_BLOCK_BYTES, w += SH_NF4_ELEMS) {
        float table[16];

        scale_numbers(block, table);
        for (int i = 0; i < SH_NF4_CODE_BYTES; i++) {
            w[2 * i] = table[block[i] >> 4];
            w[2 * i + 1] = table[block[i] & 15];
        }
    }
}

SH_CLONES static void unpack_bf16(const unsigned char *block, int64_t blocks, void *to)
{
    sh_bf16 *w = to;

    for (int64_t b = 0; b < blocks; b++, block += SH_NF4_BLOCK_BYTES, w += SH_NF4_ELEMS) {
        float scaled[16];
        sh_bf16 table[16];

        scale_numbers(block, scaled);
        for (int k = 0; k < 16; k++)
            table[k] = sh_f32_to_bf16(scaled[k]);
        for (int i = 0; i < SH_NF4_CODE_BYTES; i++) {
            w[2 * i] = table[block[i] >> 4];
            w[2 * i + 1] = table[block[i] & 15];
        }
    }
}

/* Blocks [begin, end) */
static void unpack(const struct sh_op_call *call, int64_t begin, int64_t end)
{
    bool bf16 = call->out[0].dtype == SH_BF16;
    sh_wide_unpack_fn wide = sh_wide_unpack(call->out[0].dtype), f = wide ? wide : bf16 ? unpack_bf16 : unpack_f32;
    const unsigned char *packed = call->in[0].data;
    int64_t bytes = SH_NF4_ELEMS * sh_dtype_bytes(call->out[0].dtype);

#pragma omp parallel for schedule(static)
    for (int64_t b = begin; b < end; b += PIECE)
        f(packed + b * SH_NF4_BLOCK_BYTES, end - b < PIECE ? end - b : PIECE, (char *)call->out[0].data + b * bytes);
}

/* Whether any group of expert e of E has rows. */
static bool has_rows(const struct sh_operand *first, int64_t e, int64_t E)
{
    const int32_t *row = first->data;
    bool any = false;

    for (int64_t g = e; !any && g < first->dim[0] - 1; g += E)
        any = row[g] < row[g + 1];
    return any;
}

/* packed [b,36] -> w [64b]; with `first`, the matrices of w's experts that have rows */
sh_rc sh_cpu_unpack(const struct sh_op_call *call)
{
    int64_t blocks = call->in[0].dim[0], E = call->out[0].dim[0];

    if (!call->in[1].data)
        unpack(call, 0, blocks);
    for (int64_t e = 0; call->in[1].data && e < E; e++)
        if (has_rows(&call->in[1], e, E))
            unpack(call, e * (blocks / E), (e + 1) * (blocks / E));
    return SH_OK;
}
