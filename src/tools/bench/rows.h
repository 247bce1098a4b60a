/* Measured rows with one time per round, and what each row is compared with. */
#ifndef SH_BENCH_ROWS_H
#define SH_BENCH_ROWS_H

#include "src/tools/bench/bench.h"

#include <stdint.h>

enum { SH_BENCH_ROUNDS = 100 };

/* One kind of measurement; a table is an array of these. */
struct sh_bench_row {
    const char *name;
    const char *against, *also; /* (optional) names of the rows that are its yardsticks */
};

/* A figure of zero means that the row has none; a column without any figure is left out. */
struct sh_bench_times {
    double seconds[SH_BENCH_ROUNDS];
    int64_t bytes;        /* moved: by all ranks, or what the head line says */
    double bus;           /* share of the bytes that each rank's link carries */
    double flops;         /* arithmetic operations of one rank */
    int64_t tokens;       /* of all ranks */
    double floor_seconds; /* what the machine's measured rates allow */
    double share;         /* of the whole of which the row is a part */
};

/* Rows that are discovered while measuring. Start with {0}. */
struct sh_bench_list {
    struct sh_bench_row *rows; /* names are owned */
    struct sh_bench_times *times;
    int n;
};

/* Append a row; returns its index. Invalidates pointers to earlier times. Local. */
int sh_bench_add(struct sh_bench_list *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sort the rows from `first` on by their medians, the longest first. */
void sh_bench_sort(struct sh_bench_list *l, int first, int rounds);
void sh_bench_list_free(struct sh_bench_list *l);

/* Median of n <= SH_BENCH_ROUNDS figures. */
double sh_bench_median(const double *values, int n);

/* Check, before anything is measured, that options->compare can be used. Local. Errors: SH_E_DATA. */
sh_rc sh_bench_check(const char *kind, const struct sh_bench_options *options);

/* Print the table, write the JSON and compare. Local: rank 0.
 *   head   what was measured, as whole lines without the last line break
 *   times  [n] of the rows, `rounds` of each
 * A ratio is the median over the rounds of a row's seconds divided by its yardstick's in the same round. With
 * options->compare the last line names the rows whose fastest round was slower than the slowest one before.
 * Errors: SH_E_DATA: the files. */
sh_rc sh_bench_report(const char *kind, const char *head, const struct sh_bench_row *rows,
                      const struct sh_bench_times *times, int n, int rounds, const struct sh_bench_options *options);

#endif
