#include "kernels/cpu/delta/chunk.h"

#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "src/base/clones.h"

#include <math.h>
#include <string.h>

SH_CLONES static void add_row(float *restrict to, const float *restrict from, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += by * from[i];
}

void sh_small_nn(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++)
            add_row(c + i * n, b + j * n, a[i * k + j], n);
}

void sh_small_nt(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            c[i * n + j] += sh_cpu_row_dot(a + i * k, b + j * k, k);
}

void sh_small_tn(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k)
{
    for (int64_t j = 0; j < k; j++)
        for (int64_t i = 0; i < m; i++)
            add_row(c + i * n, b + j * n, a[j * m + i], n);
}

void sh_small_scale(float *a, const float *by, int64_t rows, int64_t n)
{
    for (int64_t i = 0; i < rows; i++)
        sh_cpu_row_scale(a + i * n, n, by[i]);
}

int64_t sh_chunk_floats(const struct sh_delta *s)
{
    return SH_CHUNK * (2 * s->D + 2 * s->V + 3 * SH_CHUNK);
}

void sh_chunk_place(struct sh_chunk *c, const struct sh_delta *s, float *room)
{
    c->s = *s;
    c->Q = room;
    c->K = c->Q + SH_CHUNK * s->D;
    c->V = c->K + SH_CHUNK * s->D;
    c->U = c->V + SH_CHUNK * s->V;
    c->A = c->U + SH_CHUNK * s->V;
    c->P = c->A + SH_CHUNK * SH_CHUNK;
    c->F = c->P + SH_CHUNK * SH_CHUNK;
}

static void load(const struct sh_operand *t, int64_t at, int64_t n, float *to)
{
    sh_cpu_block_load((struct sh_cpu_block){1, n}, to, n, sh_cpu_at(t->data, t->dtype, at), n, t->dtype);
}

/* A query or key, divided by its length. Returns 1 / length. */
static float load_unit(const struct sh_operand *x, int64_t at, int64_t n, float times, float *to)
{
    float by;

    load(x, at, n, to);
    by = 1 / sqrtf(sh_cpu_row_dot(to, to, n) + (float)SH_DELTA_LEAST);
    sh_cpu_row_scale(to, n, by * times);
    return by;
}

static void load_rows(struct sh_chunk *c, const struct sh_operand *x)
{
    const struct sh_delta *s = &c->s;
    int64_t key = c->h / (s->H / s->K) * s->D, value = 2 * s->K * s->D + c->h * s->V;

    for (int64_t i = 0; i < c->n; i++) {
        int64_t at = (c->b * s->T + c->begin + i) * s->row;

        c->by_q[i] = load_unit(x, at + key, s->D, 1 / sqrtf((float)s->D), c->Q + i * s->D);
        c->by_k[i] = load_unit(x, at + s->K * s->D + key, s->D, 1, c->K + i * s->D);
        load(x, at + value, s->V, c->V + i * s->V);
    }
}

static double softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

static void load_gates(struct sh_chunk *c, const struct sh_operand *ba, const struct sh_operand *a_log,
                       const struct sh_operand *dt)
{
    double sum = 0;
    float A, add;

    load(a_log, c->h, 1, &A);
    load(dt, c->h, 1, &add);
    for (int64_t i = 0; i < c->n; i++) {
        int64_t at = (c->b * c->s.T + c->begin + i) * 2 * c->s.H + c->h;
        float b, a;

        load(ba, at, 1, &b);
        load(ba, at + c->s.H, 1, &a);
        c->raw[i] = (double)a + (double)add;
        c->g[i] = -exp((double)A) * softplus(c->raw[i]);
        c->G[i] = sum += c->g[i];
        c->beta[i] = 1 / (1 + expf(-b));
    }
    for (int64_t i = 0; i < c->n; i++) {
        c->grown[i] = (float)exp(c->G[i]);
        c->tail[i] = (float)exp(sum - c->G[i]);
    }
}

void sh_chunk_load(struct sh_chunk *c, const struct sh_op_call *call, int first)
{
    int64_t n = c->n, D = c->s.D;

    load_rows(c, &call->in[first]);
    load_gates(c, &call->in[first + 1], &call->in[first + 2], &call->in[first + 3]);
    memset(c->A, 0, (size_t)(n * n) * sizeof *c->A);
    memset(c->P, 0, (size_t)(n * n) * sizeof *c->P);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            float *A = &c->A[i * n + j], F = (float)exp(c->G[i] - c->G[j]);

            c->F[i * n + j] = F;
            c->P[i * n + j] = sh_cpu_row_dot(c->Q + i * D, c->K + j * D, D) * F;
            if (j < i)
                *A = c->beta[i] * sh_cpu_row_dot(c->K + i * D, c->K + j * D, D) * F;
        }
}

void sh_chunk_solve(struct sh_chunk *c, const float *S)
{
    int64_t n = c->n, V = c->s.V;

    memset(c->U, 0, (size_t)(n * V) * sizeof *c->U);
    if (S)
        sh_small_nn(c->U, c->K, S, n, V, c->s.D);
    for (int64_t i = 0; i < n; i++) {
        float *w = c->V + i * V, *u = c->U + i * V;

        for (int64_t v = 0; v < V; v++) {
            w[v] -= c->grown[i] * u[v];
            u[v] = c->beta[i] * w[v];
        }
        for (int64_t j = 0; j < i; j++)
            add_row(u, c->U + j * V, -c->A[i * n + j], V);
    }
}

void sh_chunk_run(struct sh_chunk *c, float *S, bool starts, float *out)
{
    int64_t n = c->n, D = c->s.D, V = c->s.V;

    sh_chunk_solve(c, starts ? NULL : S);
    memset(out, 0, (size_t)(n * V) * sizeof *out);
    if (starts)
        memset(S, 0, (size_t)(D * V) * sizeof *S);
    else
        sh_small_nn(out, c->Q, S, n, V, D);
    sh_small_scale(out, c->grown, n, V);
    sh_small_nn(out, c->P, c->U, n, V, n);
    sh_small_scale(c->K, c->tail, n, D);
    sh_cpu_row_scale(S, D * V, c->grown[n - 1]);
    sh_small_tn(S, c->K, c->U, D, V, n);
}

void sh_chunk_store(const struct sh_chunk *c, const struct sh_operand *y, const float *out)
{
    int64_t V = c->s.V;

    for (int64_t i = 0; i < c->n; i++) {
        int64_t at = ((c->b * c->s.T + c->begin + i) * c->s.H + c->h) * V;

        sh_cpu_block_store((struct sh_cpu_block){1, V}, sh_cpu_at(y->data, y->dtype, at), V, y->dtype, out + i * V, V);
    }
}
