/* The gated delta rule, chunk by chunk. A thread has a head of values of a sequence, whose state is f32. Sums over a chunk have an order of their own, so neither threads nor neighbours show in the bits.
 *
 * Scratch of a thread: a chunk, its state and the rows that it makes. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/row.h"
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/delta/chunk.h"

#include <omp.h>
#include <string.h>

static int64_t floats_of(const struct sh_delta *s)
{
    return sh_cpu_round64((sh_chunk_floats(s) + s->D * s->V + SH_CHUNK * s->V) * 4) / 4;
}

int64_t sh_cpu_gated_delta_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_delta s = sh_delta_of(call, &call->in[0]);

    return threads * floats_of(&s) * 4;
}

static void run_head(const struct sh_op_call *call, struct sh_chunk *c, float *S, float *out)
{
    const struct sh_delta *s = &c->s;
    const struct sh_operand *docs = &call->in[4], *y = &call->out[0];
    float *kept = call->out[1].data;

    for (int64_t i = 0; i < s->slots; i++)
        memset(kept + sh_delta_slot(s, c->b, i * SH_CHUNK, c->h), 0, (size_t)(s->D * s->V) * sizeof *kept);
    for (c->begin = 0; c->begin < s->T; c->begin += c->n) {
        bool starts = c->begin == sh_delta_first(docs, c->b, c->begin);

        c->n = sh_delta_end(docs, c->b, c->begin, s->T) - c->begin;
        if (!starts)
            memcpy(kept + sh_delta_slot(s, c->b, c->begin, c->h), S, (size_t)(s->D * s->V) * sizeof *kept);
        sh_chunk_load(c, call, 0);
        sh_chunk_run(c, S, starts, out);
        sh_chunk_store(c, y, out);
    }
}

sh_rc sh_cpu_gated_delta(const struct sh_op_call *call)
{
    struct sh_delta s = sh_delta_of(call, &call->in[0]);

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s.B * s.H; i++) {
        float *room = (float *)call->work + omp_get_thread_num() * floats_of(&s), *S = room + sh_chunk_floats(&s);
        struct sh_chunk c = {.b = i / s.H, .h = i % s.H};

        sh_chunk_place(&c, &s, room);
        run_head(call, &c, S, S + s.D * s.V);
    }
    return SH_OK;
}
