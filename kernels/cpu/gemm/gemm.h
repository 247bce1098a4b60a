/* Matrix products (kernels/matmul.h).
 *
 * C is cut into tiles whose size depends on its shape only. A tile is one library call on one thread, over the whole
 * inner dimension, and the program's threads take tiles. A library's own threads, the way it cuts work by their
 * number and its sums across them therefore play no part: neither the number of threads nor the library's build
 * (OpenBLAS with pthreads, with OpenMP, or serial) changes any bit. An engine (gemm_engine.h) is a library that
 * computes one tile.
 *
 * Not reentrant: one call at a time, from a thread outside any parallel region. oneDNN's bf16 engine keeps one small
 * object per shape of tile, made when the shape is first seen; nothing else is allocated here. */
#ifndef SH_GEMM_GEMM_H
#define SH_GEMM_GEMM_H

#include "kernels/matmul.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Scratch of a product with `threads` threads; only sizes and types of g are read. Larger sizes never need less, so
 * one product with the maximum of each size covers several. */
int64_t sh_gemm_work_bytes(const struct sh_matmul *g, int threads);

/* Run one product with omp_get_max_threads() threads; work: sh_gemm_work_bytes() for that many threads, 64-byte
 * aligned. Errors: SH_E_MEMORY if oneDNN runs out of memory, SH_E_BUG if `work` is too small. */
sh_rc sh_gemm_run(const struct sh_matmul *g, void *work, int64_t work_bytes);

/* One product a a', whose result is its own mirror image, [m,m] of f32 without bias or addend: three fifths of the work.
 * Elements above the diagonal are copies of those below it. With 8 threads and more, small matrices have as many rounds of
 * tiles as a whole product, and gain nothing. Errors: as sh_gemm_run(). */
sh_rc sh_gemm_run_mirrored(const struct sh_matmul *g);

/* Several products of one kind with different sizes, one of them or more: threads that have finished one begin with the
 * next. A product's bits depend on its own sizes only, and may differ from those of sh_gemm_run(). One with at most
 * 1 / (SH_GEMM_OF_SEVERAL threads) of all operations may be a single thread's: beside what the largest needs, work has
 * sh_gemm_work_bytes() of such a one for each of `threads`, as if it were the only thread. */
enum { SH_GEMM_OF_SEVERAL = 4 };
struct sh_gemm_several {
    int64_t n;
    struct sh_matmul (*at)(const void *from,
                           int64_t i); /* product i; m is 0 if it is left out. Called by all threads */
    const void *from;
};
sh_rc sh_gemm_run_several(const struct sh_gemm_several *s, void *work, int64_t work_bytes);

/* Within a parallel region: libraries called from this thread start no threads until the region ends. */
void sh_gemm_serial(void);

/* Errors of threads. Error texts are kept per thread (err.h), so a parallel region collects its first failure here
 * and raises it again on the calling thread. Start with {0}. */
struct sh_gemm_failure {
    sh_rc rc;
    char text[256];
};
void sh_gemm_note(struct sh_gemm_failure *f, sh_rc rc);
sh_rc sh_gemm_failed(const struct sh_gemm_failure *f);

/* The processor for which OpenBLAS has chosen its kernels ("SkylakeX", "neoversen1"); NULL with another library. Local. */
const char *sh_gemm_cblas_core(void);

#endif
