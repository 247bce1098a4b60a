/* The page: one file without scripts or outside references, so that it can be mailed and opened years later. Notes at
 * the top list everything that cannot be trusted or compared. */
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* A condition of a run and a predicate to follow its name in a sentence. */
struct note {
    const char *text;
    bool (*about)(const struct sh_report_run *run);
};

/* No steps, but no failure either: the run may still be starting. */
static bool has_no_steps(const struct sh_report_run *run)
{
    return !run->n_steps && !run->ended && !(run->predicted.tokens_per_second > 0);
}

/* `ended` is set only for runs without a step. */
static bool has_failed(const struct sh_report_run *run)
{
    return run->ended;
}

/* A start of one step has only a warm-up step. */
static bool is_too_short(const struct sh_report_run *run)
{
    return run->n_steps && run->tokens_per_second <= 0;
}

/* The lines come from jobs that were killed in the middle of a write. */
static bool has_cut_lines(const struct sh_report_run *run)
{
    return run->unreadable > 0;
}

/* 0: neither the metrics nor the configuration tell. */
static bool has_unknown_ranks(const struct sh_report_run *run)
{
    return !run->ranks;
}

/* In order of importance; each note names the runs that it is about. */
static const struct note notes[] = {
    {"has done no step yet", has_no_steps},
    {"failed before its first step; its row says why", has_failed},
    {"is too short for its speed to be known: the first step of a start does not count", is_too_short},
    {"has lines in metrics.jsonl that were cut off; they are left out", has_cut_lines},
    {"does not say on how many ranks it ran (start it with mesh.ranks=N), and is left out of the charts against "
     "ranks",
     has_unknown_ranks},
};

/* Facts that a reader must know before trusting the page. */
static void put_notes(FILE *out, const struct sh_report *r)
{
    bool open = false;

    for (size_t k = 0; k < sizeof notes / sizeof *notes; k++)
        for (int i = 0; i < r->n_runs; i++) {
            if (!notes[k].about(&r->runs[i]))
                continue;
            fputs(open ? "<li>" : "<div class=\"notes\"><ul>\n<li>", out);
            sh_html_text(out, r->runs[i].name);
            fprintf(out, " %s.</li>\n", notes[k].text);
            open = true;
        }
    fputs(open ? "</ul></div>\n" : "", out);
}

/* Writes the name and machine of a study, and when it was submitted. */
static void write_study(FILE *out, const struct sh_report_study *s)
{
    if (!s->name)
        return;
    fputs("<p>Study ", out);
    sh_html_text(out, s->name);
    fputs(s->machine ? " on " : "", out);
    sh_html_text(out, s->machine ? s->machine : "");
    if (s->submitted) {
        fputs(s->paper ? ", predicted " : ", submitted ", out);
        sh_html_text(out, s->submitted);
    }
    fputs(s->paper ? "; nothing was run.</p>\n" : ".</p>\n", out);
}

static void write_sample(FILE *out, const struct sh_report *r)
{
    if (!r->sample)
        return;
    sh_html_heading(out, "Sample", "Text that the model wrote, as given with --sample.");
    fputs("<pre class=\"sample\">", out);
    sh_html_lines(out, r->sample);
    fputs("</pre>\n", out);
}

/* Results first, details later. Write errors show when the stream is closed. */
static void write_page(FILE *out, const struct sh_report *r)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n",
          out);
    if (r->reload > 0)
        fprintf(out, "<meta http-equiv=\"refresh\" content=\"%d\"/>\n", r->reload);
    fputs("<title>Sherd: ", out);
    sh_html_text(out, r->name);
    fputs("</title>\n", out);
    sh_html_style(out);
    fputs("</head>\n<body>\n<h1>", out);
    sh_html_text(out, r->name);
    fputs("</h1>\n", out);
    if (r->n_runs == 1)
        sh_report_identities(out, r);
    write_study(out, &r->study);
    put_notes(out, r);
    sh_report_figures(out, r);
    sh_report_curves(out, r);
    write_sample(out, r);
    sh_report_flags(out, r);
    sh_report_results(out, r);
    sh_report_scaling(out, r);
    sh_report_equals(out, r);
    sh_report_predictions(out, r);
    sh_report_reach(out, r);
    sh_report_time(out, r);
    sh_report_memory(out, r);
    sh_report_configs(out, r);
    fputs("</body>\n</html>\n", out);
}

bool sh_report_finished(const struct sh_report *r)
{
    for (int i = 0; i < r->n_runs; i++)
        if (!sh_report_is_done(&r->runs[i]) && !r->runs[i].over)
            return false;
    return true;
}

sh_rc sh_report_save(const struct sh_report *r, void write(FILE *out, const struct sh_report *r), const char *path)
{
    char *text;
    size_t bytes;
    FILE *out = sh_memstream(&text, &bytes);
    sh_rc rc;

    write(out, r);
    rc = ferror(out) || fclose(out) != 0 ? sh_fail(SH_E_MEMORY, "out of memory: no room for %s", path)
                                         : sh_write_file_atomic(path, text, bytes);
    free(text);
    return rc;
}

sh_rc sh_report_write(const struct sh_report *r, const char *path)
{
    return sh_report_save(r, write_page, path);
}
