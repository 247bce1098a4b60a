/* Answers that are judged: two to one prompt, or one and whether it is desirable. Data sets name the prompt in many
 * ways, and write it before the answers, in them, or both. */
#include "io/json/json.h"
#include "src/text/chat/form.h"

#include <string.h>

/* Give what lies under one of several names the first of them. Of empty texts and others, the empty ones are none. */
static sh_rc settle(json_t *top, const char *const *names, int n)
{
    const char *by = NULL;
    bool by_empty = false;

    for (int i = 0; i < n; i++) {
        const json_t *value = sh_form_find(top, names[i]);
        bool empty = json_is_string(value) && json_string_length(value) == 0;

        if (value && by && !empty && !by_empty)
            return sh_fail(SH_E_DATA, "it has \"%s\" and \"%s\", which mean the same here; take one of them out", by,
                           names[i]);
        if (value && (!by || (by_empty && !empty))) {
            by = names[i];
            by_empty = empty;
        }
    }
    if (by)
        json_object_set(top, names[0], json_object_get(top, by));
    for (int i = 1; i < n; i++)
        json_object_del(top, names[i]);
    return SH_OK;
}

/* The names are those of axolotl's types "argilla", "icr" and "intel" too. */
sh_rc sh_form_settle(enum sh_chat_form form, json_t *top)
{
    static const char *const prompt[] = {"prompt", "instruction", "question", "input"},
                             *const chosen[] = {"chosen", "chosen_response"},
                             *const rejected[] = {"rejected", "rejected_response"};
    bool alone = form == SH_CHAT_UNPAIRED && sh_form_find(top, "completion");

    if (alone || !sh_form_find(top, "instruction")) /* else it is alpaca's, with an input */
        SH_TRY(settle(top, prompt, 4));
    SH_TRY(settle(top, chosen, 2));
    return settle(top, rejected, 2);
}

/* ---- what both answers begin with ---- */

/* Append the messages that both lists begin with to `same`, and those of `list` after them to `rest`. */
static void split_lists(const json_t *list, const json_t *other, json_t *same, json_t *rest)
{
    size_t n = 0, all = json_array_size(list);

    while (n < all && json_equal(json_array_get(list, n), json_array_get(other, n)))
        n++;
    for (size_t i = 0; i < all; i++)
        json_array_append(i < n ? same : rest, json_array_get(list, i));
}

/* How many bytes two texts begin with in common: whole characters, and not the space before the first word that
 * differs, which belongs to the word. */
static size_t common(const char *a, size_t n, const char *b, size_t m)
{
    size_t i = 0;

    while (i < n && i < m && a[i] == b[i])
        i++;
    while (i > 0 && i < n && ((unsigned char)a[i] & 0xc0) == 0x80)
        i--;
    return i > 0 && a[i - 1] == ' ' ? i - 1 : i;
}

/* An answer without the text that both begin with, which is the prompt. */
static sh_rc put_texts(const struct sh_template *t, const json_t *system, const json_t *answer, const json_t *other,
                       const char *key, struct sh_chat *out)
{
    const char *text = json_string_value(answer);
    size_t all = json_string_length(answer);
    size_t n = common(text, all, json_string_value(other), json_string_length(other));
    json_t *prompt = json_stringn(text, n), *rest = json_stringn(text + n, all - n);
    sh_rc rc = sh_form_put_completion(t, system, prompt, rest, key, out);

    json_decref(prompt);
    json_decref(rest);
    return rc;
}

/* A prompt that stands beside messages is a copy of one of them. */
static sh_rc check_copy(const struct sh_dialect *d, const json_t *list, const json_t *prompt)
{
    const json_t *one;
    size_t i;

    json_array_foreach((json_t *)list, i, one)
    {
        if (json_equal(json_object_get(one, d->text), prompt))
            return SH_OK;
    }
    return prompt ? sh_fail(SH_E_DATA, "\"prompt\" is not the text of a message before the answer") : SH_OK;
}

/* prompt: a string, or NULL */
static sh_rc put_lists(const struct sh_template *t, const json_t *system, const json_t *prompt, const json_t *answer,
                       const json_t *other, struct sh_chat *out)
{
    json_t *same = json_array(), *rest = json_array();
    sh_rc rc;

    split_lists(answer, other, same, rest);
    if (json_array_size(same) && json_array_size(rest))
        rc = check_copy(&sh_form_openai, same, prompt);
    else
        rc = sh_fail(SH_E_DATA,
                     "there is no list \"prompt\", and the messages of \"chosen\" and \"rejected\" do not begin "
                     "alike and then differ");
    if (rc == SH_OK)
        rc = sh_form_render(t, sh_template_render, &sh_form_openai, system, same, rest, out);
    json_decref(same);
    json_decref(rest);
    return rc;
}

/* ---- pairs ---- */

/* An answer, one message, to the conversation beside it. */
static sh_rc put_reply(const struct sh_template *t, const struct sh_dialect *d, const json_t *top, const json_t *reply,
                       struct sh_chat *out)
{
    const json_t *list = sh_form_find(top, d->field), *system = NULL;
    json_t *rest;
    sh_rc rc;

