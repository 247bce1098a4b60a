/* Weak and strong scaling: for each kind a chart of speed, a chart of efficiency and a table. series.c finds the
 * series; the index of a series is its colour in all charts. */
#include "src/base/number/median.h"
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>

/* What the legend does not say. */
#define MARKS " Thin grey line: predicted. Mark: measured, the median of repeats; bar: from the least to the most."

static const struct {
    const char *name, *meaning;
} kinds[SH_SCALING_N] = {
    [SH_SCALING_WEAK] = {"Weak scaling",
                         "Each rank keeps its number of sequences; the batch grows with the ranks." MARKS},
    [SH_SCALING_STRONG] = {"Strong scaling", "The batch stays the same; each rank has less to do." MARKS},
};

/* The value that a chart shows against the ranks; NAN if there is none. */
typedef double measure(const struct sh_report_series *s, const struct sh_report_at *at);

static double speed(const struct sh_report_series *s, const struct sh_report_at *at)
{
    (void)s;
    return sh_report_known(at->median);
}

static double predicted_speed(const struct sh_report_series *s, const struct sh_report_at *at)
{
    (void)s;
    return sh_report_known(at->predicted);
}

/* Speed per rank: equal speeds form a horizontal line, which the eye judges better than a slope. */
static double rank_speed(const struct sh_report_series *s, const struct sh_report_at *at)
{
    return speed(s, at) / at->ranks;
}

static double predicted_rank_speed(const struct sh_report_series *s, const struct sh_report_at *at)
{
    return predicted_speed(s, at) / at->ranks;
}

/* The numbers of ranks of all series of a kind, each once, ascending; freed with free(). */
static double *find_ranks(const struct sh_report *r, enum sh_scaling kind, int *n)
{
    double *ranks = sh_calloc((size_t)r->n_runs, sizeof *ranks);
    int all = 0;

    for (int k = 0; k < r->n_series; k++)
        for (int i = 0; r->series[k].kind == kind && i < r->series[k].n_at; i++)
            ranks[all++] = r->series[k].at[i].ranks;
    sh_sort_doubles(all, ranks);
    *n = 0;
    for (int i = 0; i < all; i++)
        if (*n == 0 || ranks[i] > ranks[*n - 1])
            ranks[(*n)++] = ranks[i];
    return ranks;
}

/* Widens *low and *high, which the caller has set. fmin() ignores NAN. */
static void find_range(const struct sh_report *r, enum sh_scaling kind, measure *of, double *low, double *high)
{
    for (int k = 0; k < r->n_series; k++)
        for (int i = 0; r->series[k].kind == kind && i < r->series[k].n_at; i++) {
            double v = of(&r->series[k], &r->series[k].at[i]);

            *low = fmin(*low, v);
            *high = fmax(*high, v);
        }
}

/* Draws predictions as a thin line without marks. */
static void draw_predicted(const struct sh_chart *c, const struct sh_report_series *s, measure *of)
{
    for (int i = 1; i < s->n_at; i++) {
        double from = of(s, &s->at[i - 1]), to = of(s, &s->at[i]);

        if (isfinite(from) && isfinite(to))
            sh_chart_guess(c, s->at[i - 1].ranks, from, s->at[i].ranks, to);
    }
}

/* x and y share one allocation. Marks lie on the line and carry the figures as tooltips; repeats are a bar from the
 * least to the most. If nothing was measured yet, the marks are at the predictions. */
static void draw_series(const struct sh_chart *c, const struct sh_report *r, int look, measure *of, measure *predicted)
{
    const struct sh_report_series *s = &r->series[look];
    double *x = sh_calloc(2 * (size_t)s->n_at, sizeof *x), *y = x + s->n_at;
    char note[200], number[SH_HTML_NUMBER], ranks[SH_STR_SHORT];

    for (int i = 0; i < s->n_at; i++) {
        const struct sh_report_at *at = &s->at[i];

        x[i] = at->ranks;
        y[i] = of(s, at);
        if (at->measured > 1)
            sh_chart_spread(c, look, x[i], y[i] * at->least / at->median, y[i] * at->most / at->median);
    }
    sh_chart_line(c, look, 0, s->n_at, x, y);
    for (int i = 0; i < s->n_at; i++) {
        const struct sh_report_at *at = &s->at[i];
        bool known = isfinite(y[i]);

        if (!known)
            y[i] = s->base > 0 ? NAN : predicted(s, at);
        snprintf(note, sizeof note, "%s: %s tokens/s%s, efficiency %.1f %%", sh_str_plural(at->ranks, "rank", ranks),
                 sh_html_number(known ? at->median : at->predicted, number), known ? "" : " predicted",
                 100 * (known ? sh_report_efficiency(s, at) : sh_report_predicted_efficiency(s, at)));
        if (isfinite(y[i]))
            sh_chart_mark(c, look, x[i], y[i], note);
    }
    free(x);
}

