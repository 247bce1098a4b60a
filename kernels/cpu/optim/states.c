/* States in bf16: widened, and rounded stochastically. */
#include "kernels/cpu/optim/states.h"

#include "src/base/clones.h"
#include "src/base/isa.h"

_Static_assert(SH_STATES_MAX *SH_RANDOM_BITS == 32, "a word has bits for all states");

/* Random bits are drawn LANES blocks at once. A piece may start and end within a block. */
enum { LANES = 8, TURN = LANES * SH_RANDOM_ELEMS, WORDS = SH_CPU_STRIDE + TURN };
_Static_assert(SH_CPU_STRIDE % TURN == 0, "a piece is whole turns");

/* Which blocks: the key, the bits above their numbers, and the number of the first. */
struct blocks {
    uint64_t key, above, first;
    uint64_t of_round[SH_RANDOM_ROUNDS][2]; /* what the keys of the rounds are */
    uint64_t alike[4];                      /* what is the same for all blocks in the first two rounds */
};

/* If only the lowest words of their counters differ, one of the two products of the first round is the same for all blocks, and
 * the other one of the second round. */
static void find_alike(struct blocks *b)
{
    uint64_t p1 = UINT64_C(0xcd9e8d57) * (uint32_t)b->above;
    uint64_t p0 = UINT64_C(0xd2511f53) * (uint32_t)(p1 >> 32 ^ b->first >> 32 ^ b->of_round[0][0]);

    b->alike[0] = b->above >> 32 ^ b->of_round[0][1];
    b->alike[1] = (uint32_t)p1 ^ b->of_round[1][0];
    b->alike[2] = p0 >> 32 ^ b->of_round[1][1];
    b->alike[3] = (uint32_t)p0;
}

/* words [n]: the words of n / TURN * LANES blocks. */
static void throw_plain(const struct blocks *b, int64_t n, uint32_t *words)
{
    uint32_t block[4];

    for (int64_t i = 0; i < n; i += SH_RANDOM_ELEMS) {
        sh_philox_block_of(SH_RANDOM_ROUNDS, b->key, b->above, b->first + (uint64_t)i / SH_RANDOM_ELEMS, block);
        for (int k = 0; k < SH_RANDOM_ELEMS; k++)
            words[i + k] = sh_random_word(block[k / 2], k);
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx2")))
#define WIDEST __attribute__((target("avx512f,avx512bw")))
enum { HALF = LANES / 2, HALF_TURN = TURN / 2, ABREAST = 4 };

/* Which bytes of two words, each in the lower half of 64 bits, become sh_random_word() of their halves. */
#define BYTES 0, 1, 1, 0, 2, 3, 3, 2, 8, 9, 9, 8, 10, 11, 11, 10

/* Four blocks side by side, with a word of each in the lower half of 64 bits; the upper halves are never read.
 * Written by hand: a compiler turns the 32-bit products into 64-bit ones, which take six times as long. */
struct lanes {
    __m256i c[4];
};

/* After two rounds. */
static WIDE inline struct lanes lanes_at(const struct blocks *b, int64_t half)
{
    __m256i first = _mm256_add_epi64(_mm256_set1_epi64x((long long)(b->first + (uint64_t)half * HALF)),
                                     _mm256_set_epi64x(3, 2, 1, 0));
    __m256i p0 = _mm256_mul_epu32(_mm256_set1_epi64x(0xd2511f53), first);
    __m256i c2 = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_set1_epi64x((long long)b->alike[0]));
    __m256i p1 = _mm256_mul_epu32(_mm256_set1_epi64x(0xcd9e8d57), c2);

    return (struct lanes){{_mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_set1_epi64x((long long)b->alike[1])), p1,
                           _mm256_xor_si256(p0, _mm256_set1_epi64x((long long)b->alike[2])),
                           _mm256_set1_epi64x((long long)b->alike[3])}};
}

/* Same as sh_philox_round(). */
static WIDE inline struct lanes round_of(struct lanes x, const uint64_t k[2])
{
    __m256i p0 = _mm256_mul_epu32(_mm256_set1_epi64x(0xd2511f53), x.c[0]);
    __m256i p1 = _mm256_mul_epu32(_mm256_set1_epi64x(0xcd9e8d57), x.c[2]);
    __m256i c1 = _mm256_xor_si256(x.c[1], _mm256_set1_epi64x((long long)k[0]));
    __m256i c3 = _mm256_xor_si256(x.c[3], _mm256_set1_epi64x((long long)k[1]));
    return (struct lanes){
        {_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), p1, _mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), p0}};
}

