/* Two tables with a bar in each row: where the time of a step goes, and the memory of a rank. Bars are SVG drawings of
 * a fixed width that the page stretches, so that nothing has to be measured in a browser. */
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>

enum { BAR = 400 }; /* width of a bar's drawing, whatever its width on the page */

static const struct {
    const char *name;
    int colour; /* of the style */
} spent[SH_SPENT_N] = {
    [SH_SPENT_COMPUTE] = {"compute", 0}, [SH_SPENT_COMM] = {"communication", 1},    [SH_SPENT_OFFLOAD] = {"offload", 8},
    [SH_SPENT_DATA] = {"data", 2},       [SH_SPENT_CHECKPOINT] = {"checkpoint", 3}, [SH_SPENT_OTHER] = {"other", 4},
};

/* Shares sum to 1, so the rectangles fill the drawing. Each has a title, which a browser shows as a tooltip. */
static void time_bar(struct sh_table *t, const struct sh_report_run *run, bool offload)
{
    char *text;
    size_t bytes;
    FILE *out = sh_memstream(&text, &bytes);
    double at = 0;

    fprintf(out,
            "<svg viewBox=\"0 0 %d 16\" height=\"16\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"shares of "
            "time\">",
            BAR);
    for (int k = 0; k < SH_SPENT_N; k++) {
        if (k == SH_SPENT_OFFLOAD && !offload)
            continue;
        fprintf(out, "<rect class=\"t%d\" x=\"%.2f\" width=\"%.2f\" height=\"16\"><title>%s %.1f %%</title></rect>",
                spent[k].colour, at * BAR, run->share[k] * BAR, spent[k].name, 100 * run->share[k]);
        at += run->share[k];
    }
    fputs("</svg>", out);
    fclose(out);
    sh_table_cell(t, "%s", text);
    free(text);
}

/* A column of zeros would only ask for explanation. */
bool sh_report_offloads(const struct sh_report *r)
{
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].seconds > 0 && r->runs[i].share[SH_SPENT_OFFLOAD] > 0)
            return true;
    return false;
}

/* Runs without a measured step have no row; without any row there is no heading. */
void sh_report_time(FILE *out, const struct sh_report *r)
{
    bool offload = sh_report_offloads(r);
    struct sh_column columns[SH_SPENT_N + 3] = {{.head = "run", .text = true},
                                                {.head = "share of the time", .bar = true, .text = true}};
    struct sh_table t;
    int rows = 0;

    for (int i = 0; i < r->n_runs; i++)
        rows += r->runs[i].seconds > 0;
    if (!rows)
        return;
    for (int k = 0; k < SH_SPENT_N; k++)
        columns[2 + k] = (struct sh_column){
            .head = spent[k].name, .hidden = k == SH_SPENT_OFFLOAD && !offload, .swatch = 1 + spent[k].colour};
    columns[SH_SPENT_N + 2].head = "a step";
    sh_html_heading(out, "Where the time goes",
                    "Rank 0, means of all measured steps; more compute is better. Communication and offload count only "
                    "time not overlapped with compute; checkpoint, only time training was paused.");
    sh_table_begin(&t, out, rows, SH_SPENT_N + 3, columns);
    for (int i = 0; i < r->n_runs; i++) {
        const struct sh_report_run *run = &r->runs[i];

        if (!(run->seconds > 0))
            continue;
        sh_table_row(&t);
        sh_table_text(&t, run->name);
        time_bar(&t, run, offload);
        for (int k = 0; k < SH_SPENT_N; k++)
            sh_table_measure(&t, "%.1f %%", 100 * run->share[k]);
        sh_table_measure(&t, "%.3g s", run->seconds);
    }
    sh_table_end(&t);
}

/* Both bars are scaled by the largest value of all runs, so that rows can be compared. */
static void memory_row(struct sh_table *t, const struct sh_report_run *run, double most)
{
    char planned[SH_STR_SHORT], peak[SH_STR_SHORT];

    sh_table_row(t);
    sh_table_text(t, run->name);
    sh_table_cell(t,
                  "<svg viewBox=\"0 0 %d 16\" height=\"16\" preserveAspectRatio=\"none\" role=\"img\" "
                  "aria-label=\"memory\"><rect class=\"t0\" width=\"%.2f\" height=\"7\"/><rect class=\"t1\" y=\"9\" "
                  "width=\"%.2f\" height=\"7\"/></svg>",
                  BAR, (double)run->arena_bytes / most * BAR, (double)run->peak_rss_bytes / most * BAR);
    sh_table_cell(t, "%s", sh_str_bytes(run->arena_bytes, planned));
    sh_table_cell(t, "%s", sh_str_bytes(run->peak_rss_bytes, peak));
}

/* `most` is the scale of all bars. */
void sh_report_memory(FILE *out, const struct sh_report *r)
{
    static const struct sh_column columns[] = {{.head = "run", .text = true},
                                               {.head = "bytes", .bar = true, .text = true},
                                               {.head = "planned", .swatch = 1},
                                               {.head = "used", .swatch = 2}};
    struct sh_table t;
    double most = 0;

    for (int i = 0; i < r->n_runs; i++)
        most = fmax(most, (double)(r->runs[i].arena_bytes > r->runs[i].peak_rss_bytes ? r->runs[i].arena_bytes
                                                                                      : r->runs[i].peak_rss_bytes));
    /* False for NaN, too. */
    if (!(most > 0))
        return;
    sh_html_heading(
        out, "Memory of a rank",
        "Less is better. Planned: the arena, all of which is taken at the start. Used: peak resident memory "
        "of any rank, including the program, libraries, MPI buffers and cached token files.");
    sh_table_begin(&t, out, r->n_runs, sizeof columns / sizeof *columns, columns);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].n_steps)
            memory_row(&t, &r->runs[i], most);
    sh_table_end(&t);
}
