/* The four figures at the top of the page: loss, validation, tokens, time. Of several runs the best, and sums. */
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/string/str.h"

#include <math.h>

/* The caller writes what belongs below the value, and closes the figure. */
static void open_figure(FILE *out, const char *name, const char *value)
{
    fprintf(out, "<div><dt>%s</dt><dd><b>%s</b><small>", name, value);
}

static void close_figure(FILE *out)
{
    fputs("</small></dd></div>\n", out);
}

static const char *loss_text(double loss, char out[SH_STR_SHORT])
{
    snprintf(out, SH_STR_SHORT, "%.4f", loss);
    return isfinite(loss) ? out : "–";
}

static void loss_of_one(FILE *out, const struct sh_report_run *run)
{
    const struct sh_report_step *first = &run->steps[0], *last = &run->steps[run->n_steps - 1];
    char loss[SH_STR_SHORT], before[SH_STR_SHORT];

    open_figure(out, "loss", loss_text(last->loss, loss));
    fprintf(out, "from %s at step %lld", loss_text(first->loss, before), (long long)first->step);
    close_figure(out);
}

/* The change tells whether it still falls; if it has risen, what the best was. */
static void validation_of_one(FILE *out, const struct sh_report_run *run)
{
    const struct sh_report_point *best = sh_report_best(run), *last = run->validations + run->n_validations - 1;
    char loss[SH_STR_SHORT], number[SH_HTML_NUMBER];

    open_figure(out, "validation", run->n_validations ? loss_text(last->loss, loss) : "–");
    if (!run->n_validations)
        fputs("none", out);
    if (run->n_validations > 1 && isfinite(last->loss - last[-1].loss))
        fprintf(out, "%+.4f since step %lld; ", last->loss - last[-1].loss, (long long)last[-1].step);
    if (run->n_validations)
        fprintf(out, "perplexity %s", sh_html_number(exp(last->loss), number));
    if (best && best->loss < last->loss)
        fprintf(out, "; best %.4f at step %lld", best->loss, (long long)best->step);
    close_figure(out);
}

static void one(FILE *out, const struct sh_report_run *run)
{
    char text[SH_STR_SHORT], number[SH_HTML_NUMBER];

    loss_of_one(out, run);
    validation_of_one(out, run);
    open_figure(out, "tokens", run->tokens > 0 ? sh_str_count(run->tokens, text) : "–");
    if (run->tokens_per_second > 0)
        fprintf(out, "%s per second", sh_html_number(run->tokens_per_second, number));
    close_figure(out);
    open_figure(out, "time", run->wall > 0 ? sh_str_duration(run->wall, text) : "–");
    sh_report_state(out, run);
    close_figure(out);
}

static void lowest(FILE *out, const char *name, const struct sh_report_run *of, double loss, int64_t step)
{
    char text[SH_STR_SHORT];

    open_figure(out, name, loss_text(loss, text));
    if (of) {
        sh_html_text(out, of->name);
        fprintf(out, ", step %lld", (long long)step);
    } else {
        fputs("none", out);
    }
    close_figure(out);
}

/* Steps are compared at the ends of the runs, validations over their whole course: single steps jump. */
static void many(FILE *out, const struct sh_report *r)
{
    const struct sh_report_run *first = NULL, *valid = NULL;
    double loss = INFINITY, wall = 0, tokens = 0;
    char text[SH_STR_SHORT];
    int finished = 0;

    for (int i = 0; i < r->n_runs; i++) {
        const struct sh_report_run *run = &r->runs[i];

        wall += run->wall;
        tokens += (double)run->tokens;
        finished += sh_report_is_done(run);
        if (run->n_steps && run->steps[run->n_steps - 1].loss < loss) {
            loss = run->steps[run->n_steps - 1].loss;
            first = run;
        }
        if (sh_report_best(run) && (!valid || sh_report_best(run)->loss < sh_report_best(valid)->loss))
            valid = run;
    }
    lowest(out, "lowest loss", first, first ? loss : NAN, first ? sh_report_done(first) : 0);
    lowest(out, "lowest validation", valid, valid ? sh_report_best(valid)->loss : NAN,
           valid ? sh_report_best(valid)->step : 0);
    open_figure(out, "tokens", tokens > 0 ? sh_str_count((int64_t)fmin(tokens, 1e18), text) : "–");
    fputs("all runs", out);
    close_figure(out);
    open_figure(out, "time", wall > 0 ? sh_str_duration(wall, text) : "–");
    fprintf(out, "all runs; %d of %d are done", finished, r->n_runs);
    close_figure(out);
}

/* Nothing before the first step, as in a study on paper. */
void sh_report_figures(FILE *out, const struct sh_report *r)
{
    bool any = false;

    for (int i = 0; i < r->n_runs; i++)
        any = any || r->runs[i].n_steps;
    if (!any)
        return;
    fputs("<dl class=\"figures\">\n", out);
    if (r->n_runs == 1)
        one(out, &r->runs[0]);
    else
        many(out, r);
    fputs("</dl>\n", out);
}
