#include "src/plan/topology.h"

#include "src/base/string/str.h"
#include "src/mesh/mesh.h"

/* Memory of a GPU that is not in the arena: workspaces and code of cuBLASLt, cuDNN and the kernels; NCCL's buffers, at
 * least. */
static const int64_t room_of_libraries = 1LL << 30, least_of_nccl = 3LL << 29;

/* What NCCL takes for a communicator with that many GPUs of a node: rings, and from three GPUs on also the buffers of
 * NVLink SHARP. doc/gpu.md has the figures and their sources. */
static const struct {
    int gpus; /* at least */
    double gib;
} room_of_nccl[] = {{1, 0.3}, {3, 0.55}};

/* Collective. All ranks get the same answers to what must be equal: ranks per node, whether ranks are in blocks, and
 * whether the device is a GPU. A single rank without a GPU keeps all of them on CPUs. */
sh_rc sh_topology_find(const struct sh_config *cfg, bool gpu, struct sh_topology *at)
{
    enum { SCATTERED, WITHOUT_GPU, N };
    double any[N];
    int smallest;

    sh_mesh_world(&at->rank, &at->world);
    SH_TRY(sh_mesh_nodes(&at->node_rank, &at->node_size, &smallest));
    at->ranks_per_node = cfg->mesh.ranks_per_node ? cfg->mesh.ranks_per_node : smallest;
    /* In blocks: ranks 0 to n-1 are one node, n to 2n-1 the next. Groups "within a node" are built from rank numbers
     * and hold only then. */
    any[SCATTERED] = at->node_size % at->ranks_per_node ||
                     at->rank % at->ranks_per_node != at->node_rank % at->ranks_per_node;
    any[WITHOUT_GPU] = !gpu;
    SH_TRY(sh_mesh_max(any, N));
    at->in_blocks = !any[SCATTERED];
    at->gpu = !any[WITHOUT_GPU];
    return SH_OK;
}

/* Collective: whether the ranks of some node see one GPU each, and not the same one. They may still reach the others,
 * which only a job without this can tell; so it is not refused. */
static sh_rc find_hidden(const struct sh_device *device, const struct sh_topology *at, struct sh_topology_gpu *gpu)
{
    char why[256];
    double any = gpu->sharing < at->node_size && device->count(why) == 1;

    SH_TRY(sh_mesh_max(&any, 1));
    if (any != 0)
        gpu->hidden =
            "each rank sees only its own GPU of the node (--gpus-per-task?); NCCL may then find no way between "
            "them but through the host, many times slower: start with srun --gpus-per-node=N --gpu-bind=none";
    return SH_OK;
}

/* Collective. `sharing` counts the ranks of this node on the same GPU. Sharing is nearly always a mistake in the launch
 * command, so it must be asked for. */
sh_rc sh_topology_open_gpu(const struct sh_config *cfg, const struct sh_device *device, const struct sh_topology *at,
                           struct sh_topology_gpu *gpu)
{
    SH_TRY(sh_agree(device->open(at->node_rank, &gpu->info)));
    SH_TRY(sh_mesh_alike_on_node(gpu->info.id, &gpu->sharing));
    if (gpu->sharing > 1 && !cfg->comm.share_gpu)
        return sh_agree(
            sh_fail(SH_E_USAGE,
                    "%d ranks of this node would use GPU %d (%s); start one rank per GPU and let each see all "
                    "GPUs of its node (srun --gpus-per-node), or give --share-gpu to share",
                    gpu->sharing, gpu->info.index, gpu->info.name));
    SH_TRY(sh_agree(SH_OK));
    return find_hidden(device, at, gpu);
}

/* A mesh-independent sum needs one fixed order of additions, which NCCL does not promise. */
static bool sums_by_mpi(const struct sh_config *cfg)
{
    return cfg->comm.backend == SH_COMM_MPI || cfg->training.reproducible == SH_REPRODUCIBLE_MESH;
}

/* Members of a group on this rank's node. */
static int gpus_of_node(const struct sh_topology *at, const struct sh_mesh_shape *mesh, sh_group group)
{
    int size = sh_group_size(mesh, group), n = 0;

    if (!at->in_blocks)
        return size < at->ranks_per_node ? size : at->ranks_per_node;
    for (int i = 0; i < size; i++)
        n += sh_group_member(mesh, group, i) / at->ranks_per_node == at->rank / at->ranks_per_node;
    return n;
}

/* NCCL takes ranks that share a GPU for separate hosts. */
static int64_t room_of_group(const struct sh_topology *at, const struct sh_topology_gpu *gpu,
                             const struct sh_mesh_shape *mesh, sh_group group)
{
    int gpus = gpu->sharing > 1 ? 1 : gpus_of_node(at, mesh, group), row = 0;

    if (sh_group_size(mesh, group) == 1)
        return 0;
    for (size_t i = 0; i < sizeof room_of_nccl / sizeof *room_of_nccl; i++)
        if (gpus >= room_of_nccl[i].gpus)
            row = (int)i;
    return (int64_t)(room_of_nccl[row].gib * (double)(1LL << 30));
}

