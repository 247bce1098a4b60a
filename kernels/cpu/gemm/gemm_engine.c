#include "sherd_config.h"

#include "kernels/cpu/gemm/gemm_engine.h"

#include "kernels/cpu/panel/panel.h"

#include <stdatomic.h>
#include <stddef.h>

/* Measured with one thread on the products of a GPT-2 step (bench_kernels), GFLOP/s a core:
 *                        Zen 5 (avx512_bf16)   Zen 4 (likewise)   Sapphire-Rapids-like (AMX)
 *   own, packed panels   not yet               205-218            1.2-1.6 x oneDNN on the same machine
 *   oneDNN 2.6 bf16      370-440               182-204            550-950
 *   oneDNN 2.6 sgemm     190-240               100-105            180-200
 *   OpenBLAS 0.3.21      100-115 (takes the CPU for a Haswell; 190-210 with OPENBLAS_CORETYPE=SkylakeX)   160-185
 *   16 bits widened to f32  nearly the f32 engine's
 * Arm's BFMMLA: not measured on any processor.
 * On a Xeon with avx512_bf16 without AMX: panels in f32 136-156, widened 120-141. */
/* clang-format off */
static const struct sh_gemm_engine *const engines[] = {
#ifdef SH_WIDE
    &sh_gemm_engine_thin,
#endif
#ifdef SH_PANELS
    &sh_gemm_engine_panels,
#endif
#ifdef SH_WIDE
    &sh_gemm_engine_panels_wide,
#endif
#ifdef __x86_64__
    &sh_gemm_engine_avx2,
#endif
#ifdef HAVE_DNNL
    &sh_gemm_engine_dnnl_bf16,
    &sh_gemm_engine_dnnl_f32,
#endif
    &sh_gemm_engine_widen,
    &sh_gemm_engine_widen_f16,
    &sh_gemm_engine_cblas,
};
/* clang-format on */

const struct sh_gemm_engine *sh_gemm_engine_at(int i)
{
    return i < (int)(sizeof engines / sizeof engines[0]) ? engines[i] : NULL;
}

/* all: one that takes all products. */
static const struct sh_gemm_engine *first_usable(enum sh_dtype in_dtype, bool all)
{
    for (int i = 0; sh_gemm_engine_at(i); i++)
        if (engines[i]->in_dtype == in_dtype && engines[i]->usable() && !(all && engines[i]->takes))
            return engines[i];
    return NULL;
}

const struct sh_gemm_engine *sh_gemm_engine_beside(const struct sh_gemm_engine *e)
{
    return e->takes ? first_usable(e->in_dtype, true) : e;
}

const struct sh_gemm_engine *sh_gemm_engine_for(enum sh_dtype in_dtype)
{
    static const struct sh_gemm_engine *_Atomic chosen[SH_DTYPES];
    /* Threads may ask at once; each finds the same. */
    const struct sh_gemm_engine *engine = atomic_load_explicit(&chosen[in_dtype], memory_order_acquire);
    if (!engine) {
        engine = first_usable(in_dtype, false);
        atomic_store_explicit(&chosen[in_dtype], engine, memory_order_release);
    }
    return engine;
}
