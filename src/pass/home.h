/* Where passes put what leaves the device's memory. Inside src/pass. */
#ifndef SH_PASS_HOME_H
#define SH_PASS_HOME_H

#include "src/pass/build.h"

/* The row of the tier below the device: the host's memory if the device has its own, else a file, which is added if the
 * program has none. */
int sh_pass_home_tier(const struct sh_build *b, struct sh_program *p);

/* The row of the move stream of that name, "in" or "out", which is added if the program has none. */
int sh_pass_moving_stream(struct sh_program *p, const char *name);

#endif
