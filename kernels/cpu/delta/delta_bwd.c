/* The backward of the gated delta rule, from the last chunk on. What the forward kept are the states with which chunks
 * begin; the rest of a chunk is made again. A thread has a head of keys of a sequence and its heads of values in turn,
 * since they add up to the derivatives by one query and one key.
 *
 * Scratch: sums of each sequence and head for a_log and dt, in f64; of a thread a chunk, the derivatives by its matrices
 * and by the state, and those by the queries and keys of all its rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/delta/chunk.h"

#include <math.h>
#include <omp.h>
#include <string.h>

struct back {
    struct sh_chunk c;
    float *dS;          /* [D,V] by the state behind the chunk */
    float *dO, *X;      /* [n,V] X: by what U is solved from */
    float *dA, *dP;     /* [n,n] */
    float *dQ, *dK, *t; /* [n,D] */
    float *keys;        /* [T,2D] by the queries and keys, divided by their lengths */
    double *sums;       /* [2] of a_log, dt */
};

static int64_t floats_of(const struct sh_delta *s)
{
    int64_t n = SH_CHUNK, own = s->D * s->V + 2 * n * s->V + 2 * n * n + 3 * n * s->D + s->T * 2 * s->D;

    return sh_cpu_round64((sh_chunk_floats(s) + own) * 4) / 4;
}

static int64_t bytes_of_sums(const struct sh_delta *s)
{
    return sh_cpu_round64(s->B * s->H * 2 * (int64_t)sizeof(double));
}

int64_t sh_cpu_gated_delta_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_delta s = sh_delta_of(call, &call->in[1]);

    return bytes_of_sums(&s) + threads * floats_of(&s) * 4;
}

static struct back place(const struct sh_op_call *call, const struct sh_delta *s, int64_t thread)
{
    float *room = (float *)((char *)call->work + bytes_of_sums(s)) + thread * floats_of(s);
    struct back w = {.dS = room + sh_chunk_floats(s)};

    sh_chunk_place(&w.c, s, room);
    w.dO = w.dS + s->D * s->V;
    w.X = w.dO + SH_CHUNK * s->V;
    w.dA = w.X + SH_CHUNK * s->V;
    w.dP = w.dA + SH_CHUNK * SH_CHUNK;
    w.dQ = w.dP + SH_CHUNK * SH_CHUNK;
    w.dK = w.dQ + SH_CHUNK * s->D;
    w.t = w.dK + SH_CHUNK * s->D;
    w.keys = w.t + SH_CHUNK * s->D;
    return w;
}

