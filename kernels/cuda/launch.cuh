/* What the kernels of this folder share: launching, types, vectors, sums over a warp or a block. A .cu file includes
 * this instead of any CUDA header.
 *
 * No inline PTX outside attention_mma.cuh and no atomics on floating-point numbers: same inputs, same bits. How many
 * blocks and threads a sum is cut into depends on shapes only, never on the GPU. */
#ifndef SH_KERNELS_CUDA_LAUNCH_CUH
#define SH_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/gpu.cuh"
#include "kernels/op.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A GPU has 2^31 - 1 blocks in x, but only so many in y, where rows of a sequence are. */
static inline sh_rc sh_grid_check(const char *name, unsigned blocks_y)
{
    enum { MOST = 65535 };
    if (blocks_y <= MOST)
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "CUDA kernel %s: a sequence of %u blocks of rows, of which a GPU takes at most %d; "
                   "give a smaller training.seq_len",
                   name, blocks_y, (int)MOST);
}

template <class... P, class... A>
sh_rc sh_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, void *queue,
                A... args)
{
    SH_TRY(sh_grid_check(name, grid.y));
    return sh_cuda_launch(name, kernel, grid, block, shared_bytes, queue, args...);
}

/* Enqueue kernel(...) and return SH_OK, SH_E_USAGE for too long a sequence, or SH_E_BUG if the launch is refused. A
 * template goes in parentheses:
 *   SH_TRY(SH_LAUNCH((sum<float, 4>), dim3(blocks), dim3(256), 0, call->queue, x, n)); */
