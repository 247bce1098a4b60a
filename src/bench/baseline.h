/* Yardsticks: the plainest programs that move the same bytes. Seconds of all ranks together: from a barrier to a
 * barrier. Collective, agreed. */
#ifndef SH_BENCH_BASELINE_H
#define SH_BENCH_BASELINE_H

#include "src/base/err.h"

#include <stdint.h>

/* As `dd bs=4M conv=fdatasync`: rank 0 writes `bytes` bytes of a new file in order. Errors: SH_E_DATA. */
sh_rc sh_baseline_write(const char *path, int64_t bytes, double *seconds);

/* As `dd of=/dev/null bs=4M`, from the disk: rank 0 reads the file in order. */
sh_rc sh_baseline_read(const char *path, double *seconds);

/* As IOR: one new file, each rank its contiguous part by MPI_File_write_at in pieces of 16 MiB, then MPI_File_sync. */
sh_rc sh_baseline_mpiio(const char *path, int64_t bytes, double *seconds);

/* memcpy of `bytes` bytes on each rank between two buffers that have their pages, by all threads. */
sh_rc sh_baseline_copy(int64_t bytes, double *seconds);

/* Have the file on the disk and out of the page cache, on each node. Local. */
void sh_baseline_drop(const char *path);

#endif