/* In each lane sh_random_word() of both halves of its word. */
static WIDE inline __m256i words_of(__m256i c)
{
    return _mm256_shuffle_epi8(c, _mm256_broadcastsi128_si256(_mm_setr_epi8(BYTES)));
}

/* Reorder lanes of words into blocks, one after another. */
static WIDE inline void store(struct lanes x, uint32_t *words)
{
    __m256i c[4] = {words_of(x.c[0]), words_of(x.c[1]), words_of(x.c[2]), words_of(x.c[3])};
    __m256i even[2] = {_mm256_unpacklo_epi64(c[0], c[1]), _mm256_unpacklo_epi64(c[2], c[3])};
    __m256i odd[2] = {_mm256_unpackhi_epi64(c[0], c[1]), _mm256_unpackhi_epi64(c[2], c[3])};
    __m256i *to = (__m256i *)(void *)words;

    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even[0], even[1], 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(odd[0], odd[1], 0x20));
    _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(even[0], even[1], 0x31));
    _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(odd[0], odd[1], 0x31));
}

/* Both halves of a turn side by side. */
static WIDE void throw_wide(const struct blocks *b, int64_t n, uint32_t *words)
{
    for (int64_t i = 0; i < n; i += TURN) {
        struct lanes x = lanes_at(b, i / HALF_TURN), y = lanes_at(b, i / HALF_TURN + 1);

        for (int r = 2; r < SH_RANDOM_ROUNDS; r++) {
            x = round_of(x, b->of_round[r]);
            y = round_of(y, b->of_round[r]);
        }
        store(x, words + i);
        store(y, words + i + HALF_TURN);
    }
}

/* Eight blocks, in lanes 0, 2, 4, 6, 1, 3, 5, 7: so they come out one after another. */
struct more_lanes {
    __m512i c[4];
};

static WIDEST inline struct more_lanes more_lanes_at(const struct blocks *b, int64_t turn)
{
    __m512i first = _mm512_add_epi64(_mm512_set1_epi64((long long)(b->first + (uint64_t)turn * LANES)),
                                     _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0));
    __m512i p0 = _mm512_mul_epu32(_mm512_set1_epi64(0xd2511f53), first);
    __m512i c2 = _mm512_xor_si512(_mm512_srli_epi64(p0, 32), _mm512_set1_epi64((long long)b->alike[0]));
    __m512i p1 = _mm512_mul_epu32(_mm512_set1_epi64(0xcd9e8d57), c2);

    return (struct more_lanes){{_mm512_xor_si512(_mm512_srli_epi64(p1, 32), _mm512_set1_epi64((long long)b->alike[1])),
                                p1, _mm512_xor_si512(p0, _mm512_set1_epi64((long long)b->alike[2])),
                                _mm512_set1_epi64((long long)b->alike[3])}};
}

static WIDEST inline __m512i xor3(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

static WIDEST inline struct more_lanes more_round_of(struct more_lanes x, const uint64_t k[2])
{
    __m512i p0 = _mm512_mul_epu32(_mm512_set1_epi64(0xd2511f53), x.c[0]);
    __m512i p1 = _mm512_mul_epu32(_mm512_set1_epi64(0xcd9e8d57), x.c[2]);
    return (struct more_lanes){{xor3(_mm512_srli_epi64(p1, 32), x.c[1], _mm512_set1_epi64((long long)k[0])), p1,
                                xor3(_mm512_srli_epi64(p0, 32), x.c[3], _mm512_set1_epi64((long long)k[1])), p0}};
}

static WIDEST inline __m512i more_words_of(__m512i c)
{
    return _mm512_shuffle_epi8(c, _mm512_broadcast_i32x4(_mm_setr_epi8(BYTES)));
}

static WIDEST inline void more_store(struct more_lanes x, uint32_t *words)
{
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i c[4] = {more_words_of(x.c[0]), more_words_of(x.c[1]), more_words_of(x.c[2]), more_words_of(x.c[3])};
    __m512i even[2] = {_mm512_unpacklo_epi64(c[0], c[1]), _mm512_unpacklo_epi64(c[2], c[3])};
    __m512i odd[2] = {_mm512_unpackhi_epi64(c[0], c[1]), _mm512_unpackhi_epi64(c[2], c[3])};

    _mm512_storeu_si512(words, _mm512_permutex2var_epi64(even[0], first, even[1]));
    _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(even[0], last, even[1]));
    _mm512_storeu_si512(words + 32, _mm512_permutex2var_epi64(odd[0], first, odd[1]));
    _mm512_storeu_si512(words + 48, _mm512_permutex2var_epi64(odd[0], last, odd[1]));
}

