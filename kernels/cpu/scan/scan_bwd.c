/* The backward of the state-space dual form, from the last chunk on. What the forward kept are the states with which
 * chunks begin; the rest of a chunk is made again. Heads of a group add up to the derivatives by its B and C: each leaves
 * its own in scratch, and the group sums them in the order of its heads.
 *
 * Scratch: sums of each sequence and head for the head's three parameters, in f64; the matrices of all groups; of all
 * heads the derivatives by their states, and those by B, C and M of the chunk; of a thread the matrices of a head. */
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scan/scan.h"
#include "src/base/clones.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { SUMS = 3 }; /* of a_log, bias and skip, as the parameters lie */

struct back {
    struct sh_dual_head h;
    float *dO, *dU, *t; /* [n,V] */
    float *dP;          /* [n,n] */
    double dG[SH_SCAN_ROWS], dstep[SH_SCAN_ROWS];
    /* Of the head, beyond the chunk or the thread. */
    float *dS;           /* [D,V] by the state behind the chunk */
    float *dB, *dC, *dM; /* [n,D] twice, [n,n] */
    double *sums;
};

static int64_t bytes_of_sums(const struct sh_delta *s)
{
    return sh_cpu_round64(s->B * s->H * SUMS * (int64_t)sizeof(double));
}

static int64_t bytes_of_head(const struct sh_delta *s)
{
    return sh_cpu_round64((s->D * s->V + SH_SCAN_ROWS * (2 * s->D + SH_SCAN_ROWS)) * 4);
}

static int64_t bytes_of_thread(const struct sh_delta *s)
{
    return (sh_dual_head_floats(s) + SH_SCAN_ROWS * (3 * s->V + SH_SCAN_ROWS)) * 4;
}

int64_t sh_cpu_scan_bwd_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_delta s = sh_space_of(call, &call->in[1]);

    return sh_dual_groups_bytes(&s) + bytes_of_sums(&s) + s.B * s.H * bytes_of_head(&s) + threads * bytes_of_thread(&s);
}

static char *behind_groups(const struct sh_dual_call *c)
{
    return (char *)c->call->work + sh_dual_groups_bytes(&c->s);
}

static float *head_at(const struct sh_dual_call *c, int64_t b, int64_t head)
{
    return (float *)(behind_groups(c) + bytes_of_sums(&c->s) + (b * c->s.H + head) * bytes_of_head(&c->s));
}

static void place_thread(struct back *w, const struct sh_dual_call *c, int64_t thread)
{
    const struct sh_delta *s = &c->s;
    float *room = (float *)((char *)head_at(c, s->B, 0) + thread * bytes_of_thread(s));

    sh_dual_place_head(&w->h, s, room);
    w->dP = room + sh_dual_head_floats(s);
    w->dO = w->dP + SH_SCAN_ROWS * SH_SCAN_ROWS;
    w->dU = w->dO + SH_SCAN_ROWS * s->V;
    w->t = w->dU + SH_SCAN_ROWS * s->V;
}

static void place_head(struct back *w, const struct sh_dual_call *c, int64_t b, int64_t head)
{
    w->dS = head_at(c, b, head);
    w->dM = w->dS + c->s.D * c->s.V;
    w->dB = w->dM + SH_SCAN_ROWS * SH_SCAN_ROWS;
    w->dC = w->dB + SH_SCAN_ROWS * c->s.D;
    w->sums = (double *)behind_groups(c) + (b * c->s.H + head) * SUMS;
}

/* ---- a head ---- */

/* dU = tail B dS + P'dO, and what the state behind the chunk says of decays. */
static sh_rc inputs_back(const struct sh_dual_call *c, const struct sh_dual_group *g, struct back *w)
{
    int64_t n = g->n, D = c->s.D, V = c->s.V;
    double all = 0;

    SH_TRY(sh_dual_product(c, &(struct sh_gemm_tile){.m = n, .n = V, .k = D, .a = g->B, .b = w->dS, .c = w->dU}));
    sh_dual_scale(w->dU, w->h.tail, n, V);
    for (int64_t i = 0; i < n; i++) {
        double left = (double)sh_cpu_row_dot(w->dU + i * V, w->h.U + i * V, V);

        w->dG[i] = -left;
        all += left;
    }
    w->dG[n - 1] += all;
    return sh_dual_product(
        c, &(struct sh_gemm_tile){
               .m = n, .n = V, .k = n, .a = w->h.P, .trans_a = true, .b = w->dO, .c = w->dU, .add = true});
}

/* dM = dP F up to the diagonal, 0 behind it. What dP P says of decays goes into col, and its sum is returned: the diagonal
 * has none. */
