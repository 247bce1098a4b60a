/* Keys with values, and the YAML file that they form. */
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
        return sh_fail(SH_E_USAGE, "sherd run_clm: %s and %s contradict each other: %s is %s or %s", k->option, option,
                       key, k->value, value);
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

/* Of an option with a file, only the name. */
char **sh_clm_pairs(const struct sh_clm *c)
{
    char **pairs = sh_calloc((size_t)c->n_keys + 1, sizeof *pairs);

    for (int i = 0; i < c->n_keys; i++) {
        const struct sh_clm_key *k = &c->keys[i];
        const char *option = k->option ? k->option : own_option(c, k->name);

        pairs[i] = sh_strfmt("%.*s%s%s=%s", option ? (int)strcspn(option, " ") : 0, option ? option : "",
                             option ? ": " : "", k->name, k->value);
    }
    return pairs;
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

/* In double quotes, except for words that YAML reads unchanged. */
static void print_value(FILE *out, const char *value)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";

    if (value[0] && value[0] != '-' && !value[strspn(value, plain)]) {
        fputs(value, out);
        return;
    }
    fputc('"', out);
    for (const char *c = value; *c; c++)
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if ((unsigned char)*c < ' ')
            fprintf(out, "\\x%02x", (unsigned)*c);
        else
            fputc(*c, out);
    fputc('"', out);
}

/* The dot is compared too: "model." is not a prefix of "models.". */
static bool same_section(const char *a, const char *b)
{
    return !strncmp(a, b, strcspn(a, ".") + 1);
}

/* All keys of the section of key `first`, unless it was printed with an earlier one. */
static void print_section(FILE *out, const struct sh_clm *c, int first)
{
    int length = (int)strcspn(c->keys[first].name, ".");

    for (int i = 0; i < first; i++)
        if (same_section(c->keys[i].name, c->keys[first].name))
            return;
    fprintf(out, "%.*s:\n", length, c->keys[first].name);
    for (int i = first; i < c->n_keys; i++)
        if (same_section(c->keys[i].name, c->keys[first].name)) {
            fprintf(out, "  %s: ", c->keys[i].name + length + 1);
            print_value(out, c->keys[i].value);
            fputc('\n', out);
        }
}

/* Grouped by sections, because YAML allows each only once, in the order in which they first occurred. */
char *sh_clm_yaml(const struct sh_clm *c)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = sh_memstream(&text, &bytes);

    for (int i = 0; i < c->n_keys; i++)
        print_section(out, c, i);
    fclose(out);
    return text;
}
