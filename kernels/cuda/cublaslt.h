/* Matrix products by cuBLASLt, which is loaded before the first product and stays loaded.
 *
 * For each shape cuBLASLt is asked once which of its kernels is best; the answer and its descriptors are kept, so that
 * a training step after the first allocates nothing and asks nothing. The answer is the library's table look-up, not a
 * measurement: a clock would choose otherwise on another rank or another day, and with the kernel the bits.
 *
 * Deterministic: same inputs, same bits, on GPUs of one kind with one version of the library. Products split along k
 * are allowed only when their parts are added by a step of their own, in order and in f32. f32 means f32: no TF32.
 * Local. For the one thread that enqueues; one GPU a process. No CUDA header, so that plans can be made without. */
#ifndef SH_KERNELS_CUDA_CUBLASLT_H
#define SH_KERNELS_CUDA_CUBLASLT_H

#include "src/base/dtype.h"
#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Scratch of one product: what NVIDIA advises for Hopper and later, and the place to begin at 256 bytes. */
enum { SH_CUBLASLT_SPACE_BYTES = 32 << 20, SH_CUBLASLT_WORK_BYTES = SH_CUBLASLT_SPACE_BYTES + 256 };

/* c [m,n] = a [m,k] b [k,n] + bias [n] + addend [m,n], all row-major; sums in f32, rounded once. */
struct sh_cublaslt_product {
    int64_t m, n, k;
    enum sh_dtype in_dtype;  /* of a and b: f32 or bf16 */
    enum sh_dtype out_dtype; /* of c, addend and bias: in_dtype or f32 */
    const void *a, *b;
    int64_t lda, ldb;        /* elements from one stored row to the next */
    bool trans_a, trans_b;   /* stored [k,m], [n,k] */
    void *c;
    int64_t ldc;
    const void *addend;      /* (opt) leading dimension ldc; may be c itself */
    const void *bias;        /* (opt) */
};

/* Enqueue one product, after sh_cuda_product_prepare() (cuda.h).
 *   work   device, SH_CUBLASLT_WORK_BYTES, this product's until it has run
 *   queue  cudaStream_t
 * Cost:   2*m*n*k operations.
 * Errors: SH_E_BUG with cuBLASLt's words when it refuses the product. */
sh_rc sh_cublaslt_run(const struct sh_cublaslt_product *p, void *work, int64_t work_bytes, void *queue);

#endif
