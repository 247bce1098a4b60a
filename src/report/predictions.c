/* Predictions next to measurements: the parts of a step, the cost, and the share of the time in which the run goes
 * forward. */
#include "src/report/html.h"
#include "src/report/parts.h"

#include <math.h>

enum { BAR = 400 };

static const struct {
    const char *name;
    int colour; /* in the style sheet; parts that are measured together share a hue */
} parts[SH_PREDICTED_N] = {
    [SH_PREDICTED_PRODUCTS] = {"products", 0},      [SH_PREDICTED_ATTENTION] = {"attention", 5},
    [SH_PREDICTED_OTHER] = {"other operations", 6}, [SH_PREDICTED_SLOWED] = {"slowed", 7},
    [SH_PREDICTED_EXPOSED] = {"exposed", 1},        [SH_PREDICTED_HOST] = {"host and spread", 4},
};
static const struct {
    const char *name;
    int colour;
} spent[SH_SPENT_N] = {
    [SH_SPENT_COMPUTE] = {"compute", 0}, [SH_SPENT_COMM] = {"exposed communication", 1},
    [SH_SPENT_DATA] = {"data", 2},       [SH_SPENT_CHECKPOINT] = {"checkpoint", 3},
    [SH_SPENT_OTHER] = {"rest", 4},      [SH_SPENT_OFFLOAD] = {"exposed offload", 8},
};

/* Row 0 is the upper bar, row 1 the lower one; a bar is 8 high, with a gap of 1. */
static void rectangle(FILE *out, int colour, const char *name, int row, double at, double seconds, double most)
{
    fprintf(out, "<rect class=\"t%d\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"8\"><title>%s %.3g s</title></rect>",
            colour, at / most * BAR, 9 * row, seconds / most * BAR, name, seconds);
}

/* Two bars on one scale: predicted above, measured below. */
static void bars(FILE *out, const struct sh_report_run *run)
{
    double most = 0, at = 0, predicted = 0;

    for (int k = 0; k < SH_PREDICTED_N; k++)
        predicted += run->predicted.part[k];
    most = fmax(predicted, run->seconds);
    fprintf(out,
            "<td class=\"bar\"><svg viewBox=\"0 0 %d 17\" height=\"17\" preserveAspectRatio=\"none\" role=\"img\" "
            "aria-label=\"seconds of a step\">",
            BAR);
    for (int k = 0; k < SH_PREDICTED_N && most > 0; at += run->predicted.part[k++])
        rectangle(out, parts[k].colour, parts[k].name, 0, at, run->predicted.part[k], most);
    at = 0;
    for (int k = 0; k < SH_SPENT_N && run->seconds > 0; at += run->share[k++] * run->seconds)
        if (k != SH_SPENT_OFFLOAD || run->share[k] > 0)
            rectangle(out, spent[k].colour, spent[k].name, 1, at, run->share[k] * run->seconds, most);
    fputs("</svg></td>", out);
}

/* Cost of a billion tokens; NAN: no price, or no speed. */
static double cost(const struct sh_report_run *run, double tokens_per_second)
{
    const struct sh_report_prediction *p = &run->predicted;

    if (!(p->price > 0) || !(tokens_per_second > 0))
        return NAN;
    return p->price * run->ranks / 3600 * 1e9 / tokens_per_second / (p->goodput > 0 ? p->goodput : 1);
}

/* Writes a dash for an unknown value: 0, or a ratio with it. */
static void cell(FILE *out, const char *format, double v)
{
    fputs("<td class=\"n\">", out);
    if (isfinite(v) && v > 0)
        fprintf(out, format, v);
    else
        fputs("–", out);
    fputs("</td>", out);
}

/* Texts come from files, so they go through sh_html_text(). */
static void text_cell(FILE *out, const char *text)
{
    fputs("<td>", out);
    sh_html_text(out, text ? text : "–");
    fputs("</td>", out);
}

