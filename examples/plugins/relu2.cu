/* Squared ReLU (So et al. 2021): y = relu(x)^2, with a kernel for GPUs beside those for CPUs.
 *
 *     nvcc -O3 -shared -Xcompiler -fPIC,-fopenmp $(pkg-config --cflags sherd-plugin) -o relu2.so relu2.cu
 *     sherd plugin check relu2.so --device cuda
 *     sherd train gpt2-124m --plugin.files=relu2.so --model.ffn_op=relu2
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <sherd/plugin.h>

/* `x > 0 ? ... : 0 * x` keeps a NaN. In double for ref, in float for the others. */
template <typename T> static __host__ __device__ T forward(T x)
{
    return x > 0 ? x * x : 0 * x;
}

template <typename T> static __host__ __device__ T backward(T dy, T x)
{
    return x > 0 ? 2 * x * dy : 0 * dy;
}

/* ---- CPUs ---- */

template <typename T> static int on_cpu(const struct sherd_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    int64_t n = sh_operand_elems(x);

#pragma omp parallel for if (sizeof(T) == 4)
    for (int64_t i = 0; i < n; i++)
        sh_operand_set(y, i, forward((T)sh_operand_get(x, i)));
    return 0;
}

template <typename T> static int on_cpu_bwd(const struct sherd_call *call)
{
    const struct sh_operand *dy = &call->in[0], *x = &call->in[1], *dx = &call->out[0];
    int64_t n = sh_operand_elems(x);

#pragma omp parallel for if (sizeof(T) == 4)
    for (int64_t i = 0; i < n; i++)
        sh_operand_set(dx, i, backward((T)sh_operand_get(dy, i), (T)sh_operand_get(x, i)));
    return 0;
}

/* ---- GPUs ---- */

/* dy NULL: forward. dx may be dy: a thread reads an element before it writes it. */
template <typename E> static __global__ void relu2(const E *dy, const E *x, E *out, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        out[i] = (E)(dy ? backward((float)dy[i], (float)x[i]) : forward((float)x[i]));
}

template <typename E> static int enqueue(const struct sherd_call *call, const struct sh_operand *dy,
                                         const struct sh_operand *x)
{
    int64_t n = sh_operand_elems(x);

    if (n > 0)
        relu2<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)call->queue>>>(
            dy ? (const E *)dy->data : nullptr, (const E *)x->data, (E *)call->out[0].data, n);
    return (int)cudaGetLastError();
}

static int by_type(const struct sherd_call *call, const struct sh_operand *dy, const struct sh_operand *x)
{
    switch (x->dtype) {
    case SH_F32: return enqueue<float>(call, dy, x);
    case SH_BF16: return enqueue<__nv_bfloat16>(call, dy, x);
    case SH_F16: return enqueue<__half>(call, dy, x);
    default: return -1;
    }
}

static int on_gpu(const struct sherd_call *call)
{
    return by_type(call, nullptr, &call->in[0]);
}

static int on_gpu_bwd(const struct sherd_call *call)
{
    return by_type(call, &call->in[0], &call->in[1]);
}

/* C++ has no initializers by name before C++20. */
static struct sherd_op row(const char *name, const char *shape, const char *flops, const char *backward, int in_place,
                           sherd_kernel ref, sherd_kernel cpu, sherd_kernel cuda)
{
    struct sherd_op op = {};

    op.name = name, op.shape = shape, op.flops = flops, op.backward = backward, op.in_place = in_place;
    op.ref = ref, op.cpu = cpu, op.cuda = cuda;
    return op;
}

static const struct sherd_op ops[] = {
    row("relu2", "x [n] act -> y [n] act", "2n", "relu2_bwd", 0, on_cpu<double>, on_cpu<float>, on_gpu),
    row("relu2_bwd", "dy [n] act, x [n] act -> dx [n] act", "3n", nullptr, 1, on_cpu_bwd<double>, on_cpu_bwd<float>,
        on_gpu_bwd),
};
extern "C" const struct sherd_plugin sherd_plugin = {SHERD_PLUGIN, "relu2", "1", 2, ops, 0, nullptr};
