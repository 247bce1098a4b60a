/* Lines for people, on standard error: one call is one line (or several, each with its prefix) and one write, so that lines of many ranks do not mix.
 * Numbers for machines go to metrics.jsonl, and results of commands to standard output; neither comes through here.
 * All functions are local and may be called from any thread once sh_log_set_rank has been. */
#ifndef SH_BASE_LOG_H
#define SH_BASE_LOG_H

/* Who speaks. Until it is called, this is rank 0 of 1. */
void sh_log_set_rank(int rank, int world);

/* Printed by rank 0 only. */
void sh_log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Printed by every rank that calls; with "rank N: " in front when there is more than one. */
void sh_log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void sh_log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Why the job ends, said once for all ranks: an error without a rank. */
void sh_log_end(const char *text);

#endif
