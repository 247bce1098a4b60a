/* A configuration from its sources: defaults, a YAML file, the command line, the folder of a model, a preset. The place
 * of each key's value is kept, so that messages can point to it and a higher source can win. Problems are collected
 * until further ones would only be consequences of those found. */
#include "src/config/read/give.h"

#include "src/base/file.h"
#include "src/base/mem.h"
#include "src/config/check/check.h"
#include "src/config/foreign/alias.h"
#include "src/config/preset.h"
#include "src/config/read/groups.h"
#include "src/config/read/place.h"
#include "src/config/read/text.h"
#include "src/config/read/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The place stays SH_SOURCE_DEFAULT, which is 0, so a default never counts as given. */
static sh_rc give_defaults(struct sh_config_state *state)
{
    for (int i = 0; i < sh_config_n_keys; i++)
        if (sh_config_keys[i].def != NULL)
            SH_TRY(sh_config_value_set(&sh_config_keys[i], sh_config_keys[i].def, SH_TEXT_ARGUMENT, state));
    return SH_OK;
}

const char *sh_config_argument_pair(const char *argument)
{
    const char *end = strncmp(argument, "--", 2) == 0 ? strstr(argument, ": ") : NULL;
    return end != NULL ? end + 2 : argument;
}

/* argument: "section.key=value", perhaps after "--option: ". */
static sh_rc give_argument(struct sh_config_state *state, enum sh_config_source source, const char *argument)
{
    const char *pair = sh_config_argument_pair(argument), *equals = strchr(pair, '=');
    const struct sh_config_place place = {.source = source, .file = pair != argument ? argument : NULL};
    char name[SH_CONFIG_NAME_MAX], shown[SH_CONFIG_SHOWN];
    if (equals == NULL)
        return sh_fail(SH_E_USAGE, "--%s: has no value; write --section.key=value", sh_config_text_shown(pair, shown));
    /* A name too long to fit is cut, and then still longer than every known one. */
    snprintf(name, sizeof name, "%.*s", (int)(equals - pair), pair);
    return sh_config_give(state, place, name, equals + 1, SH_TEXT_ARGUMENT);
}

/* Notes what is wrong with them. */
static sh_rc give_arguments(struct sh_config_state *state, enum sh_config_source source, int n,
                            const char *const *arguments)
{
    for (int i = 0; i < n; i++)
        SH_TRY(sh_problems_note(&state->problems, give_argument(state, source, arguments[i])));
    return SH_OK;
}

/* Compares without regard to case. */
static bool ends_in(const char *name, const char *end)
{
    size_t length = strlen(name), part = strlen(end);
    return length >= part && strcasecmp(name + length - part, end) == 0;
}

/* JSON is a subset of YAML, so a JSON file is read; but its author may expect the keys of another program. */
static sh_rc read_text(struct sh_config_state *state, const char *text, size_t bytes, const char *name)
{
    if (ends_in(name, ".toml"))
        return sh_fail(
            SH_E_USAGE,
            "%s: TOML, but a configuration is YAML: write [training] with steps = 10 below it as training: with "
            "an indented steps: 10; doc/from-others.md has each key",
            name);
    SH_TRY(sh_problems_note(&state->problems, sh_config_yaml_read(text, bytes, name, state)));
    if (state->problems.n > 0 && ends_in(name, ".json"))
        return sh_problems_note(&state->problems,
                                sh_fail(SH_E_USAGE,
                                        "%s: JSON is read as the YAML that it also is, with Sherd's sections and keys; "
                                        "doc/from-others.md lists them next to those of others",
                                        name));
    return SH_OK;
}

static sh_config_read_folder read_folder;

/* io/foreign/hf reads such folders. It is a layer above this one, so it is called through a pointer. NULL: in tests
 * without it. */
void sh_config_folder_hook(sh_config_read_folder read)
{
    read_folder = read;
}

