/* Keys with values, and the configuration that they form. */
#include "src/tools/run_clm/clm.h"

#include "src/base/mem.h"
#include "src/config/foreign/trainer.h"

#include <stdlib.h>
#include <string.h>

static struct sh_clm_key *find(const struct sh_clm *c, const char *key)
{
    for (int i = 0; i < c->n_keys; i++)
        if (!strcmp(c->keys[i].name, key))
            return &c->keys[i];
    return NULL;
}

const char *sh_clm_get(const struct sh_clm *c, const char *key)
{
    const struct sh_clm_key *k = find(c, key);

    return k ? k->value : NULL;
}

bool sh_clm_has(const void *c, const char *key)
{
    return find(c, key) != NULL;
}

/* In the place of the first: a later stage corrects an earlier one. */
void sh_clm_set(struct sh_clm *c, const char *key, const char *value)
{
    struct sh_clm_key *k = find(c, key);

    if (!k) {
        c->keys = sh_grow(c->keys, c->n_keys, &c->most_keys, sizeof *c->keys);
        k = &c->keys[c->n_keys++];
        *k = (struct sh_clm_key){.name = sh_strdup(key)};
    }
    free(k->value);
    k->value = sh_strdup(value);
}

/* Values are texts, as in the file that they become. */
void sh_clm_set_number(struct sh_clm *c, const char *key, int64_t value)
{
    char text[32];

    snprintf(text, sizeof text, "%lld", (long long)value);
    sh_clm_set(c, key, text);
}

void sh_clm_default(struct sh_clm *c, const char *key, const char *value)
{
    if (!find(c, key))
        sh_clm_set(c, key, value);
}

sh_rc sh_clm_choose(struct sh_clm *c, const char *option, const char *key, const char *value)
{
    struct sh_clm_key *k = find(c, key);

    if (k && k->option && strcmp(k->value, value) != 0)
        return sh_clm_refuse("%s and %s contradict each other: %s is %s or %s", k->option, option, key, k->value,
                             value);
    sh_rc rc = sh_config_check_value(key, value);

    if (rc != SH_OK)
        return sh_fail_prefix(rc, "sherd run_clm: %s: ", option);
    sh_clm_set(c, key, value);
    k = find(c, key);
    free(k->option);
    k->option = sh_strdup(option);
    return SH_OK;
}

/* The given option that code made this key of: its row begins with the key. NULL: none. */
static const char *own_option(const struct sh_clm *c, const char *key)
{
    size_t length = strlen(key);

    for (int i = 0; c->cmd->options[i].name; i++) {
        const char *option = c->cmd->options[i].name;
        const struct sh_trainer_row *row = c->args->values[i] ? sh_trainer_find(option + 2, c->args->values[i]) : NULL;

        if (row && row->answer == SH_TRAINER_OWN && strcspn(row->text, ", ") == length &&
            !strncmp(row->text, key, length))
            return option;
    }
    return NULL;
}

/* With the option that set a key, so that messages name it; of one with a file, only its name. */
sh_rc sh_clm_load(struct sh_clm *c)
{
    char **pairs = sh_calloc((size_t)c->n_keys, sizeof *pairs);

    for (int i = 0; i < c->n_keys; i++) {
        const struct sh_clm_key *k = &c->keys[i];
        const char *option = k->option ? k->option : own_option(c, k->name);

        pairs[i] = sh_strfmt("%.*s%s%s=%s", option ? (int)strcspn(option, " ") : 0, option ? option : "",
                             option ? ": " : "", k->name, k->value);
    }
    sh_rc rc =
        sh_config_options(c->n_keys, (const char *const *)pairs, c->args->n_overrides, c->args->overrides, &c->cfg);

    for (int i = 0; i < c->n_keys; i++)
        free(pairs[i]);
    free(pairs);
    return rc;
}

void sh_clm_free(struct sh_clm *c)
{
    for (int i = 0; i < c->n_keys; i++) {
        free(c->keys[i].name);
        free(c->keys[i].value);
        free(c->keys[i].option);
    }
    free(c->keys);
    free(c->ignored);
}
