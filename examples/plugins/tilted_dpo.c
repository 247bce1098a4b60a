/* DPO with a price for length (Park et al. 2024, R-DPO): -log s(x), s the logistic function, with
 *
 *     x = beta (d of the chosen - d of the rejected) + tilt (targets of the chosen - targets of the rejected),
 *
 * where d is how much likelier an answer is to the model than to the reference. With tilt > 0 a chosen answer that is
 * longer counts as partly learned already, so that length is not what is learned.
 *
 *     cc -O2 -shared -fPIC $(pkg-config --cflags sherd-plugin) -o tilted_dpo.so tilted_dpo.c -lm
 *     sherd plugin check tilted_dpo.so
 *     sherd train dpo --plugin.files=tilted_dpo.so --objective.loss_type=plugin --objective.plugin=tilted_dpo
 */
#include <math.h>
#include <sherd/plugin.h>

static double tilted_dpo(const struct sherd_answer *chosen, const struct sherd_answer *rejected, const double *number,
                         double slope[2])
{
    double beta = number[0], tilt = number[1];
    double d = (chosen->logp - chosen->reference) - (rejected->logp - rejected->reference);
    double x = beta * d + tilt * (chosen->targets - rejected->targets);

    slope[0] = -beta / (1 + exp(x));
    slope[1] = -slope[0];
    return log1p(exp(-fabs(x))) - (x < 0 ? x : 0); /* exact for all x */
}

static const struct sherd_loss losses[] = {
    {.name = "tilted_dpo", .number = {{"beta", 0.1, 1e-6, 1e6}, {"tilt", 0.01, 0, 100}}, .pair = tilted_dpo},
};
const struct sherd_plugin sherd_plugin = {SHERD_PLUGIN, "tilted_dpo", "1", 0, NULL, 1, losses};
