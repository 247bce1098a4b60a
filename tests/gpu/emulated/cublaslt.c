/* Double of the part of cuBLASLt that kernels/cuda/gemm/cublaslt.c uses: plain products on host memory, computed at the
 * call or in their stream (emulated.h). It is stricter than the library where the library would be silently wrong: it
 * ends the program if an operand is less aligned than was promised, if a kernel was chosen for other shapes, or if it
 * has too little scratch. */
#include "kernels/cuda/gemm/cublaslt_load.h"
#include "tests/gpu/emulated/emulated.h"

#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENTS = 4 }; /* of A, B, C, D */
enum { KERNELS = 3 };    /* per shape, all with the same bits */

struct layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
    int groups; /* 0: one matrix */
    const int32_t *all_rows, *all_cols, *all_ld;
};

struct product {
    cublasOperation_t op[2];
    cublasLtEpilogue_t epilogue;
    const void *bias;
    cudaDataType_t bias_type;
    cublasLtPointerMode_t factors;
};

struct preference {
    uint64_t space;
    uint32_t reduction, alignment[ALIGNMENTS];
    int64_t average[3]; /* of grouped products: depth, rows and columns of D */
};

/* The contents of a cublasLtMatmulAlgo_t: the request that it answers. */
struct algo {
    int which;
    struct layout layout[ALIGNMENTS];
    struct product product;
    struct preference preference;
};

struct cublasLtContext {
    int unused;
};