SH_CLONES static double scores_row(float *restrict dM, double *restrict col, const float *restrict dP,
                                   const float *restrict P, const float *restrict F, int64_t i, int64_t n)
{
    double sum = 0;

    for (int64_t j = 0; j < n; j++)
        dM[j] = dP[j] * F[j];
    for (int64_t j = 0; j < i; j++) {
        double both = (double)dP[j] * (double)P[j];

        sum += both;
        col[j] -= both;
    }
    return sum;
}

static sh_rc scores_back(const struct sh_dual_call *c, const struct sh_dual_group *g, struct back *w)
{
    int64_t n = g->n;

    SH_TRY(sh_dual_product(
        c, &(struct sh_gemm_tile){.m = n, .n = n, .k = c->s.V, .a = w->dO, .b = w->h.U, .trans_b = true, .c = w->dP}));
    for (int64_t i = 0; i < n; i++)
        w->dG[i] += scores_row(w->dM + i * n, w->dG, w->dP + i * n, w->h.P + i * n, w->h.F + i * n, i, n);
    return SH_OK;
}

/* dX, steps, and the factor of what is skipped. */
static void values_back(const struct sh_dual_call *c, const struct sh_dual_group *g, int64_t head, struct back *w)
{
    const struct sh_delta *s = &c->s;
    int64_t n = g->n, V = s->V;

    for (int64_t i = 0; i < n; i++) {
        w->dstep[i] = (double)sh_cpu_row_dot(w->dU + i * V, w->h.X + i * V, V);
        w->sums[2] += (double)sh_cpu_row_dot(w->dO + i * V, w->h.X + i * V, V);
    }
    sh_dual_scale(w->dU, w->h.step, n, V);
    sh_dual_add(w->dU, w->dO, w->h.skip, n * V);
    sh_dual_store(&c->call->out[0], (g->b * s->T + g->begin) * s->row + head * V, s->row, n, V, w->dU);
}

/* Through the state S with which the chunk begins, and the one behind it. */
static sh_rc states_back(const struct sh_dual_call *c, const struct sh_dual_group *g, const float *S, struct back *w)
{
    int64_t n = g->n, D = c->s.D, V = c->s.V;

    sh_dual_scale(w->h.U, w->h.tail, n, V);
    SH_TRY(sh_dual_product(
        c, &(struct sh_gemm_tile){.m = n, .n = D, .k = V, .a = w->h.U, .b = w->dS, .trans_b = true, .c = w->dB}));
    memset(w->dC, 0, (size_t)(n * D) * sizeof *w->dC);
    if (!S) {
        memset(w->dS, 0, (size_t)(D * V) * sizeof *w->dS);
        return SH_OK;
    }
    w->dG[n - 1] += (double)w->h.grown[n - 1] * (double)sh_cpu_row_dot(S, w->dS, D * V);
    SH_TRY(sh_dual_product(c, &(struct sh_gemm_tile){.m = n, .n = V, .k = D, .a = g->C, .b = S, .c = w->t}));
    sh_dual_scale(w->dO, w->h.grown, n, V);
    for (int64_t i = 0; i < n; i++)
        w->dG[i] += (double)sh_cpu_row_dot(w->t + i * V, w->dO + i * V, V);
    SH_TRY(sh_dual_product(
        c, &(struct sh_gemm_tile){.m = n, .n = D, .k = V, .a = w->dO, .b = S, .trans_b = true, .c = w->dC}));
    sh_cpu_row_scale(w->dS, D * V, w->h.grown[n - 1]);
    return sh_dual_product(
        c, &(struct sh_gemm_tile){
               .m = D, .n = V, .k = n, .a = g->C, .trans_a = true, .b = w->dO, .c = w->dS, .add = true});
}

/* dG to the derivatives by decays, each the sum from its row on; then to dt and the sums. */
static void steps_back(const struct sh_dual_call *c, const struct sh_dual_group *g, int64_t head, struct back *w)
{
    float ddt[SH_SCAN_ROWS];
    double dg = 0;

    for (int64_t i = g->n - 1; i >= 0; i--) {
        double draw = 0;

        dg += w->dG[i];
        if (sh_dual_moves(c, &w->h, i))
            draw = (w->dstep[i] - w->h.decay * dg) / (1 + exp(-w->h.raw[i]));
        ddt[i] = (float)draw;
        w->sums[0] -= dg * w->h.decay * (double)w->h.step[i];
        w->sums[1] += draw;
    }
    sh_dual_store(&c->call->out[1], (g->b * c->s.T + g->begin) * c->s.H + head, c->s.H, g->n, 1, ddt);
}

