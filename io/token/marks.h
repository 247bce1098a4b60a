/* Ids of a text of which stretches are learned, with a mask. A token is learned when it touches a stretch: from the one
 * that has its first character to the one that has its last. Merges cross the borders of stretches, since a model reads
 * the text as one. Local. */
#ifndef IO_TOKEN_MARKS_H
#define IO_TOKEN_MARKS_H

#include "io/token/template.h"
#include "io/token/token.h"

struct sh_marks; /* scratch of a thread */

struct sh_marks *sh_marks_create(const struct sh_tokenizer *t);
void sh_marks_destroy(struct sh_marks *m); /* NULL is fine */

/* Append the ids of a chat, and a byte for each to `mask`.
 *   encoder   of the tokenizer, which is a tokenizer.json
 *   stop      id with which each stretch has to end
 *   strange   whether special tokens may be in the text beside those that a template wrote
 * Errors: SH_E_DATA: of sh_encode(); a stretch that does not end with `stop`; a special token in the text. */
sh_rc sh_marks_encode(struct sh_marks *m, struct sh_encoder *encoder, const struct sh_chat *chat, int64_t stop,
                      bool strange, struct sh_ids *ids, struct sh_text *mask);

/* Whether a word is a special token. */
bool sh_token_is_special(const struct sh_tokenizer *t, uint32_t id);

#endif
