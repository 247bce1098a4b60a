#include "src/report/html.h"
#include "src/report/parts.h"

#include "src/base/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct note {
    const char *text;
    bool (*about)(const struct sh_report_run *run);
};

static bool has_no_steps(const struct sh_report_run *run)
{
    return !run->n_steps && !run->ended;
}

static bool has_failed(const struct sh_report_run *run)
{
    return run->ended;
}

static bool is_too_short(const struct sh_report_run *run)
{
    return run->n_steps && run->tokens_per_second <= 0;
}

static bool has_cut_lines(const struct sh_report_run *run)
{
    return run->unreadable > 0;
}

static bool has_unknown_ranks(const struct sh_report_run *run)
{
    return !run->ranks;
}

static const struct note notes[] = {
    {"has done no step yet", has_no_steps},
    {"failed before its first step; its row says why", has_failed},
    {"is too short for its speed to be known: the first step of a start does not count", is_too_short},
    {"has lines in metrics.jsonl that were cut off; they are left out", has_cut_lines},
    {"does not say on how many ranks it ran (start it with mesh.ranks=N), and is left out of what is drawn against "
     "ranks",
     has_unknown_ranks},
};

/* What a reader must know before trusting the page. */
void sh_report_notes(FILE *out, const struct sh_report *r)
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

static void write_page(FILE *out, const struct sh_report *r)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>Sherd: ",
          out);
    sh_html_text(out, r->folder);
    fputs("</title>\n", out);
    sh_html_style(out);
    fputs("</head>\n<body>\n<h1>Training runs</h1>\n", out);
    fprintf(out, "<p class=\"soft\">%d run%s in ", r->n_runs, r->n_runs == 1 ? "" : "s");
    sh_html_text(out, r->folder);
    fputs("</p>\n", out);
    sh_report_notes(out, r);
    sh_report_results(out, r);
    sh_report_scaling(out, r);
    sh_report_losses(out, r);
    sh_report_time(out, r);
    sh_report_memory(out, r);
    sh_report_configs(out, r);
    fputs("</body>\n</html>\n", out);
}

sh_rc sh_report_write(const struct sh_report *r, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    bool failed;
    sh_rc rc;

    if (!out)
        return sh_fail(SH_E_MEMORY, "report: %s", strerror(errno));
    write_page(out, r);
    failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed)
        rc = sh_fail(SH_E_MEMORY, "out of memory: no room for the page");
    else
        rc = sh_write_file_atomic(path, text, bytes);
    free(text);
    return rc;
}
