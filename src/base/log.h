/* Lines for people, on standard error. One call prints one line (or several, each with the prefix) in one write, so
 * that lines of many ranks do not mix. Numbers for programs go to metrics.jsonl, and results of commands to standard
 * output; neither uses this module. All functions are local and may be called from any thread once sh_log_set_rank has
 * been. */
#ifndef SH_BASE_LOG_H
#define SH_BASE_LOG_H

#include <stdbool.h>

/* Columns of the terminal that standard error is, without the last one; 0: it is a file or a pipe. Asked anew each
 * time, since a window may change. */
int sh_log_columns(void);

/* Whether lines may be bold or dim: on a terminal, unless NO_COLOR is set to something or TERM is dumb. */
bool sh_log_styled(void);

/* Set the rank that prints. Until it is set, the process is rank 0 of 1. */
void sh_log_set_rank(int rank, int world);

/* Printed by rank 0 only. A terminal gets lines that break between words; a file gets each line whole. */
void sh_log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Printed by every rank that calls; with the prefix "rank N: " if there is more than one rank. */
void sh_log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void sh_log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Print why the job ends, once for all ranks: an error without a rank. */
void sh_log_end(const char *text);

#endif
