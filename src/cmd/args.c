/* Arguments of a command. A word with a dot in its name sets a key of the configuration (--training.steps=10); any
 * other word with a dash is an option of the command's table; the rest are positional. Both forms, --name=value and
 * --name value, are accepted. Strings are lent from argv, except those joined here, which sh_cmd_args_free() frees. */
#include "src/cmd/cmd.h"

#include "src/base/mem.h"
#include "src/base/string/str.h"

#include "io/checkpoint/checkpoint.h"
#include "src/mesh/mesh.h"
#include "src/run/save/newest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ADVICE_BYTES = 256 };

const struct sh_cmd_option *sh_cmd_listed(const struct sh_cmd_option *option)
{
    while (option->name && !option->help)
        option++;
    return option;
}

/* Dashes within a name are underscores for many other programs, and the other way round. */
static bool same_name(const char *name, const char *word, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (name[i] != word[i] && (i < 2 || !strchr("-_", name[i]) || !strchr("-_", word[i])))
            return false;
    return true;
}

/* The row of the option, -1 if there is none. `word` need not end after `length`, since a value may follow. */
static int find_option(const struct sh_cmd *cmd, const char *word, size_t length)
{
    for (int i = 0; cmd->options[i].name; i++)
        if (strlen(cmd->options[i].name) == length && same_name(cmd->options[i].name, word, length))
            return i;
    return -1;
}

/* Advice for a word such as "--steps=10" that was meant as a key: the full name of the key, or the advice for a word of
 * another trainer. "" if there is neither. */
static void advise(const struct sh_cmd *cmd, const char *word, char out[ADVICE_BYTES])
{
    const char *advice = NULL;
    bool is_key = false;
    char *name;

    out[0] = '\0';
    if (!cmd->config || strncmp(word, "--", 2) != 0)
        return;
    name = sh_strdup(word + 2);
    name[strcspn(name, "=")] = '\0';
    advice = sh_config_bare_word(name, &is_key);
    if (advice)
        snprintf(out, ADVICE_BYTES, is_key ? "; the key is --%s=VALUE" : "; %s", advice);
    free(name);
}

/* The name that the word ends in, after a dash or an underscore: tokens for max_new_tokens. NULL: none. */
static const char *tail_of(const char *word, int n, const char *const *names)
{
    size_t length = strlen(word);

    for (int i = 0; i < n; i++) {
        size_t tail = strlen(names[i]);
        if (tail > 1 && tail < length && strchr("-_", word[length - tail - 1]) &&
            strcmp(word + length - tail, names[i]) == 0)
            return names[i];
    }
    return NULL;
}

/* The message names the key that was meant, or else the nearest option, if one is near. */
static sh_rc unknown(const struct sh_cmd *cmd, const char *word)
{
    const char *names[SH_CMD_MAX_OPTIONS], *bare = word + strspn(word, "-"), *near;
    char advice[ADVICE_BYTES], *name = sh_strfmt("%.*s", (int)strcspn(bare, "="), bare);
    int n = 0, row = 0;

    for (; cmd->options[n].name; n++)
        names[n] = cmd->options[n].name + strspn(cmd->options[n].name, "-");
    near = sh_str_nearest(name, n, names);
    if (!near)
        near = tail_of(name, n, names);
    while (near && names[row] != near)
        row++;
    free(name);
    advise(cmd, word, advice);
    if (!advice[0] && near)
        snprintf(advice, sizeof advice, "; nearest is %s", cmd->options[row].name);
    return sh_fail(SH_E_USAGE, "sherd %s: no option %s%s; see sherd %s --help", cmd->name, word, advice, cmd->name);
}

/* `word` must live as long as args. */
static sh_rc add_override(struct sh_cmd_args *args, const char *word)
{
    if (args->n_overrides == SH_CMD_MAX_ARGS)
        return sh_fail(SH_E_USAGE, "more than %d arguments that set a key", SH_CMD_MAX_ARGS);
    args->overrides[args->n_overrides++] = word;
    return SH_OK;
}

/* Like add_override(), for a text that args own from now on. */
static sh_rc add_joined(struct sh_cmd_args *args, char *text)
{
    sh_rc rc = add_override(args, text);

    if (rc == SH_OK)
        args->joined[args->n_joined++] = text;
    else
        free(text);
    return rc;
}

/* Whether the next word can be the value of this one; a value that begins like an option, with two dashes and not more,
 * must be given with an equals sign. */
