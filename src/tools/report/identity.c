/* What each run is, in one line: from its own files. */
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_LINES = 12 }; /* more are folded */

/* Writes a value of a configuration, without the quotes of a text. */
static void write_value(FILE *out, const char *value)
{
    size_t n = strlen(value);
    size_t from = n && value[0] == '"', to = n > from && value[n - 1] == '"' ? n - 1 : n;
    char *plain = sh_strfmt("%.*s", (int)(to - from), value + from);

    sh_html_text(out, plain);
    free(plain);
}

/* Writes the preset's name, or the family of a model that has none. */
static void write_model(FILE *out, const struct sh_report_run *run)
{
    const char *name = sh_report_value(run, "model.name");
    char count[SH_STR_SHORT];

    write_value(out, name[0] && strcmp(name, "\"\"") != 0 ? name : sh_report_value(run, "model.family"));
    if (run->parameters > 0)
        fprintf(out, " (%s parameters)", sh_str_count(run->parameters, count));
}

/* Leaves out facts that an older version did not write. */
static void write_known(FILE *out, const char *before, const char *text)
{
    if (!text)
        return;
    fputs(before, out);
    sh_html_text(out, text);
}

/* "Finished" only if the run says so: the last step may be done without being saved. */
void sh_report_state(FILE *out, const struct sh_report_run *run)
{
    int64_t done = sh_report_done(run);
    const char *why = run->stopped ? run->stopped : run->over;

    if (run->finished || run->ended || !done) {
        fputs(run->finished ? "finished" : run->ended ? "failed before its first step" : "no step yet", out);
        return;
    }
    fprintf(out, "%s %lld of %lld",
            why             ? "stopped at step"
            : run->recorded ? "running, at step"
                            : "at step",
            (long long)done, (long long)run->wanted);
    write_known(out, ": ", why);
}

static void write_done(FILE *out, const struct sh_report_run *run)
{
    char text[SH_STR_SHORT];

    if (run->tokens > 0)
        fprintf(out, ", %s tokens", sh_str_count(run->tokens, text));
    if (run->wall > 0)
        fprintf(out, " in %s", sh_str_duration(run->wall, text));
    fputs("; ", out);
    sh_report_state(out, run);
}

/* Writes the name of the file, without its path. */
static void write_data(FILE *out, const struct sh_report_run *run)
{
    const char *path = sh_report_value(run, "training.dataset_path"), *name = strrchr(path, '/');

    if (strlen(path) > 2) { /* more than the quotes of "" */
        fputs("; data ", out);
        write_value(out, name ? name + 1 : path);
    }
}

/* What restarts cost the whole job. */
static void write_restarts(FILE *out, const struct sh_report_run *run)
{
    char restarts[SH_STR_SHORT], steps[SH_STR_SHORT];

    if (!run->restarts)
        return;
    fprintf(out, "; %s, ", sh_str_plural(run->restarts, "restart", restarts));
    if (run->from_memory == run->restarts)
        fputs("from memory, ", out);
    else if (run->from_memory)
        fprintf(out, "%d of them from memory, ", run->from_memory);
    fprintf(out, "repeated %s", sh_str_plural(run->repeated, "step", steps));
    if (run->goodput > 0)
        fprintf(out, "; goodput %.1f %%", 100 * run->goodput);
}

static void write_start(FILE *out, const struct sh_report_run *run)
{
    char text[SH_JOB_START];

    if (run->start[SH_PHASE_STEP] > 0)
        fprintf(out, "; %s", sh_job_start_text(run->start, text));
}

static void write_run(FILE *out, const struct sh_report_run *run)
{
    write_model(out, run);
    write_done(out, run);
    write_restarts(out, run);
    write_start(out, run);
    write_known(out, "; started ", run->began);
    write_known(out, " on ", run->host);
    if (run->n_hosts > 1)
        fprintf(out, " and %d more", run->n_hosts - 1);
    write_known(out, ", ", run->device);
    write_known(out, ", Sherd ", run->version);
    write_data(out, run);
    fputs(".", out);
}

/* A long list of runs is folded, so that the charts stay near the top. A single run has its name in the title. */
void sh_report_identities(FILE *out, const struct sh_report *r)
{
    bool folded = r->n_runs > MOST_LINES;

    fputs(folded ? "<details><summary>About the runs</summary>\n<ul class=\"runs\">\n" : "<ul class=\"runs\">\n", out);
    for (int i = 0; i < r->n_runs; i++) {
        fputs("<li>", out);
        if (r->n_runs > 1) {
            fputs("<strong>", out);
            sh_html_text(out, r->runs[i].name);
            fputs("</strong>: ", out);
        }
        write_run(out, &r->runs[i]);
        fputs("</li>\n", out);
    }
    fputs(folded ? "</ul></details>\n" : "</ul>\n", out);
}
