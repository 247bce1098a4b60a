/* Two tables with a bar in each row: where the time of a step goes, and the memory of a rank. Bars are SVG drawings of
 * a fixed width that the page stretches, so that nothing has to be measured in a browser. */
#include "src/report/html.h"
#include "src/report/parts.h"

#include "src/base/str.h"

#include <math.h>

enum { BAR = 400 }; /* width of a bar's drawing, whatever its width on the page */

static const struct {
    const char *name;
    int colour; /* of the style */
} spent[SH_SPENT_N] = {
    [SH_SPENT_COMPUTE] = {"compute", 0}, [SH_SPENT_COMM] = {"communication", 1},    [SH_SPENT_OFFLOAD] = {"offload", 8},
    [SH_SPENT_DATA] = {"data", 2},       [SH_SPENT_CHECKPOINT] = {"checkpoint", 3}, [SH_SPENT_OTHER] = {"other", 4},
};

/* Writes a coloured square next to the name: the head of the table is the legend of the bars. On a narrow screen the
 * table becomes a list that keeps these cells of the head. */
static void head_cell(FILE *out, int colour, const char *name)
{
    fprintf(
        out,
        "<th class=\"n key\"><svg class=\"swatch\" width=\"11\" height=\"11\" aria-hidden=\"true\"><rect class=\"t%d\" "
        "width=\"11\" height=\"11\"/></svg>%s</th>",
        colour, name);
}

/* Starts a row and opens the cell of its bar. */
static void name_cell(FILE *out, const struct sh_report_run *run)
{
    fputs("<tr><td class=\"name\">", out);
    sh_html_text(out, run->name);
    fputs("</td><td class=\"bar\">", out);
}

/* Shares sum to 1, so the rectangles fill the drawing. Each has a title, which a browser shows as a tooltip. */
static void time_bar(FILE *out, const struct sh_report_run *run, bool offload)
{
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
}

/* data-of names a column on narrow screens, where the head is not next to it. */
static void time_row(FILE *out, const struct sh_report_run *run, bool offload)
{
    name_cell(out, run);
    time_bar(out, run, offload);
    fputs("</td>", out);
    for (int k = 0; k < SH_SPENT_N; k++)
        if (k != SH_SPENT_OFFLOAD || offload)
            fprintf(out, "<td class=\"n\" data-of=\"%s\">%.1f %%</td>", spent[k].name, 100 * run->share[k]);
    fprintf(out, "<td class=\"n\" data-of=\"a step\">%.3g s</td></tr>\n", run->seconds);
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
    bool any = false, offload = sh_report_offloads(r);

    for (int i = 0; i < r->n_runs; i++)
        any = any || r->runs[i].seconds > 0;
    if (!any)
        return;
    fputs(
        "<h2>Where the time goes</h2>\n<p class=\"soft\">Rank 0, means of all measured steps; more compute is better. "
        "Communication and offload count only time not overlapped with compute; checkpoint, only time training was "
        "paused.</p>\n",
        out);
    sh_html_fold(out, r->n_runs);
    fputs("<div class=\"scroll\"><table class=\"full\">\n<thead><tr><th>run</th><th>share of the time</th>", out);
    for (int k = 0; k < SH_SPENT_N; k++)
        if (k != SH_SPENT_OFFLOAD || offload)
            head_cell(out, spent[k].colour, spent[k].name);
    fputs("<th class=\"n\">a step</th></tr></thead>\n<tbody>\n", out);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].seconds > 0)
            time_row(out, &r->runs[i], offload);
    fputs("</tbody></table></div>\n", out);
    sh_html_unfold(out, r->n_runs);
}

/* Both bars are scaled by the largest value of all runs, so that rows can be compared. */
static void memory_row(FILE *out, const struct sh_report_run *run, double most)
{
    char planned[SH_STR_SHORT], peak[SH_STR_SHORT];

    name_cell(out, run);
    fprintf(out,
            "<svg viewBox=\"0 0 %d 16\" height=\"16\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"memory\">"
            "<rect class=\"t0\" width=\"%.2f\" height=\"7\"/><rect class=\"t1\" y=\"9\" width=\"%.2f\" "
            "height=\"7\"/></svg></td>",
            BAR, (double)run->arena_bytes / most * BAR, (double)run->peak_rss_bytes / most * BAR);
    fprintf(out, "<td class=\"n\" data-of=\"planned\">%s</td><td class=\"n\" data-of=\"used\">%s</td></tr>\n",
            sh_str_bytes(run->arena_bytes, planned), sh_str_bytes(run->peak_rss_bytes, peak));
}

/* `most` is the scale of all bars. */
void sh_report_memory(FILE *out, const struct sh_report *r)
{
    double most = 0;

    for (int i = 0; i < r->n_runs; i++)
        most = fmax(most, (double)(r->runs[i].arena_bytes > r->runs[i].peak_rss_bytes ? r->runs[i].arena_bytes
                                                                                      : r->runs[i].peak_rss_bytes));
    /* False for NaN, too. */
    if (!(most > 0))
        return;
    fputs(
        "<h2>Memory of a rank</h2>\n<p class=\"soft\">Less is better. Planned: the arena, all of which is taken at the "
        "start. Used: peak resident memory of any rank, including the program, libraries, MPI buffers and cached token "
        "files.</p>\n",
        out);
    sh_html_fold(out, r->n_runs);
    fputs("<div class=\"scroll\"><table class=\"full\">\n<thead><tr><th>run</th><th>bytes</th>", out);
    head_cell(out, 0, "planned");
    head_cell(out, 1, "used");
    fputs("</tr></thead>\n<tbody>\n", out);
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].n_steps)
            memory_row(out, &r->runs[i], most);
    fputs("</tbody></table></div>\n", out);
    sh_html_unfold(out, r->n_runs);
}
