/* Weights in few bits, from and to f32 or bf16. Bytes per element, all of which move once: unpacking four bits reads 0.56 and
 * writes 4 or 2; decoding eight bits reads 1.06 and writes 4 or 2; coding them reads 4 or 2 and writes 1.06. At 3.35 TB/s of
 * an H100 a decoded bf16 takes 0.91 ps. Not measured on a GPU.
 *
 * A thread handles eight neighbours, and stores 16 bytes at a time. Blocks start at multiples of 4 bytes, so codes are
 * loaded as words; a warp reads whole lines, because it also reads the scales that are stored between the codes. To find
 * the largest number, half a warp codes a block (floats.cuh). */
#include "kernels/cuda/floats.cuh"

#include "src/base/number/nf4.h"

#include "kernels/cuda/cuda.h"

namespace
{
enum { THREADS = 256, WORD_ELEMS = 8, BLOCK_WORDS = SH_NF4_BLOCK_BYTES / 4, CODE_WORDS = SH_NF4_CODE_BYTES / 4 };
enum { EIGHTS = SH_CODE8_ELEMS / WORD_ELEMS, CODED_WORDS = SH_CODE8_BLOCK_BYTES / 4, PER_WARP = 32 / SH_CODE_LANES };

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

template <class T>
__global__ void __launch_bounds__(THREADS) decode(T *w, const uint32_t *codes, int64_t eights, bool vectors)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < eights; i += (int64_t)gridDim.x * THREADS) {
        const uint32_t *block = codes + i / EIGHTS * CODED_WORDS, *own = block + i % EIGHTS * 2;
        uint32_t word[2] = {own[0], own[1]};
        float scale = __uint_as_float(block[CODED_WORDS - 1]), v[WORD_ELEMS];
        for (int k = 0; k < WORD_ELEMS; k++)
            v[k] = sh_code8_linear((unsigned char)(word[k / 4] >> 8 * (k % 4)), scale);
        sh_store_some(w + i * WORD_ELEMS, v, WORD_ELEMS, vectors);
    }
}

/* All lanes of a warp stay together for the shuffles, though the second of its blocks may be past the end. */
template <class T>
__global__ void __launch_bounds__(THREADS) encode(unsigned char *codes, const T *a, int64_t blocks, bool vectors)
{
    unsigned lane = threadIdx.x % SH_CODE_LANES, half = threadIdx.x % 32 / SH_CODE_LANES;
    int64_t step = (int64_t)gridDim.x * (THREADS / SH_CODE_LANES);
    uint32_t bits[SH_CODE_EACH];

    for (int k = 0; k < SH_CODE_EACH; k++)
        bits[k] = SH_CODE8_NEAREST;
    for (int64_t i = ((int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * PER_WARP; i < blocks; i += step) {
        int64_t block = i + half;
        float x[SH_CODE_EACH] = {}, scale;
        if (block < blocks)
            sh_load_some(x, a + block * SH_CODE8_ELEMS + lane * SH_CODE_EACH, SH_CODE_EACH, vectors);
        scale = sh_cuda_largest(x);
        if (block < blocks)
            sh_cuda_store_codes(codes + block * SH_CODE8_BLOCK_BYTES, SH_CODE8_LINEAR, lane, x, bits, 0, scale);
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

extern "C" sh_rc sh_cuda_decode(const struct sh_op_call *call)
{
    const uint32_t *codes = sh_data<const uint32_t>(&call->in[0]);
    int64_t eights = call->in[0].dim[0] * EIGHTS;

    SH_REQUIRE(sh_aligned<1>(codes, 0));
    return sh_by_act(call->out[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        T *w = sh_data<T>(&call->out[0]);
        return SH_LAUNCH(decode<T>, dim3(sh_blocks(sh_ceil_div(eights, THREADS))), dim3(THREADS), 0, call->queue, w,
                         codes, eights, sh_aligned<WORD_ELEMS>(w, 0));
    });
}

extern "C" sh_rc sh_cuda_encode(const struct sh_op_call *call)
{
    unsigned char *codes = sh_data<unsigned char>(&call->out[0]);
    int64_t blocks = call->out[0].dim[0];

    SH_REQUIRE(sh_aligned<SH_CODE_EACH>(codes, 0));
    return sh_by_act(call->in[0].dtype, [&](auto zero) {
        typedef decltype(zero) T;
        const T *a = sh_data<const T>(&call->in[0]);
        return SH_LAUNCH(encode<T>, dim3(sh_blocks(sh_ceil_div(blocks, THREADS / SH_CODE_LANES))), dim3(THREADS), 0,
                         call->queue, codes, a, blocks, sh_aligned<SH_CODE_EACH>(a, 0));
    });
}
