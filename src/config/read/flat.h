/* A YAML text as pairs: each plain value with its path. For files of other modules that are read like a configuration;
 * libyaml stays hidden in this folder. Local. */
#ifndef SH_READ_FLAT_H
#define SH_READ_FLAT_H

#include "src/base/err.h"

#include <stddef.h>

/* A path is "product.share" in a section, "points[3].kind" and "points[3].dims[0]" in a list. */
enum { SH_FLAT_PATH = 192 };
struct sh_flat_pair {
    const char *path, *text; /* lent until the call returns */
    int line;
};

/* Call give() for every value of the text, in order, until one call fails. Empty values, such as that of a section
 * whose keys are all commented out, are skipped.
 *   name  in  stands for the file in messages
 * Errors: those of give(); SH_E_USAGE "name:line: ...": not YAML, deeper than four levels, not a mapping. */
sh_rc sh_flat_read(const char *text, size_t bytes, const char *name,
                   sh_rc (*give)(void *to, const struct sh_flat_pair *pair), void *to);

#endif
