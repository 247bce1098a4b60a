/* The problems that a start finds in what it was given, collected so that one start reports all of them. Local. */
#ifndef SH_BASE_PROBLEMS_H
#define SH_BASE_PROBLEMS_H

#include "src/base/err.h"

#include <stddef.h>

/* One line each; zeroed at the start. */
enum { SH_PROBLEMS_MAX = 40, SH_PROBLEMS_BYTES = 7680 };
struct sh_problems {
    int n, shown;
    size_t used;
    char text[SH_PROBLEMS_BYTES];
};

/* Note a usage error, whose text may have several lines, and return SH_OK, so that checking continues. Any other result
 * is returned unchanged. */
sh_rc sh_problems_note(struct sh_problems *p, sh_rc rc);

/* Fail with SH_E_USAGE and the noted lines, at most SH_PROBLEMS_MAX and a count of the rest; SH_OK if there are
 * none. */
sh_rc sh_problems_fail(const struct sh_problems *p);

#endif
