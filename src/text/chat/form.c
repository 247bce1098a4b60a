/* What is learned from each form of line (chat.h): from messages, the assistant's, rendered by the template; from a
 * prompt and a completion, the completion; from segments, those with the label true. Without a template the texts are
 * joined unchanged. A key that could change what a model reads or learns is either acted on or refused. */
#include "src/text/chat/form.h"

#include "io/json/json.h"

#include <stdio.h>
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

/* Make a word from an untrusted file safe for one line of a terminal. */
static const char *shown(const char *word, char out[41])
{
    size_t n = 0;

    for (; word[n] && n < 40; n++)
        out[n] = word[n] >= 0x20 && word[n] < 0x7f ? word[n] : '?';
    out[n] = '\0';
    return out;
}

const json_t *sh_form_find(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

const struct sh_dialect sh_form_openai = {
    .field = "messages",
    .role = "role",
    .text = "content",
    .names = {"system", "user", "assistant"},
    .means = {SH_ROLE_SYSTEM, SH_ROLE_USER, SH_ROLE_ASSISTANT},
    .known = "system, user and assistant",
};
const struct sh_dialect sh_form_sharegpt = {
    .field = "conversations",
    .role = "from",
    .text = "value",
    .names = {"system", "human", "user", "gpt", "assistant"},
    .means = {SH_ROLE_SYSTEM, SH_ROLE_USER, SH_ROLE_USER, SH_ROLE_ASSISTANT, SH_ROLE_ASSISTANT},
    .known = "system, human, user, gpt and assistant",
};

/* Keys that would change what a model reads. A line may have other keys, which are columns of a table; a message may
 * not. */
static const char tools[] = "tools are not rendered here", reasoning[] = "reasoning is not rendered here",
                  media[] = "only text is rendered here", arguments[] = "the templates here take no arguments",
                  apart[] = "a system message is one of the messages";
static const struct {
    const char *name, *why;
} refused[] = {
    {"tools", tools},
    {"functions", tools},
    {"tool_calls", tools},
    {"function_call", tools},
    {"tool_call_id", tools},
    {"tool_choice", tools},
    {"parallel_tool_calls", tools},
    {"reasoning_content", reasoning},
    {"reasoning", reasoning},
    {"thinking", reasoning},
    {"images", media},
    {"videos", media},
    {"audio", media},
    {"audios", media},
    {"chat_template", arguments},
    {"chat_template_kwargs", arguments},
    {"enable_thinking", arguments},
    {"documents", arguments},
    {"system", apart},
    {"system_prompt", apart},
};

/* Notes about a message that no template writes. */
static const char *const harmless[] = {"name",       "id",   "message_id", "parent_id", "timestamp",
                                       "created_at", "date", "model",      "lang",      "language"};

static bool is_one_of(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] && !strcmp(key, list[i]))
            return true;
    return false;
}

/* NULL: the key is not in the table. */
static const char *why_refused(const char *key)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (!strcmp(key, refused[i].name))
            return refused[i].why;
    return NULL;
}

static const char render_it[] = "take it out, or render the text elsewhere and give --format segments";

/* Each key of an object that holds text must be known. what: the object, for a message; names: its keys [n]. */
static sh_rc check_keys(const json_t *object, const char *what, const char *const *names, size_t n)
{
    const json_t *value;
    const char *key, *why;
    char word[41];

    json_object_foreach((json_t *)object, key, value)
    {
        if (json_is_null(value) || is_one_of(key, names, n) ||
            is_one_of(key, harmless, sizeof harmless / sizeof harmless[0]))
            continue;
        why = why_refused(key);
        return why ? sh_fail(SH_E_DATA, "%s has \"%s\": %s; %s", what, key, why, render_it)
                   : sh_fail(SH_E_DATA, "%s has a key \"%s\", which is not known here; take it out", what,
                             shown(key, word));
    }
    return SH_OK;
}

/* Read "weight", as OpenAI has it, and "train", as axolotl does, of a message or a line. *asked: one of them says that
 * it is learned; *masked: one says that it is not. */
static sh_rc take_marks(const json_t *object, const char *what, bool *asked, bool *masked)
{
    const json_t *weight = sh_form_find(object, "weight"), *train = sh_form_find(object, "train");
    double w = json_number_value(weight);

    if (weight && !(json_is_number(weight) && (w == 0 || w == 1)))
        return sh_fail(SH_E_DATA,
                       "%s has a weight that is neither 0, not learned, nor 1: there are no other weights here", what);
    if (train && !json_is_boolean(train))
        return sh_fail(SH_E_DATA, "%s has a \"train\" that is %s; true is learned, false is not", what,
                       sh_json_is(train));
    *masked = (weight && w == 0) || json_is_false(train);
    *asked = (weight && w == 1) || json_is_true(train);
    return SH_OK;
}