/* Data that read_folder() passes to its callback with each key. */
struct folder {
    struct sh_config_state *state;
    struct sh_config_place place;
};

/* Values from the command line stay, and those of a file if they are not of the model: a folder only suggests an
 * objective. */
static sh_rc give_of_folder(void *to, const char *key, const char *text)
{
    struct folder *f = to;
    if (sh_config_place_of(f->state, key)->source >= (strncmp(key, "model.", 6) ? SH_SOURCE_FILE : SH_SOURCE_ARGUMENT))
        return SH_OK;
    return sh_config_give(f->state, f->place, key, text, SH_TEXT_ARGUMENT);
}

/* A preset and a folder each describe the whole model, so only one of them may be given. `place`: [SH_CONFIG_PATH_MAX],
 * in use as long as the state. */
static sh_rc give_folder(struct sh_config_state *state, char *place)
{
    enum { LONGEST = SH_CONFIG_PATH_MAX - (int)sizeof "/config.json" };
    struct folder f = {.state = state, .place = {.source = SH_SOURCE_FOLDER, .file = place}};
    const char *path = state->cfg.hf.assets_path, *name = state->cfg.model.name;
    if (read_folder == NULL || path[0] == '\0')
        return SH_OK;
    if (name[0] != '\0' && strcmp(name, "custom") != 0)
        return sh_config_refuse(state, "model.name",
                                "a preset as well as model.hf_assets_path, given %s; give one of them",
                                sh_config_place_text(sh_config_place_of(state, "model.hf_assets_path"), place));
    /* Silently cut, the path would name another folder. */
    if (strlen(path) > LONGEST)
        return sh_config_refuse(state, "model.hf_assets_path", "%zu bytes, more than %d", strlen(path), LONGEST);
    snprintf(place, SH_CONFIG_PATH_MAX, "%.*s/config.json", LONGEST, path);
    return read_folder(&state->cfg, place, give_of_folder, &f);
}

/* A file, `text` NULL: none; options, which rank as one; and what takes precedence over them. */
struct sources {
    const char *text, *name;
    size_t bytes;
    int n_options, n_overrides;
    const char *const *options, *const *overrides;
};

/* A group by muon in a run by adamw: a run by muon, in which AdamW has all else. */
static sh_rc mix_optimizers(struct sh_config_state *state)
{
    struct sh_config_group groups[SH_CONFIG_GROUPS_MAX];
    char *text = state->cfg.optimizer.groups;
    int n;

    if (state->cfg.optimizer.name != SH_OPTIM_ADAMW)
        return SH_OK;
    SH_TRY(sh_config_groups(text, groups, &n));
    for (int i = 0; i < n; i++)
        if (groups[i].optimizer >= 0 && sh_cfg_is_muon(groups[i].optimizer)) {
            state->cfg.optimizer.name = groups[i].optimizer;
            return sh_config_groups_rest(text, sizeof state->cfg.optimizer.groups) == SH_OK
                       ? SH_OK
                       : sh_config_refuse(state, "optimizer.groups", "%s", sh_error_text());
        }
    return SH_OK;
}

/* Read all sources into *state, then derive what follows from them. */
static sh_rc fill(struct sh_config_state *state, const struct sources *s)
{
    char folder[SH_CONFIG_PATH_MAX];
    SH_TRY(give_defaults(state));
    if (s->text != NULL)
        SH_TRY(read_text(state, s->text, s->bytes, s->name));
    SH_TRY(give_arguments(state, SH_SOURCE_OPTION, s->n_options, s->options));
    SH_TRY(give_arguments(state, SH_SOURCE_ARGUMENT, s->n_overrides, s->overrides));
    SH_TRY(sh_problems_fail(&state->problems)); /* consequences of keys can be judged only if all keys are right */
    /* Aliases may name the folder, the folder takes the role of a preset, and the checks see the result of all. */
    SH_TRY(sh_config_alias_resolve(state));
    SH_TRY(give_folder(state, folder));
    SH_TRY(sh_config_preset_apply(state));
    SH_TRY(mix_optimizers(state));
    return sh_config_check(state);
}

