/* Initial values on the CPU. */
#include "kernels/ref/ref.h"
#include "src/base/rng.h"

sh_rc sh_ref_fill_normal(uint64_t key, int64_t first, int64_t n, float std, float *out, void *queue)
{
    (void)queue;
    sh_rng_fill_normal(key, first, n, std, out);
    return SH_OK;
}
