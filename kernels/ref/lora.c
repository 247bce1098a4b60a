/* Low-rank adapters for linear products (Hu et al., LoRA, arXiv:2106.09685). y is the product with a stack of
 * matrices. Each adapted part of the stack has matrices A [R,I] and B [width,R]: u = scale x A', and u B' is added to
 * the part's columns. Backward: du = scale dy B, dx = du A + dres, dA = du' x, dB = dy' u. */
#include "kernels/ref/ref.h"

struct shape {
    int64_t N, M, I, R, parts;
};

static struct shape shape_of(const struct sh_operand *y, const struct sh_operand *a, const struct sh_operand *b,
                             const struct sh_op_call *call)
{
    return (struct shape){
        .N = y->dim[0], .M = y->dim[1], .I = a->dim[1], .R = b->dim[1], .parts = call->attr->lora.parts};
}

/* The first row of b that belongs to a part. */
static int64_t first_row(const struct sh_op_call *call, int64_t part)
{
    int64_t row = 0;

    for (int64_t p = 0; p < part; p++)
        row += call->attr->lora.width[p];
    return row;
}

/* u of one row; it is rounded to its type before it is used. */
static void make_u(const struct sh_op_call *call, struct shape s, int64_t n)
{
    for (int64_t r = 0; r < s.parts * s.R; r++) {
        double sum = 0;
        for (int64_t i = 0; i < s.I; i++)
            sum += sh_ref_get(&call->in[1], n * s.I + i) * sh_ref_get(&call->in[2], r * s.I + i);
        sh_ref_set(&call->out[1], n * s.parts * s.R + r, sum * (double)call->attr->lora.scale);
    }
}

/* The columns of one part in one row. */
static void add_part(const struct sh_op_call *call, struct shape s, int64_t n, int64_t part)
{
    const struct sh_operand *u = &call->out[1], *b = &call->in[3], *z = &call->out[0];

    for (int64_t c = 0; c < call->attr->lora.width[part]; c++) {
        int64_t at = n * s.M + call->attr->lora.first[part] + c, row = first_row(call, part) + c;
        double sum = sh_ref_get(z, at);
        for (int64_t r = 0; r < s.R; r++)
            sum += sh_ref_get(u, (n * s.parts + part) * s.R + r) * sh_ref_get(b, row * s.R + r);
        sh_ref_set(z, at, sum);
    }
}

sh_rc sh_ref_lora(const struct sh_op_call *call)
{
    struct shape s = shape_of(&call->in[0], &call->in[2], &call->in[3], call);

    for (int64_t n = 0; n < s.N; n++) {
        for (int64_t c = 0; c < s.M; c++)
            sh_ref_set(&call->out[0], n * s.M + c, sh_ref_get(&call->in[0], n * s.M + c));
        make_u(call, s, n);
        for (int64_t p = 0; p < s.parts; p++)
            add_part(call, s, n, p);
    }
    return SH_OK;
}

/* Scratch: du, in double. */
int64_t sh_ref_lora_bwd_work_bytes(const struct sh_op_call *call)
{
    return call->in[2].dim[0] * call->in[2].dim[1] * (int64_t)sizeof(double);
}

/* du [N,K] of all parts; each column of du belongs to one part, as in u. */
static void make_du(const struct sh_op_call *call, struct shape s, double *du)
{
    const struct sh_operand *dy = &call->in[0], *b = &call->in[4];

    for (int64_t n = 0; n < s.N; n++)
        for (int64_t p = 0; p < s.parts; p++)
            for (int64_t r = 0; r < s.R; r++) {
                double sum = 0;
                for (int64_t c = 0; c < call->attr->lora.width[p]; c++)
                    sum += sh_ref_get(dy, n * s.M + call->attr->lora.first[p] + c) *
                           sh_ref_get(b, (first_row(call, p) + c) * s.R + r);
                du[(n * s.parts + p) * s.R + r] = sum * (double)call->attr->lora.scale;
            }
}

/* dx = du a + dres, da = du' x */
static void through_a(const struct sh_op_call *call, struct shape s, const double *du)
{
    const struct sh_operand *x = &call->in[1], *a = &call->in[3], *dres = &call->in[5], *dx = &call->out[0];
    int64_t K = s.parts * s.R;

    for (int64_t r = 0; r < K; r++)
        for (int64_t i = 0; i < s.I; i++) {
            double sum = 0;
            for (int64_t n = 0; n < s.N; n++)
                sum += du[n * K + r] * sh_ref_get(x, n * s.I + i);
            sh_ref_sum(call, 1, r * s.I + i, sum);
        }
    for (int64_t n = 0; dx->data && n < s.N; n++)
        for (int64_t i = 0; i < s.I; i++) {
            double sum = dres->data ? sh_ref_get(dres, n * s.I + i) : 0;
            for (int64_t r = 0; r < K; r++)
                sum += du[n * K + r] * sh_ref_get(a, r * s.I + i);
            sh_ref_set(dx, n * s.I + i, sum);
        }
}

/* db = dy' u, part by part */
static void into_b(const struct sh_op_call *call, struct shape s)
{
    const struct sh_operand *dy = &call->in[0], *u = &call->in[2];

    for (int64_t p = 0; p < s.parts; p++)
        for (int64_t c = 0; c < call->attr->lora.width[p]; c++)
            for (int64_t r = 0; r < s.R; r++) {
                double sum = 0;
                for (int64_t n = 0; n < s.N; n++)
                    sum += sh_ref_get(dy, n * s.M + call->attr->lora.first[p] + c) *
                           sh_ref_get(u, (n * s.parts + p) * s.R + r);
                sh_ref_sum(call, 2, (first_row(call, p) + c) * s.R + r, sum);
            }
}

sh_rc sh_ref_lora_bwd(const struct sh_op_call *call)
{
    struct shape s = shape_of(&call->in[0], &call->in[3], &call->in[4], call);

    make_du(call, s, call->work);
    into_b(call, s);
    through_a(call, s, call->work);
    return SH_OK;
}
