#include "src/comm/nccl/nccl_load.h"

#include <stdio.h>
#include <stdlib.h>

struct sh_nccl_functions sh_nccl;

/* All ranks issue the collectives of all communicators in one order; this makes NCCL launch them in that order.
 * Otherwise two of them on one GPU may wait for each other. */
static void set_environment(void)
{
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

/* 2.26.5 is 22605. */
sh_rc sh_nccl_version(int *version)
{
    ncclResult_t rc = sh_nccl.ncclGetVersion(version);

    if (rc != ncclSuccess)
        return sh_fail(SH_E_COMM, "NCCL: ncclGetVersion: %s", sh_nccl.ncclGetErrorString(rc));
    return SH_OK;
}

/* Older versions ignore the variable; without it newer ones end the job when a port fails. */
void sh_nccl_describe(char text[SH_COMM_TEXT])
{
    enum { HAS_FAILOVER = 22907 };
    const char *wish = getenv("NCCL_IB_RESILIENCY_PORT_FAILOVER"), *ports = "";
    int version = 0;

    if (sh_nccl.ncclGetVersion(&version) != ncclSuccess)
        return;
    if (version >= HAS_FAILOVER)
        ports = wish && atoi(wish) ? ", ports fail over"
                                   : ", ports do not fail over (NCCL_IB_RESILIENCY_PORT_FAILOVER=1)";
    snprintf(text, SH_COMM_TEXT, "nccl %d.%d.%d%s", version / 10000, version / 100 % 100, version % 100, ports);
}

static sh_rc check_version(void)
{
    enum { OLDEST = 22600 }; /* NCCL_LAUNCH_ORDER_IMPLICIT, which older versions ignore */
    int version;

    SH_TRY(sh_nccl_version(&version));
    if (version < OLDEST)
        return sh_fail(SH_E_COMM,
                       "NCCL %d.%d.%d is loaded (libnccl.so.2), but it does not keep collectives of several "
                       "communicators in order; use 2.26 or newer (LD_LIBRARY_PATH), or comm.backend=mpi",
                       version / 10000, version / 100 % 100, version % 100);
    return SH_OK;
}

/* The environment is set before the library is loaded, since NCCL reads it once. */
sh_rc sh_nccl_load(void)
{
    if (!sh_nccl.ncclGetVersion) {
        set_environment();
        SH_TRY(sh_nccl_find());
    }
    return check_version();
}
