/* EXPERT_LINEAR* with attr->rows.choose: Sherd's own kernel (expert.cu) or one of cuBLASLt's grouped products, whichever
 * a clock has found the fastest (struct sh_choices); until then Sherd's. cuBLASLt reads sizes and addresses on the GPU,
 * so the host waits for nothing. Its kernels use wgmma on Hopper and tcgen05 on Blackwell, which Sherd's does not. Not
 * tried on a GPU. doc/decisions/0063. */
#include "kernels/cuda/moe/grouped.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/cublaslt.h"
#include "kernels/cuda/gemm/cublaslt_load.h"
#include "kernels/cuda/gemm/operand.h"
#include "kernels/cuda/gemm/work_product.h"
#include "src/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 16 }; /* bytes, of each matrix: widths are multiples of 8, and rows of experts start anywhere */

/* The size of a group is not known to the host, but its average is. Header of 13.2: 32 bits; its library takes 64. */
enum { AVERAGE_DEPTH = 13, AVERAGE_ROWS = 14, AVERAGE_COLUMNS = 15 }; /* CUBLASLT_MATMUL_PREF_GROUPED_* */

/* What an answer depends on. */
struct shape {
    int64_t M, O, I, E, groups;
    int32_t kind, add, aligned, none; /* no padding: shapes are compared as bytes */
};

/* Answer 0 is Sherd's own kernel, the others are cuBLASLt's. */
enum { ANSWERS = 8 };
struct choice {
    struct shape shape;
    struct sh_op_call call; /* the first of the shape, for measuring */
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulAlgo_t algo[ANSWERS];
    int n_algos, chosen;
};

/* Two stacks of a block, three products each, with and without addend, in waves and not; and those of adapters: some
 * 24. Calls beyond the table are Sherd's. */
enum { CHOICES = 128 };
static struct {
    struct choice choice[CHOICES];
    int n;
} cache;

static bool of_weights(const struct sh_op_call *call)
{
    return call->kind == SH_OP_EXPERT_LINEAR_BWD_W;
}

static bool is_aligned(const struct sh_op_call *call)
{
    const struct sh_operand *other = &call->in[of_weights(call) ? 1 : 2];

    return sh_cuda_expert_fits(call) &&
           ((uintptr_t)call->in[0].data | (uintptr_t)other->data | (uintptr_t)call->out[0].data) % ALIGNMENT == 0;
}

/* Zeroed first: compared as bytes. */
static struct shape shape_of(const struct sh_op_call *call)
{
    const struct sh_operand *w = of_weights(call) ? &call->out[0] : &call->in[2];
    struct sh_cuda_expert_work at = sh_cuda_expert_work(call);
    struct shape s;

    memset(&s, 0, sizeof s);
    s.M = call->in[0].dim[0], s.E = w->dim[0], s.O = w->dim[1], s.I = w->dim[2];
    s.groups = at.calls * at.groups;
    s.kind = (int32_t)call->kind, s.add = sh_op_adds(call, 0), s.aligned = is_aligned(call);
    return s;
}

static struct choice *find(const struct shape *s)
{
    for (int i = 0; i < cache.n; i++)
        if (memcmp(&cache.choice[i].shape, s, sizeof *s) == 0)
            return &cache.choice[i];
    return NULL;
}

static void write_name(const struct shape *s, char *text, size_t room)
{
    snprintf(text, room,
             "%s [%" PRId64 ",%" PRId64 ",%" PRId64 "] of %" PRId64 " rows in %" PRId64 " groups add %d aligned %d",
             sh_op_info((enum sh_op_kind)s->kind)->name, s->E, s->O, s->I, s->M, s->groups, s->add, s->aligned);
}

static sh_rc check(const struct sh_cublaslt_functions *lt, cublasStatus_t status, const struct shape *s,
                   const char *what)
{
    char text[SH_CHOICE_TEXT];

    if (status == CUBLAS_STATUS_SUCCESS)
        return SH_OK;
    write_name(s, text, sizeof text);
    return sh_fail(SH_E_BUG, "cuBLASLt refuses to %s %s: %s", what, text, lt->GetStatusString(status));
}