/* Documents have no weights, so a line that is not to be learned is of no use. */
static sh_rc check_marks(const json_t *top)
{
    bool asked, masked;

    SH_TRY(take_marks(top, "the line", &asked, &masked));
    return masked ? sh_fail(SH_E_DATA, "the line itself is not to be learned (weight 0, or train false); take it out")
                  : SH_OK;
}

sh_rc sh_form_check_line(const json_t *top, const char *read)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const json_t *value = sh_form_find(top, refused[i].name);
        bool empty = refused[i].why == apart && json_is_string(value) && json_string_length(value) == 0;
        if (value && !empty && (!read || strcmp(read, refused[i].name)))
            return sh_fail(SH_E_DATA, "it has \"%s\": %s; %s", refused[i].name, refused[i].why, render_it);
    }
    return check_marks(top);
}

/* Other roles, such as "tool" or "developer", have no place in the templates, so they are refused rather than guessed
 * at. */
static sh_rc take_role(const struct sh_dialect *d, const json_t *value, enum sh_role *role)
{
    char word[41];

    for (int i = 0; d->names[i]; i++)
        if (json_is_string(value) && !strcmp(json_string_value(value), d->names[i])) {
            *role = d->means[i];
            return SH_OK;
        }
    if (!json_is_string(value))
        return sh_fail(SH_E_DATA, "a message's %s is %s, not a string", d->role, sh_json_is(value));
    return sh_fail(SH_E_DATA, "a message has the role \"%s\"; known roles are %s",
                   shown(json_string_value(value), word), d->known);
}

/* The text of a message: a string, or a list with one part of type text, as files of models that also see images have
 * it. Several parts are refused: templates join them, servers put a line's end or a space between them. */
static sh_rc take_content(const json_t *value, const char *what, const char **text, size_t *bytes)
{
    static const char *const keys[] = {"type", "text"};
    const json_t *part;
    size_t i, n = json_array_size(value);

    if (!json_is_array(value))
        return take_text(value, what, text, bytes);
    json_array_foreach((json_t *)value, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));

        if (!type || strcmp(type, "text") != 0)
            return sh_fail(SH_E_DATA, "%s has a part that is not of type text: %s; %s", what, media, render_it);
    }
    if (n != 1)
        return sh_fail(SH_E_DATA,
                       "%s is a list of %zu texts; make one string of them, since programs join them in different ways",
                       what, n);
    SH_TRY(check_keys(json_array_get(value, 0), "a part of a message", keys, sizeof keys / sizeof keys[0]));
    return take_text(json_object_get(json_array_get(value, 0), "text"), "a part's text", text, bytes);
}

/* Take a message; its string is lent. learned: whether the form learns assistants' messages here. */
static sh_rc take_message(const struct sh_dialect *d, const json_t *one, bool learned, struct sh_message *to)
{
    const char *const keys[] = {d->role, d->text, "weight", "train"};
    bool asked, masked;
    char what[32];

    if (!json_is_object(one))
        return sh_fail(SH_E_DATA, "a message is %s, not an object", sh_json_is(one));
    SH_TRY(check_keys(one, "a message", keys, sizeof keys / sizeof keys[0]));
    SH_TRY(take_role(d, json_object_get(one, d->role), &to->role));
    snprintf(what, sizeof what, "a message's %s", d->text);
    SH_TRY(take_content(json_object_get(one, d->text), what, &to->text, &to->bytes));
    SH_TRY(take_marks(one, "a message", &asked, &masked));
    if (asked && !masked && (to->role != SH_ROLE_ASSISTANT || !learned))
        return sh_fail(SH_E_DATA, "a message asks to be learned (weight 1, or train true), but only %s is",
                       learned ? "an assistant's" : "the completion");
    to->learned = learned && !masked;
    return SH_OK;
}

/* Append messages to m[*n]; the strings are lent from `list`. */
static sh_rc take_messages(const struct sh_dialect *d, const json_t *list, bool learned, struct sh_message *m, int *n)
{
    const json_t *one;
    size_t i;

    json_array_foreach((json_t *)list, i, one)
    {
        SH_TRY(take_message(d, one, learned, &m[*n]));
        ++*n;
    }
    return SH_OK;
}

