/* A file without a name. Local. */
#ifndef SH_TIER_SCRATCH_H
#define SH_TIER_SCRATCH_H

#include "src/base/err.h"

#include <stdint.h>

/* Create a file without a name in `folder`, for transfers past the page cache: mode 0600, nobody else can open it or
 * give it a name, all of it reserved; gone when *fd is closed. Errors: SH_E_DATA, with the cure. */
sh_rc sh_tier_scratch_open(const char *folder, int64_t bytes, int *fd);

#endif