/* Four turns side by side: a round waits for the one before it, and schedulers do not look far enough ahead to begin the next
 * turn meanwhile. */
static WIDEST inline void throw_four(const struct blocks *b, int64_t turn, uint32_t *words)
{
    struct more_lanes w = more_lanes_at(b, turn), x = more_lanes_at(b, turn + 1);
    struct more_lanes y = more_lanes_at(b, turn + 2), z = more_lanes_at(b, turn + 3);

    for (int r = 2; r < SH_RANDOM_ROUNDS; r++) {
        w = more_round_of(w, b->of_round[r]);
        x = more_round_of(x, b->of_round[r]);
        y = more_round_of(y, b->of_round[r]);
        z = more_round_of(z, b->of_round[r]);
    }
    more_store(w, words + turn * TURN);
    more_store(x, words + (turn + 1) * TURN);
    more_store(y, words + (turn + 2) * TURN);
    more_store(z, words + (turn + 3) * TURN);
}

static WIDEST inline void throw_one(const struct blocks *b, int64_t turn, uint32_t *words)
{
    struct more_lanes x = more_lanes_at(b, turn);

    for (int r = 2; r < SH_RANDOM_ROUNDS; r++)
        x = more_round_of(x, b->of_round[r]);
    more_store(x, words + turn * TURN);
}

static WIDEST void throw_widest(const struct blocks *b, int64_t n, uint32_t *words)
{
    int64_t turn = 0;

    for (; turn + ABREAST <= n / TURN; turn += ABREAST)
        throw_four(b, turn, words);
    for (; turn < n / TURN; turn++)
        throw_one(b, turn, words);
}

static void draw_words(const struct blocks *b, int64_t n, uint32_t *words)
{
    bool alike = b->first >> 32 == (b->first + (uint64_t)n / SH_RANDOM_ELEMS - 1) >> 32;
    bool widest = alike && sh_isa_has(SH_ISA_AVX512), wide = alike && sh_isa_has(SH_ISA_AVX2);

    (widest ? throw_widest : wide ? throw_wide : throw_plain)(b, n, words);
}
#else
static void draw_words(const struct blocks *b, int64_t n, uint32_t *words)
{
    throw_plain(b, n, words);
}
#endif

/* Draw the words of elements [i, i + n) somewhere in `room`. */
static const uint32_t *draw(const struct sh_random *random, int64_t i, int64_t n, uint32_t *room)
{
    struct blocks b = {
        .key = random->key, .above = random->update, .first = (uint64_t)(i - random->origin) / SH_RANDOM_ELEMS};
    int place = sh_random_place(random, i);
    uint32_t k[2] = {(uint32_t)b.key, (uint32_t)(b.key >> 32)};

    for (int r = 0; r < SH_RANDOM_ROUNDS; r++, sh_philox_next_key(k)) {
        b.of_round[r][0] = k[0];
        b.of_round[r][1] = k[1];
    }
    find_alike(&b);
    draw_words(&b, (place + n + TURN - 1) / TURN * TURN, room);
    return room + place;
}

void sh_cpu_random_words(const struct sh_random *random, int64_t i, int64_t n, uint32_t *words)
{
    uint32_t room[WORDS];
    bool direct = sh_random_place(random, i) == 0;
    int64_t whole = direct ? n / TURN * TURN : 0;

    if (whole > 0)
        draw(random, i, whole, words);
    for (int64_t at = whole, here; at < n; at += here) {
        here = n - at < SH_CPU_STRIDE ? n - at : SH_CPU_STRIDE;
        memcpy(words + at, draw(random, i + at, here, room), (size_t)here * sizeof *words);
    }
}

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
    uint32_t room[WORDS];
    const uint32_t *words;

    if (n_states == 0 || call->out[1].dtype == SH_F32)
        return;
    words = draw(random, i, n, room);
    for (int k = 0; k < n_states; k++)
        round_all(sh_state_floats(&call->out[1 + k]).high + i, s->room[k], words, k, n);
}
