/* The share of a job's time that makes progress when nodes fail. Times are in seconds: W of progress, d of a save, R of
 * a restart, and M, the mean time between failures. Example: with M of 4 h and saves of 60 s, Young's interval is
 * sqrt(2 x 60 x 14400) s, 22 minutes. */
#include "src/tools/predict/fail.h"

#include <math.h>

/* W seconds of progress take (M + R) (exp((W + d) / M) - 1) on average, if failures are random. */
double sh_predict_goodput(const struct sh_predict_failures *f, double every)
{
    if (f->between <= 0)
        return every / (every + f->save);
    return every / ((f->between + f->restart) * expm1((every + f->save) / f->between));
}

/* Golden-section search around Young's sqrt(2 d M): goodput has one maximum. In logarithms, because the scale is not
 * known. */
double sh_predict_best_interval(const struct sh_predict_failures *f)
{
    const double golden = (sqrt(5) - 1) / 2;
    double young = sqrt(2 * fmax(f->save, 1e-3) * f->between), low = log(young / 100), high = log(young * 100);

    while (high - low > 1e-7) {
        double a = high - golden * (high - low), b = low + golden * (high - low);

        if (sh_predict_goodput(f, exp(a)) < sh_predict_goodput(f, exp(b)))
            low = a;
        else
            high = b;
    }
    return exp((low + high) / 2);
}

double sh_predict_recovery_seconds(const struct sh_predict_recovery *r)
{
    return r->silence + r->end + r->start + r->load + r->again;
}

/* Of the steps repeated, half an interval is in the formula. */
double sh_predict_near_goodput(const struct sh_predict_recovery *r, double between)
{
    struct sh_predict_failures f = {
        .between = between, .save = r->copy, .restart = fmax(0, sh_predict_recovery_seconds(r) - r->every / 2)};

    return sh_predict_goodput(&f, r->every);
}
