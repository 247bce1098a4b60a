/* Mixes of data sets. Samples come in blocks of SH_MIX_BLOCK. In every block a set has the same number of samples, its
 * share, and only their order changes. So the proportions of the sets are exact after each block, and the set of a
 * sample follows from the seed and the sample's number alone. With a.bin=3,b.bin=1, if blocks had 8 samples:
 *
 *     block 0   a a b a a a b a      shares 6 and 2
 *     block 1   b a a a a b a a */
#include "io/data/mix.h"

#include "io/data/permute.h"
#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Parse one "path=weight"; a path may contain an equals sign. */
static sh_rc take_part(struct sh_mix *m, const char *part, double weight[SH_MIX_SETS])
{
    const char *equals = strrchr(part, '=');
    char *end = NULL;
    double w = equals ? strtod(equals + 1, &end) : 0;

    if (!equals || equals == part || end == equals + 1 || *end != '\0' || !(w > 0) || !isfinite(w))
        return sh_fail(SH_E_USAGE, "data.mix: \"%s\" is not FILE=WEIGHT with a weight above 0", part);
    if (m->n == SH_MIX_SETS)
        return sh_fail(SH_E_USAGE, "data.mix: at most %d sets; give patterns that match several files", SH_MIX_SETS);
    char *path = sh_strfmt("%.*s", (int)(equals - part), part);
    for (int i = 0; i < m->n; i++)
        if (!strcmp(m->path[i], path)) {
            free(path);
            return sh_fail(SH_E_USAGE, "data.mix: %s appears twice; give it one weight", m->path[i]);
        }
    weight[m->n] = w;
    m->path[m->n++] = path;
    return SH_OK;
}

/* Round the shares down, and give the missing samples to the sets with the largest remainders. */
static sh_rc settle_shares(struct sh_mix *m, const double weight[SH_MIX_SETS])
{
    double sum = 0, rest[SH_MIX_SETS];
    int missing = SH_MIX_BLOCK;

    for (int i = 0; i < m->n; i++)
        sum += weight[i];
    for (int i = 0; i < m->n; i++) {
        double share = weight[i] / sum * SH_MIX_BLOCK;
        m->share[i] = (int)share;
        rest[i] = share - m->share[i];
        missing -= m->share[i];
    }
    for (; missing > 0; missing--) {
        int most = 0;
        for (int i = 1; i < m->n; i++)
            most = rest[i] > rest[most] ? i : most;
        m->share[most]++;
        rest[most] -= 1;
    }
    for (int i = 0; i < m->n; i++)
        if (m->share[i] == 0)
            return sh_fail(SH_E_USAGE, "data.mix: %s has %g of the weight; the least is 1 of %d samples", m->path[i],
                           weight[i] / sum, SH_MIX_BLOCK);
    return SH_OK;
}

/* Weights need not sum to 1: 3 and 1 mean the same as 0.75 and 0.25. */
sh_rc sh_mix_parse(const char *text, struct sh_mix *out)
{
    char *copy = sh_strdup(text), *rest = copy;
    double weight[SH_MIX_SETS];
    sh_rc rc = SH_OK;

    *out = (struct sh_mix){0};
    while (rest && rc == SH_OK)
        rc = take_part(out, strsep(&rest, ","), weight);
    free(copy);
    if (rc == SH_OK)
        rc = settle_shares(out, weight);
    if (rc != SH_OK)
        sh_mix_free(out);
    return rc;
}

void sh_mix_free(struct sh_mix *m)
{
    for (int i = 0; i < m->n; i++)
        free(m->path[i]);
    *m = (struct sh_mix){0};
}

/* Return the set of a place before shuffling: the first share[0] places are the first set's, and so on. */
static int set_of(const struct sh_mix *m, int64_t place)
{
    int i = 0;

    while (place >= m->share[i])
        place -= m->share[i++];
    return i;
}

/* The key differs from that of the windows, so the two orders are independent. */
void sh_mix_order(const struct sh_mix *m, uint64_t seed, int64_t number, struct sh_mix_block *b)
{
    int taken[SH_MIX_SETS] = {0};

    if (b->number == number)
        return;
    b->number = number;
    for (int p = 0; p < SH_MIX_BLOCK; p++) {
        int set = set_of(m, sh_data_permute(p, SH_MIX_BLOCK, ~seed, (uint64_t)number));
        b->set[p] = (uint16_t)set;
        b->rank[p] = (uint16_t)taken[set]++;
    }
}
