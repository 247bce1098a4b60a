/* Weak and strong scaling: for each kind a chart of speed, a chart of efficiency and a table. Series are found in
 * series.c; the index of a series is its colour in all charts. */
#include "src/report/html.h"
#include "src/report/parts.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

static const struct {
    const char *name, *meaning;
} kinds[SH_SCALING_N] = {
    [SH_SCALING_WEAK] = {"Weak scaling", "Each rank keeps its number of sequences; the batch grows with the ranks."},
    [SH_SCALING_STRONG] = {"Strong scaling", "The batch stays the same; each rank has less to do."},
};

/* A point of a chart: what is drawn against the ranks. */
typedef double measure(const struct sh_report_series *s, const struct sh_report_run *run);

/* As a `measure`, which also takes efficiencies. */
static double speed(const struct sh_report_series *s, const struct sh_report_run *run)
{
    (void)s;
    return run->tokens_per_second;
}

/* The i-th run of a series, in the order of ranks. */
static const struct sh_report_run *run_of(const struct sh_report *r, const struct sh_report_series *s, int i)
{
    return &r->runs[s->runs[i]];
}

/* Ascending. */
static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The numbers of ranks of all series of a kind, each once, ascending; freed with free(). */
static double *find_ranks(const struct sh_report *r, enum sh_scaling kind, int *n)
{
    double *ranks = sh_calloc((size_t)r->n_runs, sizeof *ranks);
    int all = 0;

    for (int k = 0; k < r->n_series; k++)
        for (int i = 0; r->series[k].kind == kind && i < r->series[k].n; i++)
            ranks[all++] = run_of(r, &r->series[k], i)->ranks;
    qsort(ranks, (size_t)all, sizeof *ranks, compare);
    *n = 0;
    for (int i = 0; i < all; i++)
        if (*n == 0 || ranks[i] > ranks[*n - 1])
            ranks[(*n)++] = ranks[i];
    return ranks;
}

/* Widens *low and *high, which the caller has set. */
static void find_range(const struct sh_report *r, enum sh_scaling kind, measure *of, double *low, double *high)
{
    for (int k = 0; k < r->n_series; k++)
        for (int i = 0; r->series[k].kind == kind && i < r->series[k].n; i++) {
            double v = of(&r->series[k], run_of(r, &r->series[k], i));

            *low = fmin(*low, v);
            *high = fmax(*high, v);
        }
}

/* x and y share one allocation. Marks lie on the line and carry the figures as tooltips. */
static void draw_series(const struct sh_chart *c, const struct sh_report *r, int look, measure *of)
{
    const struct sh_report_series *s = &r->series[look];
    double *x = sh_calloc(2 * (size_t)s->n, sizeof *x), *y = x + s->n;
    char note[160], number[SH_HTML_NUMBER];

    for (int i = 0; i < s->n; i++) {
        x[i] = run_of(r, s, i)->ranks;
        y[i] = of(s, run_of(r, s, i));
    }
    sh_chart_line(c, look, 0, s->n, x, y);
    for (int i = 0; i < s->n; i++) {
        snprintf(note, sizeof note, "%.0f ranks: %s tokens/s, efficiency %.1f %%", x[i],
                 sh_html_number(run_of(r, s, i)->tokens_per_second, number),
                 100 * sh_report_efficiency(s, run_of(r, s, i)));
        sh_chart_mark(c, look, x[i], y[i], note);
    }
    free(x);
}

