/* The options of run_clm.py that choose the model: a folder with its weights, or a model that starts with random
 * ones. */
#include "src/tools/run_clm/clm.h"

#include "io/foreign/hf/config/config.h"
#include "io/foreign/hf/config/family.h"
#include "src/base/mem.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The defaults of a class, except values that follow from other keys, which may be given in addition. */
struct defaults {
    struct sh_clm *c;
    const struct sh_hf_family *family;
    const json_t *file;
};

/* "=" in the row of a family: the value follows from other keys, like head_dim from dim and heads, unless it is in the
 * file. */
static bool follows(const struct defaults *d, const char *key)
{
    const struct sh_hf_family *f = d->family;

    for (int v = 0; v < SH_HF_VALUES; v++)
        if (f->absent[v] && !strcmp(f->absent[v], "=") && !strcmp(sh_hf_family_key(v), key))
            return !(f->key[v][0] && json_object_get(d->file, f->key[v][0])) &&
                   !(f->key[v][1] && json_object_get(d->file, f->key[v][1]));
    return false;
}

/* Called with each key that the parsed file would set. */
static sh_rc take(void *to, const char *key, const char *value)
{
    const struct defaults *d = to;

    if (!follows(d, key))
        sh_clm_set(d->c, key, value);
    return SH_OK;
}

/* overrides: "n_embd=64,n_layer=2", entries of config.json; values are numbers, true, false or words. */
static sh_rc override(json_t *file, const char *overrides)
{
    char *copy = sh_strdup(overrides), *rest = copy, *pair;
    sh_rc rc = SH_OK;

    while (rc == SH_OK && (pair = strsep(&rest, ",")) != NULL) {
        char *value = strchr(pair, '=');

        if (!value) {
            rc = sh_clm_refuse("--config_overrides: \"%s\" is not name=value", pair);
            break;
        }
        *value++ = '\0';
        json_t *number = json_loads(value, JSON_DECODE_ANY, NULL);

        if (!number)
            number = !strcasecmp(value, "true")    ? json_true()
                     : !strcasecmp(value, "false") ? json_false()
                                                   : json_string(value);
        if (json_object_set_new(file, pair, number))
            rc = sh_clm_refuse("--config_overrides: not UTF-8");
    }
    free(copy);
    return rc;
}

/* Reads a config.json that has only model_type, and the overrides. */
static sh_rc set_type(struct sh_clm *c, const char *type, const char *overrides)
{
    struct sh_config *none = sh_calloc(1, sizeof *none);
    json_t *file = json_pack("{s:s}", "model_type", type);
    struct defaults d = {.c = c, .family = sh_hf_family_of_type(type), .file = file};
    char *text = NULL;
    sh_rc rc = file ? SH_OK : sh_clm_refuse("--model_type: not UTF-8");

    if (rc == SH_OK && overrides)
        rc = override(file, overrides);
    if (rc == SH_OK && !(text = json_dumps(file, 0)))
        rc = sh_fail(SH_E_MEMORY, "sherd run_clm: --model_type: no memory");
    if (rc == SH_OK)
        rc = sh_hf_config_parse(text, strlen(text), none, "sherd run_clm: --model_type", take, &d);
    free(text);
    json_decref(file);
    free(none);
    return rc;
}

static sh_rc check_folder(const struct sh_clm *c, const char *option)
{
    const char *given = sh_clm_option(c, option);
    sh_rc rc = given && strcmp(given, "byte") != 0 ? sh_hf_config_find(given) : SH_OK;

    return rc == SH_OK ? SH_OK : sh_fail_prefix(SH_E_USAGE, "sherd run_clm: %s: ", option);
}

/* Exactly one of these must be given; --model.hf counts as one. --config_name gives only the shape: weights in that
 * folder are not read. */
sh_rc sh_clm_model(struct sh_clm *c)
{
    static const char *const words[] = {"--model_name_or_path", "--model_name", "--config_name", "--model_type"};
    enum { CONFIG = 2, TYPE };
    const char *first = sh_cmd_names_folder(c->args) ? "--model.hf" : NULL, *given = NULL;
    const char *overrides = sh_clm_option(c, "--config_overrides");

    for (int i = 0; i <= TYPE; i++) {
        given = sh_clm_option(c, words[i]);
        if (given && first)
            return sh_clm_refuse("%s and %s each give the whole model; give one", first, words[i]);
        first = given ? words[i] : first;
        if (!given || i == TYPE)
            continue;
        SH_TRY(check_folder(c, words[i]));
        sh_clm_set(c, "model.hf_assets_path", given);
        if (i == CONFIG)
            sh_clm_set(c, "checkpoint.initial_load_in_hf", "false");
    }
    if (!first)
        return sh_clm_refuse("which model? give --model_name_or_path DIR, a folder of transformers; from scratch, "
                             "--config_name DIR or --model_type TYPE");
    SH_TRY(check_folder(c, "--tokenizer_name"));
    if (overrides && !given)
        return sh_clm_refuse("--config_overrides changes the sizes of a --model_type");
    return given ? set_type(c, given, overrides) : SH_OK;
}
