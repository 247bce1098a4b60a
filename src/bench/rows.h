/* What was measured: rows with a time a round, and what each is held against. */
#ifndef SH_BENCH_ROWS_H
#define SH_BENCH_ROWS_H

#include "src/bench/bench.h"

#include <stdint.h>

enum { SH_BENCH_ROUNDS = 100 };

/* One kind of measurement: a table of these. */
struct sh_bench_row {
    const char *name;
    const char *against, *also; /* (optional) the rows that are its yardsticks */
};

/* What is zero is no figure of the row; a column that no row has a figure for is left out. */
struct sh_bench_times {
    double seconds[SH_BENCH_ROUNDS];
    int64_t bytes;        /* moved: by all ranks, or what the head line says */
    double bus;           /* of the bytes, the part that each rank's link carries */
    double flops;         /* operations of one rank */
    int64_t tokens;       /* of all ranks */
    double floor_seconds; /* what the machine's measured rates allow */
    double share;         /* of the whole that the row is a part of */
};

/* Rows that are only known when they are met. Start with {0}. */
struct sh_bench_list {
    struct sh_bench_row *rows; /* names are owned */
    struct sh_bench_times *times;
    int n;
};

/* Append a row; returns its index. Times that were found before may move. Local. */
int sh_bench_add(struct sh_bench_list *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Rows from `first` on, by their medians; the longest first. */
void sh_bench_sort(struct sh_bench_list *l, int first, int rounds);
void sh_bench_list_free(struct sh_bench_list *l);

/* Median of n <= SH_BENCH_ROUNDS figures. */
double sh_bench_median(const double *values, int n);

/* Whether options->compare can be used, asked before anything is measured. Local. Errors: SH_E_DATA. */
sh_rc sh_bench_check(const char *kind, const struct sh_bench_options *options);

/* Table, JSON and comparison. Local: rank 0.
 *   head   what was measured, whole lines but for the last line break
 *   times  [n] of the rows, `rounds` of each
 * A ratio is the median over the rounds of a row's seconds over its yardstick's in the same round. With
 * options->compare the last line names the rows whose quickest round was slower than the slowest one before.
 * Errors: SH_E_DATA: the files. */
sh_rc sh_bench_report(const char *kind, const char *head, const struct sh_bench_row *rows,
                      const struct sh_bench_times *times, int n, int rounds, const struct sh_bench_options *options);

#endif
