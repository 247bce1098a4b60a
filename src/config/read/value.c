/* Conversion between the text of a value and the field that holds it. A row of the table gives type, bounds and words;
 * its offset leads to the field. An error says what is wrong and what would have been right. */
#include "src/config/read/value.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/foreign/alias.h"
#include "src/config/read/groups.h"
#include "src/config/read/pairs.h"
#include "src/config/read/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- storing and reading the field of a row ---- */

/* The bounds of the row have been checked, so the value fits in the narrower types. */
static void store_whole(const struct sh_config_key *key, struct sh_config_state *state, int64_t value)
{
    char *field = (char *)state + key->offset;
    if (key->type == SH_KEY_BOOL)
        *(bool *)field = value != 0;
    else if (key->type == SH_KEY_INT)
        *(int *)field = (int)value;
    else
        *(int64_t *)field = value;
}

/* The field of a key that is a number, a switch or a word. */
static int64_t load_whole(const struct sh_config_key *key, const void *base)
{
    const char *field = (const char *)base + key->offset;
    if (key->type == SH_KEY_BOOL)
        return *(const bool *)field;
    return key->type == SH_KEY_INT ? *(const int *)field : *(const int64_t *)field;
}

/* ---- what would have been right, for messages ---- */

/* "a | b | c", for messages and for the help. */
const char *sh_config_value_words(const struct sh_config_key *key, char out[SH_CONFIG_WORDS_MAX])
{
    out[0] = '\0';
    for (const struct sh_config_word *w = key->words; w != NULL && w->name != NULL; w++)
        sh_str_add(out, SH_CONFIG_WORDS_MAX, " | ", w->name);
    return out;
}

/* Empty if the row has no bounds. */
const char *sh_config_value_range(const struct sh_config_key *key, char out[SH_CONFIG_NAME_MAX])
{
    out[0] = '\0';
    if (key->type == SH_KEY_UINT64)
        snprintf(out, SH_CONFIG_NAME_MAX, "0 .. %" PRIu64, UINT64_MAX); /* more digits than a double has */
    else if (key->min < key->max)
        snprintf(out, SH_CONFIG_NAME_MAX, "%.15g .. %.15g", key->min, key->max);
    return out;
}

/* With an article, for a sentence. */
static const char *type_wanted(const struct sh_config_key *key)
{
    if (key->sizes)
        return "a size like 512MiB or 4GiB";
    return key->type == SH_KEY_DOUBLE ? "a number" : "a whole number";
}

/* NULL if no word of the key is near. */
static const char *nearest_word(const struct sh_config_key *key, const char *word)
{
    int n = 0;
    while (key->words[n].name != NULL)
        n++;
    const char **names = sh_calloc((size_t)n, sizeof *names);
    for (int i = 0; i < n; i++)
        names[i] = key->words[i].name;
    const char *nearest = sh_str_nearest(word, n, names);
    free(names);
    return nearest;
}

/* The search for the nearest word starts from the canonical spelling. */
static sh_rc not_a_word(const struct sh_config_key *key, const char *text)
{
    char words[SH_CONFIG_WORDS_MAX], shown[SH_CONFIG_SHOWN], spelled[SH_CONFIG_NAME_MAX];
    const char *word = sh_config_alias_word(key->name, text, spelled), *nearest = nearest_word(key, word);
    const char *advice = sh_config_alias_advice(key->name, word);
    return sh_fail(SH_E_USAGE, "%s: '%s' is not one of %s%s%s", key->name, sh_config_text_shown(text, shown),
                   sh_config_value_words(key, words),
                   advice != NULL    ? "; "
                   : nearest != NULL ? "; nearest is "
                                     : "",
                   advice != NULL    ? advice
                   : nearest != NULL ? nearest
                                     : "");
}

/* If the key accepts words besides numbers, the message names the words too. */
static sh_rc wrong_type(const struct sh_config_key *key, const char *text)
{
    char words[SH_CONFIG_WORDS_MAX], shown[SH_CONFIG_SHOWN];
    return sh_fail(SH_E_USAGE, "%s: '%s' is not %s%s%s", key->name, sh_config_text_shown(text, shown), type_wanted(key),
                   key->words != NULL ? " or " : "", sh_config_value_words(key, words));
}

/* The message names the bounds. */
static sh_rc out_of_range(const struct sh_config_key *key, const char *text)
{
    char range[SH_CONFIG_NAME_MAX], shown[SH_CONFIG_SHOWN];
    return sh_fail(SH_E_USAGE, "%s: %s is out of range %s", key->name, sh_config_text_shown(text, shown),
                   sh_config_value_range(key, range));
}