/* Row-major matrices are the transposes of cuBLASLt's, and D = op(A) op(B) is that of y = x w', of dx = dy w, or of
 * dw = dy' x. */
static struct sh_grouped describe(const struct sh_op_call *call, const struct shape *s, char *work)
{
    const struct sh_operand *x = &call->in[of_weights(call) ? 1 : 2], *rows = &call->in[0], *to = &call->out[0];
    struct sh_cuda_expert_work at = sh_cuda_expert_work(call);
    bool bwd_w = of_weights(call), forward = call->kind == SH_OP_EXPERT_LINEAR;
    struct sh_grouped g = {.first = call->in[bwd_w ? 2 : 1].data,
                           .calls = at.calls,
                           .groups = at.groups,
                           .pitch = at.pitch,
                           .E = s->E,
                           .data = (void **)(void *)work,
                           .rows = (int32_t *)(void *)(work + at.rows),
                           .numbers = (float *)(void *)(work + at.numbers)};

    g.side[0] = (struct sh_grouped_side){x->data, sh_dtype_bytes(x->dtype), s->I, bwd_w ? 0 : s->O};
    g.side[1] = (struct sh_grouped_side){rows->data, sh_dtype_bytes(rows->dtype), forward ? s->I : s->O, 0};
    g.side[2] = (struct sh_grouped_side){to->data, sh_dtype_bytes(to->dtype), forward ? s->O : s->I, bwd_w ? s->O : 0};
    return g;
}

/* Scratch starts at a multiple of 256, as cuBLASLt requires. */
static char *work_of(const struct sh_op_call *call)
{
    return (char *)call->work + (-(uintptr_t)call->work & 255);
}

/* Layouts of A, B and D of one call; what has been made is destroyed by close_layouts(). */
static cublasStatus_t open_layouts(const struct sh_cublaslt_functions *lt, const struct sh_op_call *call,
                                   const struct sh_grouped *g, int64_t which, cublasLtMatrixLayout_t layout[3])
{
    const struct sh_operand *of[] = {&call->in[of_weights(call) ? 1 : 2], &call->in[0], &call->out[0]};
    int64_t slots = g->calls * g->pitch;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    for (int s = 0; s < 3 && status == CUBLAS_STATUS_SUCCESS; s++) {
        const int32_t *rows = g->rows + s * slots + which * g->pitch;
        status = lt->GroupedMatrixLayoutCreate(&layout[s], of[s]->dtype == SH_BF16 ? CUDA_R_16BF : CUDA_R_32F,
                                               (int)g->groups, rows, rows + 3 * slots, rows);
    }
    return status;
}

static void close_layouts(const struct sh_cublaslt_functions *lt, const cublasLtMatrixLayout_t layout[3])
{
    for (int s = 0; s < 3; s++)
        if (layout[s])
            lt->MatrixLayoutDestroy(layout[s]);
}