sh_rc sh_form_render(const struct sh_template *t, sh_form_put *put, const struct sh_dialect *d, const json_t *system,
                     const json_t *list, const json_t *rest, struct sh_chat *out)
{
    size_t most = json_array_size(list) + json_array_size(rest);
    struct sh_message *m;
    int n = 0;
    sh_rc rc;

    if (most > MOST_MESSAGES)
        return sh_fail(SH_E_DATA, "it has %zu messages; at most %d are read", most, MOST_MESSAGES);
    m = sh_calloc(most + 2, sizeof *m);
    if (json_string_length(system))
        m[n++] = (struct sh_message){SH_ROLE_SYSTEM, json_string_value(system), json_string_length(system), false};
    SH_TRY_OUT(take_messages(d, list, rest == NULL, m, &n));
    if (rest)
        SH_TRY_OUT(take_messages(d, rest, true, m, &n));
    rc = put(t, m, n, out);
out:
    free(m);
    return rc;
}

sh_rc sh_form_refuse_masked(const struct sh_chat *out)
{
    return out->n ? SH_OK
                  : sh_fail(SH_E_DATA,
                            "no assistant's message is to be learned (weight 0, or train false); take the line out");
}

sh_rc sh_form_parse_messages(const struct sh_template *t, sh_form_put *put, const struct sh_dialect *d,
                             const char *field, const json_t *top, struct sh_chat *out)
{
    const json_t *list, *system = NULL;

    field = field ? field : d->field;
    list = json_object_get(top, field);
    SH_TRY(sh_form_check_line(top, d == &sh_form_sharegpt ? "system" : NULL));
    if (!json_is_array(list))
        return sh_fail(SH_E_DATA, "\"%s\" is %s and must be a list of messages", field, sh_json_is(list));
    if (d == &sh_form_sharegpt)
        SH_TRY(sh_form_system(t, top, &system));
    return sh_form_render(t, put, d, system, list, NULL, out);
}

/* Without a template the two texts follow each other. */
static sh_rc put_two(const struct sh_message m[2], const char *what, struct sh_chat *out)
{
    size_t begin;

    if (m[1].bytes == 0)
        return sh_fail(SH_E_DATA, "\"%s\" is empty: there is nothing to learn", what);
    sh_chat_put(out, m[0].text, m[0].bytes);
    begin = out->text.n;
    sh_chat_put(out, m[1].text, m[1].bytes);
    sh_chat_learn(out, begin, out->text.n);
    return SH_OK;
}

/* Without a template there is no place for it. An empty one is none. */
sh_rc sh_form_system(const struct sh_template *t, const json_t *top, const json_t **out)
{
    const json_t *value = sh_form_find(top, "system");

    *out = NULL;
    if (value && !json_is_string(value))
        return sh_fail(SH_E_DATA, "\"system\" is %s, not a string", sh_json_is(value));
    if (!value || json_string_length(value) == 0)
        return SH_OK;
    *out = value;
    return t ? SH_OK : sh_fail(SH_E_DATA, "\"system\" is a message; give --chat-template NAME");
}

/* Put a system message in front of m[2], unless there is none. Without a template the two follow each other. */
static sh_rc put_answer(const struct sh_template *t, const json_t *system, const struct sh_message m[2],
                        const char *key, struct sh_chat *out)
{
    struct sh_message all[3] = {
        {SH_ROLE_SYSTEM, json_string_value(system), json_string_length(system), false}, m[0], m[1]};

    if (!t)
        return put_two(m, key, out);
    return system ? sh_template_render(t, all, 3, out) : sh_template_render(t, m, 2, out);
}

sh_rc sh_form_put_completion(const struct sh_template *t, const json_t *system, const json_t *prompt,
                             const json_t *completion, const char *key, struct sh_chat *out)
{
    char what[32];

    struct sh_message m[2] = {{.role = SH_ROLE_USER}, {.role = SH_ROLE_ASSISTANT, .learned = true}};

    SH_TRY(take_text(prompt, "\"prompt\"", &m[0].text, &m[0].bytes));
    snprintf(what, sizeof what, "\"%s\"", key);
    SH_TRY(take_text(completion, what, &m[1].text, &m[1].bytes));
    return put_answer(t, system, m, key, out);
}

