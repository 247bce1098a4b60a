/* Keys with values, and the YAML file that they form. */
#include "src/cmd/run_clm.h"

#include "src/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* The last value of a key counts, in the place of the first: a later stage corrects an earlier one. */
void sh_clm_set(struct sh_clm_keys *keys, const char *key, const char *value)
{
    int i = 0;

    while (i < keys->n && strcmp(keys->key[i], key) != 0)
        i++;
    if (i == keys->n)
        keys->n++;
    else
        free(keys->value[i]);
    keys->key[i] = key;
    keys->value[i] = sh_strdup(value);
}

/* Values are texts, as in the file that they become. */
void sh_clm_set_number(struct sh_clm_keys *keys, const char *key, int64_t value)
{
    char *text = sh_strfmt("%lld", (long long)value);

    sh_clm_set(keys, key, text);
    free(text);
}

void sh_clm_free(struct sh_clm_keys *keys)
{
    for (int i = 0; i < keys->n; i++)
        free(keys->value[i]);
    keys->n = 0;
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

/* Length of "section.", dot included. */
static size_t section_of(const char *key)
{
    return strcspn(key, ".") + 1;
}

/* The dot is compared too: "model." is not a prefix of "models.". */
static bool same_section(const char *a, const char *b)
{
    return section_of(a) == section_of(b) && !strncmp(a, b, section_of(a));
}

/* All keys of the section of key `first`, unless it was printed with an earlier one. */
static void print_section(FILE *out, const struct sh_clm_keys *keys, int first)
{
    size_t length = section_of(keys->key[first]);

    for (int i = 0; i < first; i++)
        if (same_section(keys->key[i], keys->key[first]))
            return;
    fprintf(out, "%.*s:\n", (int)length - 1, keys->key[first]);
    for (int i = first; i < keys->n; i++)
        if (same_section(keys->key[i], keys->key[first])) {
            fprintf(out, "  %s: ", keys->key[i] + length);
            print_value(out, keys->value[i]);
            fputc('\n', out);
        }
}

/* Grouped by sections, because YAML allows each only once, in the order in which they first occurred. */
char *sh_clm_yaml(const struct sh_clm_keys *keys)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = sh_memstream(&text, &bytes);

    for (int i = 0; i < keys->n; i++)
        print_section(out, keys, i);
    fclose(out);
    return text;
}