/* ---- text to value ---- */

/* Words take precedence over numbers: "-1" may be a word. */
static bool find_word(const struct sh_config_key *key, const char *text, int64_t *value)
{
    char spelled[SH_CONFIG_NAME_MAX];
    const char *word = sh_config_alias_word(key->name, text, spelled);
    for (const struct sh_config_word *w = key->words; w != NULL && w->name != NULL; w++) {
        if (strcmp(w->name, word) != 0)
            continue;
        *value = w->value;
        return true;
    }
    return false;
}

/* Digits with an optional minus, and no leading zero: 010 is eight to some and ten to others. */
static bool is_whole(const char *text, size_t len)
{
    size_t sign = text[0] == '-' ? 1 : 0;
    size_t digits = strspn(text + sign, "0123456789");
    return digits > 0 && sign + digits == len && (digits == 1 || text[sign] != '0');
}

/* The factor of a unit of size; 0 if there is no such unit. */
static int64_t unit_factor(const char *unit)
{
    /* clang-format off */
    static const struct {
        const char *name;
        int64_t factor;
    } units[] = {
        {"", 1},      {"B", 1},        {"KiB", 1 << 10},   {"MiB", 1 << 20},      {"GiB", 1 << 30}, {"TiB", 1LL << 40},
        {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000}, {"TB", 1000000000000},
        {"K", 1000},  {"M", 1000000},  {"G", 1000000000},  {"T", 1000000000000},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(units[i].name, unit) == 0)
            return units[i].factor;
    return 0;
}

/* "4GiB" and "4 GiB": digits, blanks, then the unit. */
static int64_t factor_of(const char *text, size_t number_len)
{
    return unit_factor(text + number_len + strspn(text + number_len, " "));
}

bool sh_config_size(const char *text, int64_t *bytes)
{
    size_t number_len = strspn(text, "-0123456789");
    int64_t factor = factor_of(text, number_len);

    if (factor == 0 || !is_whole(text, number_len))
        return false;
    errno = 0;
    return !__builtin_mul_overflow(strtoll(text, NULL, 10), factor, bytes) && errno == 0;
}

/* The product is checked as a double against the bounds before it is made in integers, so that one cannot overflow: no
 * bound comes near 2^63. */
static sh_rc set_whole(const struct sh_config_key *key, const char *text, struct sh_config_state *state)
{
    size_t number_len = strspn(text, "-0123456789");
    int64_t factor = key->sizes ? factor_of(text, number_len) : 1, value;
    if (factor == 0 || !is_whole(text, key->sizes ? number_len : strlen(text)))
        return wrong_type(key, text);
    errno = 0;
    value = strtoll(text, NULL, 10);
    if (errno != 0 || (double)value * (double)factor < key->min || (double)value * (double)factor > key->max)
        return out_of_range(key, text);
    store_whole(key, state, value * factor);
    return SH_OK;
}

/* Full 64 bits, for seeds. strtoull would wrap a negative number around instead of refusing it. */
static sh_rc set_unsigned(const struct sh_config_key *key, const char *text, struct sh_config_state *state)
{
    if (!is_whole(text, strlen(text)))
        return wrong_type(key, text);
    errno = 0;
    uint64_t value = strtoull(text, NULL, 10);
    if (errno != 0 || text[0] == '-')
        return out_of_range(key, text);
    *(uint64_t *)((char *)state + key->offset) = value;
    return SH_OK;
}

/* Decimal numbers only: strtod() alone would accept nan, inf and hexadecimal, and skip leading blanks. It rounds what is
 * too near to 0, which most bounds contain. */
static sh_rc set_double(const struct sh_config_key *key, const char *text, struct sh_config_state *state)
{
    char *end, shown[SH_CONFIG_SHOWN];
    errno = 0;
    double value = strtod(text, &end);
    if (text[0] == '\0' || *end != '\0' || text[strspn(text, "+-.0123456789eE")] != '\0')
        return wrong_type(key, text);
    if (!isfinite(value) || value < key->min || value > key->max)
        return out_of_range(key, text);
    if (errno == ERANGE)
        return sh_fail(SH_E_USAGE, "%s: %s is too near to 0 for a number of 64 bits; give 0 or at least 1e-307",
                       key->name, sh_config_text_shown(text, shown));
    *(double *)((char *)state + key->offset) = value;
    return SH_OK;
}

