/* Copies into and out of the tensors that continue a sequence: keys and values into the cache, the last row out of a
 * step. Bytes: what is copied, read and written once. */
#include "kernels/cpu/base/block.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

/* All rows cost the same, so threads share them evenly; a row beyond `count` is skipped. Keys and values are the end
 * of a row, so they start kv_row elements before the next one. */
sh_rc sh_cpu_kv_put(const struct sh_op_call *call)
{
    const struct sh_operand *qkv = &call->in[0], *kv = &call->out[0];
    const int32_t *at = call->in[1].data, *count = call->in[2].data;
    int64_t T = qkv->dim[1], row = qkv->dim[2], positions = kv->dim[1], kv_row = kv->dim[2];
    size_t bytes = (size_t)(kv_row * sh_dtype_bytes(kv->dtype));

#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < qkv->dim[0] * T; n++) {
        int64_t b = n / T;
        if (n % T < count[b])
            memcpy(sh_cpu_at(kv->data, kv->dtype, (b * positions + at[n]) * kv_row),
                   sh_cpu_at(qkv->data, qkv->dtype, (n + 1) * row - kv_row), bytes);
    }
    return SH_OK;
}

/* One row per sequence: too little for threads. */
sh_rc sh_cpu_pick(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    const int32_t *count = call->in[1].data;
    int64_t T = x->dim[1], C = x->dim[2];

    for (int64_t b = 0; b < x->dim[0]; b++) {
        int64_t t = count[b] ? count[b] - 1 : 0;
        memcpy(sh_cpu_at(y->data, y->dtype, b * C), sh_cpu_at(x->data, x->dtype, (b * T + t) * C),
               (size_t)(C * sh_dtype_bytes(x->dtype)));
    }
    return SH_OK;
}
