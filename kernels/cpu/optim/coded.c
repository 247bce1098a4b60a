/* States in codes of eight bits: 16.25 bytes per parameter for AdamW (g, and p, m, v read and written) instead of 28. A
 * stretch of blocks is widened into the L1 cache, updated run by run, and stored. */
#include "kernels/cpu/optim/coded.h"

#include "kernels/cpu/optim/states.h"
#include "src/base/clones.h"
#include "src/base/number/code8_law.h"

#include <string.h>

enum { STRIDE = SH_CPU_STRIDE, ELEMS = SH_CODE8_ELEMS };
_Static_assert(STRIDE % ELEMS == 0 && SH_CPU_PIECE % STRIDE == 0, "whole blocks");

/* One update of a shard. */
struct update {
    const struct sh_op_call *call;
    struct sh_floats p;
    int n_states;
    sh_cpu_rule *rule;
    const void *const *factors;
};

/* A stretch of it: elements [at, at + n) of the shard; n is a multiple of 64. */
struct stretch {
    int64_t at, n;
    float p[STRIDE], state[SH_STATES_MAX][STRIDE];
    uint32_t word[STRIDE]; /* random bits */
};

SH_CLONES static void widen_linear(const unsigned char *code, float scale, float *to)
{
#pragma omp simd
    for (int i = 0; i < ELEMS; i++)
        to[i] = sh_code8_linear(code[i], scale);
}

SH_CLONES static void widen_fourth(const unsigned char *code, float scale, float *to)
{
#pragma omp simd
    for (int i = 0; i < ELEMS; i++)
        to[i] = sh_code8_fourth(code[i], scale);
}

/* A NaN is larger than all numbers. */
SH_CLONES static int32_t largest_bits(const float *from)
{
    int32_t largest = 0;

    for (int i = 0; i < ELEMS; i++) {
        int32_t size = (int32_t)(sh_f32_to_bits(from[i]) & 0x7fffffffu);

        largest = size > largest ? size : largest;
    }
    return largest;
}

SH_CLONES static void store_linear(unsigned char *code, const float *from, float scale, const uint32_t *word)
{
    float per = sh_code8_per_linear(scale);

#pragma omp simd
    for (int i = 0; i < ELEMS; i++)
        code[i] = sh_code8_to_linear(from[i], per, word[i] & 0xffffu);
}

SH_CLONES static void store_fourth(unsigned char *code, const float *from, float scale, const uint32_t *word)
{
    float per = sh_code8_per_fourth(scale);

#pragma omp simd
    for (int i = 0; i < ELEMS; i++)
        code[i] = sh_code8_to_fourth(from[i], per, word[i] >> SH_RANDOM_BITS);
}

static unsigned char *block_of(const struct update *u, int k, int64_t element)
{
    return (unsigned char *)u->call->out[1 + k].data + sh_code8_bytes(element);
}

static void widen(const struct update *u, struct stretch *s)
{
    for (int k = 0; k < u->n_states; k++)
        for (int64_t i = 0; i < s->n; i += ELEMS) {
            const unsigned char *block = block_of(u, k, s->at + i);
            float scale;

            memcpy(&scale, block + ELEMS, sizeof scale);
            (sh_state_law(k) == SH_CODE8_LINEAR ? widen_linear : widen_fourth)(block, scale, s->state[k] + i);
        }
}

static void store_block(unsigned char *block, enum sh_code8_law law, const float *from, const uint32_t *word)
{
    float scale = sh_bits_to_f32((uint32_t)largest_bits(from));

    if (scale < SH_CODE8_LEAST) {
        memset(block, 0, SH_CODE8_BLOCK_BYTES);
        return;
    }
    (law == SH_CODE8_LINEAR ? store_linear : store_fourth)(block, from, scale, word);
    memcpy(block + ELEMS, &scale, sizeof scale);
}

static void store(const struct update *u, const struct stretch *s)
{
    for (int k = 0; k < u->n_states; k++)
        for (int64_t i = 0; i < s->n; i += ELEMS)
            store_block(block_of(u, k, s->at + i), sh_state_law(k), s->state[k] + i, s->word + i);
}

/* Update what a run has of the stretch. */
static void update_run(const struct update *u, const struct sh_decay_run *run, float *p, struct stretch *s)
{
    int64_t begin = run->begin > s->at ? run->begin : s->at;
    int64_t end = run->end < s->at + s->n ? run->end : s->at + s->n;
    struct sh_random random = sh_random_of(u->call, run);
    float *state[SH_STATES_MAX] = {NULL};

    if (begin >= end)
        return;
    for (int k = 0; k < u->n_states; k++)
        state[k] = s->state[k] + (begin - s->at);
    sh_cpu_random_words(&random, begin, end - begin, s->word + (begin - s->at));
    u->rule(p + (begin - s->at), state, (const float *)u->call->in[0].data + begin, end - begin,
            u->factors[run->decay]);
}

static void prefetch(const struct update *u, const struct stretch *s)
{
    for (int i = 0; i < SH_FLOATS_ARRAYS && sh_floats_array(u->p, i); i++)
        sh_cpu_prefetch(sh_floats_array(u->p, i), sh_floats_bytes(u->p, s->at + SH_CPU_AHEAD),
                        sh_floats_bytes(u->p, STRIDE));
    sh_cpu_prefetch_elems(&u->call->in[0], s->at + SH_CPU_AHEAD, STRIDE);
    for (int k = 0; k < u->n_states; k++)
        sh_cpu_prefetch(u->call->out[1 + k].data, sh_code8_bytes(s->at + SH_CPU_AHEAD), sh_code8_bytes(STRIDE));
}

/*   run  the first that does not end before the stretch */
static void update_stretch(const struct update *u, const struct sh_decay_run *run, const struct sh_decay_run *last,
                           struct stretch *s)
{
    struct sh_floats at = sh_floats_at(u->p, s->at);
    float *p = at.whole ? at.whole : s->p;

    prefetch(u, s);
    widen(u, s);
    if (!at.whole)
        sh_floats_get(at, s->n, p);
    if (run->begin > s->at || run->end < s->at + s->n)
        for (int64_t i = 0; i < s->n; i++)
            s->word[i] = (uint32_t)SH_CODE8_NEAREST << SH_RANDOM_BITS | SH_CODE8_NEAREST;
    for (; run < last && run->begin < s->at + s->n; run++)
        update_run(u, run, p, s);
    if (!at.whole)
        sh_floats_put(at, s->n, p);
    store(u, s);
}

/* Elements [at, at + n). Blocks without a run are left out. */
static void update_piece(const struct update *u, int64_t at, int64_t n)
{
    const struct sh_decay_run *run = u->call->runs, *last = run + u->call->attr->runs.count;
    struct stretch s;

    for (s.at = at; s.at < at + n; s.at += s.n) {
        s.n = at + n - s.at < STRIDE ? at + n - s.at : STRIDE;
        while (run < last && run->end <= s.at)
            run++;
        if (run < last && run->begin < s.at + s.n)
            update_stretch(u, run, last, &s);
    }
}

void sh_cpu_update_coded(const struct sh_op_call *call, int n_states, sh_cpu_rule *rule, const void *const factors[2])
{
    const struct update u = {call, sh_cpu_params_of(call, n_states), n_states, rule, factors};
    int64_t n = sh_cpu_elems(&call->in[0]), pieces = sh_cpu_pieces(n);

#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++)
        update_piece(&u, p * SH_CPU_PIECE, sh_cpu_piece_elems(n, p));
}