/* The factors of the products are in GPU memory, one for all groups. */
static cublasStatus_t open_desc(const struct sh_cublaslt_functions *lt, const struct shape *s,
                                cublasLtMatmulDesc_t *desc)
{
    cublasOperation_t a = s->kind == SH_OP_EXPERT_LINEAR ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = s->kind == SH_OP_EXPERT_LINEAR_BWD_W ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtPointerMode_t mode = CUBLASLT_POINTER_MODE_DEVICE;
    cublasStatus_t status = lt->MatmulDescCreate(desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->MatmulDescSetAttribute(*desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->MatmulDescSetAttribute(*desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->MatmulDescSetAttribute(*desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode);
    return status;
}

/* As for other products (cublaslt.c): no sums in place, whose order is not fixed. */
static cublasStatus_t set_preference(const struct sh_cublaslt_functions *lt, cublasLtMatmulPreference_t preference,
                                     const struct shape *s)
{
    bool bwd_w = s->kind == SH_OP_EXPERT_LINEAR_BWD_W, forward = s->kind == SH_OP_EXPERT_LINEAR;
    int64_t rows = s->M / s->groups + 1, depth = bwd_w ? rows : forward ? s->I : s->O;
    int64_t d_rows = forward ? s->O : s->I, d_columns = bwd_w ? s->O : rows;
    uint64_t space = SH_CUBLASLT_SPACE_BYTES;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = ALIGNMENT;
    const struct {
        int attribute;
        const void *value;
        size_t bytes;
    } row[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space, sizeof space},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof alignment},
        {AVERAGE_DEPTH, &depth, sizeof depth},
        {AVERAGE_ROWS, &d_rows, sizeof d_rows},
        {AVERAGE_COLUMNS, &d_columns, sizeof d_columns},
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    for (size_t i = 0; i < sizeof row / sizeof row[0] && status == CUBLAS_STATUS_SUCCESS; i++)
        status = lt->MatmulPreferenceSetAttribute(preference, (cublasLtMatmulPreferenceAttributes_t)row[i].attribute,
                                                  row[i].value, row[i].bytes);
    return status;
}

/* The library's answers, minus those that it marks as unusable. */
static cublasStatus_t ask_library(const struct sh_cublaslt_functions *lt, cublasLtHandle_t handle, struct choice *x,
                                  const cublasLtMatrixLayout_t layout[3])
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t answer[ANSWERS];
    int found = 0;
    cublasStatus_t status = lt->MatmulPreferenceCreate(&preference);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    status = set_preference(lt, preference, &x->shape);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->MatmulAlgoGetHeuristic(handle, x->desc, layout[0], layout[1], layout[2], layout[2], preference,
                                            ANSWERS, answer, &found);
    lt->MatmulPreferenceDestroy(preference);
    for (int i = 0; i < found && status == CUBLAS_STATUS_SUCCESS; i++)
        if (answer[i].state == CUBLAS_STATUS_SUCCESS)
            x->algo[x->n_algos++] = answer[i].algo;
    return status;
}

/* Versions whose grouped products are right. 13.2 has wrong gradients of weights where a group is empty, 13.4.0 and
 * later hang on Hopper if products share a workspace (release notes of CUDA 13.3), and 13.7.0 to 13.8.0 corrupt data
 * (Transformer Engine, cublaslt_grouped_gemm.cu and pull request 2765). */
static bool has_grouped(const struct sh_cublaslt_functions *lt)
{
    size_t version = lt->GetVersion();

    return lt->GroupedMatrixLayoutCreate && version >= 130601 && (version < 130700 || version >= 130801);
}

static cublasStatus_t fill_in(const struct sh_cublaslt_functions *lt, cublasLtHandle_t handle, struct choice *x)
{
    struct sh_grouped g = describe(&x->call, &x->shape, work_of(&x->call));
    cublasLtMatrixLayout_t layout[3] = {NULL, NULL, NULL};
    cublasStatus_t status = open_desc(lt, &x->shape, &x->desc);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = open_layouts(lt, &x->call, &g, 0, layout);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = ask_library(lt, handle, x, layout);
    close_layouts(lt, layout);
    return status;
}

/* Where the library has nothing to offer, Sherd's kernel is the only answer, and one line says why. */
static void tell(const struct choice *x, const char *why)
{
    char text[SH_CHOICE_TEXT];

    write_name(&x->shape, text, sizeof text);
    sh_log_info("%s: %s; a kernel of Sherd computes it", text, why);
}

/* The call that does the same with weights [E,O,I] if they are stored [E,I,O]: what is brought in and what comes out
 * change places. */
static struct sh_op_call as_out_in(const struct sh_op_call *call)
{
    struct sh_op_call same = *call;

    if (!call->attr->rows.w_in_out)
        return same;
    if (of_weights(call))
        same.in[0] = call->in[1], same.in[1] = call->in[0];
    else
        same.kind = call->kind == SH_OP_EXPERT_LINEAR ? SH_OP_EXPERT_LINEAR_BWD_X : SH_OP_EXPERT_LINEAR;
    return same;
}

sh_rc sh_cuda_expert_ask(const struct sh_op_call *as_given)
{
    const struct sh_op_call same = as_out_in(as_given), *call = &same;
    cublasLtHandle_t handle;
    const struct sh_cublaslt_functions *lt = sh_cublaslt_started(&handle);
    struct shape s = shape_of(call);
    struct choice *x = find(&s);

    SH_REQUIRE(handle && call->work_bytes >= sh_cuda_expert_work(call).bytes);
    if (x || cache.n == CHOICES)
        return SH_OK;
    x = &cache.choice[cache.n];
    *x = (struct choice){.shape = s, .call = *call};
    if (!has_grouped(lt) || !s.aligned) {
        tell(x, s.aligned ? "this cuBLASLt has no grouped products, or wrong ones"
                          : "not bf16, or no multiples of 16 bytes");
    } else {
        cublasStatus_t status = fill_in(lt, handle, x);
        if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED)
            return check(lt, status, &s, "plan");
        if (x->n_algos == 0)
            tell(x, "cuBLASLt has no kernel for it");
    }
    cache.n++;
    return SH_OK;
}

