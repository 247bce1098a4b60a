/* One value for one key, from whatever source. */
#include "src/config/read/give.h"

#include "src/config/foreign/foreign.h"
#include "src/config/read/place.h"
#include "src/config/read/text.h"

#include <string.h>

/* Advice for a key of another program takes precedence over a similar name. */
sh_rc sh_config_no_such_key(const char *name)
{
    char shown[SH_CONFIG_SHOWN], out[SH_CONFIG_ADVICE];
    const char *advice = sh_config_foreign(name, "", out), *nearest = sh_config_key_nearest(name);
    const char *dot = strchr(name, '.'), *bare;
    bool is_key = false;

    if (!nearest && dot && (bare = sh_config_bare_word(dot + 1, &is_key)) && is_key)
        nearest = bare;
    if (advice != NULL)
        return sh_fail(SH_E_USAGE, "%s: no such key; %s", sh_config_text_shown(name, shown), advice);
    return sh_fail(SH_E_USAGE, "%s: no such key%s%s", sh_config_text_shown(name, shown),
                   nearest != NULL ? "; nearest is " : "", nearest != NULL ? nearest : "");
}

/* plugin.OPERATION.NUMBER is a number of a plug-in, whose names only the plug-in knows: it is added to the text of
 * plugin.numbers, of which the last value counts. */
static sh_rc give_number(struct sh_config_state *state, struct sh_config_place place, const char *name,
                         const char *text)
{
    char *numbers = state->cfg.plugin.numbers;
    const size_t size = sizeof state->cfg.plugin.numbers, used = strlen(numbers);
    const struct sh_config_key *key = sh_config_key_find("plugin.numbers");

    /* Another name would be printed as a text that no file may have. */
    if (name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")])
        return sh_config_no_such_key(name);
    if (!text[0] || text[strspn(text, "+-.0123456789eE")])
        return sh_fail(SH_E_USAGE, "%s: '%.40s' is not a number", name, text);
    if (used + 1 + strlen(name) + 1 + strlen(text) >= size)
        return sh_fail(SH_E_USAGE, "%s: plugin.numbers would have more than %zu bytes", name, size - 1);
    snprintf(numbers + used, size - used, "%s%s=%s", used ? "," : "", name + strlen("plugin."), text);
    state->given[key - sh_config_keys] = place;
    return SH_OK;
}

/* Set one value of one key. Sources are read in rising order, so a second value from the same source is a mistake. */
static sh_rc give(struct sh_config_state *state, struct sh_config_place place, const char *name, const char *text,
                  enum sh_config_style style)
{
    char first[SH_CONFIG_PATH_MAX];
    const struct sh_config_key *key = sh_config_key_find(name);
    if (key == NULL && strncmp(name, "plugin.", 7) == 0 && strchr(name + 7, '.') != NULL)
        return give_number(state, place, name, text);
    if (key == NULL)
        return sh_config_no_such_key(name);
    struct sh_config_place *given = &state->given[key - sh_config_keys];
    if (given->source == place.source)
        return sh_fail(SH_E_USAGE, "%s: given twice, first %s", name, sh_config_place_text(given, first));
    SH_TRY(sh_config_value_set(key, text, style, state));
    *given = place;
    return SH_OK;
}

/* Like give(), with the place in front of the message. */
sh_rc sh_config_give(struct sh_config_state *state, struct sh_config_place place, const char *name, const char *text,
                     enum sh_config_style style)
{
    char prefix[SH_CONFIG_PATH_MAX];
    sh_rc rc = give(state, place, name, text, style);
    if (rc != SH_OK)
        return sh_fail_prefix(rc, "%s", sh_config_place_prefix(&place, prefix));
    return SH_OK;
}
