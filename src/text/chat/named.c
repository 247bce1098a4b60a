/* Finds the chat template that a command asks for: by name, or "auto" for the one whose text is in the tokenizer's
 * folder. The special tokens that it writes must exist in the tokenizer. */
#include "src/text/chat/chat.h"
#include "src/text/chat/marks.h"

#include <stdlib.h>
#include <string.h>

/* Fail with the sentence `who` `why` and a list of the known names. who: "", or the beginning of the sentence. */
static sh_rc refuse(const char *why, const char *who, const char *else_)
{
    const struct sh_template *t;
    struct sh_text names = {0};
    sh_rc rc;

    for (int i = 0; (t = sh_template_at(i)) != NULL; i++) {
        sh_text_put(&names, i ? ", " : "", i ? 2 : 0);
        sh_text_put(&names, t->name, strlen(t->name));
    }
    rc = sh_fail(SH_E_USAGE, "%s%s; --chat-template takes %.*s; for others %s", who, why, (int)names.n,
                 (const char *)names.at, else_);
    free(names.at);
    return rc;
}

/* Find the row by name, or by the text in the tokenizer's folder. */
static sh_rc find(const char *name, const struct sh_tokenizer *tok, const char *else_, const struct sh_template **out)
{
    const char *why = NULL;
    char *text;
    sh_rc rc;

    if (!name)
        return refuse("messages need a chat template", "", else_);
    if (!strcmp(name, "auto"))
        SH_TRY(sh_chat_template_beside(tok, &name, &why));
    if (why) {
        text = sh_strfmt("the folder of %s ", tok->path);
        rc = refuse(why, text, else_);
        free(text);
        return rc;
    }
    *out = sh_template_find(name);
    return *out ? SH_OK : refuse(name, "no chat template is called ", else_);
}

/* The tokenizer must have the template's special tokens; written as plain text, a model would not know them. */
sh_rc sh_chat_template(const char *name, const struct sh_tokenizer *tok, const char *else_,
                       const struct sh_template **out, int64_t *stop)
{
    const struct sh_template *t;

    SH_TRY(find(name, tok, else_, &t));
    for (int i = 0; i < SH_TEMPLATE_SPECIALS && t->special[i]; i++) {
        int64_t id = sh_tokenizer_find(tok, t->special[i]);
        if (id < 0 || !sh_marks_is_special(tok, (uint32_t)id))
            return sh_fail(SH_E_USAGE,
                           "%s has no special token %s, which the chat template %s writes; is it this model's?",
                           tok->path, t->special[i], t->name);
        *stop = i == 0 ? id : *stop;
    }
    *out = t;
    return SH_OK;
}
