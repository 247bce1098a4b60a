#include "src/bench/rows.h"

#include "src/base/file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_BYTES = 1 << 20 };

struct report {
    const struct sh_bench_row *rows;
    const struct sh_bench_times *times;
    int n, rounds;
    json_t *earlier; /* NULL: none */
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct spread {
    double least, median, most;
};

static struct spread spread_of(const double *values, int n)
{
    double sorted[SH_BENCH_ROUNDS];

    memcpy(sorted, values, (size_t)n * sizeof *values);
    qsort(sorted, (size_t)n, sizeof *sorted, by_size);
    return (struct spread){sorted[0], n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2, sorted[n - 1]};
}

static int find_row(const struct report *r, const char *name)
{
    int i = 0;

    while (strcmp(r->rows[i].name, name))
        i++;
    return i;
}

/* 0: the row has no yardstick. */
static double ratio_of(const struct report *r, int row)
{
    double ratios[SH_BENCH_ROUNDS];
    int yard;

    if (!r->rows[row].against)
        return 0;
    yard = find_row(r, r->rows[row].against);
    for (int i = 0; i < r->rounds; i++)
        ratios[i] = r->times[row].seconds[i] / r->times[yard].seconds[i];
    return spread_of(ratios, r->rounds).median;
}

/* The median of an earlier run; 0: it has no such row. */
static double earlier_median(const struct report *r, const char *name)
{
    json_t *row = json_object_get(json_object_get(r->earlier, "rows"), name);

    return json_number_value(json_object_get(row, "median_seconds"));
}

static void print_row(const struct report *r, int row)
{
    struct spread s = spread_of(r->times[row].seconds, r->rounds);
    double gb = (double)r->times[row].bytes / 1e9, ratio = ratio_of(r, row), before = earlier_median(r, r->rows[row].name);

    printf("%-36s %9.4f %9.4f %9.4f", r->rows[row].name, s.median, s.least, s.most);
    if (gb > 0)
        printf(" %8.2f", gb / s.median);
    else
        printf(" %8s", "");
    if (before > 0)
        printf("  %6.2f x earlier", s.median / before);
    if (ratio > 0)
        printf("  %6.2f x %s", ratio, r->rows[row].against);
    putchar('\n');
}

static json_t *row_json(const struct report *r, int row)
{
    struct spread s = spread_of(r->times[row].seconds, r->rounds);
    json_t *line = json_pack("{s:f, s:f, s:f, s:I}", "median_seconds", s.median, "least_seconds", s.least, "most_seconds",
                             s.most, "bytes", (json_int_t)r->times[row].bytes);

    if (r->rows[row].against) {
        json_object_set_new(line, "against", json_string(r->rows[row].against));
        json_object_set_new(line, "ratio", json_real(ratio_of(r, row)));
    }
    return line;
}

static sh_rc write_json(const struct report *r, const char *kind, const char *head, const char *path)
{
    json_t *rows = json_object(), *all;
    char *text;
    sh_rc rc;

    for (int i = 0; i < r->n; i++)
        json_object_set_new(rows, r->rows[i].name, row_json(r, i));
    all = json_pack("{s:s, s:s, s:i, s:o}", "bench", kind, "what", head, "rounds", r->rounds, "rows", rows);
    text = json_dumps(all, JSON_INDENT(2));
    json_decref(all);
    if (!text)
        return sh_fail(SH_E_MEMORY, "no memory for %s", path);
    rc = sh_write_file_atomic(path, text, strlen(text));
    free(text);
    return rc;
}

static sh_rc read_earlier(const char *path, const char *kind, json_t **out)
{
    json_error_t error;
    const char *name;
    char *text;
    size_t bytes;

    SH_TRY(sh_read_file(path, JSON_BYTES, &text, &bytes));
    *out = json_loadb(text, bytes, 0, &error);
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

sh_rc sh_bench_check(const char *kind, const struct sh_bench_options *options)
{
    json_t *earlier = NULL;

    if (options->compare)
        SH_TRY(read_earlier(options->compare, kind, &earlier));
    json_decref(earlier);
    return SH_OK;
}

sh_rc sh_bench_report(const char *kind, const char *head, const struct sh_bench_row *rows, const struct sh_bench_times *times,
                      int n, int rounds, const struct sh_bench_options *options)
{
    struct report r = {.rows = rows, .times = times, .n = n, .rounds = rounds};

    if (options->compare)
        SH_TRY(read_earlier(options->compare, kind, &r.earlier));
    printf("%s\n%-36s %9s %9s %9s %8s\n", head, "seconds", "median", "least", "most", "GB/s");
    for (int i = 0; i < n; i++)
        print_row(&r, i);
    json_decref(r.earlier);
    return options->json ? write_json(&r, kind, head, options->json) : SH_OK;
}
