/* Time to a loss: the lowest loss that all runs have reached, so that runs with different batches and speeds can be
 * compared by their purpose. Time is training time, as in the table of runs. */
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>

enum { POINTS = 200, MOST_RUNS = 40 };

/* A curve: validation losses, or means of neighbouring training losses, against seconds. */
struct course {
    double *seconds, *loss;
    int n;
};

/* All time that the step took, waiting included, since this is how long a user waits. */
static double step_seconds(const struct sh_report_step *s)
{
    double sum = 0;

    for (int k = 0; k < SH_SPENT_N; k++)
        sum += s->seconds[k];
    return sum;
}

/* Losses that are not finite are left out; their time still counts. */
static void add(struct course *c, double seconds, double loss)
{
    if (!isfinite(loss))
        return;
    c->seconds[c->n] = seconds;
    c->loss[c->n++] = loss;
}

/* The time of validations counts as well. */
static void of_validations(const struct sh_report_run *run, struct course *c)
{
    double seconds = 0;
    int i = 0;

    for (int k = 0; k < run->n_validations; k++) {
        for (; i < run->n_steps && run->steps[i].step <= run->validations[k].step; i++)
            seconds += step_seconds(&run->steps[i]);
        seconds += run->validations[k].seconds;
        add(c, seconds, run->validations[k].loss);
    }
}

/* Averages at most POINTS stretches: single training losses jump, and the first low one would be an accident. */
static void of_steps(const struct sh_report_run *run, struct course *c)
{
    int each = (run->n_steps + POINTS - 1) / POINTS;
    double seconds = 0;

    for (int i = 0; i < run->n_steps; i += each) {
        int end = i + each < run->n_steps ? i + each : run->n_steps;
        double loss = 0;

        for (int k = i; k < end; k++) {
            seconds += step_seconds(&run->steps[k]);
            loss += run->steps[k].loss / (end - i);
        }
        add(c, seconds, loss);
    }
}

/* Uses validation losses if there are some, since they are over the same text at each point. */
static struct course make_course(const struct sh_report_run *run, bool validations)
{
    size_t most = (size_t)(validations ? run->n_validations : POINTS) + 1;
    struct course c = {.seconds = sh_calloc(most, sizeof(double)), .loss = sh_calloc(most, sizeof(double))};

    if (validations)
        of_validations(run, &c);
    else if (run->n_steps)
        of_steps(run, &c);
    return c;
}

/* If a curve rises again its lowest point counts, as if the run had been stopped there. */
static double lowest(const struct course *c)
{
    double low = INFINITY;

    for (int i = 0; i < c->n; i++)
        low = fmin(low, c->loss[i]);
    return low;
}

/* The time at which the loss was first reached. */
static double when(const struct course *c, double loss)
{
    for (int i = 0; i < c->n; i++)
        if (c->loss[i] <= loss)
            return c->seconds[i];
    return NAN;
}

/* Chooses the unit for durations on the page. */
static double unit_of(double seconds, const char **name)
{
    *name = seconds > 7200 ? "hours" : seconds > 120 ? "minutes" : "seconds";
    return seconds > 7200 ? 3600 : seconds > 120 ? 60 : 1;
}

/* One line per run, in the colours of the training curves. */
static void chart(FILE *out, const struct sh_report *r, struct course *of)
{
    double low = INFINITY, high = -INFINITY, last = 0, unit;
    const char *name;
    struct sh_chart c = {.out = out};

    for (int i = 0; i < r->n_runs; i++)
        for (int k = 0; k < of[i].n; k++) {
            low = fmin(low, of[i].loss[k]);
            high = fmax(high, of[i].loss[k]);
            last = fmax(last, of[i].seconds[k]);
        }
    unit = unit_of(last, &name);
    c.x = (struct sh_axis){.min = 0, .max = fmax(last / unit, 1e-3), .title = name};
    c.y = (struct sh_axis){.title = "loss"};
    if (!sh_axis_around(&c.y, low, high))
        return;
    sh_chart_begin(&c, "Loss against time",
                   "Nats per token; lower and further left is better. Colours as in the training curves.", "");
    for (int i = 0; i < r->n_runs; i++) {
        double *x = sh_calloc((size_t)of[i].n + 1, sizeof *x);

        for (int k = 0; k < of[i].n; k++)
            x[k] = of[i].seconds[k] / unit;
        if (of[i].n)
            sh_chart_line(&c, i, 0, of[i].n, x, of[i].loss);
        free(x);
    }
    sh_chart_end(&c);
}

/* Shows rank-hours next to hours: a run on twice the ranks should not look twice as good. */
static void table(FILE *out, const struct sh_report *r, const struct course *of, double target)
{
    char time[SH_STR_SHORT], head[SH_STR_SHORT + 32];
    const struct sh_column columns[] = {
        {.head = "run", .text = true}, {.head = "ranks"}, {.head = head}, {.head = "rank-hours"}};
    struct sh_table t;

    snprintf(head, sizeof head, "time to loss %.4f", target);
    sh_table_begin(&t, out, r->n_runs, sizeof columns / sizeof *columns, columns);
    for (int i = 0; i < r->n_runs; i++) {
        double seconds = when(&of[i], target);

        if (!of[i].n)
            continue;
        sh_table_row(&t);
        sh_table_text(&t, r->runs[i].name);
        sh_table_cell(&t, "%d", r->runs[i].ranks);
        sh_table_cell(&t, "%s", isfinite(seconds) ? sh_str_duration(seconds, time) : "–");
        sh_table_number(&t, seconds * r->runs[i].ranks / 3600);
    }
    sh_table_end(&t);
}

/* The target over the runs that have a curve; INFINITY: fewer than two. */
static double find_target(const struct sh_report *r, const struct course *of)
{
    double target = -INFINITY;
    int n = 0;

    for (int i = 0; i < r->n_runs; i++) {
        if (!of[i].n)
            continue;
        target = fmax(target, lowest(&of[i]));
        n++;
    }
    return n > 1 ? target : INFINITY;
}

/* Validation losses are used only if every started run has some, since they are over the same text. */
static bool all_validated(const struct sh_report *r)
{
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].n_steps && !r->runs[i].n_validations)
            return false;
    return true;
}

void sh_report_reach(FILE *out, const struct sh_report *r)
{
    struct course *of;
    double target;
    bool validations = all_validated(r);

    if (r->n_runs > MOST_RUNS)
        return;
    of = sh_calloc((size_t)r->n_runs, sizeof *of);
    for (int i = 0; i < r->n_runs; i++)
        of[i] = make_course(&r->runs[i], validations);
    target = find_target(r, of);
    if (isfinite(target)) {
        sh_html_heading(out, "Time to a loss",
                        validations
                            ? "The lowest validation loss that all runs have reached."
                            : "The lowest training loss that all runs have reached, in means of neighbouring steps.");
        fputs("<div class=\"pair\">\n", out);
        chart(out, r, of);
        table(out, r, of, target);
        fputs("</div>\n", out);
    }
    for (int i = 0; i < r->n_runs; i++) {
        free(of[i].seconds);
        free(of[i].loss);
    }
    free(of);
}
