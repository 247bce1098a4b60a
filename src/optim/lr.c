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
    case SH_DECAY_POWER_TAIL:
    case SH_DECAY_WSD: break;
    }
    return 1;
}

/* The factor of step `step` after the warm-up. */
static double power_of(const struct sh_lr *lr, int64_t step)
{
    return pow((double)(lr->warmup ? lr->warmup : 1) / (double)(step + 1), lr->power);
}

/* Example: warmup 10, total 100, linear: step 0 has 1/10 of the peak, step 9 the peak; the fall begins after step 10
 * and reaches min_factor at step 100. With WSD and decay_ratio 0.2 it begins after step 80, but never within the
 * warm-up; with POWER_TAIL it begins there from what the power has left, and min_factor is of that. */
double sh_lr_at(const struct sh_lr *lr, int64_t step)
{
    bool tail = sh_cfg_decay_has_tail((int)lr->decay), power = lr->decay == SH_DECAY_POWER_TAIL;
    int64_t start = tail ? lr->total - (int64_t)llround(lr->decay_ratio * (double)lr->total) : lr->warmup;
    double done = 0, top;

    if (step < lr->warmup)
        return lr->peak * (double)(step + 1) / (double)lr->warmup;
    if (start < lr->warmup)
        start = lr->warmup;
    if (lr->decay == SH_DECAY_POWER || (power && step <= start))
        return lr->peak * power_of(lr, step);
    if (step >= lr->total)
        done = 1;
    else if (step > start)
        done = (double)(step - start) / (double)(lr->total - start);
    top = power ? power_of(lr, start) : 1;
    return lr->peak * (top * factor(tail ? lr->shape : lr->decay, lr->min_factor, done));
}

double sh_clip_scale(double norm, double max_norm)
{
    return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}
