/* Tables of results and of configurations. A question mark stands for an unknown value, a dash for one that does not
 * exist. */
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 0 or less: not known. */
static void whole_cell(struct sh_table *t, int64_t v)
{
    if (v > 0)
        sh_table_cell(t, "%lld", (long long)v);
    else
        sh_table_cell(t, "?");
}

double sh_report_known(double v)
{
    return v > 0 ? v : NAN;
}

/* Steps done of those wanted; a single number once they are done. */
static void steps_cell(struct sh_table *t, const struct sh_report_run *run)
{
    int64_t done = sh_report_done(run);

    if (done > 0 && done < run->wanted)
        sh_table_cell(t, "%lld of %lld", (long long)done, (long long)run->wanted);
    else
        whole_cell(t, done);
}

static void mesh_cell(struct sh_table *t, const struct sh_report_run *run)
{
    if (run->shard)
        sh_table_cell(t, "%d × %d", run->replicate, run->shard);
    else
        sh_table_cell(t, "?");
}

/* The lowest validation loss, the first of equal ones; NULL if none is finite. */
const struct sh_report_point *sh_report_best(const struct sh_report_run *run)
{
    const struct sh_report_point *best = NULL;

    for (int i = 0; i < run->n_validations; i++)
        if (isfinite(run->validations[i].loss) && (!best || run->validations[i].loss < best->loss))
            best = &run->validations[i];
    return best;
}

/* Losses at the end of the run: the last step and the last validation. Four digits tell two runs apart; perplexity is
 * the number of equally likely words or bytes. */
static void figures(struct sh_table *t, const struct sh_report_run *run)
{
    double validation = run->n_validations ? run->validations[run->n_validations - 1].loss : NAN;
    const struct sh_report_point *best = sh_report_best(run);
    char time[SH_STR_SHORT];

    sh_table_cell(t, "%s", run->wall > 0 ? sh_str_duration(run->wall, time) : "–");
    sh_table_number(t, sh_report_known(run->tokens_per_second));
    sh_table_measure(t, "%.1f %%", 100 * sh_report_known(run->mfu));
    sh_table_measure(t, "%.4f", run->n_steps ? run->steps[run->n_steps - 1].loss : NAN);
    sh_table_measure(t, "%.4f", validation);
    sh_table_number(t, exp(validation));
    if (best)
        sh_table_cell(t, "%.4f (step %lld)", best->loss, (long long)best->step);
    else
        sh_table_text(t, NULL);
}

/* A failed run shows its reason in place of its figures. */
static void result_row(struct sh_table *t, const struct sh_report_run *run)
{
    sh_table_row(t);
    sh_table_text(t, run->name);
    sh_table_text(t, sh_report_value(run, "parallelism.sharding_strategy"));
    whole_cell(t, run->ranks);
    mesh_cell(t, run);
    whole_cell(t, run->global_batch);
    steps_cell(t, run);
    if (run->ended) {
        char *why = sh_strfmt("failed: %s", run->ended);

        sh_table_rest(t, why);
        free(why);
    } else {
        figures(t, run);
    }
}

/* MFU is shown if some run knows its peak, and validation if some run has one: a column of dashes would only be noise. */
void sh_report_results(FILE *out, const struct sh_report *r)
{
    enum { MFU = 8, VALIDATION = 10, COLUMNS = 13 };
    struct sh_column columns[COLUMNS] = {
        {.head = "run", .text = true},
        {.head = "strategy", .text = true},
        {.head = "ranks"},
        {.head = "replicate × shard"},
        {.head = "sequences per step"},
        {.head = "steps"},
        {.head = "time"},
        {.head = "tokens/s"},
        [MFU] = {.head = "MFU", .hidden = true},
        {.head = "last loss"},
        [VALIDATION] = {.head = "last validation loss", .hidden = true},
        {.head = "perplexity", .hidden = true},
        {.head = "best validation loss", .hidden = true},
    };
    struct sh_table t;

    for (int i = 0; i < r->n_runs; i++) {
        columns[MFU].hidden = columns[MFU].hidden && !(r->runs[i].mfu > 0);
        for (int k = VALIDATION; k < COLUMNS; k++)
            columns[k].hidden = columns[k].hidden && !r->runs[i].n_validations;
    }
    sh_html_heading(out, "Runs",
                    "Tokens per second: median over all steps except those that warm up after each (re)start. Time: "
                    "steps, saves and validations, without starts. Perplexity: of the last validation. MFU: tokens per "
                    "second times 6 operations per weight in products and 6 L H D T of causal attention, over the peak "
                    "of all ranks.");
    if (r->n_runs > 1)
        sh_report_identities(out, r);
    sh_table_begin(&t, out, r->n_runs, COLUMNS, columns);
    for (int i = 0; i < r->n_runs; i++)
        result_row(&t, &r->runs[i]);
    sh_table_end(&t);
}

/* ---- configurations: differing keys as a table, equal keys as a list ---- */

/* The folder is not shown, since it always differs. */
static bool is_shown(const struct sh_report *r, int i)
{
    return strcmp(r->runs[0].keys[i].name, "job.dump_folder") != 0 && sh_report_differs(r, i);
}

/* A column for each key that differs. Whether keys differ is determined once, over all runs. */
static void differing_table(FILE *out, const struct sh_report *r)
{
    int n = r->runs[0].n_keys + 1;
    struct sh_column *columns = sh_calloc((size_t)n, sizeof *columns);
    struct sh_table t;

    columns[0].head = "run";
    for (int i = 1; i < n; i++)
        columns[i] = (struct sh_column){
            .head = r->runs[0].keys[i - 1].name, .text = true, .breaks = true, .hidden = !is_shown(r, i - 1)};
    sh_table_begin(&t, out, r->n_runs, n, columns);
    for (int k = 0; k < r->n_runs; k++) {
        sh_table_row(&t);
        sh_table_text(&t, r->runs[k].name);
        for (int i = 1; i < n; i++)
            sh_table_text(&t, r->runs[k].keys[i - 1].value);
    }
    sh_table_end(&t);
    free(columns);
}

/* Differing keys are a table, the rest is folded away. */
void sh_report_configs(FILE *out, const struct sh_report *r)
{
    const struct sh_report_run *first = &r->runs[0];

    sh_html_heading(out, "Configurations", NULL);
    if (r->n_runs > 1)
        differing_table(out, r);
    fprintf(out, "<details><summary>%s</summary>\n<pre>", r->n_runs > 1 ? "What all runs have in common" : "All keys");
    for (int i = 0; i < first->n_keys; i++)
        if (!sh_report_differs(r, i)) {
            fprintf(out, "%s: ", first->keys[i].name);
            sh_html_text(out, first->keys[i].value);
            fputc('\n', out);
        }
    fputs("</pre></details>\n", out);
}
