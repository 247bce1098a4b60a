/* Curves that lie on each other: losses of runs on different meshes should, and then only words can tell them apart. */
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/mem.h"

#include <math.h>
#include <stdlib.h>

/* With more runs than this, overlapping curves are not looked for, since each run is compared with all before it. */
enum { MOST_COMPARED = 64 };

/* The largest distance of two runs over the steps that both have. */
struct distance {
    double most; /* -1: no step in common with finite values */
    int64_t step;
};

/* Returns early once the runs are further apart than the eye needs: the exact distance is then not used. */
static struct distance compare(const struct sh_report_run *a, const struct sh_report_run *b, sh_report_value_fn *value,
                               double eye)
{
    struct distance d = {.most = -1};

    for (int i = 0, k = 0; i < a->n_steps && k < b->n_steps && d.most <= eye;) {
        int64_t x = a->steps[i].step, y = b->steps[k].step;
        double apart = x == y ? fabs(value(&a->steps[i]) - value(&b->steps[k])) : NAN;

        if (apart > d.most)
            d = (struct distance){.most = apart, .step = x};
        i += x <= y;
        k += y <= x;
    }
    return d;
}

/* below  out  [n_runs] the first run whose curve each run's lies on, or the run itself if there is none
 * d      out  [n_runs] their distance */
static void find_below(const struct sh_report *r, sh_report_value_fn *value, double eye, int *below, struct distance *d)
{
    for (int j = 0; j < r->n_runs; j++) {
        below[j] = j;
        for (int i = 0; i < j && below[j] == j && r->n_runs <= MOST_COMPARED; i++) {
            if (below[i] != i)
                continue;
            d[j] = compare(&r->runs[i], &r->runs[j], value, eye);
            if (d[j].most >= 0 && d[j].most <= eye)
                below[j] = i;
        }
    }
}

/* Writes a sentence about the runs that lie on run i, either the equal ones or the others. */
static void say_on(FILE *out, const struct sh_report *r, int i, bool equal, const int *below, const struct distance *d)
{
    int most = -1, n = 0;

    for (int j = i + 1; j < r->n_runs; j++) {
        if (below[j] != i || (d[j].most == 0) != equal)
            continue;
        fputs(n++ ? ", " : "<li>", out);
        sh_html_text(out, r->runs[j].name);
        if (most < 0 || d[j].most > d[most].most)
            most = j;
    }
    if (!n)
        return;
    fputs(equal ? (n > 1 ? " have the same losses as " : " has the same losses as ")
                : (n > 1 ? " lie on " : " lies on "),
          out);
    sh_html_text(out, r->runs[i].name);
    if (equal) {
        fputs(" at every step.</li>\n", out);
        return;
    }
    fprintf(out, "; largest difference: %.2g at step %lld", d[most].most, (long long)d[most].step);
    if (n > 1) {
        fputs(" of ", out);
        sh_html_text(out, r->runs[most].name);
    }
    fputs(".</li>\n", out);
}

/* Says it in words, since curves that look like one may still differ. */
void sh_report_say_overlaps(FILE *out, const struct sh_report *r, sh_report_value_fn *value, double eye)
{
    struct distance *d = sh_calloc((size_t)r->n_runs, sizeof *d);
    int *below = sh_calloc((size_t)r->n_runs, sizeof *below);

    find_below(r, value, eye, below, d);
    fputs("<ul class=\"said\">\n", out);
    for (int i = 0; i < r->n_runs; i++) {
        say_on(out, r, i, true, below, d);
        say_on(out, r, i, false, below, d);
    }
    fputs("</ul>\n", out);
    free(below);
    free(d);
}

/* Counts the later curves that lie on that of each run; freed with free(). */
int *sh_report_count_above(const struct sh_report *r, sh_report_value_fn *value, double eye)
{
    struct distance *d = sh_calloc((size_t)r->n_runs, sizeof *d);
    int *below = sh_calloc((size_t)r->n_runs, sizeof *below), *above = sh_calloc((size_t)r->n_runs, sizeof *above);

    find_below(r, value, eye, below, d);
    for (int j = 0; j < r->n_runs && r->n_runs <= MOST_COMPARED; j++)
        for (int k = j + 1; k < r->n_runs; k++)
            above[j] += below[k] == below[j];
    free(below);
    free(d);
    return above;
}
