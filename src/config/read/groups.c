#include "src/config/read/groups.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/words.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The numbers of a group, and their bounds. */
static const struct {
    const char *key;
    size_t at;
    double min, max;
} numbers[] = {
    {"lr", offsetof(struct sh_config_group, lr), 0, 1000},
    {"weight_decay", offsetof(struct sh_config_group, weight_decay), 0, 100},
    {"beta1", offsetof(struct sh_config_group, beta1), 0, 0.999999999},
    {"beta2", offsetof(struct sh_config_group, beta2), 0, 0.999999999},
    {"eps", offsetof(struct sh_config_group, eps), 1e-30, 1},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static const char *const optimizers[] = {
#define OPTIM(id, word, ...) [SH_OPTIM_##id] = word,
#include "src/config/optim.inc"
#undef OPTIM
};

const char *sh_config_optimizer_word(int optimizer)
{
    return optimizers[optimizer];
}

/* What other languages allow and POSIX does not would match something else. */
static sh_rc check_pattern(const char *pattern)
{
    regex_t re;

    if (strstr(pattern, "\\d") || strstr(pattern, "\\w") || strstr(pattern, "(?"))
        return sh_fail(SH_E_USAGE, "pattern '%s': write [0-9] for \\d, [A-Za-z0-9_] for \\w, ( for (?:", pattern);
    if (regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return sh_fail(SH_E_USAGE, "pattern '%s' is no extended regular expression", pattern);
    regfree(&re);
    return SH_OK;
}

static sh_rc set_pattern(struct sh_config_group *g, const char *value)
{
    if (g->pattern[0])
        return sh_fail(SH_E_USAGE, "pattern is given twice in a group; a semicolon begins the next one");
    if (!value[0] || strlen(value) >= sizeof g->pattern)
        return sh_fail(SH_E_USAGE, "a pattern has 1 to %d characters", SH_CONFIG_PATTERN_MAX - 1);
    SH_TRY(check_pattern(value));
    strcpy(g->pattern, value);
    return SH_OK;
}

static sh_rc set_number(struct sh_config_group *g, int i, const char *value)
{
    double *to = (double *)(void *)((char *)g + numbers[i].at);
    char *end;

    if (!isnan(*to))
        return sh_fail(SH_E_USAGE, "%s is given twice in a group", numbers[i].key);
    *to = strtod(value, &end);
    if (end == value || *end || !(*to >= numbers[i].min && *to <= numbers[i].max))
        return sh_fail(SH_E_USAGE, "%s=%s: not a number from %g to %g", numbers[i].key, value, numbers[i].min,
                       numbers[i].max);
    return SH_OK;
}

static sh_rc set_optimizer(struct sh_config_group *g, const char *value)
{
    char words[64] = "";

    if (g->optimizer >= 0)
        return sh_fail(SH_E_USAGE, "optimizer is given twice in a group");
    for (int i = 0; i < SH_OPTIMS; i++) {
        if (!strcmp(value, optimizers[i]))
            g->optimizer = i;
        sh_str_add(words, sizeof words, ", ", optimizers[i]);
    }
    return g->optimizer >= 0 ? SH_OK : sh_fail(SH_E_USAGE, "optimizer=%s is not one of %s", value, words);
}

static sh_rc set_field(struct sh_config_group *g, const char *key, const char *value)
{
    if (!strcmp(key, "pattern"))
        return set_pattern(g, value);
    if (!strcmp(key, "optimizer"))
        return set_optimizer(g, value);
    for (int i = 0; i < NUMBERS; i++)
        if (!strcmp(key, numbers[i].key))
            return set_number(g, i, value);
    return sh_fail(SH_E_USAGE,
                   "'%s' is not a key of a group; the keys are pattern, optimizer, lr, weight_decay, beta1, beta2, eps",
                   key);
}

/* `text` is cut at its blanks and equals signs. */
static sh_rc read_group(char *text, struct sh_config_group *g)
{
    *g = (struct sh_config_group){
        .optimizer = -1, .lr = NAN, .weight_decay = NAN, .beta1 = NAN, .beta2 = NAN, .eps = NAN};
    for (char *rest = text, *field; (field = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(field, '=');

        if (!*field)
            continue;
        if (!value)
            return sh_fail(SH_E_USAGE, "'%s' is not key=value; write pattern=TEXT lr=FACTOR", field);
        *value = '\0';
        SH_TRY(set_field(g, field, value + 1));
    }
    if (!g->pattern[0])
        return sh_fail(SH_E_USAGE, "a group has no pattern");
    return SH_OK;
}

sh_rc sh_config_groups(const char *text, struct sh_config_group out[SH_CONFIG_GROUPS_MAX], int *n)
{
    char *copy = sh_strdup(text), *rest = *copy ? copy : NULL, *part;
    sh_rc rc = SH_OK;

    *n = 0;
    while (rc == SH_OK && (part = strsep(&rest, ";")) != NULL) {
        if (!part[strspn(part, " ")])
            continue;
        rc = *n < SH_CONFIG_GROUPS_MAX ? read_group(part, &out[*n])
                                       : sh_fail(SH_E_USAGE, "more than %d groups", SH_CONFIG_GROUPS_MAX);
        ++*n;
    }
    free(copy);
    return rc;
}

sh_rc sh_config_groups_rest(char *text, size_t size)
{
    struct sh_config_group groups[SH_CONFIG_GROUPS_MAX];
    char *copy = sh_strdup(text), *rest = copy, *part;
    size_t used = 0;
    int n, i = 0;
    sh_rc rc = sh_config_groups(text, groups, &n);

    while (rc == SH_OK && used < size && (part = strsep(&rest, ";")) != NULL)
        if (part[strspn(part, " ")])
            used += (size_t)snprintf(text + used, size - used, "%s%s%s", used ? ";" : "", part,
                                     groups[i++].optimizer < 0 ? " optimizer=adamw" : "");
    if (rc == SH_OK && used < size && strcmp(groups[n - 1].pattern, SH_CONFIG_PATTERN_REST) != 0)
        used += (size_t)snprintf(text + used, size - used, "; pattern=%s optimizer=adamw", SH_CONFIG_PATTERN_REST);
    free(copy);
    if (rc == SH_OK && used >= size)
        return sh_fail(SH_E_USAGE, "more than %zu bytes", size - 1);
    return rc;
}

sh_rc sh_config_groups_add(char *text, size_t size, const char *key, const char *value, bool first)
{
    size_t used = strlen(text);

    if (strpbrk(key, " ;=") || strpbrk(value, " ;"))
        return sh_fail(SH_E_USAGE, "%s: '%s' has a blank or a semicolon", key, value);
    if (used + 2 + strlen(key) + 1 + strlen(value) >= size)
        return sh_fail(SH_E_USAGE, "more than %zu bytes", size - 1);
    snprintf(text + used, size - used, "%s%s=%s", !used ? "" : first ? "; " : " ", key, value);
    return SH_OK;
}
