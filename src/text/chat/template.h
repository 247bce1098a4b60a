/* Chat templates: how messages become one text, and which stretches of it a model learns. Each template is a row of a
 * table; the Jinja text of a model's folder is not run. Local, no state.
 *
 * Sources: the chat templates in the models' folders; tests/hf/test_chat.py has them and compares. */
#ifndef IO_TOKEN_TEMPLATE_H
#define IO_TOKEN_TEMPLATE_H

#include "src/base/err.h"
#include "src/text/base/text.h"

#include <stdbool.h>
#include <stddef.h>

enum sh_role { SH_ROLE_SYSTEM, SH_ROLE_USER, SH_ROLE_ASSISTANT, SH_ROLES };

/* Where a system message goes. FILLED: alone, and models of the family differ about an empty one. */
enum sh_system { SH_SYSTEM_ALONE, SH_SYSTEM_FILLED, SH_SYSTEM_BEFORE_USER, SH_SYSTEM_IN_USER, SH_SYSTEM_NOWHERE };

enum { SH_TEMPLATE_SPECIALS = 6 };

struct sh_template {
    const char *name;
    const char *special[SH_TEMPLATE_SPECIALS]; /* special tokens that it writes, the stop token first; then NULL */
    const char *begin;                         /* before the first message */
    const char *before[SH_ROLES], *after[SH_ROLES];
    const char *stop; /* after an assistant's text, and learned with it */
    bool trim[SH_ROLES];
    enum sh_system system;
    const char *default_system; /* (optional) the system's text if there is no such message */
    const char *thought; /* (optional) before the text of an assistant's message that comes last, and learned with
                                   it; line ends between the two are removed. Texts with reasoning or answers of tools
                                   in them are refused: the model's own template would move or drop them */
};

/* Returns NULL if there is no template of this name. */
const struct sh_template *sh_template_find(const char *name);
const struct sh_template *sh_template_at(int i); /* row i, for lists; NULL after the last */

struct sh_message {
    enum sh_role role;
    const char *text; /* UTF-8, may contain 0 bytes */
    size_t bytes;
    bool learned; /* only an assistant's message is */
};

/* A text and the stretches of it that are learned, in order and not touching each other. */
struct sh_stretch {
    size_t begin, end;
};
struct sh_chat {
    struct sh_text text;
    struct sh_stretch *stretch; /* [n] learned */
    int n, room;
    struct sh_stretch *foreign; /* [n_foreign] text from messages, not from a template */
    int n_foreign, foreign_room;
    bool desirable; /* the label of a single answer */
};

void sh_chat_clear(struct sh_chat *c);
void sh_chat_free(struct sh_chat *c);
void sh_chat_learn(struct sh_chat *c, size_t begin, size_t end);     /* extends a stretch that ends at `begin` */
void sh_chat_put(struct sh_chat *c, const void *text, size_t bytes); /* appends the text of a message */

/* Append a conversation. Errors: SH_E_DATA: roles out of order (a system message or none, then user and assistant in
 * turn, an assistant last), an empty assistant's message, a system message for which the template has no place, reasoning that it would move. */
sh_rc sh_template_render(const struct sh_template *t, const struct sh_message *m, int n, struct sh_chat *out);

/* Append a conversation for a model to answer, up to where the answer begins. Errors: the same, but the last message
 * must be a user's. */
sh_rc sh_template_prompt(const struct sh_template *t, const struct sh_message *m, int n, struct sh_chat *out);

#endif
