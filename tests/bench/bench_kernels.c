/* Rates of the matrix products, attention and the head at the shapes of GPT-2 124M. Not a test: it checks nothing.
 *     OMP_NUM_THREADS=2 bench_kernels [repeats]
 * A figure is operations divided by the best wall time of the repeats. Attention counts the pairs that are seen:
 * half. */
#include "sherd_config.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm_engine.h"
#include "kernels/cpu/base/wide.h"
#include "src/base/isa.h"
#include "src/base/mem.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 4, T = 256, N = B * T, C = 768, F = 3072, V = 50257, HEADS = 12, DIM = 64 };

static int repeats = 5;

static void *zeroed(int64_t bytes)
{
    void *p = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64 + 64));
    if (!p)
        sh_stop(sh_fail(SH_E_MEMORY, "bench_kernels: no memory for %lld bytes", (long long)bytes));
    memset(p, 0, (size_t)bytes);
    return p;
}

/* Small numbers without a pattern that an engine could exploit. */
static void fill(struct sh_operand *t, int64_t elems)
{
    uint32_t z = 1;
    for (int64_t i = 0; i < elems; i++) {
        z = z * 1664525u + 1013904223u;
        float x = (float)(int32_t)z * 0x1p-33f;
        if (t->dtype == SH_F32)
            ((float *)t->data)[i] = x;
        else if (t->dtype == SH_BF16)
            ((sh_bf16 *)t->data)[i] = sh_f32_to_bf16(x);
    }
}

static struct sh_operand tensor(enum sh_dtype dtype, int ndim, int64_t d0, int64_t d1, int64_t d2)
{
    struct sh_operand t = {.dtype = dtype, .ndim = ndim, .dim = {d0, d1, d2}};
    int64_t elems = d0 * (ndim > 1 ? d1 : 1) * (ndim > 2 ? d2 : 1);
    t.data = zeroed(elems * sh_dtype_bytes(dtype));
    fill(&t, elems);
    return t;
}

static void drop(struct sh_op_call *call)
{
    for (int i = 0; i < SH_OP_MAX_IN; i++)
        free(call->in[i].data);
    for (int i = 0; i < SH_OP_MAX_OUT; i++)
        free(call->out[i].data);
    free(call->work);
}

static double best_seconds(sh_kernel kernel, const struct sh_op_call *call)
{
    double best = 1e30;
    for (int i = 0; i <= repeats; i++) {
        double start = omp_get_wtime();
        sh_rc rc = kernel(call);
        if (rc != SH_OK)
            sh_stop(rc);
        double s = omp_get_wtime() - start;
        best = i > 0 && s < best ? s : best;
    }
    return best;
}

static void report(const char *what, enum sh_dtype dtype, double flops, double seconds)
{
    printf("%-44s %-5s %8.1f GFLOP/s %9.3f ms\n", what, sh_dtype_name(dtype), flops / seconds * 1e-9, seconds * 1e3);
    fflush(stdout);
}

static void measure(const char *what, sh_kernel kernel, int64_t (*work_bytes)(const struct sh_op_call *, int),
                    struct sh_op_call *call, double flops)
{
    call->work_bytes = work_bytes(call, omp_get_max_threads());
    call->work = zeroed(call->work_bytes);
    report(what, call->in[0].dtype, flops, best_seconds(kernel, call));
    drop(call);
}

static void bench_linear(enum sh_dtype act, int64_t in, int64_t out, bool w_in_out)
{
    struct sh_op_attr attr = {.linear.w_in_out = w_in_out};
    int64_t w0 = w_in_out ? in : out, w1 = w_in_out ? out : in;
    double flops = 2.0 * N * (double)in * (double)out;
    char name[64];

    struct sh_op_call y = {.kind = SH_OP_LINEAR,
                           .attr = &attr,
                           .in = {tensor(act, 2, N, in, 0), tensor(act, 2, w0, w1, 0), tensor(act, 1, out, 0, 0)},
                           .out = {tensor(act, 2, N, out, 0)}};
    const char *order = w_in_out ? "[I,O]" : "[O,I]";
    snprintf(name, sizeof name, "linear       %lld -> %lld %s", (long long)in, (long long)out, order);
    measure(name, sh_cpu_linear, sh_cpu_linear_work_bytes, &y, flops);

    struct sh_op_call dx = {.kind = SH_OP_LINEAR_BWD_X,
                            .attr = &attr,
                            .in = {tensor(act, 2, N, out, 0), tensor(act, 2, w0, w1, 0)},
                            .out = {tensor(act, 2, N, in, 0)}};
    memcpy(name, "linear_bwd_x", 12);
    measure(name, sh_cpu_linear_bwd_x, sh_cpu_linear_bwd_x_work_bytes, &dx, flops);

    struct sh_op_call dw = {.kind = SH_OP_LINEAR_BWD_W,
                            .attr = &attr,
                            .in = {tensor(act, 2, N, out, 0), tensor(act, 2, N, in, 0)},
                            .out = {tensor(SH_F32, 2, w0, w1, 0)}};
    memcpy(name, "linear_bwd_w", 12);
    measure(name, sh_cpu_linear_bwd_w, sh_cpu_linear_bwd_w_work_bytes, &dw, flops);
}

