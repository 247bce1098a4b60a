/* Whatever stands out, each in one sentence: points below their prediction, points slower than in an older study,
 * repeats that differ, a rank that is always last, more threads than cores, GPUs that are throttled or capped. */
#include "src/base/number/median.h"
#include "src/tools/report/draw/html.h"
#include "src/tools/report/parts.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double behind = 0.90, near = 0.95;   /* of the prediction */
static const double wide = 0.05;                  /* (most - least) / median of repeats */
static const double noise = 0.02;                 /* of a point without repeats, whose spread is unknown */
static const double doubtful = 1.2, steady = 1.5; /* efficiency; spread of step times */
static const double always = 0.8;
static const double rare = 0.1; /* share of readings with a clock held down that is not worth mentioning */
enum { FEWEST_PACES = 5 };

enum { MOST_NAMES = 3, MOST_SENTENCES = 24 };

/* One text, and the runs that it applies to. */
struct said {
    char *text; /* markup */
    int runs[MOST_NAMES], n;
};

/* The list is opened with its first sentence; if it is long, the rest is folded. */
struct flags {
    FILE *out;
    int n;
    struct said *said;
    int n_said, cap_said;
    bool *slower; /* [runs] the point of this run has been reported as slower */
};

static void begin(struct flags *f)
{
    if (f->n == MOST_SENTENCES)
        fputs("</ul>\n<details><summary>More</summary>\n<ul class=\"flags\">\n", f->out);
    fputs(f->n++ ? "<li>" : "<h2>What stands out</h2>\n<ul class=\"flags\">\n<li>", f->out);
}

/* Takes ownership of the text. */
static void say_of(struct flags *f, int run, char *text)
{
    int i = 0;

    while (i < f->n_said && strcmp(f->said[i].text, text) != 0)
        i++;
    if (i < f->n_said)
        free(text);
    else {
        f->said = sh_grow(f->said, f->n_said, &f->cap_said, sizeof *f->said);
        f->said[f->n_said++] = (struct said){.text = text};
    }
    if (f->said[i].n < MOST_NAMES)
        f->said[i].runs[f->said[i].n] = run;
    f->said[i].n++;
}

static void write_said(struct flags *f, const struct sh_report *r)
{
    for (int i = 0; i < f->n_said; i++) {
        const struct said *s = &f->said[i];

        begin(f);
        for (int k = 0; k < s->n && k < MOST_NAMES; k++) {
            fputs(k ? ", " : "", f->out);
            sh_html_text(f->out, r->runs[s->runs[k]].name);
        }
        if (s->n > MOST_NAMES)
            fprintf(f->out, " and %d more", s->n - MOST_NAMES);
        fprintf(f->out, ": %s</li>\n", s->text);
        free(s->text);
    }
    free(f->said);
}

static void begin_point(struct flags *f, const struct sh_report_series *s, const struct sh_report_at *at)
{
    char ranks[SH_STR_SHORT];

    begin(f);
    sh_html_text(f->out, s->label);
    fprintf(f->out, " on %s ", sh_str_plural(at->ranks, "rank", ranks));
}

/* Whether one rank was the slowest in a majority of the gatherings, and there were enough of them. */
static bool is_last(const struct sh_report_run *run)
{
    return run->slow_node && run->paces >= FEWEST_PACES && run->slowest >= always * run->paces;
}

/* A run of the point with a node whose pace is suspect; NULL: none. */
static const struct sh_report_run *suspect(const struct sh_report *r, const struct sh_report_series *s,
                                           const struct sh_report_at *at)
{
    for (int i = 0; i < at->n; i++)
        if (r->runs[s->runs[at->first + i]].slow_node)
            return &r->runs[s->runs[at->first + i]];
    return NULL;
}

/* Measured over predicted speed, below 1 if slower; NAN unless both are known. */
static double ratio(const struct sh_report_at *at)
{
    return at->median > 0 && at->predicted > 0 ? at->median / at->predicted : NAN;
}

/* Whether one point is behind while the others match their prediction: then the prediction is not at fault. */
static bool is_alone_behind(const struct sh_report_series *s, int i)
{
    int others = 0;

    if (!(ratio(&s->at[i]) < behind))
        return false;
    for (int k = 0; k < s->n_at; k++) {
        if (k == i || isnan(ratio(&s->at[k])))
            continue;
        if (!(ratio(&s->at[k]) >= near && ratio(&s->at[k]) <= 1 / near))
            return false;
        others++;
    }
    return others > 0;
}

