/* Tables. A cell knows its column: one that is hidden is not written, and on a narrow screen, where a row is a list, the
 * head of the column stands before the value. */
#include "src/tools/report/draw/html.h"

#include <math.h>
#include <stdarg.h>

/* A coloured square next to a name: the head of a table is the legend of its bars. */
void sh_html_swatch(FILE *out, int colour)
{
    fprintf(out,
            "<svg class=\"swatch\" width=\"11\" height=\"11\" aria-hidden=\"true\"><rect class=\"t%d\" width=\"11\" "
            "height=\"11\"/></svg>",
            colour);
}

static void write_head(FILE *out, const struct sh_column *c)
{
    fprintf(out, "<th class=\"%s%s\">", c->text ? "s" : "n", c->swatch ? " key" : "");
    if (c->swatch)
        sh_html_swatch(out, c->swatch - 1);
    sh_html_text(out, c->head);
    fputs("</th>", out);
}

void sh_table_begin(struct sh_table *t, FILE *out, int rows, int n, const struct sh_column *columns)
{
    *t = (struct sh_table){.out = out, .rows = rows, .n = n, .columns = columns};
    if (rows > SH_TABLE_MOST_ROWS)
        fprintf(out, "<details><summary>The table: %d rows</summary>\n", rows);
    fputs("<table>\n<thead><tr>", out);
    for (int i = 0; i < n; i++)
        if (!columns[i].hidden)
            write_head(out, &columns[i]);
    fputs("</tr></thead>\n<tbody>\n", out);
}

void sh_table_row(struct sh_table *t)
{
    fputs(t->at ? "</tr>\n<tr>" : "<tr>", t->out);
    t->at = 0;
}

/* Returns false for a hidden cell. The first cell names the row. */
static bool open_cell(struct sh_table *t)
{
    const struct sh_column *c = &t->columns[t->at++];

    if (c->hidden)
        return false;
    fprintf(t->out, "<td class=\"%s\"", t->at == 1 ? "name" : c->bar ? "bar" : c->breaks ? "v" : c->text ? "s" : "n");
    if (t->at > 1 && !c->bar) {
        fputs(" data-of=\"", t->out);
        sh_html_text(t->out, c->head);
        fputc('"', t->out);
    }
    fputc('>', t->out);
    return true;
}

void sh_table_cell(struct sh_table *t, const char *fmt, ...)
{
    va_list ap;

    if (!open_cell(t))
        return;
    va_start(ap, fmt);
    vfprintf(t->out, fmt, ap);
    va_end(ap);
    fputs("</td>", t->out);
}

void sh_table_text(struct sh_table *t, const char *text)
{
    if (!open_cell(t))
        return;
    sh_html_text(t->out, text ? text : "–");
    fputs("</td>", t->out);
}

void sh_table_number(struct sh_table *t, double v)
{
    char number[SH_HTML_NUMBER];

    sh_table_cell(t, "%s", sh_html_number(v, number));
}

void sh_table_measure(struct sh_table *t, const char *fmt, double v)
{
    char text[SH_HTML_NUMBER];

    snprintf(text, sizeof text, fmt, v);
    sh_table_cell(t, "%s", isfinite(v) ? text : "–");
}

void sh_table_rest(struct sh_table *t, const char *text)
{
    int span = 0;

    for (int i = t->at; i < t->n; i++)
        span += !t->columns[i].hidden;
    fprintf(t->out, "<td class=\"s\" colspan=\"%d\">", span);
    sh_html_text(t->out, text);
    fputs("</td>", t->out);
    t->at = t->n;
}

void sh_table_end(struct sh_table *t)
{
    fputs(t->at ? "</tr>\n</tbody></table>\n" : "</tbody></table>\n", t->out);
    fputs(t->rows > SH_TABLE_MOST_ROWS ? "</details>\n" : "", t->out);
}