/* Optional columns, shown if some run has a value. */
struct columns {
    bool priced, failing;
};

/* Measured over predicted: above 100 % the run was faster than predicted. */
static void row(FILE *out, const struct sh_report_run *run, struct columns with)
{
    const struct sh_report_prediction *p = &run->predicted;

    fputs("<tr><td class=\"name\">", out);
    sh_html_text(out, run->name);
    fputs(p->too_large ? " (does not fit the machine's memory)</td>" : "</td>", out);
    bars(out, run);
    cell(out, "%.3g s", p->seconds);
    cell(out, "%.3g s", run->seconds);
    cell(out, "%.1f %%", 100 * run->tokens_per_second / p->tokens_per_second);
    cell(out, "%.1f %%", 100 * p->mfu);
    text_cell(out, p->limit);
    text_cell(out, p->then);
    if (with.failing)
        cell(out, "%.1f %%", 100 * p->goodput);
    if (with.priced) {
        cell(out, "%.4g", cost(run, p->tokens_per_second));
        cell(out, "%.4g", cost(run, run->tokens_per_second));
    }
    fputs("</tr>\n", out);
}

/* The legend is a list of coloured squares. */
static void swatch(FILE *out, int colour, const char *name)
{
    fprintf(
        out,
        "<li><svg class=\"swatch\" width=\"11\" height=\"11\" aria-hidden=\"true\"><rect class=\"t%d\" width=\"11\" "
        "height=\"11\"/></svg>%s</li>",
        colour, name);
}

/* Lists the parts of both bars once: a measured part that corresponds to a predicted one needs no second entry. */
static void legend(FILE *out, bool offload)
{
    sh_legend_begin(out);
    for (int k = 0; k < SH_PREDICTED_N; k++)
        swatch(out, parts[k].colour, parts[k].name);
    for (int k = 0; k < SH_SPENT_N; k++)
        if (k == SH_SPENT_DATA || k == SH_SPENT_CHECKPOINT || (k == SH_SPENT_OFFLOAD && offload))
            swatch(out, spent[k].colour, spent[k].name);
    sh_legend_end(out);
}

/* Without a prediction the section is omitted, like any section of the page. */
void sh_report_predictions(FILE *out, const struct sh_report *r)
{
    struct columns with = {false, false};
    int rows = 0;

    for (int i = 0; i < r->n_runs; i++) {
        rows += r->runs[i].predicted.tokens_per_second > 0;
        with.priced = with.priced || r->runs[i].predicted.price > 0;
        with.failing = with.failing || r->runs[i].predicted.goodput > 0;
    }
    if (!rows)
        return;
    fputs("<h2>Predicted and measured</h2>\n<p class=\"soft\">Parts of a step: upper bar as predicted before the job "
          "started, lower bar as measured. Limited by: the step would be that much faster if this part cost nothing.",
          out);
    fputs(with.priced
              ? " Cost: for a billion tokens, in the unit of the machine's price per device and hour, goodput included."
              : "",
          out);
    fputs("</p>\n", out);
    legend(out, sh_report_offloads(r));
    sh_html_fold(out, rows);
    fputs(
        "<div class=\"scroll\"><table class=\"wide\">\n<thead><tr><th>run</th><th>parts of a step</th><th class=\"n\">predicted "
        "step</th><th class=\"n\">measured step</th><th class=\"n\">measured / predicted speed</th><th class=\"n\">predicted "
        "MFU</th><th>limited by</th><th>then by</th>",
        out);
    fputs(with.failing ? "<th class=\"n\">goodput</th>" : "", out);
    fputs(with.priced ? "<th class=\"n\">predicted cost</th><th class=\"n\">measured cost</th>" : "", out);
    fputs("</tr></thead>\n<tbody>\n", out);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].predicted.tokens_per_second > 0)
            row(out, &r->runs[i], with);
    fputs("</tbody></table></div>\n", out);
    sh_html_unfold(out, rows);
}
