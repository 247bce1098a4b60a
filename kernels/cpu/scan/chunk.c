#include "kernels/cpu/base/math.h"
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/scan/scan.h"

#include <math.h>
#include <string.h>

struct sh_dual_call sh_dual_call_of(const struct sh_op_call *call, int x)
{
    return (struct sh_dual_call){call, sh_space_of(call, &call->in[x]), x, sh_gemm_engine_for(SH_F32)};
}

int64_t sh_dual_steps(const struct sh_dual_call *c)
{
    int64_t most = 0;

    for (int64_t b = 0; b < c->s.B; b++) {
        int64_t n = 0;

        for (int64_t t = 0; t < c->s.T; n++)
            t = sh_space_end(&c->call->in[c->x + 3], b, t, c->s.T);
        most = n > most ? n : most;
    }
    return most;
}

/* Whole cache lines, since a thread writes one of these while its neighbour writes the next. */
static int64_t floats(int64_t n)
{
    return sh_cpu_round64(n * (int64_t)sizeof(float)) / (int64_t)sizeof(float);
}

static int64_t floats_of_group(const struct sh_delta *s)
{
    return floats(SH_SCAN_ROWS * (2 * s->D + SH_SCAN_ROWS));
}

static int64_t bytes_of_group(void)
{
    return sh_cpu_round64(sizeof(struct sh_dual_group));
}

int64_t sh_dual_groups_bytes(const struct sh_delta *s)
{
    return s->B * s->K * (bytes_of_group() + floats_of_group(s) * 4);
}

struct sh_dual_group *sh_dual_group_at(const struct sh_dual_call *c, int64_t i)
{
    return (struct sh_dual_group *)((char *)c->call->work + i * bytes_of_group());
}

struct sh_dual_group *sh_dual_group_of(const struct sh_dual_call *c, int64_t b, int64_t head)
{
    return sh_dual_group_at(c, b * c->s.K + head / (c->s.H / c->s.K));
}

void sh_dual_begin_groups(const struct sh_dual_call *c, int64_t begin)
{
    const struct sh_delta *s = &c->s;
    float *room = (float *)((char *)c->call->work + s->B * s->K * bytes_of_group());

    for (int64_t i = 0; i < s->B * s->K; i++, room += floats_of_group(s))
        *sh_dual_group_at(c, i) = (struct sh_dual_group){.b = i / s->K,
                                                         .g = i % s->K,
                                                         .begin = begin,
                                                         .M = room,
                                                         .B = room + SH_SCAN_ROWS * SH_SCAN_ROWS,
                                                         .C = room + SH_SCAN_ROWS * (SH_SCAN_ROWS + s->D)};
}

int64_t sh_dual_head_floats(const struct sh_delta *s)
{
    return floats(SH_SCAN_ROWS * (2 * s->V + 2 * SH_SCAN_ROWS));
}

void sh_dual_place_head(struct sh_dual_head *h, const struct sh_delta *s, float *room)
{
    h->P = room;
    h->F = h->P + SH_SCAN_ROWS * SH_SCAN_ROWS;
    h->X = h->F + SH_SCAN_ROWS * SH_SCAN_ROWS;
    h->U = h->X + SH_SCAN_ROWS * s->V;
}

void sh_dual_load(const struct sh_operand *t, int64_t at, int64_t elems, int64_t n, int64_t cols, float *to)
{
    sh_cpu_block_load((struct sh_cpu_block){n, cols}, to, cols, sh_cpu_at(t->data, t->dtype, at), elems, t->dtype);
}

void sh_dual_store(const struct sh_operand *t, int64_t at, int64_t elems, int64_t n, int64_t cols, const float *from)
{
    sh_cpu_block_store((struct sh_cpu_block){n, cols}, sh_cpu_at(t->data, t->dtype, at), elems, t->dtype, from, cols);
}

SH_CLONES void sh_dual_add(float *restrict to, const float *restrict from, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += by * from[i];
}

