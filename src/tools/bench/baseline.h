/* Yardsticks: the simplest programs that move the same bytes. Seconds are those of all ranks together, from barrier to
 * barrier. Collective, agreed. */
#ifndef SH_BENCH_BASELINE_H
#define SH_BENCH_BASELINE_H

#include "src/base/err.h"

#include <stdint.h>

/* Like `dd bs=4M conv=fdatasync`: rank 0 writes `bytes` bytes of a new file in order. Errors: SH_E_DATA. */
sh_rc sh_baseline_write(const char *path, int64_t bytes, double *seconds);

/* Like `dd of=/dev/null bs=4M` with a cold cache: rank 0 reads the file in order. */
sh_rc sh_baseline_read(const char *path, double *seconds);

/* Like IOR: one new file; each rank writes its contiguous part with MPI_File_write_at in pieces of 16 MiB, then calls
 * MPI_File_sync. */
sh_rc sh_baseline_mpiio(const char *path, int64_t bytes, double *seconds);

/* memcpy of `bytes` bytes on each rank between two buffers whose pages exist already, by all threads. */
sh_rc sh_baseline_copy(int64_t bytes, double *seconds);

/* Flush the file to the disk and drop it from the page cache, on each node. Local. */
void sh_baseline_drop(const char *path);

#endif
