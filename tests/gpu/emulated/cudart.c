/* A double of the CUDA runtime for tests without a GPU: memory is the host's, work is done where it is put, and the order
 * of everything is judged (order.h). Only what Sherd calls is here. */
#include "src/base/mem.h"
#include "src/base/time.h"
#include "tests/gpu/emulated/emulated.h"
#include "tests/gpu/emulated/order.h"

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, POISON = 0xff, MEMORY_GIB = 16 };

struct CUstream_st {
    int actor, number;
};

struct CUevent_st {
    struct sh_order_clock clock;
    int64_t ns;
};

struct block {
    char *begin;
    size_t bytes;
    bool pinned; /* of the host: counts not as used */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks; /* device and pinned memory */
static int n_blocks, cap_blocks;
static size_t used;
static struct CUstream_st default_stream = {.actor = -1};

long sh_emulated_number(const char *name)
{
    const char *text = getenv(name);

    return text ? atol(text) : 0;
}

/* splitmix64: Steele, Lea, Flood, OOPSLA 2014. */
unsigned sh_emulated_dice(unsigned sides)
{
    static _Atomic uint64_t thrown;
    uint64_t z = ((uint64_t)sh_emulated_number("SHERD_EMULATED_SEED") << 32) + ++thrown * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (unsigned)((z ^ (z >> 31)) % sides);
}

void sh_emulated_put(void *stream, void (*work)(void *arg), void *arg)
{
    (void)stream;
    work(arg);
}

void sh_emulated_put_in_order(void *stream, void (*work)(void *arg), void *arg)
{
    sh_emulated_put(stream, work, arg);
}

int sh_emulated_stream_number(void *stream)
{
    return stream ? ((cudaStream_t)stream)->number : 0;
}

static int actor_of(cudaStream_t stream)
{
    if (stream)
        return stream->actor;
    if (default_stream.actor < 0)
        default_stream.actor = sh_order_actor();
    return default_stream.actor;
}

void sh_emulated_access(void *queue, const void *at, int64_t bytes, int write, const char *label)
{
    sh_order_access(actor_of(queue), at, bytes, write, label);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = (int)sh_emulated_number("SHERD_EMULATED_GPUS");
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device)
{
    return device < (int)sh_emulated_number("SHERD_EMULATED_GPUS") ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "emulated GPU");
    snprintf(prop->uuid.bytes, sizeof prop->uuid.bytes, "emulated%d", device);
    prop->major = 9;
    prop->multiProcessorCount = 4;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    (void)device;
    switch ((int)attr) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = 4; return cudaSuccess;
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all)
{
    *all = (size_t)MEMORY_GIB << 30;
    *free_bytes = *all - used;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "an error of the emulated runtime";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorNoDevice ? "cudaErrorNoDevice" : "cudaError";
}

static cudaError_t allocate(void **memory, size_t bytes, bool pinned)
{
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN;

    *memory = aligned_alloc(ALIGN, room ? room : ALIGN);
    if (!*memory)
        return cudaErrorMemoryAllocation;
    memset(*memory, POISON, bytes);
    pthread_mutex_lock(&lock);
    blocks = sh_grow(blocks, n_blocks, &cap_blocks, sizeof *blocks);
    blocks[n_blocks++] = (struct block){*memory, bytes, pinned};
    used += pinned ? 0 : bytes;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static struct block take_block(const void *memory)
{
    struct block found = {NULL, 0, false};

    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_blocks; i++)
        if (blocks[i].begin == memory) {
            found = blocks[i];
            blocks[i] = blocks[--n_blocks];
            used -= found.pinned ? 0 : found.bytes;
            break;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static cudaError_t release(void *memory)
{
    struct block b = take_block(memory);

    if (!b.begin)
        return cudaErrorInvalidValue;
    sh_order_forget(b.begin, (int64_t)b.bytes);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    return allocate(memory, bytes, false);
}

cudaError_t cudaFree(void *memory)
{
    return release(memory);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return allocate(memory, bytes, true);
}

cudaError_t cudaFreeHost(void *memory)
{
    return release(memory);
}

/* Copies that do not wait are only real with memory that the driver knows. */
static bool is_known(const void *at, size_t bytes)
{
    bool known = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_blocks && !known; i++)
        known = (const char *)at >= blocks[i].begin &&
                (const char *)at + bytes <= blocks[i].begin + blocks[i].bytes;
    pthread_mutex_unlock(&lock);
    return known;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    if (!is_known(to, bytes) || !is_known(from, bytes))
        return cudaErrorInvalidValue;
    sh_emulated_access(stream, from, (int64_t)bytes, 0, "copy");
    sh_emulated_access(stream, to, (int64_t)bytes, 1, "copy");
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    if (!is_known(at, bytes))
        return cudaErrorInvalidValue;
    sh_emulated_access(stream, at, (int64_t)bytes, 1, "memset");
    memset(at, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
    return cudaMemsetAsync(at, value, bytes, NULL);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    static int created;

    (void)flags;
    (void)priority;
    *stream = sh_calloc(1, sizeof **stream);
    (*stream)->actor = sh_order_actor();
    (*stream)->number = ++created;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    sh_order_actor_end(stream->actor);
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    struct sh_order_clock now;

    sh_order_mark(actor_of(stream), &now);
    sh_order_wait(&now);
    return cudaSuccess;
}

/* Of the default stream, which is all that Sherd synchronises in this way. */
cudaError_t cudaDeviceSynchronize(void)
{
    return cudaStreamSynchronize(NULL);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = sh_calloc(1, sizeof **event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    sh_order_mark(actor_of(stream), &event->clock);
    event->ns = sh_now_ns();
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    sh_order_wait(&event->clock);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return cudaEventSynchronize(event);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    *ms = (float)((double)(end->ns - begin->ns) / 1e6);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    static int waits;

    (void)flags;
    if (++waits != (int)sh_emulated_number("SHERD_EMULATED_DROP"))
        sh_order_after(actor_of(stream), &event->clock);
    return cudaSuccess;
}