static bool has_value(int argc, char **argv, int i)
{
    return i + 1 < argc && (strncmp(argv[i + 1], "--", 2) != 0 || argv[i + 1][2] == '-');
}

/* "--section.key=value" or "--section.key value" becomes "section.key=value". Moves *i past what it takes. */
static sh_rc take_override(int argc, char **argv, int *i, struct sh_cmd_args *args)
{
    const char *word = argv[*i] + 2;

    if (strchr(word, '='))
        return add_override(args, word);
    if (!has_value(argc, argv, *i))
        return sh_fail(SH_E_USAGE, "--%s needs a value: --%s=VALUE", word, word);
    return add_joined(args, sh_strfmt("%s=%s", word, argv[++*i]));
}

/* An option may set one key to its value, another to a fixed value, or both. Messages about them name the option. */
static sh_rc set_keys(const struct sh_cmd_option *option, const char *value, struct sh_cmd_args *args)
{
    if (option->key)
        SH_TRY(add_joined(args, sh_strfmt("%s: %s=%s", option->name, option->key, value)));
    return option->also ? add_joined(args, sh_strfmt("%s: %s", option->name, option->also)) : SH_OK;
}

/* The value of an option in the following words, which *i moves past. */
static const char *take_words(const struct sh_cmd_option *option, int argc, char **argv, int *i,
                              struct sh_cmd_args *args)
{
    const char *value = argv[++*i];

    while (strstr(option->value, "...") && has_value(argc, argv, *i)) {
        char *longer = sh_strfmt("%s,%s", value, argv[++*i]);

        if (args->n_joined && value == args->joined[args->n_joined - 1])
            free(args->joined[--args->n_joined]);
        value = args->joined[args->n_joined++] = longer;
    }
    return value;
}

/* values[row] is "" for an option without a value, so that NULL always means "not given". A value that begins with --
 * needs the equals sign; otherwise it would be the next option. */
static sh_rc take_option(const struct sh_cmd *cmd, int argc, char **argv, int *i, struct sh_cmd_args *args)
{
    const char *word = argv[*i], *equals = strchr(word, '=');
    int row = find_option(cmd, word, strcspn(word, "="));
    const struct sh_cmd_option *option = row < 0 ? NULL : &cmd->options[row];

    if (!option) {
        /* What follows is most likely its value, and no problem of its own. */
        *i += !equals && has_value(argc, argv, *i);
        return unknown(cmd, word);
    }
    if (!option->value && equals)
        return sh_fail(SH_E_USAGE, "sherd %s: %s takes no value", cmd->name, option->name);
    bool without = !option->value || (option->value[0] == '[' && !equals && !has_value(argc, argv, *i));

    if (!without && !equals && !has_value(argc, argv, *i))
        return sh_fail(SH_E_USAGE, "sherd %s: %s needs a value: %s %s", cmd->name, word, word, option->value);
    const char *value = without ? "" : equals ? equals + 1 : take_words(option, argc, argv, i, args);

    /* Refused even if both are equal: more often than not the second is a mistake. */
    if (args->values[row])
        return sh_fail(SH_E_USAGE, "sherd %s: %s is given twice", cmd->name, option->name);
    if (!without && !value[0])
        return sh_fail(SH_E_USAGE, "sherd %s: %s is given an empty value", cmd->name, option->name);
    args->values[row] = value;
    return set_keys(option, option->value ? value : NULL, args);
}

/* An option of the command takes precedence, should one ever have a dot in its name. */
static bool is_override(const struct sh_cmd *cmd, const char *word)
{
    size_t name = strcspn(word, "=");

    return cmd->config && !strncmp(word, "--", 2) && memchr(word, '.', name) && find_option(cmd, word, name) < 0;
}

/* One word, and its value if that is the next word. A single dash is an argument. */
static sh_rc take_word(const struct sh_cmd *cmd, int argc, char **argv, int *i, struct sh_cmd_args *args)
{
    const char *word = argv[*i];

    if (is_override(cmd, word))
        return take_override(argc, argv, i, args);
    if (word[0] == '-' && word[1])
        return take_option(cmd, argc, argv, i, args);
    /* An empty word is usually a shell variable that was not set. */
    if (!word[0])
        return sh_fail(SH_E_USAGE, "sherd %s: argument %d is empty", cmd->name, *i);
    if (args->n_positional == SH_CMD_MAX_ARGS)
        return sh_fail(SH_E_USAGE, "sherd %s: more than %d arguments", cmd->name, SH_CMD_MAX_ARGS);
    args->positional[args->n_positional++] = word;
    return SH_OK;
}

