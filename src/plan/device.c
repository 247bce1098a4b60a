/* Which device a job runs on, what works there, and what moves to lower tiers. */
#include "src/plan/parts.h"

#include "kernels/cuda/work.h"
#include "src/config/family.h"

#include <math.h>
#include <stdio.h>

static bool sees_gpu(char why[256])
{
    const struct sh_device *cuda = sh_device_find("cuda");

    snprintf(why, 256, "this sherd was built without CUDA");
    return cuda && cuda->count(why) > 0;
}

/* Which device, truth table:
 *   device=  kernels=  GPU seen  only_plan   result
 *   auto     not ref   yes       any         GPU
 *   auto     not ref   no        any         CPU; `why` says what is missing
 *   auto     ref       any       any         CPU
 *   cuda     any       any       yes         GPU, so that a laptop plans for a cluster
 *   cuda     any       no        no          error
 *   cpu      any       any       any         CPU */
sh_rc sh_request_gpu(const struct sh_config *cfg, bool only_plan, bool *gpu, char why[256])
{
    bool any = cfg->training.device == SH_DEVICE_AUTO && cfg->training.kernels != SH_KERNELS_REF;
    bool must = cfg->training.device == SH_DEVICE_CUDA;

    why[0] = '\0';
    *gpu = must && only_plan;
    if (*gpu || (!any && !must))
        return SH_OK;
    *gpu = sees_gpu(why);
    if (!*gpu && must)
        return sh_fail(SH_E_USAGE, "training.device=cuda: %s", why);
    /* A build without CUDA is no surprise to its user: training on the CPU then needs no explanation. */
    if (!sh_device_find("cuda"))
        why[0] = '\0';
    return SH_OK;
}

const struct sh_device *sh_request_device(const struct sh_config *cfg, bool gpu)
{
    return sh_device_find(gpu ? "cuda" : cfg->training.kernels == SH_KERNELS_REF ? "ref" : "cpu");
}

const struct sh_kernel_table *sh_request_kernels(const struct sh_config *cfg, bool gpu)
{
    return gpu ? &sh_kernels_cuda : sh_request_device(cfg, false)->kernels;
}

/* Generation has a kernel of its own, which takes any size. */
sh_rc sh_request_check_heads(const struct sh_config *cfg)
{
    const struct sh_model *m = &cfg->model;

    for (int i = 0; i < m->n_layers; i++) {
        bool global = sh_family_is_global(m, i);
        int dim = global ? sh_family_global_dim(m) : m->head_dim;

        if (sh_family_has_mixer(m, i) && !sh_family_has_delta(m, i) && dim > SH_ATTENTION_MAX_DIM)
            return sh_fail(
                SH_E_USAGE,
                "model.%s=%d: attention on GPUs takes heads of at most %d elements; give training.device=cpu",
                global ? "global_head_dim" : "head_dim", dim, SH_ATTENTION_MAX_DIM);
    }
    return SH_OK;
}

/* Refuse what does not work with float16, or not on GPUs. */
sh_rc sh_request_check_device(const struct sh_config *cfg, const struct sh_topology *at)
{
    const struct {
        bool there;
        const char *what;
    } bars[] = {
        {at->gpu, "its kernels are for CPUs, but the job runs on GPUs; give bfloat16, or training.device=cpu"},
        {cfg->lora.rank > 0, "adapters (lora.rank) need a base in bfloat16 or float32; give one of these"},
    };

    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++)
        if (cfg->training.mixed_precision_param == SH_PRECISION_FLOAT16 && bars[i].there)
            return sh_fail(SH_E_USAGE, "training.mixed_precision_param=float16: %s", bars[i].what);
    if (at->gpu && cfg->comm.progress == SH_PROGRESS_INLINE)
        return sh_fail(SH_E_USAGE, "comm.progress=inline is for CPUs, but the job runs on GPUs; leave it out");
    return SH_OK;
}

