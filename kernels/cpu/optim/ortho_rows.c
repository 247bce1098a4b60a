/* Rows of orthogonal factors, each by the mean of its squares. Two passes over a matrix. A row is summed by one thread, in
 * double, and rows are added in their order, so threads do not show. */
#include "kernels/cpu/cpu.h"
#include "kernels/muon.h"

#include <math.h>

/* For each row the sum of its squares, then what it is multiplied by. */
int64_t sh_cpu_ortho_rows_work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return call->attr->ortho.most_long * (int64_t)sizeof(double);
}

static double squares_of(const float *row, int64_t step, int64_t n)
{
    double sum = 0;

    for (int64_t c = 0; c < n; c++)
        sum += (double)row[c * step] * (double)row[c * step];
    return sum;
}

/* Move the means of squares; `by` [rows] sums of squares on entry, factors on return. */
static double move_means(const struct sh_op_call *call, const struct sh_matrix *of, int64_t k, double *by)
{
    float *v = (float *)call->out[1].data - call->attr->ortho.row_origin;
    double b = (double)call->scalars->muon_beta2, scale = (double)of->scale, before = 0, after = 0;

    for (int64_t r = 0; r < of->out; r++) {
        double squares = by[r] / (scale * scale), *factor = &by[r];
        float *mean = &v[sh_matrix_row(of, k, r)];
        double now = b * (double)*mean + (1 - b) * squares / (double)of->in;

        *mean = (float)now;
        *factor = 1 / sqrt(fmax(now, SH_ORTHO_LEAST));
        before += squares;
        after += squares * *factor * *factor;
    }
    return sh_ortho_rows_factor(before, after);
}

static void even_rows(const struct sh_op_call *call, const struct sh_matrix *of, int64_t k)
{
    float *u = (float *)call->out[0].data - call->attr->ortho.origin;
    double *by = call->work, all;

#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < of->out; r++)
        by[r] = squares_of(u + sh_matrix_element(of, k, r, 0), of->col_step, of->in);
    all = move_means(call, of, k, by);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < of->out; r++) {
        float *row = u + sh_matrix_element(of, k, r, 0), factor = (float)(by[r] * all);

        for (int64_t c = 0; c < of->in; c++)
            row[c * of->col_step] *= factor;
    }
}

sh_rc sh_cpu_ortho_rows(const struct sh_op_call *call)
{
    for (int i = 0; i < call->attr->ortho.count; i++)
        for (int64_t k = 0; k < call->matrices[i].repeat; k++)
            even_rows(call, &call->matrices[i], k);
    return SH_OK;
}
