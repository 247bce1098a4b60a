#include "kernels/cuda/gemm/cublaslt_load.h"

#include "src/base/library.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

sh_rc sh_cublaslt_load(struct sh_cublaslt_functions *lt)
{
    static const char *const files[] = {"libcublasLt.so." TEXT(CUBLAS_VER_MAJOR), NULL};
    const struct sh_library_symbol symbols[] = {
#define X(name) {"cublasLt" #name, &lt->name},
        SH_CUBLASLT_FUNCTIONS(X)
#undef X
            {NULL, NULL}};
    const struct sh_library_symbol grouped[] = {{"cublasLtGroupedMatrixLayoutCreate", &lt->GroupedMatrixLayoutCreate},
                                                {NULL, NULL}};

    SH_TRY(sh_library_load(files, symbols));
    if (sh_library_load(files, grouped) != SH_OK)
        sh_error_clear();
    return SH_OK;
}
