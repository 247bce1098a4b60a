/* Updates whose states are in codes of eight bits: widened, updated as others are, and stored with the random bits of
 * their runs. */
#include "kernels/ref/ref.h"
#include "kernels/states.h"
#include "src/base/mem.h"
#include "src/base/number/code8_law.h"

#include <stdlib.h>
#include <string.h>

enum { ELEMS = SH_CODE8_ELEMS };

/* 16 bits for each element and state; those of no run are stored to nearest. */
static void draw(const struct sh_op_call *call, int k, int64_t n, uint32_t *bits)
{
    for (int64_t i = 0; i < n; i++)
        bits[i] = SH_CODE8_NEAREST;
    for (int r = 0; r < call->attr->runs.count; r++) {
        const struct sh_decay_run *run = &call->runs[r];
        struct sh_random random = sh_random_of(call, run);

        for (int64_t i = run->begin; i < run->end; i++) {
            uint32_t block[4];
            int place = sh_random_place(&random, i);

            sh_random_block(&random, i, block);
            bits[i] = sh_random_word(block[place / 2], place) >> (k * SH_RANDOM_BITS) & 0xffffu;
        }
    }
}

static void store_block(unsigned char *block, enum sh_code8_law law, const float *x, const uint32_t *bits)
{
    uint32_t largest = 0;
    float scale;

    for (int i = 0; i < ELEMS; i++) {
        uint32_t size = sh_f32_to_bits(x[i]) & 0x7fffffffu; /* of a NaN: the largest */

        largest = size > largest ? size : largest;
    }
    memset(block, 0, SH_CODE8_BLOCK_BYTES);
    scale = sh_bits_to_f32(largest);
    if (scale < SH_CODE8_LEAST)
        return;
    for (int i = 0; i < ELEMS; i++)
        block[i] = law == SH_CODE8_LINEAR ? sh_code8_to_linear(x[i], sh_code8_per_linear(scale), bits[i])
                                          : sh_code8_to_fourth(x[i], sh_code8_per_fourth(scale), bits[i]);
    memcpy(block + ELEMS, &scale, sizeof scale);
}

static void store(const struct sh_op_call *call, int k, const float *x, uint32_t *bits)
{
    int64_t blocks = call->out[1 + k].dim[0];

    draw(call, k, blocks * ELEMS, bits);
    for (int64_t b = 0; b < blocks; b++)
        store_block((unsigned char *)call->out[1 + k].data + b * SH_CODE8_BLOCK_BYTES, sh_state_law(k), x + b * ELEMS,
                    bits + b * ELEMS);
}

static sh_rc update(const struct sh_op_call *call, int n_states, sh_kernel by)
{
    int64_t n = call->out[1].dim[0] * ELEMS;
    float *wide = sh_calloc((size_t)(n_states * n) + 1, sizeof *wide);
    uint32_t *bits = sh_calloc((size_t)n + 1, sizeof *bits);
    struct sh_op_call plain = *call;
    sh_rc rc;

    for (int k = 0; k < n_states; k++) {
        sh_code8_get(call->out[1 + k].data, sh_state_law(k), n, wide + k * n);
        plain.out[1 + k] = (struct sh_operand){.data = wide + k * n, .dtype = SH_F32, .ndim = 1, .dim = {n}};
    }
    rc = by(&plain);
    for (int k = 0; k < n_states; k++)
        store(call, k, wide + k * n, bits);
    free(wide);
    free(bits);
    return rc;
}

sh_rc sh_ref_adamw_coded(const struct sh_op_call *call)
{
    return update(call, 2, sh_ref_adamw);
}

sh_rc sh_ref_lion_coded(const struct sh_op_call *call)
{
    return update(call, 1, sh_ref_lion);
}
