/* Scan the state of a run where it lies: on a device with kernels, from which only one number per request comes to the
 * host, or by the threads of a CPU. The two sum differently, so ranks that compare sums all have the same kind of
 * device. Local. A failing GPU stops the job.
 *
 *     struct sh_scan *scan = sh_scan_open(r);
 *     sh_scan_bad(scan, floats, n, &bad);  sh_scan_sum(scan, data, bytes, first, &sum);  ...
 *     sh_scan_close(scan);                 now all numbers are there */
#ifndef SH_SAVE_SCAN_H
#define SH_SAVE_SCAN_H

#include "src/base/number/floats.h"
#include <stdint.h>

struct sh_run;

struct sh_scan;

struct sh_scan *sh_scan_open(const struct sh_run *r);
void sh_scan_close(struct sh_scan *scan);

/* Add to *to, until close: whether any number is not finite, as a number above 0; a number that changes with any byte
 * of the data, and with where in a unit the data begins. */
void sh_scan_bad(struct sh_scan *scan, struct sh_floats x, int64_t n, uint64_t *to);
void sh_scan_sum(struct sh_scan *scan, const void *data, int64_t bytes, int64_t first, uint64_t *to);

#endif
