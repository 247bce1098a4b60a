/* The options that depend on nothing else become keys, by the rows of src/config/foreign/trainer.inc. The keys of the file of
 * --fsdp_config go the same way. */
#include "src/tools/run_clm/clm.h"

#include "io/json/json.h"
#include "src/base/mem.h"
#include "src/base/string/str.h"
#include "src/config/foreign/alias.h"
#include "src/config/foreign/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FILE_MAX = 1 << 20 };

static const char STRATEGY[] = "parallelism.sharding_strategy", FSDP_KEY[] = "fsdp_config.";

/* What Trainer does without being asked, unlike Sherd. */
static const char *const always[][2] = {
    {"training.mixed_precision_param", "float32"},
    {"activation_checkpoint.mode", "none"},
    {"lr_scheduler.decay_type", "linear"},
    {"lr_scheduler.min_lr_factor", "0"},
    {STRATEGY, "no_shard"},
};

const char *sh_clm_option(const struct sh_clm *c, const char *name)
{
    return sh_cmd_option(c->cmd, c->args, name);
}

/* "key=value": the name must be followed by =, since one key may be a prefix of another. */
bool sh_clm_gives(const struct sh_clm *c, const char *key)
{
    const struct sh_cmd_args *args = c->args;

    for (int i = 0; i < args->n_overrides; i++)
        if (!strncmp(args->overrides[i], key, strlen(key)) && args->overrides[i][strlen(key)] == '=')
            return true;
    return false;
}

sh_rc sh_clm_truth(const struct sh_clm *c, const char *option, bool *on)
{
    const char *given = sh_clm_option(c, option);
    int truth = given ? sh_trainer_truth(given) : 0;

    *on = truth != 0;
    return truth >= 0 ? SH_OK : sh_clm_refuse("%s takes True, False or no value, not \"%s\"", option, given);
}

/* Values are not repeated: one may be a password. */
static void ignore(struct sh_clm *c, const char *option)
{
    char *longer = sh_strfmt("%s%s, ", c->ignored ? c->ignored : "", option);

    free(c->ignored);
    c->ignored = longer;
}

/* pairs: "key=value,key=value". */
static sh_rc set_pairs(struct sh_clm *c, const char *option, const char *pairs)
{
    char *copy = sh_strdup(pairs), *rest = copy, *pair;
    sh_rc rc = SH_OK;

    while (rc == SH_OK && copy[0] && (pair = strsep(&rest, ",")) != NULL) {
        char *equals = strchr(pair, '=');

        *equals = '\0';
        rc = sh_clm_choose(c, option, pair, equals + 1);
    }
    free(copy);
    return rc;
}

/* An optimizer that no row is for has the reason that its name has in a configuration. */
static sh_rc refuse(const char *option, const struct sh_trainer_row *row, const char *value)
{
    char room[SH_CONFIG_NAME_MAX];
    const char *why =
        row->words || strcmp(row->name, "optim") != 0
            ? NULL
            : sh_config_alias_advice("optimizer.name", sh_config_alias_word("optimizer.name", value, room));

    return sh_clm_refuse("%s%s%s: %s", option, value[0] ? " " : "", value, why ? why : row->text);
}

/* option: as messages name it. A value that no row has may be several words, separated by blanks or commas, like that of
 * --fsdp. */
static sh_rc take(struct sh_clm *c, const char *option, const char *name, const char *value)
{
    const struct sh_trainer_row *row = sh_trainer_find(name, value);
    char *copy, *rest, *word;
    sh_rc rc = SH_OK;

    switch (row->answer) {
    case SH_TRAINER_KEY: return sh_clm_choose(c, option, row->text, value);
    case SH_TRAINER_SET: return set_pairs(c, option, row->text);
    case SH_TRAINER_NOTHING: ignore(c, option); return SH_OK;
    case SH_TRAINER_OWN: return SH_OK;
    case SH_TRAINER_REFUSED: break;
    }
    if (row->words || !value[strcspn(value, " ,")])
        return refuse(option, row, value);
    for (copy = rest = sh_strdup(value); rc == SH_OK && (word = strsep(&rest, " ,")) != NULL;)
        if (word[0])
            rc = take(c, option, name, word);
    free(copy);
    return rc;
}

