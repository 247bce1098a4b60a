/* What was measured, as points of a machine file (src/cost/machine.h): --machine FILE. Local: rank 0 writes. */
#ifndef SH_BENCH_POINTS_H
#define SH_BENCH_POINTS_H

#include "src/bench/rows.h"
#include "src/cost/price.h"

struct sh_run;

/* Start with {0}; freed by sh_bench_points_write(). */
struct sh_bench_points {
    struct sh_machine_point *of;
    int n, cap;
};

/* Median and spread of the rounds. A point of what is there already is left alone.
 *   call  shapes and attributes; act: the type that it computes in */
void sh_bench_points_op(struct sh_bench_points *l, const struct sh_op_call *call, enum sh_dtype act,
                        const double *seconds, int rounds);
void sh_bench_points_coll(struct sh_bench_points *l, enum sh_op_kind kind, const char *axis,
                          const struct sh_coll_place *at, double whole_bytes, const double *seconds, int rounds);
void sh_bench_points_beside(struct sh_bench_points *l, enum sh_op_kind kind, double slowdown);
/* key: of the machine file; value: the best of the rounds. */
void sh_bench_points_figure(struct sh_bench_points *l, const char *key, double value);

/* Before anything is measured: whether options->machine can be written. Errors: SH_E_USAGE, SH_E_DATA. */
sh_rc sh_bench_points_check(const struct sh_bench_options *options, const struct sh_config *cfg);

/* Into options->machine, with the ranks of a node where they compute on CPUs; nothing where it is NULL. */
sh_rc sh_bench_points_write(struct sh_bench_points *l, const struct sh_bench_options *options, const struct sh_run *r);

/* The operations of a step from the trace of rank 0, where no collective went on beside them, and how much slower they
 * were beside each kind of collective. Errors: SH_E_DATA: the file; SH_E_BUG: another program's. */
sh_rc sh_bench_points_trace(struct sh_bench_points *l, const char *path, const struct sh_program *p, int steps);

#endif
