/* Values that are lists of name=value, such as hints for MPI-IO. They are kept as one text, "a=1,b=2". Neither a name
 * nor a value may contain a comma or an equals sign, so that the text can be split again without quotes. */
#include "src/config/read/pairs.h"

#include "src/base/mem.h"
#include "src/config/read/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Letters, digits and _, at least one. */
static bool is_name(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_')
        n++;
    return n > 0 && n <= SH_CONFIG_PAIR_NAME_MAX && s[n] == '\0';
}

/* Printable ASCII, except blanks and the characters that end a value. */
static bool is_value(const char *s)
{
    size_t n = 0;
    while (isgraph((unsigned char)s[n]) && s[n] != ',' && s[n] != '=')
        n++;
    return n > 0 && n <= SH_CONFIG_PAIR_VALUE_MAX && s[n] == '\0';
}

/* Compares whole names: "cb" does not match "cb_nodes". */
static bool has_name(const char *pairs, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = pairs; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, len) == 0 && at[len] == '=')
            return true;
    return false;
}

/* Appends to `pairs`, which is unchanged after a failure. */
sh_rc sh_config_pairs_add(const struct sh_config_key *key, char pairs[SH_CONFIG_PAIRS_MAX], const char *name,
                          const char *value)
{
    char shown[SH_CONFIG_SHOWN], shown_value[SH_CONFIG_SHOWN];
    size_t used = strlen(pairs);
    if (key->files && !is_value(name))
        return sh_fail(SH_E_USAGE,
                       "%s: '%s' is not a file name of 1 .. %d characters without blank, comma and =", key->name,
                       sh_config_text_shown(name, shown), SH_CONFIG_PAIR_VALUE_MAX);
    if (!key->files && !is_name(name))
        return sh_fail(SH_E_USAGE, "%s: '%s' is not a name of at most %d letters, digits and _", key->name,
                       sh_config_text_shown(name, shown), SH_CONFIG_PAIR_NAME_MAX);
    if (!is_value(value))
        return sh_fail(SH_E_USAGE,
                       "%s: %s: '%s' is not a value of 1 .. %d characters without blank, comma and =", key->name, name,
                       sh_config_text_shown(value, shown_value), SH_CONFIG_PAIR_VALUE_MAX);
    if (has_name(pairs, name))
        return sh_fail(SH_E_USAGE, "%s: %s: given twice", key->name, name);
    /* Room for a comma, the equals sign and the final zero. */
    if (used + 1 + strlen(name) + 1 + strlen(value) >= SH_CONFIG_PAIRS_MAX)
        return sh_fail(SH_E_USAGE, "%s: more than %d bytes", key->name, SH_CONFIG_PAIRS_MAX - 1);
    snprintf(pairs + used, SH_CONFIG_PAIRS_MAX - used, "%s%s=%s", used > 0 ? "," : "", name, value);
    return SH_OK;
}

/* `part` is cut at its equals sign. */
static sh_rc check_part(const struct sh_config_key *key, char pairs[SH_CONFIG_PAIRS_MAX], char *part)
{
    char shown[SH_CONFIG_SHOWN], *equals = strchr(part, '=');
    if (equals == NULL)
        return sh_fail(SH_E_USAGE, "%s: '%s' is not name=value", key->name, sh_config_text_shown(part, shown));
    *equals = '\0';
    return sh_config_pairs_add(key, pairs, part, equals + 1);
}

/* Builds the list again in a buffer that is thrown away, so that a text gets the same checks as a mapping. */
sh_rc sh_config_pairs_check(const struct sh_config_key *key, const char *text)
{
    char pairs[SH_CONFIG_PAIRS_MAX] = "", *copy = sh_strdup(text), *rest = *copy != '\0' ? copy : NULL, *part;
    sh_rc rc = SH_OK;
    while (rc == SH_OK && (part = strsep(&rest, ",")) != NULL)
        rc = check_part(key, pairs, part);
    free(copy);
    return rc;
}
