/* What is learned from each form of line (chat.h): from messages, the assistant's, rendered by the template; from a
 * prompt and a completion, the completion; from segments, those with the label true. Without a template the texts are
 * joined unchanged. */
#include "io/token/chat.h"

#include "io/json/json.h"

#include <stdlib.h>
#include <string.h>

/* More than any conversation has: a line with more is damaged. */
enum { MOST_MESSAGES = 1 << 16 };

/* Get a string and its length in bytes: it may contain a 0. */
static sh_rc take_text(const json_t *value, const char *what, const char **text, size_t *bytes)
{
    if (!json_is_string(value))
        return sh_fail(SH_E_DATA, "%s is %s, not a string", what, sh_json_is(value));
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return SH_OK;
}

/* The templates here do not know how calls of tools are written. */
static sh_rc refuse_tools(const json_t *object)
{
    static const char *const keys[] = {"tools", "functions", "tool_calls", "function_call", "tool_call_id"};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *value = json_object_get(object, keys[i]);
        if (value && !json_is_null(value))
            return sh_fail(SH_E_DATA,
                           "it has \"%s\": tools are not rendered here; render them elsewhere and give --format "
                           "segments",
                           keys[i]);
    }
    return SH_OK;
}

/* Make a word from an untrusted file safe for one line of a terminal. */
static const char *shown(const char *word, char out[41])
{
    size_t n = 0;

    for (; word[n] && n < 40; n++)
        out[n] = word[n] >= 0x20 && word[n] < 0x7f ? word[n] : '?';
    out[n] = '\0';
    return out;
}

/* Other roles, such as "tool" or "developer", have no place in the templates, so they are refused rather than guessed
 * at. */
static sh_rc take_role(const json_t *value, enum sh_role *role)
{
    static const char *const names[SH_ROLES] = {"system", "user", "assistant"};
    char word[41];

    for (int i = 0; i < SH_ROLES; i++)
        if (json_is_string(value) && !strcmp(json_string_value(value), names[i])) {
            *role = (enum sh_role)i;
            return SH_OK;
        }
    if (!json_is_string(value))
        return sh_fail(SH_E_DATA, "a message's role is %s, not a string", sh_json_is(value));
    return sh_fail(SH_E_DATA, "a message has the role \"%s\"; known roles are system, user and assistant",
                   shown(json_string_value(value), word));
}

/* Append messages to m[*n]; the strings are lent from `list`. */
static sh_rc take_messages(const json_t *list, bool learned, struct sh_message *m, int *n)
{
    const json_t *one;
    size_t i;

    json_array_foreach((json_t *)list, i, one)
    {
        struct sh_message *to = &m[*n];
        if (!json_is_object(one))
            return sh_fail(SH_E_DATA, "a message is %s, not an object", sh_json_is(one));
        SH_TRY(refuse_tools(one));
        SH_TRY(take_role(json_object_get(one, "role"), &to->role));
        SH_TRY(take_text(json_object_get(one, "content"), "a message's content", &to->text, &to->bytes));
        to->learned = learned;
        ++*n;
    }
    return SH_OK;
}

typedef sh_rc (*put_messages)(const struct sh_template *t, const struct sh_message *m, int n, struct sh_chat *out);

/* Render the messages of `list` and `rest`, and learn those of `rest` (NULL: those of `list`). */
static sh_rc render(const struct sh_template *t, put_messages put, const json_t *list, const json_t *rest,
                    struct sh_chat *out)
{
    size_t most = json_array_size(list) + json_array_size(rest);
    struct sh_message *m;
    int n = 0;
    sh_rc rc;

    if (most > MOST_MESSAGES)
        return sh_fail(SH_E_DATA, "it has %zu messages; at most %d are read", most, MOST_MESSAGES);
    m = sh_calloc(most + 1, sizeof *m);
    SH_TRY_OUT(take_messages(list, rest == NULL, m, &n));
    if (rest)
        SH_TRY_OUT(take_messages(rest, true, m, &n));
    rc = put(t, m, n, out);
out:
    free(m);
    return rc;
}

/* The field may have a name other than "messages": some data sets have "conversations", for one. */
static sh_rc parse_messages(const struct sh_template *t, put_messages put, const char *field, const json_t *top,
                            struct sh_chat *out)
{
    const json_t *list = json_object_get(top, field);

