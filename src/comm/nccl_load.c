#include "src/comm/nccl_load.h"

#include "src/base/library.h"

#include <stdlib.h>

struct sh_nccl_functions sh_nccl;

/* The ranks issue the collectives of all communicators in one order; this makes NCCL launch them in that order, without
 * which two of them on one GPU may wait for each other. */
static void set_environment(void)
{
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

#ifdef SH_CUDA_EMULATED
static sh_rc find_functions(void)
{
#define X(function) sh_nccl.function = function;
    SH_NCCL_FUNCTIONS(X)
#undef X
    return SH_OK;
}
#else
static sh_rc find_functions(void)
{
    static const struct sh_library_symbol symbols[] = {
#define X(function) {#function, &sh_nccl.function},
        SH_NCCL_FUNCTIONS(X)
#undef X
        {NULL, NULL}};

    return sh_library_load((const char *const[]){"libnccl.so.2", NULL}, symbols);
}
#endif

sh_rc sh_nccl_load(void)
{
    if (sh_nccl.ncclGetVersion)
        return SH_OK;
    set_environment();
    return find_functions();
}