/* Of an expert's groups the first one overwrites what is there, unless the call adds; all others add. */
static sh_rc run_library(const struct choice *x, const cublasLtMatmulAlgo_t *algo, const struct sh_op_call *call)
{
    cublasLtHandle_t handle;
    const struct sh_cublaslt_functions *lt = sh_cublaslt_started(&handle);
    struct sh_cuda_expert_work at = sh_cuda_expert_work(call);
    char *work = work_of(call);
    struct sh_grouped g = describe(call, &x->shape, work);
    int64_t slots = g.calls * g.pitch;

    SH_REQUIRE(call->work_bytes >= at.bytes);
    SH_TRY(sh_cuda_grouped_arrays(&g, call->queue));
    for (int64_t c = 0; c < g.calls; c++) {
        cublasLtMatrixLayout_t layout[3] = {NULL, NULL, NULL};
        void **data = g.data + c * g.pitch, **d = data + 2 * slots;
        cublasStatus_t status = open_layouts(lt, call, &g, c, layout);

        if (status == CUBLAS_STATUS_SUCCESS)
            status = lt->Matmul(handle, x->desc, g.numbers + 1, data, layout[0], data + slots, layout[1],
                                g.numbers + (c > 0 || x->shape.add), d, layout[2], d, layout[2], algo,
                                work + at.product, SH_CUBLASLT_SPACE_BYTES, call->queue);
        close_layouts(lt, layout);
        SH_TRY(check(lt, status, &x->shape, "run"));
    }
    return SH_OK;
}

static sh_rc run(const struct choice *x, int which, const struct sh_op_call *call)
{
    return which ? run_library(x, &x->algo[which - 1], call) : sh_cuda_expert_own(call);
}

sh_rc sh_cuda_expert_linear(const struct sh_op_call *as_given)
{
    const struct sh_op_call same = as_out_in(as_given), *call = &same;
    const struct choice *x = NULL;

    if (call->attr->rows.choose) {
        struct shape s = shape_of(call);
        x = find(&s);
    }
    return x ? run(x, x->chosen, call) : sh_cuda_expert_own(call);
}

static int count(void)
{
    return cache.n;
}

static void name(int i, char text[SH_CHOICE_TEXT])
{
    write_name(&cache.choice[i].shape, text, SH_CHOICE_TEXT);
}

static int answers(int i)
{
    return 1 + cache.choice[i].n_algos;
}

/* Experts get equal parts of the rows: before the first step there are no offsets. */
static sh_rc attempt(int i, int which, void *queue)
{
    const struct choice *x = &cache.choice[i];
    struct sh_op_call call = x->call;

    call.queue = queue;
    SH_TRY(sh_cuda_grouped_balance(call.in[of_weights(&call) ? 2 : 1].data, x->shape.groups, x->shape.M, queue));
    return run(x, which, &call);
}

static void choose(int i, int which)
{
    cache.choice[i].chosen = which;
}

const struct sh_choices sh_cuda_grouped_choices = {
    .count = count, .name = name, .answers = answers, .attempt = attempt, .choose = choose};