static sh_rc head_back(const struct sh_dual_call *c, int64_t b, int64_t head, struct back *w)
{
    const struct sh_dual_group *g = sh_dual_group_of(c, b, head);
    const struct sh_delta *s = &c->s;
    const float *kept = c->call->in[5].data;

    if (!g->n)
        return SH_OK;
    place_head(w, c, b, head);
    sh_dual_load_head(c, g, head, &w->h);
    sh_dual_load(&c->call->in[0], ((b * s->T + g->begin) * s->H + head) * s->V, s->H * s->V, g->n, s->V, w->dO);
    SH_TRY(inputs_back(c, g, w));
    SH_TRY(scores_back(c, g, w));
    values_back(c, g, head, w);
    SH_TRY(states_back(c, g, g->starts ? NULL : kept + sh_space_slot(s, b, g->begin, head), w));
    steps_back(c, g, head, w);
    return SH_OK;
}

/* ---- a group ---- */

/* What its heads left: dC = sum dC + dM B, dB = sum dB + dM'C. The sums lie where the first head's were. */
static sh_rc group_back(const struct sh_dual_call *c, const struct sh_dual_group *g)
{
    const struct sh_delta *s = &c->s;
    int64_t each = s->H / s->K, n = g->n, D = s->D, at = (g->b * s->T + g->begin) * s->row + s->H * s->V + g->g * D;
    struct back to, from;

    if (!n)
        return SH_OK;
    place_head(&to, c, g->b, g->g * each);
    for (int64_t h = 1; h < each; h++) {
        place_head(&from, c, g->b, g->g * each + h);
        sh_dual_add(to.dM, from.dM, 1, n * n);
        sh_dual_add(to.dB, from.dB, 1, n * D);
        sh_dual_add(to.dC, from.dC, 1, n * D);
    }
    SH_TRY(sh_dual_product(
        c, &(struct sh_gemm_tile){.m = n, .n = D, .k = n, .a = to.dM, .b = g->B, .c = to.dC, .add = true}));
    SH_TRY(sh_dual_product(
        c, &(struct sh_gemm_tile){
               .m = n, .n = D, .k = n, .a = to.dM, .trans_a = true, .b = g->C, .c = to.dB, .add = true}));
    sh_dual_store(&c->call->out[0], at, s->row, n, D, to.dB);
    sh_dual_store(&c->call->out[0], at + s->K * D, s->row, n, D, to.dC);
    return SH_OK;
}

/* The chunk before. */
static sh_rc next_chunk(const struct sh_dual_call *c, struct sh_dual_group *g)
{
    const struct sh_operand *docs = &c->call->in[c->x + 3];
    int64_t end = g->begin;

    SH_TRY(group_back(c, g));
    g->begin = end ? sh_space_begin(docs, g->b, end - 1) : 0;
    g->n = end - g->begin;
    g->starts = g->n && g->begin == sh_delta_first(docs, g->b, g->begin);
    return sh_dual_load_group(c, g);
}

static void sum_heads(const struct sh_dual_call *c)
{
    const double *sums = (const double *)behind_groups(c);
    float *to = c->call->out[2].data;
    int64_t H = c->s.H;

    for (int64_t i = 0; to && i < SUMS * H; i++) {
        double sum = sh_op_adds(c->call, 2) ? (double)to[i] : 0;

        for (int64_t b = 0; b < c->s.B; b++)
            sum += sums[(b * H + i % H) * SUMS + i / H];
        to[i] = (float)sum;
    }
}

static void clear_heads(const struct sh_dual_call *c)
{
    const struct sh_delta *s = &c->s;

    memset(behind_groups(c), 0, (size_t)bytes_of_sums(s));
    for (int64_t i = 0; i < s->B * s->H; i++)
        memset(head_at(c, 0, i), 0, (size_t)(s->D * s->V) * sizeof(float));
}

sh_rc sh_cpu_scan_bwd(const struct sh_op_call *call)
{
    const struct sh_dual_call c = sh_dual_call_of(call, 1);
    const struct sh_delta *s = &c.s;
    struct sh_gemm_failure failure = {0};
    int64_t steps = sh_dual_steps(&c);

    sh_dual_begin_groups(&c, s->T);
    clear_heads(&c);
#pragma omp parallel
    {
        struct back w;

        place_thread(&w, &c, omp_get_thread_num());
        sh_gemm_serial();
        for (int64_t step = 0; step <= steps; step++) { /* groups finish a chunk when they begin the next one */
#pragma omp for schedule(static)
            for (int64_t i = 0; i < s->B * s->K; i++)
                sh_gemm_note(&failure, next_chunk(&c, sh_dual_group_at(&c, i)));
#pragma omp for schedule(static)
            for (int64_t i = 0; i < s->B * s->H; i++)
                sh_gemm_note(&failure, head_back(&c, i / s->H, i % s->H, &w));
        }
    }
    sum_heads(&c);
    return sh_gemm_failed(&failure);
}
