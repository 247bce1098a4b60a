/* The state-space dual form, chunk by chunk. Operations: three products of [n,n], [n,D] or [D,n] by V for each head and
 * chunk, and one of [n,D] by n for each group. Threads take the groups of a chunk of each sequence, then its heads: all
 * sums have an order of their own, so neither threads nor neighbours show in the bits.
 *
 * Scratch: the matrices of all groups, the states of all heads; of a thread those of a head, and the rows that it makes. */
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scan/scan.h"

#include <omp.h>
#include <string.h>

static int64_t bytes_of_states(const struct sh_delta *s)
{
    return sh_cpu_round64(s->B * s->H * s->D * s->V * 4);
}

static int64_t bytes_of_thread(const struct sh_delta *s)
{
    return (sh_dual_head_floats(s) + SH_SCAN_ROWS * s->V) * 4;
}

int64_t sh_cpu_scan_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_delta s = sh_space_of(call, &call->in[0]);

    return sh_dual_groups_bytes(&s) + bytes_of_states(&s) + threads * bytes_of_thread(&s);
}

static char *states_of(const struct sh_dual_call *c)
{
    return (char *)c->call->work + sh_dual_groups_bytes(&c->s);
}

/* The next chunk of a group. */
static sh_rc next_chunk(const struct sh_dual_call *c, struct sh_dual_group *g)
{
    const struct sh_operand *docs = &c->call->in[c->x + 3];

    g->begin += g->n;
    g->n = g->begin < c->s.T ? sh_space_end(docs, g->b, g->begin, c->s.T) - g->begin : 0;
    g->starts = g->n && g->begin == sh_delta_first(docs, g->b, g->begin);
    return sh_dual_load_group(c, g);
}

/* out [n,V], and S to the state behind the chunk. */
static sh_rc run_chunk(const struct sh_dual_call *c, const struct sh_dual_group *g, struct sh_dual_head *h, float *S,
                       float *out)
{
    int64_t n = g->n, D = c->s.D, V = c->s.V;

    if (!g->starts) {
        SH_TRY(sh_dual_product(c, &(struct sh_gemm_tile){.m = n, .n = V, .k = D, .a = g->C, .b = S, .c = out}));
        sh_dual_scale(out, h->grown, n, V);
    }
    SH_TRY(sh_dual_product(
        c, &(struct sh_gemm_tile){.m = n, .n = V, .k = n, .a = h->P, .b = h->U, .c = out, .add = !g->starts}));
    sh_dual_add(out, h->X, h->skip, n * V);
    sh_dual_scale(h->U, h->tail, n, V);
    for (int64_t i = 0; i < D * V && !g->starts; i++)
        S[i] *= h->grown[n - 1];
    return sh_dual_product(
        c, &(struct sh_gemm_tile){
               .m = D, .n = V, .k = n, .a = g->B, .trans_a = true, .b = h->U, .c = S, .add = !g->starts});
}

static sh_rc run_head(const struct sh_dual_call *c, int64_t b, int64_t head, float *room)
{
    const struct sh_delta *s = &c->s;
    const struct sh_dual_group *g = sh_dual_group_of(c, b, head);
    float *S = (float *)states_of(c) + (b * s->H + head) * s->D * s->V, *out = room + sh_dual_head_floats(s);
    struct sh_dual_head h;

    if (!g->n)
        return SH_OK;
    if (!g->starts)
        memcpy((float *)c->call->out[1].data + sh_space_slot(s, b, g->begin, head), S,
               (size_t)(s->D * s->V) * sizeof *S);
    sh_dual_place_head(&h, s, room);
    sh_dual_load_head(c, g, head, &h);
    SH_TRY(run_chunk(c, g, &h, S, out));
    sh_dual_store(&c->call->out[0], ((b * s->T + g->begin) * s->H + head) * s->V, s->H * s->V, g->n, s->V, out);
    return SH_OK;
}

sh_rc sh_cpu_scan(const struct sh_op_call *call)
{
    const struct sh_dual_call c = sh_dual_call_of(call, 0);
    const struct sh_delta *s = &c.s;
    struct sh_gemm_failure failure = {0};
    int64_t steps = sh_dual_steps(&c);

    sh_dual_begin_groups(&c, 0);
    memset(call->out[1].data, 0, (size_t)sh_cpu_elems(&call->out[1]) * sizeof(float));
#pragma omp parallel
    {
        char *room = states_of(&c) + bytes_of_states(s) + omp_get_thread_num() * bytes_of_thread(s);

        sh_gemm_serial();
        for (int64_t step = 0; step < steps; step++) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < s->B * s->K; i++)
                sh_gemm_note(&failure, next_chunk(&c, sh_dual_group_at(&c, i)));
#pragma omp for schedule(static)
            for (int64_t i = 0; i < s->B * s->H; i++)
                sh_gemm_note(&failure, run_head(&c, i / s->H, i % s->H, (float *)room));
        }
    }
    return sh_gemm_failed(&failure);
}