/* Names the node that was slow in that run, if the run knows one. */
static void flag_prediction(struct flags *f, const struct sh_report *r, const struct sh_report_series *s, int i)
{
    const struct sh_report_run *slow;
    bool *said = &f->slower[s->runs[s->at[i].first]];

    if (!is_alone_behind(s, i) || *said)
        return;
    *said = true;
    begin_point(f, s, &s->at[i]);
    fprintf(f->out, "is %.0f %% slower than predicted, the other points are within %.0f %%",
            100 * (1 - ratio(&s->at[i])), 100 * (1 - near));
    slow = suspect(r, s, &s->at[i]);
    if (slow) {
        fprintf(f->out, "; the slowest is rank %d on ", slow->slow_rank);
        sh_html_text(f->out, slow->slow_node);
    }
    fputs(".</li>\n", f->out);
}

/* For repeats of one point: a median of widely spread values proves little, whatever it is compared with. */
static void flag_spread(struct flags *f, const struct sh_report_series *s, const struct sh_report_at *at)
{
    double spread = at->measured > 1 ? (at->most - at->least) / at->median : 0;

    if (spread <= wide)
        return;
    begin_point(f, s, at);
    fprintf(f->out, "varies by %.0f %% over %d repeats.</li>\n", 100 * spread, at->measured);
}

/* Longest over shortest time of a measured step, without the tenths at both ends. */
static double variation(const struct sh_report_run *run)
{
    int n;
    double *speeds = sh_report_speeds(run, &n), ratio = n ? speeds[n - 1 - n / 10] / speeds[n / 10] : 1;

    free(speeds);
    return ratio;
}

/* Ranks do not become faster by being more, except a little by caches: the base is then at fault. */
static void flag_doubt(struct flags *f, const struct sh_report *r, const struct sh_report_series *s,
                       const struct sh_report_at *at)
{
    const struct sh_report_at *base = s->at;
    const struct sh_report_run *run;
    double efficiency = sh_report_efficiency(s, at), varies;

    if (!(efficiency > doubtful))
        return;
    while (!(base->median > 0))
        base++;
    run = &r->runs[s->runs[base->first]];
    varies = variation(run);
    begin_point(f, s, at);
    fprintf(f->out, "has an efficiency of %.0f %%, which is doubtful: ", 100 * efficiency);
    if (varies > steady) {
        fputs("the base run was disturbed: the step times of ", f->out);
        sh_html_text(f->out, run->name);
        fprintf(f->out, " vary by a factor of %.3g.</li>\n", varies);
    } else {
        fputs("the base run was slow throughout; repeat ", f->out);
        sh_html_text(f->out, run->name);
        fputs(".</li>\n", f->out);
    }
}

/* Finds the runs of the older report that do the same work as the point's; `measured` 0: none. */
static struct sh_report_at find_older(const struct sh_report *old, const struct sh_report_run *run)
{
    struct sh_report_at at = {.ranks = run->ranks};
    double *speeds = sh_calloc((size_t)old->n_runs + 1, sizeof *speeds);

    for (int i = 0; i < old->n_runs; i++)
        if (old->runs[i].tokens_per_second > 0 && sh_report_same_point(&old->runs[i], run))
            speeds[at.measured++] = old->runs[i].tokens_per_second;
    at.median = sh_median(at.measured, speeds);
    at.least = at.measured ? speeds[0] : 0;
    free(speeds);
    return at;
}

/* Beyond the spread of both means that the fastest repeat is slower than the slowest one was. */
static void flag_older(struct flags *f, const struct sh_report *r, const struct sh_report_series *s,
                       const struct sh_report_at *at)
{
    struct sh_report_at old;
    double most = at->measured > 1 ? at->most : (1 + noise) * at->median, least;

    if (!r->against || !at->measured)
        return;
    old = find_older(r->against, &r->runs[s->runs[at->first]]);
    least = old.measured > 1 ? old.least : (1 - noise) * old.median;
    if (!old.measured || most >= least)
        return;
    begin_point(f, s, at);
    fprintf(f->out, "is %.0f %% slower than in %s", 100 * (1 - at->median / old.median),
            strcmp(r->against->name, r->name) ? "" : "the older ");
    sh_html_text(f->out, r->against->name);
    fputs(", beyond the spread of both.</li>\n", f->out);
}

/* Writes what stands out about a run, to follow its name; false: nothing. */
typedef bool flag_fn(FILE *out, const struct sh_report_run *run);

/* A node that is slow once says little; one that is always last is worth a look at its cooling. */
static bool flag_last(FILE *out, const struct sh_report_run *run)
{
    if (!is_last(run))
        return false;
    fprintf(out, "rank %d on ", run->slow_rank);
    sh_html_text(out, run->slow_node);
    fputs(" is always last, by more than a tenth.", out);
    return true;
}