static void bench_attention(enum sh_dtype act, int64_t seq)
{
    int64_t batch = N / seq, wide = 3 * C;
    struct sh_op_attr attr = {.attn.heads = HEADS, .attn.kv_heads = HEADS, .attn.head_dim = DIM, .attn.scale = 0.125f};
    double pairs = (double)batch * HEADS * (double)seq * (double)(seq + 1) / 2;
    char name[64];

    struct sh_op_call fwd = {.kind = SH_OP_ATTENTION,
                             .attr = &attr,
                             .in = {tensor(act, 3, batch, seq, wide)},
                             .out = {tensor(act, 3, batch, seq, C), tensor(SH_F32, 3, batch, HEADS, seq)}};
    snprintf(name, sizeof name, "attention      B=%lld T=%lld", (long long)batch, (long long)seq);
    measure(name, sh_cpu_attention, sh_cpu_attention_work_bytes, &fwd, 4 * DIM * pairs);

    struct sh_op_call bwd = {.kind = SH_OP_ATTENTION_BWD,
                             .attr = &attr,
                             .in = {tensor(act, 3, batch, seq, C), tensor(act, 3, batch, seq, wide),
                                    tensor(act, 3, batch, seq, C), tensor(SH_F32, 3, batch, HEADS, seq)},
                             .out = {tensor(act, 3, batch, seq, wide)}};
    snprintf(name, sizeof name, "attention_bwd  B=%lld T=%lld", (long long)batch, (long long)seq);
    measure(name, sh_cpu_attention_bwd, sh_cpu_attention_bwd_work_bytes, &bwd, 10 * DIM * pairs);
}

static void bench_head(enum sh_dtype act, int64_t chunk_rows)
{
    struct sh_op_attr attr = {.head.chunk_rows = chunk_rows};
    struct sh_op_scalars scalars = {.loss_scale = 1.0 / N, .router_scale = 1.0 / N};
    char name[64];

    struct sh_op_call loss = {.kind = SH_OP_HEAD_LOSS,
                              .attr = &attr,
                              .scalars = &scalars,
                              .in = {tensor(act, 2, N, C, 0), tensor(act, 2, V, C, 0), tensor(SH_I32, 1, N, 0, 0)},
                              .out = {tensor(SH_F64, 1, 1, 0, 0)}};
    snprintf(name, sizeof name, "head_loss      chunk_rows=%lld", (long long)chunk_rows);
    measure(name, sh_cpu_head_loss, sh_cpu_head_work_bytes, &loss, 2.0 * N * C * V);

    struct sh_op_call grad = {.kind = SH_OP_HEAD_LOSS_GRAD,
                              .attr = &attr,
                              .scalars = &scalars,
                              .in = {tensor(act, 2, N, C, 0), tensor(act, 2, V, C, 0), tensor(SH_I32, 1, N, 0, 0)},
                              .out = {tensor(SH_F64, 1, 1, 0, 0), tensor(act, 2, N, C, 0), tensor(SH_F32, 2, V, C, 0)}};
    snprintf(name, sizeof name, "head_loss_grad chunk_rows=%lld", (long long)chunk_rows);
    measure(name, sh_cpu_head_loss_grad, sh_cpu_head_work_bytes, &grad, 6.0 * N * C * V);
}

#ifdef SH_WIDE
enum { SUMS = 12, DOTS = 50 << 20 }; /* enough sums at a time to hide the latency */

