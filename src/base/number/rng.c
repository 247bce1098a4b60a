#include "src/base/number/rng.h"

#include "src/base/hash.h"
#include "src/base/number/philox.h"

void sh_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4])
{
    sh_philox_block(key, counter_hi, counter_lo, out);
}

/* FNV-1a: byte by byte, so that a name gives the same key on machines of any byte order. */
uint64_t sh_rng_name(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

uint64_t sh_rng_key_of(uint64_t seed, uint64_t name)
{
    return sh_mix64(name ^ sh_mix64(seed));
}

/* Each name has its own stream: the values of a tensor do not depend on the order of the tensors or on the ranks. */
uint64_t sh_rng_key(uint64_t seed, const char *name)
{
    return sh_rng_key_of(seed, sh_rng_name(name));
}

/* The sum of eight centred 16-bit numbers is nearly normal; this factor scales its deviation to `std`. */
float sh_rng_normal_scale(float std)
{
    const double inverse_deviation = 1.8688123650118533e-05; /* sqrt(12 / (8 * (2^32 - 1))) */
    return (float)((double)std * inverse_deviation);
}

/* Element i depends only on key and i, so each rank fills just its own part and gets the same bits as a single rank
 * would. */
void sh_rng_fill_normal(uint64_t key, int64_t first, int64_t n, float std, float *out)
{
    const float scale = sh_rng_normal_scale(std);
    for (int64_t j = 0; j < n; j++)
        out[j] = (float)sh_philox_centred_sum(key, (uint64_t)(first + j)) * scale;
}

/* The first word of a block, centred. It is an odd number, so that no value is 0. */
void sh_rng_fill_uniform(uint64_t key, int64_t first, int64_t n, float bound, float *out)
{
    const float scale = bound * 0x1p-32f;
    uint32_t bits[4];
    for (int64_t j = 0; j < n; j++) {
        sh_philox_block(key, 0, (uint64_t)(first + j), bits);
        out[j] = (float)(2 * (int64_t)bits[0] + 1 - ((int64_t)1 << 32)) * scale;
    }
}
