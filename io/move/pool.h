/* Threads that share a row of jobs: for transfers, of which several must be under way to keep a disk busy, and for
 * sums. Local. */
#ifndef IO_MOVE_POOL_H
#define IO_MOVE_POOL_H

#include "src/base/err.h"

#include <stdint.h>

/* Do jobs 0 .. jobs - 1, each once, begun in this order, by up to `threads` threads of which the caller is one. Fewer
 * when no more can be had. Each thread lends work() its own buffer, aligned to pages; buffer_bytes 0: NULL. After a
 * failure no other job is begun; the result is that of the lowest job that failed, with its text. Errors: those of
 * work(); SH_E_MEMORY: no buffer. */
sh_rc sh_move_pool_run(int64_t jobs, int threads, int64_t buffer_bytes,
                       sh_rc (*work)(void *arg, int64_t job, char *buffer), void *arg);

#endif
