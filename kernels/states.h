/* The states of an optimizer in memory: float32, or bfloat16 in half of it. An update computes in float32 and rounds what it
 * leaves in bfloat16 stochastically (sh_f32_to_bf16_stochastic()): rounded to nearest, a mean of squares of beta2 = 0.999
 * could not fall any more, as it loses a thousandth a step and bfloat16 has 8 bits.
 *
 * The random bits are a function of the seed, the number of the update, the tensor and the element's place in it. So they
 * are the same on every mesh, for every cut of a shard, any number of threads, and on every device:
 *
 *     block e / 4 of Philox with the key of (seed, tensor), and the number of the update above it; word e % 4 of it;
 *     of that 16 bits for each state, state 0 the lower ones
 *
 * Initial values take the same keys with 0 above, which no update has. Local, no failure. Valid C, C++ and CUDA. */
#ifndef SH_KERNELS_STATES_H
#define SH_KERNELS_STATES_H

#include "kernels/op.h"
#include "src/base/philox.h"
#include "src/base/rng.h"

enum { SH_RANDOM_ELEMS = 4, SH_RANDOM_BITS = 16 }; /* elements that share a block; bits of a state */

/* Where the random bits of a run come from. */
struct sh_random {
    uint64_t key, update;
    int64_t origin;
};

static inline struct sh_random sh_random_of(const struct sh_op_call *call, const struct sh_decay_run *run)
{
    struct sh_random d;
    d.key = sh_rng_key_of(call->scalars->seed, run->tensor);
    d.update = call->scalars->update;
    d.origin = run->origin;
    return d;
}

/* The words of the four elements of which element i of the shard is one. */
SH_FLOATS void sh_random_block(const struct sh_random *d, int64_t i, uint32_t word[SH_RANDOM_ELEMS])
{
    sh_philox_block(d->key, d->update, (uint64_t)(i - d->origin) / SH_RANDOM_ELEMS, word);
}

/* Which of them is its own. */
SH_FLOATS int sh_random_place(const struct sh_random *d, int64_t i)
{
    return (int)((uint64_t)(i - d->origin) % SH_RANDOM_ELEMS);
}

/* State k of an element with such a word. */
SH_FLOATS sh_bf16 sh_random_round(float x, uint32_t word, int k)
{
    return sh_f32_to_bf16_stochastic(x, word >> (k * SH_RANDOM_BITS));
}

static inline struct sh_floats sh_state_floats(const struct sh_operand *state)
{
    struct sh_floats whole = {(float *)state->data, NULL, NULL, NULL};
    struct sh_floats upper = {NULL, (sh_bf16 *)state->data, NULL, NULL};
    return state->dtype == SH_BF16 ? upper : whole;
}

#endif
