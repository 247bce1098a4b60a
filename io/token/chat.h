/* A line of jsonl as a text with stretches to learn. Local.
 *
 *   segments           {"segments": [{"text": "...", "label": false}, {"text": "...", "label": true}]}
 *   messages           {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
 *   prompt-completion  {"prompt": "...", "completion": "..."}, or a list of messages in each */
#ifndef IO_TOKEN_CHAT_H
#define IO_TOKEN_CHAT_H

#include "io/json/json.h"
#include "io/token/template.h"
#include "io/token/token.h"

enum sh_chat_form { SH_CHAT_NONE, SH_CHAT_SEGMENTS, SH_CHAT_MESSAGES, SH_CHAT_COMPLETION };

/* Append what the line has.
 *   field  of messages: the key that has them
 *   t      of messages and completions; NULL: prompt and completion are texts that follow each other
 * Errors: SH_E_DATA: no such object; tools; what cannot be rendered (template.h); nothing to learn. */
sh_rc sh_chat_parse(enum sh_chat_form form, const struct sh_template *t, const char *field, const char *line,
                    size_t bytes, struct sh_chat *out);

/* Append what "messages" of an object has, up to where the answer to them begins. Errors: SH_E_DATA, as above. */
sh_rc sh_chat_prompt(const struct sh_template *t, const json_t *line, struct sh_chat *out);

/* named.c: the template of a name, for a tokenizer that has its special tokens.
 *   name   "auto": the one of the tokenizer's folder; NULL: none was given
 *   else_  what to do with a model of another template, for the message: "give --format segments"
 *   *stop  the id of its stop token
 * Errors: SH_E_USAGE: no such name, with those that there are; the folder's own is none of them; the tokenizer lacks one of
 * its special tokens. */
sh_rc sh_chat_template(const char *name, const struct sh_tokenizer *tok, const char *else_,
                       const struct sh_template **out, int64_t *stop);

/* known.c: the name of the template that the tokenizer's folder has, in chat_template.jinja or tokenizer_config.json.
 *   *why  out  NULL; or why there is no name, as what goes on "FILE ..."
 * Errors: SH_E_DATA: a file that cannot be read. */
sh_rc sh_chat_template_beside(const struct sh_tokenizer *tok, const char **name, const char **why);

/* Of a Jinja text, the same however line ends are written in its strings, and with or without a line end behind it. */
uint64_t sh_chat_template_digest(const char *text, size_t bytes);

#endif
