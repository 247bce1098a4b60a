/* A double of the CUDA runtime: device memory is a file that a simulator has mapped too, and a launch is a question to
 * it (simulator.py), which runs the kernel's PTX. So the code that nvcc makes for the host decides about grids, blocks,
 * shared memory and parameters, as it does on a GPU. It has only what the tests of kernels call; streams do nothing.
 * Products that are cuBLASLt's are its double's (emulated/cublaslt.c), which says what it has written.
 *
 * Lines that are sent through the socket SHERD_PTX_SOCKET, a line of answer each:
 *   memory ADDRESS BYTES            where the file SHERD_PTX_MEMORY is mapped
 *   allocated | free | written | poisoned ADDRESS BYTES
 *   sizes KERNEL                    the sizes of its parameters
 *   launch KERNEL GRID[3] BLOCK[3] SHARED-BYTES PARAMETERS     in hexadecimal
 * An answer is "ok", numbers, or what is wrong. */
#define _GNU_SOURCE
#include "tests/gpu/emulated/emulated.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 256, ANSWER = 4096, KERNELS = 512, PARAMETERS = 4096 };
static const size_t MEMORY = (size_t)1 << 28;

static FILE *ask, *answers;
static char *memory, answer[ANSWER];
static size_t used, live; /* allocations are given back once none is left */
static struct {
    const void *host;
    const char *name;
} kernels[KERNELS];
static int n_kernels;
static cudaError_t last;

static void start(void)
{
    if (memory)
        return;
    const char *socket = getenv("SHERD_PTX_SOCKET"), *file = getenv("SHERD_PTX_MEMORY");
    if (!socket || !file) {
        fputs("this program runs under tests/gpu/test_ptx.py only\n", stderr);
        exit(2);
    }
    ask = fdopen(atoi(socket), "w");
    answers = fdopen(dup(atoi(socket)), "r");
    memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(file), 0);
    if (!ask || !answers || memory == MAP_FAILED) {
        perror("tests/gpu/ptx/cudart.c");
        exit(2);
    }
    fprintf(ask, "memory %zu %zu\n", (size_t)memory, MEMORY);
}

/* Send what was written to `ask`: whether the answer is "ok". */
static bool answered(void)
{
    fputc('\n', ask);
    fflush(ask);
    if (!fgets(answer, sizeof answer, answers))
        exit(2);
    return strcmp(answer, "ok\n") == 0;
}

static cudaError_t tell(const char *what, const void *at, size_t bytes)
{
    start();
    fprintf(ask, "%s %zu %zu", what, (size_t)at, bytes);
    return answered() ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    start();
    size_t end = used + (bytes + 2 * ALIGN - 1) / ALIGN * ALIGN;
    if (end > MEMORY - ((size_t)1 << 20)) /* the rest is for the kernels' variables */
        return cudaErrorMemoryAllocation;
    *p = memory + used;
    memset(*p, 0xff, bytes);
    used = end;
    live++;
    return tell("allocated", *p, bytes);
}

cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    if (--live == 0)
        used = 0;
    return tell("free", p, 0);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    memcpy(to, from, bytes);
    return kind == cudaMemcpyDeviceToHost ? cudaSuccess : tell("written", to, bytes);
}

/* Tests use it to poison memory: what it writes counts as never written. */
cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    memset(p, value, bytes);
    return tell("poisoned", p, bytes);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

/* What an H100 allows. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    (void)device;
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "simulated GPU");
    prop->sharedMemPerBlockOptin = 227 << 10;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attr, int value)
{
    (void)kernel;
    (void)attr;
    (void)value;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorLaunchFailure ? answer : "refused by the double of CUDA";
}

/* Products are done at the call. */
int (*sh_emulated_launch)(void *stream, void (*work)(void *arg), void *arg);

void sh_emulated_written(const void *at, size_t bytes)
{
    (void)tell("written", at, bytes);
}

static const char *name_of(const void *host)
{
    for (int i = 0; i < n_kernels; i++)
        if (kernels[i].host == host)
            return kernels[i].name;
    return "none";
}

static cudaError_t launch(const char *name, dim3 grid, dim3 block, void **parameters, size_t shared)
{
    char sizes[ANSWER], *next = sizes;
    start();
    fprintf(ask, "sizes %s", name);
    (void)answered();
    memcpy(sizes, answer, sizeof sizes);
    fprintf(ask, "launch %s %u %u %u %u %u %u %zu ", name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
    for (int i = 0;; i++) {
        char *end;
        long bytes = strtol(next, &end, 10);
        if (end == next)
            break;
        next = end;
        for (long k = 0; k < bytes; k++)
            fprintf(ask, "%02x", ((const unsigned char *)parameters[i])[k]);
    }
    last = answered() ? cudaSuccess : cudaErrorLaunchFailure;
    return last;
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **parameters, size_t shared,
                             cudaStream_t stream)
{
    (void)stream;
    return launch(name_of(host), grid, block, parameters, shared);
}

/* What nvcc's code for the host calls. */
struct call {
    dim3 grid, block;
    size_t shared;
    void *stream;
};
static struct call pushed;

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                       int constant, int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **parameters, size_t shared,
                               cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp)
{
    (void)handle, (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    if (n_kernels == KERNELS)
        abort();
    kernels[n_kernels].host = host;
    kernels[n_kernels++].name = name;
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                       int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    pushed = (struct call){grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *(void **)stream = pushed.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    *kernel = (cudaKernel_t)(size_t)name_of(host);
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **parameters, size_t shared,
                               cudaStream_t stream)
{
    (void)stream;
    return launch((const char *)kernel, grid, block, parameters, shared);
}
