/* The states of an optimizer in memory: float32, bfloat16 in half the space, or codes of eight bits, which have kinds of
 * operations of their own (src/base/number/code8.h), in little more than a quarter. An update computes in float32 and
 * rounds a state stochastically (sh_f32_to_bf16_stochastic()). With rounding to nearest, a mean of squares
 * with beta2 = 0.999 could no longer fall, because it loses a thousandth per step and bfloat16 has 8 bits.
 *
 * The random bits are a function of the seed, the number of the update, the tensor and the element's place in it, so
 * they are the same on every mesh and device, for every cut of a shard and any number of threads:
 *
 *     block e / 8 of Philox4x32-7 with the key of (seed, tensor), and the number of the update above it; the lower half of
 *     its word e % 8 / 2 if e is even, else the upper one; that for state 0, and for state 1 with its bytes exchanged
 *
 * Rounding compares these 16 bits with a share, which the upper byte nearly always decides: so the two states of an element are
 * rounded independently, but for a part in 256.
 * Initial values use the same keys with 0 above, a number that no update has. Local, no failure. Valid C, C++ and
 * CUDA. */
#ifndef SH_KERNELS_STATES_H
#define SH_KERNELS_STATES_H

#include "kernels/op.h"
#include "src/base/number/philox.h"
#include "src/base/number/rng.h"

/* Elements that share a block, bits of a state, rounds of a block. */
enum { SH_RANDOM_ELEMS = 8, SH_RANDOM_BITS = 16, SH_RANDOM_ROUNDS = 7 };

/* The source of a run's random bits. */
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

/* The block of the eight elements among which element i of the shard is. */
SH_FLOATS void sh_random_block(const struct sh_random *d, int64_t i, uint32_t block[4])
{
    sh_philox_block_of(SH_RANDOM_ROUNDS, d->key, d->update, (uint64_t)(i - d->origin) / SH_RANDOM_ELEMS, block);
}

/* Which of these element i is. */
SH_FLOATS int sh_random_place(const struct sh_random *d, int64_t i)
{
    return (int)((uint64_t)(i - d->origin) % SH_RANDOM_ELEMS);
}

/* An element's word, with the bits of state 0 below those of state 1, given the word of the block that it is in. */
SH_FLOATS uint32_t sh_random_word(uint32_t two, int place)
{
    uint32_t bits = two >> (place % 2 * SH_RANDOM_BITS) & 0xffffu;

    return bits | bits >> 8 << 16 | bits << 24;
}

/* Round state k of an element, given the element's word. */
SH_FLOATS sh_bf16 sh_random_round(float x, uint32_t word, int k)
{
    return sh_f32_to_bf16_stochastic(x, word >> (k * SH_RANDOM_BITS));
}

/* How state k is coded if states have eight bits: a mean of gradients, or one of squares. */
SH_FLOATS enum sh_code8_law sh_state_law(int k)
{
    return k ? SH_CODE8_FOURTH : SH_CODE8_LINEAR;
}

static inline struct sh_floats sh_state_floats(const struct sh_operand *state)
{
    struct sh_floats whole = {(float *)state->data, NULL, NULL, NULL, NULL, SH_CODE8_LINEAR};
    struct sh_floats upper = {NULL, (sh_bf16 *)state->data, NULL, NULL, NULL, SH_CODE8_LINEAR};
    return state->dtype == SH_BF16 ? upper : whole;
}

#endif