/* The communicators of training: gathers and reductions of the shards, gathers within the inner groups, sums over
 * replicas and over the world, exchanges of ranks that share sequences, and messages of stages: these connect pairs of
 * ranks and no rings, so one stands for all. On one stream, groups of the same ranks share one. */
int64_t sh_topology_nccl_room(const struct sh_topology *at, const struct sh_topology_gpu *gpu,
                              const struct sh_mesh_shape *mesh)
{
    int64_t sum = 2 * room_of_group(at, gpu, mesh, mesh->shard) + room_of_group(at, gpu, mesh, sh_group_world(mesh));

    if (sh_group_size(mesh, mesh->inner) < sh_group_size(mesh, mesh->shard))
        sum += room_of_group(at, gpu, mesh, mesh->inner);
    if (sh_group_size(mesh, mesh->replicate) < sh_mesh_ranks(mesh))
        sum += room_of_group(at, gpu, mesh, mesh->replicate);
    sum += room_of_group(at, gpu, mesh, mesh->context) + room_of_group(at, gpu, mesh, mesh->tensor);
    sum += room_of_group(at, gpu, mesh, mesh->pipeline);
    return sum > least_of_nccl ? sum : least_of_nccl;
}

int64_t sh_topology_kept(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_topology_gpu *gpu,
                         const struct sh_mesh_shape *mesh)
{
    bool nccl = at->world > 1 && !sums_by_mpi(cfg);

    return room_of_libraries + (nccl ? sh_topology_nccl_room(at, gpu, mesh) : 0);
}

/* What a plan may take of the GPU. Free memory is divided among the ranks that share it; the libraries' part is
 * subtracted first, since they allocate after the plan is made. */
sh_rc sh_topology_gpu_room(const struct sh_config *cfg, const struct sh_topology *at, const struct sh_topology_gpu *gpu,
                           const struct sh_mesh_shape *mesh, int64_t *bytes)
{
    int64_t share = gpu->info.free_bytes / gpu->sharing, kept = sh_topology_kept(cfg, at, gpu, mesh);
    char have[SH_STR_SHORT], keep[SH_STR_SHORT];

    if (share <= kept)
        return sh_fail(
            SH_E_MEMORY,
            "GPU %d (%s) has %s free for each rank, and %s are kept for CUDA's libraries and NCCL; free more, or "
            "say with memory.limit_bytes what the plan may take",
            gpu->info.index, gpu->info.name, sh_str_bytes(share, have), sh_str_bytes(kept, keep));
    *bytes = share - kept;
    return SH_OK;
}

/* Ranks of a segment are neighbours in their shard groups, which with parts of matrices they are not. */
bool sh_topology_shares(const struct sh_config *cfg, const struct sh_topology *at)
{
    return cfg->comm.shared_memory == SH_SHARED_MEMORY_AUTO && !at->gpu && at->in_blocks && at->ranks_per_node > 0 &&
           at->world % at->ranks_per_node == 0 && cfg->parallelism.tensor_parallel_degree == 1 &&
           cfg->parallelism.pipeline_parallel_degree == 1;
}

struct sh_comm_options sh_topology_comm(const struct sh_config *cfg, const struct sh_topology *at,
                                        const struct sh_device *device, int sharing)
{
    static const char *const backends[] = {[SH_COMM_AUTO] = "auto", [SH_COMM_MPI] = "mpi", [SH_COMM_NCCL] = "nccl"};

    return (struct sh_comm_options){.timeout_seconds = cfg->comm.train_timeout_seconds,
                                    .history = cfg->comm.trace_buf_size,
                                    .device = device,
                                    .backend = sums_by_mpi(cfg) ? "mpi" : backends[cfg->comm.backend],
                                    .inline_progress = cfg->comm.progress == SH_PROGRESS_INLINE,
                                    .share_gpu = sharing > 1,
                                    .ranks_per_node = sh_topology_shares(cfg, at) ? at->ranks_per_node : 0,
                                    .nccl_max_ctas = cfg->comm.nccl_max_ctas};
}

/* The rest is left for programs and cached files. If nobody sets a limit, pinned memory is compared with what is free
 * (pinned.h), and with nothing else. */
int64_t sh_topology_host_room(const struct sh_config *cfg, const struct sh_topology *at, int64_t node_bytes, int ranks)
{
    const double share = 0.8;

    if (!at->gpu)
        return 0;
    if (cfg->memory.host_limit_bytes || cfg->offload.mode != SH_OFFLOAD_BUDGET)
        return cfg->memory.host_limit_bytes;
    return (int64_t)(share * (double)node_bytes) / ranks;
}