/* Both keys may be strings, or lists of messages; then the messages of the completion are learned. */
sh_rc sh_form_parse_completion(const struct sh_template *t, const json_t *top, struct sh_chat *out)
{
    const json_t *prompt = json_object_get(top, "prompt"), *completion = json_object_get(top, "completion"), *system;

    SH_TRY(sh_form_check_line(top, "system"));
    SH_TRY(sh_form_system(t, top, &system));
    if (!json_is_array(prompt) || !json_is_array(completion))
        return sh_form_put_completion(t, system, prompt, completion, "completion", out);
    if (!t)
        return sh_fail(SH_E_DATA, "prompt and completion are messages; give --chat-template NAME");
    SH_TRY(sh_form_render(t, sh_template_render, &sh_form_openai, system, prompt, completion, out));
    return sh_form_refuse_masked(out);
}

/* The text around the fields of Alpaca's data set, as in its column "text". */
static void put_alpaca(const struct sh_message *instruction, const struct sh_message *input, struct sh_text *out)
{
    static const char with[] = "Below is an instruction that describes a task, paired with an input that provides "
                               "further context. Write a response that appropriately completes the request.\n\n",
                      without[] = "Below is an instruction that describes a task. Write a response that appropriately "
                                  "completes the request.\n\n",
                      first[] = "### Instruction:\n", second[] = "\n\n### Input:\n", last[] = "\n\n### Response:\n";

    sh_text_put(out, input->bytes ? with : without, input->bytes ? sizeof with - 1 : sizeof without - 1);
    sh_text_put(out, first, sizeof first - 1);
    sh_text_put(out, instruction->text, instruction->bytes);
    if (input->bytes) {
        sh_text_put(out, second, sizeof second - 1);
        sh_text_put(out, input->text, input->bytes);
    }
    sh_text_put(out, last, sizeof last - 1);
}

/* With a template the instruction is a user's message, and the input is a further line of it. Without one it is the
 * prompt that the data set was made for. */
sh_rc sh_form_parse_alpaca(enum sh_chat_form form, const struct sh_template *t, const json_t *top, struct sh_chat *out)
{
    static const char *const keys[] = {"instruction", "input",  "output",   "text",  "weight",  "train",
                                       "system",      "chosen", "rejected", "label", "kto_tag", "margin"};
    const size_t plain = 7, all = sizeof keys / sizeof keys[0];
    const char *answer = form == SH_CHAT_CHOSEN ? "chosen" : form == SH_CHAT_REJECTED ? "rejected" : "output";
    char what[16];
    struct sh_message in[2] = {{.text = ""}, {.text = ""}},
                      m[2] = {{.role = SH_ROLE_USER}, {.role = SH_ROLE_ASSISTANT, .learned = true}};
    struct sh_text prompt = {0};
    const json_t *system;
    sh_rc rc;

    SH_TRY(sh_form_check_line(top, "system"));
    SH_TRY(sh_form_system(t, top, &system));
    SH_TRY(check_keys(top, "the line", keys, form == SH_CHAT_ALPACA ? plain : all));
    SH_TRY(take_text(json_object_get(top, "instruction"), "\"instruction\"", &in[0].text, &in[0].bytes));
    if (sh_form_find(top, "input"))
        SH_TRY(take_text(sh_form_find(top, "input"), "\"input\"", &in[1].text, &in[1].bytes));
    snprintf(what, sizeof what, "\"%s\"", answer);
    SH_TRY(take_text(json_object_get(top, answer), what, &m[1].text, &m[1].bytes));
    if (t) {
        sh_text_put(&prompt, in[0].text, in[0].bytes);
        sh_text_put(&prompt, "\n", in[1].bytes > 0);
        sh_text_put(&prompt, in[1].text, in[1].bytes);
    } else {
        put_alpaca(&in[0], &in[1], &prompt);
    }
    m[0].text = prompt.at ? (const char *)prompt.at : "";
    m[0].bytes = prompt.n;
    rc = put_answer(t, system, m, answer, out);
    free(prompt.at);
    return rc;
}

sh_rc sh_form_parse_segments(const json_t *top, struct sh_chat *out)
{
    static const char *const keys[] = {"text", "label"};
    const json_t *list = json_object_get(top, "segments"), *one;
    size_t i, bytes;
    const char *text;

    SH_TRY(check_marks(top));
    if (!json_is_array(list))
        return sh_fail(SH_E_DATA, "\"segments\" is %s, not a list", sh_json_is(list));
    json_array_foreach((json_t *)list, i, one)
    {
        const json_t *label = json_object_get(one, "label");
        size_t begin = out->text.n;
        if (json_is_object(one))
            SH_TRY(check_keys(one, "a segment", keys, sizeof keys / sizeof keys[0]));
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
