/* The focal loss (Lin et al. 2017): -(1 - p)^gamma log p, which counts targets that are already likely for less.
 *
 *     cc -O2 -shared -fPIC $(pkg-config --cflags sherd-plugin) -o focal.so focal.c -lm
 *     sherd plugin check focal.so
 *     sherd train debug --plugin.files=focal.so --objective.name=plugin --objective.plugin=focal
 */
#include <math.h>
#include <sherd/plugin.h>

/* The slope has p' = p, so (1 - p)' = -p. Where p is 1 it is 0 or, without gamma, -1. expm1 keeps 1 - p exact near there. */
static double focal(double logp, const double *number, double *slope)
{
    double gamma = number[0], p = exp(logp), rest = -expm1(logp), weight = pow(rest, gamma);

    *slope = -weight;
    if (gamma > 0 && rest > 0)
        *slope += gamma * pow(rest, gamma - 1) * p * logp;
    return -weight * logp;
}

static const struct sherd_loss losses[] = {
    {.name = "focal", .number = {{"gamma", 2, 0, 100}}, .target = focal},
};
const struct sherd_plugin sherd_plugin = {SHERD_PLUGIN, "focal", "1", 0, NULL, 1, losses};
