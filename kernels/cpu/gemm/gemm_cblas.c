/* The engine that is always available: cblas_sgemm of OpenBLAS, MKL, BLIS or another library. */
#include "kernels/cpu/gemm/gemm_engine.h"

#include <cblas.h>

/* Each library's own switch; at most one of them is linked. A library that follows OpenMP needs none, since a tile
 * runs inside a parallel region. One with its own threads (OpenBLAS with pthreads) would start them for every tile. */
void openblas_set_num_threads(int n) __attribute__((weak));
void bli_thread_set_num_threads(long n) __attribute__((weak));
void MKL_Set_Num_Threads(int n) __attribute__((weak));
char *openblas_get_corename(void) __attribute__((weak));

bool sh_gemm_cblas_is_fast(void)
{
    return openblas_set_num_threads || bli_thread_set_num_threads || MKL_Set_Num_Threads;
}

const char *sh_gemm_cblas_core(void)
{
    return openblas_get_corename ? openblas_get_corename() : NULL;
}

static bool cblas_usable(void)
{
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
    if (bli_thread_set_num_threads)
        bli_thread_set_num_threads(1);
    if (MKL_Set_Num_Threads)
        MKL_Set_Num_Threads(1);
    return true;
}

static sh_rc cblas_tile(const struct sh_gemm_tile *t, void *work)
{
    (void)work;
    cblas_sgemm(CblasRowMajor, t->trans_a ? CblasTrans : CblasNoTrans, t->trans_b ? CblasTrans : CblasNoTrans,
                (int)t->m, (int)t->n, (int)t->k, 1.0f, t->a, (int)t->lda, t->b, (int)t->ldb, t->add ? 1.0f : 0.0f, t->c,
                (int)t->ldc);
    return SH_OK;
}

const struct sh_gemm_engine sh_gemm_engine_cblas = {
    .name = "cblas_sgemm",
    .in_dtype = SH_F32,
    .usable = cblas_usable,
    .tile = cblas_tile,
};
