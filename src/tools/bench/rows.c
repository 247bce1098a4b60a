/* Tables of measurements: rows with a time for each round, columns derived from the time, comparison with a baseline
 * row and with an earlier run. Medians are shown together with the least and the most, because a mean of a few rounds
 * follows its worst one. */
#include "src/tools/bench/rows.h"

#include "io/json/json.h"
#include "src/base/file.h"
#include "src/base/number/median.h"
#include "src/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_BYTES = 8 << 20, LEAST_WIDTH = 36, JUDGED_ROUNDS = 3 };

struct report {
    const struct sh_bench_row *rows;
    const struct sh_bench_times *times;
    int n, rounds;
    int width;       /* width of the names' column */
    json_t *earlier; /* NULL: none */
};

struct spread {
    double least, median, most;
};

/* Returns the row's index; the next call may move rows, so keep the index and not a pointer. The name is copied. */
int sh_bench_add(struct sh_bench_list *l, const char *fmt, ...)
{
    char name[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    l->rows = sh_realloc(l->rows, (size_t)l->n + 1, sizeof *l->rows);
    l->times = sh_realloc(l->times, (size_t)l->n + 1, sizeof *l->times);
    l->rows[l->n] = (struct sh_bench_row){.name = sh_strdup(name)};
    memset(&l->times[l->n], 0, sizeof *l->times);
    return l->n++;
}

/* The list owns its names. */
void sh_bench_list_free(struct sh_bench_list *l)
{
    for (int i = 0; i < l->n; i++)
        free((void *)(uintptr_t)l->rows[i].name);
    free(l->rows);
    free(l->times);
}

/* Sorts a copy: the rounds must stay in their order, since ratios are taken round by round. */
static struct spread spread_of(const double *values, int n)
{
    double sorted[SH_BENCH_ROUNDS];

    memcpy(sorted, values, (size_t)n * sizeof *values);
    double median = sh_median(n, sorted);
    return (struct spread){sorted[0], median, sorted[n - 1]};
}

/* `values` need not be sorted. */
double sh_bench_median(const double *values, int n)
{
    return spread_of(values, n).median;
}

/* Insertion sort, slowest first, from row `first` on; names move along with their rows. */
void sh_bench_sort(struct sh_bench_list *l, int first, int rounds)
{
    for (int i = first; i < l->n; i++)
        for (int k = i; k > first; k--) {
            struct sh_bench_row row = l->rows[k];
            struct sh_bench_times times = l->times[k];

            if (sh_bench_median(l->times[k - 1].seconds, rounds) >= sh_bench_median(times.seconds, rounds))
                break;
            l->rows[k] = l->rows[k - 1];
            l->times[k] = l->times[k - 1];
            l->rows[k - 1] = row;
            l->times[k - 1] = times;
        }
}

/* The columns: each function takes the seconds of one call; 0 means that the row has no such figure. */
static double gigabytes(const struct sh_bench_times *t, double seconds)
{
    return (double)t->bytes / 1e9 / seconds;
}

/* Returns what each link carries: bytes times the factor of the collective. */
static double bus_gigabytes(const struct sh_bench_times *t, double seconds)
{
    return t->bus * (double)t->bytes / 1e9 / seconds;
}

/* Returns 0 for rows without operations. */
static double gigaflops(const struct sh_bench_times *t, double seconds)
{
    return t->flops / 1e9 / seconds;
}

/* Returns percent of the floor: 100 is as fast as the measured peaks allow. */
static double floor_reached(const struct sh_bench_times *t, double seconds)
{
    return 100 * t->floor_seconds / seconds;
}

/* Returns 0 for rows without tokens. */
static double tokens(const struct sh_bench_times *t, double seconds)
{
    return (double)t->tokens / seconds;
}

/* Does not depend on the row's own time: it was computed from all rows. */
static double share(const struct sh_bench_times *t, double seconds)
{
    (void)seconds;
    return 100 * t->share;
}

/* Figures of a row in addition to its seconds. Adding one takes one table row and one function. */
static const struct column {
    const char *title, *key, *unit;
    double (*value)(const struct sh_bench_times *t, double seconds);
    int digits;
} columns[] = {
    {"tokens/s", "tokens_per_second", "", tokens, 1},  {"share", "share_percent", "%", share, 1},
    {"GB/s", "gb_per_second", "", gigabytes, 2},       {"bus GB/s", "bus_gb_per_second", "", bus_gigabytes, 2},
    {"GFLOP/s", "gflop_per_second", "", gigaflops, 1}, {"of floor", "floor_percent", "%", floor_reached, 1},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* A column without any figure is not printed. */
static bool is_used(const struct report *r, const struct column *c)
{
    for (int i = 0; i < r->n; i++)
        if (c->value(&r->times[i], 1) > 0)
            return true;
    return false;
}

/* The name must exist: tables name their own rows. */
static int find_row(const struct report *r, const char *name)
{
    int i = 0;

    while (strcmp(r->rows[i].name, name))
        i++;
    return i;
}

/* Returns the width of the longest name. */
static int width_of(const struct sh_bench_row *rows, int n)
{
    int width = LEAST_WIDTH;

    for (int i = 0; i < n; i++)
        width = (int)strlen(rows[i].name) > width ? (int)strlen(rows[i].name) : width;
    return width;
}

/* Returns the median of the rounds' ratios, not the ratio of the medians: whatever slows both rows of a round cancels.
 * */
static double ratio_of(const struct report *r, int row, const char *against)
{
    double ratios[SH_BENCH_ROUNDS];
    int baseline = find_row(r, against);

    for (int i = 0; i < r->rounds; i++)
        ratios[i] = r->times[row].seconds[i] / r->times[baseline].seconds[i];
    return spread_of(ratios, r->rounds).median;
}

/* Returns a figure of an earlier run; 0: it has no such row. */
static double earlier_value(const struct report *r, const char *name, const char *key)
{
    /* If anything is absent, NULL is passed on all the way. */
    json_t *row = json_object_get(json_object_get(r->earlier, "rows"), name);

    return json_number_value(json_object_get(row, key));
}

/* Prints only columns that some row uses. */
static void print_titles(const struct report *r)
{
    printf("%-*s %9s %9s %9s", r->width, "seconds", "median", "least", "most");
    for (int i = 0; i < COLUMNS; i++)
        if (is_used(r, &columns[i]))
            printf(" %8s", columns[i].title);
    putchar('\n');
}

/* The unit takes its width from the number, so that columns stay aligned. */
static void print_column(const struct report *r, const struct column *c, int row, double seconds)
{
    double value = c->value(&r->times[row], seconds);
    int width = 8 - (int)strlen(c->unit);

    if (!is_used(r, c))
        return;
    if (value > 0)
        printf(" %*.*f%s", width, c->digits, value, c->unit);
    else
        printf(" %8s", "");
}

/* Prints name, times, columns, then factors: against an earlier run, then against one or two baseline rows. */
static void print_row(const struct report *r, int row)
{
    struct spread s = spread_of(r->times[row].seconds, r->rounds);
    double before = earlier_value(r, r->rows[row].name, "median_seconds");
    const char *baselines[] = {r->rows[row].against, r->rows[row].also};

    printf("%-*s %9.4g %9.4g %9.4g", r->width, r->rows[row].name, s.median, s.least, s.most);
    for (int i = 0; i < COLUMNS; i++)
        print_column(r, &columns[i], row, s.median);
    if (before > 0)
        printf("  %6.2f x earlier", s.median / before);
    for (int i = 0; i < 2; i++)
        if (baselines[i])
            printf("  %6.2f x %s", ratio_of(r, row, baselines[i]), baselines[i]);
    putchar('\n');
}

/* A row counts as slower only if its best round is slower than the worst one of the earlier run. */
static void print_slower(const struct report *r)
{
    int slower = 0;

    if (r->rounds < JUDGED_ROUNDS || json_integer_value(json_object_get(r->earlier, "rounds")) < JUDGED_ROUNDS) {
        printf("too few rounds to tell a difference from noise: use --repeat %d in both runs\n", JUDGED_ROUNDS);
        return;
    }
    for (int i = 0; i < r->n; i++) {
        double most = earlier_value(r, r->rows[i].name, "most_seconds");

        if (most > 0 && spread_of(r->times[i].seconds, r->rounds).least > most)
            printf("%s%s", slower++ ? ", " : "slower than earlier, beyond the spread of both: ", r->rows[i].name);
    }
    puts(slower ? "" : "no row is slower than earlier beyond the spread of both");
}

/* The same figures as on the screen, with all digits. */
static json_t *row_json(const struct report *r, int row)
{
    const struct sh_bench_times *t = &r->times[row];
    struct spread s = spread_of(t->seconds, r->rounds);
    json_t *line = json_pack("{s:f, s:f, s:f, s:I}", "median_seconds", s.median, "least_seconds", s.least,
                             "most_seconds", s.most, "bytes", (json_int_t)t->bytes);

    for (int i = 0; i < COLUMNS; i++)
        if (columns[i].value(t, s.median) > 0)
            json_object_set_new(line, columns[i].key, json_real(columns[i].value(t, s.median)));
    if (r->rows[row].against) {
        json_object_set_new(line, "against", json_string(r->rows[row].against));
        json_object_set_new(line, "ratio", json_real(ratio_of(r, row, r->rows[row].against)));
    }
    if (r->rows[row].also) {
        json_object_set_new(line, "also", json_string(r->rows[row].also));
        json_object_set_new(line, "also_ratio", json_real(ratio_of(r, row, r->rows[row].also)));
    }
    return line;
}

/* Rows are stored by name, which is how a later run finds them. */
static sh_rc write_json(const struct report *r, const char *kind, const char *head, const char *path)
{
    json_t *rows = json_object(), *all;
    char *text;
    sh_rc rc;

    for (int i = 0; i < r->n; i++)
        json_object_set_new(rows, r->rows[i].name, row_json(r, i));
    all = json_pack("{s:s, s:s, s:i, s:o}", "bench", kind, "what", head, "rounds", r->rounds, "rows", rows);
    /* This is NULL also if a row could not be made. */
    text = json_dumps(all, JSON_INDENT(2));
    json_decref(all);
    if (!text)
        return sh_fail(SH_E_MEMORY, "out of memory: no room for %s", path);
    rc = sh_write_file_atomic(path, text, strlen(text));
    free(text);
    return rc;
}

/* *out belongs to the caller. Results of another kind of benchmark are refused. */
static sh_rc read_earlier(const char *path, const char *kind, json_t **out)
{
    json_error_t error;
    const char *name;
    char *text;
    size_t bytes;

    SH_TRY(sh_read_file(path, JSON_BYTES, &text, &bytes));
    *out = sh_json_decode(text, bytes, 0, &error);
    free(text);
    if (!*out)
        return sh_fail(SH_E_DATA, "%s:%d: %s", path, error.line, error.text);
    name = json_string_value(json_object_get(*out, "bench"));
    if (name && !strcmp(name, kind))
        return SH_OK;
    json_decref(*out);
    *out = NULL;
    return sh_fail(SH_E_DATA, "%s: not the results of sherd bench %s", path, kind);
}

/* Called before anything is measured: a wrong file should not be noticed only after ten minutes. */
sh_rc sh_bench_check(const char *kind, const struct sh_bench_options *options)
{
    json_t *earlier = NULL;

    if (options->compare)
        SH_TRY(read_earlier(options->compare, kind, &earlier));
    json_decref(earlier);
    return SH_OK;
}

/* Rank 0. */
sh_rc sh_bench_report(const char *kind, const char *head, const struct sh_bench_row *rows,
                      const struct sh_bench_times *times, int n, int rounds, const struct sh_bench_options *options)
{
    struct report r = {.rows = rows, .times = times, .n = n, .rounds = rounds, .width = width_of(rows, n)};

    if (options->compare)
        SH_TRY(read_earlier(options->compare, kind, &r.earlier));
    puts(head);
    print_titles(&r);
    for (int i = 0; i < n; i++)
        print_row(&r, i);
    if (r.earlier)
        print_slower(&r);
    json_decref(r.earlier);
    return options->json ? write_json(&r, kind, head, options->json) : SH_OK;
}
