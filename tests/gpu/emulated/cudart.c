/* A double of the CUDA runtime for tests without a GPU: memory is the host's, streams are lazy (streams.h), and the
 * order of all accesses is checked (order.h). It has only what Sherd calls. */
#include "src/base/mem.h"
#include "tests/gpu/emulated/emulated.h"
#include "tests/gpu/emulated/order.h"
#include "tests/gpu/emulated/streams.h"

#include <cuda_runtime.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 256, POISON = 0xff, MEMORY_GIB = 16, BUILT_FOR = 90 };

struct CUstream_st {
    int actor, number;
    struct sh_stream *work;
};

struct CUevent_st {
    struct sh_order_clock clock;
    struct sh_mark *mark; /* NULL: never recorded */
    bool old;             /* see elapsed() */
};

struct block {
    char *begin;
    size_t bytes;
    bool pinned; /* of the host: not counted as used */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks; /* device and pinned memory */
static int n_blocks, cap_blocks;
static size_t used, used_pinned;
static struct CUstream_st default_stream = {.actor = -1};
static _Thread_local cudaError_t last_error;

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

int sh_emulated_stream_number(void *stream)
{
    return stream ? ((cudaStream_t)stream)->number : 0;
}

static cudaStream_t known(void *stream)
{
    if (stream)
        return stream;
    pthread_mutex_lock(&lock);
    if (!default_stream.work) {
        default_stream.actor = sh_order_actor();
        default_stream.work = sh_stream_create();
    }
    pthread_mutex_unlock(&lock);
    return &default_stream;
}

void sh_emulated_put(void *stream, void (*work)(void *arg), void *arg)
{
    sh_stream_put(known(stream)->work, work, arg);
}

void sh_emulated_put_in_order(void *stream, void (*work)(void *arg), void *arg)
{
    sh_stream_put_beside(known(stream)->work, work, arg, sh_emulated_number("NCCL_LAUNCH_ORDER_IMPLICIT") == 1);
}

static _Atomic bool faulted;

static void fault(void *arg)
{
    (void)arg;
    faulted = true;
}

static cudaError_t status(void)
{
    return faulted ? cudaErrorIllegalAddress : cudaSuccess;
}

/* As in launch.cuh: an error of an earlier call of this thread is taken for an error of the launch. */
static int launch(void *stream, void (*work)(void *arg), void *arg)
{
    sh_emulated_count(SH_EMULATED_LAUNCHES, 1);
    sh_emulated_put(stream, work, arg);
    if (sh_emulated_counted(SH_EMULATED_LAUNCHES) == sh_emulated_number("SHERD_EMULATED_FAULT"))
        sh_emulated_put(stream, fault, NULL);
    return (int)cudaGetLastError();
}

void sh_emulated_access(void *queue, const void *at, int64_t bytes, int write, const char *label)
{
    sh_order_access(known(queue)->actor, at, bytes, write, label);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    if (!sh_emulated_counted(SH_EMULATED_CONNECTIONS))
        sh_emulated_count(SH_EMULATED_CONNECTIONS, sh_emulated_number("CUDA_DEVICE_MAX_CONNECTIONS"));
    *count = sh_emulated_number("SHERD_EMULATED_HIDDEN") ? 1 : (int)sh_emulated_number("SHERD_EMULATED_GPUS");
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device)
{
    sh_emulated_launch = launch;
    return device < (int)sh_emulated_number("SHERD_EMULATED_GPUS") ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

/* 0 in the environment: unset. */
static int capability(void)
{
    long capability = sh_emulated_number("SHERD_EMULATED_CAPABILITY");

    return capability ? (int)capability : BUILT_FOR;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    (void)attributes;
    return kernel && capability() == BUILT_FOR ? cudaSuccess : (last_error = cudaErrorNoKernelImageForDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "emulated GPU");
    snprintf(prop->uuid.bytes, sizeof prop->uuid.bytes, "emulated%d",
             sh_emulated_number("SHERD_EMULATED_HIDDEN") ? getpid() : device);
    prop->pciBusID = 1 + device;
    prop->major = capability() / 10;
    prop->minor = capability() % 10;
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
    long mib = sh_emulated_number("SHERD_EMULATED_MIB");

    *all = mib ? (size_t)mib << 20 : (size_t)MEMORY_GIB << 30;
    *free_bytes = *all - used;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "an error of the emulated runtime";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorNoDevice ? "cudaErrorNoDevice" : "cudaError";
}

static cudaError_t allocate(void **memory, size_t bytes, bool on_host)
{
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN, free_bytes, all;

    cudaMemGetInfo(&free_bytes, &all);
    if (!on_host && bytes > free_bytes)
        return last_error = cudaErrorMemoryAllocation;
    *memory = aligned_alloc(ALIGN, room ? room : ALIGN);
    if (!*memory)
        return cudaErrorMemoryAllocation;
    memset(*memory, POISON, bytes);
    pthread_mutex_lock(&lock);
    blocks = sh_grow(blocks, n_blocks, &cap_blocks, sizeof *blocks);
    blocks[n_blocks++] = (struct block){*memory, bytes, on_host};
    *(on_host ? &used_pinned : &used) += bytes;
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
            *(found.pinned ? &used_pinned : &used) -= found.bytes;
            break;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Memory is given back only when the device is idle, as in CUDA. */
static cudaError_t release(void *memory)
{
    struct block b = take_block(memory);

    if (!b.begin)
        return cudaErrorInvalidValue;
    sh_streams_rest();
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
    size_t most = (size_t)sh_emulated_number("SHERD_EMULATED_PINNED_MIB") << 20;

    if (most && used_pinned + bytes > most)
        return last_error = cudaErrorMemoryAllocation;
    sh_emulated_count(SH_EMULATED_PINNED, (int64_t)bytes);
    return allocate(memory, bytes, true);
}

cudaError_t cudaFreeHost(void *memory)
{
    return release(memory);
}

/* Asynchronous copies are only asynchronous with memory that the driver knows. */
static bool is_known(const void *at, size_t bytes, bool *pinned)
{
    bool known = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_blocks && !known; i++) {
        known = (const char *)at >= blocks[i].begin && (const char *)at + bytes <= blocks[i].begin + blocks[i].bytes;
        *pinned = known && blocks[i].pinned;
    }
    pthread_mutex_unlock(&lock);
    return known;
}

/* A copy that is not done yet, in a ring of all of them. from == NULL: a memset. */
struct copy {
    struct copy *before, *behind;
    char *to;
    const char *from;
    size_t bytes;
    int value;
};
static struct copy pending = {.before = &pending, .behind = &pending};

static bool meet(const char *a, const char *b, size_t bytes, size_t b_bytes)
{
    return a && b && a < b + b_bytes && b < a + bytes;
}

/* Host memory that a copy will fill holds nothing useful until then, unless an earlier copy still uses it. */
static void poison(char *to, size_t bytes)
{
    for (struct copy *c = pending.behind; c != &pending; c = c->behind)
        if (meet(to, c->to, bytes, c->bytes) || meet(to, c->from, bytes, c->bytes))
            return;
    memset(to, POISON, bytes);
}

static void do_copy(void *arg)
{
    struct copy *c = arg;

    if (c->from)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, c->value, c->bytes);
    pthread_mutex_lock(&lock);
    c->before->behind = c->behind;
    c->behind->before = c->before;
    pthread_mutex_unlock(&lock);
    free(c);
}

static void put_copy(struct copy copy, bool to_host, cudaStream_t stream)
{
    struct copy *c = sh_calloc(1, sizeof *c);

    pthread_mutex_lock(&lock);
    if (to_host)
        poison(copy.to, copy.bytes);
    *c = copy;
    c->before = pending.before;
    c->behind = &pending;
    c->before->behind = pending.before = c;
    pthread_mutex_unlock(&lock);
    sh_emulated_put(stream, do_copy, c);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    static _Atomic long copies;
    bool to_host, from_host;

    (void)kind;
    if (++copies == sh_emulated_number("SHERD_EMULATED_COPY_FAIL"))
        return last_error = cudaErrorInvalidValue;
    if (!is_known(to, bytes, &to_host) || !is_known(from, bytes, &from_host))
        return cudaErrorInvalidValue;
    sh_emulated_access(stream, from, (int64_t)bytes, 0, "copy");
    sh_emulated_access(stream, to, (int64_t)bytes, 1, "copy");
    if (to_host && !from_host)
        sh_emulated_count(SH_EMULATED_HOST_BYTES, (int64_t)bytes);
    put_copy((struct copy){.to = to, .from = from, .bytes = bytes}, to_host, stream);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    bool on_host;

    if (!is_known(at, bytes, &on_host))
        return cudaErrorInvalidValue;
    sh_emulated_access(stream, at, (int64_t)bytes, 1, "memset");
    put_copy((struct copy){.to = at, .bytes = bytes, .value = value}, false, stream);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
    return cudaMemsetAsync(at, value, bytes, NULL);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = (int)sh_emulated_number("SHERD_EMULATED_DRIVER");
    if (!*version)
        *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    static int created;

    (void)flags;
    (void)priority;
    *stream = sh_calloc(1, sizeof **stream);
    **stream = (struct CUstream_st){.actor = sh_order_actor(), .number = ++created, .work = sh_stream_create()};
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    sh_order_actor_end(stream->actor);
    free(stream);
    return cudaSuccess;
}

static void wait_for_mark(struct sh_mark *m)
{
    sh_emulated_count(SH_EMULATED_WAITS, sh_mark_wait(m));
}

static cudaError_t synchronize(cudaStream_t stream, void (*wait)(const struct sh_order_clock *event))
{
    struct sh_mark *mark = sh_stream_mark(known(stream)->work);
    struct sh_order_clock now;

    sh_order_mark(known(stream)->actor, &now);
    wait_for_mark(mark);
    sh_mark_put(mark);
    wait(&now);
    return status();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return synchronize(stream, sh_order_wait);
}

/* The host learns no more from this than from synchronising the default stream: that is all that Sherd uses it for. */
cudaError_t cudaDeviceSynchronize(void)
{
    return synchronize(NULL, sh_order_wait_for_all);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = sh_calloc(1, sizeof **event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    sh_mark_put(event->mark);
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    sh_order_mark(known(stream)->actor, &event->clock);
    sh_mark_put(event->mark);
    event->mark = sh_stream_mark(known(stream)->work);
    event->old = sh_emulated_counted(SH_EMULATED_LAUNCHES) == 0;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->mark)
        wait_for_mark(event->mark);
    sh_order_wait(&event->clock);
    return status();
}

/* CUDA may report the answer as an error of this thread. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    sh_emulated_count(SH_EMULATED_QUERIES, 1);
    if (event->mark && !sh_mark_done(event->mark))
        return last_error = cudaErrorNotReady;
    sh_order_wait(&event->clock);
    return cudaSuccess;
}

/* A float of milliseconds. With SHERD_EMULATED_CLOCK_SECONDS, anything recorded before the first kernel is that much
 * older, and a time measured from it is as coarse as a float of that size; the age itself is subtracted again. */
static float elapsed(const struct CUevent_st *begin, const struct CUevent_st *end)
{
    double ms = (double)(sh_mark_ns(end->mark) - sh_mark_ns(begin->mark)) / 1e6;
    double age = 1e3 * (double)sh_emulated_number("SHERD_EMULATED_CLOCK_SECONDS");

    if (begin->old == end->old)
        age = 0;
    if (end->old)
        age = -age;
    return (float)((double)(float)(ms + age) - age);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    if (!begin->mark || !end->mark)
        return cudaErrorInvalidResourceHandle;
    if (!sh_mark_done(begin->mark) || !sh_mark_done(end->mark))
        return cudaErrorNotReady;
    *ms = elapsed(begin, end);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    static int waits;

    (void)flags;
    if (++waits == (int)sh_emulated_number("SHERD_EMULATED_DROP"))
        return cudaSuccess;
    sh_order_after(known(stream)->actor, &event->clock);
    if (event->mark)
        sh_stream_after(known(stream)->work, event->mark);
    return cudaSuccess;
}