/* The names of all keys of the file are those of the rows with its prefix. */
static sh_rc refuse_key(const char *path, const char *key)
{
    const char *names[64], *near;
    int n = 0;

    for (int i = 0; i < sh_trainer_n && n < 64; i++)
        if (!strncmp(sh_trainer_rows[i].name, FSDP_KEY, strlen(FSDP_KEY)))
            names[n++] = sh_trainer_rows[i].name + strlen(FSDP_KEY);
    near = sh_str_nearest(strncmp(key, "fsdp_", 5) ? key : key + 5, n, names);
    return sh_clm_refuse("--fsdp_config %s: unknown key: %s%s%s", path, key, near ? "; nearest is " : "",
                         near ? near : "");
}

/* Not to reshard after the forward is the sibling of a strategy that keeps parameters from forward to backward. */
static void keep_parameters(struct sh_clm *c)
{
    const char *strategy = sh_clm_get(c, STRATEGY);

    if (!strcmp(strategy, "full_shard"))
        sh_clm_set(c, STRATEGY, "shard_grad_op");
    else if (!strcmp(strategy, "hybrid_shard"))
        sh_clm_set(c, STRATEGY, "hybrid_shard_zero2");
}

static sh_rc take_key(struct sh_clm *c, const char *path, const char *key, const char *value)
{
    char *option = sh_strfmt("--fsdp_config %s: %s", path, key), *name = sh_strfmt("%s%s", FSDP_KEY, key);
    const struct sh_trainer_row *row = sh_trainer_find(name, value);
    sh_rc rc = SH_OK;

    if (!row)
        rc = refuse_key(path, key);
    else if (row->answer == SH_TRAINER_OWN)
        keep_parameters(c);
    else
        rc = take(c, option, name, value);
    free(option);
    free(name);
    return rc;
}

/* given: a path, or the object itself, as Trainer takes it. */
static sh_rc take_file(struct sh_clm *c, const char *given)
{
    json_t *file, *value;
    const char *name;
    sh_rc rc = SH_OK;

    if (given[0] == '{')
        SH_TRY(sh_json_parse(given, strlen(given), "--fsdp_config", &file));
    else
        SH_TRY(sh_json_load(given, FILE_MAX, &file));
    if (!json_is_object(file))
        rc = sh_fail(SH_E_DATA, "--fsdp_config %s: is %s, not an object", given, sh_json_is(file));
    if (rc == SH_OK)
        json_object_foreach(file, name, value)
        {
            char *text = json_is_string(value) ? sh_strdup(json_string_value(value))
                                               : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

            if (rc == SH_OK && text)
                rc = sh_problems_note(&c->problems, take_key(c, given, name, text));
            free(text);
        }
    json_decref(file);
    return rc;
}

/* Without --fsdp Trainer replicates the model (DDP). No word, True or auto_wrap alone means full_shard. */
static sh_rc take_fsdp(struct sh_clm *c)
{
    const char *given = sh_clm_option(c, "--fsdp"), *file = sh_clm_option(c, "--fsdp_config");
    bool shards = given && sh_trainer_truth(given) != 0;

    if (shards && !sh_clm_get(c, STRATEGY))
        sh_clm_set(c, STRATEGY, "full_shard");
    if (!file)
        return SH_OK;
    if (!shards)
        return sh_clm_refuse("--fsdp_config without --fsdp has no effect; add --fsdp full_shard");
    return take_file(c, file);
}

sh_rc sh_clm_words(struct sh_clm *c)
{
    for (int i = 0; c->cmd->options[i].name; i++) {
        const char *option = c->cmd->options[i].name, *value = c->args->values[i];

        /* --print-config is no option of Trainer. */
        if (value && sh_trainer_find(option + 2, value))
            SH_TRY(sh_problems_note(&c->problems, take(c, option, option + 2, value)));
    }
    SH_TRY(sh_problems_note(&c->problems, take_fsdp(c)));
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        sh_clm_default(c, always[i][0], always[i][1]);
    for (int i = 0; i < sh_trainer_n; i++)
        if (sh_trainer_rows[i].none)
            sh_clm_default(c, sh_trainer_rows[i].text, sh_trainer_rows[i].none);
    return SH_OK;
}
