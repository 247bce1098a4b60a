/* Losses that are wrong, each in one way: the environment variable MUTANT is its number, 0 or none is right. It is read
 * when the library is loaded, so that one library has all mutants. One loss of targets, -by logp^2 / 2 + tail, and one of
 * pairs. test_plugin_loss.py has what each is to be named for. */
#include <fenv.h>
#include <math.h>
#include <sherd/plugin.h>
#include <stdlib.h>

static int mutant;
#define IS(n) (mutant == (n))

static double target(double logp, const double *number, double *slope)
{
    static void *volatile kept;
    static double before;
    double by = IS(6) ? 0.7 : number[0], l = IS(4) ? fmax(logp, -100) : logp;

    if (IS(18)) {
        *slope = -by * l;
        return -by * l * l / 2;
    }
    if (IS(20) && by < 0.3) {
        *slope = by;
        return by * l * l / 2;
    }
    if (IS(17)) {
        *slope = 0.5 * by * l;
        return (float)(by * (float)l * (float)l / 2);
    }
    if (IS(9))
        kept = malloc(100);
    if (IS(10))
        fesetround(FE_UPWARD);
    if (IS(11))
        ((double *)(size_t)number)[0] = 0.7;
    if (IS(13))
        *(volatile int *)(size_t)8 = 1;
    *slope = (IS(1) ? -1 : IS(2) ? 0.5 : 1) * (IS(12) ? 0.7 : by) * l;
    if (IS(7))
        l += 1e-3 * before;
    before = logp;
    return by * l * l / 2 + (IS(5) ? 1 / expm1(l) - 1 / expm1(l) : 0) + 0 * (kept != NULL);
}

static double pair(const struct sherd_answer *c, const struct sherd_answer *j, const double *number, double slope[2])
{
    double x = number[0] * ((c->logp - c->reference) - (IS(14) ? j->logp : j->logp - j->reference));

    if (IS(16))
        x *= (c->logp - c->reference) / (c->logp - c->reference);
    slope[0] = -number[0] / (1 + exp(x));
    if (!IS(3))
        slope[1] = IS(15) ? slope[0] : -slope[0];
    if (IS(19))
        return log(1 + exp(-x / number[0])) / (1 / number[0]);
    return log1p(exp(-fabs(x))) - (x < 0 ? x : 0);
}

static struct sherd_loss losses[] = {
    {.name = "square", .number = {{"by", 0.7, 0, 10}}, .target = target},
    {.name = "margin", .number = {{"beta", 0.1, 0, 10}}, .pair = pair},
};

__attribute__((constructor)) static void choose(void)
{
    const char *number = getenv("MUTANT");

    mutant = number ? atoi(number) : 0;
    if (IS(8))
        losses[0].pair = pair;
    if (IS(21))
        losses[0].number[1] = losses[0].number[0];
}

const struct sherd_plugin sherd_plugin = {SHERD_PLUGIN, "mutant", "1", 0, NULL, 2, losses};
