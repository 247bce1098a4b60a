#include "kernels/cuda/gemm/cublaslt.h"

#include "kernels/cuda/gemm/cublaslt_load.h"
#include "kernels/cuda/cuda.h"
#include "src/base/log.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static struct sh_cublaslt_functions lt;

/* What cuBLASLt's choice depends on: everything but the addresses, of which only the alignment matters. */
struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t in_dtype, out_dtype;
    int32_t trans_a, trans_b, has_bias, has_addend;
    uint32_t align_a, align_b, align_c, align_addend, align_bias;
};

/* How a product is computed: by the library; by the library, on rows of the bias that a kernel writes first; or
 * without it. */
enum way { BY_LIBRARY, BIAS_FIRST, BY_OWN };

/* Answers of the library for one product; those after the first few are never the fastest. */
enum { ANSWERS = 8 };
struct choice {
    struct shape shape;
    enum way way;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo[ANSWERS]; /* best first, by the library's tables */
    int n_algos, chosen;
    struct sh_matmul product; /* the first of the shape, for measuring */
    void *work;
};

/* A model has five kinds of weights, three products each, with and without addend, and the head's chunks: about 40.
 * If there are more than CHOICES, the oldest is dropped. */
enum { CHOICES = 128 };
static struct {
    cublasLtHandle_t handle;
    struct choice choice[CHOICES];
    int n, oldest;
    bool asking;
} cache;

/* Messages name the shapes, since a library's refusal is almost always caused by one of them. */
static const char *text_of(const struct shape *s)
{
    static char text[160];
    snprintf(text, sizeof text,
             "[%" PRId64 ",%" PRId64 "] = [%" PRId64 ",%" PRId64 "]%s [%" PRId64 ",%" PRId64 "]%s%s%s of %s", s->m,
             s->n, s->m, s->k, s->trans_a ? "'" : "", s->k, s->n, s->trans_b ? "'" : "", s->has_bias ? " + bias" : "",
             s->has_addend ? " + addend" : "", sh_dtype_name((enum sh_dtype)s->in_dtype));
    return text;
}

static sh_rc check(cublasStatus_t status, const struct shape *s, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return SH_OK;
    return sh_fail(SH_E_BUG, "cuBLASLt refuses to %s %s: %s", what, text_of(s), lt.GetStatusString(status));
}

/* Start the library at the first product; later calls find it started. */
sh_rc sh_cuda_product_prepare(const struct sh_op_call *call)
{
    (void)call;
    if (cache.handle)
        return SH_OK;
    SH_TRY(sh_cublaslt_load(&lt));
    cublasStatus_t status = lt.Create(&cache.handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return sh_fail(SH_E_USAGE, "cuBLASLt does not start: %s", lt.GetStatusString(status));
    return SH_OK;
}

const struct sh_cublaslt_functions *sh_cublaslt_started(cublasLtHandle_t *handle)
{
    *handle = cache.handle;
    return &lt;
}

/* The largest power of two up to 256 that divides the address. */
static uint32_t alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p | 256;
    return (uint32_t)(low & -low);
}

/* Zeroed first: padding bytes are compared too. */
static struct shape shape_of(const struct sh_matmul *p)
{
    struct shape s;
    memset(&s, 0, sizeof s); /* compared as bytes */
    s.m = p->m, s.n = p->n, s.k = p->k;
    s.lda = p->lda, s.ldb = p->ldb, s.ldc = p->ldc;
    s.in_dtype = (int32_t)p->in_dtype, s.out_dtype = (int32_t)p->out_dtype;
    s.trans_a = p->trans_a, s.trans_b = p->trans_b;
    s.has_bias = p->bias != NULL, s.has_addend = p->addend != NULL;
    s.align_a = alignment(p->a), s.align_b = alignment(p->b);
    s.align_c = alignment(p->c), s.align_addend = alignment(p->addend ? p->addend : p->c);
    s.align_bias = alignment(p->bias);
    return s;
}

