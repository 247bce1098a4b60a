/* Rates of the elementwise kernels next to that of memcpy, which is the best they can reach. Not a test.
 *     OMP_NUM_THREADS=2 bench_elem [repeats [tokens]]
 * A figure is bytes that must move (sh_op_cost) divided by the best wall time of the repeats. With few tokens the
 * tensors stay in a shared cache, as they may in training; memcpy is measured at both sizes. */
#include "src/base/number/code8.h"
#include "src/base/number/exact.h"
#include "kernels/op.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 256, C = 768, F = 3072, V = 50257, DIM = 64, LONG = 1 << 25, SHORT = 1 << 14 };

static int repeats = 7;
static int64_t tokens = 1024;

/* Operands, inputs > outputs: a type (a compute type, f f32, b bf16, d f64, i i32, s i16, u u8) and a letter for each
 * dimension. */
static const struct {
    enum sh_op_kind kind;
    const char *operands;
} cases[] = {
    {SH_OP_NORM, "aNC aC aC > aNC fN fN"},
    {SH_OP_NORM_BWD, "aNC aNC aC fN fN aNC > aNC fC fC"},
    {SH_OP_ADD_NORM, "aNC aNC aC aC > aNC aNC fN fN"},
    {SH_OP_NORM_BWD_BIAS, "aNC aNC aC fN fN aNC > aNC fC fC fC"},
    {SH_OP_GELU_BWD_BIAS, "aNF aNF > aNF fF"},
    {SH_OP_ROPE, "aBTQ fTD > aBTQ"},
    {SH_OP_GELU, "aNF > aNF"},
    {SH_OP_GELU_BWD, "aNF aNF > aNF"},
    {SH_OP_SWIGLU, "aNG > aNF"},
    {SH_OP_SWIGLU_BWD, "aNF aNG > aNG"},
    {SH_OP_GEGLU, "aNG > aNF"},
    {SH_OP_GEGLU_BWD, "aNF aNG > aNG"},
    {SH_OP_BIAS_BWD, "aNF > fF"},
    {SH_OP_ADD, "aNC aNC > aNC"},
    {SH_OP_EMBED, "iBT aVC aTC > aBTC"},
    {SH_OP_EMBED_BWD, "aBTC iBT > fVC fTC"},
    {SH_OP_CAST, "fL > bL"},
    {SH_OP_ACCUMULATE, "fL > fL"},
    {SH_OP_SUMSQ, "fL > dE"},
    {SH_OP_ADAMW, "fL > fL fL fL"},
    {SH_OP_ADAMW, "fL > bL fL fL sL"},
    {SH_OP_ADAMW_CODED, "fL > fL uKk uKk"},
    {SH_OP_ADAMW_CODED, "fL > bL uKk uKk sL"},
    /* The same in a core's cache: what the arithmetic takes. */
    {SH_OP_ADAMW, "fS > fS fS fS"},
    {SH_OP_ADAMW_CODED, "fS > fS uJk uJk"},
};

static int64_t dim_of(char letter)
{
    switch (letter) {
    case 'B': return tokens / T;
    case 'T': return T;
    case 'N': return tokens;
    case 'C': return C;
    case 'Q': return 3 * C;
    case 'F': return F;
    case 'G': return 2 * F;
    case 'V': return V;
    case 'D': return DIM;
    case 'L': return LONG;
    case 'S': return SHORT;
    case 'K': return LONG / SH_CODE8_ELEMS;
    case 'J': return SHORT / SH_CODE8_ELEMS;
    case 'k': return SH_CODE8_BLOCK_BYTES;
    case 'E': return SH_EXACT_ELEMS;
    default: return 1;
    }
}

static enum sh_dtype type_of(char letter, enum sh_dtype act)
{
    return letter == 'a'   ? act
           : letter == 'b' ? SH_BF16
           : letter == 'd' ? SH_F64
           : letter == 'i' ? SH_I32
           : letter == 's' ? SH_I16
           : letter == 'u' ? SH_U8
                           : SH_F32;
}

static void *filled(int64_t bytes)
{
    void *p = aligned_alloc(64, (size_t)((bytes + 127) / 64 * 64));
    if (!p)
        sh_stop(sh_fail(SH_E_MEMORY, "bench_elem: no memory for %lld bytes", (long long)bytes));
    memset(p, 0, (size_t)bytes);
    return p;
}

