/* Which rows travel in a wave (kernels/op.h). A warp for each rank that receives them walks over the segments for it, 32
 * at a time, up to the end of the wave. The wave is a run of segments, so what it has of a source are neighbours among
 * the source's rows, and all that is asked is a difference of two of its offsets. The host reads `parts`, which may lie
 * in its memory: nothing is read there, and each number is written once. Floor: the launch; a warp looks at E + P
 * numbers. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.cuh"

namespace
{
constexpr int LANES = 32, WARPS = 8;

struct wave {
    const int32_t *first;  /* [P,E+1] */
    int32_t *rows, *start; /* [P,P] */
    int32_t *groups;       /* [E+1] */
    double *used;          /* [2]; NULL: not wanted */
    int64_t room;
    int32_t P, E, number, place;
    bool add; /* to used */
};

/* Of the experts of the rank that receives: the first row of each source for each, and where its last ends, [P,here+1]
 * in shared memory. Segment i is of expert i / P and of source i % P. */
struct segments {
    const int32_t *first;
    int32_t P, here;

    __device__ __forceinline__ int32_t rows(int32_t i) const
    {
        const int32_t *of = first + i % P * (here + 1) + i / P;
        return of[1] - of[0];
    }

    /* The row at which a source's segments from number i on begin. */
    __device__ __forceinline__ int32_t row(int32_t source, int32_t i) const
    {
        return first[source * (here + 1) + (i + P - 1 - source) / P];
    }
};

/* Segments [begin, end). */
struct run {
    int32_t begin, end;
};

/* A segment that finds no room begins the next wave. base: the rows before the wave, less those before the 32. */
__device__ __forceinline__ run find_run(const segments &s, const wave &w)
{
    int32_t lane = threadIdx.x % LANES, newest = 0;
    int64_t base = 0;
    run found = {w.number ? w.E : 0, w.E};

    for (int32_t i0 = 0; i0 < w.E; i0 += LANES) {
        int32_t rows = i0 + lane < w.E ? s.rows(i0 + lane) : 0, upto = sh_warp_upto(rows), next = 0;
        while (unsigned full = __ballot_sync(~0u, lane >= next && upto - base > w.room)) {
            int32_t at = __popc(~full & (full - 1));
            base = __shfl_sync(~0u, upto - rows, at);
            next = at + 1;
            newest++;
            if (newest == w.number)
                found.begin = i0 + at;
            if (newest > w.number) {
                found.end = i0 + at;
                return found;
            }
        }
        base -= __shfl_sync(~0u, upto, LANES - 1);
    }
    return found;
}

/* Where the segments of the run are among the rows that come: source by source, expert by expert. */
__device__ __forceinline__ void put_groups(const segments &s, const wave &w, const run &r)
{
    int32_t lane = threadIdx.x % LANES, come = 0;

    for (int32_t from = 0; from < w.P; from++) {
        int32_t begin = s.row(from, r.begin), end = s.row(from, r.end);
        for (int32_t e = lane; e < s.here; e += LANES) {
            int32_t row = s.first[from * (s.here + 1) + e];
            w.groups[from * s.here + e] = come + min(max(row, begin), end) - begin;
        }
        come += end - begin;
    }
    if (lane == 0)
        w.groups[w.E] = come;
}

/* What all ranks have for rank `to`; returns how many rows come there. */
__device__ __forceinline__ int32_t put_parts(const segments &s, const wave &w, const run &r, int32_t to)
{
    int32_t come = 0;

    for (int32_t from = threadIdx.x % LANES; from < w.P; from += LANES) {
        int32_t begin = s.row(from, r.begin), rows = s.row(from, r.end) - begin;
        w.rows[from * w.P + to] = rows;
        w.start[from * w.P + to] = rows ? begin : 0;
        come += rows;
    }
    return sh_warp_reduce(come, sh_add());
}

/* One block. */
__global__ void __launch_bounds__(LANES *WARPS) route_wave(wave w)
{
    SH_DYNAMIC_SHARED(int32_t, first);
    SH_SHARED(int32_t, most, WARPS);
    int32_t lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, here = w.E / w.P, come = 0;
    segments s = {first + warp * (w.E + w.P), w.P, here};

    for (int32_t to = warp; to < w.P; to += WARPS) {
        for (int32_t i = lane; i < w.E + w.P; i += LANES)
            first[warp * (w.E + w.P) + i] = w.first[i / (here + 1) * (int64_t)(w.E + 1) + to * here + i % (here + 1)];
        __syncwarp();
        run r = find_run(s, w);
        come = max(come, put_parts(s, w, r, to));
        if (to == w.place)
            put_groups(s, w, r);
        __syncwarp();
    }
    if (lane == 0)
        most[warp] = come;
    __syncthreads();
    for (int other = 0; other < WARPS; other++)
        come = max(come, most[other]);
    if (threadIdx.x == 0 && w.used) {
        w.used[0] = (w.add ? w.used[0] : 0) + (come > 0);
        w.used[1] = (w.add ? w.used[1] : 0) + come;
    }
}
} // namespace

extern "C" sh_rc sh_cuda_route_wave(const struct sh_op_call *call)
{
    wave w = {};
    w.first = sh_data<int32_t>(&call->in[0]);
    w.P = (int32_t)call->in[0].dim[0];
    w.E = (int32_t)call->in[0].dim[1] - 1;
    w.rows = sh_data<int32_t>(&call->out[0]);
    w.start = w.rows + w.P * (int64_t)w.P;
    w.groups = sh_data<int32_t>(&call->out[1]);
    w.used = sh_data<double>(&call->out[2]);
    w.add = sh_op_adds(call, 2);
    w.room = call->attr->wave.room;
    w.number = call->attr->wave.wave;
    w.place = call->attr->wave.place;
    return SH_LAUNCH(route_wave, dim3(1), dim3(LANES * WARPS), WARPS * (size_t)(w.E + w.P) * sizeof(int32_t),
                     call->queue, w);
}
