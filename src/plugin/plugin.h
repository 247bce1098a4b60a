/* Plug-ins: shared libraries with operations of a user (include/sherd/plugin.h, doc/plugins.md). A configuration names
 * their files; nothing is searched. A file is opened once in a process and never closed.
 *
 * A plug-in is code with the user's rights, so who could have written its file is checked before it is opened, as for a
 * checkpoint. All local; ranks compare sh_plugin_sum(). */
#ifndef SH_PLUGIN_PLUGIN_H
#define SH_PLUGIN_PLUGIN_H

#include "include/sherd/plugin.h"
#include "src/config/config.h"

#include <stdint.h>

/* An open file; `path` without links. */
struct sh_plugin {
    const struct sherd_plugin *library;
    char *path;
    uint64_t sum; /* XXH3 of its bytes */
};

/* Open a file, and compare the headers that it was compiled with. Errors: SH_E_DATA: not trusted, no library, no
 * plug-in; SH_E_USAGE: other headers, with both. */
sh_rc sh_plugin_read(const char *path, enum sh_cfg_trust trust, struct sh_plugin *out);

/* Open what plugin.files names, with the short checks (check.h); make their operations kinds of programs, with the
 * numbers of plugin.numbers; and check that model.ffn_op and objective.plugin are among them and fit. Call it before a program is
 * made; again, it only takes the numbers. `gpu`: each operation that the model uses must have a cuda kernel. Errors:
 * those of sh_plugin_read(); SH_E_USAGE, naming the key. */
sh_rc sh_plugin_open(const struct sh_config *cfg, bool gpu);

/* What is open, for comparisons: a sum over all files, 0 if there are none; and as text, "clamped.so 0123456789abcdef",
 * which is freed with free(), NULL if there are none. */
uint64_t sh_plugin_sum(void);
char *sh_plugin_text(void);

#endif