/* Also ends the chart. */
static void draw_all(const struct sh_chart *c, const struct sh_report *r, enum sh_scaling kind, measure *of,
                     measure *predicted)
{
    for (int k = 0; k < r->n_series; k++)
        if (r->series[k].kind == kind) {
            draw_predicted(c, &r->series[k], predicted);
            draw_series(c, r, k, of, predicted);
        }
    sh_chart_end(c);
}

/* Logarithmic, since ranks double; a margin of 15 % keeps marks off the frame. */
static struct sh_axis rank_axis(const double *ranks, int n)
{
    return (struct sh_axis){.min = ranks[0] / 1.15,
                            .max = ranks[n - 1] * 1.15,
                            .ticks = SH_TICKS_LOG,
                            .title = "ranks",
                            .at = ranks,
                            .n_at = n};
}

/* The nearest 1, 2 or 5 times a power of ten that is at most v or, with `up`, at least v, so that an axis starts and
 * ends at a tick. */
static double snap(double v, bool up)
{
    static const double steps[] = {1, 2, 5, 10};
    double power = pow(10, floor(log10(v)));
    int i = up ? 0 : 3;

    while (up ? i < 3 && power * steps[i] < v : i > 0 && power * steps[i] > v)
        i += up ? 1 : -1;
    return power * steps[i];
}

/* The ideal: each rank as fast as the base. */
static void draw_ideal(const struct sh_chart *c, const struct sh_report *r, enum sh_scaling kind)
{
    for (int k = 0; k < r->n_series; k++) {
        const struct sh_report_series *s = &r->series[k];
        double base = s->base > 0 ? s->base : s->predicted_base;
        int least = s->at[0].ranks, most = s->at[s->n_at - 1].ranks;

        if (s->kind == kind)
            sh_chart_guide(c, least, base * least, most, base * most);
    }
}

/* The ideal must be on the chart as well, so the range includes it. */
static void chart_speed(FILE *out, const struct sh_report *r, enum sh_scaling kind, const double *ranks, int n)
{
    struct sh_chart c = {
        .out = out,
        .x = rank_axis(ranks, n),
        .y = {.min = INFINITY, .max = 0, .ticks = SH_TICKS_LOG, .title = "tokens per second, all ranks"}};

    find_range(r, kind, speed, &c.y.min, &c.y.max);
    find_range(r, kind, predicted_speed, &c.y.min, &c.y.max);
    for (int k = 0; k < r->n_series; k++)
        if (r->series[k].kind == kind)
            c.y.max = fmax(c.y.max, fmax(r->series[k].base, r->series[k].predicted_base) *
                                        r->series[k].at[r->series[k].n_at - 1].ranks);
    c.y.min = snap(c.y.min / 1.1, false);
    c.y.max = snap(c.y.max * 1.1, true);
    sh_chart_begin(&c, "Tokens per second against ranks",
                   "Higher is better; on the dotted line each rank is as fast as on the fewest ranks.", "");
    draw_ideal(&c, r, kind);
    draw_all(&c, r, kind, speed, predicted_speed);
}

/* From 0, as for efficiency, with a tenth of room above the highest value. */
static void chart_rank_speed(FILE *out, const struct sh_report *r, enum sh_scaling kind, const double *ranks, int n)
{
    double high = 0, low = INFINITY;
    struct sh_chart c = {.out = out,
                         .x = rank_axis(ranks, n),
                         .y = {.min = 0, .ticks = SH_TICKS_LINEAR, .title = "tokens per second and rank"}};

    find_range(r, kind, rank_speed, &low, &high);
    find_range(r, kind, predicted_rank_speed, &low, &high);
    c.y.max = 1.1 * high;
    sh_chart_begin(&c, "Tokens per second and rank", "Higher is better.", "");
    draw_all(&c, r, kind, rank_speed, predicted_rank_speed);
}

