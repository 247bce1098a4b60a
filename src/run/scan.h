/* Scan the state of a run where it lies on a device, with kernels: only one number per place comes to the host.
 *
 *     struct sh_scan *scan = sh_scan_open(r);
 *     sh_scan_bad(scan, floats, n);  sh_scan_sum(scan, data, bytes);  ...
 *     number = sh_scan_read(scan);         in the order of the calls
 *     sh_scan_close(scan);
 *
 * For devices that have such kernels (struct sh_kernel_table); on the CPU the host scans by itself. Local. A failing
 * GPU stops the job. */
#ifndef SH_RUN_SCAN_H
#define SH_RUN_SCAN_H

#include "src/base/floats.h"
#include <stdbool.h>
#include <stdint.h>

struct sh_run;

struct sh_scan;

bool sh_scan_can(const struct sh_run *r);
struct sh_scan *sh_scan_open(const struct sh_run *r);
void sh_scan_close(struct sh_scan *scan);

void sh_scan_bad(struct sh_scan *scan, struct sh_floats x, int64_t n);   /* count numbers that are not finite */
void sh_scan_sum(struct sh_scan *scan, const void *data, int64_t bytes); /* changes with any byte of the data */
const uint64_t *sh_scan_read(struct sh_scan *scan);                      /* lent until close */

#endif
