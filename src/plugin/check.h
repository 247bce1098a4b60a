/* What a plug-in promises, tried: doc/plugins.md says what each check looks for. Local. */
#ifndef SH_PLUGIN_CHECK_H
#define SH_PLUGIN_CHECK_H

#include "include/sherd/plugin.h"
#include "kernels/shape.h"
#include "src/base/err.h"

#include <stdio.h>

enum { SH_PLUGIN_OPS = 1, SH_PLUGIN_LOSSES = 2, SH_PLUGIN_GPUS = 4 };

/* The name of a check, and what it looks for. name NULL: the end. */
struct sh_plugin_check {
    const char *name, *what;
    int of; /* what is tried: a set */
};
extern const struct sh_plugin_check sh_plugin_checks[];

/* Try all of them on each row; a line to `out` for each that fails, with the row, the check and where. Returns how many
 * failed. */
int sh_plugin_check(const struct sherd_plugin *library, FILE *out);

/* The gradient, what is read and written outside, and equal bits, on a few shapes: milliseconds. For rows that
 * sh_plug_wrong() takes. Errors: SH_E_DATA, with the first that fails. */
sh_rc sh_plugin_check_briefly(const struct sherd_plugin *library);

/* Columns of the input for one of the output, 1 or 2; 0: something else. */
int sh_plugin_columns(const struct sh_op_shape *shape);

#endif
