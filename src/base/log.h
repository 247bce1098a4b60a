/* Lines for people, on standard error. One call prints one line (or several, each with the prefix) in one write, so
 * that lines of many ranks do not mix. Numbers for programs go to metrics.jsonl, and results of commands to standard
 * output; neither uses this module. All functions are local and may be called from any thread once sh_log_set_rank has
 * been. */
#ifndef SH_BASE_LOG_H
#define SH_BASE_LOG_H

/* Set the rank that prints. Until it is set, the process is rank 0 of 1. */
void sh_log_set_rank(int rank, int world);

/* Printed by rank 0 only. */
void sh_log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Printed by every rank that calls; with the prefix "rank N: " if there is more than one rank. */
void sh_log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void sh_log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Print why the job ends, once for all ranks: an error without a rank. */
void sh_log_end(const char *text);

#endif
