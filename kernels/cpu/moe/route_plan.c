/* A stable counting sort of the choices by expert. They are cut into parts, whatever the number of threads; each part
 * is counted, gets its place in each expert's rows, and is dealt out. Floor: N k numbers read twice, two written. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/fold.h"
#include "kernels/cpu/base/stage.h"

#include <string.h>

static int64_t experts(const struct sh_op_call *call)
{
    return sh_cpu_elems(&call->out[2]) - 1;
}

/* Of each part, one number per expert: its count, then the row of its next choice. */
int64_t sh_cpu_route_plan_work_bytes(const struct sh_op_call *call, int threads)
{
    (void)threads;
    return sh_cpu_folds(sh_cpu_elems(&call->in[0])) * experts(call) * (int64_t)sizeof(int32_t);
}

/* How many choices of a part are no expert's: none, unless memory is damaged. */
static int64_t count_part(const int32_t *expert, int64_t begin, int64_t end, int64_t E, int32_t *count)
{
    int64_t wrong = 0;

    memset(count, 0, (size_t)E * sizeof *count);
    for (int64_t i = begin; i < end; i++) {
        if (expert[i] >= 0 && expert[i] < E)
            count[expert[i]]++;
        else
            wrong++;
    }
    return wrong;
}

/* From counts to rows: expert by expert, and within it part by part. */
static void start_rows(int32_t *next, int64_t parts, int64_t E, int32_t *first)
{
    int32_t row = 0;

    for (int64_t e = 0; e < E; e++) {
        first[e] = row;
        for (int64_t p = 0; p < parts; p++) {
            int32_t count = next[p * E + e];
            next[p * E + e] = row;
            row += count;
        }
    }
    first[E] = row;
}

sh_rc sh_cpu_route_plan(const struct sh_op_call *call)
{
    const int32_t *expert = call->in[0].data;
    int32_t *order = call->out[0].data, *place = call->out[1].data, *next = call->work;
    int64_t M = sh_cpu_elems(&call->in[0]), E = experts(call), parts = sh_cpu_folds(M), wrong = 0;

    SH_REQUIRE(call->work_bytes >= sh_cpu_route_plan_work_bytes(call, 1));
#pragma omp parallel for schedule(static) reduction(+ : wrong)
    for (int64_t p = 0; p < parts; p++)
        wrong += count_part(expert, sh_cpu_fold_row(M, p), sh_cpu_fold_row(M, p + 1), E, next + p * E);
    SH_REQUIRE(wrong == 0);
    start_rows(next, parts, E, call->out[2].data);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < parts; p++)
        for (int64_t i = sh_cpu_fold_row(M, p); i < sh_cpu_fold_row(M, p + 1); i++) {
            int32_t row = next[p * E + expert[i]]++;
            order[row] = (int32_t)i;
            place[i] = row;
        }
    return SH_OK;
}
