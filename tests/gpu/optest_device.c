#include "tests/gpu/optest_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define WITH_ASAN 1
#endif

enum { POISON_BYTE = 0xFF };

/* With SHERD_PTX the cases are the emulation's, but memory and kernels are those of CUDA (tests/gpu/ptx/cudart.c). */
#if defined(SH_CUDA_EMULATED) && !defined(SHERD_PTX)
#include "tests/gpu/emulated/order_of_threads.h"

bool optest_device_there(void)
{
    return true;
}

static void *alloc_aligned(size_t bytes)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 256, bytes), 0);
    return p;
}

static void free_aligned(void *p)
{
    free(p);
}

void device_put(void *device, const void *host, size_t bytes)
{
    memcpy(device, host, bytes);
}

void device_get(void *host, const void *device, size_t bytes)
{
    memcpy(host, device, bytes);
}

static void poison(void *device, size_t bytes)
{
    memset(device, POISON_BYTE, bytes);
}

void optest_device_order(int order)
{
    sh_emulated_set_order((enum sh_emulated_order)order);
}
#else
#include <cuda_runtime_api.h>
#include <stdio.h>

bool optest_device_there(void)
{
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
#ifdef SHERD_PTX
    cmocka_set_test_filter(getenv("SHERD_ONE_TEST"));
#endif
    if (error != cudaSuccess || n == 0)
        printf("1..0 # SKIP no GPU: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "none is visible");
    return error == cudaSuccess && n > 0;
}

static void check_cuda(cudaError_t error)
{
    if (error != cudaSuccess)
        fail_msg("CUDA: %s", cudaGetErrorString(error));
}

static void *alloc_aligned(size_t bytes)
{
    void *p = NULL;
    check_cuda(cudaMalloc(&p, bytes));
    return p;
}

static void free_aligned(void *p)
{
    check_cuda(cudaFree(p));
}

void device_put(void *device, const void *host, size_t bytes)
{
    check_cuda(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

void device_get(void *host, const void *device, size_t bytes)
{
    check_cuda(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

static void poison(void *device, size_t bytes)
{
    check_cuda(cudaMemset(device, POISON_BYTE, bytes));
}

void optest_device_order(int order)
{
    (void)order;
}
#endif

/* The address sanitizer sees more if an allocation ends at its last byte. */
#ifdef WITH_ASAN
enum { GUARD = 0 };
#else
enum { GUARD = 256 };
#endif
enum { SLOTS = SH_OP_MAX_IN + SH_OP_MAX_OUT, BUFFERS = 64, GUARD_BYTE = 0xA5 };

static struct {
    char *start, *data;
    size_t bytes;
} buffers[BUFFERS];

void *device_alloc(size_t bytes, size_t shift)
{
    unsigned char guard[GUARD + 1];
    int i = 0;
    while (buffers[i].start)
        assert_true(++i < BUFFERS);
    buffers[i].start = alloc_aligned(shift + bytes + GUARD);
    buffers[i].data = buffers[i].start + shift;
    buffers[i].bytes = bytes;
    memset(guard, GUARD_BYTE, sizeof guard);
    device_put(buffers[i].data + bytes, guard, GUARD);
    return buffers[i].data;
}

void device_free(void *p)
{
    unsigned char guard[GUARD + 1];
    int i = 0;
    while (buffers[i].data != p || !buffers[i].start)
        assert_true(++i < BUFFERS);
    device_get(guard, buffers[i].data + buffers[i].bytes, GUARD);
    for (int k = 0; k < GUARD; k++)
        if (guard[k] != GUARD_BYTE)
            fail_msg("a kernel wrote %d bytes behind the end of an operand", k);
    free_aligned(buffers[i].start);
    buffers[i].start = NULL;
}

static struct sh_operand *operand_at(struct sh_op_call *call, int slot)
{
    return slot < SH_OP_MAX_IN ? &call->in[slot] : &call->out[slot - SH_OP_MAX_IN];
}

static size_t bytes_of(const struct sh_operand *o)
{
    return (size_t)optest_elems(o) * (size_t)sh_dtype_bytes(o->dtype);
}

/* The earlier slot that has the same storage; the slot itself if there is none. */
static int first_slot(struct sh_op_call *call, int slot)
{
    for (int i = 0; i < slot; i++)
        if (operand_at(call, i)->data == operand_at(call, slot)->data)
            return i;
    return slot;
}

static void put_operands(struct sh_op_call *host, struct sh_op_call *device)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        struct sh_operand *o = operand_at(host, slot), *d = operand_at(device, slot);
        int first = o->data ? first_slot(host, slot) : slot;
        if (!o->data)
            continue;
        if (first < slot) {
            d->data = operand_at(device, first)->data;
            continue;
        }
        d->data = device_alloc(bytes_of(o), (size_t)o->data % 64);
        device_put(d->data, o->data, bytes_of(o));
    }
}

static void get_operands(struct sh_op_call *host, struct sh_op_call *device)
{
    for (int slot = SH_OP_MAX_IN; slot < SLOTS; slot++)
        if (operand_at(host, slot)->data)
            device_get(operand_at(host, slot)->data, operand_at(device, slot)->data, bytes_of(operand_at(host, slot)));
    for (int slot = 0; slot < SLOTS; slot++)
        if (operand_at(host, slot)->data && first_slot(host, slot) == slot)
            device_free(operand_at(device, slot)->data);
}

/* The library wants more than LIBRARY bytes, of which only the ends are filled: the middle was most of the time of products. */
static void put_scratch(struct sh_op_call *call, size_t bytes)
{
    enum { LIBRARY = 32 << 20, END = 1 << 20 };
    size_t end = bytes > LIBRARY ? END : bytes;

    call->work = device_alloc(bytes, 0);
    call->work_bytes = (int64_t)bytes;
    poison(call->work, end);
    poison((char *)call->work + bytes - end, end);
}

void optest_device_run(struct optest *t, const struct sh_kernel_table *device)
{
    struct sh_op_call call = t->call;
    put_operands(&t->call, &call);
    put_scratch(&call, device->work_bytes ? (size_t)device->work_bytes(&t->call, 1) : 0);
    sh_rc rc = device->prepare ? device->prepare(&call) : SH_OK;
    if (rc == SH_OK)
        rc = device->run[call.kind](&call);
    if (rc != SH_OK)
        fail_msg("%s on %s: %s", sh_op_info(call.kind)->name, device->name, sh_error_text());
    device_free(call.work);
    get_operands(&t->call, &call);
}
