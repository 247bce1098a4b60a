/* Fits the figures of a machine to runs measured on it: first a few factors with priors, so that one run changes little
 * and ten runs much, then what the formulas miss for each kind of work. doc/prediction.md has the results. */
#include "src/tools/predict/fit.h"

#include "src/base/mem.h"
#include "src/cost/nearby.h"
#include "src/cost/prices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The factors by name; each is the exponential of its number, so 0 leaves the machine unchanged. */
enum { COMPUTATION, HOST, HOPS, SHARE, CROWDING, FACTORS };

/* Widths of the priors, in the logarithm. */
static const double width[FACTORS] = {0.15, 0.5, 0.4, 0.1, 0.2};
/* usual_error: the size of the errors of the formulas themselves (tests/scale/rows). Errors beyond far_error count
 * linearly. */
static const double usual_error = 0.04, far_error = 0.12;
/* Used if the machine gives 0 seconds for the host, so that a factor has something to scale. */
static const double least_host = 1e-4;

struct fit {
    struct sh_predict_run *runs;
    int n;
    const struct sh_machine *start;
};

/* x [FACTORS]: the logarithms. Hops inside and between nodes share one factor: no run can tell them apart. */
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

static struct sh_cost_request request_of(const struct sh_predict_run *run, const struct sh_machine *m)
{
    return (struct sh_cost_request){.p = run->p,
                                    .mesh = run->mesh,
                                    .machine = m,
                                    .ranks_per_node = run->ranks_per_node,
                                    .shares = run->shares,
                                    .faster = sh_cost_as_is};
}

static sh_rc predict(const struct sh_predict_run *run, const struct sh_machine *m, double *seconds)
{
    struct sh_cost_request r = request_of(run, m);
    struct sh_cost_step step;

    SH_TRY(sh_cost_step(&r, &step));
    *seconds = step.seconds;
    return SH_OK;
}

/* Quadratic near 0, linear beyond: a single disturbed run does not distort all factors. */
static double huber(double error)
{
    double size = fabs(error);

    return size <= far_error ? size * size : far_error * (2 * size - far_error);
}

/* The errors of the runs in units of the usual error of the formulas, plus the distance of the factors from their start
 * in widths of their priors. Both have equal weight, so the minimum is a maximum of the posterior. */
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

/* Move one factor a little up or down, if that is better. */
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

/* Pattern search: it needs no derivatives, and the simulation is not smooth. */
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

/* ---- what is left, by work ---- */

/* What a run says about its work: a point with the logarithm of measured over predicted seconds of its computation. */
static sh_rc rest_of(const struct sh_predict_run *run, const struct sh_machine *m, struct sh_machine_point *out)
{
    struct sh_cost_request r = request_of(run, m);
    struct sh_cost_step step;
    struct sh_prices prices;
    double computation = 0;

    SH_TRY(sh_cost_step(&r, &step));
    for (int c = 0; c <= SH_COST_OTHER; c++)
        computation += step.row[c].alone + step.row[c].slowed;
    *out = (struct sh_machine_point){.what = SH_POINT_STEP, .kind = "step", .n_dims = SH_WORK_DIMS, .rounds = 1};
    snprintf(out->type, sizeof out->type, "%s", sh_price_type(run->p->act));
    sh_prices_make(&r, &prices);
    sh_prices_work(run->p, &prices, out->dims);
    sh_prices_free(&prices);
    out->value = log(fmax(1 + (run->seconds - step.seconds) / computation, exp(-far_error)));
    out->value = fmin(out->value, far_error);
    return SH_OK;
}

/* Equal up to the noise of a different order of addition. */
static bool same_work(const struct sh_machine_point *a, const struct sh_machine_point *b)
{
    return !strcmp(a->type, b->type) && sh_nearby_distance(a->dims, b->dims, SH_WORK_DIMS) < 1e-3;
}

/* Add `of` to the point of the same work, or append it. */
static void add_rest(struct sh_machine *m, const struct sh_machine_point *of)
{
    for (int i = 0; i < m->n_points; i++)
        if (m->points[i].what == SH_POINT_STEP && same_work(&m->points[i], of)) {
            m->points[i].value += of->value;
            m->points[i].rounds++;
            return;
        }
    m->points = sh_grow(m->points, m->n_points, &m->cap_points, sizeof *m->points);
    m->points[m->n_points++] = *of;
}

/* Drop the corrections of an earlier fit, which would otherwise be corrected a second time. */
static void drop_steps(struct sh_machine *m)
{
    int n = 0;

    for (int i = 0; i < m->n_points; i++)
        if (m->points[i].what != SH_POINT_STEP)
            m->points[n++] = m->points[i];
    m->n_points = n;
}

/* The mean of the logarithms for each kind of work, with an additional 0, so that a single run counts half. */
static sh_rc fit_works(struct sh_predict_run *runs, int n, struct sh_machine *m)
{
    struct sh_machine_point *rest = sh_calloc((size_t)n, sizeof *rest);
    sh_rc rc = SH_OK;
    int first = m->n_points;

    for (int i = 0; i < n && rc == SH_OK; i++)
        rc = rest_of(&runs[i], m, &rest[i]);
    for (int i = 0; i < n && rc == SH_OK; i++)
        add_rest(m, &rest[i]);
    for (int i = first; i < m->n_points; i++)
        m->points[i].value = exp(m->points[i].value / (m->points[i].rounds + 1));
    free(rest);
    return rc;
}

/* A single run cannot tell the host from kernels: it changes only the computation. */
sh_rc sh_predict_fit(struct sh_predict_run *runs, int n, struct sh_machine *m, struct sh_predict_fitted *out)
{
    struct sh_machine start;
    struct fit f = {.runs = runs, .n = n, .start = &start};
    double x[FACTORS] = {0}, sum = 0;

    SH_REQUIRE(n > 0);
    drop_steps(m);
    start = *m;
    SH_TRY(search(&f, x));
    *m = machine_of(&f, x);
    if (n == 1)
        m->host.step_seconds = start.host.step_seconds;
    for (int i = 0; i < n; i++)
        SH_TRY(predict(&runs[i], &start, &runs[i].before));
    if (n > 1)
        SH_TRY(fit_works(runs, n, m));
    for (int i = 0; i < n; i++) {
        SH_TRY(predict(&runs[i], m, &runs[i].after));
        sum += fabs(runs[i].seconds / runs[i].after - 1);
    }
    *out = (struct sh_predict_fitted){.computation = exp(x[COMPUTATION]),
                                      .host_seconds = m->host.step_seconds,
                                      .hops = exp(x[HOPS]),
                                      .share = exp(x[SHARE]),
                                      .crowding = exp(x[CROWDING]),
                                      .error = sum / n};
    return SH_OK;
}
