/* Turns a line of jsonl into a text with stretches to learn. Local.
 *
 *   segments           {"segments": [{"text": "...", "label": false}, {"text": "...", "label": true}]}
 *   messages           {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
 *   prompt-completion  {"prompt": "...", "completion": "..."}, or a list of messages in each
 *   sharegpt           {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
 *   alpaca             {"instruction": "...", "input": "...", "output": "..."}
 *   preference         {"prompt": "...", "chosen": "...", "rejected": "..."}, or a list of messages in each; without a
 *                      prompt it is what both answers begin with. Each answer is a text of its own, after the prompt.
 *                      Or with "instruction" and "input" in place of the prompt, or "conversations" or "messages", with
 *                      a message as each answer
 *   unpaired           {"prompt": "...", "completion": "...", "label": true}, or any of messages, sharegpt and alpaca with
 *                      a "label", or a "kto_tag"; the last message of a list is the answer
 *
 * The last two know the keys of axolotl's types as well (pair.c). "system" beside a prompt is one more message.
 *
 * A message with "weight": 0 or "train": false is read and not learned. */
#ifndef IO_TOKEN_CHAT_H
#define IO_TOKEN_CHAT_H

#include "io/json/json.h"
#include "src/text/chat/template.h"
#include "src/text/token/token.h"

enum sh_chat_form {
    SH_CHAT_NONE,
    SH_CHAT_SEGMENTS,
    SH_CHAT_MESSAGES,
    SH_CHAT_COMPLETION,
    SH_CHAT_SHAREGPT,
    SH_CHAT_ALPACA,
    SH_CHAT_CHOSEN, /* preference: one of its two answers */
    SH_CHAT_REJECTED,
    SH_CHAT_UNPAIRED, /* sets sh_chat.desirable */
    SH_CHAT_LABELLED  /* a text with the number of its label; no conversation: src/text/corpus/batch.c reads it */
};

/* Append the conversation of a line.
 *   field  the key that holds the messages; NULL: that of the form
 *   t      template; NULL: prompt and completion are texts that follow each other, and alpaca has its published prompt
 * Errors: SH_E_DATA: not an object of this form; a key that is not known, as those of tools; a conversation that cannot be rendered (template.h); nothing to
 * learn. */
sh_rc sh_chat_parse(enum sh_chat_form form, const struct sh_template *t, const char *field, const char *line,
                    size_t bytes, struct sh_chat *out);

/* The word of `sherd tokenize --format` for a line, by the keys that it has; NULL: it is none of the forms. */
const char *sh_chat_format(const json_t *line);

/* Refuse a line that lacks the field and is of one of the forms: SH_E_DATA names the format to give instead. */
sh_rc sh_chat_check(const char *field, const json_t *line);

/* Append the "messages" of an object, up to where the answer to them begins. Errors: SH_E_DATA, as above. */
sh_rc sh_chat_prompt(const struct sh_template *t, const json_t *line, struct sh_chat *out);

/* named.c: find a template by name, and check that the tokenizer has its special tokens.
 *   name   "auto": the template of the tokenizer's folder; NULL: none was given
 *   else_  for the message, what to do if the model's template is not known here: "give --format segments"
 *   *stop  the id of the template's stop token
 * Errors: SH_E_USAGE: there is no such name (the message lists the known ones); the folder's own template is not a
 * known one; the tokenizer lacks one of the template's special tokens. */
sh_rc sh_chat_template(const char *name, const struct sh_tokenizer *tok, const char *else_,
                       const struct sh_template **out, int64_t *stop);

/* known.c: find the name of the template in the tokenizer's folder, in chat_template.jinja or tokenizer_config.json.
 *   *why  out  NULL; or why there is no name, as the rest of a sentence that begins with "FILE ..."
 * Errors: SH_E_DATA: a file cannot be read. */
sh_rc sh_chat_template_beside(const struct sh_tokenizer *tok, const char **name, const char **why);

/* Return the digest of a Jinja text. It does not depend on how line ends are written in the text's strings, or on
 * whether the text ends with a line end. */
uint64_t sh_chat_template_digest(const char *text, size_t bytes);

#endif
