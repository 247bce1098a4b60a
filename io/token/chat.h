/* A line of jsonl as a text with stretches to learn. Local.
 *
 *   segments           {"segments": [{"text": "...", "label": false}, {"text": "...", "label": true}]}
 *   messages           {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
 *   prompt-completion  {"prompt": "...", "completion": "..."}, or a list of messages in each */
#ifndef IO_TOKEN_CHAT_H
#define IO_TOKEN_CHAT_H

#include "io/token/template.h"

enum sh_chat_form { SH_CHAT_NONE, SH_CHAT_SEGMENTS, SH_CHAT_MESSAGES, SH_CHAT_COMPLETION };

/* Append what the line has.
 *   field  of messages: the key that has them
 *   t      of messages and completions; NULL: prompt and completion are texts that follow each other
 * Errors: SH_E_DATA: no such object; tools; what cannot be rendered (template.h); nothing to learn. */
sh_rc sh_chat_parse(enum sh_chat_form form, const struct sh_template *t, const char *field, const char *line,
                    size_t bytes, struct sh_chat *out);

#endif