    if (!json_is_array(list))
        return sh_fail(SH_E_DATA, "\"%s\" is %s, not a list of messages", field, sh_json_is(list));
    return render(t, put, list, NULL, out);
}

/* Render two strings as two messages, or join them unchanged without a template. */
static sh_rc put_completion(const struct sh_template *t, const json_t *prompt, const json_t *completion,
                            struct sh_chat *out)
{
    struct sh_message m[2] = {{.role = SH_ROLE_USER}, {.role = SH_ROLE_ASSISTANT, .learned = true}};
    size_t begin;

    SH_TRY(take_text(prompt, "\"prompt\"", &m[0].text, &m[0].bytes));
    SH_TRY(take_text(completion, "\"completion\"", &m[1].text, &m[1].bytes));
    if (t)
        return sh_template_render(t, m, 2, out);
    if (m[1].bytes == 0)
        return sh_fail(SH_E_DATA, "\"completion\" is empty: there is nothing to learn");
    sh_chat_put(out, m[0].text, m[0].bytes);
    begin = out->text.n;
    sh_chat_put(out, m[1].text, m[1].bytes);
    sh_chat_learn(out, begin, out->text.n);
    return SH_OK;
}

/* Both keys may be strings, or lists of messages; then the messages of the completion are learned. */
static sh_rc parse_completion(const struct sh_template *t, const json_t *top, struct sh_chat *out)
{
    const json_t *prompt = json_object_get(top, "prompt"), *completion = json_object_get(top, "completion");

    if (!json_is_array(prompt) || !json_is_array(completion))
        return put_completion(t, prompt, completion, out);
    if (!t)
        return sh_fail(SH_E_DATA, "prompt and completion are messages; give --chat-template NAME");
    return render(t, sh_template_render, prompt, completion, out);
}

/* The text is rendered already, so nothing is put between segments. Any of the segments may be learned, not only the
 * last. */
static sh_rc parse_segments(const json_t *top, struct sh_chat *out)
{
    const json_t *list = json_object_get(top, "segments"), *one;
    size_t i, bytes;
    const char *text;

    if (!json_is_array(list))
        return sh_fail(SH_E_DATA, "\"segments\" is %s, not a list", sh_json_is(list));
    json_array_foreach((json_t *)list, i, one)
    {
        const json_t *label = json_object_get(one, "label");
        size_t begin = out->text.n;
        SH_TRY(take_text(json_object_get(one, "text"), "a segment's text", &text, &bytes));
        if (!json_is_boolean(label))
            return sh_fail(SH_E_DATA, "a segment's label is %s; true is learned, false is not", sh_json_is(label));
        if (json_is_true(label) && bytes == 0)
            return sh_fail(SH_E_DATA, "a segment to learn is empty");
        sh_chat_put(out, text, bytes);
        if (json_is_true(label))
            sh_chat_learn(out, begin, out->text.n);
    }
    return out->n ? SH_OK : sh_fail(SH_E_DATA, "no segment has the label true: there is nothing to learn");
}

/* Segments may come with keys of tools: the tools are part of the text by now. */
sh_rc sh_chat_parse(enum sh_chat_form form, const struct sh_template *t, const char *field, const char *line,
                    size_t bytes, struct sh_chat *out)
{
    json_t *top;
    sh_rc rc;

    SH_TRY(sh_json_parse(line, bytes, "JSON", &top));
    if (!json_is_object(top))
        rc = sh_fail(SH_E_DATA, "it is %s, not an object", sh_json_is(top));
    else if (form == SH_CHAT_SEGMENTS)
        rc = parse_segments(top, out);
    else if ((rc = refuse_tools(top)) == SH_OK)
        rc = form == SH_CHAT_MESSAGES ? parse_messages(t, sh_template_render, field, top, out)
                                      : parse_completion(t, top, out);
    json_decref(top);
    return rc;
}

/* Use the same template as in training, up to where the answer begins, so a model sees the form that it was trained
 * on. */
sh_rc sh_chat_prompt(const struct sh_template *t, const json_t *line, struct sh_chat *out)
{
    SH_TRY(refuse_tools(line));
    return parse_messages(t, sh_template_prompt, "messages", line, out);
}
