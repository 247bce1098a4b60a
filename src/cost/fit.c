#include "src/cost/fit.h"

#include <math.h>

enum { COMPUTATION, HOST, HOPS, SHARE, CROWDING, FACTORS };

/* Widths of the priors, in the logarithm. */
static const double width[FACTORS] = {0.15, 0.5, 0.4, 0.1, 0.2};
/* Errors of this size are those of the formulas themselves (tests/scale/rows); beyond the other they count linearly. */
static const double usual_error = 0.04, far_error = 0.12;
/* Where the machine says 0 seconds of the host, so that a factor can reach some. */
static const double least_host = 1e-4;

struct fit {
    struct sh_cost_run *runs;
    int n;
    const struct sh_machine *start;
};

static struct sh_machine machine_of(const struct fit *f, const double *x)
{
    struct sh_machine m = *f->start;

    m.fit.computation *= exp(x[COMPUTATION]);
    m.host.step_seconds = fmax(m.host.step_seconds, least_host) * exp(x[HOST]);
    m.inside.hop_seconds *= exp(x[HOPS]);
    m.network.hop_seconds *= exp(x[HOPS]);
    m.network.share *= exp(x[SHARE]);
    m.network.crowding *= exp(x[CROWDING]);
    return m;
}

static sh_rc predict(const struct sh_cost_run *run, const struct sh_machine *m, double *seconds)
{
    struct sh_cost_request r = {.p = run->p,
                                .mesh = run->mesh,
                                .machine = m,
                                .ranks_per_node = run->ranks_per_node,
                                .shares = run->shares,
                                .faster = sh_cost_as_is};
    struct sh_cost_step step;

    SH_TRY(sh_cost_step(&r, &step));
    *seconds = step.seconds;
    return SH_OK;
}

static double huber(double error)
{
    double size = fabs(error);

    return size <= far_error ? size * size : far_error * (2 * size - far_error);
}

static sh_rc loss_of(const struct fit *f, const double *x, double *loss)
{
    struct sh_machine m = machine_of(f, x);
    double sum = 0;

    for (int i = 0; i < f->n; i++) {
        double seconds;

        SH_TRY(predict(&f->runs[i], &m, &seconds));
        sum += huber(log(seconds / f->runs[i].seconds)) / (usual_error * usual_error);
    }
    for (int k = 0; k < FACTORS; k++)
        sum += x[k] * x[k] / (width[k] * width[k]);
    *loss = sum;
    return SH_OK;
}

/* One factor a little up or down, where that is better. */
static sh_rc step_one(const struct fit *f, double *x, int k, double by, double *loss, bool *better)
{
    for (int sign = -1; sign <= 1; sign += 2) {
        double before = x[k], now;

        x[k] += sign * by;
        SH_TRY(loss_of(f, x, &now));
        if (now < *loss) {
            *loss = now;
            *better = true;
            return SH_OK;
        }
        x[k] = before;
    }
    return SH_OK;
}

/* Pattern search: no derivatives, for the simulation has corners. */
static sh_rc search(const struct fit *f, double *x)
{
    int factors = f->n == 1 ? 1 : FACTORS;
    double loss;

    SH_TRY(loss_of(f, x, &loss));
    for (double by = 0.5; by > 1e-3;) {
        bool better = false;

        for (int k = 0; k < factors; k++)
            SH_TRY(step_one(f, x, k, by * width[k], &loss, &better));
        by = better ? by : by / 2;
    }
    return SH_OK;
}

sh_rc sh_cost_fit(struct sh_cost_run *runs, int n, struct sh_machine *m, struct sh_cost_fitted *out)
{
    struct sh_machine start = *m;
    struct fit f = {.runs = runs, .n = n, .start = &start};
    double x[FACTORS] = {0}, sum = 0;

    SH_REQUIRE(n > 0);
    SH_TRY(search(&f, x));
    *m = machine_of(&f, x);
    if (n == 1)
        m->host.step_seconds = start.host.step_seconds;
    for (int i = 0; i < n; i++) {
        SH_TRY(predict(&runs[i], &start, &runs[i].before));
        SH_TRY(predict(&runs[i], m, &runs[i].after));
        sum += fabs(runs[i].seconds / runs[i].after - 1);
    }
    *out = (struct sh_cost_fitted){.computation = exp(x[COMPUTATION]),
                                   .host_seconds = m->host.step_seconds,
                                   .hops = exp(x[HOPS]),
                                   .share = exp(x[SHARE]),
                                   .crowding = exp(x[CROWDING]),
                                   .error = sum / n};
    return SH_OK;
}
