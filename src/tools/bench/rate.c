/* Peak rates: a square matrix product and a copy, in memory allocated for them. A call is repeated until the
 * repetitions take 20 ms, and their mean counts; the first call is discarded. */
#include "src/tools/bench/rate.h"

#include "kernels/cpu/base/block.h"
#include "src/base/time.h"
#include "src/mesh/mesh.h"

#include <stdio.h>

enum { CPU_SIDE = 2048, GPU_SIDE = 8192 };
static const int64_t cpu_bytes = 256ll << 20, gpu_bytes = 1ll << 30;
static const double least_seconds = 0.02;

/* Collective. Allocates memory for a copy of copy_bytes or for the square, whichever is more: on a CPU 256 MiB, far
 * larger than the caches. */
sh_rc sh_rate_open(const struct sh_device *device, int threads, int64_t copy_bytes, struct sh_rate *out)
{
    *out = (struct sh_rate){.device = device,
                            .threads = threads,
                            .bytes = device->gpu ? gpu_bytes : cpu_bytes,
                            .side = device->gpu ? GPU_SIDE : CPU_SIDE};
    if (out->bytes < 2 * copy_bytes)
        out->bytes = 2 * copy_bytes;
    out->queue = device->queue_create(false);
    SH_TRY(sh_agree(device->arena_create(out->bytes, 0, -1, &out->memory)));
    sh_rate_touch(device, out->queue, out->memory, out->bytes);
    return SH_OK;
}

/* Writes every page from this process, which places it on this process's NUMA node. */
void sh_rate_touch(const struct sh_device *device, void *queue, char *memory, int64_t bytes)
{
    static const char zeros[1 << 16];

    for (int64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < (int64_t)sizeof zeros ? bytes - at : (int64_t)sizeof zeros;
        device->put(queue, memory + at, zeros, n);
    }
}

/* May be called even if sh_rate_open() was never called or failed. */
void sh_rate_close(struct sh_rate *r)
{
    if (r->memory)
        r->device->arena_destroy(r->memory, r->bytes);
    if (r->device)
        r->device->queue_destroy(r->queue);
}

/* Queues the calls `times` times and waits once, so that the device is measured and not the launch of single calls. */
static sh_rc run_calls(const struct sh_rate *r, const struct sh_op_call *calls, int64_t n, int64_t times,
                       double *seconds)
{
    int64_t begin = sh_now_ns();

    for (int64_t i = 0; i < n * times; i++)
        SH_TRY(r->device->run(&calls[i % n], "bench"));
    r->device->queue_drain(r->queue);
    *seconds = sh_seconds_since(begin);
    return SH_OK;
}

/* All ranks start together; the time is that of the slowest. */
static sh_rc run_together(const struct sh_rate *r, const struct sh_op_call *calls, int64_t n, int64_t times,
                          double *seconds)
{
    sh_mesh_barrier();
    SH_TRY(sh_agree(run_calls(r, calls, n, times, seconds)));
    return sh_mesh_max(seconds, 1);
}

sh_rc sh_rate_calls(const struct sh_rate *r, const struct sh_op_call *calls, int64_t n, double *seconds)
{
    int64_t times = 1;

    SH_TRY(run_together(r, calls, n, times, seconds)); /* work done only once: pages, objects of libraries */
    SH_TRY(run_together(r, calls, n, times, seconds));
    while (*seconds < least_seconds) {
        /* A fifth more than the estimate, so that the second attempt is nearly always long enough. */
        times = *seconds > 0 ? (int64_t)((double)times * least_seconds / *seconds * 1.2) + 1 : 2 * times;
        SH_TRY(run_together(r, calls, n, times, seconds));
    }
    *seconds /= (double)times;
    return SH_OK;
}

/* The place-th matrix of the memory; 0 and 1 are factors, 2 the product, 3 scratch. */
static struct sh_operand square(const struct sh_rate *r, enum sh_dtype dtype, int place)
{
    return (struct sh_operand){.data = r->memory + place * r->side * r->side * sh_dtype_bytes(dtype),
                               .dtype = dtype,
                               .ndim = 2,
                               .dim = {r->side, r->side}};
}

/* Fills with small numbers, none of them zero or denormal. */
static void fill(const struct sh_rate *r, const struct sh_operand *t)
{
    enum { ELEMS = 4096 };
    float f32[ELEMS], host[ELEMS];
    int64_t bytes = ELEMS * sh_dtype_bytes(t->dtype);

    for (int i = 0; i < ELEMS; i++)
        f32[i] = (float)(i * 7919 % ELEMS - ELEMS / 2 + 1) / ELEMS + 0x1p-14f;
    sh_cpu_block_store((struct sh_cpu_block){1, ELEMS}, host, ELEMS, t->dtype, f32, ELEMS);
    for (int64_t at = 0; at < r->side * r->side; at += ELEMS)
        r->device->put(r->queue, (char *)t->data + at * sh_dtype_bytes(t->dtype), host, bytes);
}

/* Collective. side x side times side x side, with the kernels that training uses. */
sh_rc sh_rate_product(const struct sh_rate *r, enum sh_dtype dtype, double *seconds)
{
    struct sh_op_attr attr = {.linear.w_in_out = true};
    struct sh_op_call call = {.kind = SH_OP_LINEAR,
                              .attr = &attr,
                              .in = {square(r, dtype, 0), square(r, dtype, 1)},
                              .out = {square(r, dtype, 2)},
                              .queue = r->queue};

    if (r->device->kernels->work_bytes)
        call.work_bytes = r->device->kernels->work_bytes(&call, r->threads);
    call.work = square(r, dtype, 3).data;
    SH_REQUIRE((char *)call.work + call.work_bytes <= r->memory + r->bytes);
    fill(r, &call.in[0]);
    fill(r, &call.in[1]);
    return sh_rate_calls(r, &call, 1, seconds);
}

/* One multiplication and one addition for each of side^3 terms. */
double sh_rate_product_flops(const struct sh_rate *r)
{
    return 2.0 * (double)r->side * (double)r->side * (double)r->side;
}

/* Reads n bytes from the first half of the memory and writes n bytes to the second. */
sh_rc sh_rate_copy(const struct sh_rate *r, int64_t n, double *seconds)
{
    struct sh_op_attr attr = {0};
    struct sh_operand from = {.data = r->memory, .dtype = SH_F32, .ndim = 1, .dim = {n / 4}};
    struct sh_op_call call = {.kind = SH_OP_COPY, .attr = &attr, .in = {from}, .out = {from}, .queue = r->queue};

    SH_REQUIRE(2 * n <= r->bytes && n >= 4);
    call.out[0].data = r->memory + r->bytes / 2;
    return sh_rate_calls(r, &call, 1, seconds);
}