/* Make one operand of a description: ones, and tokens at scattered places of their table. */
static void make(struct sh_operand *t, const char *text, enum sh_dtype act)
{
    int64_t n = 1;
    t->dtype = type_of(*text++, act);
    for (; *text && *text != ' '; text++)
        n *= t->dim[t->ndim++] = dim_of(*text);
    t->data = filled(n * sh_dtype_bytes(t->dtype));
    for (int64_t i = 0; t->dtype == SH_I32 && i < n; i++)
        ((int32_t *)t->data)[i] = (int32_t)(i * 53 % V);
    for (int64_t i = 0; t->dtype == SH_F32 && i < n; i++)
        ((float *)t->data)[i] = 1.0f;
    for (int64_t i = 0; t->dtype == SH_BF16 && i < n; i++)
        ((sh_bf16 *)t->data)[i] = 0x3f80;
}

static void make_all(struct sh_op_call *call, const char *text, enum sh_dtype act)
{
    struct sh_operand *next = call->in;
    for (; text; text = strchr(text, ' ') ? strchr(text, ' ') + 1 : NULL) {
        if (*text == '>')
            next = call->out;
        else
            make(next++, text, act);
    }
}

static void drop(struct sh_op_call *call)
{
    for (int i = 0; i < SH_OP_MAX_IN; i++)
        free(call->in[i].data);
    for (int i = 0; i < SH_OP_MAX_OUT; i++)
        free(call->out[i].data);
    free(call->work);
}

static double best_seconds(const struct sh_op_call *call)
{
    double best = 1e30;
    for (int i = 0; i <= repeats; i++) {
        double start = omp_get_wtime();
        sh_rc rc = sh_kernels_cpu.run[call->kind](call);
        if (rc != SH_OK)
            sh_stop(rc);
        double s = omp_get_wtime() - start;
        best = i > 0 && s < best ? s : best;
    }
    return best;
}

static void report(const char *what, const char *type, double bytes, double seconds)
{
    printf("%-16s %-5s %9.4f ms %7.1f GB/s %8.2f MB\n", what, type, seconds * 1e3, bytes / seconds * 1e-9,
           bytes * 1e-6);
    fflush(stdout);
}

static struct sh_op_attr attr_of(enum sh_op_kind kind)
{
    if (kind == SH_OP_ROPE)
        return (struct sh_op_attr){.attn = {.heads = C / DIM, .kv_heads = C / DIM, .head_dim = DIM}};
    if (kind == SH_OP_ADAMW || kind == SH_OP_ADAMW_CODED)
        return (struct sh_op_attr){.runs.count = 1};
    return (struct sh_op_attr){.norm.eps = 1e-5f};
}

static void measure(enum sh_op_kind kind, const char *operands, enum sh_dtype act)
{
    struct sh_decay_run run = {.decay = true};
    struct sh_op_attr attr = attr_of(kind);
    struct sh_op_scalars scalars = {.lr = 1e-4f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .adam_eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .beta1_pow = 0.9,
                                    .beta2_pow = 0.95,
                                    .grad_scale = 1};
    struct sh_op_call call = {.kind = kind, .attr = &attr, .scalars = &scalars, .runs = &run};

    make_all(&call, operands, act);
    run.end = call.in[0].dim[0];
    call.work_bytes = sh_kernels_cpu.work_bytes(&call, omp_get_max_threads());
    call.work = filled(call.work_bytes);
    report(sh_op_info(kind)->name, strchr(operands, 'a') ? sh_dtype_name(act) : "", sh_op_cost(&call).bytes,
           best_seconds(&call));
    drop(&call);
}

/* The system's memcpy, split over the threads, without the conversions or pieces of COPY. */
static void measure_memcpy(int64_t bytes)
{
    int threads = omp_get_max_threads();
    char *a = filled(bytes), *b = filled(bytes);
    double best = 1e30;
    for (int i = 0; i <= repeats; i++) {
        double start = omp_get_wtime();
#pragma omp parallel for schedule(static)
        for (int t = 0; t < threads; t++) {
            int64_t begin = bytes * t / threads, end = bytes * (t + 1) / threads;
            memcpy(b + begin, a + begin, (size_t)(end - begin));
        }
        double s = omp_get_wtime() - start;
        best = i > 0 && s < best ? s : best;
    }
    report("memcpy", "", 2.0 * (double)bytes, best);
    free(a);
    free(b);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        repeats = atoi(argv[1]);
    if (argc > 2)
        tokens = atoll(argv[2]) / T * T;
    if (repeats < 1 || tokens < T) {
        fprintf(stderr, "usage: %s [repeats [tokens]]: at least 1 and %d\n", argv[0], T);
        return SH_E_USAGE;
    }
    printf("%d threads, %lld tokens\n", omp_get_max_threads(), (long long)tokens);
    measure_memcpy(4 * tokens * C);
    measure_memcpy(4 * tokens * F);
    measure_memcpy(4 * (int64_t)LONG);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        measure(cases[i].kind, cases[i].operands, SH_F32);
        if (strchr(cases[i].operands, 'a'))
            measure(cases[i].kind, cases[i].operands, SH_BF16);
    }
    return 0;
}
