/* The cuda device: one GPU, its memory and its queues, which are streams that do not wait for the default one. */
#include "src/device/cuda.h"

#include "kernels/cuda/cuda.h"
#include "kernels/plug.h"
#include "src/base/hash.h"
#include "src/base/string/str.h"

#include "sherd_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUDA's current device belongs to a thread; this is the process's device, for threads that attach later. */
static int device_index = -1;

/* Queues of the hardware: with the default of 8 some of our queues and NCCL's, twenty together, would share one, and
 * work of different queues would wait for each other. CUDA reads this at its first call. */
static void want_connections(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

/* A missing driver and a node without GPUs are different causes, and the message says which it is. */
static int count(char why[256])
{
    cudaError_t rc;
    int n = 0;

    want_connections();
    rc = cudaGetDeviceCount(&n);

    if (rc != cudaSuccess || n == 0)
        snprintf(why, 256, "%s", rc != cudaSuccess ? cudaGetErrorString(rc) : "no GPU is visible");
    return rc == cudaSuccess ? n : 0;
}

/* Asked here, because the first launch would fail as a bug. The driver makes code for newer GPUs from the PTX of the
 * highest one in the list. */
static sh_rc check_code(int index, const struct cudaDeviceProp *prop)
{
    enum { LEAST = 8 }; /* bfloat16 on tensor cores */
    struct cudaFuncAttributes attributes;
    cudaError_t rc = cudaFuncGetAttributes(&attributes, sh_cuda_any_kernel());
    char cure[64] = "use a GPU of 8.0 or newer, or training.device=cpu";

    if (rc == cudaSuccess)
        return SH_OK;
    cudaGetLastError();
    if (prop->major >= LEAST)
        snprintf(cure, sizeof cure, "build it with --with-cuda-arch=%d%d", prop->major, prop->minor);
    return sh_fail(SH_E_USAGE,
                   "GPU %d (%.63s) has compute capability %d.%d, for which this sherd has no code: it has %s (%s); %s",
                   index, prop->name, prop->major, prop->minor, SHERD_CUDA_ARCHS, cudaGetErrorString(rc), cure);
}

/* The id comes from the UUID: with CUDA_VISIBLE_DEVICES index 0 may be another GPU on each rank of a node. */
static sh_rc describe(int index, struct sh_device_info *info)
{
    struct cudaDeviceProp prop;
    size_t free_bytes, all;

    if (cudaGetDeviceProperties(&prop, index) != cudaSuccess || cudaMemGetInfo(&free_bytes, &all) != cudaSuccess)
        return sh_fail(SH_E_USAGE, "GPU %d cannot be used: %s", index, cudaGetErrorString(cudaGetLastError()));
    SH_TRY(check_code(index, &prop));
    *info = (struct sh_device_info){
        .index = index, .id = sh_hash64(&prop.uuid, sizeof prop.uuid), .free_bytes = (int64_t)free_bytes};
    snprintf(info->name, sizeof info->name, "%.63s", prop.name);
    snprintf(info->bus, sizeof info->bus, "%08x:%02x:%02x.0", prop.pciDomainID, prop.pciBusID & 0xff,
             prop.pciDeviceID & 0xff);
    return SH_OK;
}

/* Ranks of a node take GPUs in turn; if there are fewer GPUs than ranks, some share one, which the caller checks. */
static sh_rc open_gpu(int node_rank, struct sh_device_info *info)
{
    char why[256];
    int n = count(why);

    if (!n)
        return sh_fail(SH_E_USAGE,
                       "training.device=cuda, but %s; does this node have GPUs, and is their driver loaded?", why);
    if (cudaSetDevice(node_rank % n) != cudaSuccess)
        return sh_fail(SH_E_USAGE, "GPU %d of %d cannot be used: %s", node_rank % n, n,
                       cudaGetErrorString(cudaGetLastError()));
    device_index = node_rank % n;
    SH_TRY(describe(device_index, info));
    SH_TRY(sh_cudart_copy_open());
    sh_cudart_event_open();
    return SH_OK;
}

/* Also after a failed or missing open, so that cleanup needs no state. */
static void close_gpu(void)
{
    if (device_index < 0)
        return;
    sh_cudart_event_close();
    sh_cudart_copy_close();
    device_index = -1;
}

/* A new thread starts with device 0 whatever the process uses. */
static void attach(void)
{
    sh_cudart_must(cudaSetDevice(device_index), "select it in another thread");
}

/* Memory used by all processes on that GPU: the driver reports only what is free. */
static int64_t used_bytes(void)
{
    size_t free_bytes, all;

    sh_cudart_must(cudaMemGetInfo(&free_bytes, &all), "query its memory");
    return (int64_t)(all - free_bytes);
}

/* Segments are for CPUs: with GPUs, ranks communicate through the GPUs' own memory. */
static sh_rc arena_create(int64_t bytes, int64_t segment_bytes, int segment_fd, char **arena)
{
    char text[SH_STR_SHORT], left[SH_STR_SHORT];
    size_t free_bytes = 0, all = 0;
    void *p;

    (void)segment_fd;
    SH_REQUIRE(segment_bytes == 0);
    if (cudaMalloc(&p, (size_t)bytes) != cudaSuccess) {
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &all);
        return sh_fail(SH_E_MEMORY,
                       "the arena of %s cannot be allocated on GPU %d, which has %s free; let the plan take less "
                       "(memory.limit_bytes)",
                       sh_str_bytes(bytes, text), device_index, sh_str_bytes((int64_t)free_bytes, left));
    }
    sh_cudart_must(cudaMemset(p, 0, (size_t)bytes), "clear the arena");
    sh_cudart_must(cudaDeviceSynchronize(), "clear the arena");
    *arena = p;
    return SH_OK;
}