    SH_TRY(sh_form_check_line(top, d == &sh_form_sharegpt ? "system" : NULL));
    SH_TRY(sh_form_system(t, top, &system));
    if (!t)
        return sh_fail(SH_E_DATA, "%s are messages; give --chat-template NAME", d->field);
    if (!json_is_array(list) || !json_is_object(reply))
        return sh_fail(SH_E_DATA, "\"%s\" is %s and its answer %s, not a list of messages and a message", d->field,
                       sh_json_is(list), sh_json_is(reply));
    SH_TRY(check_copy(d, list, sh_form_find(top, "prompt")));
    rest = json_array();
    json_array_append(rest, (json_t *)reply);
    rc = sh_form_render(t, sh_template_render, d, system, list, rest, out);
    json_decref(rest);
    return rc == SH_OK ? sh_form_refuse_masked(out) : rc;
}

/* Prompt and answers are all strings, or all lists of messages; but a string may stand beside two lists. */
static sh_rc check_kinds(const struct sh_template *t, const json_t *top)
{
    static const char *const keys[] = {"prompt", "chosen", "rejected"};
    bool lists = json_is_array(json_object_get(top, "chosen"));

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = sh_form_find(top, keys[i]);

        if (i == 0 && (!value || (lists && json_is_string(value))))
            continue;
        if (!value || !(lists ? json_is_array(value) : json_is_string(value)))
            return sh_fail(SH_E_DATA, "\"%s\" is %s, not %s", keys[i], value ? sh_json_is(value) : "missing",
                           lists ? "a list of messages, as \"chosen\" is" : "a string");
    }
    return lists && !t ? sh_fail(SH_E_DATA, "chosen and rejected are messages; give --chat-template NAME") : SH_OK;
}

sh_rc sh_form_parse_preference(enum sh_chat_form form, const struct sh_template *t, const json_t *top,
                               struct sh_chat *out)
{
    bool chosen = form == SH_CHAT_CHOSEN;
    const char *key = chosen ? "chosen" : "rejected";
    const json_t *prompt = sh_form_find(top, "prompt"), *answer = sh_form_find(top, key);
    const json_t *other = sh_form_find(top, chosen ? "rejected" : "chosen"), *system;

    if (sh_form_find(top, "instruction"))
        return sh_form_parse_alpaca(form, t, top, out);
    if (sh_form_find(top, "conversations"))
        return put_reply(t, &sh_form_sharegpt, top, answer, out);
    if (json_is_object(answer))
        return put_reply(t, &sh_form_openai, top, answer, out);
    SH_TRY(sh_form_check_line(top, "system"));
    SH_TRY(check_kinds(t, top));
    SH_TRY(sh_form_system(t, top, &system));
    if (!json_is_array(answer))
        return prompt ? sh_form_put_completion(t, system, prompt, answer, key, out)
                      : put_texts(t, system, answer, other, key, out);
    if (json_is_array(prompt))
        SH_TRY(sh_form_render(t, sh_template_render, &sh_form_openai, system, prompt, answer, out));
    else
        SH_TRY(put_lists(t, system, prompt, answer, other, out));
    return sh_form_refuse_masked(out);
}

/* ---- single answers ---- */

/* All messages but the last are the prompt. */
static sh_rc put_last(const struct sh_template *t, const struct sh_dialect *d, const char *field, const json_t *top,
                      struct sh_chat *out)
{
    const json_t *list = sh_form_find(top, field), *system;
    json_t *before = json_array(), *last = json_array();
    size_t n = json_array_size(list);
    sh_rc rc = sh_form_system(t, top, &system);

    for (size_t i = 0; i < n; i++)
        json_array_append(i + 1 < n ? before : last, json_array_get(list, i));
    if (rc == SH_OK && !t)
        rc = sh_fail(SH_E_DATA, "\"%s\" are messages; give --chat-template NAME", field);
    else if (rc == SH_OK && n < 2)
        rc = sh_fail(SH_E_DATA, "\"%s\" is %s and must be a list of messages of which the last is the answer", field,
                     sh_json_is(list));
    else if (rc == SH_OK)
        rc = check_copy(d, before, sh_form_find(top, "prompt"));
    if (rc == SH_OK)
        rc = sh_form_render(t, sh_template_render, d, system, before, last, out);
    json_decref(before);
    json_decref(last);
    return rc == SH_OK ? sh_form_refuse_masked(out) : rc;
}

sh_rc sh_form_parse_unpaired(const struct sh_template *t, const json_t *top, struct sh_chat *out)
{
    const json_t *label = sh_form_find(top, sh_form_find(top, "label") ? "label" : "kto_tag");
    const json_t *prompt = sh_form_find(top, "prompt"), *completion = sh_form_find(top, "completion");

    if (!json_is_boolean(label))
        return sh_fail(SH_E_DATA, "\"label\", or \"kto_tag\", is %s; true is a desirable answer, false is not",
                       label ? sh_json_is(label) : "missing");
    out->desirable = json_is_true(label);
    if (sh_form_find(top, "instruction"))
        return sh_form_parse_alpaca(SH_CHAT_UNPAIRED, t, top, out);
    if (completion && (!json_is_array(completion) || json_is_array(prompt)))
        return sh_form_parse_completion(t, top, out);
    SH_TRY(sh_form_check_line(top, "system"));
    if (completion)
        return put_last(t, &sh_form_openai, "completion", top, out);
    if (sh_form_find(top, "conversations"))
        return put_last(t, &sh_form_sharegpt, "conversations", top, out);
    return put_last(t, &sh_form_openai, "messages", top, out);
}