void sh_dual_scale(float *a, const float *by, int64_t rows, int64_t n)
{
    for (int64_t i = 0; i < rows; i++)
        sh_cpu_row_scale(a + i * n, n, by[i]);
}

sh_rc sh_dual_product(const struct sh_dual_call *c, const struct sh_gemm_tile *t)
{
    struct sh_gemm_tile dense = *t;

    dense.lda = t->trans_a ? t->m : t->k;
    dense.ldb = t->trans_b ? t->k : t->n;
    dense.ldc = t->n;
    return c->f32->tile(&dense, NULL);
}

sh_rc sh_dual_load_group(const struct sh_dual_call *c, struct sh_dual_group *g)
{
    const struct sh_delta *s = &c->s;
    int64_t n = g->n, at = (g->b * s->T + g->begin) * s->row + s->H * s->V + g->g * s->D;

    if (!n)
        return SH_OK;
    sh_dual_load(&c->call->in[c->x], at, s->row, n, s->D, g->B);
    sh_dual_load(&c->call->in[c->x], at + s->K * s->D, s->row, n, s->D, g->C);
    return sh_dual_product(
        c, &(struct sh_gemm_tile){.m = n, .n = n, .k = s->D, .a = g->C, .b = g->B, .trans_b = true, .c = g->M});
}

static double softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

bool sh_dual_moves(const struct sh_dual_call *c, const struct sh_dual_head *h, int64_t i)
{
    return softplus(h->raw[i]) >= (double)c->call->attr->delta.least;
}

/* Steps and decays. */
static void load_steps(const struct sh_dual_call *c, const struct sh_dual_group *g, int64_t head,
                       struct sh_dual_head *h)
{
    const struct sh_operand *heads = &c->call->in[c->x + 2];
    double sum = 0, least = (double)c->call->attr->delta.least;
    float a_log, bias, dt[SH_SCAN_ROWS];

    sh_dual_load(heads, head, 1, 1, 1, &a_log);
    sh_dual_load(heads, c->s.H + head, 1, 1, 1, &bias);
    sh_dual_load(heads, 2 * c->s.H + head, 1, 1, 1, &h->skip);
    sh_dual_load(&c->call->in[c->x + 1], (g->b * c->s.T + g->begin) * c->s.H + head, c->s.H, g->n, 1, dt);
    h->decay = exp((double)a_log);
    for (int64_t i = 0; i < g->n; i++) {
        double step;

        h->raw[i] = (double)dt[i] + (double)bias;
        step = fmax(softplus(h->raw[i]), least);
        h->step[i] = (float)step;
        h->G[i] = sum -= h->decay * step;
    }
    for (int64_t i = 0; i < g->n; i++) {
        h->grown[i] = (float)exp(h->G[i]);
        h->tail[i] = (float)exp(sum - h->G[i]);
    }
}

/* F and P of row i, up to its diagonal; P is 0 behind it. */
SH_CLONES static void decay_row(float *restrict P, float *restrict F, const float *restrict M, const double *restrict G,
                                int64_t i, int64_t n)
{
    double own = G[i];

    for (int64_t j = 0; j <= i; j++) {
        F[j] = sh_expf((float)(own - G[j]));
        P[j] = M[j] * F[j];
    }
    for (int64_t j = i + 1; j < n; j++)
        F[j] = P[j] = 0;
}

void sh_dual_load_head(const struct sh_dual_call *c, const struct sh_dual_group *g, int64_t head,
                       struct sh_dual_head *h)
{
    const struct sh_delta *s = &c->s;
    int64_t n = g->n;

    load_steps(c, g, head, h);
    sh_dual_load(&c->call->in[c->x], (g->b * s->T + g->begin) * s->row + head * s->V, s->row, n, s->V, h->X);
    memcpy(h->U, h->X, (size_t)(n * s->V) * sizeof *h->U);
    sh_dual_scale(h->U, h->step, n, s->V);
    for (int64_t i = 0; i < n; i++)
        decay_row(h->P + i * n, h->F + i * n, g->M + i * n, h->G, i, n);
}
