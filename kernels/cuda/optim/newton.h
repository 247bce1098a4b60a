/* Between the products of ORTHO (newton.c): the launches that need no library (newton.cu). Valid C and C++, no CUDA header.
 * Local; all enqueue and return. Errors: SH_E_BUG if a launch is refused. */
#ifndef SH_KERNELS_CUDA_OPTIM_NEWTON_H
#define SH_KERNELS_CUDA_OPTIM_NEWTON_H

#include "kernels/muon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix as it lies, with what struct sh_matrix says of rows. A line is a row, or a column if it is turned. */
struct sh_cuda_lines {
    float *u; /* the first element */
    int64_t lines, length;
    int64_t row_step, col_step, block, block_stride;
    float scale;
    bool turned;
};

/* Copy k of a matrix of the call. */
static inline struct sh_cuda_lines sh_cuda_lines_of(const struct sh_op_call *call, const struct sh_matrix *of,
                                                    int64_t k)
{
    struct sh_cuda_lines x;

    x.u = (float *)call->out[0].data + (of->at + k * of->stride - call->attr->ortho.origin);
    x.turned = of->row_step < of->col_step;
    x.lines = x.turned ? of->in : of->out;
    x.length = x.turned ? of->out : of->in;
    x.row_step = of->row_step;
    x.col_step = of->col_step;
    x.block = of->block;
    x.block_stride = of->block_stride;
    x.scale = of->scale;
    return x;
}

/* sums [lines + 1] f64: sums of squares of the lines, then 1 / (|x| room), or 0 if |x| is 0. */
sh_rc sh_cuda_newton_norm(const struct sh_cuda_lines *x, double room, double *sums, void *queue);

/* to [lines,ld] of f32 or bf16 = x factor[0]; and back: x = scale from. */
sh_rc sh_cuda_newton_take(const struct sh_cuda_lines *x, const double *factor, enum sh_dtype type, void *to, int64_t ld,
                          void *queue);
sh_rc sh_cuda_newton_put(const struct sh_cuda_lines *x, enum sh_dtype type, const void *from, int64_t ld, void *queue);

/* gram [m,ld] of f32 or bf16 = a I + b gram + c square, of square [m,ld] f32 */
sh_rc sh_cuda_newton_combine(const double abc[3], int64_t m, int64_t ld, const float *square, enum sh_dtype type,
                             void *gram, void *queue);

#ifdef __cplusplus
}
#endif

#endif