/* *cfg is written only if everything is right: callers never see half a configuration. */
static sh_rc load(const struct sources *s, struct sh_config *cfg)
{
    /* On the heap: the paths in a configuration alone are many KB. */
    struct sh_config_state *state = sh_calloc(1, sizeof *state); /* zeroed, so that padding is defined */
    sh_rc rc = fill(state, s);
    if (rc == SH_OK)
        memcpy(cfg, &state->cfg, sizeof *cfg);
    free(state);
    return rc;
}

sh_rc sh_config_check_value(const char *key, const char *text)
{
    struct sh_config_state *state = sh_calloc(1, sizeof *state);
    sh_rc rc = sh_config_value_set(sh_config_key_find(key), text, SH_TEXT_ARGUMENT, state);
    free(state);
    return rc;
}

sh_rc sh_config_check_arguments(int n_overrides, const char *const *overrides)
{
    struct sh_config_state *state = sh_calloc(1, sizeof *state);
    sh_rc rc = give_arguments(state, SH_SOURCE_ARGUMENT, n_overrides, overrides);
    if (rc == SH_OK)
        rc = sh_problems_fail(&state->problems);
    free(state);
    return rc;
}

/* path NULL: no file. The caller frees *text, which s->text becomes. Local: each rank reads the file. */
static sh_rc read_file(const char *path, struct sources *s, char **text)
{
    if (path != NULL)
        SH_TRY(sh_read_file(path, SH_CONFIG_FILE_MAX, text, &s->bytes));
    s->text = *text;
    s->name = path;
    return SH_OK;
}

sh_rc sh_config_load(const char *path, int n_overrides, const char *const *overrides, struct sh_config *cfg)
{
    struct sources s = {.n_overrides = n_overrides, .overrides = overrides};
    char *text = NULL;
    SH_TRY(read_file(path, &s, &text));
    sh_rc rc = load(&s, cfg);
    free(text);
    return rc;
}

/* For text that does not come from a file, such as the configuration in a checkpoint. */
sh_rc sh_config_parse(const char *text, size_t bytes, const char *name, int n_overrides, const char *const *overrides,
                      struct sh_config *cfg)
{
    const struct sources s = {
        .text = text, .bytes = bytes, .name = name, .n_overrides = n_overrides, .overrides = overrides};
    if (bytes > SH_CONFIG_FILE_MAX)
        return sh_fail(SH_E_USAGE, "%s: %zu bytes of configuration, more than the %d allowed", name, bytes,
                       SH_CONFIG_FILE_MAX);
    return load(&s, cfg);
}

sh_rc sh_config_options(int n_options, const char *const *options, int n_overrides, const char *const *overrides,
                        struct sh_config *cfg)
{
    const struct sources s = {
        .n_options = n_options, .options = options, .n_overrides = n_overrides, .overrides = overrides};
    return load(&s, cfg);
}

/* Includes keys set by an alias or a folder. */
static sh_rc print_given(const struct sources *s, FILE *out)
{
    struct sh_config_state *state = sh_calloc(1, sizeof *state);
    sh_rc rc = fill(state, s);
    for (int i = 0; rc == SH_OK && i < sh_config_n_keys; i++)
        if (state->given[i].source != SH_SOURCE_DEFAULT)
            fprintf(out, "%s\n", sh_config_keys[i].name);
    free(state);
    return rc;
}

/* The keys that somebody chose, in contrast to defaults: scripts copy them to a new run. */
sh_rc sh_config_given(const char *path, int n_overrides, const char *const *overrides, FILE *out)
{
    struct sources s = {.n_overrides = n_overrides, .overrides = overrides};
    char *text = NULL;
    SH_TRY(read_file(path, &s, &text));
    sh_rc rc = print_given(&s, out);
    free(text);
    return rc;
}
