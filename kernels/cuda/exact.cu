/* Sums that do not depend on their order (src/base/exact.h), bit for bit those of kernels/exact.c. Bytes: 4 an element,
 * in whole sectors of 32: the order of the sum gives neighbouring lanes neighbouring elements, and a lane no vector.
 *
 * Eight lanes sum a block of 64 elements, each the elements that are its lane in block_sum(), and add up in the same
 * tree. The sum is then added to the accumulator of the warp, of which each lane has one digit in a register. Digits
 * are integers: warps, blocks and parts add up exactly, in any order. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/work.h"
#include "src/base/exact.h"

namespace
{
constexpr int THREADS = 256, WARPS = THREADS / 32, LANES = 8;
constexpr int LOWEST = -352, BITS = 32;

/* Lanes 0 to 22 have a digit, lane NOT_FINITE the sum of what is not finite as the bits of a double. */
constexpr unsigned NOT_FINITE = SH_CUDA_EXACT_WORDS - 1;
static_assert(NOT_FINITE == SH_EXACT_DIGITS + 2, "a word each for the digits, and one more");
static_assert(SH_EXACT_BLOCK == 64 && LANES == 8, "as block_sum() of kernels/exact.c has it");

__device__ __forceinline__ double as_double(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

__device__ __forceinline__ uint64_t as_bits(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}

__device__ __forceinline__ uint64_t add_words(uint64_t a, uint64_t b, unsigned word)
{
    return word == NOT_FINITE ? as_bits(as_double(a) + as_double(b)) : a + b;
}

/* add_value() of kernels/exact.c, as seen by the lane that has `mine`. */
__device__ __forceinline__ uint64_t add_value(uint64_t mine, double value, unsigned lane)
{
    uint64_t bits = as_bits(value);
    int exponent = (int)(bits >> 52 & 0x7ff);

    if (exponent == 0x7ff)
        return lane == NOT_FINITE ? add_words(mine, bits, lane) : mine;
    if (bits == 0 || lane >= NOT_FINITE)
        return mine;
    uint64_t mantissa = (bits & 0xfffffffffffffu) | 0x10000000000000u;
    int shift = exponent - 1075 - LOWEST, which = (int)lane - shift / BITS;
    uint64_t low = (mantissa & 0xffffffffu) << shift % BITS, high = (mantissa >> BITS) << shift % BITS;
    return mine + (which == 0   ? low & 0xffffffffu
                   : which == 1 ? (low >> BITS) + (high & 0xffffffffu)
                   : which == 2 ? high >> BITS
                                : 0);
}

/* The sum of the lane's share of a block of which the first of n elements is a[0]. */
__device__ __forceinline__ double lane_sum(const float *a, int64_t n, unsigned lane)
{
    double sum = 0;

    for (int i = 0; i < SH_EXACT_BLOCK; i += LANES) {
        double x = i + (int64_t)lane < n ? (double)a[i + lane] : 0;
        sum += x * x;
    }
    for (int with = LANES / 2; with; with /= 2)
        sum += __shfl_xor_sync(~0u, sum, with);
    return sum;
}

/* Words of all warps of the block, added; the threads that have a word write it. */
__device__ __forceinline__ void put_words(uint64_t *to, uint64_t mine)
{
    SH_SHARED(uint64_t, words, WARPS * 32);
    unsigned i = threadIdx.x;

    words[i] = mine;
    __syncthreads();
    if (i < SH_CUDA_EXACT_WORDS) {
        for (unsigned w = 1; w < WARPS; w++)
            mine = add_words(mine, words[w * 32 + i], i);
        to[i] = mine;
    }
}

/* A warp has four neighbouring blocks at a time. */
__global__ void __launch_bounds__(THREADS) sum_squares(uint64_t *parts, const float *a, int64_t n)
{
    constexpr int GROUPS = 32 / LANES, STRIDE = GROUPS * SH_EXACT_BLOCK;
    unsigned lane = threadIdx.x % 32;
    int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, warps = (int64_t)gridDim.x * WARPS;
    uint64_t mine = 0;

    for (int64_t at = warp * STRIDE; at < n; at += warps * STRIDE) {
        int64_t first = at + lane / LANES * SH_EXACT_BLOCK;
        double sum = lane_sum(a + first, n - first, lane % LANES);
        for (int group = 0; group < GROUPS; group++)
            mine = add_value(mine, __shfl_sync(~0u, sum, group * LANES), lane);
    }
    put_words(parts + blockIdx.x * SH_CUDA_EXACT_WORDS, mine);
}

__device__ void carry(uint64_t *digit)
{
    for (int i = 0; i + 1 < SH_EXACT_DIGITS; i++) {
        digit[i + 1] += digit[i] >> BITS;
        digit[i] &= 0xffffffffu;
    }
}

/* s [SH_EXACT_ELEMS] = or += the parts, carries taken on: one block. */
__global__ void __launch_bounds__(THREADS) add_parts(double *s, bool add, const uint64_t *parts, int64_t n)
{
    SH_SHARED(uint64_t, total, SH_CUDA_EXACT_WORDS);
    unsigned lane = threadIdx.x % 32;
    uint64_t mine = 0;

    for (int64_t p = threadIdx.x / 32; p < n && lane < SH_CUDA_EXACT_WORDS; p += WARPS)
        mine = add_words(mine, parts[p * SH_CUDA_EXACT_WORDS + lane], lane);
    put_words(total, mine);
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 0; i < SH_EXACT_DIGITS && add; i++)
        total[i] += (uint64_t)s[i];
    carry(total);
    for (int i = 0; i < SH_EXACT_DIGITS; i++)
        s[i] = (double)total[i];
    s[SH_EXACT_DIGITS] = as_double(total[NOT_FINITE]) + (add ? s[SH_EXACT_DIGITS] : 0);
}

