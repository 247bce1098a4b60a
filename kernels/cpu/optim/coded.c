/* States in codes of eight bits: 16.25 bytes per parameter for AdamW (g, and p, m, v read and written) instead of 28. A
 * stretch of blocks is widened into the L1 cache, updated run by run, and stored. */
#include "kernels/cpu/optim/coded.h"

#include "kernels/cpu/optim/states.h"
#include "src/base/clones.h"
#include "src/base/number/code8_law.h"

#include <string.h>

enum { STRIDE = 512, ELEMS = SH_CODE8_ELEMS, BYTES = SH_CODE8_BLOCK_BYTES };
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

static float scale_of(const unsigned char *block)
{
    float scale;

    memcpy(&scale, block + ELEMS, sizeof scale);
    return scale;
}

SH_CLONES static void widen_linear(const unsigned char *block, int64_t n, float *to)
{
    for (int64_t at = 0; at < n; at += ELEMS, block += BYTES) {
        float scale = scale_of(block);

#pragma omp simd
        for (int i = 0; i < ELEMS; i++)
            to[at + i] = sh_code8_linear(block[i], scale);
    }
}

SH_CLONES static void widen_fourth(const unsigned char *block, int64_t n, float *to)
{
    for (int64_t at = 0; at < n; at += ELEMS, block += BYTES) {
        float scale = scale_of(block);

#pragma omp simd
        for (int i = 0; i < ELEMS; i++)
            to[at + i] = sh_code8_fourth(block[i], scale);
    }
}

/* Store the scales of blocks, all before any code: a code needs its scale, and finding that is one long chain of operations.
 * A NaN is larger than all numbers. */
static inline void put_scales(unsigned char *block, int64_t n, const float *from)
{
    for (int64_t at = 0; at < n; at += ELEMS, block += BYTES) {
        int32_t largest = 0;

        for (int i = 0; i < ELEMS; i++) {
            int32_t size = (int32_t)(sh_f32_to_bits(from[at + i]) & 0x7fffffffu);

            largest = size > largest ? size : largest;
        }
        memcpy(block + ELEMS, &largest, sizeof largest);
    }
}

SH_CLONES static void store_linear(unsigned char *block, int64_t n, const float *from, const uint32_t *word)
{
    put_scales(block, n, from);
    for (int64_t at = 0; at < n; at += ELEMS, block += BYTES) {
        float scale = scale_of(block), per = sh_code8_per_linear(scale);

#pragma omp simd
        for (int i = 0; i < ELEMS; i++)
            block[i] = sh_code8_to_linear(from[at + i], per, word[at + i] & 0xffffu);
        if (scale < SH_CODE8_LEAST)
            memset(block, 0, BYTES);
    }
}

/* In two loops, since one chain of operations is longer than what a core has in flight. */
SH_CLONES static void store_fourth(unsigned char *block, int64_t n, const float *from, const uint32_t *word)
{
    int32_t below[ELEMS];

    put_scales(block, n, from);
    for (int64_t at = 0; at < n; at += ELEMS, block += BYTES) {
        float scale = scale_of(block), per = sh_code8_per_fourth(scale);

#pragma omp simd
        for (int i = 0; i < ELEMS; i++)
            below[i] = sh_code8_below_fourth(from[at + i] * per);
#pragma omp simd
        for (int i = 0; i < ELEMS; i++)
            block[i] =
                sh_code8_round_fourth(from[at + i], from[at + i] * per, below[i], word[at + i] >> SH_RANDOM_BITS);
        if (scale < SH_CODE8_LEAST)
            memset(block, 0, BYTES);
    }
}

static unsigned char *block_of(const struct update *u, int k, int64_t element)
{
    return (unsigned char *)u->call->out[1 + k].data + sh_code8_bytes(element);
}

static void widen(const struct update *u, struct stretch *s)
{
    for (int k = 0; k < u->n_states; k++)
        (sh_state_law(k) == SH_CODE8_LINEAR ? widen_linear : widen_fourth)(block_of(u, k, s->at), s->n, s->state[k]);
}

static void store(const struct update *u, const struct stretch *s)
{
    for (int k = 0; k < u->n_states; k++)
        (sh_state_law(k) == SH_CODE8_LINEAR ? store_linear : store_fourth)(block_of(u, k, s->at), s->n, s->state[k],
                                                                           s->word);
}

/* Update what a run has of the stretch. */
static void update_run(const struct update *u, const struct sh_decay_run *run, float *p, struct stretch *s)
{
    int64_t begin = run->begin > s->at ? run->begin : s->at;
    int64_t end = run->end < s->at + s->n ? run->end : s->at + s->n;
    struct sh_random random = sh_random_of(u->call, run);
    float *state[SH_STATES_MAX] = {NULL};

    if (begin < end)
        sh_cpu_random_words(&random, begin, end - begin, s->word + (begin - s->at));
    for (int64_t i = begin, n; i < end; i += n) {
        n = end - i < SH_CPU_STRIDE ? end - i : SH_CPU_STRIDE;
        for (int k = 0; k < u->n_states; k++)
            state[k] = s->state[k] + (i - s->at);
        u->rule(p + (i - s->at), state, (const float *)u->call->in[0].data + i, n, u->factors[run->decay]);
    }
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

/* Elements [at, at + n). Stretches without a run are left out. */
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
