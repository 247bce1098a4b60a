#include "src/optim/groups.h"

#include "src/base/mem.h"
#include "src/config/read/groups.h"
#include "src/optim/update.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static bool has_matrix(const struct sh_program *p, int number)
{
    for (int i = 0; i < p->n_saved; i++)
        if (p->saved[i].group == number && sh_param_info(p->saved[i].role)->matrix)
            return true;
    return false;
}

/* What AdamW alone reads, in a group of matrices of which it has none. */
static sh_rc check_read(const struct sh_program *p, const struct sh_optim *by, const struct sh_config_group *g,
                        int number)
{
    bool any = false;

    if (!by || !by->finish || (isnan(g->beta1) && isnan(g->beta2) && isnan(g->eps)))
        return SH_OK;
    for (int i = 0; i < p->n_saved; i++) {
        if (p->saved[i].group != number)
            continue;
        if (!sh_optim_takes(p, SH_RUNS_MATRICES, &p->saved[i]))
            return SH_OK;
        any = true;
    }
    return !any ? SH_OK
                : sh_fail(SH_E_USAGE,
                          "optimizer.groups: pattern '%s': beta1, beta2 and eps are AdamW's, and %s updates all "
                          "that the group has; leave them out",
                          g->pattern, by->name);
}

sh_rc sh_groups_assign(struct sh_program *p, const struct sh_optim *by, const char *text)
{
    struct sh_config_group groups[SH_CONFIG_GROUPS_MAX];
    int n;

    SH_TRY(sh_config_groups(text, groups, &n));
    for (int i = 0; i < n; i++) {
        const struct sh_config_group *g = &groups[i];

        if (!assign(p, g, i + 1) && strcmp(g->pattern, SH_CONFIG_PATTERN_REST) != 0)
            return sh_fail(SH_E_USAGE,
                           "optimizer.groups: pattern '%s' is in the name of no trained tensor that an earlier "
                           "group leaves",
                           g->pattern);
        if (g->optimizer >= 0 && sh_cfg_is_muon(g->optimizer) && !has_matrix(p, i + 1))
            return sh_fail(SH_E_USAGE,
                           "optimizer.groups: pattern '%s': optimizer=%s is for matrices of products between hidden "
                           "features, and it has none; leave it out",
                           g->pattern, sh_config_optimizer_word(g->optimizer));
        sh_program_add_numbers(p, (struct sh_group_numbers){.lr = g->lr,
                                                            .weight_decay = g->weight_decay,
                                                            .beta1 = g->beta1,
                                                            .beta2 = g->beta2,
                                                            .eps = g->eps,
                                                            .adamw = g->optimizer == SH_OPTIM_ADAMW,
                                                            .pattern = i + 1});
        SH_TRY(check_read(p, by, g, i + 1));
    }
    return SH_OK;
}

void sh_groups_trim(struct sh_program *p, char *text)
{
    struct sh_config_group g[SH_CONFIG_GROUPS_MAX];
    char *copy = sh_strdup(text), *rest = copy, *part, *end = text;
    int n, number = 0;

    *end = '\0';
    while ((part = strsep(&rest, ";")) != NULL)
        if (sh_config_groups(part, g, &n) == SH_OK && n && assign(p, g, ++number))
            end += sprintf(end, "%s%s", end == text ? "" : ";", part);
    free(copy);
}
