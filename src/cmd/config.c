#include "src/cmd/cmd.h"

#include <stdlib.h>
#include <string.h>

/* Whether a folder of transformers replaces the configuration: then the last word is a key too. */
static bool is_left_out(const struct sh_cmd_args *args)
{
    char *path;

    if (!sh_cmd_names_folder(args))
        return false;
    if (sh_cmd_find_config(args->positional[args->n_positional - 1], &path) != SH_OK) {
        sh_error_clear();
        return true;
    }
    free(path);
    return false;
}

/* The configuration is the last word before the overrides; the words between it and the verb are keys. */
static struct sh_cmd_args configuration_of(const struct sh_cmd_args *args, int *n_keys)
{
    struct sh_cmd_args rest = *args;

    rest.n_positional = 0;
    *n_keys = args->n_positional - 1;
    if (*n_keys > 0 && !is_left_out(args)) {
        rest.positional[rest.n_positional++] = args->positional[args->n_positional - 1];
        --*n_keys;
    }
    return rest;
}

/* All values are found before the first is printed, so that a script gets all of them or none. */
static sh_rc get(const struct sh_cmd_args *args)
{
    char *values[SH_CMD_MAX_ARGS] = {NULL};
    struct sh_config cfg;
    int n;
    struct sh_cmd_args rest = configuration_of(args, &n);
    sh_rc rc;

    if (n < 1)
        return sh_fail(SH_E_USAGE, "sherd config get: usage: sherd config get KEY... CONFIG, or KEY... --model.hf=DIR");
    SH_TRY_OUT(sh_cmd_config(&rest, NULL, &cfg));
    for (int i = 0; i < n; i++)
        SH_TRY_OUT(sh_config_get(&cfg, args->positional[1 + i], &values[i]));
    for (int i = 0; i < n; i++)
        puts(values[i]);
out:
    for (int i = 0; i < n; i++)
        free(values[i]);
    return rc;
}

/* Only names, without values: `get` prints those, resolved. */
static sh_rc given(const struct sh_cmd_args *args)
{
    char *path;
    sh_rc rc;

    if (args->n_positional != 2)
        return sh_fail(SH_E_USAGE, "sherd config given: usage: sherd config given CONFIG");
    /* May also be the name of an example. */
    SH_TRY(sh_cmd_find_config(args->positional[1], &path));
    rc = sh_config_given(path, args->n_overrides, args->overrides, stdout);
    free(path);
    return rc;
}

/* For scripts: values go to stdout, messages to stderr. */
sh_rc sh_cmd_config_run(const struct sh_cmd *cmd, const struct sh_cmd_args *args)
{
    const char *verb = args->n_positional ? args->positional[0] : "";

    (void)cmd;
    /* Verbs are positional, so that all options belong to the configuration. */
    if (!strcmp(verb, "get"))
        return get(args);
    if (!strcmp(verb, "given"))
        return given(args);
    return sh_fail(SH_E_USAGE, "sherd config: expected get or given%s%s; see sherd config --help",
                   verb[0] ? ", not " : "", verb);
}
