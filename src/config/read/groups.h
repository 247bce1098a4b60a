/* Groups of parameters with numbers of their own, the form of optimizer.groups: "pattern=norm weight_decay=0; pattern=wte
 * lr=0.5". In a file it can also be a list of mappings. Inside src/config and for src/optim; local. */
#ifndef SH_READ_GROUPS_H
#define SH_READ_GROUPS_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum { SH_CONFIG_GROUPS_MAX = 16, SH_CONFIG_PATTERN_MAX = 128 };
#define SH_CONFIG_PATTERN_REST "." /* all that earlier groups leave, which may be nothing */

/* A number that is not given is NaN: the run's counts. */
struct sh_config_group {
    char pattern[SH_CONFIG_PATTERN_MAX]; /* POSIX extended; searched in names of tensors, and the first match counts */
    int optimizer;                       /* enum sh_cfg_optimizer; -1: the run's */
    double lr;                           /* a factor */
    double weight_decay, beta1, beta2, eps;
};

/* Read the text; returns the number of groups. Errors: SH_E_USAGE, naming the part. */
sh_rc sh_config_groups(const char *text, struct sh_config_group out[SH_CONFIG_GROUPS_MAX], int *n);

/* The word of an optimizer. */
const char *sh_config_optimizer_word(int optimizer);

/* Give what says nothing of an optimizer to adamw: groups of the text [size], and, by a last group, all others. Errors:
 * SH_E_USAGE: no room. */
sh_rc sh_config_groups_rest(char *text, size_t size);

/* Add "key=value" to the text of a list [size]; `first`: of its group. Errors: SH_E_USAGE: no room, or a blank or a
 * semicolon in either. */
sh_rc sh_config_groups_add(char *text, size_t size, const char *key, const char *value, bool first);

#endif
