#include "tests/gpu/time_experts.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/moe/grouped.h"
#include "src/base/time.h"
#include "tests/gpu/optest_device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { RUNS = 8, WARM_UP = 2 };

/* Operands in the place of x, dy, y and dx, which are [M,O] or [M,I]; of w, and of dw. */
struct setting {
    int64_t E, O, I, M;
    void *wide[2], *w, *dw, *first, *work;
    struct sh_op_attr attr;
    struct sh_op_call call;
};

/* bf16 numbers near 1, which multiply as any others do. */
static void *random_numbers(int64_t n)
{
    uint16_t *host = malloc((size_t)n * sizeof *host);
    void *device = device_alloc((size_t)n * sizeof *host, 0);

    for (int64_t i = 0; i < n; i++)
        host[i] = (uint16_t)(0x3f00 | (i * 2654435761u >> 13 & 0xff) | (i * 40503u & 0x8000));
    device_put(device, host, (size_t)n * sizeof *host);
    free(host);
    return device;
}

static struct sh_operand operand(void *data, enum sh_dtype type, int ndim, int64_t a, int64_t b, int64_t c)
{
    return (struct sh_operand){.data = data, .dtype = type, .ndim = ndim, .dim = {a, b, c}};
}

static void set_call(struct setting *s, enum sh_op_kind kind)
{
    bool forward = kind == SH_OP_EXPERT_LINEAR, bwd_w = kind == SH_OP_EXPERT_LINEAR_BWD_W;
    struct sh_operand y = operand(s->wide[0], SH_BF16, 2, s->M, s->O, 0);
    struct sh_operand x = operand(s->wide[1], SH_BF16, 2, s->M, s->I, 0);

    s->call = (struct sh_op_call){.kind = kind, .attr = &s->attr, .work = s->work};
    s->call.in[0] = forward ? x : y;
    s->call.in[bwd_w ? 2 : 1] = operand(s->first, SH_I32, 1, s->E + 1, 0, 0);
    s->call.in[bwd_w ? 1 : 2] = bwd_w ? x : operand(s->w, SH_BF16, 3, s->E, s->O, s->I);
    s->call.out[0] = bwd_w ? operand(s->dw, SH_F32, 3, s->E, s->O, s->I) : forward ? y : x;
    s->call.work_bytes = sh_cuda_expert_work_bytes(&s->call);
}

/* An expert in eight has half of all rows; or all have as many. */
static void divide(struct setting *s, bool equally)
{
    int32_t *first = calloc((size_t)s->E + 1, sizeof *first);
    int64_t many = s->E / 8 ? s->E / 8 : 1, few = s->E - many, at = 0;

    for (int64_t e = 0; e < s->E; e++) {
        at += equally ? s->M / s->E : e % 8 == 7 || few == 0 ? s->M / 2 / many : s->M / 2 / few;
        first[e + 1] = (int32_t)(at < s->M ? at : s->M);
    }
    device_put(s->first, first, ((size_t)s->E + 1) * sizeof *first);
    free(first);
}

/* A dense product with as many operations. */
static sh_rc run_dense(const struct setting *s)
{
    bool forward = s->call.kind == SH_OP_EXPERT_LINEAR, bwd_w = s->call.kind == SH_OP_EXPERT_LINEAR_BWD_W;
    struct sh_matmul p = {.m = bwd_w ? s->O : s->M,
                          .n = forward ? s->O : s->I,
                          .k = bwd_w     ? s->M
                               : forward ? s->I
                                         : s->O,
                          .in_dtype = SH_BF16,
                          .out_dtype = bwd_w ? SH_F32 : SH_BF16,
                          .a = s->call.in[0].data,
                          .lda = forward ? s->I : s->O,
                          .trans_a = bwd_w,
                          .b = bwd_w ? s->wide[1] : s->w,
                          .ldb = s->I,
                          .trans_b = forward,
                          .c = s->call.out[0].data,
                          .ldc = forward ? s->O : s->I};

    return sh_cublaslt_run(&p, s->work, SH_CUBLASLT_WORK_BYTES, NULL);
}

static int answer_of(const struct setting *s)
{
    (void)s;
    return sh_cuda_grouped_choices.count() - 1;
}

/* Microseconds of a run; -1: it is refused. which: an answer, or -1 for the dense product. */
static double time_of(const struct setting *s, int which)
{
    int64_t began = 0;
    char byte;

    for (int run = -WARM_UP; run < RUNS; run++) {
        sh_rc rc;

        if (run == 0) {
            device_get(&byte, s->first, 1);
            began = sh_now_ns();
        }
        if (which >= 0)
            sh_cuda_grouped_choices.choose(answer_of(s), which);
        rc = which < 0 ? run_dense(s) : sh_cuda_expert_linear(&s->call);
        if (rc != SH_OK)
            return -1;
    }
    device_get(&byte, s->first, 1);
    return (double)(sh_now_ns() - began) / 1e3 / RUNS;
}

static sh_rc time_kind(struct setting *s, enum sh_op_kind kind)
{
    set_call(s, kind);
    SH_TRY(sh_cuda_product_prepare(&s->call));
    SH_TRY(sh_cuda_expert_ask(&s->call));
    for (int equally = 1; equally >= 0; equally--) {
        divide(s, equally);
        printf("{\"operation\": \"%s\", \"division\": \"%s\", \"flops\": %.0f, \"own_us\": %.1f, \"dense_us\": %.1f, "
               "\"grouped_us\": [",
               sh_op_info(kind)->name, equally ? "equal" : "half of them in an eighth of the experts",
               2.0 * (double)s->M * (double)s->O * (double)s->I, time_of(s, 0), time_of(s, -1));
        for (int i = 1; i < sh_cuda_grouped_choices.answers(answer_of(s)); i++)
            printf("%s%.1f", i > 1 ? ", " : "", time_of(s, i));
        printf("]}\n");
        fflush(stdout);
    }
    return SH_OK;
}

int time_experts(const char *sizes)
{
    struct setting s = {.attr = {.rows = {.choose = true}}};

    if (sscanf(sizes, "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64, &s.E, &s.O, &s.I, &s.M) != 4)
        return 2;
    s.wide[0] = random_numbers(s.M * s.O), s.wide[1] = random_numbers(s.M * s.I), s.w = random_numbers(s.E * s.O * s.I);
    s.dw = device_alloc((size_t)(s.E * s.O * s.I) * sizeof(float), 0);
    s.first = device_alloc((size_t)(s.E + 1) * sizeof(int32_t), 0);
    set_call(&s, SH_OP_EXPERT_LINEAR);
    s.work = device_alloc((size_t)s.call.work_bytes, 0);
    for (int kind = SH_OP_EXPERT_LINEAR; kind <= SH_OP_EXPERT_LINEAR_BWD_W; kind++)
        if (time_kind(&s, (enum sh_op_kind)kind) != SH_OK) {
            fprintf(stderr, "%s\n", sh_error_text());
            return 1;
        }
    return 0;
}
