/* ORTHO between its products: the norm, the copies to scratch and back, and a I + b gram + c square. Bytes per element, of a
 * matrix in bf16 (f32): norm 4, in 6 (8), out 6 (8); of a square of its shorter side 8 (12) a step. The products have 4 m + 2 m^2 / n
 * operations per element and step, so all of this is a small part. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/optim/lines.cuh"

namespace
{
constexpr int SUM_THREADS = 1024;

/* sums [n + 1]: one block, so that the order is fixed. */
__global__ void __launch_bounds__(SUM_THREADS) norm_factor(double *sums, int64_t n, double room)
{
    double sum[1] = {0};

    for (int64_t i = threadIdx.x; i < n; i += SUM_THREADS)
        sum[0] += sums[i];
    sh_block_sum(sum);
    if (threadIdx.x == 0)
        sums[n] = sum[0] == 0 ? 0 : 1 / (sqrt(sum[0]) * room);
}

template <class T> struct take {
    sh_cuda_lines x;
    const double *factor;
    T *to;
    int64_t ld;

    __device__ __forceinline__ float load(int64_t line, int64_t i) const
    {
        return x.u[sh_line_at(x, line) + sh_along(x, i)];
    }

    __device__ __forceinline__ void store(int64_t line, int64_t i, float v) const
    {
        to[line * ld + i] = sh_narrow<T>((float)((double)v * *factor));
    }
};

template <class T> struct put {
    sh_cuda_lines x;
    const T *from;
    int64_t ld;

    __device__ __forceinline__ float load(int64_t line, int64_t i) const
    {
        return sh_widen(from[line * ld + i]);
    }

    __device__ __forceinline__ void store(int64_t line, int64_t i, float v) const
    {
        x.u[sh_line_at(x, line) + sh_along(x, i)] = x.scale * v;
    }
};

template <class T> struct combine {
    T *gram;
    const float *square;
    int64_t ld;
    float a, b, c;

    __device__ __forceinline__ float load(int64_t line, int64_t i) const
    {
        return b * sh_widen(gram[line * ld + i]) + c * square[line * ld + i] + (line == i ? a : 0);
    }

    __device__ __forceinline__ void store(int64_t line, int64_t i, float v) const
    {
        gram[line * ld + i] = sh_narrow<T>(v);
    }
};
} // namespace

extern "C" sh_rc sh_cuda_newton_norm(const struct sh_cuda_lines *x, double room, double *sums, void *queue)
{
    SH_TRY(sh_squares_of_lines(*x, sums, queue));
    return SH_LAUNCH(norm_factor, dim3(1), dim3(SUM_THREADS), 0, queue, sums, x->lines, room);
}

extern "C" sh_rc sh_cuda_newton_take(const struct sh_cuda_lines *x, const double *factor, enum sh_dtype type, void *to,
                                     int64_t ld, void *queue)
{
    return sh_by_act(type, [&](auto zero) {
        typedef decltype(zero) T;
        return sh_over_lines("newton_take", take<T>{*x, factor, static_cast<T *>(to), ld}, x->lines, x->length, queue);
    });
}

extern "C" sh_rc sh_cuda_newton_put(const struct sh_cuda_lines *x, enum sh_dtype type, const void *from, int64_t ld,
                                    void *queue)
{
    return sh_by_act(type, [&](auto zero) {
        typedef decltype(zero) T;
        return sh_over_lines("newton_put", put<T>{*x, static_cast<const T *>(from), ld}, x->lines, x->length, queue);
    });
}

extern "C" sh_rc sh_cuda_newton_combine(const double abc[3], int64_t m, int64_t ld, const float *square,
                                        enum sh_dtype type, void *gram, void *queue)
{
    return sh_by_act(type, [&](auto zero) {
        typedef decltype(zero) T;
        combine<T> f = {static_cast<T *>(gram), square, ld, (float)abc[0], (float)abc[1], (float)abc[2]};
        return sh_over_lines("newton_combine", f, m, m, queue);
    });
}
