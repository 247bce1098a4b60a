/* Questions in files, as lm_eval has them: lines of JSON with texts to be scored, HellaSwag's own, or one text. */
#include "src/text/score/task.h"

#include "src/base/file.h"
#include "src/base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 30 };

/* Characters of UTF-8: bytes that do not continue another one. */
static size_t count_chars(const char *text, size_t bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* `space`: a space stands between the two, which is not counted. */
static void add_pair(struct sh_task *t, const char *context, size_t context_bytes, const char *text, size_t bytes,
                     bool space)
{
    struct sh_task_choice *c = sh_task_add_choice(t);

    c->context = sh_textdup(context, context_bytes);
    c->context_bytes = context_bytes;
    c->text = sh_calloc(bytes + 2, 1);
    memcpy(c->text + space, text, bytes);
    if (space)
        c->text[0] = ' ';
    c->text_bytes = bytes + space;
    c->bytes = bytes;
    c->chars = count_chars(text, bytes);
}

/* A line is one text after one context, and has no right answer. */
static sh_rc read_request(json_t *line, const char *name, struct sh_task *t)
{
    const json_t *context = json_object_get(line, "context"), *text = json_object_get(line, "continuation");

    if (!json_is_string(context) || !json_is_string(text) || !json_string_length(text))
        return sh_fail(SH_E_DATA, "%s: want {\"context\": TEXT, \"continuation\": TEXT}, the latter not empty", name);
    sh_task_add_doc(t, json_incref(line), -1);
    add_pair(t, json_string_value(context), json_string_length(context), json_string_value(text),
             json_string_length(text), false);
    return SH_OK;
}

/* Remove the characters [from, to) of a text. */
static void remove_span(char *text, size_t from, size_t to)
{
    memmove(text + from, text + to, strlen(text + to) + 1);
}

/* Replace in place: `by` must not be longer than `what`. */
static void replace_all(char *text, const char *what, const char *by)
{
    for (char *at = strstr(text, what); at; at = strstr(at + strlen(by), what)) {
        memcpy(at, by, strlen(by));
        remove_span(text, (size_t)(at - text) + strlen(by), (size_t)(at - text) + strlen(what));
    }
}

/* Clean a text as lm_eval does those of WikiHow: " [title]" ends a sentence, other marks in brackets are removed, and
 * so is one of two spaces. Freed with free(). */
static char *clean(const char *raw)
{
    char *text, *open, *close;
    size_t n;

    while (isspace((unsigned char)*raw))
        raw++;
    text = sh_strdup(raw);
    for (n = strlen(text); n && isspace((unsigned char)text[n - 1]); n--)
        text[n - 1] = '\0';
    replace_all(text, " [title]", ". ");
    for (open = strchr(text, '['); open && (close = strchr(open, ']')) != NULL; open = strchr(open, '['))
        remove_span(text, (size_t)(open - text), (size_t)(close - text) + 1);
    for (char *at = strstr(text, "  "); at; at = strstr(at + 1, "  "))
        remove_span(text, (size_t)(at - text), (size_t)(at - text) + 1);
    return text;
}

/* The label is a number, or a text of one; -1: neither, or out of range. */
static int label_of(const json_t *value, size_t n)
{
    long long label = -1;
    char *end;

    if (json_is_integer(value))
        label = json_integer_value(value);
    else if (json_is_string(value) && json_string_value(value)[0]) {
        label = strtoll(json_string_value(value), &end, 10);
        label = *end ? -1 : label;
    }
    return label >= 0 && (size_t)label < n ? (int)label : -1;
}

/* Whether there are at least two choices, none of them empty: an empty one could not be scored. */
static bool are_texts(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)) || !json_string_length(json_array_get(list, i)))
            return false;
    return json_is_array(list) && json_array_size(list) >= 2;
}

/* "Activity: context a Context b", as lm_eval asks it. */
static char *hellaswag_query(const json_t *line)
{
    const char *a = json_string_value(json_object_get(line, "ctx_a"));
    const char *b = json_string_value(json_object_get(line, "ctx_b"));
    const char *activity = json_string_value(json_object_get(line, "activity_label"));
    char *raw, *query;
    size_t at;

    if (!a || !b || !activity)
        return NULL;
    raw = sh_strfmt("%s: %s %s", activity, a, b);
    at = strlen(activity) + 2 + strlen(a) + 1;
    raw[at] = (char)toupper((unsigned char)raw[at]);
    for (at++; at < strlen(raw); at++)
        raw[at] = (char)tolower((unsigned char)raw[at]);
    query = clean(raw);
    free(raw);
    return query;
}