static cudaDataType_t type_of(int32_t dtype)
{
    return dtype == SH_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* Also correct for a row that is only partly filled in. */
static void forget(struct choice *x)
{
    if (x->desc)
        lt.MatmulDescDestroy(x->desc);
    for (int i = 0; i < 3; i++) {
        cublasLtMatrixLayout_t layout = i == 0 ? x->a : i == 1 ? x->b : x->c;
        if (layout)
            lt.MatrixLayoutDestroy(layout);
    }
    memset(x, 0, sizeof *x);
}

/* cuBLASLt knows column-major matrices only: a row-major [m,n] is its [n,m], and c' = b' a'. Its A is our b, its B
 * our a. */
static cublasStatus_t describe(struct choice *x, const struct sh_matmul *p)
{
    const struct shape *s = &x->shape;
    cublasOperation_t op_a = s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = s->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cudaDataType_t in = type_of(s->in_dtype), out = type_of(s->out_dtype);
    uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    cublasStatus_t status = lt.MatmulDescCreate(&x->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

#define SET(attribute, value)            \
    if (status == CUBLAS_STATUS_SUCCESS) \
    status = lt.MatmulDescSetAttribute(x->desc, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value))
    SET(TRANSA, op_a);
    SET(TRANSB, op_b);
    SET(EPILOGUE, epilogue);
    if (s->has_bias) {
        SET(BIAS_DATA_TYPE, out);
        SET(BIAS_POINTER, p->bias); /* the choice depends on its alignment */
    }
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt.MatrixLayoutCreate(&x->a, in, s->trans_b ? k : n, s->trans_b ? n : k, s->ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt.MatrixLayoutCreate(&x->b, in, s->trans_a ? m : k, s->trans_a ? k : m, s->lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt.MatrixLayoutCreate(&x->c, out, n, m, s->ldc);
    return status;
}

/* What a kernel may assume. Alignments are swapped like A and B (see describe()). In-place reductions are forbidden,
 * or the order of sums would not be fixed. */
static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference, const struct shape *s)
{
    uint64_t space = SH_CUBLASLT_SPACE_BYTES;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    /* A bias is read when the output is written, and has no preference attribute; its alignment limits that of the
     * output. */
    uint32_t align_d = s->has_bias && s->align_bias < s->align_c ? s->align_bias : s->align_c;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } row[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space, sizeof space},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &s->align_b, sizeof s->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &s->align_a, sizeof s->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &s->align_addend, sizeof s->align_addend},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d},
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof row / sizeof row[0] && status == CUBLAS_STATUS_SUCCESS; i++)
        status = lt.MatmulPreferenceSetAttribute(preference, row[i].attribute, row[i].value, row[i].bytes);
    return status;
}

/* The library's answers, minus those that it marks as unusable. If none is left: not supported. */
static cublasStatus_t choose(struct choice *x)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t answer[ANSWERS];
    int found = 0;
    cublasStatus_t status = lt.MatmulPreferenceCreate(&preference);

    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    status = set_preference(preference, &x->shape);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt.MatmulAlgoGetHeuristic(cache.handle, x->desc, x->a, x->b, x->c, x->c, preference, ANSWERS, answer,
                                           &found);
    lt.MatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (int i = 0; i < found; i++)
        if (answer[i].state == CUBLAS_STATUS_SUCCESS)
            x->algo[x->n_algos++] = answer[i].algo;
    return x->n_algos > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Whether both are the same apart from their addresses. */
static bool is_like(const struct choice *x, const struct choice *y)
{
    return x->way == y->way && memcmp(&x->shape, &y->shape, offsetof(struct shape, align_a)) == 0;
}

/* One line for each shape that the library does not compute alone. */
static void tell(const struct choice *x, const char *why)
{
    static const char *const does[] = {
        [BIAS_FIRST] = "a kernel of Sherd adds the bias",
        [BY_OWN] = "a kernel of Sherd computes it, which is much slower",
    };
    for (int i = 0; i < cache.n; i++)
        if (&cache.choice[i] != x && is_like(&cache.choice[i], x))
            return;
    sh_log_info("product %s: %s; %s", text_of(&x->shape), why, does[x->way]);
}

/* Kernels may read a bias by vectors of this size, whatever they know of the output's alignment. */
enum { BIAS_ALIGNMENT = 16 };

/* The library's answers; if it has none, another way. Other failures are returned. */
static cublasStatus_t choose_way(struct choice *x, const struct sh_matmul *p)
{
    if (p->bias && x->shape.align_bias < BIAS_ALIGNMENT) {
        x->way = BIAS_FIRST;
        tell(x, "the bias does not start at a multiple of 16 bytes, as cuBLASLt wants");
        return CUBLAS_STATUS_SUCCESS;
    }
    cublasStatus_t status = describe(x, p);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = choose(x);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED)
        return status;
    x->way = p->bias ? BIAS_FIRST : BY_OWN;
    tell(x, "cuBLASLt has no kernel for it");
    return CUBLAS_STATUS_SUCCESS;
}

/* Make a row of the table, or return an error and leave no row. */
static sh_rc make_choice(const struct sh_matmul *p, const struct shape *s, struct choice **out)
{
    bool full = cache.n == CHOICES;
    struct choice *x = &cache.choice[full ? cache.oldest : cache.n];
    forget(x);
    x->shape = *s;
    cublasStatus_t status = choose_way(x, p);
    if (status != CUBLAS_STATUS_SUCCESS) {
        forget(x);
        return check(status, s, "plan");
    }
    if (full)
        cache.oldest = (cache.oldest + 1) % CHOICES;
    else
        cache.n++;
    *out = x;
    return SH_OK;
}

