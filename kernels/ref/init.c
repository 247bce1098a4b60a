/* Initial values on the CPU. */
#include "kernels/ref/ref.h"
#include "src/base/rng.h"

enum { PIECE = 1024 };

/* A CPU has no queue. Fill in pieces, since halves need a buffer. */
sh_rc sh_ref_fill_normal(uint64_t key, int64_t first, int64_t n, float std, struct sh_floats out, void *queue)
{
    float piece[PIECE];

    (void)queue;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;

        sh_rng_fill_normal(key, first + at, here, std, piece);
        sh_floats_put(sh_floats_at(out, at), here, piece);
    }
    return SH_OK;
}
