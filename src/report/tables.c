/* Tables of results and of configurations. A question mark stands for an unknown value, a dash for one that does not
 * exist. */
#include "src/report/html.h"
#include "src/report/parts.h"

#include "src/base/mem.h"
#include "src/base/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The columns from "time" on, which a failed run does not have. */
enum { N_FIGURES = 7 };

/* class: n for numbers, s for short text, v for values, name for the run. */
static void text_cell(FILE *out, const char *class, const char *text)
{
    fprintf(out, "<td class=\"%s\">", class);
    sh_html_text(out, text);
    fputs("</td>", out);
}

/* 0 or less: not known. */
static void whole_cell(FILE *out, int64_t v)
{
    if (v > 0)
        fprintf(out, "<td class=\"n\">%lld</td>", (long long)v);
    else
        fputs("<td class=\"n\">?</td>", out);
}

/* Steps done of those wanted; a single number once they are done. */
static void steps_cell(FILE *out, const struct sh_report_run *run)
{
    int64_t done = run->n_steps ? run->steps[run->n_steps - 1].step : 0;

    if (done > 0 && done < run->wanted)
        fprintf(out, "<td class=\"n\">%lld of %lld</td>", (long long)done, (long long)run->wanted);
    else
        whole_cell(out, done);
}

/* Replicas x shards, as everywhere else. */
static void mesh_cell(FILE *out, const struct sh_report_run *run)
{
    if (run->shard)
        fprintf(out, "<td class=\"n\">%d × %d</td>", run->replicate, run->shard);
    else
        fputs("<td class=\"n\">?</td>", out);
}

/* Four digits are enough to tell two runs apart. */
static void loss_cell(FILE *out, double loss)
{
    if (isfinite(loss))
        fprintf(out, "<td class=\"n\">%.4f</td>", loss);
    else
        fputs("<td class=\"n\">–</td>", out);
}

/* The column is shown if some run knows its peak. */
static bool has_mfu(const struct sh_report *r)
{
    for (int i = 0; i < r->n_runs; i++)
        if (r->runs[i].mfu > 0)
            return true;
    return false;
}

/* Writes a dash if the peak of this run is not known. */
static void mfu_cell(FILE *out, double mfu)
{
    if (mfu > 0)
        fprintf(out, "<td class=\"n\">%.1f %%</td>", 100 * mfu);
    else
        fputs("<td class=\"n\">–</td>", out);
}

/* Perplexity of a loss in nats: the number of equally likely words or bytes. */
static void perplexity_cell(FILE *out, double loss)
{
    char number[SH_HTML_NUMBER];

    fprintf(out, "<td class=\"n\">%s</td>", sh_html_number(exp(loss), number));
}

/* The lowest validation loss, the first of equal ones; NULL if none is finite. */
static const struct sh_report_point *best_validation(const struct sh_report_run *run)
{
    const struct sh_report_point *best = NULL;

    for (int i = 0; i < run->n_validations; i++)
        if (isfinite(run->validations[i].loss) && (!best || run->validations[i].loss < best->loss))
            best = &run->validations[i];
    return best;
}

static void best_cell(FILE *out, const struct sh_report_run *run)
{
    const struct sh_report_point *best = best_validation(run);

    if (best)
        fprintf(out, "<td class=\"n\">%.4f (step %lld)</td>", best->loss, (long long)best->step);
    else
        fputs("<td class=\"n\">–</td>", out);
}

/* Losses at the end of the run: the last step and the last validation. Writes as many cells as `heads` has columns from
 * "time" on. */
static void figures(FILE *out, const struct sh_report_run *run, bool mfu)
{
    double validation = run->n_validations ? run->validations[run->n_validations - 1].loss : NAN;
    char number[SH_HTML_NUMBER], time[SH_STR_SHORT];

    fprintf(out, "<td class=\"n\">%s</td>", run->wall > 0 ? sh_str_duration(run->wall, time) : "–");
    fprintf(out, "<td class=\"n\">%s</td>",
            run->tokens_per_second > 0 ? sh_html_number(run->tokens_per_second, number) : "–");
    if (mfu)
        mfu_cell(out, run->mfu);
    loss_cell(out, run->n_steps ? run->steps[run->n_steps - 1].loss : NAN);
    loss_cell(out, validation);
    perplexity_cell(out, validation);
    best_cell(out, run);
}