/* From 0, so that small differences do not look large. */
static void chart_efficiency(FILE *out, const struct sh_report *r, enum sh_scaling kind, const double *ranks, int n)
{
    struct sh_chart c = {.out = out,
                         .x = rank_axis(ranks, n),
                         .y = {.min = 0, .max = 1.1, .ticks = SH_TICKS_PERCENT, .title = "efficiency"}};

    find_range(r, kind, sh_report_efficiency, &c.y.min, &c.y.max);
    find_range(r, kind, sh_report_predicted_efficiency, &c.y.min, &c.y.max);
    c.y.max = fmax(c.y.max * 1.02, 1.1);
    sh_chart_begin(&c, "Efficiency against ranks",
                   "Higher is better; 100 %: each rank is as fast as on the fewest ranks.", "");
    sh_chart_guide(&c, c.x.min, 1, c.x.max, 1);
    draw_all(&c, r, kind, sh_report_efficiency, sh_report_predicted_efficiency);
}

/* Efficiency is relative to the fewest ranks of the series. */
static void write_row(struct sh_table *t, const struct sh_report_series *s, const struct sh_report_at *at)
{
    char least[SH_HTML_NUMBER], most[SH_HTML_NUMBER];

    sh_table_row(t);
    sh_table_text(t, s->label);
    sh_table_cell(t, "%d", at->ranks);
    sh_table_cell(t, "%lld", (long long)at->batch);
    sh_table_number(t, sh_report_known(at->median));
    sh_table_number(t, sh_report_known(at->median) / at->ranks);
    sh_table_measure(t, "%.1f %%", 100 * sh_report_efficiency(s, at));
    if (at->measured > 1)
        sh_table_cell(t, "%s to %s (%d)", sh_html_number(at->least, least), sh_html_number(at->most, most),
                      at->measured);
    else
        sh_table_text(t, NULL);
    sh_table_number(t, sh_report_known(at->predicted));
    sh_table_measure(t, "%.1f %%", 100 * sh_report_predicted_efficiency(s, at));
    sh_table_measure(t, "%.1f %%", 100 * sh_report_known(at->median) / sh_report_known(at->predicted));
}

/* Columns that some point of any series has a value for, so that both tables have the same. */
static void write_table(FILE *out, const struct sh_report *r, enum sh_scaling kind)
{
    bool repeats = false, predicted = false;
    struct sh_table t;
    int rows = 0;

    for (int k = 0; k < r->n_series; k++) {
        rows += r->series[k].kind == kind ? r->series[k].n_at : 0;
        for (int i = 0; i < r->series[k].n_at; i++) {
            repeats = repeats || r->series[k].at[i].measured > 1;
            predicted = predicted || r->series[k].at[i].predicted > 0;
        }
    }
    const struct sh_column columns[] = {
        {.head = "series", .text = true},
        {.head = "ranks"},
        {.head = "sequences per step"},
        {.head = "tokens/s"},
        {.head = "tokens/s per rank"},
        {.head = "efficiency"},
        {.head = "least to most (repeats)", .hidden = !repeats},
        {.head = "predicted tokens/s", .hidden = !predicted},
        {.head = "predicted efficiency", .hidden = !predicted},
        {.head = "measured / predicted", .hidden = !predicted},
    };

    sh_table_begin(&t, out, rows, sizeof columns / sizeof *columns, columns);
    for (int k = 0; k < r->n_series; k++)
        for (int i = 0; r->series[k].kind == kind && i < r->series[k].n_at; i++)
            write_row(&t, &r->series[k], &r->series[k].at[i]);
    sh_table_end(&t);
}

/* Writes nothing if no series is of this kind. */
static void write_kind(FILE *out, const struct sh_report *r, enum sh_scaling kind)
{
    double *ranks;
    int n;

    ranks = find_ranks(r, kind, &n);
    if (n) {
        sh_html_heading(out, kinds[kind].name, kinds[kind].meaning);
        fputs("<div class=\"trio\">\n", out);
        chart_speed(out, r, kind, ranks, n);
        chart_efficiency(out, r, kind, ranks, n);
        chart_rank_speed(out, r, kind, ranks, n);
        fputs("</div>\n", out);
        sh_legend_begin(out);
        for (int k = 0; k < r->n_series; k++)
            if (r->series[k].kind == kind)
                sh_legend_entry(out, k, true, true, r->series[k].label);
        sh_legend_end(out);
        write_table(out, r, kind);
    }
    free(ranks);
}

void sh_report_scaling(FILE *out, const struct sh_report *r)
{
    for (enum sh_scaling kind = 0; kind < SH_SCALING_N; kind++)
        write_kind(out, r, kind);
}
