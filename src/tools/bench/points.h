/* Measurements as points of a machine file (src/cost/machine.h): --machine FILE. Local: rank 0 writes. */
#ifndef SH_BENCH_POINTS_H
#define SH_BENCH_POINTS_H

#include "src/cost/price.h"
#include "src/tools/bench/rows.h"

struct sh_run;

/* Start with {0}; freed by sh_bench_points_write(). */
struct sh_bench_points {
    struct sh_machine_point *of;
    int n, cap;
};

/* Add a point with median and spread of the rounds. Of equal operations only the first is kept.
 *   call  shapes and attributes; act: the type in which it computes */
void sh_bench_points_op(struct sh_bench_points *l, const struct sh_op_call *call, enum sh_dtype act,
                        const double *seconds, int rounds);
void sh_bench_points_coll(struct sh_bench_points *l, enum sh_op_kind kind, const char *axis,
                          const struct sh_coll_place *at, double whole_bytes, const double *seconds, int rounds);
void sh_bench_points_beside(struct sh_bench_points *l, enum sh_op_kind kind, double slowdown);
/* key: a key of the machine file; value: the best of the rounds. */
void sh_bench_points_figure(struct sh_bench_points *l, const char *key, double value);

/* Check, before anything is measured, that options->machine can be written. Errors: SH_E_USAGE, SH_E_DATA. */
sh_rc sh_bench_points_check(const struct sh_bench_options *options, const struct sh_config *cfg);

/* Write the points into options->machine, with the ranks per node if they compute on CPUs; NULL: write nothing. */
sh_rc sh_bench_points_write(struct sh_bench_points *l, const struct sh_bench_options *options, const struct sh_run *r);

/* Add the operations of a step from rank 0's trace, as measured while no collective ran, and their slowdown while each
 * kind of collective ran. Errors: SH_E_DATA: the file; SH_E_BUG: the trace of another program. */
sh_rc sh_bench_points_trace(struct sh_bench_points *l, const char *path, const struct sh_program *p, int steps);

#endif
