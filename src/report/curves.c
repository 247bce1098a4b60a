/* The charts against steps: loss, gradient norm, learning rate, speed, loss scale. The runs of a chart share one pair
 * of axes, which cover the finite values of all runs. */
#include "src/report/html.h"
#include "src/report/parts.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

/* Limits per curve; more could not be seen. With many runs each gets fewer points, so that the page stays a few MB. */
enum { MOST_POINTS = 400, LEAST_POINTS = 20, ALL_POINTS = 40 * MOST_POINTS, MOST_MARKS = 100, MOST_LEGEND = 40 };
/* With more runs than this, overlapping curves are not looked for, since each run is compared with all before it. */
enum { MOST_COMPARED = 64 };

typedef double value_fn(const struct sh_report_step *s);
/* A mark at a step: its value and its text; false: no mark there. */
typedef bool mark_fn(const struct sh_report_step *s, char *note, size_t size);

struct curve {
    const char *title, *good, *unit;
    value_fn *value;
    mark_fn *mark;    /* (optional) */
    bool validations; /* validations are drawn as well */
    bool from_zero;
    bool powers; /* powers of two: the axis is logarithmic */
};

static double loss_of(const struct sh_report_step *s)
{
    return s->loss;
}

static double grad_norm_of(const struct sh_report_step *s)
{
    return s->grad_norm;
}

static double lr_of(const struct sh_report_step *s)
{
    return s->lr;
}

static double loss_scale_of(const struct sh_report_step *s)
{
    return s->loss_scale;
}

/* NAN for steps that warm up, which would be the lowest points of any run. */
static double speed_of(const struct sh_report_step *s)
{
    return s->first ? NAN : s->tokens_per_second;
}

static bool is_skipped(const struct sh_report_step *s, char *note, size_t size)
{
    snprintf(note, size, "step %lld: update skipped", (long long)s->step);
    return s->skipped;
}

/* Marks a pause longer than the step itself; shorter ones show in the table of times. */
static bool is_stalled(const struct sh_report_step *s, char *note, size_t size)
{
    double paused = s->seconds[SH_SPENT_CHECKPOINT], rest = 0;

    for (int k = 0; k < SH_SPENT_N; k++)
        rest += k == SH_SPENT_CHECKPOINT ? 0 : s->seconds[k];
    snprintf(note, size, "step %lld: paused %.3g s to save", (long long)s->step, paused);
    return !s->first && paused > rest;
}

static const struct curve curves[] = {
    {"Loss against steps", "Nats per token; lower is better. Line: training; markers: validation.", "loss", loss_of,
     NULL, true, false, false},
    {"Gradient norm against steps", "Before clipping. Markers: steps whose update was skipped.", "gradient norm",
     grad_norm_of, is_skipped, false, false, false},
    {"Speed against steps", "Tokens per second of all ranks; higher is better. Markers: pauses longer than a step.",
     "tokens/s", speed_of, is_stalled, false, true, false},
    {"Learning rate against steps", "As set by the schedule.", "learning rate", lr_of, NULL, false, true, false},
    {"Loss scale against steps", "Runs in float16 only. Markers: steps whose update was skipped.", "loss scale",
     loss_scale_of, is_skipped, false, false, true},
};

struct range {
    double first, last, low, high;
};

static void widen(struct range *r, int64_t step, double v)
{
    if (!isfinite(v))
        return;
    r->first = fmin(r->first, (double)step);
    r->last = fmax(r->last, (double)step);
    r->low = fmin(r->low, v);
    r->high = fmax(r->high, v);
}

/* Without any finite value `last` stays below `first`. */
static struct range find_range(const struct sh_report *r, const struct curve *curve)
{
    struct range all = {INFINITY, -INFINITY, INFINITY, -INFINITY};

    for (int i = 0; i < r->n_runs; i++) {
        for (int k = 0; k < r->runs[i].n_steps; k++)
            widen(&all, r->runs[i].steps[k].step, curve->value(&r->runs[i].steps[k]));
        for (int k = 0; curve->validations && k < r->runs[i].n_validations; k++)
            widen(&all, r->runs[i].validations[k].step, r->runs[i].validations[k].loss);
    }
    if (curve->from_zero && all.high >= 0)
        all.low = 0;
    return all;
}

/* ---- overlapping curves ---- */