/* Products of pairs, DOTS times SUMS, with all operands in registers. */
static SH_WIDE void dots(void)
{
    __m512 sum[SUMS];
    __m512i pair = _mm512_setzero_si512();

    _Pragma("GCC unroll 12") for (int j = 0; j < SUMS; j++) sum[j] = _mm512_setzero_ps();
    for (int i = 0; i < DOTS; i++) {
        _Pragma("GCC unroll 12") for (int j = 0; j < SUMS; j++)
        {
            sum[j] = _mm512_dpbf16_ps(sum[j], (__m512bh)pair, (__m512bh)pair);
            __asm__ volatile("" : "+v"(sum[j])); /* no product may be optimised away */
        }
    }
}

/* The roof of products by AVX-512 bf16: the instruction alone. */
static void bench_instruction(void)
{
    double seconds = 1e30;

    if (!sh_isa_has(SH_ISA_AVX512_BF16))
        return;
    for (int r = 0; r < 3; r++) {
        double start = omp_get_wtime();
#pragma omp parallel
        dots();
        double s = omp_get_wtime() - start;
        seconds = s < seconds ? s : seconds;
    }
    report("vdpbf16ps alone", SH_BF16, 64.0 * SUMS * DOTS * omp_get_max_threads(), seconds);
}
#else
static void bench_instruction(void)
{
}
#endif

/* One product [N,C] x [C,F] on an engine. */
struct on_engine {
    const struct sh_gemm_engine *e;
    struct sh_operand a, b, c;
    int64_t work_bytes;
    void *work;
    double best; /* seconds */
};

static struct sh_matmul product_of(const struct on_engine *x)
{
    return (struct sh_matmul){.m = N,
                              .n = F,
                              .k = C,
                              .in_dtype = x->e->in_dtype,
                              .out_dtype = SH_F32,
                              .a = x->a.data,
                              .lda = C,
                              .b = x->b.data,
                              .ldb = C,
                              .trans_b = true,
                              .c = x->c.data,
                              .ldc = F};
}

static struct on_engine on_engine(const struct sh_gemm_engine *e)
{
    struct on_engine x = {.e = e,
                          .a = tensor(e->in_dtype, 2, N, C, 0),
                          .b = tensor(e->in_dtype, 2, F, C, 0),
                          .c = tensor(SH_F32, 2, N, F, 0),
                          .best = 1e30};
    struct sh_matmul g = product_of(&x);

    x.work_bytes = sh_gemm_work_bytes_on(e, &g, omp_get_max_threads());
    x.work = zeroed(x.work_bytes);
    return x;
}

static void multiply_on(struct on_engine *x)
{
    struct sh_matmul g = product_of(x);
    double start = omp_get_wtime();
    sh_rc rc = sh_gemm_run_on(x->e, &g, x->work, x->work_bytes);
    double s = omp_get_wtime() - start;

    if (rc != SH_OK)
        sh_stop(rc);
    x->best = s < x->best ? s : x->best;
}

/* All engines in turn, for their order in gemm_engine.c: what else the machine does then falls on all. */
static void bench_engines(void)
{
    enum { MOST = 16 };
    struct on_engine x[MOST];
    int n = 0;

    for (int i = 0; sh_gemm_engine_at(i) && n < MOST; i++)
        if (sh_gemm_engine_at(i)->usable())
            x[n++] = on_engine(sh_gemm_engine_at(i));
    for (int r = 0; r <= repeats; r++)
        for (int i = 0; i < n; i++)
            multiply_on(&x[i]);
    for (int i = 0; i < n; i++) {
        report(x[i].e->name, x[i].e->in_dtype, 2.0 * N * C * F, x[i].best);
        free(x[i].a.data);
        free(x[i].b.data);
        free(x[i].c.data);
        free(x[i].work);
    }
}

int main(int argc, char **argv)
{
    static const int64_t layers[][2] = {{C, 3 * C}, {C, C}, {C, F}, {F, C}};
    static const enum sh_dtype acts[] = {SH_F32, SH_BF16};
    static const int64_t chunks[] = {256, 352, 512};
    if (argc > 1)
        repeats = atoi(argv[1]);
    printf("%d threads, %d tokens\n", omp_get_max_threads(), N);
    bench_instruction();
    bench_engines();
    for (int a = 0; a < 2; a++) {
        for (int i = 0; i < 4; i++)
            bench_linear(acts[a], layers[i][0], layers[i][1], i == 0);
        bench_attention(acts[a], 256);
        bench_attention(acts[a], 1024);
        for (int i = 0; i < 3; i++)
            bench_head(acts[a], chunks[i]);
    }
    return 0;
}
