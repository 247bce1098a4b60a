#include "src/device/cuda.h"

/* The calling thread uses the process's GPU: threads attach to it first. */
void sh_cudart_must(cudaError_t rc, const char *what)
{
    int index = -1;

    if (rc == cudaSuccess)
        return;
    (void)cudaGetDevice(&index);
    sh_stop(sh_fail(SH_E_BUG, "GPU %d: %s: %s (%s)", index, what, cudaGetErrorString(rc), cudaGetErrorName(rc)));
}