/* All endings share one question, and are cleaned like it. */
static sh_rc read_hellaswag(json_t *line, const char *name, struct sh_task *t)
{
    const json_t *endings = json_object_get(line, "endings");
    int gold = label_of(json_object_get(line, "label"), json_array_size(endings));
    char *query = are_texts(endings) ? hellaswag_query(line) : NULL;

    if (!query || gold < 0) {
        free(query);
        return sh_fail(SH_E_DATA,
                       "%s: a line of HellaSwag has activity_label, ctx_a, ctx_b, endings and the label of one of them",
                       name);
    }
    sh_task_add_doc(t, json_incref(line), gold);
    for (size_t i = 0; i < json_array_size(endings); i++) {
        char *ending = clean(json_string_value(json_array_get(endings, i)));

        add_pair(t, query, strlen(query), ending, strlen(ending), true);
        free(ending);
    }
    free(query);
    return SH_OK;
}

/* Lines of both forms may be in one file; "endings" tells them apart. */
static sh_rc read_choices(json_t *line, const char *name, struct sh_task *t)
{
    const json_t *query = json_object_get(line, "query"), *choices = json_object_get(line, "choices");
    int gold = label_of(json_object_get(line, "gold"), json_array_size(choices));

    if (json_object_get(line, "endings"))
        return read_hellaswag(line, name, t);
    if (!json_is_string(query) || !are_texts(choices) || gold < 0)
        return sh_fail(
            SH_E_DATA,
            "%s: want {\"query\": TEXT, \"choices\": [TEXT, TEXT, ...], \"gold\": N}, N counting from 0, or a line of "
            "HellaSwag",
            name);
    sh_task_add_doc(t, json_incref(line), gold);
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *text = json_array_get(choices, i);

        add_pair(t, json_string_value(query), json_string_length(query), json_string_value(text),
                 json_string_length(text), true);
    }
    return SH_OK;
}

static sh_rc read_line(const char *text, size_t bytes, const char *name, struct sh_task *t)
{
    json_t *line;
    sh_rc rc;

    SH_TRY(sh_json_parse(text, bytes, name, &line));
    rc = t->kind == SH_TASK_REQUESTS ? read_request(line, name, t) : read_choices(line, name, t);
    json_decref(line);
    return rc;
}

/* Empty lines are skipped, but counted: messages have the line numbers that an editor shows. */
static sh_rc read_lines(const char *data, size_t bytes, const char *path, struct sh_task *t)
{
    for (size_t at = 0, number = 1; at < bytes; number++) {
        const char *end = memchr(data + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - data) - at : bytes - at;
        char *name = sh_strfmt("%s: line %zu", path, number);
        sh_rc rc = n ? read_line(data + at, n, name, t) : SH_OK;

        free(name);
        SH_TRY(rc);
        at += n + 1;
    }
    return t->n_docs ? SH_OK : sh_fail(SH_E_DATA, "%s has no lines", path);
}

/* The text is one choice without a context. */
static sh_rc read_text(const char *data, size_t bytes, const char *path, struct sh_task *t)
{
    if (!bytes)
        return sh_fail(SH_E_DATA, "%s is empty", path);
    sh_task_add_doc(t, NULL, -1);
    add_pair(t, "", 0, data, bytes, false);
    t->text_bytes = (int64_t)bytes;
    return SH_OK;
}

/* Read the file as its kind says; questions may also be a binary file of llm.c, which begins with a magic number. */
sh_rc sh_task_read(enum sh_task_kind kind, const char *path, struct sh_task *out)
{
    char *data;
    size_t bytes;
    sh_rc rc;

    *out = (struct sh_task){.kind = kind};
    SH_TRY(sh_read_file(path, MOST_BYTES, &data, &bytes));
    if (kind == SH_TASK_TEXT)
        rc = read_text(data, bytes, path, out);
    else if (kind == SH_TASK_CHOICES && sh_task_is_bin(data, bytes))
        rc = sh_task_read_bin(data, bytes, path, out);
    else
        rc = read_lines(data, bytes, path, out);
    free(data);
    if (rc != SH_OK)
        sh_task_free(out);
    return rc;
}
