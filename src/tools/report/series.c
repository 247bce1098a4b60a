/* Finds the runs that scale with each other: the same configuration except for the number of ranks and what follows
 * from it. In weak scaling the batch per rank is the same, in strong scaling the batch of the job. A run may be in one
 * series of each kind. */
#include "src/tools/report/parts.h"

#include "src/base/number/median.h"
#include "src/base/mem.h"
#include "src/base/number/size.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Keys and sections in which the runs of a series may differ: the number of ranks, what follows from it, and whatever
 * does not change the work of a step. A name that ends in a dot is a section. */
static const char *const free_keys[] = {
    "job.",           "mesh.ranks",
    "mesh.replicate", "training.global_batch_size",
    "training.steps", "training.dataset_path",
    "data.mix",       "optimizer.",
    "lr_scheduler.",  "checkpoint.",
    "validation.",    "metrics.",
    "profiling.",     "guard.",
    "fault.",         "comm.",
    "memory.",        "debug.",
};

/* A name that ends in a dot frees its whole section. */
static bool is_free(const char *name)
{
    for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++) {
        size_t length = strlen(free_keys[i]);

        if (free_keys[i][length - 1] == '.' ? !strncmp(name, free_keys[i], length) : !strcmp(name, free_keys[i]))
            return true;
    }
    return false;
}

/* Products rather than quotients, so that batches per rank compare exactly: 8 on 2 ranks equals 16 on 4, as
 * 8 x 4 = 16 x 2. */
static bool same_work(const struct sh_report_run *a, const struct sh_report_run *b, enum sh_scaling kind)
{
    if (kind == SH_SCALING_STRONG ? a->global_batch != b->global_batch
                                  : sh_size_mul(a->global_batch, b->ranks) != sh_size_mul(b->global_batch, a->ranks))
        return false;
    for (int i = 0; i < a->n_keys; i++)
        if (strcmp(a->keys[i].value, b->keys[i].value) != 0 && !is_free(a->keys[i].name))
            return false;
    return true;
}

bool sh_report_same_point(const struct sh_report_run *a, const struct sh_report_run *b)
{
    return a->ranks == b->ranks && a->n_keys == b->n_keys && same_work(a, b, SH_SCALING_STRONG);
}

bool sh_report_same_but_sharding(const struct sh_report_run *a, const struct sh_report_run *b)
{
    for (int i = 0; i < a->n_keys; i++) {
        const char *name = a->keys[i].name;
        bool sharding = !strncmp(name, "parallelism.", strlen("parallelism.")) ||
                        !strncmp(name, "mesh.", strlen("mesh."));

        if (!sharding && !is_free(name) && strcmp(a->keys[i].value, b->keys[i].value) != 0)
            return false;
    }
    return true;
}

/* Whether a run has a speed to compare. */
static bool has_speed(const struct sh_report_run *run)
{
    return run->ranks > 0 && (run->tokens_per_second > 0 || run->predicted.tokens_per_second > 0);
}

/* Runs on equal ranks keep their order, by index, since qsort_r is not stable. */
static int by_ranks(const void *a, const void *b, void *runs)
{
    const struct sh_report_run *x = (struct sh_report_run *)runs + *(const int *)a;
    const struct sh_report_run *y = (struct sh_report_run *)runs + *(const int *)b;

    return x->ranks != y->ranks ? (x->ranks > y->ranks) - (x->ranks < y->ranks) : *(const int *)a - *(const int *)b;
}

/* "full_shard, local_batch_size 2": the strategy, and every other key that differs between the runs. */
static char *make_label(const struct sh_report *r, const struct sh_report_run *run)
{
    char *label = sh_strdup(sh_report_value(run, "parallelism.sharding_strategy"));

    for (int i = 0; i < run->n_keys; i++) {
        const struct sh_report_key *key = &run->keys[i];
        char *longer;

        if (is_free(key->name) || !strcmp(key->name, "parallelism.sharding_strategy") || !sh_report_differs(r, i) ||
            !strcmp(key->value, "auto"))
            continue;
        longer = sh_strfmt("%s, %s %s", label, strchr(key->name, '.') + 1, key->value);
        free(label);
        label = longer;
    }
    return label;
}

