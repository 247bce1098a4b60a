/* Sums that do not depend on their order (src/base/number/exact.h), bit for bit those of exact.c there. Bytes: 4 per
 * element, in whole sectors of 32: the order of the sum gives neighbouring lanes neighbouring elements, and no lane a
 * vector.
 *
 * Eight lanes sum a block of 64 elements; each sums the elements of its lane in block_sum(), and they are combined in
 * the same tree. The sum is then added to the accumulator of the warp, in which each lane holds one digit in a
 * register. Digits are integers: warps and blocks add exactly, in any order, and the last block to finish carries
 * them into the result. So a sum is one launch and needs no scratch, but two sums must not run at once on one GPU, in
 * two queues. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.cuh"
#include "src/base/number/exact.h"

namespace
{
constexpr int THREADS = 256, WARPS = THREADS / 32, LANES = 8, EACH = SH_EXACT_BLOCK / LANES;
constexpr int LOWEST = -352, BITS = 32;
typedef unsigned long long word; /* the type that atomicAdd takes */

/* Lanes 0 to 22 hold a digit; values that are not finite are counted, Inf by ones and NaN by A_NAN. */
constexpr unsigned NOT_FINITE = SH_EXACT_DIGITS + 2, WORDS = NOT_FINITE + 1;
constexpr word A_NAN = 1ull << 40;
static_assert(WORDS <= 32, "a lane each");
static_assert(SH_EXACT_BLOCK == 64 && LANES == 8, "as block_sum() of src/base/number/exact.c has it");

__device__ __forceinline__ uint64_t as_bits(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}

/* add_value() of src/base/number/exact.c, from the point of view of the lane that holds `mine`. */
__device__ __forceinline__ word add_value(word mine, double value, unsigned lane)
{
    uint64_t bits = as_bits(value);
    int exponent = (int)(bits >> 52 & 0x7ff);

    if (exponent == 0x7ff)
        return lane == NOT_FINITE ? mine + (bits << 12 ? A_NAN : 1) : mine;
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

/* The lane's share of a block; a[0] is the first of n elements that are left, zeros after them. */
__device__ __forceinline__ void lane_load(float (&x)[EACH], const float *a, int64_t n, unsigned lane)
{
    SH_UNROLL
    for (int i = 0; i < EACH; i++)
        x[i] = i * LANES + (int64_t)lane < n ? a[i * LANES + lane] : 0;
}

/* A square is exact in a double, and so fused as well as not. */
__device__ __forceinline__ double lane_sum(const float (&x)[EACH])
{
    double sum = 0;

    for (int i = 0; i < EACH; i++)
        sum = fma((double)x[i], (double)x[i], sum);
    for (int with = LANES / 2; with; with /= 2)
        sum += __shfl_xor_sync(~0u, sum, with);
    return sum;
}

/* Words of all warps of all blocks; zeros between launches. */
__device__ word total[WORDS];
__device__ unsigned turn;

/* Summed over the block first. */
__device__ __forceinline__ void add_to_total(word mine)
{
    SH_SHARED(word, words, WARPS * 32);
    unsigned i = threadIdx.x;

    words[i] = mine;
    __syncthreads();
    if (i >= WORDS)
        return;
    for (unsigned w = 1; w < WARPS; w++)
        mine += words[w * 32 + i];
    atomicAdd(&total[i], mine);
}

__device__ void carry(uint64_t *digit)
{
    for (int i = 0; i + 1 < SH_EXACT_DIGITS; i++) {
        digit[i + 1] += digit[i] >> BITS;
        digit[i] &= 0xffffffffu;
    }
}

/* s [SH_EXACT_ELEMS] = or += the total, with carries propagated; by one thread. */
__device__ void put_total(double *s, bool add)
{
    uint64_t digit[SH_EXACT_DIGITS];
    word odd = atomicAdd(&total[NOT_FINITE], 0ull);

    for (int i = 0; i < SH_EXACT_DIGITS; i++)
        digit[i] = atomicAdd(&total[i], 0ull) + (add ? (uint64_t)s[i] : 0);
    carry(digit);
    for (int i = 0; i < SH_EXACT_DIGITS; i++)
        s[i] = (double)digit[i];
    s[SH_EXACT_DIGITS] = (odd >= A_NAN ? nan("") : odd ? (double)INFINITY : 0) + (add ? s[SH_EXACT_DIGITS] : 0);
    for (unsigned i = 0; i < WORDS; i++)
        total[i] = 0;
}

/* A warp takes four neighbouring blocks at a time, and adds their sums while the next four are on their way. */
__global__ void __launch_bounds__(THREADS) sum_squares(double *s, bool add, const float *a, int64_t n)
{
    constexpr int GROUPS = 32 / LANES, STRIDE = GROUPS * SH_EXACT_BLOCK;
    unsigned lane = threadIdx.x % 32;
    int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, step = (int64_t)gridDim.x * WARPS * STRIDE;
    int64_t at = warp * STRIDE, first = at + lane / LANES * SH_EXACT_BLOCK;
    float x[EACH];
    word mine = 0;

    lane_load(x, a + first, n - first, lane % LANES);
    for (; at < n; at += step) {
        float next[EACH];
        first += step;
        lane_load(next, a + first, n - first, lane % LANES);
        double sum = lane_sum(x);
        for (int group = 0; group < GROUPS; group++)
            mine = add_value(mine, __shfl_sync(~0u, sum, group * LANES), lane);
        memcpy(x, next, sizeof x);
    }
    add_to_total(mine);
    if (sh_block_is_last(&turn) && threadIdx.x == 0)
        put_total(s, add);
}

/* sh_exact_round() of src/base/number/exact.c, on one thread. */
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
    constexpr int64_t ELEMS = 8192, MOST = 528; /* of a block; blocks: four on each of 132 multiprocessors */
    int64_t n = sh_elems(&call->in[0]), wanted = sh_ceil_div(n, ELEMS);
    unsigned blocks = (unsigned)(wanted < 1 ? 1 : wanted < MOST ? wanted : MOST);

    return SH_LAUNCH(sum_squares, dim3(blocks), dim3(THREADS), 0, call->queue, sh_data<double>(&call->out[0]),
                     sh_op_adds(call, 0), sh_data<float>(&call->in[0]), n);
}

/* A sum of squares that met Inf or NaN has it in the last element; it is then the result. */
extern "C" sh_rc sh_cuda_exact_round(const struct sh_op_call *call)
{
    return SH_LAUNCH(round_kernel, dim3(1), dim3(32), 0, call->queue, sh_data<double>(&call->out[0]),
                     sh_data<double>(&call->in[0]));
}