static sh_rc check_groups(const struct sh_config_key *key, const char *text)
{
    struct sh_config_group groups[SH_CONFIG_GROUPS_MAX];
    int n;
    sh_rc rc = sh_config_groups(text, groups, &n);
    return rc == SH_OK ? SH_OK : sh_fail_prefix(rc, "%s: ", key->name);
}

/* Strings are never cut: one that does not fit is refused, since half a path is another path. */
static sh_rc set_string(const struct sh_config_key *key, const char *text, struct sh_config_state *state)
{
    char *field = (char *)state + key->offset;
    size_t len = strlen(text);
    if (len >= key->size)
        return sh_fail(SH_E_USAGE, "%s: %zu bytes, more than the %zu that fit", key->name, len, key->size - 1);
    if (sh_config_text_bad(text, len, false) != len)
        return sh_fail(SH_E_USAGE, "%s: contains control characters or is not UTF-8", key->name);
    if (key->pairs)
        SH_TRY(sh_config_pairs_check(key, text));
    if (key->groups)
        SH_TRY(check_groups(key, text));
    memset(field, 0, key->size); /* equal configurations have equal bytes */
    memcpy(field, text, len);
    return SH_OK;
}

/* YAML's ways to write null. */
static bool is_nothing(const char *text)
{
    return text[0] == '\0' || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0;
}

/* A quoted number is refused: the author meant text, but the key needs a number. */
sh_rc sh_config_value_set(const struct sh_config_key *key, const char *text, enum sh_config_style style,
                          struct sh_config_state *state)
{
    int64_t value;
    /* A key whose value was forgotten, not one that is meant to be empty. */
    if (style == SH_TEXT_PLAIN && is_nothing(text))
        return sh_fail(SH_E_USAGE, "%s: has no value%s", key->name,
                       key->type == SH_KEY_STRING ? "; write \"\" for an empty one" : "");
    if (key->type == SH_KEY_STRING)
        return set_string(key, text, state);
    if (find_word(key, text, &value)) {
        store_whole(key, state, value);
        return SH_OK;
    }
    /* Words were tried above. */
    if (key->only_words)
        return not_a_word(key, text);
    if (style == SH_TEXT_QUOTED)
        return sh_fail(SH_E_USAGE, "%s: expected %s, got a string; leave out the quotes", key->name, type_wanted(key));
    if (key->type == SH_KEY_DOUBLE)
        return set_double(key, text, state);
    return key->type == SH_KEY_UINT64 ? set_unsigned(key, text, state) : set_whole(key, text, state);
}

/* ---- value to text ---- */

/* Text in YAML's double quotes; the other characters that would need a backslash are refused when a string is set. */
static char *quoted(const char *s)
{
    /* Every character escaped, two quotes and the end. */
    char *text = sh_calloc(2 * strlen(s) + 3, 1);
    char *p = text;
    *p++ = '"';
    for (; *s != '\0'; s++) {
        if (*s == '"' || *s == '\\')
            *p++ = '\\';
        *p++ = *s;
    }
    *p = '"';
    return text;
}

/* The fewest digits that read back as the same number; 17 always do. Whole numbers stay without an exponent. */
static char *shortest(double value)
{
    char text[32];
    /* Below 1e15 a double holds every whole number exactly. */
    if (value == rint(value) && fabs(value) < 1e15)
        return sh_strfmt("%.0f", value);
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return sh_strdup(text);
}

/* A word if the value has one, so that printed configurations read as they were written. */
static char *whole_text(const struct sh_config_key *key, const struct sh_config *cfg)
{
    int64_t value = load_whole(key, cfg);
    for (const struct sh_config_word *w = key->words; w != NULL && w->name != NULL; w++)
        if (w->value == value)
            return sh_strdup(w->name);
    return sh_strfmt("%" PRId64, value);
}

/* The caller frees the text. It reads back as the same value. */
char *sh_config_value_text(const struct sh_config_key *key, const struct sh_config *cfg)
{
    const char *field = (const char *)cfg + key->offset;
    switch (key->type) {
    case SH_KEY_STRING: return quoted(field);
    case SH_KEY_DOUBLE: return shortest(*(const double *)field);
    case SH_KEY_UINT64: return sh_strfmt("%" PRIu64, *(const uint64_t *)field);
    default: return whole_text(key, cfg);
    }
}
