/* Where the tiles of experts are, for expert.cu and expert_any.cu: found on the GPU from the offsets that are there, so
 * that the host waits for nothing. A tile has rows of one group only. M rows in G groups have at most M / ROWS + G such
 * tiles, which is what is launched; who finds no tile has nothing to do. */
#ifndef SH_KERNELS_CUDA_MOE_EXPERT_CUH
#define SH_KERNELS_CUDA_MOE_EXPERT_CUH

#include "kernels/cuda/launch.cuh"

/* A call's sizes. */
struct sh_experts {
    const int32_t *first; /* [groups + 1] */
    int64_t M, O, I;
    int32_t E, groups; /* group g is one of expert g % E */
};

static inline sh_experts sh_experts_of(const struct sh_op_call *call)
{
    bool bwd_w = call->kind == SH_OP_EXPERT_LINEAR_BWD_W;
    const struct sh_operand *w = bwd_w ? &call->out[0] : &call->in[2];
    const struct sh_operand *first = &call->in[bwd_w ? 2 : 1];
    return {sh_data<int32_t>(first),       call->in[0].dim[0], w->dim[1], w->dim[2], (int32_t)w->dim[0],
            (int32_t)(sh_elems(first) - 1)};
}

/* expert_any.cu: any type, width and address, on ordinary cores. */
sh_rc sh_cuda_expert_any(const struct sh_op_call *call);

struct sh_expert_tile {
    int32_t expert, row, end; /* rows [row, end), of which the tile has the first ROWS */
};

/* The most tiles that there may be. */
template <int ROWS> static inline int64_t sh_expert_tiles(const sh_experts &x)
{
    return x.M / ROWS + (x.groups < x.M ? x.groups : x.M);
}

/* Tile number `tile` of all, in the order of the groups; false: there are fewer. All threads of a block get the same:
 * each warp looks at 32 groups at a time. */
template <int ROWS>
__device__ __forceinline__ bool sh_expert_find(const sh_experts &x, int64_t tile, sh_expert_tile &found)
{
    int32_t lane = threadIdx.x % 32, left = (int32_t)tile;

    for (int32_t g0 = 0; g0 < x.groups; g0 += 32) {
        int32_t g = g0 + lane, begin = g < x.groups ? x.first[g] : 0, end = g < x.groups ? x.first[g + 1] : 0;
        int32_t tiles = (end - begin + ROWS - 1) / ROWS, upto = sh_warp_upto(tiles);
        unsigned passed = __ballot_sync(~0u, upto <= left);
        if (passed != ~0u) { /* all lanes up to the one that has the tile */
            int at = __popc(passed);
            found = {(g0 + at) % x.E, __shfl_sync(~0u, begin + (left - upto + tiles) * ROWS, at),
                     __shfl_sync(~0u, end, at)};
            return true;
        }
        left -= __shfl_sync(~0u, upto, 31);
    }
    return false;
}

#endif
