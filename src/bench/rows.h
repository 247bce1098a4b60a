/* What was measured: rows with a time a round, and what each is held against. */
#ifndef SH_BENCH_ROWS_H
#define SH_BENCH_ROWS_H

#include "src/bench/bench.h"

#include <stdint.h>

enum { SH_BENCH_ROUNDS = 100 };

/* One kind of measurement: a table of these. */
struct sh_bench_row {
    const char *name;
    const char *against; /* (optional) the row that is its yardstick */
};

struct sh_bench_times {
    double seconds[SH_BENCH_ROUNDS];
    int64_t bytes; /* moved by all ranks; 0: the row is not about bytes */
};

/* Whether options->compare can be used, asked before anything is measured. Local. Errors: SH_E_DATA. */
sh_rc sh_bench_check(const char *kind, const struct sh_bench_options *options);

/* Table, JSON and comparison. Local: rank 0.
 *   head   what was measured, one line
 *   times  [n] of the rows, `rounds` of each
 * A ratio is the median over the rounds of a row's seconds over its yardstick's in the same round.
 * Errors: SH_E_DATA: the files. */
sh_rc sh_bench_report(const char *kind, const char *head, const struct sh_bench_row *rows, const struct sh_bench_times *times,
                      int n, int rounds, const struct sh_bench_options *options);

#endif
