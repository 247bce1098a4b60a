/* The gated delta rule from a kept state on. A thread has a head of values of a sequence and changes its state in place.
 * Chunks are counted from the first row of the call.
 *
 * Scratch of a thread: a chunk and the rows that it makes. */
#include "kernels/cpu/base/stage.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/delta/chunk.h"

#include <omp.h>
#include <string.h>

static int64_t floats_of(const struct sh_delta *s)
{
    return sh_cpu_round64((sh_chunk_floats(s) + SH_CHUNK * s->V) * 4) / 4;
}

int64_t sh_cpu_gated_delta_cache_work_bytes(const struct sh_op_call *call, int threads)
{
    struct sh_delta s = sh_delta_of(call, &call->in[0]);

    return threads * floats_of(&s) * 4;
}

static void run_head(const struct sh_op_call *call, struct sh_chunk *c, float *S, float *out)
{
    const struct sh_delta *s = &c->s;
    const struct sh_operand *y = &call->out[0];
    int64_t count = ((const int32_t *)call->in[5].data)[c->b];
    bool starts = ((const int32_t *)call->in[4].data)[c->b * s->T] == 0;

    for (c->begin = 0; c->begin < count; c->begin += c->n) {
        c->n = count - c->begin < SH_CHUNK ? count - c->begin : SH_CHUNK;
        sh_chunk_load(c, call, 0);
        sh_chunk_run(c, S, starts && c->begin == 0, out);
        sh_chunk_store(c, y, out);
    }
    for (int64_t t = count; t < s->T; t++)
        memset(sh_cpu_at(y->data, y->dtype, ((c->b * s->T + t) * s->H + c->h) * s->V), 0,
               (size_t)(s->V * sh_dtype_bytes(y->dtype)));
}

sh_rc sh_cpu_gated_delta_cache(const struct sh_op_call *call)
{
    struct sh_delta s = sh_delta_of(call, &call->in[0]);
    float *states = call->out[1].data;

#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s.B * s.H; i++) {
        float *room = (float *)call->work + omp_get_thread_num() * floats_of(&s);
        struct sh_chunk c = {.b = i / s.H, .h = i % s.H};

        sh_chunk_place(&c, &s, room);
        run_head(call, &c, states + i * s.D * s.V, room + sh_chunk_floats(&s));
    }
    return SH_OK;
}
