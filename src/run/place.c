#include "src/run/place.h"

#include "src/mesh/mesh.h"

sh_rc sh_place_find(const struct sh_config *cfg, bool gpu, struct sh_place *at)
{
    enum { SCATTERED, WITHOUT_GPU, N };
    double any[N];
    int smallest;

    sh_mesh_world(&at->rank, &at->world);
    SH_TRY(sh_mesh_nodes(&at->node_rank, &at->node_size, &smallest));
    at->ranks_per_node = cfg->mesh.ranks_per_node ? cfg->mesh.ranks_per_node : smallest;
    any[SCATTERED] =
        at->node_size % at->ranks_per_node || at->rank % at->ranks_per_node != at->node_rank % at->ranks_per_node;
    any[WITHOUT_GPU] = !gpu;
    SH_TRY(sh_mesh_max(any, N));
    at->in_blocks = !any[SCATTERED];
    at->gpu = !any[WITHOUT_GPU];
    return SH_OK;
}