/* Only the form is checked here; the command knows how many positional arguments it takes. After a problem it does not
 * run, so wrong keys are named now. */
sh_rc sh_cmd_parse(const struct sh_cmd *cmd, int argc, char **argv, struct sh_cmd_args *args)
{
    *args = (struct sh_cmd_args){0};
    for (int i = 1; i < argc; i++)
        SH_TRY(sh_problems_note(&args->problems, take_word(cmd, argc, argv, &i, args)));
    if (cmd->collects || args->problems.n == 0)
        return SH_OK;
    SH_TRY(sh_problems_note(&args->problems, sh_config_check_arguments(args->n_overrides, args->overrides)));
    return sh_problems_fail(&args->problems);
}

/* Also needed after a failed parse. */
void sh_cmd_args_free(struct sh_cmd_args *args)
{
    for (int i = 0; i < args->n_joined; i++)
        free(args->joined[i]);
}

/* NULL: not given. The name must be in the table of the command. */
const char *sh_cmd_option(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name)
{
    return args->values[find_option(cmd, name, strlen(name))];
}

/* *out is `none` if the option was not given. Trailing letters are refused: strtoll() alone would read "10k" as 10. */
sh_rc sh_cmd_whole(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, int64_t min, int64_t max,
                   int64_t none, int64_t *out)
{
    const char *text = sh_cmd_option(cmd, args, name);
    char *end;

    *out = none;
    if (!text)
        return SH_OK;
    /* strtoll() reports overflow only through errno. */
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (end == text || *end || errno || *out < min || *out > max)
        return sh_fail(SH_E_USAGE, "sherd %s: %s must be a whole number from %lld to %lld, not \"%s\"", cmd->name, name,
                       (long long)min, (long long)max, text);
    return SH_OK;
}

sh_rc sh_cmd_state(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char **state)
{
    const char *word = sh_cmd_option(cmd, args, "--state");

    *state = word && strcmp(word, "model") != 0 ? word : NULL;
    if (!*state || strcmp(word, "ema") == 0)
        return SH_OK;
    return sh_fail(SH_E_USAGE, "sherd %s: --state is model or ema, the average of optimizer.ema_decay, not \"%s\"",
                   cmd->name, word);
}

sh_rc sh_cmd_bytes(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, int64_t min, int64_t max,
                   int64_t none, int64_t *out)
{
    const char *text = sh_cmd_option(cmd, args, name);

    *out = none;
    if (!text || (sh_config_size(text, out) && *out >= min && *out <= max))
        return SH_OK;
    return sh_fail(SH_E_USAGE, "sherd %s: %s must be a size like 64MiB, from %lld to %lld bytes, not \"%s\"", cmd->name,
                   name, (long long)min, (long long)max, text);
}

sh_rc sh_cmd_number(const struct sh_cmd *cmd, const struct sh_cmd_args *args, const char *name, double min, double max,
                    double none, double *out)
{
    const char *text = sh_cmd_option(cmd, args, name);
    char *end;

    *out = none;
    if (!text)
        return SH_OK;
    errno = 0;
    *out = strtod(text, &end);
    /* Written so that NaN fails too: every comparison with it is false. A number too near to 0 was rounded. */
    if (end == text || *end || errno == ERANGE || !(*out >= min && *out <= max))
        return sh_fail(SH_E_USAGE, "sherd %s: %s must be a number from %g to %g, not \"%s\"", cmd->name, name, min, max,
                       text);
    return SH_OK;
}

/* A file must not declare itself trusted, so its configuration is not consulted here. */
static enum sh_cfg_trust trust_of(const struct sh_cmd_args *args)
{
    static const char key[] = "checkpoint.trust=";
    enum sh_cfg_trust trust = SH_TRUST_OWNER;

    for (int i = 0; i < args->n_overrides; i++) {
        const char *pair = sh_config_argument_pair(args->overrides[i]);

        if (!strncmp(pair, key, strlen(key)))
            trust = !strcmp(pair + strlen(key), "any") ? SH_TRUST_ANY : SH_TRUST_OWNER;
    }
    return trust;
}