/* Counts hosts rather than nodes of the mesh, which may be parts of one machine. */
static bool flag_crowded(FILE *out, const struct sh_report_run *run)
{
    int64_t ranks = run->n_hosts > 0 ? ((int64_t)run->ranks + run->n_hosts - 1) / run->n_hosts : 0;
    char of[SH_STR_SHORT], on[SH_STR_SHORT];

    if (run->cores <= 0 || run->threads <= 0 || ranks * run->threads <= run->cores)
        return false;
    fprintf(out, "more threads than cores on a node: %lld threads of %s take turns on %s.",
            (long long)ranks * run->threads, sh_str_plural(ranks, "rank", of), sh_str_plural(run->cores, "core", on));
    return true;
}

/* Writes what held clocks down: "the power limit and heat". */
static void write_holds(FILE *out, const struct sh_report_gpus *g)
{
    static const char *const words[SH_REPORT_HOLDS] = {
        "the power limit", "heat", "the node's power supply", "the GPU hardware", "a clock setting", "sync boost"};
    const char *before = " by ";

    for (int i = 0; i < SH_REPORT_HOLDS; i++)
        if (g->by[i]) {
            fprintf(out, "%s%s", before, words[i]);
            before = " and ";
        }
}

/* Predictions do not know about this, and it distorts comparisons of runs. */
static bool flag_held(FILE *out, const struct sh_report_run *run)
{
    const struct sh_report_gpus *g = &run->gpus;

    if (g->held < rare * g->lines || !g->held)
        return false;
    fprintf(out, "GPU clocks were throttled in %.0f %% of the readings", 100.0 * g->held / g->lines);
    write_holds(out, g);
    if (g->node) {
        fprintf(out, "; the lowest was %.0f", g->mhz);
        if (g->most_mhz > 0)
            fprintf(out, " of %.0f", g->most_mhz);
        fprintf(out, " MHz, of rank %d on ", g->rank);
        sh_html_text(out, g->node);
    }
    if (g->celsius > 0)
        fprintf(out, "; the hottest GPU reached %.0f &#176;C", g->celsius);
    fputs(".", out);
    return true;
}

/* A limit below the card's default is the site's choice, and may be the only explanation of a speed. */
static bool flag_capped(FILE *out, const struct sh_report_run *run)
{
    const struct sh_report_gpus *g = &run->gpus;

    if (!(g->watts > 0 && g->watts < near * g->usual_watts))
        return false;
    fprintf(out, "a GPU's power limit is %.0f W, below its default of %.0f W, which lowers its clock.", g->watts,
            g->usual_watts);
    return true;
}

static void flag_runs(struct flags *f, const struct sh_report *r, flag_fn *flag)
{
    for (int i = 0; i < r->n_runs; i++) {
        char *text;
        size_t bytes;
        FILE *out = sh_memstream(&text, &bytes);
        bool stands_out = flag(out, &r->runs[i]);

        fclose(out);
        if (stands_out)
            say_of(f, i, text);
        else
            free(text);
    }
}

/* A point that is in a weak and in a strong series is examined only in the first of them. */
static bool is_seen(const struct sh_report *r, int k, const struct sh_report_at *at)
{
    int run = r->series[k].runs[at->first];

    for (int earlier = 0; earlier < k; earlier++)
        for (int i = 0; i < r->series[earlier].n; i++)
            if (r->series[earlier].runs[i] == run)
                return true;
    return false;
}

/* Points come first, then runs; a page without a flag has no such section. */
void sh_report_flags(FILE *out, const struct sh_report *r)
{
    static flag_fn *const of_runs[] = {flag_last, flag_crowded, flag_held, flag_capped};
    struct flags f = {.out = out, .slower = sh_calloc((size_t)r->n_runs, sizeof *f.slower)};

    for (int k = 0; k < r->n_series; k++)
        for (int i = 0; i < r->series[k].n_at; i++) {
            const struct sh_report_at *at = &r->series[k].at[i];

            flag_prediction(&f, r, &r->series[k], i);
            if (is_seen(r, k, at))
                continue;
            flag_doubt(&f, r, &r->series[k], at);
            flag_spread(&f, &r->series[k], at);
            flag_older(&f, r, &r->series[k], at);
        }
    for (size_t i = 0; i < sizeof of_runs / sizeof *of_runs; i++)
        flag_runs(&f, r, of_runs[i]);
    write_said(&f, r);
    fputs(f.n ? "</ul>\n" : "", out);
    fputs(f.n > MOST_SENTENCES ? "</details>\n" : "", out);
    free(f.slower);
}