/* Two curves look like one if they are nowhere further apart than the width of a line. */
static double eye_of(const struct range *all)
{
    return 0.005 * fmax(all->high - all->low, 1e-3 * fabs(all->high));
}

/* The largest distance of two runs over the steps that both have. */
struct distance {
    double most; /* -1: no step in common with finite values */
    int64_t step;
};

/* Returns early once the runs are further apart than the eye needs: the exact distance is then not used. */
static struct distance compare(const struct sh_report_run *a, const struct sh_report_run *b, value_fn *value,
                               double eye)
{
    struct distance d = {.most = -1};

    for (int i = 0, k = 0; i < a->n_steps && k < b->n_steps && d.most <= eye;) {
        int64_t x = a->steps[i].step, y = b->steps[k].step;
        double apart = x == y ? fabs(value(&a->steps[i]) - value(&b->steps[k])) : NAN;

        if (apart > d.most)
            d = (struct distance){.most = apart, .step = x};
        i += x <= y;
        k += y <= x;
    }
    return d;
}

/* below  out  [n_runs] the first run whose curve each run's lies on, or the run itself if there is none
 * d      out  [n_runs] their distance */
static void find_below(const struct sh_report *r, value_fn *value, double eye, int *below, struct distance *d)
{
    for (int j = 0; j < r->n_runs; j++) {
        below[j] = j;
        for (int i = 0; i < j && below[j] == j && r->n_runs <= MOST_COMPARED; i++) {
            if (below[i] != i)
                continue;
            d[j] = compare(&r->runs[i], &r->runs[j], value, eye);
            if (d[j].most >= 0 && d[j].most <= eye)
                below[j] = i;
        }
    }
}

/* Writes a sentence about the runs that lie on run i, either the equal ones or the others. */
static void say_on(FILE *out, const struct sh_report *r, int i, bool equal, const int *below, const struct distance *d)
{
    int most = -1, n = 0;

    for (int j = i + 1; j < r->n_runs; j++) {
        if (below[j] != i || (d[j].most == 0) != equal)
            continue;
        fputs(n++ ? ", " : "<li>", out);
        sh_html_text(out, r->runs[j].name);
        if (most < 0 || d[j].most > d[most].most)
            most = j;
    }
    if (!n)
        return;
    fputs(equal ? (n > 1 ? " have the same losses as " : " has the same losses as ")
                : (n > 1 ? " lie on " : " lies on "),
          out);
    sh_html_text(out, r->runs[i].name);
    if (equal) {
        fputs(" at every step.</li>\n", out);
        return;
    }
    fprintf(out, "; largest difference: %.2g at step %lld", d[most].most, (long long)d[most].step);
    if (n > 1) {
        fputs(" of ", out);
        sh_html_text(out, r->runs[most].name);
    }
    fputs(".</li>\n", out);
}

/* Says it in words, since curves that look like one may still differ. */
static void say_below(FILE *out, const struct sh_report *r, const struct range *all)
{
    struct distance *d = sh_calloc((size_t)r->n_runs, sizeof *d);
    int *below = sh_calloc((size_t)r->n_runs, sizeof *below);

    find_below(r, loss_of, eye_of(all), below, d);
    fputs("<ul class=\"said\">\n", out);
    for (int i = 0; i < r->n_runs; i++) {
        say_on(out, r, i, true, below, d);
        say_on(out, r, i, false, below, d);
    }
    fputs("</ul>\n", out);
    free(below);
    free(d);
}

/* Counts the later curves that lie on that of each run; freed with free(). */
static int *count_above(const struct sh_report *r, value_fn *value, double eye)
{
    struct distance *d = sh_calloc((size_t)r->n_runs, sizeof *d);
    int *below = sh_calloc((size_t)r->n_runs, sizeof *below), *above = sh_calloc((size_t)r->n_runs, sizeof *above);

    find_below(r, value, eye, below, d);
    for (int j = 0; j < r->n_runs && r->n_runs <= MOST_COMPARED; j++)
        for (int k = j + 1; k < r->n_runs; k++)
            above[j] += below[k] == below[j];
    free(below);
    free(d);
    return above;
}

/* ---- drawing ---- */

static int points_of(const struct sh_report *r)
{
    int each = ALL_POINTS / r->n_runs;

    return each > MOST_POINTS ? MOST_POINTS : each < LEAST_POINTS ? LEAST_POINTS : each;
}

