/* States in bf16: widened, and rounded stochastically. */
#include "kernels/cpu/optim/states.h"

#include "src/base/clones.h"
#include "src/base/isa.h"

_Static_assert(SH_STATES_MAX *SH_RANDOM_BITS == 32, "a word has bits for all states");

/* Random bits are drawn LANES blocks at once. A piece may start and end within a block. */
enum { LANES = 4, TURN = LANES * SH_RANDOM_ELEMS, WORDS = SH_CPU_STRIDE + TURN };
_Static_assert(SH_CPU_STRIDE % TURN == 0, "a piece is whole turns");

/* Which blocks: the key, the bits above their numbers, and the number of the first. */
struct blocks {
    uint64_t key, above, first;
};

/* words [n]: the words of n / TURN * LANES blocks. */
static void throw_plain(const struct blocks *b, int64_t n, uint32_t *words)
{
    for (int64_t i = 0; i < n; i += SH_RANDOM_ELEMS)
        sh_philox_block(b->key, b->above, b->first + (uint64_t)i / SH_RANDOM_ELEMS, words + i);
}

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx2")))

/* Four blocks side by side, with a word of each in the lower half of 64 bits; the upper halves are never read.
 * Written by hand: a compiler turns the 32-bit products into 64-bit ones, which take six times as long. */
struct lanes {
    __m256i c[SH_RANDOM_ELEMS];
};

static WIDE inline struct lanes lanes_at(const struct blocks *b, int64_t turn)
{
    uint64_t n = b->first + (uint64_t)turn * LANES;
    __m256i first = _mm256_add_epi64(_mm256_set1_epi64x((long long)n), _mm256_set_epi64x(3, 2, 1, 0));
    return (struct lanes){{first, _mm256_srli_epi64(first, 32), _mm256_set1_epi64x((long long)b->above),
                           _mm256_set1_epi64x((long long)(b->above >> 32))}};
}

/* Same as sh_philox_round(). */
static WIDE inline struct lanes round_of(struct lanes x, const uint32_t k[2])
{
    __m256i p0 = _mm256_mul_epu32(_mm256_set1_epi64x(0xd2511f53), x.c[0]);
    __m256i p1 = _mm256_mul_epu32(_mm256_set1_epi64x(0xcd9e8d57), x.c[2]);
    __m256i k0 = _mm256_set1_epi64x((long long)k[0]), k1 = _mm256_set1_epi64x((long long)k[1]);
    return (struct lanes){{_mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), x.c[1]), k0), p1,
                           _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), x.c[3]), k1), p0}};
}

/* Reorder lanes of words into blocks, one after another. */
static WIDE inline void store(struct lanes x, uint32_t *words)
{
    __m256i front = _mm256_blend_epi32(x.c[0], _mm256_slli_epi64(x.c[1], 32), 0xaa);
    __m256i back = _mm256_blend_epi32(x.c[2], _mm256_slli_epi64(x.c[3], 32), 0xaa);
    __m256i even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);
    _mm256_storeu_si256((__m256i *)(void *)words, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(words + TURN / 2), _mm256_permute2x128_si256(even, odd, 0x31));
}

static WIDE void throw_wide(const struct blocks *b, int64_t n, uint32_t *words)
{
    for (int64_t i = 0; i < n; i += TURN) {
        struct lanes x = lanes_at(b, i / TURN);
        uint32_t k[2] = {(uint32_t)b->key, (uint32_t)(b->key >> 32)};

        for (int r = 0; r < SH_PHILOX_ROUNDS; r++) {
            x = round_of(x, k);
            sh_philox_next_key(k);
        }
        store(x, words + i);
    }
}

static void draw_words(const struct blocks *b, int64_t n, uint32_t *words)
{
    (sh_isa_has(SH_ISA_AVX2) ? throw_wide : throw_plain)(b, n, words);
}
#else
static void draw_words(const struct blocks *b, int64_t n, uint32_t *words)
{
    throw_plain(b, n, words);
}
#endif

SH_CLONES static void round_all(sh_bf16 *to, const float *from, const uint32_t *words, int state, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        to[i] = sh_random_round(from[i], words[i], state);
}

void sh_cpu_states_get(const struct sh_op_call *call, int n_states, int64_t i, int64_t n, struct sh_cpu_states *s)
{
    for (int k = 0; k < n_states; k++) {
        const struct sh_operand *t = &call->out[1 + k];
        struct sh_floats from = sh_state_floats(t);

        sh_cpu_prefetch_elems(t, i + SH_CPU_AHEAD, SH_CPU_STRIDE);
        s->at[k] = from.whole ? from.whole + i : s->room[k];
        if (!from.whole)
            sh_floats_get(sh_floats_at(from, i), n, s->room[k]);
    }
}

void sh_cpu_states_put(const struct sh_op_call *call, int n_states, const struct sh_random *random, int64_t i,
                       int64_t n, const struct sh_cpu_states *s)
{
    struct blocks b = {random->key, random->update, (uint64_t)(i - random->origin) / SH_RANDOM_ELEMS};
    int place = sh_random_place(random, i);
    uint32_t words[WORDS];

    if (n_states == 0 || call->out[1].dtype == SH_F32)
        return;
    draw_words(&b, (place + n + TURN - 1) / TURN * TURN, words);
    for (int k = 0; k < n_states; k++)
        round_all(sh_state_floats(&call->out[1 + k]).high + i, s->room[k], words + place, k, n);
}