#define SH_LAUNCH(kernel, grid, block, shared_bytes, queue, ...) \
    sh_launch(#kernel, kernel, grid, block, shared_bytes, queue, __VA_ARGS__)

/* f(float()) or f(sh_bf16()), depending on the type of activations. */
template <class F> static inline sh_rc sh_by_act(enum sh_dtype dtype, F f)
{
    if (dtype == SH_BF16)
        return f(sh_bf16());
    if (dtype == SH_F32)
        return f(float());
    return sh_fail(SH_E_BUG, "CUDA kernel for %s", sh_dtype_name(dtype));
}

static inline int64_t sh_elems(const struct sh_operand *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

static inline int64_t sh_last_dim(const struct sh_operand *t)
{
    return t->dim[t->ndim - 1];
}

template <class T> static inline T *sh_data(const struct sh_operand *t)
{
    return static_cast<T *>(t->data);
}

static inline int64_t sh_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Blocks for a given amount of work. Each block loops over what the grid does not cover. */
static inline unsigned sh_blocks(int64_t wanted)
{
    return (unsigned)(wanted < SH_MOST_BLOCKS ? wanted : SH_MOST_BLOCKS);
}

/* Elements in 16 bytes of T. */
template <class T> constexpr int SH_WIDTH = 16 / (int)sizeof(T);

/* Whether vectors of N elements start where a GPU can load them: at `p` and at every row of `row` elements after it.
 * An absent operand (NULL) is no obstacle. */
template <int N, class T> static inline bool sh_aligned(const T *p, int64_t row)
{
    constexpr size_t bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
    return !p || (row % N == 0 && reinterpret_cast<uintptr_t>(p) % bytes == 0);
}

__device__ __forceinline__ float sh_widen(float x)
{
    return x;
}

__device__ __forceinline__ float sh_widen(sh_bf16 x)
{
    return __uint_as_float((unsigned)x << 16);
}

template <class T> __device__ __forceinline__ T sh_narrow(float x);

template <> __device__ __forceinline__ float sh_narrow<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ sh_bf16 sh_narrow<sh_bf16>(float x)
{
    return sh_round_to_bf16(x);
}

/* The unit of memory that one instruction moves. */
template <size_t BYTES> struct sh_piece;
template <> struct sh_piece<1> {
    typedef uint8_t SH_ANY_TYPE type;
};
template <> struct sh_piece<2> {
    typedef uint16_t SH_ANY_TYPE type;
};
template <> struct sh_piece<4> {
    typedef uint32_t SH_ANY_TYPE type;
};
template <> struct sh_piece<8> {
    typedef uint2 type;
};
template <> struct sh_piece<16> {
    typedef uint4 type;
};

/* N elements unchanged, moved 16 bytes at a time, or in one access if there are fewer bytes; p is aligned
 * accordingly. */
template <class T, int N> __device__ __forceinline__ void sh_load_raw(T (&v)[N], const T *p)
{
    constexpr size_t bytes = sizeof v < 16 ? sizeof v : 16;
    typedef typename sh_piece<bytes>::type piece;
    piece pieces[sizeof v / bytes];
    for (size_t i = 0; i < sizeof v / bytes; i++)
        pieces[i] = reinterpret_cast<const piece *>(p)[i];
    memcpy(v, pieces, sizeof v);
}

template <class T, int N> __device__ __forceinline__ void sh_store_raw(T *p, const T (&v)[N])
{
    constexpr size_t bytes = sizeof v < 16 ? sizeof v : 16;
    typedef typename sh_piece<bytes>::type piece;
    piece pieces[sizeof v / bytes];
    memcpy(pieces, v, sizeof v);
    for (size_t i = 0; i < sizeof v / bytes; i++)
        reinterpret_cast<piece *>(p)[i] = pieces[i];
}

/* The same, converting from and to f32. */
template <class T, int N> __device__ __forceinline__ void sh_load(float (&v)[N], const T *p)
{
    T raw[N];
    sh_load_raw(raw, p);
    for (int i = 0; i < N; i++)
        v[i] = sh_widen(raw[i]);
}

template <class T, int N> __device__ __forceinline__ void sh_store(T *p, const float (&v)[N])
{
    T raw[N];
    for (int i = 0; i < N; i++)
        raw[i] = sh_narrow<T>(v[i]);
    sh_store_raw(p, raw);
}

/* The same for sums, whose order must not depend on addresses: `left` elements from p on, zeros after them, in one
 * access if `vectors` says that p is aligned. */
template <class T, int N>
__device__ __forceinline__ void sh_load_some(float (&v)[N], const T *p, int64_t left, bool vectors)
{
    if (vectors && left >= N)
        sh_load(v, p);
    else
        for (int i = 0; i < N; i++)
            v[i] = i < left ? sh_widen(p[i]) : 0;
}

template <class T, int N>
__device__ __forceinline__ void sh_store_some(T *p, const float (&v)[N], int64_t left, bool vectors)
{
    if (vectors && left >= N)
        sh_store(p, v);
    else
        for (int i = 0; i < N && i < left; i++)
            p[i] = sh_narrow<T>(v[i]);
}

/* 16 bytes of a row as they are in memory, for loads that must all be in flight before the first is used: four
 * registers each, and no conversion between them for which the next would wait. If `vectors`, left is a multiple of
 * SH_WIDTH. */
template <class T> struct sh_raw {
    uint4 bits;

    __device__ __forceinline__ void load(const T *p, int64_t left, bool vectors)
    {
        bits = uint4{0, 0, 0, 0};
        if (vectors) {
            if (left > 0)
                bits = *reinterpret_cast<const typename sh_piece<16>::type *>(p);
            return;
        }
        T v[SH_WIDTH<T>];
        for (int i = 0; i < SH_WIDTH<T>; i++)
            v[i] = i < left ? p[i] : T(0);
        memcpy(&bits, v, sizeof bits);
    }

    __device__ __forceinline__ void widen(float (&v)[SH_WIDTH<T>]) const
    {
        T raw[SH_WIDTH<T>];
        memcpy(raw, &bits, sizeof bits);
        for (int i = 0; i < SH_WIDTH<T>; i++)
            v[i] = sh_widen(raw[i]);
    }
};

/* y = v, or y += v. */
template <int N> __device__ __forceinline__ void sh_put(float *y, const float (&v)[N], bool add)
{
    float sum[N];
    if (add)
        sh_load(sum, y);
    for (int i = 0; i < N; i++)
        sum[i] = add ? sum[i] + v[i] : v[i];
    sh_store(y, sum);
}

struct sh_add {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

/* f32 uses the exact functions; bf16 the fast ones, whose error is far below its rounding. */
template <class T> __device__ __forceinline__ float sh_sigmoid(float x);

template <> __device__ __forceinline__ float sh_sigmoid<float>(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

template <> __device__ __forceinline__ float sh_sigmoid<sh_bf16>(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* The larger one; a NaN is ignored. */
struct sh_larger {
    __device__ __forceinline__ float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
};

/* Reduce over the lanes of a warp; all lanes get the same bits, because f is commutative. */
template <class T, class F> __device__ __forceinline__ T sh_warp_reduce(T v, F f)
{
    for (int with = 16; with; with /= 2)
        v = f(v, __shfl_xor_sync(~0u, v, with));
    return v;
}

/* The sum over this lane of a warp and those before it. */
__device__ __forceinline__ int32_t sh_warp_upto(int32_t v)
{
    int32_t lane = threadIdx.x % 32;

    for (int by = 1; by < 32; by *= 2) {
        int32_t before = __shfl_up_sync(~0u, v, by);
        v += lane >= by ? before : 0;
    }
    return v;
}

/* Reduce over the threads of a block of whole warps, K values at once; all threads get the result. `none` is the
 * neutral element of f. */
template <int K, class T, class F> __device__ __forceinline__ void sh_block_reduce(T (&v)[K], T none, F f)
{
    SH_SHARED(T, part, K * 32);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;

    for (int k = 0; k < K; k++)
        v[k] = sh_warp_reduce(v[k], f);
    if (warps == 1)
        return;
    for (int k = 0; k < K; k++)
        if (lane == 0)
            part[k * 32 + warp] = v[k];
    __syncthreads();
    for (int k = 0; k < K; k++)
        v[k] = sh_warp_reduce(lane < warps ? part[k * 32 + lane] : none, f);
    __syncthreads(); /* so that part may be reused */
}

/* Called by all threads of all blocks: whether this block is the last one to arrive, and so may work on what the
 * others have written. `turn` is 0 before the launch and after it; concurrent launches must not share one. */
__device__ __forceinline__ bool sh_block_is_last(unsigned *turn)
{
    SH_SHARED(unsigned, mine, 1);

    __syncthreads();
    if (threadIdx.x == 0)
        *mine = sh_take_turn(turn);
    __syncthreads();
    bool last = *mine == gridDim.x * gridDim.y * gridDim.z - 1;
    if (last && threadIdx.x == 0)
        *turn = 0;
    return last;
}

template <int K, class T> __device__ __forceinline__ void sh_block_sum(T (&v)[K])
{
    sh_block_reduce(v, T(0), sh_add());
}

#endif
