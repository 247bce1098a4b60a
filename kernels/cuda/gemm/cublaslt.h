/* Matrix products by cuBLASLt, which is loaded before the first product and stays loaded.
 *
 * cuBLASLt is asked once per shape, before the first step, which of its kernels are best. The answers and the
 * descriptors are kept, so a training step allocates nothing and asks nothing. The first answer is used, which comes
 * from the library's tables and not from a measurement: a clock would choose another kernel on another rank or
 * another day, and with the kernel the bits would change. A caller that makes all ranks choose alike may choose by a
 * clock (struct sh_choices).
 *
 * Deterministic: the same inputs give the same bits on GPUs of one kind with one version of the library. Products
 * split along k are allowed only if a separate step adds their parts, in order and in f32. f32 means f32: no TF32.
 * Local. For the one thread that enqueues; one GPU per process. No CUDA header, so that plans can be made without
 * CUDA.
 *
 * What cuBLASLt has no kernel for is computed all the same, with one line in the log for each shape: a bias that it
 * cannot add, or that starts at no multiple of 16 bytes, is written to the output first and added as an addend; any
 * other product is product.cu's. Both are as deterministic. */
#ifndef SH_KERNELS_CUDA_CUBLASLT_H
#define SH_KERNELS_CUDA_CUBLASLT_H

#include "kernels/matmul.h"
#include "kernels/op.h"

#include <stdbool.h>
#include <stdint.h>

/* Scratch of one product: the size that NVIDIA advises for Hopper and later, plus room to align its start to 256
 * bytes. */
enum { SH_CUBLASLT_SPACE_BYTES = 32 << 20, SH_CUBLASLT_WORK_BYTES = SH_CUBLASLT_SPACE_BYTES + 256 };

/* See op.h. Here a "call" is the shape of a product. */
extern const struct sh_choices sh_cublaslt_choices;

/* Run a call without its products: they are only described, and cuBLASLt is asked about each new shape. Kernels
 * between the products must not be launched: see sh_cublaslt_is_asking(). Operands, scratch and queue are as in a
 * run, and must stay until every shape has its kernel. */
sh_rc sh_cublaslt_ask(const struct sh_op_call *call, sh_kernel run);
bool sh_cublaslt_is_asking(void);

/* Enqueue one product, after sh_cuda_product_prepare() (cuda.h).
 *   work   device, SH_CUBLASLT_WORK_BYTES, reserved for this product until it has run
 *   queue  cudaStream_t
 * Cost:   2*m*n*k operations. Errors: SH_E_BUG with cuBLASLt's message if it fails for any reason other than that it
 * does not support the product. */
sh_rc sh_cublaslt_run(const struct sh_matmul *p, void *work, int64_t work_bytes, void *queue);

#endif
