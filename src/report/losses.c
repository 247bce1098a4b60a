/* The chart of losses. All runs share one pair of axes, whose range is that of the finite values of all of them. */
#include "src/report/html.h"
#include "src/report/parts.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_POINTS = 400 }; /* of one curve; more would not be seen */

/* The range of all curves. */
struct range {
    double first, last, low, high;
};

/* Values that are not finite have no place on an axis. */
static void widen(struct range *r, int64_t step, double loss)
{
    if (!isfinite(loss))
        return;
    r->first = fmin(r->first, (double)step);
    r->last = fmax(r->last, (double)step);
    r->low = fmin(r->low, loss);
    r->high = fmax(r->high, loss);
}

/* Without any finite loss `last` stays below `first`, which the caller asks for. */
static struct range find_range(const struct sh_report *r)
{
    struct range all = {INFINITY, -INFINITY, INFINITY, -INFINITY};

    for (int i = 0; i < r->n_runs; i++) {
        for (int k = 0; k < r->runs[i].n_steps; k++)
            widen(&all, r->runs[i].steps[k].step, r->runs[i].steps[k].loss);
        for (int k = 0; k < r->runs[i].n_validations; k++)
            widen(&all, r->runs[i].validations[k].step, r->runs[i].validations[k].loss);
    }
    return all;
}

/* A long run is drawn through means of neighbouring steps; a mean over one that is not finite is not finite. */
static void draw_curve(const struct sh_chart *c, int look, const struct sh_report_run *run)
{
    /* Steps that one point stands for. */
    int each = (run->n_steps + MOST_POINTS - 1) / MOST_POINTS, n = 0;
    double *x = sh_calloc(2 * (MOST_POINTS + 1), sizeof *x), *y = x + MOST_POINTS + 1;

    for (int i = 0; i < run->n_steps; i += each, n++) {
        int end = i + each < run->n_steps ? i + each : run->n_steps;

        for (int k = i; k < end; k++) {
            x[n] += (double)run->steps[k].step / (end - i);
            y[n] += run->steps[k].loss / (end - i);
        }
    }
    sh_chart_line(c, look, n, x, y);
    free(x);
}

/* Shapes on the curve of their run, in its colour. */
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

/* Runs without steps have no curve and no entry; colours still count them, as the tables do. */
static void write_legend(FILE *out, const struct sh_report *r)
{
    sh_legend_begin(out);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].n_steps)
            sh_legend_entry(out, i, true, r->runs[i].n_validations > 0, r->runs[i].name);
    sh_legend_end(out);
}

void sh_report_losses(FILE *out, const struct sh_report *r)
{
    struct range all = find_range(r);
    double room = fmax((all.high - all.low) * 0.05, 1e-3 * fmax(1, fabs(all.high))); /* more than rounding can lose */
    struct sh_chart c = {
        .out = out,
        .x = {.min = all.first, .max = fmax(all.last, all.first + fmax(1, 1e-3 * fabs(all.first))), .title = "step"},
        .y = {.min = all.low - room, .max = all.high + room, .title = "loss, nats a token"}};

    if (!(all.last >= all.first))
        return;
    /* From here on there is something to draw. */
    fputs("<h2>Loss</h2>\n<p class=\"soft\">Long runs are drawn through the means of neighbouring steps.</p>\n"
          "<figure class=\"wide\">\n",
          out);
    sh_chart_begin(&c, "Loss against steps", "Lower is better. Lines: training; shapes: validation.");
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].n_steps)
            draw_curve(&c, i, &r->runs[i]);
    for (int i = 0; i < r->n_runs; i++)
        draw_validations(&c, i, &r->runs[i]);
    sh_chart_end(&c);
    write_legend(out, r);
    fputs("</figure>\n", out);
}