/* A long run is drawn through means of neighbouring steps; a mean is not finite if one of its values is not. */
static void draw_curve(const struct sh_chart *c, const struct curve *curve, int look, int above, int most,
                       const struct sh_report_run *run)
{
    /* Number of steps that one point represents. */
    int each = (run->n_steps + most - 1) / most, n = 0;
    double *x = sh_calloc(2 * (size_t)(most + 1), sizeof *x), *y = x + most + 1;

    for (int i = 0; i < run->n_steps; i += each, n++) {
        int end = i + each < run->n_steps ? i + each : run->n_steps;

        for (int k = i; k < end; k++) {
            x[n] += (double)run->steps[k].step / (end - i);
            y[n] += curve->value(&run->steps[k]) / (end - i);
        }
    }
    sh_chart_line(c, look, above, n, x, y);
    free(x);
}

static void draw_validations(const struct sh_chart *c, int look, const struct sh_report_run *run)
{
    char note[96];

    for (int i = 0; i < run->n_validations; i++) {
        const struct sh_report_point *p = &run->validations[i];

        snprintf(note, sizeof note, "step %lld: validation loss %.4f", (long long)p->step, p->loss);
        if (isfinite(p->loss))
            sh_chart_mark(c, look, (double)p->step, p->loss, note);
    }
}

static void draw_marks(const struct sh_chart *c, const struct curve *curve, int look, const struct sh_report_run *run)
{
    char note[96];
    int n = 0;

    for (int i = 0; i < run->n_steps && n < MOST_MARKS; i++) {
        double v = curve->value(&run->steps[i]);

        if (!curve->mark(&run->steps[i], note, sizeof note) || !isfinite(v))
            continue;
        sh_chart_mark(c, look, (double)run->steps[i].step, v, note);
        n++;
    }
}

/* Draws nothing if no run has such a value, as in files of older versions. */
static void draw(FILE *out, const struct sh_report *r, const struct curve *curve)
{
    struct range all = find_range(r, curve);
    struct sh_chart c = {
        .out = out,
        .x = {.min = all.first, .max = fmax(all.last, all.first + fmax(1, 1e-3 * fabs(all.first))), .title = "step"},
        .y = {.title = curve->unit}};
    int *above;

    if (!(all.last >= all.first) || !sh_axis_around(&c.y, all.low, all.high))
        return;
    if (curve->from_zero)
        c.y.min = fmin(all.low, 0);
    if (curve->powers && all.low > 0)
        c.y =
            (struct sh_axis){.min = all.low / 1.5, .max = all.high * 1.5, .ticks = SH_TICKS_LOG, .title = curve->unit};
    above = count_above(r, curve->value, eye_of(&all));
    sh_chart_begin(&c, curve->title, curve->good);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].n_steps)
            draw_curve(&c, curve, i, above[i], points_of(r), &r->runs[i]);
    for (int i = 0; i < r->n_runs; i++) {
        if (curve->validations)
            draw_validations(&c, i, &r->runs[i]);
        if (curve->mark)
            draw_marks(&c, curve, i, &r->runs[i]);
    }
    sh_chart_end(&c);
    free(above);
}

/* Runs without steps have no curve and no entry; colours still count them, as in the tables. A legend longer than a
 * screen is folded. */
static void write_legend(FILE *out, const struct sh_report *r)
{
    bool folded = r->n_runs > MOST_LEGEND;

    fputs(folded ? "<details><summary>Which line is which run</summary>\n" : "", out);
    sh_legend_begin(out);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].n_steps)
            sh_legend_entry(out, i, true, r->runs[i].n_validations > 0, r->runs[i].name);
    sh_legend_end(out);
    fputs(folded ? "</details>\n" : "", out);
}

void sh_report_curves(FILE *out, const struct sh_report *r)
{
    struct range all = find_range(r, &curves[0]);

    if (!(all.last >= all.first))
        return;
    fputs("<h2>Training curves</h2>\n"
          "<p class=\"soft\">Long runs are drawn through the means of neighbouring steps.</p>\n",
          out);
    write_legend(out, r);
    say_below(out, r, &all);
    fputs("<div class=\"pair\">\n", out);
    for (size_t k = 0; k < sizeof curves / sizeof *curves; k++)
        draw(out, r, &curves[k]);
    fputs("</div>\n", out);
}
