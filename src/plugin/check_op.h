/* What an operation of a plug-in promises, tried on odd shapes. Local. */
#ifndef SH_PLUGIN_CHECK_OP_H
#define SH_PLUGIN_CHECK_OP_H

#include "include/sherd/plugin.h"

#include <stdbool.h>

/* A row under test, and the operation whose numbers its kernels get: itself, or the one that it is the backward of. */
struct sh_subject {
    const struct sherd_op *row, *forward, *backward; /* backward NULL: it is one */
    double number[SHERD_NUMBERS];
    bool brief;
    char wrong[256]; /* "" while nothing is */
};

/* The row's numbers are the defaults on every third shape, and others on the rest. */
void sh_subject_take_numbers(struct sh_subject *s, int size);

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
