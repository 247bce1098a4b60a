/* Engines: libraries that multiply one tile on one thread, or our own code that computes a whole product with all
 * threads. Each engine and type has one row; adding one is one row and one file. The first usable row of a type is
 * taken. The rows, and the measurements behind their order, are in gemm_engine.c. */
#ifndef SH_GEMM_GEMM_ENGINE_H
#define SH_GEMM_GEMM_ENGINE_H

#include "kernels/cpu/gemm/gemm.h"

/* C [m,n] f32 = op(A) op(B), or += when add; orders and leading dimensions as in struct sh_matmul. */
struct sh_gemm_tile {
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    bool trans_a;
    const void *b;
    int64_t ldb;
    bool trans_b;
    float *c;
    int64_t ldc;
    bool add;
};

/* A kernel with its own parallel loop (attention) calls tile() inside it, after sh_gemm_serial(). The f32 engines
 * take tiles of any size and need no scratch; the others take tiles up to SH_GEMM_TILE_*. */
struct sh_gemm_engine {
    const char *name;
    enum sh_dtype in_dtype;
    bool (*usable)(void); /* on this CPU; also prepares the library, so called before the first tile */
    bool (*takes)(
        const struct sh_matmul *g); /* products that it is the best for; NULL: all. The next usable has others */
    bool (*works)(void); /* like usable(), but any CPU that gives right numbers, even slowly; for tests; optional */
    /* One of these two; all f32 engines have tile(). */
    sh_rc (*tile)(const struct sh_gemm_tile *t, void *work); /* from many threads at once */
    sh_rc (*product)(const struct sh_matmul *g, void *work); /* opens a parallel region itself */
    int64_t work_bytes; /* tile(): scratch of one thread, a multiple of 64; 0 in all f32 engines */
    int64_t (*product_bytes)(const struct sh_matmul *g, int threads); /* for product(), as sh_gemm_work_bytes() */
};

extern const struct sh_gemm_engine sh_gemm_engine_dnnl_f32, sh_gemm_engine_dnnl_bf16; /* with HAVE_DNNL */
extern const struct sh_gemm_engine sh_gemm_engine_avx2;                               /* on x86-64 */
extern const struct sh_gemm_engine sh_gemm_engine_cblas, sh_gemm_engine_widen, sh_gemm_engine_widen_f16;
/* Of panels of bf16: by AMX, AVX-512 or BFMMLA (with SH_PANELS of panel.h), and by AVX-512's products of f32 (with
 * SH_WIDE, as the thin ones). */
extern const struct sh_gemm_engine sh_gemm_engine_thin, sh_gemm_engine_panels, sh_gemm_engine_panels_wide;

/* Whether cblas_sgemm is from OpenBLAS, BLIS or MKL, which are built for speed. Local. */
bool sh_gemm_cblas_is_fast(void);

/* Engine i of the table, NULL past the last; and the engine that sh_gemm_run() uses for a type, always the same. The
 * first call for a type must be outside parallel regions. */
const struct sh_gemm_engine *sh_gemm_engine_at(int i);
const struct sh_gemm_engine *sh_gemm_engine_for(enum sh_dtype in_dtype);
/* The engine for the products that e does not take; e if it takes all. */
const struct sh_gemm_engine *sh_gemm_engine_beside(const struct sh_gemm_engine *e);

/* The limits of a tile in 16 bits, which bound the scratch. Products with few tiles use smaller ones. */
enum { SH_GEMM_TILE_M = 256, SH_GEMM_TILE_N = 384 };

/* sh_gemm_run() and its scratch for a given engine, so that tests and benchmarks can compare engines. */
int64_t sh_gemm_work_bytes_on(const struct sh_gemm_engine *e, const struct sh_matmul *g, int threads);
sh_rc sh_gemm_run_on(const struct sh_gemm_engine *e, const struct sh_matmul *g, void *work, int64_t work_bytes);

#endif
