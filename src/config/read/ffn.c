#include "src/config/read/ffn.h"

#include "src/base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { ARGUMENTS = 3, WIDEST = 1 << 28 };

/* What has an argument besides values. */
static const struct form {
    const char *operation, *text;
    enum sh_ffn_kind kind;
    int arguments, values;
} forms[] = {
    {"linear", "linear(VALUE, NAME, WIDTH)", SH_FFN_LINEAR, 3, 1},
    {"norm", "norm(VALUE, NAME)", SH_FFN_NORM, 2, 1},
    {"add", "add(VALUE, VALUE)", SH_FFN_ADD, 2, 2},
    {NULL, "OPERATION(VALUE)", SH_FFN_OPERATION, 1, 1},
};

/* A statement as words. */
struct words {
    char made[SH_FFN_WORD], operation[SH_FFN_WORD], argument[ARGUMENTS][SH_FFN_WORD];
    int n;
};

static bool take(const char **at, char c)
{
    *at += strspn(*at, " ");
    if (**at != c)
        return false;
    ++*at;
    return true;
}

/* Letters, digits and _. */
static bool take_word(const char **at, char word[SH_FFN_WORD])
{
    size_t n = 0;

    *at += strspn(*at, " ");
    while (isalnum((unsigned char)(*at)[n]) || (*at)[n] == '_')
        n++;
    if (!n || n >= SH_FFN_WORD)
        return false;
    snprintf(word, SH_FFN_WORD, "%.*s", (int)n, *at);
    *at += n;
    return true;
}

static bool split(const char *at, struct words *w)
{
    bool right = take_word(&at, w->made) && take(&at, '=') && take_word(&at, w->operation) && take(&at, '(');

    w->n = 0;
    do
        right = right && w->n < ARGUMENTS && take_word(&at, w->argument[w->n++]);
    while (right && take(&at, ','));
    return right && take(&at, ')') && !at[strspn(at, " ")];
}

static const struct form *form_of(const char *operation)
{
    const struct form *f = forms;

    while (f->operation && strcmp(f->operation, operation) != 0)
        f++;
    return f;
}

/* The number of a value; -1: no statement so far makes it. */
static int find(const struct sh_ffn *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->step[i].made, name))
            return i + 1;
    return strcmp(name, "x") ? -1 : 0;
}

static bool has_parameter(const struct sh_ffn *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if ((f->step[i].kind == SH_FFN_LINEAR || f->step[i].kind == SH_FFN_NORM) && !strcmp(f->step[i].name, name))
            return true;
    return false;
}

/* "2F", "C", "96" */
static sh_rc read_width(const char *text, struct sh_ffn_step *s)
{
    char *end;

    s->times = isdigit((unsigned char)text[0]) ? strtoll(text, &end, 10) : (end = (char *)(uintptr_t)text, 1);
    s->unit = *end;
    if (s->times < 1 || s->times > WIDEST || (*end && (end[1] || !strchr("CF", *end))))
        return sh_fail(SH_E_USAGE, "'%s' is no width; write a number, C, F or a multiple of one, such as 2F", text);
    return SH_OK;
}

/* The step of number f->n, of its words. */
static sh_rc read_step(const struct sh_ffn *f, const struct words *w, struct sh_ffn_step *s)
{
    const struct form *form = form_of(w->operation);

    if (w->n != form->arguments)
        return sh_fail(SH_E_USAGE, "%s has %d arguments; write %s", w->operation, w->n, form->text);
    s->kind = form->kind;
    for (int i = 0; i < form->values; i++) {
        s->in[i] = find(f, w->argument[i]);
        if (s->in[i] < 0)
            return sh_fail(SH_E_USAGE, "no statement before it makes '%s'; x is the input", w->argument[i]);
    }
    if (s->kind == SH_FFN_ADD && s->in[0] == s->in[1])
        return sh_fail(SH_E_USAGE, "adds '%s' to itself; add two values", w->argument[0]);
    if (find(f, w->made) >= 0)
        return sh_fail(SH_E_USAGE, "'%s' is there already; give each value its own name", w->made);
    memcpy(s->made, w->made, sizeof s->made);
    memcpy(s->name, s->kind == SH_FFN_OPERATION ? w->operation : w->argument[1], sizeof s->name);
    if (s->kind == SH_FFN_LINEAR)
        SH_TRY(read_width(w->argument[2], s));
    if (s->kind != SH_FFN_OPERATION && s->kind != SH_FFN_ADD && has_parameter(f, s->name))
        return sh_fail(SH_E_USAGE, "a statement before it has a parameter '%s' too", s->name);
    return SH_OK;
}

/* Statements run into one another if a text of several lines has been folded into one. */
static sh_rc fail_form(const char *statement)
{
    const char *first = strchr(statement, '=');

    if (first && strchr(first + 1, '='))
        return sh_fail(SH_E_USAGE,
                       "several statements in one; write a semicolon between them, or each on a line of its "
                       "own below 'ffn: |'");
    return sh_fail(SH_E_USAGE, "write VALUE = OPERATION(VALUE, ...), with words of at most %d letters, digits and _",
                   SH_FFN_WORD - 1);
}

static sh_rc add_step(struct sh_ffn *f, const char *statement)
{
    struct sh_ffn_step *s = &f->step[f->n];
    struct words w;
    sh_rc rc;

    if (f->n == SH_FFN_STEPS)
        return sh_fail(SH_E_USAGE, "more than %d statements", SH_FFN_STEPS);
    memset(s, 0, sizeof *s);
    rc = split(statement, &w) ? read_step(f, &w, s) : fail_form(statement);
    if (rc != SH_OK)
        return sh_fail_prefix(rc, "'%.100s': ", statement + strspn(statement, " "));
    f->n++;
    return SH_OK;
}

/* Backwards from the result: marks its products, and finds a value that nothing reads. */
static sh_rc follow(struct sh_ffn *f)
{
    bool read[SH_FFN_STEPS + 1] = {false}, sums[SH_FFN_STEPS + 1] = {false};

    read[f->n] = sums[f->n] = true;
    for (int i = f->n; i > 0; i--) {
        struct sh_ffn_step *s = &f->step[i - 1];

        if (!read[i])
            return sh_fail(SH_E_USAGE, "no statement reads '%s', and '%s' is the result; use it or leave it out",
                           s->made, f->step[f->n - 1].made);
        s->residual = s->kind == SH_FFN_LINEAR && sums[i];
        for (int k = 0; k <= (s->kind == SH_FFN_ADD); k++) {
            read[s->in[k]] = true;
            sums[s->in[k]] |= s->kind == SH_FFN_ADD && sums[i];
        }
    }
    return SH_OK;
}

sh_rc sh_config_ffn(const char *text, struct sh_ffn *out)
{
    char *copy = sh_strdup(text), *rest = *copy ? copy : NULL, *statement;
    sh_rc rc = SH_OK;

    out->n = 0;
    while (rc == SH_OK && (statement = strsep(&rest, ";")) != NULL)
        if (statement[strspn(statement, " ")])
            rc = add_step(out, statement);
    free(copy);
    return rc == SH_OK && out->n ? follow(out) : rc;
}

int64_t sh_config_ffn_width(const struct sh_ffn_step *step, const struct sh_model *m)
{
    return step->times * (step->unit == 'C' ? m->dim : step->unit == 'F' ? m->ffn_dim : 1);
}
