/* Renders chats in the form in which a model has learned them. A template is a row: the text around a message of each
 * role, and where a system message goes. The Jinja templates in models' folders are not interpreted. */
#include "src/text/chat/template.h"

#include "src/base/string/utf8.h"
#include "src/text/base/ranges.h"

#include <stdlib.h>
#include <string.h>

/* For each role, the text before and after a message. */
#define TAGS(system, user, assistant) \
    {                                 \
        system, user, assistant       \
    }
#define HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define HEADER_OF_CHATML(role) "<|im_start|>" role "\n"
#define CHATML                                                                                     \
    {"<|im_end|>", "<|im_start|>"}, "",                                                            \
        TAGS(HEADER_OF_CHATML("system"), HEADER_OF_CHATML("user"), HEADER_OF_CHATML("assistant")), \
        TAGS("<|im_end|>\n", "<|im_end|>\n", "\n"), "<|im_end|>", {false}, .system = SH_SYSTEM_ALONE
#define ALL              \
    {                    \
        true, true, true \
    }

/* clang-format off */
static const struct sh_template templates[] = {
    {"chatml", CHATML},
    {"qwen2.5", CHATML, .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {"qwen3", CHATML, .thought = "<think>\n\n</think>\n\n"},
    {"llama3",
     {"<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"},
     "<|begin_of_text|>",
     TAGS(HEADER("system"), HEADER("user"), HEADER("assistant")),
     TAGS("<|eot_id|>", "<|eot_id|>", ""),
     "<|eot_id|>",
     ALL,
     .system = SH_SYSTEM_ALONE},
    {"llama3.1",
     {"<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"},
     "<|begin_of_text|>",
     TAGS(HEADER("system") "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", HEADER("user"),
          HEADER("assistant")),
     TAGS("<|eot_id|>", "<|eot_id|>", ""),
     "<|eot_id|>",
     ALL,
     .system = SH_SYSTEM_ALONE,
     .default_system = ""},
    {"llama2",
     {"</s>", "<s>"},
     "",
     TAGS("<<SYS>>\n", "<s>[INST] ", " "),
     TAGS("\n<</SYS>>\n\n", " [/INST]", ""),
     " </s>",
     ALL,
     .system = SH_SYSTEM_IN_USER},
    /* In its Jinja text the place of a system message depends on what follows, which a row cannot express. */
    {"mistral-v3",
     {"</s>", "<s>", "[INST]", "[/INST]"},
     "<s>",
     TAGS("", "[INST] ", " "),
     TAGS("", "[/INST]", ""),
     "</s>",
     {false, false, true},
     .system = SH_SYSTEM_NOWHERE},
    {"mistral-v7",
     {"</s>", "<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     "<s>",
     TAGS("[SYSTEM_PROMPT] ", "[INST] ", " "),
     TAGS("[/SYSTEM_PROMPT]", "[/INST]", ""),
     "</s>",
     {false},
     .system = SH_SYSTEM_ALONE},
    {"mistral-v7-tekken",
     {"</s>", "<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     "<s>",
     TAGS("[SYSTEM_PROMPT]", "[INST]", ""),
     TAGS("[/SYSTEM_PROMPT]", "[/INST]", ""),
     "</s>",
     {false},
     .system = SH_SYSTEM_ALONE},
    {"gemma",
     {"<end_of_turn>", "<bos>", "<start_of_turn>"},
     "<bos>",
     TAGS("", "<start_of_turn>user\n", "<start_of_turn>model\n"),
     TAGS("\n\n", "<end_of_turn>\n", "\n"),
     "<end_of_turn>",
     {false, true, true},
     .system = SH_SYSTEM_BEFORE_USER},
    {"phi3",
     {"<|end|>", "<|system|>", "<|user|>", "<|assistant|>"},
     "",
     TAGS("<|system|>\n", "<|user|>\n", "<|assistant|>\n"),
     TAGS("<|end|>\n", "<|end|>\n", "\n"),
     "<|end|>",
     {false},
     .system = SH_SYSTEM_FILLED},
};
/* clang-format on */

/* NULL after the last row. */
const struct sh_template *sh_template_at(int i)
{
    return i < (int)(sizeof templates / sizeof templates[0]) ? &templates[i] : NULL;
}

const struct sh_template *sh_template_find(const char *name)
{
    const struct sh_template *t;

    for (int i = 0; (t = sh_template_at(i)) != NULL; i++)
        if (!strcmp(t->name, name))
            return t;
    return NULL;
}

/* Keeps the memory for the next chat. */
void sh_chat_clear(struct sh_chat *c)
{
    c->text.n = 0;
    c->n = c->n_foreign = 0;
    c->desirable = false;
}

void sh_chat_free(struct sh_chat *c)
{
    free(c->text.at);
    free(c->stretch);
    free(c->foreign);
    *c = (struct sh_chat){0};
}

static void add_stretch(struct sh_stretch **to, int *n, int *room, struct sh_stretch s)
{
    if (*n == *room) {
        *room = *room ? 2 * *room : 16;
        *to = sh_realloc(*to, (size_t)*room, sizeof **to);
    }
    (*to)[(*n)++] = s;
}

/* Stretches that touch are joined, so a mask has few of them. */
void sh_chat_learn(struct sh_chat *c, size_t begin, size_t end)
{
    if (c->n && c->stretch[c->n - 1].end == begin) {
        c->stretch[c->n - 1].end = end;
        return;
    }
    add_stretch(&c->stretch, &c->n, &c->room, (struct sh_stretch){begin, end});
}

/* This is text from a user or a file: markup of the template in it must not become special tokens, so its place is
 * recorded. */
void sh_chat_put(struct sh_chat *c, const void *text, size_t bytes)
{
    size_t begin = c->text.n;

    sh_text_put(&c->text, text, bytes);
    add_stretch(&c->foreign, &c->n_foreign, &c->foreign_room, (struct sh_stretch){begin, c->text.n});
}

static bool is_space(const unsigned char *p, size_t *n)
{
    return sh_char_is_stripped(sh_utf8_get(p, n));
}

/* Like Jinja's trim. */
static void trim(const unsigned char **text, size_t *bytes)
{
    size_t n;

    while (*bytes && is_space(*text, &n)) {
        *text += n;
        *bytes -= n;
    }
    while (*bytes) {
        size_t last = sh_utf8_last(*text, *bytes);
        if (!is_space(*text + *bytes - last, &n))
            return;
        *bytes -= last;
    }
}

/* Append text of the template itself. */
static void put_markup(const char *text, struct sh_chat *out)
{
    sh_text_put(&out->text, text, strlen(text));
}

/* Put the system message inside the first user's message; the two are trimmed together. */
static void put_inside(const struct sh_template *t, const struct sh_message *system, const struct sh_message *user,
                       struct sh_chat *out)
{
    struct sh_text both = {0};
    const unsigned char *text;
    size_t bytes;

    sh_text_put(&both, t->before[SH_ROLE_SYSTEM], strlen(t->before[SH_ROLE_SYSTEM]));
    sh_text_put(&both, system->text, system->bytes);
    sh_text_put(&both, t->after[SH_ROLE_SYSTEM], strlen(t->after[SH_ROLE_SYSTEM]));
    sh_text_put(&both, user->text, user->bytes);
    text = both.at;
    bytes = both.n;
    if (t->trim[SH_ROLE_USER])
        trim(&text, &bytes);
    sh_chat_put(out, text, bytes);
    free(both.at);
}

static void put_text(const struct sh_template *t, const struct sh_message *m, struct sh_chat *out)
{
    const unsigned char *text = (const unsigned char *)m->text;
    size_t bytes = m->bytes;

    if (t->trim[m->role])
        trim(&text, &bytes);
    sh_chat_put(out, text, bytes);
}

static bool has(const struct sh_message *m, const char *text)
{
    return memmem(m->text, m->bytes, text, strlen(text)) != NULL;
}

/* Refuse what a template that knows reasoning would not render where it stands. */
static sh_rc refuse_thoughts(const struct sh_template *t, const struct sh_message *m)
{
    if (m->role == SH_ROLE_ASSISTANT && has(m, "</think>"))
        return sh_fail(SH_E_DATA,
                       "an assistant's message has \"</think>\" in it, and the model's own template would move or drop "
                       "its reasoning; render the text elsewhere and give --format segments");
    if (m->role == SH_ROLE_USER && has(m, "<tool_response>"))
        return sh_fail(SH_E_DATA, "a user's message has \"<tool_response>\" in it: template %s renders no tools",
                       t->name);
    return SH_OK;
}

/* Put the text of an assistant's message that comes last after an empty thought. */
static void put_thoughtful(const struct sh_template *t, const struct sh_message *m, struct sh_chat *out)
{
    size_t n = 0;

    while (n < m->bytes && m->text[n] == '\n')
        n++;
    put_markup(t->thought, out);
    sh_chat_put(out, m->text + n, m->bytes - n);
}

/* system: the system message that goes into this message, NULL: none; last: no message follows. */
static sh_rc put_message(const struct sh_template *t, const struct sh_message *m, const struct sh_message *system,
                         bool last, struct sh_chat *out)
{
    bool thoughtful = t->thought && last && m->role == SH_ROLE_ASSISTANT;
    size_t begin, least;

    if (t->thought)
        SH_TRY(refuse_thoughts(t, m));
    put_markup(t->before[m->role], out);
    begin = out->text.n;
    least = begin + (thoughtful ? strlen(t->thought) : 0);
    if (system && t->system == SH_SYSTEM_IN_USER) {
        put_inside(t, system, m, out);
    } else {
        if (system) {
            sh_chat_put(out, system->text, system->bytes);
            put_markup(t->after[SH_ROLE_SYSTEM], out);
        }
        (thoughtful ? put_thoughtful : put_text)(t, m, out);
    }
    if (m->role == SH_ROLE_ASSISTANT) {
        if (out->text.n == least)
            return sh_fail(SH_E_DATA, "an assistant's message is empty: there is nothing to learn");
        put_markup(t->stop, out);
        if (m->learned)
            sh_chat_learn(out, begin, out->text.n);
    }
    put_markup(t->after[m->role], out);
    return SH_OK;
}

/* Check the order of roles: a system message or none, then user and assistant in turn. */
static sh_rc check_roles(const struct sh_message *m, int n)
{
    static const char *const names[] = {"system", "user", "assistant"};
    int first = n > 0 && m[0].role == SH_ROLE_SYSTEM;

    for (int i = first; i < n; i++) {
        enum sh_role right = (i - first) % 2 ? SH_ROLE_ASSISTANT : SH_ROLE_USER;
        if (m[i].role != right)
            return sh_fail(SH_E_DATA, "message %d has the role %s, but %s was expected: user and assistant take turns",
                           i + 1, names[m[i].role], names[right]);
    }
    return SH_OK;
}

/* Refuse a system message for which the template has no place, or no single one. */
static sh_rc check_system(const struct sh_template *t, const struct sh_message *system)
{
    if (t->system == SH_SYSTEM_NOWHERE)
        return sh_fail(SH_E_DATA, "template %s has no place for a system message; put it into the first user's text",
                       t->name);
    if (t->system == SH_SYSTEM_FILLED && system->bytes == 0)
        return sh_fail(SH_E_DATA,
                       "the system message is empty: some models with template %s write it, some do not; take "
                       "it out",
                       t->name);
    return SH_OK;
}

/* A system message that belongs inside the first user's message goes into that message only. */
static sh_rc put_messages(const struct sh_template *t, const struct sh_message *m, int n, struct sh_chat *out)
{
    const struct sh_message *system = NULL;
    int i = 0;

    put_markup(t->begin, out);
    if (m[0].role == SH_ROLE_SYSTEM) {
        SH_TRY(check_system(t, &m[0]));
        if (t->system == SH_SYSTEM_BEFORE_USER || t->system == SH_SYSTEM_IN_USER)
            system = &m[i++];
    } else if (t->default_system) {
        put_markup(t->before[SH_ROLE_SYSTEM], out);
        put_markup(t->default_system, out);
        put_markup(t->after[SH_ROLE_SYSTEM], out);
    }
    for (; i < n; i++) {
        SH_TRY(put_message(t, &m[i], m[i].role == SH_ROLE_USER ? system : NULL, i + 1 == n, out));
        if (m[i].role == SH_ROLE_USER)
            system = NULL;
    }
    return SH_OK;
}

/* For training: the last message must be an assistant's, which is learned. */
sh_rc sh_template_render(const struct sh_template *t, const struct sh_message *m, int n, struct sh_chat *out)
{
    SH_TRY(check_roles(m, n));
    if (n == 0 || m[n - 1].role != SH_ROLE_ASSISTANT)
        return sh_fail(SH_E_DATA, "the last message is not an assistant's: there is nothing to learn");
    return put_messages(t, m, n, out);
}

/* A blank at the start of an answer is left for the model to write: tokenizers merge it with the first word into one
 * token. */
sh_rc sh_template_prompt(const struct sh_template *t, const struct sh_message *m, int n, struct sh_chat *out)
{
    const char *answer = t->before[SH_ROLE_ASSISTANT];

    SH_TRY(check_roles(m, n));
    if (n == 0 || m[n - 1].role != SH_ROLE_USER)
        return sh_fail(SH_E_DATA, "the last message is not a user's: there is nothing to answer");
    SH_TRY(put_messages(t, m, n, out));
    if (strcmp(answer, " ") != 0)
        put_markup(answer, out);
    return SH_OK;
}
