/* Initial values on the CPU. */
#include "kernels/ref/ref.h"
#include "src/base/number/rng.h"

enum { PIECE = 1024 };

/* Fill in pieces, since halves need a buffer. */
static void fill_run(uint64_t key, int64_t first, int64_t n, float std, struct sh_floats out)
{
    float piece[PIECE];

    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t here = n - at < PIECE ? n - at : PIECE;

        sh_rng_fill_normal(key, first + at, here, std, piece);
        sh_floats_put(sh_floats_at(out, at), here, piece);
    }
}

sh_rc sh_ref_fill_normal(uint64_t key, const struct sh_rng_runs *runs, float std, struct sh_floats out, void *queue)
{
    (void)queue;
    for (int64_t i = 0; i < runs->count; i++)
        fill_run(key, runs->first + i * runs->stride, runs->n, std, sh_floats_at(out, i * runs->n));
    return SH_OK;
}
