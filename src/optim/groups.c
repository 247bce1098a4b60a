#include "src/optim/groups.h"

#include "src/config/read/groups.h"

#include <regex.h>

/* Returns how many tensors the group gets. */
static int assign(struct sh_program *p, const struct sh_config_group *g, int number)
{
    regex_t re;
    int n = 0;

    if (regcomp(&re, g->pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return 0;
    for (int i = 0; i < p->n_saved; i++)
        if (p->saved[i].trainable && !p->saved[i].group && regexec(&re, p->saved[i].name, 0, NULL, 0) == 0) {
            p->saved[i].group = number;
            n++;
        }
    regfree(&re);
    return n;
}

sh_rc sh_groups_assign(struct sh_program *p, const char *text)
{
    struct sh_config_group groups[SH_CONFIG_GROUPS_MAX];
    int n;

    SH_TRY(sh_config_groups(text, groups, &n));
    for (int i = 0; i < n; i++) {
        const struct sh_config_group *g = &groups[i];

        if (!assign(p, g, i + 1))
            return sh_fail(SH_E_USAGE,
                           "optimizer.groups: pattern '%s' is in the name of no trained tensor that an earlier "
                           "group leaves",
                           g->pattern);
        sh_program_add_numbers(p, (struct sh_group_numbers){.lr = g->lr,
                                                            .weight_decay = g->weight_decay,
                                                            .beta1 = g->beta1,
                                                            .beta2 = g->beta2,
                                                            .eps = g->eps,
                                                            .adamw = g->adamw,
                                                            .pattern = i + 1});
    }
    return SH_OK;
}
