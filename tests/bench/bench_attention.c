/* Attention in bfloat16 on one thread, beside the rate of a large product. Not a test; tests/bench/attention runs it.
 *     bench_attention HEADS KV_HEADS T D [WINDOW [DOCUMENT [REPEATS]]]
 * One sequence; 0 for WINDOW or DOCUMENT (tokens of each document): none. Prints the least processor time in seconds of
 * the forward and of the backward, and the GFLOP/s of the best product of 1024 x 1024 x 1024 in the compute type and,
 * if that is faster, in float32. */
#include "sherd_config.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm_engine.h"
#include "src/base/mem.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIDE = 1024 };

static int repeats = 3;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *zeroed(int64_t bytes)
{
    void *p = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64 + 64));
    if (!p)
        sh_stop(sh_fail(SH_E_MEMORY, "bench_attention: no memory for %lld bytes", (long long)bytes));
    memset(p, 0, (size_t)bytes);
    return p;
}

/* Numbers of size 1 in the compute type; other types stay zero. */
static struct sh_operand tensor(enum sh_dtype dtype, int64_t d0, int64_t d1, int64_t d2)
{
    struct sh_operand t = {.dtype = dtype, .ndim = 3, .dim = {d0, d1, d2}};
    uint32_t z = 1;

    t.data = zeroed(d0 * d1 * d2 * sh_dtype_bytes(dtype));
    for (int64_t i = 0; dtype == SH_BF16 && i < d0 * d1 * d2; i++) {
        z = z * 1664525u + 1013904223u;
        ((sh_bf16 *)t.data)[i] = sh_f32_to_bf16((float)(int32_t)z * 0x1p-30f);
    }
    return t;
}

static double least_seconds(sh_kernel kernel, const struct sh_op_call *call)
{
    double least = 1e30;

    for (int i = 0; i < repeats; i++) {
        double start = now();
        sh_rc rc = kernel(call);
        double s = now() - start;
        if (rc != SH_OK)
            sh_stop(rc);
        least = s < least ? s : least;
    }
    return least;
}

static double seconds_of(sh_kernel kernel, int64_t (*work_bytes)(const struct sh_op_call *, int),
                         struct sh_op_call *call)
{
    call->work_bytes = work_bytes(call, 1);
    call->work = zeroed(call->work_bytes);
    double s = least_seconds(kernel, call);
    free(call->work);
    return s;
}

/* GFLOP/s of a product on the engine that the type gets. */
static double product_rate(enum sh_dtype dtype)
{
    struct sh_operand a = tensor(dtype, 1, SIDE, SIDE), b = tensor(dtype, 1, SIDE, SIDE),
                      c = tensor(SH_F32, 1, SIDE, SIDE);
    struct sh_matmul g = {.m = SIDE,
                          .n = SIDE,
                          .k = SIDE,
                          .in_dtype = dtype,
                          .out_dtype = SH_F32,
                          .a = a.data,
                          .lda = SIDE,
                          .b = b.data,
                          .ldb = SIDE,
                          .trans_b = true,
                          .c = c.data,
                          .ldc = SIDE};
    int64_t bytes = sh_gemm_work_bytes(&g, 1);
    void *work = zeroed(bytes);
    double least = 1e30;

    for (int i = 0; i <= repeats && i < 6; i++) {
        double start = now();
        sh_rc rc = sh_gemm_run(&g, work, bytes);
        double s = now() - start;
        if (rc != SH_OK)
            sh_stop(rc);
        least = s < least ? s : least;
    }
    free(a.data);
    free(b.data);
    free(c.data);
    free(work);
    return 2e-9 * SIDE * SIDE * SIDE / least;
}

int main(int argc, char **argv)
{
    int64_t n[7] = {12, 12, 256, 64, 0, 0, 3};

    for (int i = 1; i < argc && i <= 7; i++)
        n[i - 1] = strtoll(argv[i], NULL, 10);
    int64_t heads = n[0], kv_heads = n[1], seq = n[2], dim = n[3], width = (heads + 2 * kv_heads) * dim;
    struct sh_op_attr attr = {.attn.heads = (int)heads, .attn.kv_heads = (int)kv_heads, .attn.head_dim = (int)dim};
    attr.attn.window = (int)n[4];
    attr.attn.scale = 0.125f;
    repeats = (int)n[6];
    omp_set_num_threads(1);

    struct sh_operand docs = {0};
    if (n[5]) {
        docs = tensor(SH_I32, 1, seq, 1);
        for (int64_t t = 0; t < seq; t++)
            ((int32_t *)docs.data)[t] = (int32_t)(t / n[5] * n[5]);
    }
    struct sh_op_call fwd = {.kind = SH_OP_ATTENTION,
                             .attr = &attr,
                             .in = {tensor(SH_BF16, 1, seq, width), docs},
                             .out = {tensor(SH_BF16, 1, seq, heads * dim), tensor(SH_F32, 1, heads, seq)}};
    double forward = seconds_of(sh_cpu_attention, sh_cpu_attention_work_bytes, &fwd);
    struct sh_op_call bwd = {.kind = SH_OP_ATTENTION_BWD,
                             .attr = &attr,
                             .in = {tensor(SH_BF16, 1, seq, heads * dim), fwd.in[0], fwd.out[0], fwd.out[1], docs},
                             .out = {tensor(SH_BF16, 1, seq, width)}};
    double backward = seconds_of(sh_cpu_attention_bwd, sh_cpu_attention_bwd_work_bytes, &bwd);
    double bf16 = product_rate(SH_BF16), f32 = product_rate(SH_F32);
    printf("%.6f %.6f %.1f\n", forward, backward, bf16 > f32 ? bf16 : f32);
    return 0;
}