/* Ends the chart, too. */
static void draw_all(const struct sh_chart *c, const struct sh_report *r, enum sh_scaling kind, measure *of)
{
    for (int k = 0; k < r->n_series; k++)
        if (r->series[k].kind == kind)
            draw_series(c, r, k, of);
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

/* The nearest 1, 2 or 5 times a power of ten that is not above v, or not below it: an axis begins and ends at a
 * tick. */
static double snap(double v, bool up)
{
    static const double steps[] = {1, 2, 5, 10};
    double power = pow(10, floor(log10(v)));
    int i = up ? 0 : 3;

    while (up ? i < 3 && power * steps[i] < v : i > 0 && power * steps[i] > v)
        i += up ? 1 : -1;
    return power * steps[i];
}

/* The ideal: as fast a rank as the base. */
static void draw_ideal(const struct sh_chart *c, const struct sh_report *r, enum sh_scaling kind)
{
    for (int k = 0; k < r->n_series; k++) {
        const struct sh_report_series *s = &r->series[k];
        int least = run_of(r, s, 0)->ranks, most = run_of(r, s, s->n - 1)->ranks;

        if (s->kind == kind)
            sh_chart_guide(c, least, s->base * least, most, s->base * most);
    }
}

/* The ideal must be on the chart as well, so the range includes it. */
static void chart_speed(FILE *out, const struct sh_report *r, enum sh_scaling kind, const double *ranks, int n)
{
    struct sh_chart c = {
        .out = out,
        .x = rank_axis(ranks, n),
        .y = {.min = INFINITY, .max = 0, .ticks = SH_TICKS_LOG, .title = "tokens a second, all ranks"}};

    find_range(r, kind, speed, &c.y.min, &c.y.max);
    for (int k = 0; k < r->n_series; k++)
        if (r->series[k].kind == kind)
            c.y.max = fmax(c.y.max, r->series[k].base * run_of(r, &r->series[k], r->series[k].n - 1)->ranks);
    c.y.min = snap(c.y.min / 1.1, false);
    c.y.max = snap(c.y.max * 1.1, true);
    sh_chart_begin(&c, "Tokens a second against ranks",
                   "Higher is better; on the dotted line each rank is as fast as on the fewest.");
    draw_ideal(&c, r, kind);
    draw_all(&c, r, kind, speed);
}

/* From 0 on, so that small differences do not look large. */
static void chart_efficiency(FILE *out, const struct sh_report *r, enum sh_scaling kind, const double *ranks, int n)
{
    struct sh_chart c = {.out = out,
                         .x = rank_axis(ranks, n),
                         .y = {.min = 0, .max = 1.1, .ticks = SH_TICKS_PERCENT, .title = "efficiency"}};

    find_range(r, kind, sh_report_efficiency, &c.y.min, &c.y.max);
    c.y.max = fmax(c.y.max * 1.02, 1.1);
    sh_chart_begin(&c, "Efficiency against ranks",
                   "Higher is better; 100 %: each rank is as fast as on the fewest ranks.");
    sh_chart_guide(&c, c.x.min, 1, c.x.max, 1);
    draw_all(&c, r, kind, sh_report_efficiency);
}

/* A run of a series; efficiency is against the fewest ranks of that series. */
static void write_row(FILE *out, const struct sh_report_series *s, const struct sh_report_run *run)
{
    char all[SH_HTML_NUMBER], each[SH_HTML_NUMBER];

    fputs("<tr><td class=\"name\">", out);
    sh_html_text(out, s->label);
    fprintf(out,
            "</td><td class=\"n\">%d</td><td class=\"n\">%lld</td><td class=\"n\">%s</td><td class=\"n\">%s</td>"
            "<td class=\"n\">%.1f %%</td></tr>\n",
            run->ranks, (long long)run->global_batch, sh_html_number(run->tokens_per_second, all),
            sh_html_number(run->tokens_per_second / run->ranks, each), 100 * sh_report_efficiency(s, run));
}

static void write_table(FILE *out, const struct sh_report *r, enum sh_scaling kind)
{
    fputs("<div class=\"scroll\"><table>\n<thead><tr><th>series</th><th class=\"n\">ranks</th><th "
          "class=\"n\">sequences a step"
          "</th><th class=\"n\">tokens/s</th><th class=\"n\">tokens/s a rank</th><th "
          "class=\"n\">efficiency</th></tr></thead>\n"
          "<tbody>\n",
          out);
    for (int k = 0; k < r->n_series; k++)
        for (int i = 0; r->series[k].kind == kind && i < r->series[k].n; i++)
            write_row(out, &r->series[k], run_of(r, &r->series[k], i));
    fputs("</tbody></table></div>\n", out);
}

/* Nothing at all when no series is of this kind. */
static void write_kind(FILE *out, const struct sh_report *r, enum sh_scaling kind)
{
    double *ranks;
    int n;

    ranks = find_ranks(r, kind, &n);
    if (n) {
        fprintf(out, "<h2>%s</h2>\n<p class=\"soft\">%s</p>\n<div class=\"pair\">\n", kinds[kind].name,
                kinds[kind].meaning);
        chart_speed(out, r, kind, ranks, n);
        chart_efficiency(out, r, kind, ranks, n);
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
    if (!r->n_series)
        fputs("<h2>Scaling</h2>\n<p>Nothing to compare: no two runs differ in their number of ranks alone.</p>\n", out);
}