/* A share of n, rounded up; 0.28 of 25 is 7, though the product of the two doubles is more. */
static int share_of(double share, int n)
{
    return (int)ceil(share * n * (1 - 1e-12));
}

/* Check that the device has the tiers that are asked for. check.c refuses the same if training.device names the
 * device. */
static sh_rc offload_fits(const struct sh_config *cfg, bool gpu)
{
    const struct {
        bool asked, gpu; /* of such a device it is impossible */
        const char *text;
    } bars[] = {
        {cfg->offload.mode == SH_OFFLOAD_BUDGET && !cfg->offload.nvme_path[0], false,
         "offload.mode=memory_budget: offload.nvme_path is missing; on CPUs give a folder on a local disk"},
        {cfg->offload.optimizer == SH_OFFLOAD_NVME, true,
         "offload.optimizer=nvme moves between a file and the memory of the CPU, and the job runs on GPUs; give cpu, "
         "their host's memory, or training.device=cpu"},
        {cfg->offload.gradients == SH_OFFLOAD_NVME, true,
         "offload.gradients=nvme moves between a file and the memory of the CPU, and the job runs on GPUs; give cpu, "
         "their host's memory, or training.device=cpu"},
        {cfg->offload.activations == SH_OFFLOAD_NVME, true,
         "offload.activations=nvme moves between a file and the memory of the CPU, and the job runs on GPUs; give cpu, "
         "their host's memory, or training.device=cpu"},
        {cfg->offload.optimizer == SH_OFFLOAD_CPU, false,
         "offload.optimizer=cpu is for GPUs, and the job runs on CPUs, whose memory has the states already; nvme puts "
         "them into a file"},
        {cfg->offload.gradients == SH_OFFLOAD_CPU, false,
         "offload.gradients=cpu is for GPUs, and the job runs on CPUs, whose memory has them already; nvme puts them "
         "into a file"},
        {cfg->offload.parameters == SH_OFFLOAD_CPU, false,
         "offload.parameters=cpu is for GPUs, and the job runs on CPUs, whose memory has them already; leave it out"},
        {cfg->offload.activations == SH_OFFLOAD_CPU, false,
         "offload.activations=cpu is for GPUs, and the job runs on CPUs, whose memory has them already; nvme puts them "
         "into a file"},
        {cfg->offload.parameters == SH_OFFLOAD_CPU && sh_request_keeps(cfg).params_resident, true,
         "offload.parameters=cpu is for strategies that gather parameters for each use; give "
         "parallelism.sharding_strategy=full_shard"},
    };

    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++)
        if (bars[i].asked && bars[i].gpu == gpu)
            return sh_fail(SH_E_USAGE, "%s", bars[i].text);
    return SH_OK;
}

/* What a run that trains moves to lower tiers: states, gradients, parameters and activations. */
sh_rc sh_request_offload(const struct sh_config *cfg, bool gpu, struct sh_offload *out)
{
    bool optimizer = cfg->offload.optimizer != SH_OFFLOAD_NONE, act = cfg->offload.activations != SH_OFFLOAD_NONE;

    SH_TRY(offload_fits(cfg, gpu));
    *out = (struct sh_offload){.buffers = cfg->offload.buffer_count,
                               .gradients = cfg->offload.gradients != SH_OFFLOAD_NONE,
                               .parameters = cfg->offload.parameters == SH_OFFLOAD_CPU};
    out->overlap = cfg->offload.overlap_update == SH_OVERLAP_AUTO;
    if (optimizer)
        out->optimizer_16 = share_of(cfg->offload.optimizer_ratio, 16);
    if (act)
        out->act_blocks = share_of(cfg->offload.activation_ratio, cfg->model.n_layers);
    return SH_OK;
}

bool sh_request_snapshot(const struct sh_config *cfg, bool gpu, bool states_away)
{
    return cfg->checkpoint.enable && ((gpu && !states_away) || cfg->checkpoint.async_mode == SH_ASYNC_ASYNC);
}