static void clear(float *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

/* X = (I + A)^-T (P'dO + tail K dS) */
static void solve_back(struct back *w)
{
    const struct sh_chunk *c = &w->c;
    int64_t n = c->n, D = c->s.D, V = c->s.V;

    memcpy(w->t, c->K, (size_t)(n * D) * sizeof *w->t);
    sh_small_scale(w->t, c->tail, n, D);
    clear(w->X, n * V);
    sh_small_tn(w->X, c->P, w->dO, n, V, n);
    sh_small_nn(w->X, w->t, w->dS, n, V, D);
    for (int64_t i = n - 1; i >= 0; i--)
        for (int64_t j = i + 1; j < n; j++)
            for (int64_t v = 0; v < V; v++)
                w->X[i * V + v] -= c->A[j * n + i] * w->X[j * V + v];
}

/* dP = tril(dO U'), dA = -stril(X U'); what they say of decays goes into dG, and of b into dbeta. In their place is left
 * what multiplies QK' and, of both triangles, KK'. */
static void scores_back(struct back *w, double *dG, double *dbeta)
{
    const struct sh_chunk *c = &w->c;
    int64_t n = c->n, V = c->s.V;

    clear(w->dP, n * n);
    clear(w->dA, n * n);
    for (int64_t i = 0; i < n; i++) {
        dbeta[i] = (double)sh_cpu_row_dot(w->X + i * V, c->V + i * V, V);
        for (int64_t j = 0; j <= i; j++) {
            float dP = sh_cpu_row_dot(w->dO + i * V, c->U + j * V, V), F = c->F[i * n + j];
            float dA = j < i ? -sh_cpu_row_dot(w->X + i * V, c->U + j * V, V) : 0;
            double both = (double)dP * (double)c->P[i * n + j] + (double)dA * (double)c->A[i * n + j];

            dG[i] += both;
            dG[j] -= both;
            if (c->beta[i] > 0)
                dbeta[i] += (double)dA * (double)c->A[i * n + j] / (double)c->beta[i];
            w->dP[i * n + j] = dP * F;
            w->dA[i * n + j] += dA * c->beta[i] * F;
            w->dA[j * n + i] += dA * c->beta[i] * F;
        }
    }
}

/* Through what the chunk reads of its first state and leaves to the next. X becomes dKS = -b e^G X. */
static void states_back(struct back *w, const float *S, double *dG)
{
    const struct sh_chunk *c = &w->c;
    int64_t n = c->n, D = c->s.D, V = c->s.V;
    double all = S ? (double)c->grown[n - 1] * (double)sh_cpu_row_dot(S, w->dS, D * V) : 0;

    clear(w->t, n * D);
    sh_small_nt(w->t, c->U, w->dS, n, D, V);
    sh_small_scale(w->t, c->tail, n, D);
    for (int64_t i = 0; i < n; i++) {
        double left = (double)sh_cpu_row_dot(w->t + i * D, c->K + i * D, D);

        dG[i] -= left;
        all += left;
    }
    dG[n - 1] += all;
    sh_small_scale(w->dO, c->grown, n, V);
    for (int64_t i = 0; i < n; i++)
        sh_cpu_row_scale(w->X + i * V, V, -c->beta[i] * c->grown[i]);
    clear(w->dQ, n * D);
    clear(w->dK, n * D);
    if (S) {
        sh_small_nt(w->dQ, w->dO, S, n, D, V);
        sh_small_nt(w->dK, w->X, S, n, D, V);
    }
    for (int64_t i = 0; i < n; i++)
        dG[i] += (double)sh_cpu_row_dot(w->dQ + i * D, c->Q + i * D, D) +
                 (double)sh_cpu_row_dot(w->dK + i * D, c->K + i * D, D);
    for (int64_t i = 0; i < n * D; i++)
        w->dK[i] += w->t[i];
    sh_small_nn(w->dQ, w->dP, c->K, n, D, n);
    sh_small_tn(w->dK, w->dP, c->Q, n, D, n);
    sh_small_nn(w->dK, w->dA, c->K, n, D, n);
    sh_cpu_row_scale(w->dS, D * V, c->grown[n - 1]);
    sh_small_tn(w->dS, c->Q, w->dO, D, V, n);
    sh_small_tn(w->dS, c->K, w->X, D, V, n);
}

static void store(const struct sh_operand *t, int64_t at, int64_t n, const float *from)
{
    sh_cpu_block_store((struct sh_cpu_block){1, n}, sh_cpu_at(t->data, t->dtype, at), n, t->dtype, from, n);
}

/* dG to dg, which is its sum from each row on; then to a, b, and the sums. */
static void gates_back(const struct sh_op_call *call, struct back *w, const double *dG, const double *dbeta)
{
    const struct sh_chunk *c = &w->c;
    double dg = 0;
    float A;

    sh_cpu_block_load((struct sh_cpu_block){1, 1}, &A, 1, sh_cpu_at(call->in[3].data, call->in[3].dtype, c->h), 1,
                      call->in[3].dtype);
    for (int64_t i = c->n - 1; i >= 0; i--) {
        int64_t at = (c->b * c->s.T + c->begin + i) * 2 * c->s.H + c->h;
        double b = (double)c->beta[i], draw;
        float db = (float)(dbeta[i] * b * (1 - b)), da;

        dg += dG[i];
        draw = -dg * exp((double)A) / (1 + exp(-c->raw[i]));
        da = (float)draw;
        store(&call->out[1], at, 1, &db);
        store(&call->out[1], at + c->s.H, 1, &da);
        w->sums[0] += dg * c->g[i];
        w->sums[1] += draw;
    }
}

static void chunk_back(const struct sh_op_call *call, struct back *w, const float *S)
{
    struct sh_chunk *c = &w->c;
    int64_t n = c->n, D = c->s.D, V = c->s.V, value = 2 * c->s.K * D + c->h * V;
    double dG[SH_CHUNK] = {0}, dbeta[SH_CHUNK];

    sh_chunk_load(c, call, 1);
    sh_chunk_solve(c, S);
    for (int64_t i = 0; i < n; i++)
        sh_cpu_block_load(
            (struct sh_cpu_block){1, V}, w->dO + i * V, V,
            sh_cpu_at(call->in[0].data, call->in[0].dtype, ((c->b * c->s.T + c->begin + i) * c->s.H + c->h) * V), V,
            call->in[0].dtype);
    solve_back(w);
    scores_back(w, dG, dbeta);
    for (int64_t i = 0; i < n; i++) { /* in place of W, which has been read */
        for (int64_t v = 0; v < V; v++)
            c->V[i * V + v] = c->beta[i] * w->X[i * V + v];
        store(&call->out[0], (c->b * c->s.T + c->begin + i) * c->s.row + value, V, c->V + i * V);
    }
    states_back(w, S, dG);
    gates_back(call, w, dG, dbeta);
    for (int64_t i = 0; i < n; i++) {
        float *to = w->keys + (c->begin + i) * 2 * D;

        for (int64_t d = 0; d < D; d++) {
            to[d] += w->dQ[i * D + d];
            to[D + d] += w->dK[i * D + d];
        }
    }
}

static void head_back(const struct sh_op_call *call, struct back *w)
{
    struct sh_chunk *c = &w->c;
    const struct sh_delta *s = &c->s;
    const struct sh_operand *docs = &call->in[5];
    const float *kept = call->in[6].data;

    clear(w->dS, s->D * s->V);
    for (int64_t end = s->T; end > 0; end = c->begin) {
        bool starts;

        c->begin = sh_delta_begin(docs, c->b, end - 1);
        c->n = end - c->begin;
        starts = c->begin == sh_delta_first(docs, c->b, c->begin);
        chunk_back(call, w, starts ? NULL : kept + sh_delta_slot(s, c->b, c->begin, c->h));
        if (starts)
            clear(w->dS, s->D * s->V);
    }
}

/* Through the length of a query or key: of y = x / |x| the derivative is (dy - y (y.dy)) / |x|. */
static void unit_back(const struct sh_operand *x, const struct sh_operand *dx, int64_t at, int64_t n, float scale,
                      float *d)
{
    float y[SH_DELTA_HEAD], by, sum;

    sh_cpu_block_load((struct sh_cpu_block){1, n}, y, n, sh_cpu_at(x->data, x->dtype, at), n, x->dtype);
    by = 1 / sqrtf(sh_cpu_row_dot(y, y, n) + (float)SH_DELTA_LEAST);
    sh_cpu_row_scale(y, n, by);
    sum = sh_cpu_row_dot(y, d, n);
    for (int64_t i = 0; i < n; i++)
        d[i] = by * scale * (d[i] - y[i] * sum);
    store(dx, at, n, d);
}

static void lengths_back(const struct sh_op_call *call, const struct back *w, int64_t key)
{
    const struct sh_delta *s = &w->c.s;

    for (int64_t i = 0; i < 2 * s->T; i++)
        unit_back(&call->in[1], &call->out[0], (w->c.b * s->T + i / 2) * s->row + (i % 2 * s->K + key) * s->D, s->D,
                  i % 2 ? 1 : 1 / sqrtf((float)s->D), w->keys + i * s->D);
}

static void sum_heads(const struct sh_op_call *call, const struct sh_delta *s)
{
    const double *sums = call->work;

    for (int k = 0; k < 2; k++) {
        float *to = call->out[2 + k].data;

        for (int64_t h = 0; to && h < s->H; h++) {
            double sum = sh_op_adds(call, 2 + k) ? (double)to[h] : 0;

            for (int64_t b = 0; b < s->B; b++)
                sum += sums[(b * s->H + h) * 2 + k];
            to[h] = (float)sum;
        }
    }
}

sh_rc sh_cpu_gated_delta_bwd(const struct sh_op_call *call)
{
    struct sh_delta s = sh_delta_of(call, &call->in[1]);
    int64_t each = s.H / s.K;

    memset(call->work, 0, (size_t)bytes_of_sums(&s));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s.B * s.K; i++) {
        struct back w = place(call, &s, omp_get_thread_num());

        clear(w.keys, s.T * 2 * s.D);
        w.c.b = i / s.K;
        for (w.c.h = i % s.K * each; w.c.h < (i % s.K + 1) * each; w.c.h++) {
            w.sums = (double *)call->work + (w.c.b * s.H + w.c.h) * 2;
            head_back(call, &w);
        }
        lengths_back(call, &w, i % s.K);
    }
    sum_heads(call, &s);
    return SH_OK;
}
