/* What a loss of a plug-in promises, tried. Local. */
#ifndef SH_PLUGIN_CHECK_LOSS_H
#define SH_PLUGIN_CHECK_LOSS_H

#include "include/sherd/plugin.h"

#include <stdbool.h>

enum { SH_LOSS_WRONG = 256 };

/* check: of sh_plugin_checks. holds: whether the loss keeps it; if not, wrong says where. For rows that
 * sh_plug_loss_wrong() takes. */
struct sh_loss_check {
    const char *check;
    bool brief; /* tried whenever a plug-in is opened */
    bool (*holds)(const struct sherd_loss *loss, char wrong[SH_LOSS_WRONG]);
};

enum { SH_LOSS_CHECKS = 6 };
extern const struct sh_loss_check sh_loss_checks[SH_LOSS_CHECKS];

#endif
