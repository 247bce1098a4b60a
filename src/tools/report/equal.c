/* Strategies side by side: points of different series on equal ranks with an equal batch, whose configurations differ
 * only in their sharding. */
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Repeats of a point have one configuration, so the first represents it. */
static const struct sh_report_run *first_of(const struct sh_report *r, const struct sh_report_series *s,
                                            const struct sh_report_at *at)
{
    return &r->runs[s->runs[at->first]];
}

/* Measured, otherwise predicted; find_other() pairs like with like. */
static double speed_of(const struct sh_report_at *at)
{
    return at->median > 0 ? at->median : at->predicted;
}

/* Writes one row; `base` is the speed of the first of its group. */
static void row(struct sh_table *t, const struct sh_report_series *s, const struct sh_report_at *at, double base)
{
    char number[SH_HTML_NUMBER];

    sh_table_row(t);
    sh_table_text(t, s->label);
    sh_table_cell(t, "%d", at->ranks);
    sh_table_cell(t, "%lld", (long long)at->batch);
    sh_table_cell(t, "%s%s", sh_html_number(speed_of(at), number), at->median > 0 ? "" : " predicted");
    sh_table_measure(t, "%+.1f %%", 100 * (speed_of(at) / base - 1));
}

/* The same point of another series, with another strategy; NULL: none. Measured points are only compared with measured
 * ones. */
static const struct sh_report_at *find_other(const struct sh_report *r, int a, const struct sh_report_at *at, int b)
{
    const struct sh_report_series *s = &r->series[b];
    const char key[] = "parallelism.sharding_strategy";

    for (int i = 0; s->kind == r->series[a].kind && i < s->n_at; i++) {
        const struct sh_report_run *x = first_of(r, &r->series[a], at), *y = first_of(r, s, &s->at[i]);

        if (s->at[i].ranks == at->ranks && s->at[i].batch == at->batch && (s->at[i].median > 0) == (at->median > 0) &&
            strcmp(sh_report_value(x, key), sh_report_value(y, key)) != 0 && sh_report_same_but_sharding(x, y))
            return &s->at[i];
    }
    return NULL;
}

/* Whether the point is in the group of an earlier series. */
static bool is_listed(const struct sh_report *r, int a, const struct sh_report_at *at)
{
    for (int c = 0; c < a; c++)
        if (find_other(r, a, at, c))
            return true;
    return false;
}

/* Points in both kinds of scaling are listed once: only the weak series count, or the strong ones if there are no
 * others. Returns the number of rows; t NULL: only counts them. */
static int write_rows(struct sh_table *t, const struct sh_report *r)
{
    enum sh_scaling kind = r->n_series ? r->series[0].kind : SH_SCALING_WEAK;
    int rows = 0;

    for (int a = 0; a < r->n_series && r->series[a].kind == kind; a++)
        for (int i = 0; i < r->series[a].n_at; i++) {
            const struct sh_report_at *at = &r->series[a].at[i];
            bool first = true;

            for (int b = a + 1; b < r->n_series && !is_listed(r, a, at); b++) {
                const struct sh_report_at *other = find_other(r, a, at, b);

                if (!other)
                    continue;
                if (first && t)
                    row(t, &r->series[a], at, speed_of(at));
                rows += 1 + first;
                first = false;
                if (t)
                    row(t, &r->series[b], other, speed_of(at));
            }
        }
    return rows;
}

void sh_report_equals(FILE *out, const struct sh_report *r)
{
    static const struct sh_column columns[] = {{.head = "strategy", .text = true},
                                               {.head = "ranks"},
                                               {.head = "sequences per step"},
                                               {.head = "tokens/s"},
                                               {.head = "difference"}};
    int rows = write_rows(NULL, r);
    struct sh_table t;

    if (!rows)
        return;
    sh_html_heading(out, "Strategies at equal batch", NULL);
    sh_table_begin(&t, out, rows, sizeof columns / sizeof *columns, columns);
    write_rows(&t, r);
    sh_table_end(&t);
}