/* The label includes the work, since two series may differ only in that. */
static void name_series(const struct sh_report *r, struct sh_report_series *s)
{
    const struct sh_report_run *first = &r->runs[s->runs[0]];
    double each = (double)first->global_batch / first->ranks;
    char *plain = make_label(r, first);

    if (s->kind == SH_SCALING_STRONG)
        s->label = sh_strfmt("%s; %lld sequences per step", plain, (long long)first->global_batch);
    else
        s->label = sh_strfmt("%s; %.4g sequence%s per step and rank", plain, each,
                             each > 0.99995 && each < 1.00005 ? "" : "s");
    free(plain);
}

/* Repeats have one prediction; the median is over all repeats. */
static struct sh_report_at make_point(const struct sh_report *r, const struct sh_report_series *s, int first)
{
    const struct sh_report_run *one = &r->runs[s->runs[first]];
    struct sh_report_at at = {.ranks = one->ranks, .first = first, .batch = one->global_batch};
    double *speeds = sh_calloc((size_t)s->n, sizeof *speeds);

    for (; first + at.n < s->n && r->runs[s->runs[first + at.n]].ranks == at.ranks; at.n++) {
        const struct sh_report_run *run = &r->runs[s->runs[first + at.n]];

        if (run->tokens_per_second > 0)
            speeds[at.measured++] = run->tokens_per_second;
        if (run->predicted.tokens_per_second > 0)
            at.predicted = run->predicted.tokens_per_second;
    }
    at.median = sh_median(at.measured, speeds);
    at.least = at.measured ? speeds[0] : 0;
    at.most = at.measured ? speeds[at.measured - 1] : 0;
    free(speeds);
    return at;
}

/* Also finds the two bases: each from the fewest ranks with a figure. */
static void find_points(const struct sh_report *r, struct sh_report_series *s)
{
    s->at = sh_calloc((size_t)s->n, sizeof *s->at);
    for (int i = 0; i < s->n; i += s->at[s->n_at - 1].n)
        s->at[s->n_at++] = make_point(r, s, i);
    for (int i = s->n_at - 1; i >= 0; i--) {
        if (s->at[i].median > 0)
            s->base = s->at[i].median / s->at[i].ranks;
        if (s->at[i].predicted > 0)
            s->predicted_base = s->at[i].predicted / s->at[i].ranks;
    }
}

/* Gathers the runs that scale with run `first`; keeps them if they are on different numbers of ranks. */
static void gather(struct sh_report *r, enum sh_scaling kind, int first, bool *taken)
{
    struct sh_report_series s = {.kind = kind};

    for (int i = first; i < r->n_runs; i++)
        if (!taken[i] && has_speed(&r->runs[i]) && same_work(&r->runs[first], &r->runs[i], kind)) {
            s.runs = sh_grow(s.runs, s.n, &s.cap, sizeof *s.runs);
            s.runs[s.n++] = i;
            taken[i] = true;
        }
    qsort_r(s.runs, (size_t)s.n, sizeof *s.runs, by_ranks, r->runs);
    /* A single number of ranks does not scale. */
    if (r->runs[s.runs[0]].ranks == r->runs[s.runs[s.n - 1]].ranks) {
        free(s.runs);
        return;
    }
    name_series(r, &s);
    find_points(r, &s);
    r->series = sh_grow(r->series, r->n_series, &r->cap_series, sizeof *r->series);
    r->series[r->n_series++] = s;
}

/* Each kind sorts all runs again; `taken` keeps a run from being in two series of a kind. */
void sh_report_find_series(struct sh_report *r)
{
    for (enum sh_scaling kind = 0; kind < SH_SCALING_N; kind++) {
        bool *taken = sh_calloc((size_t)r->n_runs, sizeof *taken);

        for (int i = 0; i < r->n_runs; i++)
            if (!taken[i] && has_speed(&r->runs[i]))
                gather(r, kind, i, taken);
        free(taken);
    }
}

/* 1: each rank is as fast as on the fewest ranks of the series. */
double sh_report_efficiency(const struct sh_report_series *s, const struct sh_report_at *at)
{
    return at->median > 0 ? at->median / at->ranks / s->base : NAN;
}

double sh_report_predicted_efficiency(const struct sh_report_series *s, const struct sh_report_at *at)
{
    return at->predicted > 0 ? at->predicted / at->ranks / s->predicted_base : NAN;
}
