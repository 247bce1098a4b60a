#include "src/config/layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first word of a kind is ours, a later one that of transformers. */
static const struct {
    const char *word;
    unsigned kind;
} words[] = {{"full", 0},
             {"sliding", SH_LAYER_SLIDING},
             {"full_nope", SH_LAYER_NOPE},
             {"sliding_nope", SH_LAYER_SLIDING | SH_LAYER_NOPE},
             {"linear", SH_LAYER_LINEAR},
             {"mlp", SH_LAYER_MLP},
             {"moe", SH_LAYER_MOE},
             {"full_attention", 0},
             {"sliding_attention", SH_LAYER_SLIDING},
             {"linear_attention", SH_LAYER_LINEAR}};

/* A list pasted from a config.json is read as well. */
static const char between[] = ", \t\"'[]";

/* Read the run at *at and move behind it. Returns its number of blocks; 0: the text ends; -1: it is wrong. */
static int take_run(const char **at, unsigned *kind)
{
    const char *word = *at + strspn(*at, between);
    size_t n = strcspn(word, between), star = strcspn(word, "*");
    long times = 1;

    *at = word + n;
    if (n == 0)
        return 0;
    if (star < n) {
        char *end;

        times = strtol(word, &end, 10);
        if (end != word + star || times < 1 || times > 10000)
            return -1;
        word += star + 1;
        n -= star + 1;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].word) == n && strncmp(words[i].word, word, n) == 0) {
            *kind = words[i].kind;
            return (int)times;
        }
    return -1;
}

/* The number of blocks after which the pattern repeats; 0: there is no pattern. */
static int period_of(const char *text)
{
    unsigned kind;
    int n = 0, run;

    while ((run = take_run(&text, &kind)) > 0)
        n += run;
    return n;
}

unsigned sh_layers_kind(const struct sh_model *m, int block)
{
    const char *at = m->layer_types;
    int period = period_of(at), run;
    unsigned kind = m->attention_window ? SH_LAYER_SLIDING : 0;

    if (period == 0)
        return kind;
    for (block %= period; (run = take_run(&at, &kind)) > 0 && block >= run;)
        block -= run;
    return kind;
}

bool sh_layers_check(const char *text, char *bad, size_t size)
{
    bool any = false;

    bad[0] = '\0';
    for (;;) {
        const char *word = text + strspn(text, between);
        unsigned kind;
        int run = take_run(&text, &kind);

        if (run == 0)
            return any;
        if (run < 0) {
            snprintf(bad, size, "%.*s", (int)strcspn(word, between), word);
            return false;
        }
        any = true;
    }
}

/* At least twice: otherwise a pattern would hide the last blocks. */
static bool repeats(const unsigned char *kinds, int n, int period)
{
    for (int i = period; i < n; i++)
        if (kinds[i] != kinds[i - period])
            return false;
    return 2 * period <= n || period == n;
}

static const char *word_of(unsigned kind)
{
    size_t i = 0;

    while (words[i].kind != kind)
        i++;
    return words[i].word;
}

bool sh_layers_print(const unsigned char *kinds, int n, char *text, size_t size)
{
    int period = 1;
    size_t used = 0;

    while (period < n && !repeats(kinds, n, period))
        period++;
    text[0] = '\0';
    for (int i = 0, run; i < period && i < n && used < size; i += run) {
        for (run = 1; i + run < period && kinds[i + run] == kinds[i];)
            run++;
        used += (size_t)snprintf(text + used, size - used, "%s", i ? "," : "");
        if (run > 1 && used < size)
            used += (size_t)snprintf(text + used, size - used, "%d*", run);
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s", word_of(kinds[i]));
    }
    return used < size;
}

bool sh_layers_any(const struct sh_model *m, unsigned bit)
{
    for (int i = 0; i < m->n_layers; i++)
        if (sh_layers_kind(m, i) & bit)
            return true;
    return false;
}
