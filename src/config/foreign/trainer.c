#include "src/config/foreign/trainer.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

const struct sh_trainer_row sh_trainer_rows[] = {
#define KEY(name, value, key, help) {name, SH_TRAINER_KEY, NULL, key, NULL},
#define DEFAULT(name, value, key, none) {name, SH_TRAINER_KEY, NULL, key, none},
#define OWN(name, value, key, help) {name, SH_TRAINER_OWN, NULL, key, NULL},
#define CHOICE(name, value, text, help) {name, SH_TRAINER_REFUSED, NULL, text, NULL},
#define NOTHING(name) {name, SH_TRAINER_NOTHING, NULL, NULL, NULL},
#define IF(name, words, answer, text) {name, SH_TRAINER_##answer, words, text, NULL},
#include "src/config/foreign/trainer.inc"
};
const int sh_trainer_n = sizeof sh_trainer_rows / sizeof sh_trainer_rows[0];

/* Whether the word is one of the list, which is separated by |. */
static bool is_listed(const char *list, const char *word, size_t length)
{
    for (const char *at = list; *at; at += strcspn(at, "|"), at += *at == '|')
        if (strcspn(at, "|") == length && !strncasecmp(at, word, length))
            return true;
    return false;
}

/* The same, where *part* stands for all words with that part. */
static bool is_in(const char *list, const char *word)
{
    for (const char *at = list; *at; at += strcspn(at, "|"), at += *at == '|')
        for (const char *from = word; *at == '*' && *from; from++)
            if (!strncasecmp(at + 1, from, strcspn(at + 1, "*")))
                return true;
    return is_listed(list, word, strlen(word));
}

int sh_trainer_truth(const char *word)
{
    if (!word[0] || is_listed("true|t|yes|y|1", word, strlen(word)))
        return 1;
    return is_listed("false|f|no|n|0", word, strlen(word)) ? 0 : -1;
}

/* A row for "true" is for all words that are true. Without a value it says most, if it says anything. */
static bool holds(const struct sh_trainer_row *row, const char *value)
{
    if (!value)
        return !strcmp(row->words, "true") && row->text && row->text[0];
    int truth = sh_trainer_truth(value);

    return is_in(row->words, value) || (truth == 1 && is_listed(row->words, "true", 4)) ||
           (truth == 0 && is_listed(row->words, "false", 5));
}

/* A row for this value comes before the row for the others, wherever they are. */
static const struct sh_trainer_row *find(const char *name, const char *value)
{
    const struct sh_trainer_row *any = NULL;

    for (int i = 0; i < sh_trainer_n; i++) {
        const struct sh_trainer_row *row = &sh_trainer_rows[i];

        if (strcmp(row->name, name) != 0)
            continue;
        if (!row->words)
            any = row;
        else if (holds(row, value))
            return row;
    }
    return any;
}

const struct sh_trainer_row *sh_trainer_find(const char *name, const char *value)
{
    static const char section[] = "fsdp_config.";
    const struct sh_trainer_row *row = find(name, value);
    const char *key = strncmp(name, section, sizeof section - 1) ? name : name + sizeof section - 1;
    char longer[96];

    if (row || strncmp(key, "fsdp_", 5) != 0)
        return row;
    snprintf(longer, sizeof longer, "%s%s", section, key + 5);
    return find(longer, value);
}
