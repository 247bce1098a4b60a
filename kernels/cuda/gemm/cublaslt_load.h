/* Internal to cublaslt.c and moe/grouped.c: cuBLASLt's functions, loaded at run time. */
#ifndef SH_KERNELS_CUDA_CUBLASLT_LOAD_H
#define SH_KERNELS_CUDA_CUBLASLT_LOAD_H

#include "src/base/err.h"

#include <cublasLt.h>

/* clang-format off */
#define SH_CUBLASLT_FUNCTIONS(X)                                                       \
    X(Create) X(GetStatusString) X(GetVersion) X(Matmul)               \
    X(MatmulAlgoGetHeuristic)                                          \
    X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) \
    X(MatrixLayoutCreate) X(MatrixLayoutDestroy)                       \
    X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute)
/* clang-format on */

/* Of grouped products, which headers before 13.2 do not have. Sizes and leading dimensions are arrays [groups] i32 on
 * the device. */
typedef cublasStatus_t sh_cublaslt_grouped_layout(cublasLtMatrixLayout_t *layout, cudaDataType type, int groups,
                                                  const void *rows, const void *columns, const void *ld);

struct sh_cublaslt_functions {
    sh_cublaslt_grouped_layout *GroupedMatrixLayoutCreate; /* NULL: the library is too old */
#define X(name) __typeof__(&cublasLt##name) name;
    SH_CUBLASLT_FUNCTIONS(X)
#undef X
};

/* Local. Errors: SH_E_USAGE when there is no library. */
sh_rc sh_cublaslt_load(struct sh_cublaslt_functions *lt);

/* The functions and the handle of the library, after sh_cuda_product_prepare(). */
const struct sh_cublaslt_functions *sh_cublaslt_started(cublasLtHandle_t *handle);

#endif
