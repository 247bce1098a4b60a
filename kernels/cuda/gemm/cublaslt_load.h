/* Internal to cublaslt.c: cuBLASLt's functions, loaded at run time. */
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

struct sh_cublaslt_functions {
#define X(name) __typeof__(&cublasLt##name) name;
    SH_CUBLASLT_FUNCTIONS(X)
#undef X
};

/* Local. Errors: SH_E_USAGE when there is no library. */
sh_rc sh_cublaslt_load(struct sh_cublaslt_functions *lt);

#endif