_Static_assert(sizeof(void *) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm holds a pointer");

static void want(bool fine, const char *what)
{
    if (fine)
        return;
    fprintf(stderr, "emulated cuBLASLt: %s\n", what);
    abort();
}

/* Also works in programs without the double of the runtime. */
static long number(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static void *own(size_t bytes)
{
    void *p = calloc(1, bytes);
    want(p != NULL, "no memory");
    return p;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    static struct cublasLtContext context;
    *handle = &context;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "failed";
}

size_t cublasLtGetVersion(void)
{
    long version = number("SHERD_EMULATED_LT_VERSION");
    return version ? (size_t)version : CUBLAS_VERSION;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale)
{
    want(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F, "only sums and factors in f32 are imitated");
    struct product *p = own(sizeof *p);
    *p = (struct product){
        .op = {CUBLAS_OP_N, CUBLAS_OP_N}, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .bias_type = CUDA_R_32F};
    *desc = (void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

/* One attribute: where it is stored. */
struct place {
    int attribute;
    void *at;
    size_t bytes;
};

static cublasStatus_t set(const struct place *place, int attribute, const void *value, size_t bytes)
{
    for (; place->at; place++) {
        if (place->attribute != attribute)
            continue;
        want(bytes == place->bytes, "an attribute has another size");
        memcpy(place->at, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    want(false, "an attribute that is not imitated");
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    struct product *p = (void *)desc;
    const struct place place[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &p->op[0], sizeof p->op[0]},
        {CUBLASLT_MATMUL_DESC_TRANSB, &p->op[1], sizeof p->op[1]},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &p->bias_type, sizeof p->bias_type},
        {CUBLASLT_MATMUL_DESC_POINTER_MODE, &p->factors, sizeof p->factors},
        {0, NULL, 0},
    };
    return set(place, (int)attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    want(ld >= (int64_t)rows, "a leading dimension is smaller than its column");
    struct layout *p = own(sizeof *p);
    *p = (struct layout){.type = type, .rows = rows, .cols = cols, .ld = ld};
    *layout = (void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    struct preference *p = own(sizeof *p);
    p->reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (int i = 0; i < ALIGNMENTS; i++)
        p->alignment[i] = 256;
    *preference = (void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    struct preference *p = (void *)preference;
    const struct place place[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &p->space, sizeof p->space},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &p->reduction, sizeof p->reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p->alignment[0], sizeof p->alignment[0]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p->alignment[1], sizeof p->alignment[1]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p->alignment[2], sizeof p->alignment[2]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p->alignment[3], sizeof p->alignment[3]},
        {13, &p->average[0], sizeof p->average[0]}, /* of newer headers */
        {14, &p->average[1], sizeof p->average[1]},
        {15, &p->average[2], sizeof p->average[2]},
        {0, NULL, 0},
    };
    return set(place, (int)attribute, value, bytes);
}

/* SHERD_EMULATED_LT_REFUSE: how a question is refused; "": it is not. */
static const char *refusal(const struct product *p, const struct layout *a)
{
    static char how[12];
    static long asked;
    const char *text = getenv("SHERD_EMULATED_LT_REFUSE");
    char what[12];

    asked++;
    if (!text)
        return "";
    want(sscanf(text, "%11s %11s", what, how) == 2, "SHERD_EMULATED_LT_REFUSE is \"WHAT HOW\"");
    bool due = strcmp(what, "all") == 0 || (strcmp(what, "bias") == 0 && p->epilogue == CUBLASLT_EPILOGUE_BIAS) ||
               (strcmp(what, "grouped") == 0 && a->groups) || atol(what) == asked;
    return due ? how : "";
}

/* Grouped products came with version 13.2. The factors are in device memory then, and averages are known. */
static void check_grouped(const struct product *p, const cublasLtMatrixLayout_t layout[ALIGNMENTS],
                          const struct preference *preference)
{
    const struct layout *first = (const void *)layout[0];

    for (int i = 1; i < ALIGNMENTS; i++)
        want(((const struct layout *)(const void *)layout[i])->groups == first->groups,
             "matrices have different numbers of groups");
    if (!first->groups)
        return;
    want(cublasLtGetVersion() >= 130200, "this version has no grouped products");
    want(p->factors == CUBLASLT_POINTER_MODE_DEVICE, "factors of grouped products are in device memory");
    want(p->epilogue == CUBLASLT_EPILOGUE_DEFAULT, "this epilogue is not imitated for grouped products");
    for (int i = 0; i < 3; i++)
        want(preference->average[i] > 0, "an average size of the groups is not given");
}

/* The latest requests answered. They are kept for good, as the algorithm is nothing but its number. */
static struct algo *answers[KERNELS << 12];
static uint64_t n_answers;

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    const cublasLtMatrixLayout_t layout[ALIGNMENTS] = {a, b, c, d};
    const char *how = refusal((const void *)desc, (const void *)a);
    want(handle && most >= 1, "no handle, or no room for an answer");
    check_grouped((const void *)desc, layout, (const void *)preference);
    *found = 0;
    if (strcmp(how, "none") == 0)
        return CUBLAS_STATUS_SUCCESS;
    if (strcmp(how, "status") == 0 || strcmp(how, "error") == 0)
        return how[0] == 's' ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_INTERNAL_ERROR;
    for (; *found < most && *found < KERNELS; ++*found) {
        struct algo *answer = own(sizeof *answer);
        answer->which = *found;
        for (int i = 0; i < ALIGNMENTS; i++)
            memcpy(&answer->layout[i], layout[i], sizeof answer->layout[i]);
        memcpy(&answer->product, desc, sizeof answer->product);
        memcpy(&answer->preference, preference, sizeof answer->preference);
        want(!(answer->preference.reduction & CUBLASLT_REDUCTION_SCHEME_INPLACE),
             "a sum of no fixed order was allowed");
        want(n_answers < sizeof answers / sizeof answers[0], "asked for an algorithm too often: is it kept?");
        memset(&results[*found], 0, sizeof *results);
        if (how[0])
            results[*found].state = CUBLAS_STATUS_NOT_SUPPORTED;
        results[*found].algo.data[0] = n_answers;
        answers[n_answers++] = answer;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static int64_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static double get(const void *p, cudaDataType_t type, int64_t i)
{
    if (type == CUDA_R_32F)
        return ((const float *)p)[i];
    uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void put(void *p, cudaDataType_t type, int64_t i, float value)
{
    uint32_t u;
    if (type == CUDA_R_32F) {
        ((float *)p)[i] = value;
        return;
    }
    memcpy(&u, &value, sizeof u);
    bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    ((uint16_t *)p)[i] = (uint16_t)(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

enum { SLOW_US = 50000 };
#pragma weak sh_emulated_count   /* not in programs that have only kernels */
#pragma weak sh_emulated_written /* only where a simulator looks at device memory */

static const struct algo *answer_of(const cublasLtMatmulAlgo_t *algo)
{
    want(algo && algo->data[0] < n_answers, "an algorithm that nobody chose");
    return answers[algo->data[0]];
}

/* Of groups only the number is known when an algorithm is chosen. */
static bool is_like(const struct layout *a, const struct layout *b)
{
    return a->groups ? a->groups == b->groups && a->type == b->type : !memcmp(a, b, sizeof *a);
}

static void check_call(const struct algo *answer, const struct product *p,
                       const cublasLtMatrixLayout_t layout[ALIGNMENTS], const void *const operand[ALIGNMENTS],
                       const void *space, size_t space_bytes)
{
    for (int i = 0; i < ALIGNMENTS; i++) {
        want(is_like((const void *)layout[i], &answer->layout[i]), "the algorithm is for another shape");
        want((uintptr_t)operand[i] % 16 == 0 || !answer->layout[i].groups, "an array of addresses is not aligned");
        want(answer->layout[i].groups || (uintptr_t)operand[i] % answer->preference.alignment[i] == 0,
             "an operand is less aligned than promised");
    }
    want(p->epilogue != CUBLASLT_EPILOGUE_BIAS ||
             ((uintptr_t)p->bias % answer->preference.alignment[ALIGNMENTS - 1] == 0 && (uintptr_t)p->bias % 16 == 0),
         "a bias is less aligned than was promised of D, or than vectors of 16 bytes are");
    want(p->op[0] == answer->product.op[0] && p->op[1] == answer->product.op[1] &&
             p->epilogue == answer->product.epilogue,
         "the algorithm is for another product");
    want(space_bytes >= answer->preference.space && (uintptr_t)space % 256 == 0, "scratch is too small or not aligned");
}

enum { WIDE = 8 }; /* sums at a time, for the compiler to vectorize */

/* `lines` lines of k numbers as doubles, WIDE lines at a time: [line / WIDE][k][WIDE], zeros after the last line. */
static double *unpack(const struct layout *l, const void *at, bool in_columns, int64_t lines, int64_t k)
{
    double *all = own((size_t)((lines + WIDE - 1) / WIDE * WIDE * k + 1) * sizeof *all);
    for (int64_t i = 0; i < lines; i++)
        for (int64_t q = 0; q < k; q++)
            all[(i / WIDE * k + q) * WIDE + i % WIDE] = get(at, l->type, in_columns ? i * l->ld + q : q * l->ld + i);
    return all;
}

/* sum[i] = sum over q of a[q][i] b[q][0], in this order of q. */
static void dot(int64_t k, const double *a, const double *b, double sum[WIDE])
{
    double s[WIDE] = {0};
    for (int64_t q = 0; q < k; q++)
        for (int i = 0; i < WIDE; i++)
            s[i] += a[q * WIDE + i] * b[q * WIDE];
    memcpy(sum, s, sizeof s);
}

/* d [m,n] = alpha op(a) op(b) + beta c + bias [m], column-major, sums in double. */
static void multiply(const struct product *p, float alpha, float beta, const struct layout *la, const void *a,
                     const struct layout *lb, const void *b, const struct layout *lc, const void *c,
                     const struct layout *ld, void *d)
{
    bool ta = p->op[0] == CUBLAS_OP_T, tb = p->op[1] == CUBLAS_OP_T;
    int64_t m = (int64_t)ld->rows, n = (int64_t)ld->cols, k = (int64_t)(ta ? la->rows : la->cols);
    want((int64_t)(ta ? la->cols : la->rows) == m && (int64_t)(tb ? lb->rows : lb->cols) == n &&
             (int64_t)(tb ? lb->cols : lb->rows) == k,
         "the shapes do not fit each other");
    double *rows = unpack(la, a, ta, m, k), *columns = unpack(lb, b, !tb, n, k), sum[WIDE];
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < m; i++) {
            if (i % WIDE == 0)
                dot(k, rows + i * k, columns + j / WIDE * WIDE * k + j % WIDE, sum);
            double one = sum[i % WIDE] * alpha;
            if (beta != 0)
                one += beta * get(c, lc->type, j * lc->ld + i);
            if (p->epilogue == CUBLASLT_EPILOGUE_BIAS)
                one += get(p->bias, p->bias_type, i);
            put(d, ld->type, j * ld->ld + i, (float)one);
        }
        if (sh_emulated_written)
            sh_emulated_written((char *)d + j * ld->ld * bytes_of(ld->type), (size_t)(m * bytes_of(ld->type)));
    }
    free(rows);
    free(columns);
}

/* A product that is in progress. */
struct call {
    int which;
    uint32_t alignment[ALIGNMENTS];
    struct product product;
    const float *factors[2]; /* alpha and beta of grouped products, in device memory */
    float alpha, beta;
    struct layout layout[ALIGNMENTS];
    const void *a, *b, *c;
    void *d;
    char *space;
    size_t space_bytes;
};

/* Group g of a matrix: nothing of it is known before this moment. */
static struct layout group_of(const struct call *x, int i, int g, void **at)
{
    const struct layout *all = &x->layout[i];
    void *const *const data[ALIGNMENTS] = {(void *const *)x->a, (void *const *)x->b, (void *const *)x->c,
                                           (void *const *)x->d};
    struct layout one = {.type = all->type,
                         .rows = (uint64_t)all->all_rows[g],
                         .cols = (uint64_t)all->all_cols[g],
                         .ld = all->all_ld[g]};

    *at = data[i][g];
    want(all->all_rows[g] >= 0 && all->all_cols[g] >= 0 && one.ld >= all->all_rows[g], "a group has no such size");
    want((uintptr_t)*at % x->alignment[i] == 0 && one.ld * bytes_of(one.type) % 16 == 0,
         "a matrix of a group is less aligned than promised");
    return one;
}

/* The last group first: they run in no order, so none may write where another does. */
static void multiply_groups(const struct call *x)
{
    const char *least = NULL;

    for (int g = x->layout[0].groups; g-- > 0;) {
        void *at[ALIGNMENTS];
        struct layout of[ALIGNMENTS];
        for (int i = 0; i < ALIGNMENTS; i++)
            of[i] = group_of(x, i, g, &at[i]);
        want(at[2] == at[3] && of[2].rows == of[3].rows && of[2].cols == of[3].cols, "C is not D");
        const char *end = (char *)at[3] + of[3].ld * (int64_t)of[3].cols * bytes_of(of[3].type);
        want(!least || end <= least, "groups write to the same place");
        least = at[3];
        multiply(&x->product, *x->factors[0], *x->factors[1], &of[0], at[0], &of[1], at[1], &of[2], at[2], &of[3],
                 at[3]);
    }
}

static void run(void *arg)
{
    struct call *x = arg;
    long fastest = number("SHERD_EMULATED_LT_FASTEST");
    if (getenv("SHERD_EMULATED_LT_FASTEST") && x->which != fastest)
        usleep(SLOW_US);
    memset(x->space, 0xff, 4096); /* destroy what was there */
    memset(x->space + x->space_bytes - 4096, 0xff, 4096);
    if (x->layout[0].groups)
        multiply_groups(x);
    else
        multiply(&x->product, x->alpha, x->beta, &x->layout[0], x->a, &x->layout[1], x->b, &x->layout[2], x->c,
                 &x->layout[3], x->d);
    free(x);
}

static long grouped_run;

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *space, size_t space_bytes, cudaStream_t stream)
{
    (void)handle;
    const cublasLtMatrixLayout_t layout[ALIGNMENTS] = {la, lb, lc, ld};
    const struct product *p = (const void *)desc;
    check_call(answer_of(algo), p, layout, (const void *const[]){a, b, c, d}, space, space_bytes);
    want(p->epilogue == CUBLASLT_EPILOGUE_DEFAULT || p->epilogue == CUBLASLT_EPILOGUE_BIAS,
         "this epilogue is not imitated");
    if (((const struct layout *)(const void *)la)->groups && ++grouped_run == number("SHERD_EMULATED_LT_FAIL"))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    struct call *x = own(sizeof *x);
    if (sh_emulated_count && answer_of(algo)->which > 0)
        sh_emulated_count(SH_EMULATED_OTHER, 1);
    *x = (struct call){.which = answer_of(algo)->which,
                       .product = *p,
                       .a = a,
                       .b = b,
                       .c = c,
                       .d = d,
                       .space = space,
                       .space_bytes = space_bytes};
    memcpy(x->alignment, answer_of(algo)->preference.alignment, sizeof x->alignment);
    if (p->factors == CUBLASLT_POINTER_MODE_DEVICE)
        x->factors[0] = alpha, x->factors[1] = beta;
    else
        x->alpha = *(const float *)alpha, x->beta = *(const float *)beta;
    for (int i = 0; i < ALIGNMENTS; i++)
        memcpy(&x->layout[i], layout[i], sizeof x->layout[i]);
    if (sh_emulated_launch)
        return sh_emulated_launch(stream, run, x) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
    run(x);
    return CUBLAS_STATUS_SUCCESS;
}

/* Under another name, since newer headers declare the library's. */
static cublasStatus_t create_groups(cublasLtMatrixLayout_t *layout, cudaDataType type, int groups, const void *rows,
                                    const void *columns, const void *ld)
{
    want(groups > 0, "there are no groups");
    struct layout *p = own(sizeof *p);
    *p = (struct layout){.type = type, .groups = groups, .all_rows = rows, .all_cols = columns, .all_ld = ld};
    *layout = (void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

/* Linked instead of loaded. */
sh_rc sh_cublaslt_load(struct sh_cublaslt_functions *lt)
{
#define X(name) lt->name = cublasLt##name;
    SH_CUBLASLT_FUNCTIONS(X)
#undef X
    lt->GroupedMatrixLayoutCreate = cublasLtGetVersion() >= 130200 ? create_groups : NULL;
    return SH_OK;
}