/* To look at a checkpoint runs no code that only the checkpoint names. */
static sh_rc check_plugins(const struct sh_cmd_args *args, const char *checkpoint, const struct sh_config *cfg)
{
    static const char key[] = "plugin.files=";

    for (int i = 0; i < args->n_overrides; i++)
        if (!strncmp(sh_config_argument_pair(args->overrides[i]), key, strlen(key)))
            return SH_OK;
    if (!cfg->plugin.files[0])
        return SH_OK;
    return sh_fail(SH_E_USAGE,
                   "%s was made with plug-ins, whose code would run here: give --plugin.files=%s, or your copy",
                   checkpoint, cfg->plugin.files);
}

/* The owner of the file is checked before anything in it is read. */
static sh_rc config_of_checkpoint(const struct sh_cmd_args *args, const char *checkpoint, struct sh_config *cfg)
{
    struct sh_ckpt_meta meta = {0};
    char *name = sh_strfmt("%s (its configuration)", checkpoint);
    sh_rc rc;

    rc = sh_ckpt_trusted(checkpoint, trust_of(args));
    if (rc == SH_OK)
        rc = sh_ckpt_read_meta(checkpoint, &meta);
    if (rc == SH_OK)
        rc = sh_config_parse(meta.config, strlen(meta.config), name, args->n_overrides, args->overrides, cfg);
    if (rc == SH_OK)
        rc = check_plugins(args, checkpoint, cfg);
    if (rc == SH_OK)
        cfg->checkpoint.trust = trust_of(args);
    sh_ckpt_meta_free(&meta);
    free(name);
    return rc;
}

/* A folder of transformers describes the whole model. */
bool sh_cmd_names_folder(const struct sh_cmd_args *args)
{
    for (int i = 0; i < args->n_overrides; i++)
        if (!strncmp(args->overrides[i], "model.hf=", 9) || !strncmp(args->overrides[i], "model.hf_assets_path=", 21))
            return true;
    return false;
}

/* The sources, in this order: a file or an example, the checkpoint, a folder of transformers; without any, a message
 * that names them. Overrides of the command line are applied on top. */
sh_rc sh_cmd_config(const struct sh_cmd_args *args, const char *checkpoint, struct sh_config *cfg)
{
    char *path;
    sh_rc rc;

    if (args->n_positional > 1)
        return sh_fail(SH_E_USAGE, "only one configuration file is allowed, not %s as well%s%s", args->positional[1],
                       strchr(args->positional[1], '=') ? "; a key begins with dashes: --" : "",
                       strchr(args->positional[1], '=') ? args->positional[1] : "");
    if (!args->n_positional && checkpoint)
        return config_of_checkpoint(args, checkpoint, cfg);
    if (!args->n_positional && sh_cmd_names_folder(args))
        return sh_config_load(NULL, args->n_overrides, args->overrides, cfg);
    if (!args->n_positional)
        return sh_fail(SH_E_USAGE,
                       "which configuration? give a CONFIG.yaml, an example's name such as gpt2-124m, or a folder "
                       "of transformers with --model.hf=DIR");
    SH_TRY(sh_cmd_find_config(args->positional[0], &path));
    rc = sh_config_load(path, args->n_overrides, args->overrides, cfg);
    free(path);
    return rc;
}

sh_rc sh_cmd_set(struct sh_cmd_args *args, const char *pair)
{
    size_t name = strcspn(pair, "=") + 1;
    int k = 0;

    while (k < args->n_overrides && strncmp(sh_config_argument_pair(args->overrides[k]), pair, name) != 0)
        k++;
    if (k == SH_CMD_MAX_ARGS)
        return sh_fail(SH_E_USAGE, "more than %d keys", SH_CMD_MAX_ARGS);
    args->overrides[k] = pair;
    args->n_overrides = k == args->n_overrides ? k + 1 : args->n_overrides;
    return SH_OK;
}

/* Collective: rank 0 looks for the newest file, and all ranks get the same path, which the caller frees. */
sh_rc sh_cmd_checkpoint(const struct sh_cmd *cmd, const struct sh_cmd_args *args, char **path)
{
    const char *given = sh_cmd_option(cmd, args, "--checkpoint");

    if (!given)
        return sh_agree(sh_fail(
            SH_E_USAGE, "sherd %s: which model? give --checkpoint PATH, a file or the folder of a run", cmd->name));
    return sh_newest_agree("--checkpoint", given, path);
}
