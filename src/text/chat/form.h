/* What the forms of a line (chat.h) share. Strings and values are lent from the line. */
#ifndef SH_CHAT_FORM_H
#define SH_CHAT_FORM_H

#include "src/text/chat/chat.h"

/* How a form writes messages. */
struct sh_dialect {
    const char *field, *role, *text; /* keys of the list, and of a message */
    const char *names[6];            /* of roles */
    enum sh_role means[6];
    const char *known; /* the names, for a message */
};
extern const struct sh_dialect sh_form_openai, sh_form_sharegpt;

/* A key without a value, or with null, is as good as absent. */
const json_t *sh_form_find(const json_t *object, const char *key);

/* The keys beside the text of a line: those that have a meaning elsewhere are refused, the others are not read.
 *   read  one of them that the form reads; NULL: none */
sh_rc sh_form_check_line(const json_t *top, const char *read);

/* The text of a system message beside a prompt; NULL: none. */
sh_rc sh_form_system(const struct sh_template *t, const json_t *top, const json_t **out);

/* Render the messages of `list` and `rest`, and learn those of `rest` (NULL: those of `list`).
 *   system  the text of one more message in front; NULL: none */
typedef sh_rc sh_form_put(const struct sh_template *t, const struct sh_message *m, int n, struct sh_chat *out);
sh_rc sh_form_render(const struct sh_template *t, sh_form_put *put, const struct sh_dialect *d, const json_t *system,
                     const json_t *list, const json_t *rest, struct sh_chat *out);

/* If every answer has weight 0, the document would be read and teach nothing. */
sh_rc sh_form_refuse_masked(const struct sh_chat *out);

/* Render two strings as two messages, after that of the system, or join them unchanged without a template.
 *   key  of the second, for errors */
sh_rc sh_form_put_completion(const struct sh_template *t, const json_t *system, const json_t *prompt,
                             const json_t *completion, const char *key, struct sh_chat *out);

/* The field may have a name other than the form's: some data sets have "chat", for one. ShareGPT's system text may
 * stand beside the list. */
sh_rc sh_form_parse_messages(const struct sh_template *t, sh_form_put *put, const struct sh_dialect *d,
                             const char *field, const json_t *top, struct sh_chat *out);

/* The text is rendered already, so nothing is put between segments. Any of the segments may be learned, not only the
 * last. */
sh_rc sh_form_parse_segments(const json_t *top, struct sh_chat *out);

sh_rc sh_form_parse_completion(const struct sh_template *t, const json_t *top, struct sh_chat *out);
sh_rc sh_form_parse_alpaca(enum sh_chat_form form, const struct sh_template *t, const json_t *top, struct sh_chat *out);

/* pair.c: give the keys of an answer that is judged the names that the parsers read. */
sh_rc sh_form_settle(enum sh_chat_form form, json_t *top);

/* pair.c: one of two answers, by the form; an answer and whether it is desirable. */
sh_rc sh_form_parse_preference(enum sh_chat_form form, const struct sh_template *t, const json_t *top,
                               struct sh_chat *out);
sh_rc sh_form_parse_unpaired(const struct sh_template *t, const json_t *top, struct sh_chat *out);

#endif
