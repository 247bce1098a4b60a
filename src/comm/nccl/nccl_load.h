/* Internal to the nccl backend: NCCL's functions, loaded at run time. */
#ifndef SH_COMM_NCCL_LOAD_H
#define SH_COMM_NCCL_LOAD_H

#include "src/comm/comm.h"

#include <nccl.h>

/* clang-format off */
#define SH_NCCL_FUNCTIONS(X)                                                                           \
    X(ncclGetVersion) X(ncclGetUniqueId) X(ncclCommInitRankConfig) X(ncclCommSplit) X(ncclCommFinalize) \
    X(ncclCommDestroy) X(ncclCommGetAsyncError) X(ncclGetErrorString) X(ncclGetLastError)             \
    X(ncclAllGather) X(ncclReduceScatter) X(ncclAllReduce)                                            \
    X(ncclGroupStart) X(ncclGroupEnd) X(ncclSend) X(ncclRecv)
/* clang-format on */

struct sh_nccl_functions {
#define X(function) __typeof__(function) *function;
    SH_NCCL_FUNCTIONS(X)
#undef X
};

extern struct sh_nccl_functions sh_nccl;

/* Load them once, after setting the environment that they read. Local. Errors: SH_E_USAGE when there is no library,
 * SH_E_COMM when it is too old. */
sh_rc sh_nccl_load(void);

/* Load the library and set sh_nccl (nccl_find.c). Local. Errors: SH_E_USAGE. */
sh_rc sh_nccl_find(void);

/* major * 10000 + minor * 100 + patch, of the loaded library. Local. Errors: SH_E_COMM. */
sh_rc sh_nccl_version(int *version);

/* That version, and whether traffic of a failed port of a network card moves to another one. Local. */
void sh_nccl_describe(char text[SH_COMM_TEXT]);

#endif
