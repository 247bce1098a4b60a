/* A look at the state of a run where it lies on a device, by kernels: one number a place comes to the host.
 *
 *     struct sh_look *look = sh_look_open(r);
 *     sh_look_bad(look, floats, n);  sh_look_sum(look, data, bytes);  ...
 *     number = sh_look_read(look);         in the order of the calls
 *     sh_look_close(look);
 *
 * For devices that have such kernels (struct sh_kernel_table); on the CPU the host looks itself. Local. A GPU that fails
 * stops the job. */
#ifndef SH_RUN_LOOK_H
#define SH_RUN_LOOK_H

#include "src/run/run.h"

struct sh_look;

bool sh_look_can(const struct sh_run *r);
struct sh_look *sh_look_open(const struct sh_run *r);
void sh_look_close(struct sh_look *look);

void sh_look_bad(struct sh_look *look, struct sh_floats x, int64_t n);          /* numbers that are not finite */
void sh_look_sum(struct sh_look *look, const void *data, int64_t bytes);        /* changes with any byte of them */
const uint64_t *sh_look_read(struct sh_look *look);                            /* lent until close */

#endif
