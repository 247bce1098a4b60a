/* What the trace of a run says of its operations. Local. */
#ifndef SH_BENCH_TRACE_H
#define SH_BENCH_TRACE_H

#include "src/bench/rows.h"

/* What the machine does at best. */
struct sh_bench_peaks {
    double flops_per_second, bytes_per_second;
};

/* Append a row for each kind of operation of rank 0 in a trace whose row `waits` is what was waited for, with its
 * seconds in each of the `steps` traced steps, its operations and bytes a step, and its floor; and one for each kind of
 * collective that was waited for. Layers are taken together. Errors: SH_E_DATA. */
sh_rc sh_bench_trace_read(const char *path, int waits, int steps, const struct sh_bench_peaks *peaks,
                          struct sh_bench_list *out);

#endif
