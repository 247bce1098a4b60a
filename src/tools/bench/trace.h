/* Reads the operations of a run from its trace. Local. */
#ifndef SH_BENCH_TRACE_H
#define SH_BENCH_TRACE_H

#include "src/tools/bench/rows.h"

/* The best rates of the machine. */
struct sh_bench_peaks {
    double flops_per_second, bytes_per_second;
};

/* Append a row for each kind of operation of rank 0 in a trace: its seconds in each of the `steps` traced steps, its
 * arithmetic and bytes per step, and its floor; and a row for each kind of collective that was waited for. Waits are
 * those in the trace's row `waits`. Layers are added up. Errors: SH_E_DATA. */
sh_rc sh_bench_trace_read(const char *path, int waits, int steps, const struct sh_bench_peaks *peaks,
                          struct sh_bench_list *out);

#endif
