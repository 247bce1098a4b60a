/* Rotary embedding of the query and key heads in a packed row. Value heads are copied, or left in place if the output
 * is the input. Bytes: qkv read and written; in place only the fraction (H+K)/(H+2K) of it that is rotated. Measured
 * out of place for 16384 rows of 12 heads on one core, where memcpy moves 40 GB/s: f32 33 GB/s, bf16 15. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/stage.h"

/* Heads [0, n) of x, each D long; the first R elements of each are rotated by the angles of one position. y may be x.
 * sign -1 rotates back. */
SH_CLONES static void rotate(float *y, const float *x, const float *cs, int64_t n, int64_t D, int64_t R, float sign)
{
    int64_t half = R / 2;

    for (int64_t h = 0; h < n * D; h += D) {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            float a = x[h + i], b = x[h + half + i], c = cs[i], s = sign * cs[half + i];
            y[h + i] = a * c - b * s;
            y[h + half + i] = b * c + a * s;
        }
        for (int64_t i = R; i < D && y != x; i++)
            y[h + i] = x[h + i];
    }
}

/* The same with neighbours that turn together. */
SH_CLONES static void rotate_pairs(float *y, const float *x, const float *cs, int64_t n, int64_t D, int64_t R,
                                   float sign)
{
    int64_t half = R / 2;

    for (int64_t h = 0; h < n * D; h += D) {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            float a = x[h + 2 * i], b = x[h + 2 * i + 1], c = cs[i], s = sign * cs[half + i];
            y[h + 2 * i] = a * c - b * s;
            y[h + 2 * i + 1] = b * c + a * s;
        }
        for (int64_t i = R; i < D && y != x; i++)
            y[h + i] = x[h + i];
    }
}

/* The rotated heads of one row, in groups that fit in a piece. */
static void rotate_row(const struct sh_op_call *call, int64_t row_at, const float *cs)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    int64_t D = call->attr->attn.head_dim, heads = call->attr->attn.heads + call->attr->attn.kv_heads,
            group = SH_CPU_PIECE / D;
    void (*turn)(float *, const float *, const float *, int64_t, int64_t, int64_t, float) =
        call->attr->attn.pairs ? rotate_pairs : rotate;
    float x_room[SH_CPU_PIECE], y_room[SH_CPU_PIECE];

    for (int64_t h = 0; h < heads; h += group) {
        int64_t n = heads - h < group ? heads - h : group, at = row_at + h * D;
        float *to = sh_cpu_stage_out(y, at, n * D, y_room);
        turn(to, sh_cpu_stage_in(x, at, n * D, x_room), cs, n, D, call->in[1].dim[1],
             call->attr->attn.inverse ? -1.0f : 1.0f);
        sh_cpu_stage_put(y, at, n * D, to);
    }
}

sh_rc sh_cpu_rope(const struct sh_op_call *call)
{
    const struct sh_operand *x = &call->in[0], *y = &call->out[0];
    const float *cs = call->in[1].data;
    const int32_t *docs = call->in[2].data;      /* positions start again in each document */
    const int32_t *positions = call->in[3].data; /* explicit positions, when a cache is continued */
    int64_t rows = x->dim[0] * x->dim[1], T = x->dim[1], D = call->attr->attn.head_dim;
    int64_t turned = (call->attr->attn.heads + call->attr->attn.kv_heads) * D,
            row = turned + call->attr->attn.kv_heads * D;
    size_t rest = (size_t)((row - turned) * sh_dtype_bytes(x->dtype));

    SH_REQUIRE(D <= SH_CPU_PIECE);
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < rows; n++) {
        rotate_row(call, n * row, cs + (positions ? positions[n] : n % T - (docs ? docs[n] : 0)) * call->in[1].dim[1]);
        int64_t at = n * row + turned;
        if (y->data != x->data)
            memcpy(sh_cpu_at(y->data, y->dtype, at), sh_cpu_at(x->data, x->dtype, at), rest);
    }
    return SH_OK;
}
