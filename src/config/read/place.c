#include "src/config/read/place.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* `name` must be a key: it comes from source code, not from a user. */
struct sh_config_place *sh_config_place_of(struct sh_config_state *state, const char *name)
{
    return &state->given[sh_config_key_find(name) - sh_config_keys];
}

/* The option in front of an argument that it stands for. */
static int option_length(const struct sh_config_place *place)
{
    return (int)strcspn(place->file, ":");
}

/* An option may also be a default of the command, which has no name. */
bool sh_config_place_typed(const struct sh_config_place *place)
{
    return place->source == SH_SOURCE_ARGUMENT || (place->source == SH_SOURCE_OPTION && place->file != NULL);
}

/* In front of a message: "file.yaml:12: ", "--" for an argument, nothing for a default. */
const char *sh_config_place_prefix(const struct sh_config_place *place, char out[SH_CONFIG_PATH_MAX])
{
    if (place->source == SH_SOURCE_FILE)
        snprintf(out, SH_CONFIG_PATH_MAX, "%s:%d: ", place->file, place->line);
    else if (place->source == SH_SOURCE_FOLDER)
        snprintf(out, SH_CONFIG_PATH_MAX, "%s: ", place->file);
    else if (place->file != NULL)
        snprintf(out, SH_CONFIG_PATH_MAX, "%.*s: ", option_length(place), place->file);
    else
        strcpy(out, place->source == SH_SOURCE_ARGUMENT ? "--" : "");
    return out;
}

/* For use within a sentence: "given at file.yaml:12". */
const char *sh_config_place_text(const struct sh_config_place *place, char out[SH_CONFIG_PATH_MAX])
{
    if (place->source == SH_SOURCE_FILE)
        snprintf(out, SH_CONFIG_PATH_MAX, "at %s:%d", place->file, place->line);
    else if (place->source == SH_SOURCE_FOLDER)
        snprintf(out, SH_CONFIG_PATH_MAX, "in %s", place->file);
    else if (place->file != NULL)
        snprintf(out, SH_CONFIG_PATH_MAX, "by %.*s", option_length(place), place->file);
    else
        strcpy(out, place->source == SH_SOURCE_ARGUMENT ? "on the command line" : "by default");
    return out;
}

/* The usual form of a message: where, which key, what is wrong and what to do. */
sh_rc sh_config_refuse(struct sh_config_state *state, const char *name, const char *fmt, ...)
{
    char prefix[SH_CONFIG_PATH_MAX], text[SH_CONFIG_PATH_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sh_config_place_prefix(sh_config_place_of(state, name), prefix);
    return sh_fail(SH_E_USAGE, "%s%s: %s", prefix, name, text);
}
