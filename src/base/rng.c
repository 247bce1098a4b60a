#include "src/base/rng.h"

#include "src/base/hash.h"

enum { ROUNDS = 10 };

static void philox_round(uint32_t c[4], const uint32_t k[2])
{
    uint64_t p0 = (uint64_t)0xd2511f53u * c[0];
    uint64_t p1 = (uint64_t)0xcd9e8d57u * c[2];
    uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k[0];
    c[1] = (uint32_t)p1;
    c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k[1];
    c[3] = (uint32_t)p0;
}

void sh_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4])
{
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    out[0] = (uint32_t)counter_lo;
    out[1] = (uint32_t)(counter_lo >> 32);
    out[2] = (uint32_t)counter_hi;
    out[3] = (uint32_t)(counter_hi >> 32);
    for (int r = 0; r < ROUNDS; r++) {
        philox_round(out, k);
        k[0] += 0x9e3779b9u;
        k[1] += 0xbb67ae85u;
    }
}

/* FNV-1a: byte by byte, so that a name gives the same key on machines of any byte order. */
static uint64_t hash_name(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

uint64_t sh_rng_key(uint64_t seed, const char *name)
{
    return sh_mix64(hash_name(name) ^ sh_mix64(seed));
}

static int32_t centred_sum(const uint32_t block[4])
{
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)(block[i] & 0xffffu) + (int32_t)(block[i] >> 16);
    return sum - 262140;
}

void sh_rng_fill_normal(uint64_t key, int64_t first, int64_t n, float std, float *out)
{
    const double inverse_deviation = 1.8688123650118533e-05; /* sqrt(12 / (8 * (2^32 - 1))) */
    const float scale = (float)((double)std * inverse_deviation);
    for (int64_t j = 0; j < n; j++) {
        uint32_t block[4];
        sh_philox(key, 0, (uint64_t)(first + j), block);
        out[j] = (float)centred_sum(block) * scale;
    }
}
