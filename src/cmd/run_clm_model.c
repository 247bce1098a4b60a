/* The options of run_clm.py that choose the model: a folder with its weights, or a model that starts with random
 * ones. */
#include "src/cmd/run_clm.h"

#include "io/hf/config.h"
#include "io/hf/family.h"
#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* The defaults of a class, except values that follow from other keys, which may be given in addition. */
struct defaults {
    struct sh_clm_keys *keys;
    const struct sh_hf_family *family;
};

/* "=" in the row of a family: the value follows from other keys, like head_dim from dim and heads. */
static bool follows(const struct sh_hf_family *f, const char *key)
{
    for (int v = 0; v < SH_HF_VALUES; v++)
        if (f->absent[v] && !strcmp(f->absent[v], "=") && !strcmp(sh_hf_family_key(v), key))
            return true;
    return false;
}

/* Called with each key that the parsed file would set. */
static sh_rc take(void *to, const char *key, const char *value)
{
    const struct defaults *d = to;

    if (!follows(d->family, key))
        sh_clm_set(d->keys, key, value);
    return SH_OK;
}

/* Reads a config.json that has only model_type. */
static sh_rc set_type(const char *type, struct sh_clm_keys *keys)
{
    struct defaults d = {.keys = keys, .family = sh_hf_family_of_type(type)};
    struct sh_config *none = sh_calloc(1, sizeof *none);
    json_t *file = json_pack("{s:s}", "model_type", type);
    char *text = file ? json_dumps(file, 0) : NULL;
    sh_rc rc;

    if (text)
        rc = sh_hf_config_parse(text, strlen(text), none, "sherd run_clm: --model_type", take, &d);
    else
        rc = sh_fail(SH_E_USAGE, "sherd run_clm: --model_type: not UTF-8");
    free(text);
    json_decref(file);
    free(none);
    return rc;
}

/* Exactly one of the options must be given; --model.hf counts as one. */
static sh_rc check_one(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    static const char *const words[] = {"--model_name_or_path", "--model_name", "--config_name", "--model_type"};
    const char *first = sh_cmd_names_folder(args) ? "--model.hf" : NULL;

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!sh_cmd_option(cmd, args, words[i]))
            continue;
        if (first)
            return sh_fail(SH_E_USAGE, "sherd run_clm: %s and %s each give the whole model; give one", first, words[i]);
        first = words[i];
    }
    if (!first)
        return sh_fail(
            SH_E_USAGE,
            "sherd run_clm: which model? give --model_name_or_path DIR, a folder of transformers; from scratch, "
            "--config_name DIR or --model_type TYPE");
    return SH_OK;
}

/* --config_name gives only the shape: weights in that folder are not read. */
sh_rc sh_clm_model(const struct sh_cmd *cmd, const struct sh_cmd_args *args, struct sh_clm_keys *keys)
{
    const char *folder = sh_cmd_option(cmd, args, "--model_name_or_path"),
               *type = sh_cmd_option(cmd, args, "--model_type");
    const char *config = sh_cmd_option(cmd, args, "--config_name");

    SH_TRY(check_one(cmd, args));
    if (sh_cmd_option(cmd, args, "--config_overrides"))
        return sh_fail(SH_E_USAGE,
                       "sherd run_clm: --config_overrides is not supported; use keys of Sherd with --model_type, "
                       "such as --model.n_layers=4 --model.dim=256 --model.n_heads=8");
    folder = folder ? folder : sh_cmd_option(cmd, args, "--model_name");
    if (folder || config)
        sh_clm_set(keys, "model.hf_assets_path", folder ? folder : config);
    if (config)
        sh_clm_set(keys, "checkpoint.initial_load_in_hf", "false");
    return type ? set_type(type, keys) : SH_OK;
}