/* A failed run shows its reason in place of its figures. */
static void result_row(FILE *out, const struct sh_report_run *run, bool mfu)
{
    fputs("<tr>", out);
    text_cell(out, "name", run->name);
    text_cell(out, "s", sh_report_value(run, "parallelism.sharding_strategy"));
    whole_cell(out, run->ranks);
    mesh_cell(out, run);
    whole_cell(out, strtoll(sh_report_value(run, "training.local_batch_size"), NULL, 10));
    whole_cell(out, run->global_batch);
    steps_cell(out, run);
    if (run->ended) {
        fprintf(out, "<td class=\"v\" colspan=\"%d\">failed: ", mfu ? N_FIGURES : N_FIGURES - 1);
        sh_html_text(out, run->ended);
        fputs("</td>", out);
    } else {
        figures(out, run, mfu);
    }
    fputs("</tr>\n", out);
}

void sh_report_results(FILE *out, const struct sh_report *r)
{
    static const char *const heads[] = {
        "ranks",     "replicate × shard",    "micro-batch", "sequences per step",  "steps", "time", "tokens/s", "MFU",
        "last loss", "last validation loss", "perplexity",  "best validation loss"};
    /* A column of dashes would only be noise. */
    bool mfu = has_mfu(r);

    fprintf(
        out,
        "<h2>Runs</h2>\n<p class=\"soft\">Tokens per second: median over all steps except the first%s after each "
        "(re)start. Time: steps, saves and validations, without starts. Perplexity: of the last validation.%s</p>\n",
        r->study.warm_up > 1 ? " ones" : "",
        mfu ? " MFU: tokens per second times 6 operations per weight in products and 6 L H D T of causal attention, over "
              "the peak of all ranks."
            : "");
    sh_html_fold(out, r->n_runs);
    fputs("<div class=\"scroll\"><table>\n<thead><tr><th>run</th><th>strategy</th>", out);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (mfu || strcmp(heads[i], "MFU") != 0)
            fprintf(out, "<th class=\"n\">%s</th>", heads[i]);
    fputs("</tr></thead>\n<tbody>\n", out);
    for (int i = 0; i < r->n_runs; i++)
        result_row(out, &r->runs[i], mfu);
    fputs("</tbody></table></div>\n", out);
    sh_html_unfold(out, r->n_runs);
}

/* ---- configurations: differing keys as a table, equal keys as a list ---- */

/* The folder is not shown, since it always differs. */
static bool is_shown(const struct sh_report *r, int i)
{
    return strcmp(r->runs[0].keys[i].name, "job.dump_folder") != 0 && sh_report_differs(r, i);
}

/* A column for each key that differs; a name may break after its section. Whether keys differ is determined once, over
 * all runs. */
static void differing_table(FILE *out, const struct sh_report *r)
{
    bool *shown = sh_calloc((size_t)r->runs[0].n_keys, sizeof *shown);

    for (int i = 0; i < r->runs[0].n_keys; i++)
        shown[i] = is_shown(r, i);
    sh_html_fold(out, r->n_runs);
    fputs("<div class=\"scroll\"><table>\n<thead><tr><th>run</th>", out);
    for (int i = 0; i < r->runs[0].n_keys; i++)
        if (shown[i])
            fprintf(out, "<th>%.*s<wbr/>%s</th>", (int)strcspn(r->runs[0].keys[i].name, ".") + 1,
                    r->runs[0].keys[i].name, strchr(r->runs[0].keys[i].name, '.') + 1);
    fputs("</tr></thead>\n<tbody>\n", out);
    for (int k = 0; k < r->n_runs; k++) {
        fputs("<tr>", out);
        text_cell(out, "name", r->runs[k].name);
        for (int i = 0; i < r->runs[k].n_keys; i++)
            if (shown[i])
                text_cell(out, "v", r->runs[k].keys[i].value);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
    sh_html_unfold(out, r->n_runs);
    free(shown);
}

/* Differing keys are a table, the rest is folded away. */
void sh_report_configs(FILE *out, const struct sh_report *r)
{
    const struct sh_report_run *first = &r->runs[0];

    fputs("<h2>Configurations</h2>\n", out);
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
