/* The table of forms, and which of them a line is. */
#include "src/text/chat/chat.h"

#include "io/json/json.h"
#include "src/text/chat/form.h"

/* For training: something must be learned. */
static sh_rc learn_messages(const struct sh_template *t, const struct sh_dialect *d, const char *field,
                            const json_t *top, struct sh_chat *out)
{
    SH_TRY(sh_form_parse_messages(t, sh_template_render, d, field, top, out));
    return sh_form_refuse_masked(out);
}

/* The key that only lines of a form have. */
static const struct {
    const char *key, *format;
} told_by[] = {
    [SH_CHAT_SEGMENTS] = {"segments", "segments"},
    [SH_CHAT_MESSAGES] = {"messages", "messages"},
    [SH_CHAT_COMPLETION] = {"completion", "prompt-completion"},
    [SH_CHAT_SHAREGPT] = {"conversations", "sharegpt"},
    [SH_CHAT_ALPACA] = {"instruction", "alpaca"},
    [SH_CHAT_CHOSEN] = {"chosen", "preference"},
    [SH_CHAT_REJECTED] = {"rejected", "preference"},
    [SH_CHAT_UNPAIRED] = {"kto_tag", "unpaired"},
};

const char *sh_chat_format(const json_t *line)
{
    if (sh_form_find(line, "chosen") || sh_form_find(line, "chosen_response")) /* with any form's prompt */
        return told_by[SH_CHAT_CHOSEN].format;
    for (size_t i = SH_CHAT_SEGMENTS; i < sizeof told_by / sizeof told_by[0]; i++)
        if (json_object_get(line, told_by[i].key))
            return told_by[i].format;
    return NULL;
}

sh_rc sh_chat_check(const char *field, const json_t *line)
{
    const char *format = json_object_get(line, field) ? NULL : sh_chat_format(line);

    return format ? sh_fail(SH_E_DATA, "the object has no \"%s\"; give --format %s", field, format) : SH_OK;
}

/* Segments may come with keys of tools: the tools are part of the text by now. */
static sh_rc parse(enum sh_chat_form form, const struct sh_template *t, const char *field, json_t *top,
                   struct sh_chat *out)
{
    if (!json_is_object(top))
        return sh_fail(SH_E_DATA, "it is %s, not an object", sh_json_is(top));
    if (form == SH_CHAT_CHOSEN || form == SH_CHAT_REJECTED || form == SH_CHAT_UNPAIRED)
        SH_TRY(sh_form_settle(form, top));
    if (form != SH_CHAT_UNPAIRED)
        SH_TRY(sh_chat_check(field ? field : told_by[form].key, top));
    switch (form) {
    case SH_CHAT_SEGMENTS: return sh_form_parse_segments(top, out);
    case SH_CHAT_MESSAGES: return learn_messages(t, &sh_form_openai, field, top, out);
    case SH_CHAT_SHAREGPT: return learn_messages(t, &sh_form_sharegpt, field, top, out);
    case SH_CHAT_ALPACA: return sh_form_parse_alpaca(form, t, top, out);
    case SH_CHAT_CHOSEN:
    case SH_CHAT_REJECTED: return sh_form_parse_preference(form, t, top, out);
    case SH_CHAT_UNPAIRED: return sh_form_parse_unpaired(t, top, out);
    default: return sh_form_parse_completion(t, top, out);
    }
}

sh_rc sh_chat_parse(enum sh_chat_form form, const struct sh_template *t, const char *field, const char *line,
                    size_t bytes, struct sh_chat *out)
{
    json_t *top;

    SH_TRY(sh_json_parse(line, bytes, "JSON", &top));
    sh_rc rc = parse(form, t, field, top, out);
    json_decref(top);
    return rc;
}

/* Use the same template as in training, up to where the answer begins, so a model sees the form that it was trained
 * on. */
sh_rc sh_chat_prompt(const struct sh_template *t, const json_t *line, struct sh_chat *out)
{
    return sh_form_parse_messages(t, sh_template_prompt, &sh_form_openai, NULL, line, out);
}
