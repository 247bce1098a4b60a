/* The biases of the experts' products. A bias that is added after the weights of the rows were multiplied in is multiplied
 * by them too. Floor: each row read once and written once. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"

#include <string.h>

/* Where the weight of a row is. */
static int64_t entry_of(const struct sh_operand *order, int64_t row)
{
    return order->data ? ((const int32_t *)order->data)[row] : row;
}

static float weight_of(const struct sh_operand *weight, const struct sh_operand *order, int64_t row)
{
    return weight->data ? ((const float *)weight->data)[entry_of(order, row)] : 1.0f;
}

static void add(float *y, const float *x, const float *b, float weight, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] + b[i] * weight;
}

/* All pieces of a row of expert e. */
static void add_to_row(const struct sh_op_call *call, int64_t row, int64_t e)
{
    const struct sh_operand *x = &call->in[0], *b = &call->in[2], *y = &call->out[0];
    int64_t O = b->dim[1];

    for (int64_t p = 0; p < sh_cpu_pieces(O); p++) {
        float x_room[SH_CPU_PIECE], b_room[SH_CPU_PIECE], y_room[SH_CPU_PIECE];
        int64_t at = p * SH_CPU_PIECE, n = sh_cpu_piece_elems(O, p);
        float *to = sh_cpu_stage_out(y, row * O + at, n, y_room);

        add(to, sh_cpu_stage_in(x, row * O + at, n, x_room), sh_cpu_stage_in(b, e * O + at, n, b_room),
            weight_of(&call->in[3], &call->in[4], row), n);
        sh_cpu_stage_put(y, row * O + at, n, to);
    }
}

sh_rc sh_cpu_expert_bias(const struct sh_op_call *call)
{
    const int32_t *first = call->in[1].data;
    int64_t G = sh_cpu_elems(&call->in[1]) - 1, E = call->in[2].dim[0];

    SH_REQUIRE(first[G] >= 0 && first[G] <= call->in[0].dim[0]);
    for (int64_t g = 0; g < G; g++) {
#pragma omp parallel for schedule(static)
        for (int64_t row = first[g]; row < first[g + 1]; row++)
            add_to_row(call, row, g % E);
    }
    return SH_OK;
}

/* Columns [at, at + n) of the gradient of expert e: its groups in order, their rows in order. */
static void sum_piece(const struct sh_op_call *call, int64_t e, int64_t at, int64_t n)
{
    const struct sh_operand *dy = &call->in[0], *db = &call->out[0];
    const int32_t *first = call->in[1].data;
    int64_t G = sh_cpu_elems(&call->in[1]) - 1, E = db->dim[0], O = db->dim[1];
    float *sum = (float *)db->data + e * O + at;

    if (!sh_op_adds(call, 0))
        memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t g = e; g < G; g += E)
        for (int64_t row = first[g]; row < first[g + 1]; row++) {
            float room[SH_CPU_PIECE];

            add(sum, sum, sh_cpu_stage_in(dy, row * O + at, n, room), weight_of(&call->in[3], &call->in[4], row), n);
        }
}

static float dot_row(const struct sh_op_call *call, int64_t row, int64_t e)
{
    const struct sh_operand *dy = &call->in[0], *b = &call->in[2];
    int64_t O = b->dim[1];
    float sum = 0;

    for (int64_t p = 0; p < sh_cpu_pieces(O); p++) {
        float dy_room[SH_CPU_PIECE], b_room[SH_CPU_PIECE];
        int64_t at = p * SH_CPU_PIECE, n = sh_cpu_piece_elems(O, p);

        sum +=
            sh_cpu_row_dot(sh_cpu_stage_in(dy, row * O + at, n, dy_room), sh_cpu_stage_in(b, e * O + at, n, b_room), n);
    }
    return sum;
}

static void make_dweight(const struct sh_op_call *call)
{
    const int32_t *first = call->in[1].data;
    int64_t G = sh_cpu_elems(&call->in[1]) - 1, E = call->in[2].dim[0];
    float *dweight = call->out[1].data;

    for (int64_t g = 0; g < G; g++) {
#pragma omp parallel for schedule(static)
        for (int64_t row = first[g]; row < first[g + 1]; row++)
            dweight[entry_of(&call->in[4], row)] = dot_row(call, row, g % E);
    }
}

sh_rc sh_cpu_expert_bias_bwd(const struct sh_op_call *call)
{
    int64_t O = call->in[0].dim[1], pieces = sh_cpu_pieces(O);
    int64_t E = call->out[0].data ? call->out[0].dim[0] : 0;

    SH_REQUIRE(!call->out[1].data || call->in[2].data);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < E * pieces; i++)
        sum_piece(call, i / pieces, i % pieces * SH_CPU_PIECE, sh_cpu_piece_elems(O, i % pieces));
    if (call->out[1].data)
        make_dweight(call);
    return SH_OK;
}