/* sh_exact_round() of kernels/exact.c, on one thread. */
__device__ double round_digits(uint64_t *digit)
{
    int i = SH_EXACT_DIGITS - 1;

    carry(digit);
    while (i > 0 && !digit[i])
        i--;
    if (!i)
        return ldexp((double)digit[0], LOWEST);
    uint64_t top = digit[i] << BITS | digit[i - 1], next = i > 1 ? digit[i - 2] : 0;
    int free_bits = __clzll((long long)top);
    uint64_t head = free_bits ? top << free_bits | next >> (BITS - free_bits) : top;
    next = next << free_bits & 0xffffffffu;
    for (int below = i - 3; below >= 0; below--)
        next |= digit[below];
    return ldexp((double)(head | (next != 0)), (i - 1) * BITS + LOWEST - free_bits);
}

__global__ void __launch_bounds__(32) round_kernel(double *y, const double *s)
{
    if (threadIdx.x != 0)
        return;
    uint64_t digit[SH_EXACT_DIGITS];
    for (int i = 0; i < SH_EXACT_DIGITS; i++)
        digit[i] = (uint64_t)s[i];
    *y = s[SH_EXACT_DIGITS] != 0 ? s[SH_EXACT_DIGITS] : round_digits(digit);
}
} // namespace

extern "C" sh_rc sh_cuda_sumsq(const struct sh_op_call *call)
{
    int64_t n = sh_elems(&call->in[0]), parts = sh_cuda_sumsq_parts(n);
    uint64_t *work = static_cast<uint64_t *>(call->work);

    SH_REQUIRE(call->work_bytes >= sh_cuda_sumsq_work_bytes(call));
    SH_TRY(SH_LAUNCH(sum_squares, dim3((unsigned)parts), dim3(THREADS), 0, call->queue, work,
                     sh_data<float>(&call->in[0]), n));
    return SH_LAUNCH(add_parts, dim3(1), dim3(THREADS), 0, call->queue, sh_data<double>(&call->out[0]),
                     sh_op_adds(call, 0), work, parts);
}

extern "C" sh_rc sh_cuda_exact_round(const struct sh_op_call *call)
{
    return SH_LAUNCH(round_kernel, dim3(1), dim3(32), 0, call->queue, sh_data<double>(&call->out[0]),
                     sh_data<double>(&call->in[0]));
}
