/* What an operation of a plug-in promises, tried on odd shapes. Local. */
#ifndef SH_PLUGIN_CHECK_OP_H
#define SH_PLUGIN_CHECK_OP_H

#include "src/plugin/subject.h"

/* check: of sh_plugin_checks. holds: whether the row keeps it; if not, `wrong` says at which call. It stops there. For
 * rows that sh_plug_wrong() takes, in this order: the others need what the text says. */
struct sh_op_check {
    const char *check;
    bool brief; /* tried whenever a plug-in is opened */
    bool (*holds)(struct sh_subject *s);
};

enum { SH_OP_CHECKS = 11 };
extern const struct sh_op_check sh_op_checks[SH_OP_CHECKS];

#endif
