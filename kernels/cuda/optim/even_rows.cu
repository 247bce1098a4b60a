/* ORTHO_ROWS: rows of orthogonal factors, each by the mean of its squares. 12 bytes per element: read for the sums, then read
 * and written. Sums and means are in double. Not measured on a GPU. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/optim/lines.cuh"

namespace
{
constexpr int MEANS_THREADS = 1024, LANES = 32, WARPS = 8;

/* sums [length]: of squares over all lines, if rows run along them. A warp has 32 neighbouring rows of some lines. */
__global__ void __launch_bounds__(LANES *WARPS) squares_across(sh_cuda_lines x, double *sums)
{
    SH_SHARED(double, part, LANES *WARPS);
    unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;

    for (int64_t first = (int64_t)blockIdx.x * LANES; first < x.length; first += (int64_t)gridDim.x * LANES) {
        int64_t i = first + lane, at = i < x.length ? sh_along(x, i) : 0;
        double sum = 0;

        for (int64_t line = warp; line < x.lines && i < x.length; line += WARPS) {
            double v = (double)x.u[sh_line_at(x, line) + at];
            sum += v * v;
        }
        part[threadIdx.x] = sum;
        __syncthreads();
        for (int w = 1; warp == 0 && w < WARPS; w++)
            sum += part[w * LANES + lane];
        if (warp == 0 && i < x.length)
            sums[i] = sum;
        __syncthreads(); /* so that part may be reused */
    }
}

/* A matrix [rows,cols] of steps, scaled; v: the means of all rows, of which row 0 of the matrix has number `first`. */
struct means {
    float *v;
    double *by; /* [rows]: sums of squares on entry, factors on return */
    int64_t rows, cols, first, block, block_stride;
    double b, scale;
};

/* One block, so that the norm is a sum of fixed order. */
__global__ void __launch_bounds__(MEANS_THREADS) move_means(means m)
{
    double norms[2] = {0, 0};

    for (int64_t r = threadIdx.x; r < m.rows; r += MEANS_THREADS) {
        float *mean = &m.v[m.first + r / m.block * m.block_stride + r % m.block];
        double squares = m.by[r] / (m.scale * m.scale);
        double now = m.b * (double)*mean + (1 - m.b) * squares / (double)m.cols;
        double factor = 1 / sqrt(fmax(now, SH_ORTHO_LEAST));

        *mean = (float)now;
        m.by[r] = factor;
        norms[0] += squares;
        norms[1] += squares * factor * factor;
    }
    sh_block_sum(norms);
    for (int64_t r = threadIdx.x; r < m.rows; r += MEANS_THREADS)
        m.by[r] *= sh_ortho_rows_factor(norms[0], norms[1]);
}

struct scale_rows {
    sh_cuda_lines x;
    const double *by;

    __device__ __forceinline__ float load(int64_t line, int64_t i) const
    {
        return x.u[sh_line_at(x, line) + sh_along(x, i)] * (float)by[x.turned ? i : line];
    }

    __device__ __forceinline__ void store(int64_t line, int64_t i, float v) const
    {
        x.u[sh_line_at(x, line) + sh_along(x, i)] = v;
    }
};

sh_rc even_rows(const struct sh_op_call *call, const struct sh_matrix *of, int64_t k)
{
    sh_cuda_lines x = sh_cuda_lines_of(call, of, k);
    double *by = static_cast<double *>(call->work);
    means m = {sh_data<float>(&call->out[1]),
               by,
               of->out,
               of->in,
               of->row + k * of->row_stride - call->attr->ortho.row_origin,
               of->block,
               of->block_stride,
               (double)call->scalars->muon_beta2,
               (double)of->scale};

    if (x.turned)
        SH_TRY(SH_LAUNCH(squares_across, dim3(sh_blocks(sh_ceil_div(x.length, LANES))), dim3(LANES * WARPS), 0,
                         call->queue, x, by));
    else
        SH_TRY(sh_squares_of_lines(x, by, call->queue));
    SH_TRY(SH_LAUNCH(move_means, dim3(1), dim3(MEANS_THREADS), 0, call->queue, m));
    return sh_over_lines("even_rows", scale_rows{x, by}, x.lines, x.length, call->queue);
}
} // namespace

extern "C" sh_rc sh_cuda_ortho_rows(const struct sh_op_call *call)
{
    SH_REQUIRE(call->work_bytes >= sh_cuda_ortho_rows_work_bytes(call));
    for (int i = 0; i < call->attr->ortho.count; i++)
        for (int64_t k = 0; k < call->matrices[i].repeat; k++)
            SH_TRY(even_rows(call, &call->matrices[i], k));
    return SH_OK;
}
