/* Addresses and sizes of grouped products, from offsets that only the GPU knows. A thread writes those of one group.
 * Floor: the launch; 48 bytes a group are written. Not measured on a GPU. */
#include "kernels/cuda/moe/grouped.h"

#include "kernels/cuda/map.cuh"

namespace
{
struct arrays {
    sh_grouped g;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        int64_t slots = g.calls * g.pitch, slot = i / g.groups * g.pitch + i % g.groups;
        int64_t begin = g.first[i], live = g.first[i + 1] - begin;

        for (int s = 0; s < 3; s++) {
            const sh_grouped_side &side = g.side[s];
            int64_t column = side.columns ? i % g.E * side.columns : begin;
            g.data[s * slots + slot] = static_cast<char *>(side.data) + column * side.rows * side.bytes;
            g.rows[s * slots + slot] = static_cast<int32_t>(side.rows);
            g.rows[(3 + s) * slots + slot] = static_cast<int32_t>(side.columns ? side.columns : live);
        }
        if (i == 0)
            g.numbers[0] = 0, g.numbers[1] = 1;
    }
};

struct balance {
    int32_t *first;
    int64_t groups, M;

    template <int N> __device__ __forceinline__ void at(int64_t i) const
    {
        first[i] = static_cast<int32_t>(i * M / groups);
    }
};
} // namespace

extern "C" sh_rc sh_cuda_grouped_arrays(const struct sh_grouped *g, void *queue)
{
    return sh_map<1>("grouped", arrays{*g}, g->calls * g->groups, false, queue);
}

extern "C" sh_rc sh_cuda_grouped_balance(int32_t *first, int64_t groups, int64_t M, void *queue)
{
    return sh_map<1>("grouped balance", balance{first, groups, M}, groups + 1, false, queue);
}
