#include "src/comm/nccl/nccl_load.h"

#include "src/base/library.h"

sh_rc sh_nccl_find(void)
{
    static const struct sh_library_symbol symbols[] = {
#define X(function) {#function, &sh_nccl.function},
        SH_NCCL_FUNCTIONS(X)
#undef X
            {NULL, NULL}};

    return sh_library_load((const char *const[]){"libnccl.so.2", NULL}, symbols);
}
