/* A thread pool for a list of jobs: for transfers, several of which must be in flight to keep a disk busy, and for
 * sums. Local. */
#ifndef IO_MOVE_POOL_H
#define IO_MOVE_POOL_H

#include "src/base/err.h"

#include <stdint.h>

/* Run jobs 0 .. jobs - 1 once each, started in this order, by up to `threads` threads including the caller's; by fewer
 * if the system refuses more. Each thread lends work() its own page-aligned buffer; buffer_bytes 0: NULL. After a
 * failure no further job is started; the result is that of the lowest job that failed, with its text. Errors: those of
 * work(); SH_E_MEMORY: no buffer. */
sh_rc sh_move_pool_run(int64_t jobs, int threads, int64_t buffer_bytes,
                       sh_rc (*work)(void *arg, int64_t job, char *buffer), void *arg);

#endif
