#include "src/optim/optim.h"

#include <math.h>

/* The factor of the peak, from 1 to `least`, `done` of the way through the decay. */
static double factor(enum sh_cfg_decay decay, double least, double done)
{
    switch (decay) {
    case SH_DECAY_COSINE: return 1 - (1 - least) * 0.5 * (1 - cos(M_PI * done));
    case SH_DECAY_LINEAR: return 1 - (1 - least) * done;
    case SH_DECAY_SQRT: return 1 - (1 - least) * sqrt(done);
    case SH_DECAY_EXP: return pow(least, done);
    case SH_DECAY_CONSTANT:
    case SH_DECAY_POWER:
    case SH_DECAY_WSD: break;
    }
    return 1;
}

/* Example: warmup 10, total 100, linear: step 0 has 1/10 of the peak, step 9 the peak; the fall begins after step 10
 * and reaches min_factor at step 100. With WSD and decay_ratio 0.2 it begins after step 80, but never within the
 * warm-up. */
double sh_lr_at(const struct sh_lr *lr, int64_t step)
{
    int64_t start = lr->warmup;
    double done = 0;

    if (step < lr->warmup)
        return lr->peak * (double)(step + 1) / (double)lr->warmup;
    if (lr->decay == SH_DECAY_POWER)
        return lr->peak * pow((double)(lr->warmup ? lr->warmup : 1) / (double)(step + 1), lr->power);
    if (lr->decay == SH_DECAY_WSD)
        start = lr->total - (int64_t)llround(lr->decay_ratio * (double)lr->total);
    if (start < lr->warmup)
        start = lr->warmup;
    if (step >= lr->total)
        done = 1;
    else if (step > start)
        done = (double)(step - start) / (double)(lr->total - start);
    return lr->peak * factor(lr->decay == SH_DECAY_WSD ? lr->shape : lr->decay, lr->min_factor, done);
}

double sh_clip_scale(double norm, double max_norm)
{
    return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}
