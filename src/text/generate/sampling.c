#include "src/text/generate/sampling.h"

#include "src/base/mem.h"
#include "src/base/number/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A token that may be chosen. The largest logit is subtracted, or exp() would overflow. */
struct candidate {
    uint32_t id;
    float logit;
    double weight; /* exp((logit - largest) / temperature) */
};

struct candidates {
    struct candidate *c;
    int n;
};

/* In (0, 1), from a counter. Adding 0.5 keeps 0 out, which would choose a word of no weight. */
static double uniform(uint64_t seed, uint64_t text, uint64_t position)
{
    uint32_t bits[4];

    sh_philox(seed, text, position, bits);
    return ((double)bits[0] + 0.5) / 4294967296.0;
}

/* The largest logit, the first among equals, so that temperature 0 is deterministic. */
static int likeliest(const float *logits, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* The k-th largest of x [n], whose order changes: quickselect with the median of three as the pivot. */
static float kth_largest(float *x, int n, int k)
{
    int low = 0, high = n - 1;

    while (low < high) {
        float a = x[low], b = x[low + (high - low) / 2], c = x[high];
        float pivot = a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
        int i = low, j = high;

        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i <= j) {
                float swap = x[i];
                x[i++] = x[j];
                x[j--] = swap;
            }
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            break;
    }
    return x[k - 1];
}

/* The smallest logit among the top k; ties at it all stay. */
static float top_k_limit(const float *logits, int n, int k)
{
    float *x, limit;

    if (k <= 0 || k >= n)
        return -INFINITY;
    x = sh_calloc((size_t)n, sizeof *x);
    memcpy(x, logits, (size_t)n * sizeof *x);
    limit = kth_largest(x, n, k);
    free(x);
    return limit;
}

static struct candidates all_within(const struct sh_sampling *s, const float *logits, int n)
{
    float limit = top_k_limit(logits, n, s->top_k);
    double most = logits[likeliest(logits, n)];
    struct candidates all = {.c = sh_calloc((size_t)n, sizeof *all.c)};

    for (int i = 0; i < n; i++)
        if (logits[i] >= limit)
            all.c[all.n++] = (struct candidate){
                .id = (uint32_t)i, .logit = logits[i], .weight = exp((logits[i] - most) / s->temperature)};
    return all;
}

static double sum_of(const struct candidates *of)
{
    double sum = 0;

    for (int i = 0; i < of->n; i++)
        sum += of->c[i].weight;
    return sum;
}

/* Ascending; among equals the later id comes first, so that the earlier one is kept. */
static int ascending(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit < y->logit ? -1 : 1;
    return (x->id < y->id) - (x->id > y->id);
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

/* Drop candidates from the unlikeliest on, as long as their sum is at most 1 - p of the whole. The likeliest stays. */
static void keep_top_p(struct candidates *of, double p)
{
    double left = (1 - p) * sum_of(of), sum = 0;
    int drop = 0;

    if (p >= 1)
        return;
    qsort(of->c, (size_t)of->n, sizeof *of->c, ascending);
    while (drop < of->n - 1 && (sum += of->c[drop].weight) <= left)
        drop++;
    of->n -= drop;
    memmove(of->c, of->c + drop, (size_t)of->n * sizeof *of->c);
    qsort(of->c, (size_t)of->n, sizeof *of->c, by_id);
}

/* The likeliest has weight 1, so p needs no scaling. */
static void keep_min_p(struct candidates *of, double p)
{
    int n = 0;

    for (int i = 0; i < of->n; i++)
        if (of->c[i].weight >= p)
            of->c[n++] = of->c[i];
    of->n = n;
}

/* Choose by weight, in the order of ids. The last one is chosen if rounding keeps u at 0 or above to the end. */
static uint32_t draw(const struct candidates *of, double u)
{
    int i = 0;

    u *= sum_of(of);
    for (; i < of->n - 1; i++)
        if ((u -= of->c[i].weight) < 0)
            break;
    return of->c[i].id;
}

uint32_t sh_sample(const struct sh_sampling *s, const float *logits, int n, uint64_t text, uint64_t position)
{
    struct candidates of;
    uint32_t id;

    if (s->temperature == 0)
        return (uint32_t)likeliest(logits, n);
    of = all_within(s, logits, n);
    keep_top_p(&of, s->top_p);
    keep_min_p(&of, s->min_p);
    /* Logits that are NaN leave nothing to choose from. */
    id = of.n ? draw(&of, uniform(s->seed, text, position)) : (uint32_t)likeliest(logits, n);
    free(of.c);
    return id;
}