/* A shape is looked up by its bytes. */
static sh_rc find_choice(const struct sh_matmul *p, struct choice **out)
{
    struct shape s = shape_of(p);
    for (int i = 0; i < cache.n; i++) {
        if (memcmp(&cache.choice[i].shape, &s, sizeof s) == 0) {
            *out = &cache.choice[i];
            return SH_OK;
        }
    }
    return make_choice(p, &s, out);
}

/* Workspaces come with 256 spare bytes for this. */
static void *align256(void *p)
{
    return (char *)p + (-(uintptr_t)p & 255);
}

/* The bias pointer is part of the descriptor, so it is set before each run; the rest of the descriptor stays the
 * same. */
static sh_rc run_library(const struct choice *x, int which, const struct sh_matmul *p, void *work, void *queue)
{
    if (p->bias)
        SH_TRY(check(lt.MatmulDescSetAttribute(x->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias),
                     &x->shape, "add a bias to"));
    /* beta 1 adds the addend; the library reads C only then. */
    float one = 1, beta = p->addend ? 1.0f : 0.0f;
    const void *addend = p->addend ? p->addend : p->c;
    return check(lt.Matmul(cache.handle, x->desc, &one, p->b, x->a, p->a, x->b, &beta, addend, x->c, p->c, x->c,
                           &x->algo[which], align256(work), SH_CUBLASLT_SPACE_BYTES, queue),
                 &x->shape, "run");
}

/* The bias becomes an addend; added to one that is there, their sum is rounded first. While asking, nothing is
 * launched. */
static sh_rc bias_first(struct sh_matmul p, void *work, void *queue)
{
    if (!cache.asking)
        SH_TRY(sh_cuda_product_bias(&p, queue));
    p.addend = p.c;
    p.bias = NULL;
    return sh_cublaslt_run(&p, work, SH_CUBLASLT_WORK_BYTES, queue);
}

static sh_rc run(const struct choice *x, int which, const struct sh_matmul *p, void *work, void *queue)
{
    switch (x->way) {
    case BIAS_FIRST: return bias_first(*p, work, queue);
    case BY_OWN: return sh_cuda_product(p, queue);
    case BY_LIBRARY: break;
    }
    return run_library(x, which, p, work, queue);
}

/* While asking, only note the product: kernels run their products with real addresses but launch nothing. */
sh_rc sh_cublaslt_run(const struct sh_matmul *p, void *work, int64_t work_bytes, void *queue)
{
    SH_REQUIRE(work_bytes >= SH_CUBLASLT_WORK_BYTES);
    struct choice *x = NULL;
    SH_REQUIRE(cache.handle);
    SH_TRY(find_choice(p, &x));
    if (!cache.asking)
        return run(x, x->chosen, p, work, queue);
    x->product = *p;
    x->work = work;
    return x->way == BIAS_FIRST ? bias_first(*p, work, queue) : SH_OK;
}

/* Collect the products of a call by running its kernel with nothing launched. */
sh_rc sh_cublaslt_ask(const struct sh_op_call *call, sh_kernel kernel)
{
    cache.asking = true;
    sh_rc rc = kernel(call);
    cache.asking = false;
    return rc;
}

bool sh_cublaslt_is_asking(void)
{
    return cache.asking;
}

static int count(void)
{
    return cache.n;
}

/* Part of the key of measured answers: another version may have other kernels, or number them differently. */
static const char *library(void)
{
    static char text[64];
    snprintf(text, sizeof text, "cuBLASLt %zu", lt.GetVersion());
    return text;
}

/* Every field of the shape, so that two products never share a line in the file. */
static void name(int i, char text[SH_CHOICE_TEXT])
{
    const struct shape *s = &cache.choice[i].shape;
    snprintf(text, SH_CHOICE_TEXT,
             "%" PRId64 "x%" PRId64 "x%" PRId64 " ld %" PRId64 ",%" PRId64 ",%" PRId64
             " types %d,%d transposed %d,%d bias %d addend %d aligned %u,%u,%u,%u,%u",
             s->m, s->n, s->k, s->lda, s->ldb, s->ldc, s->in_dtype, s->out_dtype, s->trans_a, s->trans_b, s->has_bias,
             s->has_addend, s->align_a, s->align_b, s->align_c, s->align_addend, s->align_bias);
}

/* A way without the library is one answer. */
static int answers(int i)
{
    return cache.choice[i].way == BY_LIBRARY ? cache.choice[i].n_algos : 1;
}

/* Run a product with the operands of its first call. It writes garbage, so this must come before the first step. */
static sh_rc attempt(int i, int which, void *queue)
{
    const struct choice *x = &cache.choice[i];
    SH_REQUIRE(x->work);
    return run(x, which, &x->product, x->work, queue);
}

static void choose_answer(int i, int which)
{
    cache.choice[i].chosen = which;
}

const struct sh_choices sh_cublaslt_choices = {
    .count = count, .library = library, .name = name, .answers = answers, .attempt = attempt, .choose = choose_answer};
