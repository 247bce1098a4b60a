/* Predictions next to measurements: the parts of a step, the cost, and the share of the time in which the run goes
 * forward. */
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

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
static void bars(struct sh_table *t, const struct sh_report_run *run)
{
    char *text;
    size_t bytes;
    FILE *out = sh_memstream(&text, &bytes);
    double most = 0, at = 0, predicted = 0;

    for (int k = 0; k < SH_PREDICTED_N; k++)
        predicted += run->predicted.part[k];
    most = fmax(predicted, run->seconds);
    fprintf(
        out,
        "<svg viewBox=\"0 0 %d 17\" height=\"17\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"seconds of a step\">",
        BAR);
    for (int k = 0; k < SH_PREDICTED_N && most > 0; at += run->predicted.part[k++])
        rectangle(out, parts[k].colour, parts[k].name, 0, at, run->predicted.part[k], most);
    at = 0;
    for (int k = 0; k < SH_SPENT_N && run->seconds > 0; at += run->share[k++] * run->seconds)
        if (k != SH_SPENT_OFFLOAD || run->share[k] > 0)
            rectangle(out, spent[k].colour, spent[k].name, 1, at, run->share[k] * run->seconds, most);
    fputs("</svg>", out);
    fclose(out);
    sh_table_cell(t, "%s", text);
    free(text);
}

/* Cost of a billion tokens; NAN: no price, or no speed. */
static double cost(const struct sh_report_run *run, double tokens_per_second)
{
    const struct sh_report_prediction *p = &run->predicted;

    if (!(p->price > 0) || !(tokens_per_second > 0))
        return NAN;
    return p->price * run->ranks / 3600 * 1e9 / tokens_per_second / (p->goodput > 0 ? p->goodput : 1);
}

/* Measured over predicted: above 100 % the run was faster than predicted. */
static void row(struct sh_table *t, const struct sh_report_run *run)
{
    const struct sh_report_prediction *p = &run->predicted;
    char *name = sh_strfmt("%s%s", run->name, p->too_large ? " (does not fit the machine's memory)" : "");

    sh_table_row(t);
    sh_table_text(t, name);
    free(name);
    bars(t, run);
    sh_table_measure(t, "%.3g s", sh_report_known(p->seconds));
    sh_table_measure(t, "%.3g s", sh_report_known(run->seconds));
    sh_table_measure(t, "%.1f %%", 100 * sh_report_known(run->tokens_per_second) / p->tokens_per_second);
    sh_table_measure(t, "%.1f %%", 100 * sh_report_known(p->mfu));
    sh_table_text(t, p->limit);
    sh_table_text(t, p->then);
    sh_table_measure(t, "%.1f %%", 100 * sh_report_known(p->goodput));
    sh_table_measure(t, "%.4g", cost(run, p->tokens_per_second));
    sh_table_measure(t, "%.4g", cost(run, run->tokens_per_second));
}

/* The legend is a list of coloured squares. */
static void swatch(FILE *out, int colour, const char *name)
{
    fputs("<li>", out);
    sh_html_swatch(out, colour);
    fprintf(out, "%s</li>", name);
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
    bool priced = false, failing = false;
    struct sh_table t;
    int rows = 0;

    for (int i = 0; i < r->n_runs; i++) {
        rows += r->runs[i].predicted.tokens_per_second > 0;
        priced = priced || r->runs[i].predicted.price > 0;
        failing = failing || r->runs[i].predicted.goodput > 0;
    }
    if (!rows)
        return;
    const struct sh_column columns[] = {
        {.head = "run", .text = true},
        {.head = "parts of a step", .bar = true, .text = true},
        {.head = "predicted step"},
        {.head = "measured step"},
        {.head = "measured / predicted speed"},
        {.head = "predicted MFU"},
        {.head = "limited by", .text = true},
        {.head = "then by", .text = true},
        {.head = "goodput", .hidden = !failing},
        {.head = "predicted cost", .hidden = !priced},
        {.head = "measured cost", .hidden = !priced},
    };

    sh_html_heading(
        out, "Predicted and measured",
        "Parts of a step: upper bar as predicted before the job started, lower bar as measured. Limited by: "
        "the step would be that much faster if this part cost nothing. Cost: for a billion tokens, in the "
        "unit of the machine's price per device and hour, goodput included.");
    legend(out, sh_report_offloads(r));
    sh_table_begin(&t, out, rows, sizeof columns / sizeof *columns, columns);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].predicted.tokens_per_second > 0)
            row(&t, &r->runs[i]);
    sh_table_end(&t);
}
