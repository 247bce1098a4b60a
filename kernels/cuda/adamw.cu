/* AdamW on a flat shard: 28 bytes a parameter (g, and p, m, v read and written), whether p is whole or in halves.
 * One launch for each 64 runs of decay, which is more than a unit has. */
#include "kernels/adamw.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/floats.cuh"
#include "kernels/cuda/map.cuh"

namespace
{
constexpr int RUNS = 64;

/* An argument of the kernel: neighbouring runs, in order. */
struct runs {
    int n;
    int64_t begin[RUNS], end[RUNS];
    bool decay[RUNS];
};

/* Element i of the map is element first + i of the shard. */
struct adamw {
    struct sh_floats p;
    float *m, *v;
    const float *g;
    int64_t first;
    struct sh_adamw_factors plain;
    float keep; /* of a run with decay */
    runs r;

    template <int N> __device__ __forceinline__ void update(int64_t at, float kept) const
    {
        float grad[N], m1[N], v1[N], p1[N];
        sh_load(grad, g + at);
        sh_load(m1, m + at);
        sh_load(v1, v + at);
        sh_floats_load(p1, p, at);
        for (int k = 0; k < N; k++) {
            float scaled = grad[k] * plain.grad_scale;
            m1[k] = plain.beta1 * m1[k] + plain.grad1 * scaled;
            v1[k] = plain.beta2 * v1[k] + plain.grad2 * scaled * scaled;
            p1[k] = p1[k] * kept - plain.step * m1[k] / (sqrtf(v1[k] * plain.root) + plain.eps);
        }
        sh_store(m + at, m1);
        sh_store(v + at, v1);
        sh_floats_store(p, at, p1);
    }

    /* The last run that begins at `at` or before it; 0 when all begin later. */
    __device__ __forceinline__ int run_at(int64_t at) const
    {
        int low = 0;
        for (int high = r.n; high - low > 1;) {
            int middle = (low + high) / 2;
            if (r.begin[middle] <= at)
                low = middle;
            else
                high = middle;
        }
        return low;
    }

    /* Only elements of a run are parameters. A vector that reaches over an end of its run is taken apart. */
    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t from = first + i;
        int run = run_at(from);

        if (r.begin[run] <= from && from + N <= r.end[run])
            update<N>(from, r.decay[run] ? keep : plain.keep);
        else if (N > 1)
            for (int k = 0; k < N; k++)
                at<1>(i + k);
    }
};

/* At most RUNS neighbouring runs. */
sh_rc update_runs(const struct sh_op_call *call, const struct sh_decay_run *from, int n)
{
    constexpr int N = 4; /* 16 bytes of f32 */
    const struct sh_operand *out = call->out;
    adamw f = {sh_adamw_params(call), sh_data<float>(&out[1]), sh_data<float>(&out[2]), sh_data<float>(&call->in[0]),
               from[0].begin / N * N, sh_adamw_factors_of(call->scalars, false),
               sh_adamw_factors_of(call->scalars, true).keep, {}};
    bool vectors = sh_floats_aligned<N>(f.p) && sh_aligned<N>(f.m, 0) && sh_aligned<N>(f.v, 0) && sh_aligned<N>(f.g, 0);

    f.r.n = n;
    for (int i = 0; i < n; i++) {
        f.r.begin[i] = from[i].begin;
        f.r.end[i] = from[i].end;
        f.r.decay[i] = from[i].decay;
    }
    return sh_map<N>("adamw", f, from[n - 1].end - f.first, vectors, call->queue);
}
} // namespace

extern "C" sh_rc sh_cuda_adamw(const struct sh_op_call *call)
{
    for (int r = 0; r < call->attr->runs.count; r += RUNS) {
        int left = call->attr->runs.count - r;
        SH_TRY(update_runs(call, call->runs + r, left < RUNS ? left : RUNS));
    }
    return SH_OK;
}
