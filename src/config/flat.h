/* A YAML text as pairs: each plain value with the path to it. For files of other modules that are read like a
 * configuration; libyaml stays behind this folder. Local. */
#ifndef SH_CONFIG_FLAT_H
#define SH_CONFIG_FLAT_H

#include "src/base/err.h"

#include <stddef.h>

/* "product.share" below a section; "points[3].kind" and "points[3].dims[0]" below a list. */
enum { SH_FLAT_PATH = 192 };
struct sh_flat_pair {
    const char *path, *text; /* lent until the call returns */
    int line;
};

/* Call give() for every value of the text in its order, until one call fails; empty values, as of a section whose keys are
 * all commented out, are left out.
 *   name  in  stands for the file in messages
 * Errors: those of give(); SH_E_USAGE "name:line: ...": no YAML, deeper than four levels, not a mapping. */
sh_rc sh_flat_read(const char *text, size_t bytes, const char *name,
                   sh_rc (*give)(void *to, const struct sh_flat_pair *pair), void *to);

#endif