/* cudaFree waits for kernels that still use the memory. */
static void arena_destroy(char *arena, int64_t bytes)
{
    (void)bytes;
    sh_cudart_must(cudaFree(arena), "free the arena");
}

/* Pinned memory is locked in RAM; `ulimit -l` or the node's memory may refuse it, so failure is not a bug and has a
 * class. */
static sh_rc host_create(int64_t bytes, char **memory)
{
    char text[SH_STR_SHORT];
    void *p;

    if (cudaMallocHost(&p, (size_t)bytes) != cudaSuccess) {
        cudaGetLastError();
        return sh_fail(
            SH_E_MEMORY,
            "%s of pinned host memory cannot be allocated: too little is free on this node, or ulimit -l or the "
            "container allows less; offload.optimizer, gradients, parameters or activations=cpu and checkpoints on "
            "GPUs need it",
            sh_str_bytes(bytes, text));
    }
    *memory = p;
    return SH_OK;
}

static void host_destroy(char *memory, int64_t bytes)
{
    (void)bytes;
    sh_cudart_must(cudaFreeHost(memory), "free pinned memory");
}

/* Urgent queues hold communication: when both could run, a kernel that others wait for goes first. */
static void *queue_create(bool urgent)
{
    cudaStream_t stream;
    int low, high;

    sh_cudart_must(cudaDeviceGetStreamPriorityRange(&low, &high), "query stream priorities");
    sh_cudart_must(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? high : low), "create a queue");
    return stream;
}

/* Work still in the queue is completed; only the handle goes. */
static void queue_destroy(void *queue)
{
    sh_cudart_must(cudaStreamDestroy(queue), "destroy a queue");
}

/* A kernel's fault shows only at the next synchronization; asked here, it becomes an error with the device's own
 * message. */
static sh_rc queue_check(void *queue)
{
    cudaError_t rc = cudaStreamSynchronize(queue);

    if (rc == cudaSuccess)
        return SH_OK;
    return sh_fail(SH_E_BUG, "GPU %d: %s (%s)", device_index, cudaGetErrorString(rc), cudaGetErrorName(rc));
}

/* Waits, and also renews the anchor of the clock, since the host stands still here anyway. */
static void queue_drain(void *queue)
{
    sh_cudart_event_anchor(queue);
}

/* The direction follows from the addresses (cudaMemcpyDefault). Host memory must be pinned, else the host waits. */
static void copy(void *queue, void *to, const void *from, int64_t bytes)
{
    if (bytes && to != from)
        sh_cudart_must(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, queue), "copy");
}

/* A loss of a plug-in is a function of the host. */
static sh_rc run(const struct sh_op_call *call, const char *label)
{
    return sh_plug_loss(call->kind) ? sh_cudart_run_on_host(call) : sh_cudart_run(call, label);
}

const struct sh_device sh_device_cuda = {
    .name = "cuda",
    .kernels = &sh_kernels_cuda,
    .gpu = true,
    .count = count,
    .open = open_gpu,
    .close = close_gpu,
    .attach = attach,
    .used_bytes = used_bytes,
    .arena_create = arena_create,
    .arena_destroy = arena_destroy,
    .host_create = host_create,
    .host_destroy = host_destroy,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .queue_drain = queue_drain,
    .queue_check = queue_check,
    .run = run,
    .copy = copy,
    .put = sh_cudart_put,
    .get = sh_cudart_get,
    .event_create = sh_cudart_event_create,
    .event_destroy = sh_cudart_event_destroy,
    .event_mark = sh_cudart_event_mark,
    .queue_after = sh_cudart_queue_after,
    .event_is_done = sh_cudart_event_is_done,
    .event_wait = sh_cudart_event_wait,
    .event_ns = sh_cudart_event_ns,
    .event_span_ns = sh_cudart_event_span_ns,
};
