/* From four bits per element to f32 or bf16: 0.56 bytes read, 4 or 2 written. A thread handles eight neighbours, four
 * bytes of codes. A warp reads whole lines, because it also reads the scales that are stored between the codes. */
#include "kernels/cuda/launch.cuh"

#include "src/base/number/nf4.h"

#include "kernels/cuda/cuda.h"

namespace
{
enum { THREADS = 256, WORD_ELEMS = 8, BLOCK_WORDS = SH_NF4_BLOCK_BYTES / 4, CODE_WORDS = SH_NF4_CODE_BYTES / 4 };

struct numbers {
    float number[16];
};

/* The table is in shared memory: lanes look up different codes, and constant memory would serve these one after
 * another. */
template <class T>
__global__ void __launch_bounds__(THREADS) unpack(T *w, const uint32_t *packed, int64_t words, bool vectors, numbers of)
{
    SH_SHARED(float, table, 16);

    if (threadIdx.x < 16)
        table[threadIdx.x] = of.number[threadIdx.x];
    __syncthreads();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < words; i += (int64_t)gridDim.x * THREADS) {
        const uint32_t *block = packed + i / CODE_WORDS * BLOCK_WORDS;
        uint32_t codes = block[i % CODE_WORDS];
        float scale = __uint_as_float(block[CODE_WORDS]), v[WORD_ELEMS];
        for (int k = 0; k < WORD_ELEMS; k++)
            v[k] = table[codes >> (8 * (k / 2) + (k % 2 ? 0 : 4)) & 15] * scale;
        sh_store_some(w + i * WORD_ELEMS, v, WORD_ELEMS, vectors);
    }
}
} // namespace

extern "C" sh_rc sh_cuda_unpack(const struct sh_op_call *call)
{
    const uint32_t *packed = sh_data<const uint32_t>(&call->in[0]);
    int64_t words = call->in[0].dim[0] * CODE_WORDS;

    /* Blocks are whole words, and tensors are aligned to 64 bytes. */
    SH_REQUIRE(reinterpret_cast<uintptr_t>(packed) % 4 == 0);
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        T *w = sh_data<T>(&call->out[0]);
        return SH_LAUNCH(unpack<T>, dim3(sh_blocks(sh_ceil_div(words, THREADS))), dim3(THREADS), 0, call->queue, w,
                         packed, words, sh_aligned<WORD_ELEMS>(w, 0), numbers{SH_NF4_NUMBERS});
    });
}
