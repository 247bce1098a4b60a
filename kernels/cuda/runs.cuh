/* Updates by runs of weight decay: find the run of an element, and launch once per 64 runs, which is more than a unit
 * has. */
#ifndef SH_KERNELS_CUDA_RUNS_CUH
#define SH_KERNELS_CUDA_RUNS_CUH

#include "kernels/cuda/map.cuh"
#include "kernels/states.h"

constexpr int SH_RUNS = 64;

/* A kernel argument: neighbouring runs, in order. */
struct sh_runs {
    int n;
    int64_t begin[SH_RUNS], end[SH_RUNS];
    bool decay[SH_RUNS];
    uint64_t key[SH_RUNS], update; /* for the random bits */
    int64_t origin[SH_RUNS];
};

/* The words of random bits for N neighbours of one run. */
template <int N>
__device__ __forceinline__ void sh_cuda_random(const sh_runs &r, int run, int64_t at, uint32_t (&word)[N])
{
    struct sh_random random = {r.key[run], r.update, r.origin[run]};
    uint32_t block[4] = {0};
    for (int k = 0; k < N; k++) {
        int place = sh_random_place(&random, at + k);
        if (k == 0 || place == 0)
            sh_random_block(&random, at + k, block);
        int two = place / 2;
        word[k] = sh_random_word(two == 0 ? block[0] : two == 1 ? block[1] : two == 2 ? block[2] : block[3], place);
    }
}

/* Store state k of N neighbours from element `at` on. */
template <int N>
__device__ __forceinline__ void sh_cuda_store_state(const struct sh_floats &state, int64_t at, const float (&v)[N],
                                                    const uint32_t (&word)[N], int k)
{
    sh_bf16 upper[N];

    if (state.whole) {
        sh_store(state.whole + at, v);
        return;
    }
    for (int i = 0; i < N; i++)
        upper[i] = sh_random_round(v[i], word[i], k);
    sh_store_raw(state.high + at, upper);
}

/* The last run that starts at or before `at`; 0 if all start later. */
__device__ __forceinline__ int sh_decay_run_at(const sh_runs &r, int64_t at)
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

/* Element i of the map is element first + i of the shard. UPDATE has template <int N> void at(int64_t element, const
 * sh_runs &r, int run), for N neighbours of one run. Only elements of a run are parameters: a vector that crosses the
 * end of its run is split. */
template <class UPDATE> struct sh_by_runs {
    UPDATE update;
    int64_t first;
    sh_runs r;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t from = first + i;
        int run = sh_decay_run_at(r, from);

        if (r.begin[run] <= from && from + N <= r.end[run])
            update.template at<N>(from, r, run);
        else if (N > 1)
            for (int k = 0; k < N; k++)
                at<1>(i + k);
    }
};

static inline sh_runs sh_runs_of(const struct sh_op_call *call, int first, int n)
{
    sh_runs r = {};

    r.n = n;
    r.update = call->scalars->update;
    for (int i = 0; i < n; i++) {
        const struct sh_decay_run *from = &call->runs[first + i];

        r.begin[i] = from->begin;
        r.end[i] = from->end;
        r.decay[i] = from->decay;
        r.key[i] = sh_random_of(call, from).key;
        r.origin[i] = from->origin;
    }
    return r;
}

/* vectors: whether four neighbours can be read at once from all operands. */
template <class UPDATE>
static inline sh_rc sh_update_by_runs(const char *name, const struct sh_op_call *call, UPDATE update, bool vectors)
{
    constexpr int N = 4; /* 16 bytes of f32 */

    for (int done = 0; done < call->attr->runs.count; done += SH_RUNS) {
        const struct sh_decay_run *from = call->runs + done;
        int left = call->attr->runs.count - done, n = left < SH_RUNS ? left : SH_RUNS;
        sh_by_runs<UPDATE> f = {update, from[0].begin / N * N, sh_runs_of(call, done, n)};

        SH_TRY(sh_map<N>(name, f, from[n - 1].end - f.first, vectors, call->queue));
    }
    return SH_OK;
}

#endif
