#include "io/token/chat.h"
#include "io/token/marks.h"

#include <stdlib.h>
#include <string.h>

/* With the names that there are. */
static sh_rc refuse_name(const char *given, const char *else_)
{
    const struct sh_template *t;
    struct sh_text names = {0};
    sh_rc rc;

    for (int i = 0; (t = sh_template_at(i)) != NULL; i++) {
        sh_text_put(&names, i ? ", " : "", i ? 2 : 0);
        sh_text_put(&names, t->name, strlen(t->name));
    }
    rc = sh_fail(SH_E_USAGE, "%s%s; --chat-template takes %.*s; for others %s",
                 given ? "no chat template is called " : "messages need a chat template", given ? given : "",
                 (int)names.n, (const char *)names.at, else_);
    free(names.at);
    return rc;
}

/* As plain text a model would not know the special tokens. */
sh_rc sh_chat_template(const char *name, const struct sh_tokenizer *tok, const char *else_,
                       const struct sh_template **out, int64_t *stop)
{
    const struct sh_template *t = name ? sh_template_find(name) : NULL;

    if (!t)
        return refuse_name(name, else_);
    for (int i = 0; i < SH_TEMPLATE_SPECIALS && t->special[i]; i++) {
        int64_t id = sh_tokenizer_find(tok, t->special[i]);
        if (id < 0 || !sh_token_is_special(tok, (uint32_t)id))
            return sh_fail(SH_E_USAGE,
                           "%s has no special token %s, which the chat template %s writes; is it this model's?",
                           tok->path, t->special[i], t->name);
        *stop = i == 0 ? id : *stop;
    }
    *out = t;
    return SH_OK;
}
