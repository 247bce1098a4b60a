/* The tables of scaling as Markdown, for a page of documentation or a message. */
#include "src/tools/report/html.h"
#include "src/tools/report/parts.h"

#include "src/base/file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A bar is escaped, since it would end the cell. */
static void text_cell(FILE *out, const char *text)
{
    fputs(" ", out);
    for (; text && *text; text++)
        fputs(*text == '|' ? "\\|" : (char[]){*text, '\0'}, out);
    fputs(" |", out);
}

/* 0 means "not measured" in a report, since no run is that slow. */
static void number_cell(FILE *out, double v)
{
    char number[SH_HTML_NUMBER];

    fprintf(out, " %s |", v > 0 ? sh_html_number(v, number) : "–");
}

/* NAN: one of the two numbers is not known. */
static void percent_cell(FILE *out, double v)
{
    if (isfinite(v))
        fprintf(out, " %.1f %% |", 100 * v);
    else
        fputs(" – |", out);
}

/* The first prediction among the runs of a point; NULL: none. */
static const struct sh_report_prediction *prediction_of(const struct sh_report *r, const struct sh_report_series *s,
                                                        const struct sh_report_at *at)
{
    for (int i = 0; i < at->n; i++)
        if (r->runs[s->runs[at->first + i]].predicted.tokens_per_second > 0)
            return &r->runs[s->runs[at->first + i]].predicted;
    return NULL;
}

/* Writes measured values, if any, and predicted ones; a dash for unknown values. */
static void row(FILE *out, const struct sh_report *r, const struct sh_report_series *s, const struct sh_report_at *at,
                bool measured)
{
    const struct sh_report_prediction *p = prediction_of(r, s, at);

    fprintf(out, "| %d |", at->ranks);
    if (measured) {
        number_cell(out, at->median);
        percent_cell(out, sh_report_efficiency(s, at));
        percent_cell(out, at->median > 0 && p ? at->median / at->predicted : NAN);
    }
    number_cell(out, at->predicted);
    number_cell(out, at->predicted / at->ranks);
    percent_cell(out, sh_report_predicted_efficiency(s, at));
    percent_cell(out, p && p->mfu > 0 ? p->mfu : NAN);
    percent_cell(out, p && p->seconds > 0 ? p->part[SH_PREDICTED_EXPOSED] / p->seconds : NAN);
    text_cell(out, p && p->too_large ? "memory: does not fit" : p && p->limit ? p->limit : "–");
    text_cell(out, p && p->then ? p->then : "–");
    fputc('\n', out);
}

/* One table for each series; columns of measurements appear only if something was measured. */
static void table(FILE *out, const struct sh_report *r, const struct sh_report_series *s)
{
    bool measured = s->base > 0;

    fprintf(out, "%s scaling, %s:\n\n", s->kind == SH_SCALING_WEAK ? "Weak" : "Strong", s->label);
    fprintf(out, "| ranks |%s predicted tokens/s | per rank | efficiency | MFU | exposed | limited by | then by |\n",
            measured ? " tokens/s | efficiency | measured / predicted |" : "");
    fprintf(out, "|---:|%s---:|---:|---:|---:|---:|---|---|\n", measured ? "---:|---:|---:|" : "");
    for (int i = 0; i < s->n_at; i++)
        row(out, r, s, &s->at[i], measured);
    fputc('\n', out);
}

sh_rc sh_report_markdown(const struct sh_report *r, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    sh_rc rc;

    if (!out)
        return sh_fail(SH_E_MEMORY, "report: %s", strerror(errno));
    for (int k = 0; k < r->n_series; k++)
        table(out, r, &r->series[k]);
    if (!r->n_series)
        fputs("Nothing to compare: no two runs differ only in their number of ranks.\n", out);
    if (fclose(out) != 0)
        rc = sh_fail(SH_E_MEMORY, "out of memory: no room for the tables");
    else
        rc = sh_write_file_atomic(path, text, bytes);
    free(text);
    return rc;
}
