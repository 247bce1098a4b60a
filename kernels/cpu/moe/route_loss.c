/* The numbers of the two losses that ROUTE_BWD differentiates. In f64 and in parts that do not depend on the number of
 * threads, so that they are the same on any. Floor: N E scores read once. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/fold.h"
#include "kernels/cpu/base/stage.h"

#include <string.h>

int64_t sh_cpu_route_loss_work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return 2 * sh_cpu_folds(call->in[0].dim[0]) * (int64_t)sizeof(double);
}

/* E times the sum over experts of the share of choices and the score, or its share of the row. */
static double aux_of(const float *score, const int32_t *first, int64_t E, bool sigmoid)
{
    double sum = 1e-20, shared = 0;

    for (int64_t e = 0; e < E; e++) {
        sum += score[e];
        shared += (double)(first[e + 1] - first[e]) * score[e];
    }
    return (double)E * shared / first[E] / (sigmoid ? sum : 1);
}

static void sum_part(const struct sh_op_call *call, int64_t begin, int64_t end, double loss[2])
{
    const float *score = call->in[0].data, *lse = call->in[2].data;
    int64_t E = call->in[0].dim[1];
    double aux = call->attr->route.aux, z = call->attr->route.z;

    loss[0] = loss[1] = 0;
    for (int64_t n = begin; n < end && aux != 0; n++)
        loss[0] += aux * aux_of(score + n * E, call->in[1].data, E, call->attr->route.sigmoid);
    for (int64_t n = begin; n < end && z != 0; n++)
        loss[1] += z * lse[n] * lse[n];
}

sh_rc sh_cpu_route_loss(const struct sh_op_call *call)
{
    int64_t N = call->in[0].dim[0], parts = sh_cpu_folds(N);
    double *part = call->work, *loss = call->out[0].data;

    SH_REQUIRE(call->work_bytes >= sh_cpu_route_loss_work_bytes(call, 1));
    SH_REQUIRE(call->attr->route.z == 0 || call->in[2].data);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < parts; p++)
        sum_part(call, sh_cpu_fold_row(N, p), sh_cpu_fold_row(N, p + 1), part + 2 * p);
    if (!sh_op_adds(call, 0))
        loss[0] = loss[1] = 0;
    for (int64_t p = 0; p < parts; p++) {
        loss[0] += part[2 * p];
        loss[1] += part[2 * p + 1];
    }
    return SH_OK;
}
