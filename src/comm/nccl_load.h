/* Inside of the nccl backend: NCCL's functions, loaded while the program runs. */
#ifndef SH_COMM_NCCL_LOAD_H
#define SH_COMM_NCCL_LOAD_H

#include "src/base/err.h"

#include <nccl.h>

/* clang-format off */
#define SH_NCCL_FUNCTIONS(X)                                                                           \
    X(ncclGetVersion) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommSplit) X(ncclCommFinalize) \
    X(ncclCommDestroy) X(ncclCommGetAsyncError) X(ncclGetErrorString) X(ncclGetLastError)             \
    X(ncclAllGather) X(ncclReduceScatter) X(ncclAllReduce)
/* clang-format on */

struct sh_nccl_functions {
#define X(function) __typeof__(function) *function;
    SH_NCCL_FUNCTIONS(X)
#undef X
};

extern struct sh_nccl_functions sh_nccl;

/* Load them once; what they are told through the environment must stand there before. Local. Errors: SH_E_USAGE when
 * there is none, SH_E_COMM for one that is too old. */
sh_rc sh_nccl_load(void);

/* major * 10000 + minor * 100 + patch, of the library that is loaded. Local. Errors: SH_E_COMM. */
sh_rc sh_nccl_version(int *version);

#endif
